// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// chunk is what one event of a stream says. Byte slices are the inside of JSON strings, still escaped,
// and point into the event's data.
type chunk struct {
	answer  []byte // first non-empty text, content or tool call
	thought []byte // first non-empty reasoning text
	finish  string // last finish_reason
	usage   usage
	failed  bool // an error object came
	message string
}

// usage is the token count that the server reports; -1 means not reported.
type usage struct{ prompt, completion int }

// delta is the text of one choice, under each of the keys that servers use.
type delta struct{ text, content, reasoningContent, reasoning, tool []byte }

func (c *chunk) add(d delta) {
	for _, s := range [...][]byte{d.text, d.content, d.tool} {
		if len(c.answer) == 0 {
			c.answer = s
		}
	}
	for _, s := range [...][]byte{d.reasoningContent, d.reasoning} {
		if len(c.thought) == 0 {
			c.thought = s
		}
	}
}

// decode reads one event. Common chunks take a scanner that allocates nothing; whatever it does not
// recognise goes through encoding/json, which also decides what is malformed.
func (c *chunk) decode(data []byte) error {
	*c = chunk{usage: usage{-1, -1}}
	s := scanner{b: data}
	if s.chunk(c) {
		return nil
	}
	*c = chunk{usage: usage{-1, -1}}
	return c.parse(data)
}

// parse is decode by encoding/json. Values of an unexpected type are ignored; a later duplicate of a key wins.
func (c *chunk) parse(data []byte) error {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(data, &top); err != nil {
		return fmt.Errorf("decode chunk %q: %w", excerpt(data), err)
	}
	if c.message, c.failed = errorMessage(top); c.failed {
		return nil
	}
	var choices []json.RawMessage
	if json.Unmarshal(top["choices"], &choices) == nil {
		for _, choice := range choices {
			c.parseChoice(choice)
		}
	}
	if u := object(top["usage"]); u != nil {
		c.usage = usage{count(u["prompt_tokens"]), count(u["completion_tokens"])}
	}
	return nil
}

func (c *chunk) parseChoice(raw json.RawMessage) {
	choice := object(raw)
	if len(choice) == 0 {
		return
	}
	change := object(choice["delta"])
	c.add(delta{
		text:             inside(choice["text"]),
		content:          inside(change["content"]),
		reasoningContent: inside(change["reasoning_content"]),
		reasoning:        inside(change["reasoning"]),
		tool:             toolText(change["tool_calls"]),
	})
	switch raw := choice["finish_reason"]; {
	case len(inside(raw)) > 0:
		c.finish = text(raw)
	case len(raw) > 0 && raw[0] != '"' && string(raw) != "null":
		c.finish = string(raw)
	}
}

// toolText is the first non-empty name or argument text of a list of tool calls.
func toolText(raw json.RawMessage) []byte {
	var calls []json.RawMessage
	if json.Unmarshal(raw, &calls) != nil {
		return nil
	}
	for _, call := range calls {
		f := object(object(call)["function"])
		for _, key := range [...]string{"name", "arguments"} {
			if s := inside(f[key]); len(s) > 0 {
				return s
			}
		}
	}
	return nil
}

// errorMessage finds the error in a response or chunk: {"error": …}, or an object that calls itself one.
// The message is never empty when there is an error.
func errorMessage(top map[string]json.RawMessage) (string, bool) {
	raw := top["error"]
	switch string(raw) {
	case "", "null", `""`, "false":
		if text(top["object"]) != "error" {
			return "", false
		}
		if m := text(top["message"]); m != "" {
			return m, true
		}
		return "the server sent an error object without a message", true
	}
	if m := text(object(raw)["message"]); m != "" {
		return m, true
	}
	if m := text(raw); m != "" {
		return m, true
	}
	return string(raw), true
}

// object decodes a JSON object, or returns nil.
func object(raw json.RawMessage) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil {
		return nil
	}
	return m
}

// inside returns what is between the quotes of a JSON string, or nil.
func inside(raw json.RawMessage) []byte {
	if len(raw) < 2 || raw[0] != '"' {
		return nil
	}
	return raw[1 : len(raw)-1]
}

// text decodes a JSON string, or returns "".
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// count decodes a token count, or returns -1.
func count(raw json.RawMessage) int {
	var f *float64
	if json.Unmarshal(raw, &f) != nil || f == nil || *f < 0 || *f >= 1e15 || *f != math.Trunc(*f) {
		return -1
	}
	return int(*f)
}

// unescape decodes the inside of a JSON string; text cut inside an escape stays as it is.
func unescape(b []byte) string {
	quoted := bytes.Join([][]byte{[]byte(`"`), b, []byte(`"`)}, nil)
	if s := text(quoted); s != "" {
		return s
	}
	return string(b)
}

// excerpt is the beginning of a text, for a message.
func excerpt(b []byte) string {
	const longest = 500
	s := strings.TrimSpace(string(b[:min(len(b), longest)]))
	if len(b) > longest {
		s += "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
