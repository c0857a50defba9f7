// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// chunks writes the events of one streamed answer. Everything but the words
// and the token counts is prepared once.
type chunks struct {
	job      job
	interval int    // tokens in an event, after the first
	role     []byte // chat: first event, without its usage
	prefix   []byte // up to the text
	suffix   []byte // from behind the text to before the usage
	last     []byte // the same with the finish reason
	usage    []byte // last event, up to the usage
}

func newChunks(j job, model string, created int64, interval int) (*chunks, error) {
	name, err := json.Marshal(model)
	if err != nil {
		return nil, fmt.Errorf("model name: %w", err)
	}
	object := "text_completion"
	if j.chat {
		object = "chat.completion.chunk"
	}
	head := fmt.Sprintf(`data: {"id":"%s","object":"%s","created":%d,"model":%s,"choices":[`, j.id, object, created, name)
	c := &chunks{job: j, interval: interval, usage: []byte(head + "]")}
	if j.chat {
		c.role = []byte(head + `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`)
		c.prefix = []byte(head + `{"index":0,"delta":{"content":"`)
		c.suffix = []byte(`"},"logprobs":null,"finish_reason":null}]`)
		c.last = []byte(`"},"logprobs":null,"finish_reason":"` + j.finish + `","stop_reason":null}]`)
	} else {
		const tail = `,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]`
		c.prefix = []byte(head + `{"index":0,"text":"`)
		c.suffix = []byte(`","logprobs":null,"finish_reason":null` + tail)
		c.last = []byte(`","logprobs":null,"finish_reason":"` + j.finish + `"` + tail)
	}
	return c, nil
}

// append adds the events for tokens from (exclusive of those already sent) to
// to, and after the last token what ends the stream.
func (c *chunks) append(b []byte, from, to int) []byte {
	if from == 0 && c.job.chat {
		b = append(b, c.role...)
		b = c.end(b, 0, c.job.continuousUsage)
	}
	for from < to {
		next := min(to, from+c.interval)
		if from == 0 {
			next = 1
		}
		b = append(b, c.prefix...)
		b = c.job.appendText(b, from, next)
		if next == c.job.output {
			b = append(b, c.last...)
		} else {
			b = append(b, c.suffix...)
		}
		b = c.end(b, next, c.job.continuousUsage)
		from = next
	}
	if to < c.job.output {
		return b
	}
	if c.job.includeUsage {
		b = append(b, c.usage...)
		b = c.end(b, to, true)
	}
	return append(b, done...)
}

const done = "data: [DONE]\n\n"

// end closes an event, with the usage after n tokens if asked for.
func (c *chunks) end(b []byte, n int, usage bool) []byte {
	if usage {
		b = append(b, `,"usage":{"prompt_tokens":`...)
		b = strconv.AppendInt(b, int64(c.job.prompt), 10)
		b = append(b, `,"completion_tokens":`...)
		b = strconv.AppendInt(b, int64(n), 10)
		b = append(b, `,"total_tokens":`...)
		b = strconv.AppendInt(b, int64(c.job.prompt+n), 10)
		b = append(b, '}')
	}
	return append(b, "}\n\n"...)
}

// appendError adds the events of an answer that breaks off.
func appendError(b []byte, e *apiError) ([]byte, error) {
	data, err := json.Marshal(map[string]*apiError{"error": e})
	if err != nil {
		return nil, fmt.Errorf("error event: %w", err)
	}
	b = append(append(b, "data: "...), data...)
	return append(b, "\n\n"+done...), nil
}

// appendText adds the text of tokens [from, to). The end of sequence has none.
func (j job) appendText(b []byte, from, to int) []byte {
	if j.finish == "stop" && to == j.output {
		to--
	}
	for i := from; i < to; i++ {
		b = append(b, word(j.start, i)...)
	}
	return b
}

// completion is the body of an answer that is not streamed.
type completion struct {
	ID      string     `json:"id"`
	Object  string     `json:"object"`
	Created int64      `json:"created"`
	Model   string     `json:"model"`
	Choices []choice   `json:"choices"`
	Usage   tokenUsage `json:"usage"`
}

type choice struct {
	Index        int            `json:"index"`
	Text         *string        `json:"text,omitempty"`
	Message      *answerMessage `json:"message,omitempty"`
	Logprobs     *struct{}      `json:"logprobs"`
	FinishReason string         `json:"finish_reason"`
	StopReason   *string        `json:"stop_reason"`
}

type answerMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func newCompletion(j job, model string, created int64) completion {
	text := string(j.appendText(nil, 0, j.output))
	c := completion{
		ID: j.id, Object: "text_completion", Created: created, Model: model,
		Choices: []choice{{FinishReason: j.finish}},
		Usage:   tokenUsage{j.prompt, j.output, j.prompt + j.output},
	}
	if j.chat {
		c.Object = "chat.completion"
		c.Choices[0].Message = &answerMessage{Role: "assistant", Content: text}
		return c
	}
	c.Choices[0].Text = &text
	return c
}
