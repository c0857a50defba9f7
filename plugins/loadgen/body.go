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

// stream renders a streaming request; prompt is JSON.
func (b body) stream(d dialect, prompt []byte, maxTokens int) []byte {
	out := b.start(len(prompt)+256, prompt, maxTokens)
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
func (b body) single(prompt []byte) []byte {
	return append(b.start(len(prompt)+256, prompt, 1), '}')
}

// tokenize renders a request to /tokenize for the same prompt.
func (b body) tokenize(prompt []byte) []byte {
	return append(b.prompt(b.open(len(prompt)+256), prompt), '}')
}

func (b body) start(size int, prompt []byte, maxTokens int) []byte {
	out := b.prompt(b.open(size), prompt)
	out = append(out, `,"temperature":0,"max_tokens":`...)
	return strconv.AppendInt(out, int64(maxTokens), 10)
}

func (b body) open(size int) []byte {
	return append(append(make([]byte, 0, size), `{"model":`...), b.model...)
}

func (b body) prompt(out, prompt []byte) []byte {
	if !b.chat {
		return append(append(out, `,"prompt":`...), prompt...)
	}
	out = append(out, `,"messages":[{"role":"user","content":`...)
	return append(append(out, prompt...), `}]`...)
}
