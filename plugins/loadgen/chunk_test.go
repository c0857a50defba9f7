// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var none = usage{-1, -1}

// chunks are what servers send, and what they should not.
var chunks = map[string]struct {
	in   string
	want chunk
}{
	"completion":         {`{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" foo","logprobs":null,"finish_reason":null,"stop_reason":null}]}`, chunk{answer: []byte(" foo"), usage: none}},
	"chat":               {`{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null}]}`, chunk{answer: []byte("Hi"), usage: none}},
	"role only":          {`{"choices":[{"delta":{"role":"assistant","content":""}}]}`, chunk{usage: none}},
	"null content":       {`{"choices":[{"delta":{"role":"assistant","content":null,"reasoning_content":null,"tool_calls":null}}]}`, chunk{usage: none}},
	"reasoning_content":  {`{"choices":[{"delta":{"content":null,"reasoning_content":"Let"}}]}`, chunk{thought: []byte("Let"), usage: none}},
	"reasoning":          {`{"choices":[{"delta":{"reasoning":" me"}}]}`, chunk{thought: []byte(" me"), usage: none}},
	"both reasoning":     {`{"choices":[{"delta":{"reasoning":"x","reasoning_content":"x"}}]}`, chunk{thought: []byte("x"), usage: none}},
	"tool call":          {`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"","arguments":"{\"a"}}]}}]}`, chunk{answer: []byte(`{\"a`), usage: none}},
	"empty tool call":    {`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"","arguments":""}}]}}]}`, chunk{usage: none}},
	"no tool calls":      {`{"choices":[{"delta":{"content":"a","tool_calls":[ ]}}]}`, chunk{answer: []byte("a"), usage: none}},
	"usage only":         {`{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":12,"total_tokens":22}}`, chunk{usage: usage{10, 12}}},
	"null usage":         {`{"choices":[{"text":"a"}],"usage":null}`, chunk{answer: []byte("a"), usage: none}},
	"usage with details": {`{"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens":null}}`, chunk{usage: usage{10, -1}}},
	"usage as floats":    {`{"usage":{"prompt_tokens":1e2,"completion_tokens":12.0}}`, chunk{usage: usage{100, 12}}},
	"impossible usage":   {`{"usage":{"prompt_tokens":-1,"completion_tokens":1.5}}`, chunk{usage: none}},
	"usage as text":      {`{"usage":{"prompt_tokens":"10","completion_tokens":99999999999999999999}}`, chunk{usage: none}},
	"finish":             {`{"choices":[{"delta":{},"finish_reason":"stop"}]}`, chunk{finish: "stop", usage: none}},
	"odd finish":         {`{"choices":[{"text":"","finish_reason":"ab\u006frt"}]}`, chunk{finish: "abort", usage: none}},
	"finish as object":   {`{"choices":[{"text":"","finish_reason":{"type":"x"}}]}`, chunk{finish: `{"type":"x"}`, usage: none}},
	"empty finish":       {`{"choices":[{"text":"a","finish_reason":""}]}`, chunk{answer: []byte("a"), usage: none}},
	"error":              {`{"error":{"message":"EngineCore died","type":"InternalServerError","param":null,"code":500}}`, chunk{failed: true, message: "EngineCore died", usage: none}},
	"error text":         {`{"error":"queue full","choices":[{"text":"a"}]}`, chunk{failed: true, message: "queue full", usage: none}},
	"error no message":   {`{"error":{"code":500}}`, chunk{failed: true, message: `{"code":500}`, usage: none}},
	"error as object":    {`{"object":"error","message":"no model","code":404}`, chunk{failed: true, message: "no model", usage: none}},
	"bare error object":  {`{"object":"error"}`, chunk{failed: true, message: "the server sent an error object without a message", usage: none}},
	"null delta":         {`{"choices":[{"delta":null,"finish_reason":"tool_calls"}]}`, chunk{finish: "tool_calls", usage: none}},
	"delta as text":      {`{"choices":[{"delta":"a"}]}`, chunk{usage: none}},
	"tool calls as text": {`{"choices":[{"delta":{"content":"a","tool_calls":"x"}}]}`, chunk{answer: []byte("a"), usage: none}},
	"null error":         {`{"error":null,"choices":[{"text":"a"}]}`, chunk{answer: []byte("a"), usage: none}},
	"escapes":            {`{"choices":[{"text":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude42"}]}`, chunk{answer: []byte(`\"\\\/\b\f\n\r\t\u00e9\ud83d\ude42`), usage: none}},
	"white space":        {" {\t\"choices\" : [ { \"text\" : \"a\" } ] }\r\n", chunk{answer: []byte("a"), usage: none}},
	"duplicate key":      {`{"choices":[{"text":"a","text":"b"}]}`, chunk{answer: []byte("b"), usage: none}},
	"escaped key":        {`{"choices":[{"te\u0078t":"a"}]}`, chunk{answer: []byte("a"), usage: none}},
	"another case":       {`{"Choices":[{"text":"a"}],"USAGE":{"completion_tokens":1}}`, chunk{usage: none}},
	"two choices":        {`{"choices":[{"text":""},{"text":"b","finish_reason":"length"}]}`, chunk{answer: []byte("b"), finish: "length", usage: none}},
	"null choices":       {`{"choices":null}`, chunk{usage: none}},
	"odd types":          {`{"choices":[null,1,{"text":5,"delta":[]}],"usage":[],"object":7}`, chunk{usage: none}},
	"empty object":       {`{}`, chunk{usage: none}},
	"deep":               {`{"x":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]],"choices":[{"text":"a"}]}`, chunk{answer: []byte("a"), usage: none}},
	"logprobs":           {`{"choices":[{"logprobs":{"tokens":["a"],"top":[{"a":-0.5e-3},{"b":0}],"x":[true,false,null,[],{}]},"text":"a"}]}`, chunk{answer: []byte("a"), usage: none}},
}

func TestChunksAreDecoded(t *testing.T) {
	for name, tt := range chunks {
		t.Run(name, func(t *testing.T) {
			var c chunk
			require.NoError(t, c.decode([]byte(tt.in)))
			assert.Equal(t, normal(tt.want), normal(c))
		})
	}
}

func TestWhatIsNotAJSONObjectIsMalformed(t *testing.T) {
	for _, in := range []string{`{`, `{"choices":[`, `{"a":1}x`, `{"a":01}`, `[1]`, `7`, `"x"`, "{\"a\":\"\n\"}", `{"a":"\x"}`, `{"a":"\`, `{"a":"\u12`, `{"a":"\u12x4"}`, `{"a":1`, `{"a":tru}`, `{"a":1,}`, `{,}`, `{"a":-}`, `{"a":1.}`, `{"a":1e}`, `{"a" 1}`, `{"usage":{"completion_tokens":007}}`} {
		var c chunk
		err := c.decode([]byte(in))
		assert.ErrorContains(t, err, "decode chunk", in)
	}
}

func TestTheUsualChunksAllocateNothing(t *testing.T) {
	for _, name := range []string{"completion", "chat", "role only", "null content", "reasoning_content", "usage only", "finish"} {
		data := []byte(chunks[name].in)
		var c chunk
		require.True(t, (&scanner{b: data}).chunk(&c), name)
		assert.Zero(t, testing.AllocsPerRun(100, func() { _ = c.decode(data) }), name)
	}
}

// normal makes chunks comparable: empty text is the same as none.
func normal(c chunk) chunk {
	if len(c.answer) == 0 {
		c.answer = nil
	}
	if len(c.thought) == 0 {
		c.thought = nil
	}
	return c
}

func FuzzDecode(f *testing.F) {
	for _, c := range chunks {
		f.Add([]byte(c.in))
	}
	for _, in := range []string{`{"a":1e+5,"b":-0.0}`, `{"choices":[{"text":"` + "\xff" + `","finish_reason":"` + "\xff" + `"}]}`, "{\"a\":\"\x01\"}", `null`, `{"usage":{"completion_tokens":1}}`} {
		f.Add([]byte(in))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		fast, slow := chunk{usage: none}, chunk{usage: none}
		if !(&scanner{b: in}).chunk(&fast) {
			return // encoding/json decides
		}
		require.NoError(t, slow.parse(in))
		require.Equal(t, normal(slow), normal(fast))
	})
}
