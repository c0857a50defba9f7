// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"net/http"
	"slices"
)

// defaultMaxTokens is the answer length of a completion that does not say.
const defaultMaxTokens = 16

// Without ignore_eos an answer ends by itself after a log-normal number of
// tokens. It depends on the seed and the prompt only, as for a model that
// decodes greedily.
const (
	answerMedian = 256
	answerSigma  = 0.6
)

// apiRequest is the body of a completion or chat completion; other keys are
// ignored.
type apiRequest struct {
	Model               string          `json:"model"`
	Prompt              json.RawMessage `json:"prompt"`
	Messages            []message       `json:"messages"`
	Stream              bool            `json:"stream"`
	StreamOptions       *streamOptions  `json:"stream_options"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	MinTokens           int             `json:"min_tokens"`
	IgnoreEOS           bool            `json:"ignore_eos"`
	N                   *int            `json:"n"`
}

type streamOptions struct {
	IncludeUsage         bool `json:"include_usage"`
	ContinuousUsageStats bool `json:"continuous_usage_stats"`
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type tokenUsage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// apiError is an answer that is not a completion.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

func (e *apiError) Error() string { return e.Message }

func badRequest(format string, args ...any) *apiError {
	return &apiError{Message: fmt.Sprintf(format, args...), Type: "BadRequestError", Code: http.StatusBadRequest}
}

// engineFailed is the answer when the engine breaks under a request.
func engineFailed() *apiError {
	return &apiError{
		Message: "EngineCore encountered an issue. See stack trace (above) for the root cause.",
		Type:    "InternalServerError",
		Code:    http.StatusInternalServerError,
	}
}

// job is a request that was found good.
type job struct {
	id              string
	chat            bool
	prompt          int    // tokens
	output          int    // tokens that will be generated
	finish          string // why it ends there: length or stop
	stream          bool
	includeUsage    bool
	continuousUsage bool
	start           int // of its words
}

// newJob checks a request body in vLLM's order: form, model, lengths.
func (s *Server) newJob(body []byte, chat bool) (job, error) {
	req, err := decodeRequest(body)
	if err != nil {
		return job{}, err
	}
	prompt, err := promptTokens(req, chat)
	if err != nil {
		return job{}, err
	}
	if err := s.checkModel(req.Model); err != nil {
		return job{}, err
	}
	limit, err := s.answerLimit(req, chat, prompt)
	if err != nil {
		return job{}, err
	}

	h := fnv.New64a()
	h.Write(req.Prompt)
	for _, m := range req.Messages {
		h.Write(m.Content)
	}
	j := job{chat: chat, prompt: prompt, output: limit, finish: "length", stream: req.Stream, start: int(h.Sum64() >> 40)}
	if length := s.naturalLength(h.Sum64(), req.MinTokens); !req.IgnoreEOS && length < limit {
		j.output, j.finish = length, "stop"
	}
	if o := req.StreamOptions; o != nil {
		j.includeUsage = o.IncludeUsage
		j.continuousUsage = o.IncludeUsage && o.ContinuousUsageStats
	}
	if req.Stream && s.options.ForceIncludeUsage {
		j.includeUsage, j.continuousUsage = true, true
	}
	return j, nil
}

func decodeRequest(body []byte) (*apiRequest, error) {
	var req apiRequest
	if err := json.Unmarshal(body, &req); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, badRequest("[{'type': 'json_invalid', 'loc': ('body', %d), 'msg': 'JSON decode error', 'ctx': {'error': %s}}]",
				syntax.Offset, quote(err.Error()))
		}
		return nil, badRequest("1 validation error: %v", err)
	}
	if req.StreamOptions != nil && !req.Stream {
		return nil, badRequest("Stream options can only be defined when `stream=True`.")
	}
	if req.N != nil && *req.N != 1 {
		return nil, badRequest("n must be 1 for the simulated engine, got %d.", *req.N)
	}
	return &req, nil
}

// promptTokens returns the length of the prompt, which is never 0.
func promptTokens(req *apiRequest, chat bool) (int, error) {
	if chat {
		if len(req.Messages) == 0 {
			return 0, badRequest("messages must not be empty.")
		}
		ids, err := applyChatTemplate(req.Messages)
		return len(ids), err
	}
	ids, text, err := readPrompt(req.Prompt)
	if err != nil {
		return 0, err
	}
	if n := len(ids) + countTokens(text); n > 0 {
		return n, nil
	}
	return 0, badRequest("Either prompt or prompt_embeds must be provided and non-empty.")
}

// readPrompt reads a prompt in one of its forms: "text", ["text"], [1, 2] or
// [[1, 2]].
func readPrompt(raw json.RawMessage) (ids []int, text string, err error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil, "", nil
	}
	if raw[0] == '[' {
		if inner := bytes.TrimSpace(raw[1:]); inner[0] == '[' || inner[0] == '"' {
			var items []json.RawMessage
			if err := json.Unmarshal(raw, &items); err != nil {
				return nil, "", badRequest("prompt: %v", err)
			}
			if len(items) != 1 {
				return nil, "", badRequest("the simulated engine takes one prompt per request, got %d.", len(items))
			}
			return readPrompt(items[0])
		}
		if err := json.Unmarshal(raw, &ids); err != nil {
			return nil, "", badRequest("prompt: %v", err)
		}
		for _, id := range ids {
			if err := checkTokenID(id); err != nil {
				return nil, "", badRequest("%v", err)
			}
		}
		return ids, "", nil
	}
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, "", badRequest("prompt must be a string, a list of token ids, or a list of one of those.")
	}
	return nil, text, nil
}

// applyChatTemplate writes <|role|> before and <|e> behind each message, and
// <|assistant|> at the end. Around a single message of a user that makes 7
// tokens.
func applyChatTemplate(messages []message) ([]int, error) {
	ids := []int{}
	for _, m := range messages {
		text, err := messageText(m.Content)
		if err != nil {
			return nil, err
		}
		ids = append(ids, tokenize("<|"+m.Role+"|>")...)
		ids = append(ids, tokenize(text)...)
		ids = append(ids, tokenize("<|e>")...)
	}
	return append(ids, tokenize("<|assistant|>")...), nil
}

// messageText reads a message's content: a string, or a list of parts of which
// those with text count.
func messageText(raw json.RawMessage) (string, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return "", nil
	}
	if raw[0] != '[' {
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return "", badRequest("messages: content: %v", err)
		}
		return text, nil
	}
	var parts []struct{ Text string }
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", badRequest("messages: content: %v", err)
	}
	text := ""
	for _, p := range parts {
		text += p.Text
	}
	return text, nil
}

func (s *Server) checkModel(name string) error {
	if name == "" || slices.Contains(s.options.ServedModelNames, name) {
		return nil
	}
	param := "model"
	return &apiError{Message: fmt.Sprintf("The model `%s` does not exist.", name), Type: "NotFoundError", Param: &param, Code: http.StatusNotFound}
}

// answerLimit returns the number of tokens the answer may have at most.
func (s *Server) answerLimit(req *apiRequest, chat bool, prompt int) (int, error) {
	context := s.cfg.MaxModelLen
	if prompt >= context {
		return 0, badRequest("This model's maximum context length is %d tokens. However, your request has %d input tokens. "+
			"Please reduce the length of the input messages.", context, prompt)
	}
	limit := min(defaultMaxTokens, context-prompt)
	if chat {
		limit = context - prompt
	}
	asked := req.MaxTokens
	if req.MaxCompletionTokens != nil && chat {
		asked = req.MaxCompletionTokens
	}
	if asked != nil {
		limit = *asked
	}
	switch {
	case limit < 1:
		return 0, badRequest("max_tokens must be at least 1, got %d.", limit)
	case limit > context-prompt:
		return 0, badRequest("'max_tokens' or 'max_completion_tokens' is too large: %d. This model's maximum context length is %d tokens "+
			"and your request has %d input tokens (%d > %d - %d).", limit, context, prompt, limit, context, prompt)
	case req.MinTokens < 0:
		return 0, badRequest("min_tokens must be greater than or equal to 0, got %d.", req.MinTokens)
	case req.MinTokens > limit:
		return 0, badRequest("min_tokens must be less than or equal to max_tokens=%d, got %d.", limit, req.MinTokens)
	}
	return limit, nil
}

// naturalLength is where an answer ends by itself. Its last token is the end
// of sequence, which has no text, so it has two at least.
func (s *Server) naturalLength(promptHash uint64, minTokens int) int {
	u := unit(promptHash ^ uint64(s.options.Seed)*0x9e3779b97f4a7c15)
	z := math.Sqrt2 * math.Erfinv(2*u-1)
	// u = 0 gives minus infinity and so the least length; u is never 1.
	return max(2, minTokens, int(answerMedian*math.Exp(answerSigma*z)))
}
