// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheLargestRequestOfALoadIsKnown(t *testing.T) {
	for name, tt := range map[string]struct {
		config        Config
		input, output int
	}{
		"fixed":  {Config{Workload: Workload{FixedLength(512), FixedLength(128)}}, 512, 128},
		"normal": {Config{Workload: Workload{NormalLength(512, 256), NormalLength(256, 64)}}, 1280, 448},
		"trace":  {Config{Trace: &Trace{Rows: []TraceRow{{Input: 10, Output: 5}, {Input: 3, Output: 20}, {Input: 9, Output: 9}}}}, 3, 20},
		"conversations": {Config{Conversations: &Conversations{NumConversations: 2, SharedSystemPromptLen: FixedLength(100), TurnsPerConversation: FixedLength(3),
			InputTokensPerTurn: FixedLength(10), OutputTokensPerTurn: FixedLength(5)}}, 100 + 3*10 + 2*5, 5},
		"dataset": {Config{Dataset: &Dataset{}}, 0, 0},
	} {
		input, output := tt.config.Largest()
		assert.Equal(t, [2]int{tt.input, tt.output}, [2]int{input, output}, name)
	}
}

func TestAProbeEndsWithTheFirstToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: func(w *answer, _ int, r *request) { w.tokens(r, 100*ms, time.Second, r.MaxTokens) }}
		c := e.start(t)
		c.Workload = Workload{NormalLength(100, 50), FixedLength(1000)}
		began := time.Now()
		require.NoError(t, Probe(t.Context(), c))
		assert.Equal(t, 100*ms, time.Since(began))
		require.Len(t, e.seen(), 1)
		assert.Len(t, e.seen()[0].ids(), 250)
		assert.Equal(t, 1000, e.seen()[0].MaxTokens)
	})
}

func TestOneRequestIsMeasuredOnItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: func(w *answer, i int, r *request) {
			if i == 2 {
				w.fail(500, "broken")
				return
			}
			w.tokens(r, 100*ms, 10*ms, r.MaxTokens)
		}}
		c := e.start(t)
		c.Rate, c.Concurrency, c.MaxRequests = 5, 0, 1000
		c.Workload = Workload{NormalLength(100, 50), FixedLength(4)}
		rec, err := Once(t.Context(), c, 64)
		require.NoError(t, err)
		assert.Equal(t, [2]int32{250, 64}, [2]int32{rec.PromptTokens, rec.OutputTokens})
		assert.Equal(t, 100*ms, rec.TTFT)
		c.Workload.Output = FixedLength(80)
		rec, err = Once(t.Context(), c, 64)
		require.NoError(t, err)
		assert.EqualValues(t, 80, rec.OutputTokens)
		_, err = Once(t.Context(), c, 64)
		assert.EqualError(t, err, "http_500: http 500: broken")
		assert.Len(t, e.seen(), 3)
	})
}

func TestAProbeSaysWhatTheServerCannotTake(t *testing.T) {
	for name, tt := range map[string]struct {
		status int
		want   string
		config bool
	}{
		"refused": {400, "the server refuses the request: http 400: too long", true},
		"broken":  {500, "a request of 16 tokens in and 4 out: http_500: http 500: too long", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := &engine{answer: func(w *answer, _ int, _ *request) { w.fail(tt.status, `{"error":{"message":"too long"}}`) }}
			err := Probe(t.Context(), e.start(t))
			require.EqualError(t, err, tt.want, name)
			if tt.config {
				assert.ErrorIs(t, err, ErrConfig)
			}
		})
	}
}
