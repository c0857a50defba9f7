// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWhatTheServerRefusesIsLeftOutAndNoted(t *testing.T) {
	const (
		noContinuous = "the server refuses continuous_usage_stats: tokens per chunk are estimated"
		noUsage      = "the server refuses stream_options: it may report no token counts"
		noMin        = "the server refuses min_tokens"
		noIgnore     = "the server refuses ignore_eos: answers may be shorter than asked"
		noIDs        = "the server refuses token ids as prompt: prompts are calibrated text"
	)
	continuous := func(r *request) bool { return r.StreamOptions["continuous_usage_stats"] != nil }
	tests := map[string]struct {
		refused func(r *request) string // body of a refusal, or ""
		want    []string
	}{
		"continuous usage, by the message": {func(r *request) string {
			if !continuous(r) {
				return ""
			}
			return `{"error":{"message":"Extra inputs are not permitted: stream_options.continuous_usage_stats","param":null}}`
		}, []string{noContinuous}},
		"stream options, by the parameter": {func(r *request) string {
			if r.StreamOptions == nil {
				return ""
			}
			return `{"error":{"message":"unknown, see min_tokens","param":"stream_options"}}`
		}, []string{noUsage}},
		"two fields, by the place": {func(r *request) string {
			switch {
			case r.MinTokens > 0:
				return `{"detail":[{"loc":["body","min_tokens"],"msg":"extra fields not permitted","input":{"ignore_eos":true,"prompt":[1]}}]}`
			case r.IgnoreEOS:
				return `{"detail":[{"loc":["body","ignore_eos"],"msg":"extra fields not permitted"}]}`
			}
			return ""
		}, []string{noMin, noIgnore}},
		"token ids": {func(r *request) string {
			if r.ids() == nil {
				return ""
			}
			return `{"error":{"message":"prompt must be a string"}}`
		}, []string{noIDs}},
		"token ids out of the vocabulary": {func(r *request) string {
			if r.ids() == nil {
				return ""
			}
			return `Token id 20000 is out of vocabulary`
		}, []string{noIDs}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{
					tokenize: func(s string) int { return len(strings.Fields(s)) },
					answer: func(w *answer, i int, r *request) {
						if body := tt.refused(r); body != "" {
							w.fail(400+22*(i%2), body)
							return
						}
						steady(w, i, r)
					},
				}
				c := e.start(t)
				c.IgnoreEOS = true
				r, err := Run(t.Context(), c)
				require.NoError(t, err)
				assert.Equal(t, tt.want, r.Warnings)
				assert.Len(t, e.seen(), len(tt.want)+10, "only the first request is refused")
				s := Summarize(r)
				assert.Equal(t, 8, s.OK)
				assert.EqualValues(t, 16, r.Records[7].PromptTokens)
			})
		})
	}
}

func TestAPromptTooLongIsNotTakenForARefusalOfTokenIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const message = "The decoder prompt (length 16) is longer than the maximum model length of 8."
		e := &engine{answer: func(w *answer, _ int, _ *request) { w.fail(400, fmt.Sprintf(`{"error":{"message":%q}}`, message)) }}
		_, err := Run(t.Context(), e.start(t))
		require.ErrorIs(t, err, ErrConfig)
		assert.EqualError(t, err, "the server refuses the request: http 400: "+message)
		assert.Len(t, e.seen(), 1)
	})
}

func TestALevelWithoutAnyWayToPromptSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: func(w *answer, _ int, r *request) {
			if r.ids() != nil {
				w.fail(422, "prompt must be a string")
				return
			}
			w.fail(500, "out of order")
		}}
		r, err := Run(t.Context(), e.start(t))
		assert.EqualError(t, err, "calibrate prompts: http 500: out of order")
		assert.Equal(t, err.Error(), r.Stopped)
	})
}

func TestTextPromptsAreCalibrated(t *testing.T) {
	words := func(s string) int { return len(strings.Fields(s)) }
	tests := map[string]struct {
		tokens   func(string) int // the server's tokenizer
		tokenize bool             // it has /tokenize
		off      int              // largest difference to the wanted 100 to 200 tokens
		counted  int              // calls of /tokenize; -1: some for every request
		probes   int              // small requests
	}{
		"a word is a token, /tokenize":             {func(s string) int { return 11 + words(s) }, true, 0, 2, 0},
		"a word is a token, by usage":              {func(s string) int { return 11 + words(s) }, false, 0, 0, 2},
		"a word is one or two tokens, /tokenize":   {func(s string) int { return 3 + words(s) + strings.Count(s, "e") }, true, 1, -1, 0},
		"four characters are a token, by usage":    {func(s string) int { return 5 + len(s)/4 }, false, 30, 0, 2},
		"three tokens to a word, /tokenize":        {func(s string) int { return 3 * words(s) }, true, 1, -1, 0},
		"three words to a token, by usage":         {func(s string) int { return int(math.Ceil(float64(words(s)) / 3)) }, false, 3, 0, 2},
		"overhead above the wanted length, /token": {func(s string) int { return 300 + words(s) }, true, 201, 2, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{answer: func(w *answer, i int, r *request) {
					if !r.Stream {
						fmt.Fprintf(w, `{"choices":[],"usage":{"prompt_tokens":%d}}`, tt.tokens(r.text()))
						return
					}
					w.at(100*ms, fmt.Sprintf("data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":1}}\n\n", tt.tokens(r.text())))
				}}
				if tt.tokenize {
					e.tokenize = tt.tokens
				}
				c := e.start(t)
				c.API, c.MaxRequests = Chat, 30
				c.Workload.Input = UniformLength(100, 200)
				r, err := Run(t.Context(), c)
				require.NoError(t, err)
				for _, rec := range r.Records {
					require.True(t, rec.OK(), rec.Error)
					assert.InDelta(t, rec.PromptTarget, rec.PromptTokens, float64(tt.off))
				}
				if tt.counted >= 0 {
					assert.Equal(t, tt.counted, e.counted)
				} else {
					assert.Greater(t, e.counted, 30)
				}
				assert.Len(t, e.seen(), 32+tt.probes)
				prompts := map[string]bool{}
				for _, r := range e.seen() {
					prompts[strings.Join(strings.Fields(r.text())[:1], " ")+r.text()] = true
				}
				assert.Len(t, prompts, len(e.seen()), "no prompt twice")
			})
		})
	}
}

func TestCalibrationFailsWithTheServersReason(t *testing.T) {
	tests := map[string]struct {
		status int
		answer string
		want   string
	}{
		"wrong model":    {404, `{"error":{"message":"no such model"}}`, "calibrate prompts: the server refuses the request: http 404: no such model"},
		"server error":   {500, `sk-1 is bad`, "calibrate prompts: http 500: [redacted] is bad"},
		"no usage":       {200, `{"choices":[]}`, `calibrate prompts: the answer has no usage.prompt_tokens: {"choices":[]}`},
		"constant usage": {200, `{"usage":{"prompt_tokens":7}}`, "calibrate prompts: the server counts 7 prompt tokens in 8 words, but 7 in 136"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{answer: func(w *answer, _ int, _ *request) { w.fail(tt.status, tt.answer) }}
				c := e.start(t)
				c.API, c.APIKey = Chat, "sk-1"
				r, err := Run(t.Context(), c)
				assert.EqualError(t, err, tt.want)
				assert.Nil(t, r)
			})
		})
	}
}
