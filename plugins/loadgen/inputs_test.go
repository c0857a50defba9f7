// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// traces have the columns of public ones; the rows are made up.
var traces = map[string]string{
	"azure.csv":     "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n",
	"seconds.csv":   "\xef\xbb\xbftimestamp,input_tokens,output_tokens\r\n12.5,4808,10\r\n12.552,3180,8\r\n\r\n",
	"unordered.csv": "output_tokens, input_tokens, arrived_at\n8,3180,0.052\n10,4808,0\n",
	"mooncake.jsonl": `{"timestamp": 100, "input_length": 4808, "output_length": 10}
{"timestamp": 152, "input_length": 3180, "output_length": 8}`,
	"aborted.csv": "timestamp,input_tokens,output_tokens\n0,4808,10\n0.01,77,0\n0.052,3180,8\n",
}

func TestTracesAreRead(t *testing.T) {
	for name, text := range traces {
		trace, err := ReadTrace(name, strings.NewReader(text))
		require.NoError(t, err, name)
		assert.Equal(t, []TraceRow{{At: 0, Input: 4808, Output: 10}, {At: 52 * ms, Input: 3180, Output: 8}}, rounded(trace.Rows), name)
		assert.Equal(t, name == "aborted.csv", trace.Skipped == 1, "a row without output cannot be measured")
	}
	trace, err := ReadTrace("m", strings.NewReader(`{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [46, 47]}`))
	require.NoError(t, err)
	assert.Equal(t, []uint64{46, 47}, trace.Rows[0].Blocks)
}

func rounded(rows []TraceRow) []TraceRow {
	for i := range rows {
		rows[i].At = rows[i].At.Round(time.Microsecond)
	}
	return rows
}

func TestABadRowOfATraceIsNamedByItsLine(t *testing.T) {
	const head = "timestamp,input_tokens,output_tokens\n"
	for text, want := range map[string]string{
		"":                        "t.csv: is empty",
		" \n":                     "t.csv: is empty",
		head:                      "t.csv: has no requests",
		head + "1,2,0\n":          "t.csv: has no requests",
		"a,b\n1,2\n":              "t.csv:1: needs the columns timestamp, input_tokens and output_tokens (or TIMESTAMP, ContextTokens, GeneratedTokens), has a,b",
		head + "1,2,3\n1,x,3\n":   `t.csv:3: input_tokens: "x" is not a whole number`,
		head + "1,2,3\n1,2,3.5\n": `t.csv:3: output_tokens: "3.5" is not a whole number`,
		head + "1,2,-3\n":         "t.csv:2: the output tokens must be a whole number from 0 to 1e+08, are -3",
		head + "1,0,3\n":          "t.csv:2: the input tokens must be a whole number from 1 to 1e+08, are 0",
		head + "soon,2,3\n":       `t.csv:2: timestamp: "soon" is neither a time such as 2023-11-16 18:17:03.97 nor a number of seconds`,
		head + "1e300,2,3\n":      "t.csv:2: timestamp: 1e+300 is not a time in seconds",
		head + "1,2\n":            "t.csv:2: wrong number of fields",
		head + "\n\n1,\"2,3\n":    "t.csv:4: extraneous or missing \" in quoted-field",
		`{"timestamp": 1}`:        "t.csv:1: needs timestamp, input_length and output_length",
		"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}\n\n{": "t.csv:3: unexpected end of JSON input",
	} {
		_, err := ReadTrace("t.csv", strings.NewReader(text))
		assert.EqualError(t, err, want, "%q", text)
	}
}

func TestDatasetsAreRead(t *testing.T) {
	ask := func(text string, output int) Sample { return Sample{[]Message{{"user", text}}, output} }
	for text, want := range map[string][]Sample{
		`{"prompt": "Hi"}`: {ask("Hi", DatasetOutput)},
		"{\"prompt\": \"a\", \"output_tokens\": 7}\n\n{\"prompt\": \"b\", \"max_tokens\": 9}\n": {ask("a", 7), ask("b", 9)},
		`{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}`: {
			{[]Message{{"system", "Be brief."}, {"user", "Hi"}}, DatasetOutput}},
		`{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}`: {ask("a\nb", DatasetOutput)},
		`[{"id": "1", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "one two three four five six seven eight nine ten"}, {"from": "human", "value": "more"}]},
		  {"conversations": [{"from": "system", "value": "s"}, {"from": "user", "value": "u"}]}]`: {
			ask("Hi", 13), {[]Message{{"system", "s"}, {"user", "u"}}, DatasetOutput}},
	} {
		d, err := ReadDataset("d", strings.NewReader(text))
		require.NoError(t, err, text)
		assert.Equal(t, want, d.Samples)
	}
}

func TestABadEntryOfADatasetIsNamed(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "d: is empty",
		"[]":                                     "d: has no prompts",
		"{\"prompt\": \"a\"}\n{\"text\": \"b\"}": `d:2: needs "prompt", "messages" or "conversations"`,
		`{"prompt": " "}`:                        "d:1: the prompt is empty",
		`{"prompt": "a", "output_tokens": 1.5}`:  "d:1: the output tokens must be a whole number from 1 to 1e+08, are 1.5",
		`[{"prompt": "a"}, {"messages": [{"role": "assistant", "content": "b"}]}]`: `d[1]: messages: none has the role "user"`,
		`[{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}]`:   `d[0]: messages[0]: content of type "image_url" is not supported, only text`,
		`{"messages": [{"role": "user", "content": 1}]}`:                           "d:1: messages[0]: content must be text or a list of parts",
		`[{"conversations": [{"from": "gpt", "value": "a"}]}]`:                     "d[0]: the prompt is empty",
		`[{"prompt": "a"}`:  "d: the array does not end: EOF",
		`[{"prompt": "a"},`: "d[1]: EOF",
		`prompt`:            "d:1: invalid character 'p' looking for beginning of value",
	} {
		_, err := ReadDataset("d", strings.NewReader(text))
		assert.EqualError(t, err, want, "%q", text)
	}
}

func TestADatasetIsAskedInAnOrderOfItsOwn(t *testing.T) {
	for api, path := range map[API]string{Completions: "/v1/completions", Chat: "/v1/chat/completions"} {
		synctest.Test(t, func(t *testing.T) {
			e := &engine{answer: steady}
			c := e.start(t)
			d := &Dataset{}
			for _, text := range strings.Split("a b c d e f g h i j", " ") {
				d.Samples = append(d.Samples, Sample{[]Message{{"system", "be " + text}, {"user", text}}, 3})
			}
			c.API, c.Workload, c.Dataset, c.MaxRequests = api, Workload{}, d, 12
			r, err := Run(t.Context(), c)
			require.NoError(t, err)
			assert.Contains(t, strings.Join(r.Warnings, "\n"), "dataset: 10 prompts for 14 requests: repeated ones may be found in the server's prefix cache")
			seen := map[string]int{}
			for i, request := range e.seen() {
				assert.Equal(t, path, request.path)
				assert.Equal(t, 3, request.MaxTokens)
				text := request.text()
				if api == Chat {
					require.Len(t, request.Messages, 2)
					text = request.Messages[0].Content + "\n\n" + request.Messages[1].Content
				}
				if i < 10 {
					seen[text]++
				}
			}
			assert.Len(t, seen, 10, "each one once before any comes again")
			assert.Contains(t, seen, "be c\n\nc")
		})
	}
}

func TestConversationsAreParsed(t *testing.T) {
	var v any
	require.NoError(t, json.Unmarshal([]byte(`{"numConversations": 8, "sharedSystemPromptLen": 1000,
		"dynamicSystemPromptLen": {"type": "uniform", "min": 10, "max": 20}, "turnsPerConversation": {"type": "normal", "mean": 5, "stdDev": 2, "min": 2, "max": 9},
		"inputTokensPerTurn": {"type": "lognormal", "mean": 100.5, "stdDev": 50}, "outputTokensPerTurn": {"type": "fixed", "mean": 64},
		"toolCallLatencySec": {"type": "fixed", "min": 1.5}, "seed": 7}`), &v))
	c, err := ParseConversations(v)
	require.NoError(t, err)
	assert.Equal(t, &Conversations{
		NumConversations: 8, SharedSystemPromptLen: FixedLength(1000), DynamicSystemPromptLen: UniformLength(10, 20),
		TurnsPerConversation: Length{Shape: Normal, Mean: 5, StdDev: 2, Min: 2, Max: 9}, InputTokensPerTurn: LognormalLength(100.5, 50),
		OutputTokensPerTurn: FixedLength(64), ToolCall: FixedLength(1500), Seed: 7,
	}, c)

	for want, entries := range map[string]map[string]any{
		"must be a mapping":                                                    nil,
		"numConversations: is required":                                        {},
		"outputTokensPerTurn: is required":                                     {"numConversations": 1, "inputTokensPerTurn": 1},
		"turnsPerConversatoin: unknown key; known: numC":                       {"turnsPerConversatoin": 1},
		"numConversations: must be a whole number from 1 to 1e+08, is 0":       {"numConversations": 0},
		"inputTokensPerTurn: must be a number or a distribution such as":       {"inputTokensPerTurn": "many"},
		"inputTokensPerTurn: type is required: fixed, normal, lognormal or un": {"inputTokensPerTurn": map[string]any{"mean": 1}},
		"inputTokensPerTurn: unknown key avg; known: type, min, max, mean":     {"inputTokensPerTurn": map[string]any{"type": "fixed", "avg": 1}},
		"toolCallLatencySec: must be from 0 to 100000, is -1":                  {"toolCallLatencySec": -1},
		"toolCallLatencySec: mean must be a number from 0 to 100000, is x":     {"toolCallLatencySec": map[string]any{"type": "fixed", "mean": "x"}},
		"inputTokensPerTurn: the limits 9 and 2 must be in order": {"numConversations": 1, "outputTokensPerTurn": 1,
			"inputTokensPerTurn": map[string]any{"type": "normal", "mean": 5, "min": 9, "max": 2}},
		"inputTokensPerTurn: the tokens must be from 1": {"numConversations": 1, "outputTokensPerTurn": 1, "inputTokensPerTurn": map[string]any{"type": "fixed"}},
	} {
		var v any = entries
		if entries == nil {
			v = 3
		}
		_, err := ParseConversations(v)
		assert.ErrorContains(t, err, want)
	}
}

func TestConversationsSendTheirWholeHistoryWithTheServersAnswers(t *testing.T) {
	for _, api := range []API{Chat, Completions} {
		synctest.Test(t, func(t *testing.T) {
			e := &engine{tokenize: func(s string) int { return len(strings.Fields(s)) }, answer: func(w *answer, i int, r *request) {
				w.at(100*ms, `data: {"choices":[{"delta":{"reasoning":"hm"}}],"usage":{"prompt_tokens":9,"completion_tokens":1}}`+"\n\n")
				w.at(120*ms, `data: {"choices":[{"delta":{"content":"A \"word\""}}],"usage":{"prompt_tokens":9,"completion_tokens":2}}`+"\n\n")
				w.at(140*ms, `data: {"choices":[{"delta":{"content":"\nB"},"finish_reason":"length"}],"usage":{"prompt_tokens":9,"completion_tokens":4}}`+"\n\ndata: [DONE]\n\n")
			}}
			c := e.start(t)
			c.API, c.Workload, c.MaxRequests = api, Workload{}, 0
			c.Conversations = &Conversations{NumConversations: 3, SharedSystemPromptLen: FixedLength(20), DynamicSystemPromptLen: FixedLength(5),
				TurnsPerConversation: FixedLength(3), InputTokensPerTurn: FixedLength(7), OutputTokensPerTurn: FixedLength(4), ToolCall: FixedLength(2000)}
			r, err := Run(t.Context(), c)
			require.NoError(t, err)
			require.Len(t, r.Records, 9)
			require.Len(t, r.Warmup, 2, "one turn of other conversations")
			turns := map[int][]Record{}
			for _, rec := range r.Records {
				turns[rec.Conversation] = append(turns[rec.Conversation], rec)
			}
			require.Len(t, turns, 3)
			for _, list := range turns {
				for i, rec := range list {
					assert.Equal(t, i+1, rec.Turn)
					assert.Equal(t, 20+5+7+i*(7+4), rec.PromptTarget)
					assert.Equal(t, 4, rec.OutputTokens)
					if i > 0 {
						assert.Equal(t, 2*time.Second, rec.Sent-list[i-1].Done, "the pause is in no latency")
						assert.Equal(t, 100*ms, rec.TTFT)
					}
				}
			}
			shared := map[string]bool{}
			longest := ""
			for _, request := range e.seen() {
				text := request.text()
				if api == Chat {
					assert.Equal(t, "system", request.Messages[0].Role)
					if n := len(request.Messages); n > 2 {
						assert.Equal(t, message{"assistant", "A \"word\"\nB"}, request.Messages[n-2], "reasoning is not part of the history")
						assert.Equal(t, "user", request.Messages[n-1].Role)
						assert.Len(t, strings.Fields(request.Messages[n-1].Content), 7)
					}
				} else if strings.Count(text, "A \"word\"\nB") == 2 {
					longest = text
				}
				shared[strings.Join(strings.Fields(text)[:20], " ")] = true
			}
			assert.Len(t, shared, 1, "all conversations begin with the same system prompt")
			if api == Completions {
				parts := strings.Split(longest, "\n\n")
				require.Len(t, parts, 6)
				assert.Equal(t, "A \"word\"\nB", parts[2])
			}
		})
	}
}

func TestAConversationEndsWithAFailedTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{tokenize: func(s string) int { return len(strings.Fields(s)) }, answer: func(w *answer, i int, r *request) {
			if strings.Count(r.text(), "\n\n") == 2 { // a second turn
				w.fail(500, "no")
				return
			}
			steady(w, i, r)
		}}
		c := e.start(t)
		c.Workload, c.MaxRequests = Workload{}, 0
		c.Conversations = &Conversations{NumConversations: 4, TurnsPerConversation: FixedLength(5), InputTokensPerTurn: FixedLength(7), OutputTokensPerTurn: FixedLength(4)}
		r, err := Run(t.Context(), c)
		require.NoError(t, err)
		assert.Len(t, r.Records, 8)
		assert.Contains(t, r.Warnings, "conversations: 12 turns were not sent, because a turn before them had failed")
	})
}

func FuzzReadTrace(f *testing.F) {
	for _, text := range traces {
		f.Add(text)
	}
	f.Add("timestamp,input_tokens,output_tokens\n1,\"2,3\n")
	f.Fuzz(func(t *testing.T, text string) {
		trace, err := ReadTrace("t", strings.NewReader(text))
		if err != nil {
			return
		}
		last := time.Duration(0)
		for _, row := range trace.Rows {
			require.GreaterOrEqual(t, row.At, last)
			require.Positive(t, row.Input)
			require.Positive(t, row.Output)
			last = row.At
		}
	})
}

func FuzzReadDataset(f *testing.F) {
	f.Add(`{"prompt": "a", "output_tokens": 7}`)
	f.Add(`[{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "one two"}]}]`)
	f.Add(`{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ReadDataset("d", strings.NewReader(text))
		if err != nil {
			return
		}
		for _, s := range d.Samples {
			require.NotEmpty(t, s.Messages)
			require.Positive(t, s.Output)
		}
	})
}
