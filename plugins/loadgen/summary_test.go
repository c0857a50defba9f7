// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// records returns n good records, one after the other, 100 ms each.
func records(n int) (rs []Record) {
	for i := range n {
		sent := time.Duration(i) * 100 * ms
		rs = append(rs, Record{
			Index: int32(i), Scheduled: sent, Sent: sent, Done: sent + 100*ms, TTFT: 20 * ms, FirstAnswer: 20 * ms, E2E: 100 * ms,
			PromptTarget: 10, PromptTokens: 10, OutputTarget: 9, OutputTokens: 9, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 9, FinishReason: "length",
		})
	}
	return rs
}

// result is a level of records(n), each changed.
func result(n int, change func(i int, r *Record)) *Result {
	r := &Result{Records: records(n), Concurrency: 1}
	for i := range r.Records {
		if change != nil {
			change(i, &r.Records[i])
		}
	}
	return r
}

// TestPercentilesInterpolateLinearly compares with numpy.percentile, whose default is the same type 7.
func TestPercentilesInterpolateLinearly(t *testing.T) {
	tests := map[string]struct {
		values []float64
		want   Distribution
	}{
		"none":                      {nil, Distribution{}},
		"one":                       {[]float64{5}, Distribution{1, new(5.0), new(5.0), new(5.0), new(5.0), new(5.0)}},
		"two":                       {[]float64{20, 10}, Distribution{2, new(15.0), new(15.0), new(19.0), new(19.5), new(19.9)}},
		"five":                      {[]float64{15, 20, 35, 40, 50}, Distribution{5, new(32.0), new(35.0), new(46.0), new(48.0), new(49.6)}},
		"A4: not the largest of 71": {upTo(71), Distribution{71, new(36.0), new(36.0), new(64.0), new(67.5), new(70.3)}},
		"twins":                     {[]float64{1, 1, 1, 3}, Distribution{4, new(1.5), new(1.0), new(2.4), new(2.7), new(2.94)}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := describe(tt.values)
			assert.Equal(t, tt.want.N, got.N)
			for i, want := range []*float64{tt.want.Mean, tt.want.P50, tt.want.P90, tt.want.P95, tt.want.P99} {
				have := []*float64{got.Mean, got.P50, got.P90, got.P95, got.P99}[i]
				if want == nil {
					assert.Nil(t, have)
				} else {
					assert.InDelta(t, *want, *have, 1e-9)
				}
			}
		})
	}
}

func upTo(n int) (values []float64) {
	for i := range n {
		values = append(values, float64(i+1))
	}
	return values
}

// A hundred thousand requests are kept in 18 MB.
func TestARecordIsSmall(t *testing.T) {
	assert.LessOrEqual(t, reflect.TypeFor[Record]().Size(), uintptr(180))
}

func TestCountedGapsHaveTheSamePercentilesAsListedOnes(t *testing.T) {
	gaps := []Gap{{0, 1}, {3 * ms, 5}, {10 * ms, 2}, {500 * ms, 1}}
	var listed []float64
	for _, g := range gaps {
		for range g.Tokens {
			listed = append(listed, millis(g.Duration))
		}
	}
	assert.Equal(t, describe(listed), describeGaps(gaps))
	assert.Equal(t, Distribution{}, describeGaps(nil))
}

func TestSurvivorsDoNotHideFailures(t *testing.T) { // A1
	s := Summarize(result(1000, func(i int, r *Record) {
		if i >= 10 {
			r.fail("http_500", "http 500: x")
			r.TTFT = 1
		}
	}))
	assert.Equal(t, 1000, s.Sent)
	assert.Equal(t, new(0.99), s.ErrorRate)
	assert.Equal(t, 10, s.TTFT.N)
	assert.Equal(t, new(20.0), s.TTFT.P99)
	assert.Equal(t, map[Category]int{"http_500": 990}, s.Categories)
}

func TestSmallSamplesAreWarnedOf(t *testing.T) { // A4
	tests := map[int]string{
		0:    "",
		1:    "p50, p90, p95, p99 from 1 requests; at least 20, 100, 200, 1000 are needed",
		20:   "p90, p95, p99 from 20 requests; at least 100, 200, 1000 are needed",
		71:   "p90, p95, p99 from 71 requests; at least 100, 200, 1000 are needed",
		100:  "p95, p99 from 100 requests; at least 200, 1000 are needed",
		999:  "p99 from 999 requests; at least 1000 are needed",
		1000: "",
	}
	for n, want := range tests {
		assert.Equal(t, want, weakPercentiles(n))
		if want != "" {
			assert.Contains(t, Summarize(result(n, nil)).Warnings, "small_sample: "+want)
		} else {
			assert.Empty(t, Summarize(result(n, nil)).Warnings)
		}
	}
}

func TestALevelWithShortAnswersIsInvalid(t *testing.T) { // S21
	for short, invalid := range map[int]bool{0: false, 10: false, 11: true} {
		s := Summarize(result(1000, func(i int, r *Record) { r.Short = i < short }))
		assert.Equal(t, invalid, s.InvalidLoad, "%d of 1000", short)
		assert.Equal(t, short, s.Short)
		assert.Equal(t, 1000, s.OK)
		assert.Equal(t, invalid, strings.Contains(strings.Join(s.Warnings, "\n"), "short_output: 11 of 1000"))
	}
}

func TestABufferedStreamIsWarnedOf(t *testing.T) { // S35
	for buffered, warned := range map[int]bool{500: false, 501: true} {
		s := Summarize(result(1000, func(i int, r *Record) { r.Buffered = i < buffered }))
		assert.Equal(t, warned, strings.Contains(strings.Join(s.Warnings, "\n"), "buffered_stream: 501 of 1000 answers"))
	}
}

func TestCountedChunksAreNoTokensUnlessAllowed(t *testing.T) { // S9
	r := result(1000, func(_ int, r *Record) { r.TokensSource = FromChunks })
	s := Summarize(r)
	assert.Equal(t, Distribution{}, s.TPOT)
	assert.Nil(t, s.OutputTokensPerSecond)
	assert.Nil(t, s.TotalTokensPerSecond)
	assert.Equal(t, new(100.0), s.InputTokensPerSecond)
	assert.Equal(t, []string{"chunk_count: the server reported no token count for 1000 of 1000 answers: their chunks were counted"}, s.Warnings)

	r.AllowChunkCount = true
	s = Summarize(r)
	assert.Equal(t, new(10.0), s.TPOT.P99)
	assert.Equal(t, new(90.0), s.OutputTokensPerSecond)
}

func TestAPromptLengthThatWasMissedIsWarnedOf(t *testing.T) {
	for tokens, warned := range map[int32]bool{98: false, 97: true, 102: false, 103: true, 0: false} {
		s := Summarize(result(1000, func(_ int, r *Record) { r.PromptTarget, r.PromptTokens = 100, tokens }))
		assert.Equal(t, warned, strings.Contains(strings.Join(s.Warnings, "\n"), "prompt_length: prompts had"), tokens)
	}
}

func TestWhatIsMissingIsNull(t *testing.T) { // S31
	none := Summarize(&Result{})
	assert.Equal(t, Summary{}, none)
	got, err := json.Marshal(none)
	require.NoError(t, err)
	assert.JSONEq(t, `{"sent":0,"ok":0,"failed":0,"incomplete":0,"cancelled":0,"short":0,"errorRate":null,"goodput":null,"goodRequestsPerSecond":null,
		"ttftMs":{"n":0,"mean":null,"p50":null,"p90":null,"p95":null,"p99":null},
		"firstAnswerMs":{"n":0,"mean":null,"p50":null,"p90":null,"p95":null,"p99":null},
		"tpotMs":{"n":0,"mean":null,"p50":null,"p90":null,"p95":null,"p99":null},
		"itlMs":{"n":0,"mean":null,"p50":null,"p90":null,"p95":null,"p99":null},
		"e2eMs":{"n":0,"mean":null,"p50":null,"p90":null,"p95":null,"p99":null},
		"windowSeconds":null,"requestsPerSecond":null,"outputTokensPerSecond":null,"inputTokensPerSecond":null,
		"totalTokensPerSecond":null,"achievedConcurrency":null,"peakConcurrency":0}`, string(got))

	one := Summarize(result(1, func(_ int, r *Record) { r.OutputTokens = 1 })) // a single token has no TPOT
	assert.Equal(t, Distribution{}, one.TPOT)
	assert.Equal(t, 1, one.TTFT.N)
}

func TestARecordLeavesOutWhatItDoesNotHave(t *testing.T) {
	got, err := json.Marshal(Record{Category: ConnectionRefused, Error: "x", OutputTarget: 8, PromptTarget: 4})
	require.NoError(t, err)
	assert.JSONEq(t, `{"index":0,"scheduledNs":0,"sentNs":0,"doneNs":0,"promptTarget":4,"outputTarget":8,"chunks":0,"category":"connection_refused","error":"x"}`, string(got))
}

// TestCancelledRequestsDoNotCount: they are neither sent nor failed, and do not stretch the window.
func TestCancelledRequestsDoNotCount(t *testing.T) {
	s := Summarize(result(10, func(i int, r *Record) {
		switch i {
		case 0, 9:
			r.fail(Cancelled, "x")
		case 8:
			r.fail(Incomplete, "x")
		}
	}))
	assert.Equal(t, 8, s.Sent)
	assert.Equal(t, 7, s.OK)
	assert.Equal(t, 2, s.Cancelled)
	assert.Equal(t, 1, s.Incomplete)
	assert.Equal(t, new(0.0), s.ErrorRate)
	assert.Equal(t, new(0.7), s.Window)
	assert.Equal(t, new(10.0), s.RequestsPerSecond)
	assert.Equal(t, map[Category]int{Incomplete: 1}, s.Categories)
}

func TestTheConcurrencyThatWasAchievedIsReported(t *testing.T) { // A16
	s := Summarize(&Result{Concurrency: 4, Records: append(records(40), records(40)...)})
	assert.Equal(t, new(2.0), s.AchievedConcurrency)
	assert.Equal(t, 2, s.PeakConcurrency)
	assert.Contains(t, s.Warnings, "concurrency: at most 2 requests were in flight at once, 4 were wanted")
}
