// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"encoding/json"
	"strconv"
	"strings"
)

// dialect is what the server is sent. It starts with everything; what the server refuses in answer to
// the first request is left out of all others.
type dialect struct {
	usage      bool // stream_options.include_usage
	continuous bool // stream_options.continuous_usage_stats
	ignoreEOS  bool
	minTokens  bool
	tokenIDs   bool // prompts are token ids
}

func newDialect(c Config) dialect {
	return dialect{usage: true, continuous: true, ignoreEOS: c.IgnoreEOS, minTokens: c.IgnoreEOS, tokenIDs: c.API == Completions}
}

// drop leaves out the part of the request that a refusal is about, and says what that means.
// It returns "" where the refusal is about something else.
func (d *dialect) drop(refusal string) string {
	about := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(strings.ToLower(refusal), w) {
				return true
			}
		}
		return false
	}
	switch {
	case d.continuous && about("continuous_usage_stats"):
		d.continuous = false
		return "the server refuses continuous_usage_stats: tokens per chunk are estimated"
	case d.usage && about("stream_options", "include_usage"):
		d.usage, d.continuous = false, false
		return "the server refuses stream_options: it may report no token counts"
	case d.minTokens && about("min_tokens"):
		d.minTokens = false
		return "the server refuses min_tokens"
	case d.ignoreEOS && about("ignore_eos"):
		d.ignoreEOS = false
		return "the server refuses ignore_eos: answers may be shorter than asked"
	case d.tokenIDs && about("prompt", "string", "token id", "token_id", "vocab") && !about("context", "length", "exceed", "too long"):
		d.tokenIDs = false
		return "the server refuses token ids as prompt: prompts are calibrated text"
	}
	return ""
}

// body renders requests. Everything but the prompt and max_tokens is the same in all of them.
type body struct {
	model string // as JSON
	chat  bool
}

func newBody(c Config) (body, error) {
	model, err := json.Marshal(c.Model)
	return body{model: string(model), chat: c.API == Chat}, err
}

// prompt is the JSON of what is asked: the prompt, or the content of the one user message of a chat; or else
// all messages of a chat.
type prompt struct{ text, messages []byte }

// messages renders a chat. Completions have no messages: their texts become one, with an empty line
// between any two.
func (b body) messages(list []Message) prompt {
	if b.chat {
		return prompt{messages: marshal(list)}
	}
	texts := make([]string, len(list))
	for i, m := range list {
		texts[i] = m.Content
	}
	return prompt{text: marshal(strings.Join(texts, "\n\n"))}
}

// marshal renders texts, which always can be.
func marshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic("loadgen: " + err.Error())
	}
	return data
}

// stream renders a streaming request.
func (b body) stream(d dialect, p prompt, maxTokens int) []byte {
	out := b.start(len(p.text)+len(p.messages)+256, p, maxTokens)
	out = append(out, `,"stream":true`...)
	if d.usage {
		out = append(out, `,"stream_options":{"include_usage":true`...)
		if d.continuous {
			out = append(out, `,"continuous_usage_stats":true`...)
		}
		out = append(out, '}')
	}
	if d.ignoreEOS {
		out = append(out, `,"ignore_eos":true`...)
	}
	if d.minTokens {
		out = append(out, `,"min_tokens":`...)
		out = strconv.AppendInt(out, int64(maxTokens), 10)
	}
	return append(out, '}')
}

// single renders a request for one token, not streamed, whose answer tells the length of the prompt.
func (b body) single(text []byte) []byte {
	return append(b.start(len(text)+256, prompt{text: text}, 1), '}')
}

// tokenize renders a request to /tokenize for the same prompt.
func (b body) tokenize(text []byte) []byte {
	return append(b.prompt(b.open(len(text)+256), prompt{text: text}), '}')
}

func (b body) start(size int, p prompt, maxTokens int) []byte {
	out := b.prompt(b.open(size), p)
	out = append(out, `,"temperature":0,"max_tokens":`...)
	return strconv.AppendInt(out, int64(maxTokens), 10)
}

func (b body) open(size int) []byte {
	return append(append(make([]byte, 0, size), `{"model":`...), b.model...)
}

func (b body) prompt(out []byte, p prompt) []byte {
	switch {
	case p.messages != nil:
		return append(append(out, `,"messages":`...), p.messages...)
	case !b.chat:
		return append(append(out, `,"prompt":`...), p.text...)
	}
	out = append(out, `,"messages":[{"role":"user","content":`...)
	return append(append(out, p.text...), `}]`...)
}
