// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// running is a server on a free port of this machine.
type running struct {
	t      *testing.T
	url    string
	cancel context.CancelFunc
	ended  chan error
}

// startServer serves model "m" a thousand times faster than the engine unless
// change says otherwise.
func startServer(t *testing.T, change func(*Config, *Options)) *running {
	c := DefaultConfig()
	o := Options{ServedModelNames: []string{"m", "alias"}, Root: "org/m", TimeScale: 1000}
	if change != nil {
		change(&c, &o)
	}
	s, err := New(c, o)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, url: "http://" + l.Addr().String(), cancel: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- s.Serve(ctx, l) }()
	t.Cleanup(cancel)
	return r
}

// hourLate accepts connections whose data came an hour before it was read.
type hourLate struct{ net.Listener }

func (l hourLate) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return lateConn{c}, err
}

type lateConn struct{ net.Conn }

func (lateConn) Age() time.Duration { return time.Hour }

// The time of arrival is the connection's to know, where it does.
func TestARequestArrivesWhenItReachesTheHost(t *testing.T) {
	for _, late := range []bool{false, true} {
		var log bytes.Buffer
		s, err := New(DefaultConfig(), Options{ServedModelNames: []string{"m"}, TimeScale: 1000, RequestLog: &log})
		require.NoError(t, err)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		url := "http://" + l.Addr().String()
		if late {
			l = hourLate{l}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(ctx, l) }()
		res, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"a","max_tokens":2}`))
		require.NoError(t, err)
		read(t, res)
		cancel()
		require.NoError(t, <-ended)
		var r record
		require.NoError(t, json.Unmarshal(log.Bytes(), &r), "%s", log.String())
		require.NotNil(t, r.FirstNS)
		took := time.Duration(*r.FirstNS - r.ArrivalNS)
		assert.Equal(t, late, took >= time.Hour, took)
	}
}

func (r *running) get(path string) (int, string) {
	r.t.Helper()
	resp, err := http.Get(r.url + path)
	require.NoError(r.t, err)
	return read(r.t, resp)
}

func (r *running) post(path, body string) (int, string) {
	r.t.Helper()
	resp, err := http.Post(r.url+path, "application/json", strings.NewReader(body))
	require.NoError(r.t, err)
	return read(r.t, resp)
}

func read(t *testing.T, resp *http.Response) (int, string) {
	t.Helper()
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, createdPattern.ReplaceAllString(string(body), `"created":1`)
}

var createdPattern = regexp.MustCompile(`"created":\d+`)

// metric returns the value of one sample of /metrics.
func (r *running) metric(sample string) float64 {
	r.t.Helper()
	_, body := r.get("/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, sample+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			require.NoError(r.t, err)
			return f
		}
	}
	require.Fail(r.t, "no such sample", "%s in\n%s", sample, body)
	return 0
}

func decode[T any](t *testing.T, body string) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(body), &v), body)
	return v
}

const (
	completionHead = `data: {"id":"cmpl-00000000000000000000000000000001","object":"text_completion","created":1,"model":"m","choices":[`
	completionTail = `,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]`
	chatHead       = `data: {"id":"chatcmpl-00000000000000000000000000000001","object":"chat.completion.chunk","created":1,"model":"m","choices":[`
)

func TestCompletionStream(t *testing.T) {
	const request = `{"model":"m","prompt":[7,8,9],"max_tokens":3,"ignore_eos":true,"stream":true`
	for name, tt := range map[string]struct{ options, want string }{
		"without usage": {``,
			completionHead + `{"index":0,"text":" van","logprobs":null,"finish_reason":null` + completionTail + "}\n\n" +
				completionHead + `{"index":0,"text":" hat","logprobs":null,"finish_reason":null` + completionTail + "}\n\n" +
				completionHead + `{"index":0,"text":" toy","logprobs":null,"finish_reason":"length"` + completionTail + "}\n\n" +
				"data: [DONE]\n\n"},
		"usage at the end": {`,"stream_options":{"include_usage":true}`,
			completionHead + `{"index":0,"text":" van","logprobs":null,"finish_reason":null` + completionTail + "}\n\n" +
				completionHead + `{"index":0,"text":" hat","logprobs":null,"finish_reason":null` + completionTail + "}\n\n" +
				completionHead + `{"index":0,"text":" toy","logprobs":null,"finish_reason":"length"` + completionTail + "}\n\n" +
				completionHead + `],"usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6}}` + "\n\n" +
				"data: [DONE]\n\n"},
		"usage everywhere": {`,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`,
			completionHead + `{"index":0,"text":" van","logprobs":null,"finish_reason":null` + completionTail + `,"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}` + "\n\n" +
				completionHead + `{"index":0,"text":" hat","logprobs":null,"finish_reason":null` + completionTail + `,"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}` + "\n\n" +
				completionHead + `{"index":0,"text":" toy","logprobs":null,"finish_reason":"length"` + completionTail + `,"usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6}}` + "\n\n" +
				completionHead + `],"usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6}}` + "\n\n" +
				"data: [DONE]\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := startServer(t, nil).post("/v1/completions", request+tt.options+"}")
			assert.Equal(t, http.StatusOK, status)
			assert.Equal(t, tt.want, body)
		})
	}
}

func TestContinuousUsageNeedsIncludeUsage(t *testing.T) {
	_, body := startServer(t, nil).post("/v1/completions",
		`{"model":"m","prompt":"a","max_tokens":2,"ignore_eos":true,"stream":true,"stream_options":{"continuous_usage_stats":true}}`)
	assert.NotContains(t, body, "usage")
	assert.Equal(t, 3, strings.Count(body, "data: "))
}

func TestForcedUsageIsInEveryChunk(t *testing.T) {
	server := startServer(t, func(_ *Config, o *Options) { o.ForceIncludeUsage = true })
	_, body := server.post("/v1/completions", `{"prompt":"a","max_tokens":2,"ignore_eos":true,"stream":true}`)
	assert.Equal(t, 3, strings.Count(body, `"usage":{"prompt_tokens":1,`))
}

func TestChatStream(t *testing.T) {
	status, body := startServer(t, nil).post("/v1/chat/completions",
		`{"model":"alias","messages":[{"role":"user","content":"hi"}],"max_tokens":2,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`)
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t,
		chatHead+`{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`+"\n\n"+
			chatHead+`{"index":0,"delta":{"content":" air"},"logprobs":null,"finish_reason":null}]}`+"\n\n"+
			chatHead+`{"index":0,"delta":{"content":" ice"},"logprobs":null,"finish_reason":"length","stop_reason":null}]}`+"\n\n"+
			chatHead+`],"usage":{"prompt_tokens":8,"completion_tokens":2,"total_tokens":10}}`+"\n\n"+
			"data: [DONE]\n\n", body)
}

func TestContinuousUsageOfAChatCountsFromTheRoleChunk(t *testing.T) {
	_, body := startServer(t, nil).post("/v1/chat/completions",
		`{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
	var counts []string
	for _, m := range regexp.MustCompile(`"completion_tokens":(\d+)`).FindAllStringSubmatch(body, -1) {
		counts = append(counts, m[1])
	}
	assert.Equal(t, []string{"0", "1", "2", "2"}, counts)
}

func TestCompletionWithoutStream(t *testing.T) {
	status, body := startServer(t, nil).post("/v1/completions", `{"model":"m","prompt":[7,8,9],"max_tokens":3,"ignore_eos":true}`)
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, `{"id":"cmpl-00000000000000000000000000000001","object":"text_completion","created":1,"model":"m",`+
		`"choices":[{"index":0,"text":" van hat toy","logprobs":null,"finish_reason":"length","stop_reason":null}],`+
		`"usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6}}`, body)
}

func TestChatWithoutStream(t *testing.T) {
	status, body := startServer(t, nil).post("/v1/chat/completions",
		`{"model":"m","messages":[{"role":"system","content":"be"},{"role":"user","content":[{"type":"text","text":"hi"}]}],"max_completion_tokens":2,"ignore_eos":true}`)
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, `{"id":"chatcmpl-00000000000000000000000000000001","object":"chat.completion","created":1,"model":"m",`+
		`"choices":[{"index":0,"message":{"role":"assistant","content":" sky sea"},"logprobs":null,"finish_reason":"length","stop_reason":null}],`+
		`"usage":{"prompt_tokens":13,"completion_tokens":2,"total_tokens":15}}`, body)
}

func TestStreamIntervalGathersTokensAfterTheFirst(t *testing.T) {
	server := startServer(t, func(_ *Config, o *Options) { o.StreamInterval = 4 })
	_, body := server.post("/v1/completions", `{"prompt":[1],"max_tokens":10,"ignore_eos":true,"stream":true}`)
	var lengths []int
	for _, m := range regexp.MustCompile(`"text":"([^"]*)"`).FindAllStringSubmatch(body, -1) {
		lengths = append(lengths, len(m[1])/maxTokenBytes)
	}
	assert.Equal(t, []int{1, 4, 4, 1}, lengths)
}

func TestPromptForms(t *testing.T) {
	server := startServer(t, nil)
	for prompt, want := range map[string]int{
		`"hello world"`:      4,
		`["hello world"]`:    4,
		`[5]`:                1,
		`[1,2,3,4294967296]`: 4,
		`[[1,2,3]]`:          3,
		` [ [ 1 , 2 ] ] `:    2,
	} {
		status, body := server.post("/v1/completions", `{"prompt":`+prompt+`,"max_tokens":1,"ignore_eos":true}`)
		assert.Equal(t, http.StatusOK, status, prompt)
		assert.Equal(t, tokenUsage{want, 1, want + 1}, decode[completion](t, body).Usage, prompt)
	}
}

func TestBadRequests(t *testing.T) {
	server := startServer(t, nil)
	const tooLong = "This model's maximum context length is 8192 tokens"
	for name, tt := range map[string]struct {
		path, body string
		status     int
		kind       string
		message    string
	}{
		"unknown model":         {"/v1/completions", `{"model":"x","prompt":"a"}`, 404, "NotFoundError", "The model `x` does not exist."},
		"unknown model in chat": {"/v1/chat/completions", `{"model":"x","messages":[{"role":"user","content":"a"}]}`, 404, "NotFoundError", "The model `x` does not exist."},
		"bad JSON":              {"/v1/completions", `{"prompt":`, 400, "BadRequestError", "'type': 'json_invalid'"},
		"wrong type":            {"/v1/completions", `{"prompt":"a","max_tokens":"9"}`, 400, "BadRequestError", "max_tokens"},
		"no prompt":             {"/v1/completions", `{}`, 400, "BadRequestError", "Either prompt or prompt_embeds must be provided and non-empty."},
		"empty prompt":          {"/v1/completions", `{"prompt":""}`, 400, "BadRequestError", "Either prompt or prompt_embeds must be provided and non-empty."},
		"empty token prompt":    {"/v1/completions", `{"prompt":[]}`, 400, "BadRequestError", "Either prompt or prompt_embeds must be provided and non-empty."},
		"number as a prompt":    {"/v1/completions", `{"prompt":5}`, 400, "BadRequestError", "prompt must be a string, a list of token ids, or a list of one of those."},
		"several prompts":       {"/v1/completions", `{"prompt":["a","b"]}`, 400, "BadRequestError", "one prompt per request, got 2"},
		"negative token":        {"/v1/completions", `{"prompt":[-1]}`, 400, "BadRequestError", "token id -1 is out of vocabulary"},
		"no messages":           {"/v1/chat/completions", `{}`, 400, "BadRequestError", "messages must not be empty."},
		"content is a number":   {"/v1/chat/completions", `{"messages":[{"role":"user","content":1}]}`, 400, "BadRequestError", "messages: content"},
		"two answers":           {"/v1/completions", `{"prompt":"a","n":2}`, 400, "BadRequestError", "n must be 1"},
		"no tokens":             {"/v1/completions", `{"prompt":"a","max_tokens":0}`, 400, "BadRequestError", "max_tokens must be at least 1, got 0."},
		"min above max":         {"/v1/completions", `{"prompt":"a","max_tokens":2,"min_tokens":3}`, 400, "BadRequestError", "min_tokens must be less than or equal to max_tokens=2, got 3."},
		"negative min":          {"/v1/completions", `{"prompt":"a","min_tokens":-1}`, 400, "BadRequestError", "min_tokens must be greater than or equal to 0, got -1."},
		"options without stream": {"/v1/completions", `{"prompt":"a","stream_options":{"include_usage":true}}`, 400, "BadRequestError",
			"Stream options can only be defined when `stream=True`."},
		"answer too long": {"/v1/completions", `{"prompt":[1,2],"max_tokens":8191}`, 400, "BadRequestError",
			"'max_tokens' or 'max_completion_tokens' is too large: 8191. " + tooLong + " and your request has 2 input tokens (8191 > 8192 - 2)."},
		"prompt too long": {"/v1/completions", `{"prompt":"` + strings.Repeat(" abc", 8192) + `"}`, 400, "BadRequestError",
			tooLong + ". However, your request has 8192 input tokens. Please reduce the length of the input messages."},
		"detokenize a bad token": {"/detokenize", `{"tokens":[4311810560]}`, 400, "BadRequestError", "token id 4311810560 is out of vocabulary"},
		"tokenize unknown model": {"/tokenize", `{"model":"x","prompt":"a"}`, 404, "NotFoundError", "The model `x` does not exist."},
		"simulate nothing":       {"/simulate", `{"concurrency":1}`, 400, "BadRequestError", "requestList"},
		"simulate an empty request": {"/simulate", `{"concurrency":1,"requestList":[{"prompt":0,"output":1}]}`, 400, "BadRequestError",
			"simulate: request 0: request with 0 prompt and 1 output tokens: both must be at least 1"},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := server.post(tt.path, tt.body)
			assert.Equal(t, tt.status, status)
			got := decode[struct{ Error apiError }](t, body).Error
			assert.Contains(t, got.Message, tt.message)
			assert.Equal(t, tt.kind, got.Type)
			assert.Equal(t, tt.status, got.Code)
		})
	}
}

func TestTheContextCanBeUsedToTheLastToken(t *testing.T) {
	status, body := startServer(t, nil).post("/v1/completions", `{"prompt":"`+strings.Repeat(" abc", 8190)+`","max_tokens":2,"ignore_eos":true}`)
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, tokenUsage{8190, 2, 8192}, decode[completion](t, body).Usage)
}

func TestAnswersEndByThemselvesUnlessEOSIsIgnored(t *testing.T) {
	server := startServer(t, nil)
	lengths := map[int]bool{}
	for i := range 20 {
		body := `{"prompt":[` + strconv.Itoa(i) + `],"max_tokens":8000`
		_, first := server.post("/v1/completions", body+"}")
		_, second := server.post("/v1/completions", body+"}")
		a, b := decode[completion](t, first), decode[completion](t, second)
		n := a.Usage.CompletionTokens
		assert.Equal(t, a.Usage, b.Usage, "same prompt, same length")
		assert.Equal(t, "stop", a.Choices[0].FinishReason)
		assert.Equal(t, n-1, countTokens(*a.Choices[0].Text), "the end of sequence has no text")
		lengths[n] = true

		_, long := server.post("/v1/completions", body+`,"min_tokens":`+strconv.Itoa(n+5)+"}")
		assert.Equal(t, n+5, decode[completion](t, long).Usage.CompletionTokens)
	}
	assert.Greater(t, len(lengths), 15)
	for n := range lengths {
		assert.Less(t, n, 4*answerMedian)
	}
}

func TestDefaultAnswerLengths(t *testing.T) {
	server := startServer(t, func(c *Config, _ *Options) { c.MaxModelLen = 600 })
	_, body := server.post("/v1/completions", `{"prompt":[1],"ignore_eos":true}`)
	assert.Equal(t, 16, decode[completion](t, body).Usage.CompletionTokens)
	_, body = server.post("/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"ignore_eos":true}`)
	assert.Equal(t, 592, decode[completion](t, body).Usage.CompletionTokens)
}

func TestWithoutALimitTheContextIsWhatFits(t *testing.T) {
	for want, chunked := range map[int]bool{16000: true, 8192: false} {
		server := startServer(t, func(c *Config, _ *Options) {
			c.MaxModelLen, c.BlocksOverride, c.ChunkedPrefill = 0, 1000, chunked
		})
		_, body := server.get("/v1/models")
		assert.Contains(t, body, `"max_model_len":`+strconv.Itoa(want)+",")
	}
}

func TestTokenizeAgreesWithUsageAndDetokenize(t *testing.T) {
	server := startServer(t, nil)
	for _, text := range []string{"hello, wide world", "  two  spaces ", "Grüße, 世界 🙂!", "x", "\n\t{\"json\": 1}"} {
		prompt, err := json.Marshal(text)
		require.NoError(t, err)
		_, body := server.post("/tokenize", `{"model":"m","prompt":`+string(prompt)+`,"return_token_strs":true}`)
		got := decode[struct {
			Count       int
			MaxModelLen int `json:"max_model_len"`
			Tokens      []int
			TokenStrs   []string `json:"token_strs"`
		}](t, body)
		assert.Equal(t, text, strings.Join(got.TokenStrs, ""))
		assert.Len(t, got.Tokens, got.Count)
		assert.Equal(t, 8192, got.MaxModelLen)

		_, body = server.post("/v1/completions", `{"prompt":`+string(prompt)+`,"max_tokens":1}`)
		assert.Equal(t, got.Count, decode[completion](t, body).Usage.PromptTokens)

		ids, err := json.Marshal(got.Tokens)
		require.NoError(t, err)
		_, body = server.post("/detokenize", `{"tokens":`+string(ids)+`}`)
		assert.Equal(t, text, decode[struct{ Prompt string }](t, body).Prompt)
	}
	_, body := server.post("/tokenize", `{"messages":[{"role":"user","content":"hi"}],"return_token_strs":true}`)
	assert.Equal(t, []string{"<|us", "er|>", "hi", "<|e>", "<|as", "sist", "ant|", ">"}, decode[struct {
		TokenStrs []string `json:"token_strs"`
	}](t, body).TokenStrs)
	_, body = server.post("/tokenize", `{"prompt":"a b"}`)
	assert.Equal(t, `{"count":2,"max_model_len":8192,"tokens":[97,8546],"token_strs":null}`, body)
}

func TestHealthVersionAndModels(t *testing.T) {
	server := startServer(t, nil)
	for _, path := range []string{"/health", "/ping"} {
		status, body := server.get(path)
		assert.Equal(t, http.StatusOK, status, path)
		assert.Empty(t, body, path)
	}
	_, body := server.get("/version")
	assert.Equal(t, `{"version":"llmctl-simulator"}`, body)
	_, body = server.get("/v1/models")
	const rest = `"object":"model","created":1,"owned_by":"vllm","root":"org/m","parent":null,"max_model_len":8192,"permission":[]}`
	assert.Equal(t, `{"data":[{"id":"m",`+rest+`,{"id":"alias",`+rest+`],"object":"list"}`, body)
	status, _ := server.get("/v1/completions")
	assert.Equal(t, http.StatusMethodNotAllowed, status)
	status, _ = server.get("/v2/nothing")
	assert.Equal(t, http.StatusNotFound, status)
}

func TestOnlyV1AsksForAKey(t *testing.T) {
	server := startServer(t, func(_ *Config, o *Options) { o.APIKeys = []string{"one", "two"} })
	for _, path := range []string{"/health", "/metrics", "/version"} {
		status, _ := server.get(path)
		assert.Equal(t, http.StatusOK, status, path)
	}
	for header, want := range map[string]int{"": 401, "Bearer three": 401, "Bearer ": 401, "Bearer one": 200, "Bearer two": 200} {
		r, err := http.NewRequest(http.MethodGet, server.url+"/v1/models", nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", header)
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		status, body := read(t, resp)
		assert.Equal(t, want, status, header)
		if want == 401 {
			assert.Equal(t, `{"error":"Unauthorized"}`, body)
		}
	}
}

func TestMetricsAfterTwoRequests(t *testing.T) {
	server := startServer(t, func(c *Config, _ *Options) { c.PrefixHit = 0.5 })
	server.post("/v1/completions", `{"prompt":"`+strings.Repeat(" abc", 64)+`","max_tokens":5,"ignore_eos":true}`)
	server.post("/v1/completions", `{"prompt":[1],"max_tokens":8000}`)
	const labels = `{engine="0",model_name="m"}`
	require.Eventually(t, func() bool { return server.metric("vllm:num_requests_running"+labels) == 0 }, 5*time.Second, time.Millisecond)
	assert.Equal(t, 65.0, server.metric("vllm:prompt_tokens_total"+labels))
	assert.Equal(t, 65.0, server.metric("vllm:prefix_cache_queries_total"+labels))
	assert.Equal(t, 32.0, server.metric("vllm:prefix_cache_hits_total"+labels))
	assert.Equal(t, 1.0, server.metric(`vllm:request_success_total{engine="0",finished_reason="length",model_name="m"}`))
	assert.Equal(t, 1.0, server.metric(`vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"}`))
	assert.Equal(t, 0.0, server.metric("vllm:num_preemptions_total"+labels))
	assert.Equal(t, 0.0, server.metric("vllm:kv_cache_usage_perc"+labels))
	assert.Equal(t, 0.0, server.metric("vllm:num_requests_waiting"+labels))
	assert.Equal(t, 2.0, server.metric("vllm:time_to_first_token_seconds_count"+labels))
	assert.Equal(t, 2.0, server.metric("vllm:e2e_request_latency_seconds_count"+labels))
	assert.Equal(t, 2.0, server.metric("vllm:request_queue_time_seconds_count"+labels))
	generated := server.metric("vllm:generation_tokens_total" + labels)
	assert.Equal(t, generated-2, server.metric("vllm:inter_token_latency_seconds_count"+labels))
	server.metric("simulator:step_lag_seconds" + labels)
	server.metric("simulator:step_lag_dropped_seconds_total" + labels)
}

func TestAClientThatLeavesFreesItsBlocks(t *testing.T) {
	for name, stream := range map[string]string{"streaming": "true", "not streaming": "false"} {
		t.Run(name, func(t *testing.T) {
			server := startServer(t, func(_ *Config, o *Options) { o.TimeScale = 1 })
			ctx, cancel := context.WithCancel(t.Context())
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.url+"/v1/completions",
				strings.NewReader(`{"prompt":[1,2],"max_tokens":8000,"ignore_eos":true,"stream":`+stream+`}`))
			require.NoError(t, err)
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				if resp, err := http.DefaultClient.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			const labels = `{engine="0",model_name="m"}`
			require.Eventually(t, func() bool { return server.metric("vllm:kv_cache_usage_perc"+labels) > 0 }, 10*time.Second, 5*time.Millisecond)
			cancel()
			<-gone
			require.Eventually(t, func() bool { return server.metric("vllm:kv_cache_usage_perc"+labels) == 0 }, 10*time.Second, 5*time.Millisecond)
			assert.Equal(t, 0.0, server.metric("vllm:num_requests_running"+labels))
			assert.Equal(t, 1.0, server.metric(`vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"}`))
		})
	}
}

func TestSimulateEndpointEqualsSimulate(t *testing.T) {
	var c Config
	server := startServer(t, func(cfg *Config, o *Options) {
		cfg.MaxNumSeqs = 3
		c = *cfg
		o.Noise, o.Seed = 0.2, 5
		o.Faults.HTTP500s = 1
	})
	status, body := server.post("/simulate",
		`{"concurrency":4,"requests":5,"seed":9,"requestList":[{"prompt":700,"output":20},{"prompt":30,"output":5},{"prompt":900,"output":1}]}`)
	require.Equal(t, http.StatusOK, status, body)
	a, b, last := Request{Prompt: 700, Output: 20}, Request{Prompt: 30, Output: 5}, Request{Prompt: 900, Output: 1}
	want, err := Simulate(c, []Request{a, b, last, a, b}, 4)
	require.NoError(t, err)
	assert.Equal(t, newSimulation(want), decode[simulation](t, body))
	assert.Equal(t, simulatedRequest{
		TTFTMs: want.Requests[1].TTFT() * 1e3, E2EMs: want.Requests[1].E2E() * 1e3, OutputTokens: 5, PromptTokens: 30,
	}, decode[simulation](t, body).Requests[1])
	assert.Contains(t, body, `"durationS":`)
	assert.Contains(t, body, `{"arrivalMs":0,"ttftMs":`)
}

// lines is a request log in memory.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) records(t *testing.T) (out []record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := json.NewDecoder(bytes.NewReader(l.buf.Bytes()))
	for d.More() {
		var r record
		require.NoError(t, d.Decode(&r))
		out = append(out, r)
	}
	return out
}

func TestRequestLogHoldsWhatTheClientSaw(t *testing.T) {
	var log lines
	server := startServer(t, func(_ *Config, o *Options) { o.RequestLog, o.TimeScale = &log, 20 })
	before := time.Now()
	resp, err := http.Post(server.url+"/v1/completions", "", strings.NewReader(`{"prompt":[1,2,3],"max_tokens":40,"ignore_eos":true,"stream":true}`))
	require.NoError(t, err)
	buf := make([]byte, 1)
	_, err = resp.Body.Read(buf)
	require.NoError(t, err)
	first := time.Now()
	_, _ = read(t, resp)
	last := time.Now()

	require.Eventually(t, func() bool { return len(log.records(t)) == 1 }, 5*time.Second, time.Millisecond)
	r := log.records(t)[0]
	assert.Equal(t, "cmpl-00000000000000000000000000000001", r.ID)
	assert.Equal(t, [2]int{3, 40}, [2]int{r.PromptTokens, r.OutputTokens})
	assert.Equal(t, "length", r.FinishReason)
	assert.LessOrEqual(t, before.UnixNano(), r.ArrivalUnixNS)
	assert.LessOrEqual(t, r.ArrivalUnixNS, *r.FirstUnixNS)
	assert.LessOrEqual(t, *r.FirstUnixNS, first.UnixNano())
	assert.LessOrEqual(t, *r.FirstUnixNS, *r.LastUnixNS)
	assert.LessOrEqual(t, *r.LastUnixNS, last.UnixNano())
	assert.Less(t, r.ArrivalNS, *r.FirstNS)
	assert.InDelta(t, *r.LastUnixNS-r.ArrivalUnixNS, *r.LastNS-r.ArrivalNS, 1e6, "both clocks measure the same time")

	c := DefaultConfig()
	want, err := Simulate(c, []Request{{Prompt: 3, Output: 40}}, 1)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, float64(*r.LastNS-r.ArrivalNS)/1e9, want.Requests[0].E2E()/20-1e-6, "never faster than the model")
}

func TestRequestLogOfAnAnswerThatWasCutHasNoTimesForWhatDidNotHappen(t *testing.T) {
	var log lines
	server := startServer(t, func(_ *Config, o *Options) {
		o.RequestLog, o.TimeScale = &log, 1
		o.Faults.SlowFirstToken = time.Hour
	})
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.url+"/v1/completions", strings.NewReader(`{"prompt":[1],"stream":true}`))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	cancel()
	require.Eventually(t, func() bool { return len(log.records(t)) == 1 }, 5*time.Second, time.Millisecond)
	got := log.records(t)[0]
	assert.Nil(t, got.FirstUnixNS)
	assert.Nil(t, got.LastNS)
	assert.Equal(t, "abort", got.FinishReason)
	assert.Zero(t, got.OutputTokens)
	assert.Contains(t, log.buf.String(), `"first_token_ns":null`)
}

func TestStopBreaksStreamsOff(t *testing.T) {
	var log lines
	server := startServer(t, func(_ *Config, o *Options) { o.TimeScale, o.RequestLog = 1, &log })
	resp, err := http.Post(server.url+"/v1/completions", "", strings.NewReader(`{"prompt":[1],"max_tokens":8000,"ignore_eos":true,"stream":true}`))
	require.NoError(t, err)
	defer resp.Body.Close()
	_, err = resp.Body.Read(make([]byte, 10))
	require.NoError(t, err)
	server.cancel()
	require.NoError(t, <-server.ended)
	_, err = io.Copy(io.Discard, resp.Body)
	require.Error(t, err, "a cut stream must not look complete")
	require.Len(t, log.records(t), 1, "every request is logged before Serve returns")
	assert.Equal(t, "abort", log.records(t)[0].FinishReason)
	_, err = http.Get(server.url + "/health")
	require.Error(t, err)
}

func TestNewRefusesWhatTheEngineRefuses(t *testing.T) {
	c := DefaultConfig()
	c.GPUMemoryUtilization = 0.99
	_, err := New(c, Options{ServedModelNames: []string{"m"}})
	require.ErrorContains(t, err, "CUDA out of memory")
	c = DefaultConfig()
	c.MaxNumSeqs = 10000
	_, err = New(c, Options{ServedModelNames: []string{"m"}})
	require.ErrorContains(t, err, "max_num_batched_tokens (8192) must be greater than or equal to max_num_seqs (10000).")
	_, err = New(DefaultConfig(), Options{})
	require.EqualError(t, err, "served model name: none given")
}

func TestTheClientsRequestIDIsKept(t *testing.T) {
	server := startServer(t, func(_ *Config, o *Options) { o.TimeScale = 1000 })
	for given, want := range map[string]string{
		"mine-7":      `"id":"cmpl-mine-7"`,
		`","x":"evil`: `"id":"cmpl-0000000`,
	} {
		req, err := http.NewRequest(http.MethodPost, server.url+"/v1/completions", strings.NewReader(`{"prompt":[1],"max_tokens":1}`))
		require.NoError(t, err)
		req.Header.Set("X-Request-Id", given)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		_, body := read(t, resp)
		assert.Contains(t, body, want)
	}
}
