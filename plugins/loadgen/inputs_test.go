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
	"offset.csv":   "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,4808,10\n2024-05-10 00:00:00.061930+00:00,3180,8\n",
	"burst.csv":    "Timestamp,Model,Request tokens,Response tokens,Total tokens\n5,\"a \"\"b\"\", c\",4808,10.0,0\n5.052,d,3180,8,0",
	"blanks.jsonl": "\n \r\n{\"timestamp\": 1.0, \"input_length\": 4808.0, \"output_length\": 10, \"hash_ids\": null}\r\n{\"timestamp\": 53, \"input_length\": 3180, \"output_length\": 8}\n\n",
	"aborted.csv":  "timestamp,input_tokens,output_tokens\n0,4808,10\n0.01,77,0\n0.052,3180,8\n",
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

// Times as far apart as can be read are still in order.
func TestTheTimesOfATraceDoNotOverflow(t *testing.T) {
	trace, err := ReadTrace("t", strings.NewReader("time,input_length,output_length\n4e9,1,1\n-4e9,2,2\n1900-01-01 00:00:00,3,3\n"))
	require.NoError(t, err)
	assert.Equal(t, []TraceRow{{0, 2, 2, nil}, {844_326_400 * time.Second, 3, 3, nil}, {8e9 * time.Second, 1, 1, nil}}, trace.Rows)
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
		"":                               "t.csv: is empty",
		" \n":                            "t.csv: is empty",
		strings.Repeat("\n", 4096):       "t.csv: begins with 4096 blanks",
		head:                             "t.csv: has no requests",
		head + "1,2,0\n":                 "t.csv: has no requests",
		"a,b\n1,2\n":                     "t.csv:1: needs the columns timestamp, input_tokens and output_tokens (or TIMESTAMP, ContextTokens, GeneratedTokens), has a,b",
		head + "1,2,3\n1,x,3\n":          `t.csv:3: input_tokens "x" is not a whole number from 1 to 1e+08`,
		"\n" + head + "1,x,3\n":          `t.csv:3: input_tokens "x" is not a whole number from 1 to 1e+08`,
		head + "1,2,3\n1,2,3.5\n":        `t.csv:3: output_tokens "3.5" is not a whole number from 0 to 1e+08`,
		head + "1,2,-3\n":                `t.csv:2: output_tokens "-3" is not a whole number from 0 to 1e+08`,
		head + "1,0,3\n":                 `t.csv:2: input_tokens "0" is not a whole number from 1 to 1e+08`,
		head + "soon,2,3\n":              `t.csv:2: timestamp "soon" is neither a time such as 2023-11-16 18:17:03.97 nor a number of seconds`,
		head + "1e300,2,3\n":             "t.csv:2: timestamp 1e+300 is not a time in seconds",
		head + "1715299200000,2,3":       "t.csv:2: timestamp 1.7152992e+12 is not a time in seconds",
		head + "0001-01-01 00:00:00,2,3": `t.csv:2: timestamp "0001-01-01 00:00:00" is too far from the year 2000`,
		head + "1,2\n":                   "t.csv:2: wrong number of fields",
		head + "\n\n1,\"2,3\n":           "t.csv:4: extraneous or missing \" in quoted-field",
		`{"timestamp": 1}`:               "t.csv:1: needs timestamp, input_length and output_length",
		"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}\n\n{":        "t.csv:3: unexpected end of JSON input",
		`{"timestamp": 1, "input_length": "x", "output_length": 1}`:                 `t.csv:1: input_length "x" is not a whole number from 1 to 1e+08`,
		`{"timestamp": 1, "input_length": 1, "output_length": []}`:                  `t.csv:1: output_length "[]" is not a whole number from 0 to 1e+08`,
		`{"timestamp": "x", "input_length": 1, "output_length": 1}`:                 "t.csv:1: timestamp must be a number, is string",
		`{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [-1]}`: "t.csv:1: hash_ids must be a whole number, is number -1",
		`{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": 1}`:    "t.csv:1: hash_ids must be a list, is number",
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
		`[{"conversations": []}, {"conversations": [{"from": "gpt", "value": "a b c"}, {"from": "human", "value": "Hi"}, {"from": "human", "value": "a b"}]},
		  {"conversations": [{"from": "human", "value": " "}]}, {"conversations": [{"from": "human", "value": "b"}, {"from": "gpt", "value": ""}]}]`: {
			ask("Hi", DatasetOutput), ask("b", DatasetOutput)},
		"\n\n{\"prompt\": \"a\", \"max_tokens\": 1, \"output_tokens\": 2.0, \"id\": 3}": {ask("a", 2)},
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
		`[{"conversations": [{"from": "gpt", "value": "a"}]}]`:                     "d: has no prompts",
		`[{"messages": [{"role": "user", "content": " "}]}]`:                       "d[0]: the prompt is empty",
		`{"messages": []}`: `d:1: messages: none has the role "user"`,
		`{"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}`: `d:1: messages[1]: the role "tool" is none of system, developer, user, assistant`,
		"\n{\"prompt\": [1]}":   "d:2: prompt must be text, is array",
		`{"messages": "a"}`:     "d:1: messages must be a list, is string",
		`[{"prompt": "a"}] [1]`: "d: something follows the array",
		`[7]`:                   "d[0]: must be an object, is number",
		`[{"prompt": "a"}`:      "d: the array does not end: EOF",
		`[{"prompt": "a"},`:     "d[1]: EOF",
		`prompt`:                "d:1: invalid character 'p' looking for beginning of value",
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
		"toolCallLatencySec": {"type": "fixed", "mean": 1.5, "min": 1}, "seed": 7}`), &v))
	c, err := ParseConversations(v)
	require.NoError(t, err)
	assert.Equal(t, &Conversations{
		NumConversations: 8, SharedSystemPromptLen: FixedLength(1000), DynamicSystemPromptLen: UniformLength(10, 20),
		TurnsPerConversation: Length{Shape: Normal, Mean: 5, StdDev: 2, Min: 2, Max: 9}, InputTokensPerTurn: LognormalLength(100.5, 50),
		OutputTokensPerTurn: FixedLength(64), ToolCall: FixedLength(1500), Seed: 7,
	}, c)

	c, err = ParseConversations(map[string]any{"numConversations": 2.0, "inputTokensPerTurn": int64(3), "outputTokensPerTurn": uint64(4)})
	require.NoError(t, err)
	assert.Equal(t, &Conversations{
		NumConversations: 2, TurnsPerConversation: FixedLength(1), InputTokensPerTurn: FixedLength(3), OutputTokensPerTurn: FixedLength(4),
	}, c, "the defaults")

	c, err = replay(t, `"outputTokensPerTurn": {"type": "fixed", "min": 64, "max": 64}`)
	require.NoError(t, err)
	assert.Equal(t, FixedLength(64), c.OutputTokensPerTurn)
}

// replay is a conversation replay with the given entries beside the required ones, in JSON.
func replay(t *testing.T, entries string) (*Conversations, error) {
	t.Helper()
	object := map[string]any{"numConversations": 1, "inputTokensPerTurn": 1, "outputTokensPerTurn": 1}
	require.NoError(t, json.Unmarshal([]byte("{"+entries+"}"), &object), entries)
	return ParseConversations(object)
}

func TestEveryProblemOfAConversationReplayIsNamedByItsKey(t *testing.T) {
	const known = "sharedSystemPromptLen, dynamicSystemPromptLen, turnsPerConversation, inputTokensPerTurn, outputTokensPerTurn, toolCallLatencySec, numConversations, seed"
	for entries, want := range map[string]string{
		`"turnsPerConversatoin": 1, "seeds": 2`:                                      "seeds: unknown key; known: " + known + "\nturnsPerConversatoin: unknown key; known: " + known,
		`"numConversations": 0, "seed": -1`:                                          "numConversations: must be a whole number from 1 to 1e+08, is 0\nseed: must be a whole number from 0 to 1e+08, is -1",
		`"numConversations": 1.5, "seed": "x"`:                                       "numConversations: must be a whole number from 1 to 1e+08, is 1.5\nseed: must be a whole number from 0 to 1e+08, is x",
		`"inputTokensPerTurn": "many"`:                                               "inputTokensPerTurn: must be a number or a distribution such as {type: normal, mean: 200, stdDev: 50}, is many",
		`"inputTokensPerTurn": 0`:                                                    "inputTokensPerTurn: must be from 1 to 1e+08, is 0",
		`"inputTokensPerTurn": {}`:                                                   "inputTokensPerTurn.type: must be fixed, normal, lognormal or uniform, is <nil>",
		`"inputTokensPerTurn": {"type": "poisson"}`:                                  "inputTokensPerTurn.type: must be fixed, normal, lognormal or uniform, is poisson",
		`"inputTokensPerTurn": {"type": "normal"}`:                                   "inputTokensPerTurn.mean: is required for the type normal\ninputTokensPerTurn.stdDev: is required for the type normal",
		`"inputTokensPerTurn": {"type": "fixed", "meen": 1}`:                         "inputTokensPerTurn.meen: unknown key; known: type, min, max, mean, stdDev",
		`"inputTokensPerTurn": {"type": "fixed", "min": 1, "max": 2}`:                "inputTokensPerTurn.mean: is required for the type fixed",
		`"inputTokensPerTurn": {"type": "fixed", "mean": 0}`:                         "inputTokensPerTurn.mean: must be from 1 to 1e+08, is 0",
		`"inputTokensPerTurn": {"type": "uniform", "min": 5, "max": 4}`:              "inputTokensPerTurn: the largest length 4 is below the smallest, 5",
		`"inputTokensPerTurn": {"type": "normal", "mean": 5, "stdDev": 1, "min": 9}`: "inputTokensPerTurn: the limits 9 and 8 must be in order, from 1 to 1e+08",
		`"toolCallLatencySec": -1`:                                                   "toolCallLatencySec: must be from 0 to 100000, is -1",
		`"toolCallLatencySec": {"type": "fixed", "mean": "x"}`:                       "toolCallLatencySec.mean: must be a number from 0 to 100000, is x",
		`"toolCallLatencySec": {"type": "uniform", "min": 2.5, "max": 0.5}`:          "toolCallLatencySec: the largest length 0.5 is below the smallest, 2.5",
		`"toolCallLatencySec": {"type": "lognormal", "mean": 0, "stdDev": 1}`:        "toolCallLatencySec: the mean of a lognormal distribution must be above 0",
		`"numConversations": 1000001, "turnsPerConversation": 10`:                    "numConversations: with turnsPerConversation there can be 1.000001e+07 turns, more than 1e+07",
	} {
		_, err := replay(t, entries)
		assert.EqualError(t, err, want, entries)
	}
	_, err := ParseConversations(map[string]any{})
	assert.EqualError(t, err, "numConversations: is required\ninputTokensPerTurn: is required\noutputTokensPerTurn: is required")
	_, err = ParseConversations(3)
	assert.EqualError(t, err, "must be a mapping, is 3")
}

func TestAPauseMayBeShorterThanASecondOrNone(t *testing.T) {
	c, err := replay(t, `"toolCallLatencySec": {"type": "uniform", "min": 0, "max": 0.003}, "turnsPerConversation": 1000, "dynamicSystemPromptLen": {"type": "uniform", "min": 0, "max": 1}`)
	require.NoError(t, err)
	seen := map[time.Duration]bool{}
	for _, pause := range c.draw(1, 0).pause {
		seen[pause] = true
	}
	assert.Equal(t, map[time.Duration]bool{0: true, ms: true, 2 * ms: true, 3 * ms: true}, seen)
}

// A sweep puts several levels on one server: their conversations are alike, but what one has sent is in no
// other's prompts, where the server's prefix cache would find it.
func TestTheOwnSeedOfConversationsDecidesTheirShapeButNotTheirWords(t *testing.T) {
	c := &Conversations{NumConversations: 9, SharedSystemPromptLen: FixedLength(9), TurnsPerConversation: UniformLength(1, 9),
		InputTokensPerTurn: UniformLength(50, 900), OutputTokensPerTurn: UniformLength(50, 900), Seed: 3}
	assert.Equal(t, c.draw(c.seed(1), 4), c.draw(c.seed(2), 4))
	assert.NotEqual(t, c.draw(c.seed(1), 4), c.draw(c.seed(1), 5))
	assert.Equal(t, 3, int(c.seed(1)))
	first := func(seed uint64) (texts []string) {
		synctest.Test(t, func(t *testing.T) {
			e := &engine{tokenize: func(s string) int { return len(strings.Fields(s)) }, answer: steady}
			config := e.start(t)
			config.Workload, config.MaxRequests, config.Seed, config.Conversations, config.Concurrency = Workload{}, 3, seed, c, 1
			_, err := Run(t.Context(), config)
			require.NoError(t, err)
			for _, request := range e.seen() {
				texts = append(texts, request.text())
			}
		})
		return texts
	}
	one, again, other := first(1), first(1), first(2)
	assert.Equal(t, one, again)
	require.Len(t, other, len(one))
	for i := range one {
		assert.NotEqual(t, strings.Fields(one[i])[:9], strings.Fields(other[i])[:9], "nor is the system prompt the same")
		if i < 2 { // later ones have answers in between
			assert.Len(t, strings.Fields(other[i]), len(strings.Fields(one[i])))
		}
	}
}

// echo answers with the first two words of what was asked last, one a chunk, after some reasoning.
func echo(w *answer, _ int, r *request) {
	words := lastWords(r)
	w.at(100*ms, `data: {"choices":[{"delta":{"reasoning":"hm"}}],"usage":{"prompt_tokens":9,"completion_tokens":1}}`+"\n\n")
	w.at(120*ms, `data: {"choices":[{"delta":{"content":"\"`+words[0]+`\n"}}],"usage":{"prompt_tokens":9,"completion_tokens":2}}`+"\n\n")
	w.at(140*ms, `data: {"choices":[{"delta":{"content":"`+words[1]+`\""},"finish_reason":"length"}],"usage":{"prompt_tokens":9,"completion_tokens":4}}`+"\n\ndata: [DONE]\n\n")
}

func lastWords(r *request) []string {
	last := r.text()
	if n := len(r.Messages); n > 0 {
		last = r.Messages[n-1].Content
	}
	return strings.Fields(last[strings.LastIndex(last, "\n\n")+1:])
}

func TestConversationsSendTheirWholeHistoryWithTheServersAnswers(t *testing.T) {
	for _, api := range []API{Chat, Completions} {
		synctest.Test(t, func(t *testing.T) {
			e := &engine{tokenize: func(s string) int { return len(strings.Fields(s)) }, answer: echo}
			c := e.start(t)
			c.API, c.Workload, c.MaxRequests = api, Workload{}, 0
			c.Conversations = &Conversations{NumConversations: 3, SharedSystemPromptLen: FixedLength(20), DynamicSystemPromptLen: FixedLength(5),
				TurnsPerConversation: FixedLength(3), InputTokensPerTurn: FixedLength(7), OutputTokensPerTurn: FixedLength(4), ToolCall: FixedLength(2000)}
			r, err := Run(t.Context(), c)
			require.NoError(t, err)
			require.Len(t, r.Records, 9)
			require.Len(t, r.Warmup, 2, "one turn of other conversations")
			checkTurns(t, r)
			histories(t, api, e.seen())
		})
	}
}

func checkTurns(t *testing.T, r *Result) {
	t.Helper()
	turns := map[int32][]Record{}
	for _, rec := range r.Records {
		turns[rec.Conversation] = append(turns[rec.Conversation], rec)
	}
	require.Len(t, turns, 3)
	for _, list := range turns {
		for i, rec := range list {
			assert.EqualValues(t, i+1, rec.Turn)
			assert.EqualValues(t, 20+5+7+i*(7+4), rec.PromptTarget)
			assert.EqualValues(t, 4, rec.OutputTokens)
			assert.Equal(t, 100*ms, rec.TTFT)
			if i > 0 {
				assert.Equal(t, 2*time.Second, rec.Sent-list[i-1].Done, "the pause is in no latency")
			}
		}
	}
}

// histories checks every message of every request: each conversation's turns build on each other.
func histories(t *testing.T, api API, requests []*request) {
	t.Helper()
	shared := map[string]bool{}
	open := map[string][]message{} // by the system prompt: the history after the turns so far
	for _, request := range requests {
		got := request.Messages
		if api == Completions {
			for _, text := range strings.Split(request.text(), "\n\n") {
				got = append(got, message{map[bool]string{true: "user", false: "assistant"}[len(got)%2 == 1], text})
			}
			got[0].Role = "system"
		}
		system, asked := got[0], got[len(got)-1]
		require.Len(t, strings.Fields(system.Content), 25)
		require.Len(t, strings.Fields(asked.Content), 7)
		history := open[system.Content]
		if history == nil {
			history = []message{{"system", system.Content}}
		}
		history = append(history, message{"user", asked.Content})
		require.Equal(t, history, got)
		words := strings.Fields(asked.Content)
		open[system.Content] = append(history, message{"assistant", "\"" + words[0] + "\n" + words[1] + "\""})
		shared[strings.Join(strings.Fields(system.Content)[:20], " ")] = true
	}
	assert.Len(t, shared, 1, "all conversations begin with the same system prompt")
	assert.Len(t, open, 5, "3 conversations and 2 of the warm-up")
}

func TestAPauseDoesNotOutlastTheLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{tokenize: func(s string) int { return len(strings.Fields(s)) }, answer: echo}
		c := e.start(t)
		c.Workload, c.MaxRequests, c.Duration = Workload{}, 0, 5*time.Second
		c.Conversations = &Conversations{NumConversations: 8, TurnsPerConversation: FixedLength(3), InputTokensPerTurn: FixedLength(7),
			OutputTokensPerTurn: FixedLength(4), ToolCall: FixedLength(3_600_000)}
		r, err := Run(t.Context(), c)
		require.NoError(t, err)
		assert.Len(t, r.Records, 2)
		assert.Equal(t, 380*ms, r.Elapsed, "two rounds of 140 ms, the second request of the first one 100 ms late, and no hour")
		assert.NotContains(t, strings.Join(r.Warnings, "\n"), "not sent", "no turn has failed")
	})
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

// The prompts of an API that takes no token ids share their blocks, too.
func TestATraceIsReplayedInTextWithItsBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{tokenize: func(s string) int { return 2*len(strings.Fields(s)) + 3 }, answer: steady}
		c := e.start(t)
		trace, err := ReadTrace("t", strings.NewReader(`{"timestamp": 0, "input_length": 1024, "output_length": 2, "hash_ids": [7, 8]}
			{"timestamp": 900, "input_length": 1100, "output_length": 3, "hash_ids": [7, 9]}
			{"timestamp": 950, "input_length": 9, "output_length": 0, "hash_ids": [7]}
			{"timestamp": 1800, "input_length": 600, "output_length": 1, "hash_ids": [7, 9]}`))
		require.NoError(t, err)
		c.API, c.Trace, c.Workload, c.Concurrency, c.MaxRequests = Chat, trace, Workload{}, 0, 0
		r, err := Run(t.Context(), c)
		require.NoError(t, err)
		assert.Contains(t, r.Warnings, "trace: 1 rows without output tokens are left out")
		var texts [][]string
		for _, request := range e.seen()[len(r.Warmup):] {
			texts = append(texts, strings.Fields(request.text()))
		}
		require.Len(t, texts, 3)
		const block = TraceBlock / 2 // words
		for i, row := range trace.Rows {
			assert.EqualValues(t, row.Output, r.Records[i].OutputTarget)
			assert.InDelta(t, row.Input, 2*len(texts[i])+3, 1)
		}
		assert.Equal(t, texts[0][:block], texts[1][:block])
		assert.Equal(t, texts[1][block:len(texts[2])], texts[2][block:], "the same block 9, of which the last request has a part")
		assert.NotEqual(t, texts[0][block:block+8], texts[1][block:block+8], "blocks 8 and 9")
	})
}

func FuzzReadTrace(f *testing.F) {
	for _, text := range traces {
		f.Add(text)
	}
	f.Add("timestamp,input_tokens,output_tokens\n1,\"2,3\n")
	f.Add("time,input_length,output_length\n4.4e9,1,1\n-4.4e9,2,2\n9999-01-01 00:00:00,3,3\n")
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
	f.Add("\uFEFF[{\"conversations\": []}, {\"conversations\": [{\"from\": \"system\", \"value\": \"s\"}, {\"from\": \"human\", \"value\": \"u\"}]}]")
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

func FuzzParseConversations(f *testing.F) {
	f.Add(`{"numConversations": 8, "inputTokensPerTurn": 5, "outputTokensPerTurn": {"type": "lognormal", "mean": 1, "stdDev": 1e7}, "seed": 7}`)
	f.Add(`{"numConversations": 1, "inputTokensPerTurn": {"type": "uniform", "min": 1, "max": 1e8}, "outputTokensPerTurn": {"type": "fixed", "mean": 1},
		"toolCallLatencySec": {"type": "normal", "mean": 0, "stdDev": 0.0001}, "dynamicSystemPromptLen": {"type": "lognormal", "mean": 0.2, "stdDev": 3}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var v any
		if json.Unmarshal([]byte(text), &v) != nil {
			return
		}
		c, err := ParseConversations(v)
		if err != nil || c.TurnsPerConversation.Longest() > 1000 {
			return
		}
		talk := c.draw(c.seed(1), 0)
		require.NotEmpty(t, talk.input)
		require.GreaterOrEqual(t, min(talk.shared, talk.own), 0)
		for turn := range talk.input {
			require.Positive(t, min(talk.input[turn], talk.output[turn]))
			require.GreaterOrEqual(t, talk.pause[turn], time.Duration(0))
			require.LessOrEqual(t, talk.input[turn], c.InputTokensPerTurn.Longest())
		}
	})
}
