// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"bytes"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestArrivalsAreParsed(t *testing.T) {
	for in, want := range map[string]Arrival{
		"constant":        {Process: Constant},
		" poisson ":       {Process: Poisson},
		"gamma(0.5)":      {Process: Gamma, Burstiness: 0.5},
		"gamma( 1000000)": {Process: Gamma, Burstiness: 1e6},
	} {
		a, err := ParseArrival(in)
		require.NoError(t, err, in)
		assert.Equal(t, want, a)
		again, err := ParseArrival(a.String())
		require.NoError(t, err)
		assert.Equal(t, a, again)
	}
	for in, want := range map[string]string{
		"":           `arrival "": want constant, poisson or gamma(burstiness)`,
		"uniform":    `arrival "uniform": want constant, poisson or gamma(burstiness)`,
		"gamma":      `arrival "gamma": want constant, poisson or gamma(burstiness)`,
		"poisson(1)": `arrival "poisson(1)": want constant, poisson or gamma(burstiness)`,
		"gamma(x)":   `arrival "gamma(x)": want gamma(burstiness), such as gamma(0.5)`,
		"gamma(1":    `arrival "gamma(1": want gamma(burstiness), such as gamma(0.5)`,
		"gamma(0)":   `arrival "gamma(0)": the burstiness must be from 0.01 to 1e+06, is 0`,
		"gamma(NaN)": `arrival "gamma(NaN)": the burstiness must be from 0.01 to 1e+06, is NaN`,
	} {
		_, err := ParseArrival(in)
		assert.EqualError(t, err, want)
	}
}

// The gaps have mean 1 and the coefficient of variation 1/√burstiness.
func TestGapsHaveTheirDistribution(t *testing.T) {
	for name, c := range map[string]struct {
		arrival Arrival
		spread  float64
	}{
		"constant":     {Arrival{Process: Constant}, 0},
		"poisson":      {Arrival{Process: Poisson}, 1},
		"gamma(1)":     {Arrival{Gamma, 1}, 1},
		"gamma(0.25)":  {Arrival{Gamma, 0.25}, 2},
		"gamma(4)":     {Arrival{Gamma, 4}, 0.5},
		"gamma(10000)": {Arrival{Gamma, 10000}, 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			const n = 200_000
			r := random(1, 1)
			sum, squares, least := 0.0, 0.0, 0.0
			for range n {
				g := c.arrival.gap(r)
				sum, squares, least = sum+g, squares+g*g, min(least, g)
			}
			assert.Zero(t, least, "no gap is negative")
			mean := sum / n
			assert.InDelta(t, 1, mean, 0.02)
			assert.InDelta(t, c.spread, math.Sqrt(max(0, squares/n-mean*mean)), 0.02*c.spread+1e-6)
		})
	}
}

// The seed alone decides the gaps: whatever is sent, it is sent at the same times.
func TestTheSeedAloneDecidesTheGaps(t *testing.T) {
	due := func(change func(*Config)) (times []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			e := &engine{answer: steady}
			c := e.start(t)
			c.Concurrency, c.Rate, c.MaxRequests, c.Arrival = 0, 10, 20, Arrival{Gamma, 0.5}
			change(&c)
			r, err := Run(t.Context(), c)
			require.NoError(t, err)
			for _, rec := range r.Records {
				times = append(times, rec.Scheduled-r.Records[0].Scheduled)
			}
		})
		return times
	}
	want := due(func(*Config) {})
	assert.Len(t, want, 20)
	assert.Equal(t, want, due(func(c *Config) { c.Workload = Workload{UniformLength(10, 90), UniformLength(1, 9)} }))
	assert.Equal(t, want, due(func(c *Config) { c.Warmup = 31 }))
	assert.NotEqual(t, want, due(func(c *Config) { c.Seed++ }))
}

// What could not be sent when it was due is told, not left out.
func TestAnOpenLoopSaysWhatItCouldNotSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: func(w *answer, i int, r *request) {
			if i == 0 {
				steady(w, i, r) // the warm-up
				return
			}
			w.tokens(r, 1941*ms, 20*ms, r.MaxTokens) // just over 2 s each
		}}
		c := e.start(t)
		c.Concurrency, c.Rate, c.MaxRequests, c.Duration, c.Warmup = 0, 2, 0, 10*time.Second, -1
		c, err := c.withDefaults()
		require.NoError(t, err)
		l, err := newLevel(c, 2) // room for one request a second, of two
		require.NoError(t, err)
		r := l.result(l.run(t.Context()))
		s := Summarize(r)
		assert.Equal(t, 2, s.PeakConcurrency)
		require.Len(t, r.Records, 10)
		assert.Equal(t, []string{
			"streams: 9 requests had to wait, because 2 were in flight, the most at once that there can be",
			"schedule: the requests due in the last 5s of the duration were not sent",
			"small_sample: p50, p90, p95, p99 from 10 requests; at least 20, 100, 200, 1000 are needed",
			"send_delay: the client could not keep up: the requests that were due in 4.5 s took 8.5 s to be sent, and were up to 4004.0 ms late (p99), which is in their latencies",
		}, s.Warnings)
	})
}

func TestTheRateGrowsLinearlyDuringTheRamp(t *testing.T) {
	s := &rated{arrival: Arrival{Process: Constant}, rate: 10, ramp: 4}
	var due []time.Duration
	for range 41 {
		at, ok := s.next()
		require.True(t, ok)
		due = append(due, at)
	}
	assert.Equal(t, time.Duration(0), due[0])
	assert.Equal(t, 2*time.Second, due[5].Round(ms), "rate·t²/(2·ramp) requests in t")
	assert.Equal(t, 4*time.Second, due[20].Round(ms), "half of the full rate's in the ramp")
	assert.Equal(t, 5*time.Second, due[30].Round(ms))
	assert.Equal(t, 6*time.Second, due[40].Round(ms))
}

func TestAnOpenLoopSendsOnScheduleWhateverTheServerDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: func(w *answer, i int, r *request) { w.tokens(r, 500*ms, 20*ms, r.MaxTokens) }} // 560 ms each, at 10/s
		c := e.start(t)
		c.Concurrency, c.Rate, c.MaxRequests = 0, 10, 20
		r, err := Run(t.Context(), c)
		require.NoError(t, err)
		require.Len(t, r.Warmup, 10, "a second's requests")
		require.Len(t, r.Records, 20)
		begin := r.Records[0].Scheduled
		for i, rec := range r.Records {
			assert.Equal(t, Record{
				Index: int32(10 + i), Scheduled: begin + time.Duration(i)*100*ms, Sent: rec.Scheduled, Done: rec.Scheduled + 560*ms,
				TTFT: 500 * ms, FirstAnswer: 500 * ms, E2E: 560 * ms, PromptTarget: 16, PromptTokens: 16, OutputTarget: 4, OutputTokens: 4,
				TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 4, FinishReason: "length",
			}, rec)
		}
		for _, rec := range r.Warmup {
			assert.LessOrEqual(t, rec.Done, begin, "the warm-up is drained first")
		}
		s := Summarize(r)
		assert.Equal(t, new(0.0), s.SendDelay.P99)
		assert.Equal(t, 6, s.PeakConcurrency)
		assert.Equal(t, new(20/2.46), s.RequestsPerSecond)
	})
}

// A client that cannot send on time makes requests wait, and that is in their latency.
func TestLatencyOfAnOpenLoopCountsFromTheSchedule(t *testing.T) {
	r := &Result{Open: true, Rate: 10, Records: []Record{{
		Scheduled: 100 * ms, Sent: 350 * ms, Done: 500 * ms, TTFT: 300 * ms, E2E: 400 * ms, OutputTokens: 2, TokensSource: FromUsage, FirstChunkTokens: 1, FinishReason: "length",
	}}}
	s := Summarize(r)
	assert.Equal(t, new(250.0), s.SendDelay.P99)
	assert.Equal(t, new(0.4), s.Window, "from the schedule to the last token")
	assert.Contains(t, s.Warnings, "send_delay: the client could not keep up: requests were sent up to 250.0 ms late (p99), which is in their latencies")

	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: steady}
		c := e.start(t)
		slow := c.Client.Transport
		c.Client.Transport = delayed{slow, 30 * ms}
		c.Concurrency, c.Rate, c.MaxRequests = 0, 2, 4
		r, err := Run(t.Context(), c)
		require.NoError(t, err)
		for _, rec := range r.Records {
			assert.Equal(t, 30*ms, rec.Sent-rec.Scheduled)
			assert.Equal(t, 130*ms, rec.TTFT)
			assert.Equal(t, 130*ms, rec.FirstAnswer)
			assert.Equal(t, 190*ms, rec.E2E)
			tpot, _ := rec.TPOT()
			assert.Equal(t, 20*ms, tpot, "the delay is in no gap")
		}
	})
}

func TestADurationEndsAnOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: steady}
		c := e.start(t)
		c.Concurrency, c.Rate, c.MaxRequests, c.Duration = 0, 10, 0, time.Second
		c.Arrival = Arrival{Process: Poisson}
		r, err := Run(t.Context(), c)
		require.NoError(t, err)
		assert.NotEmpty(t, r.Records)
		for _, rec := range r.Records {
			assert.True(t, rec.OK())
			assert.Less(t, rec.Scheduled-r.Warmup[len(r.Warmup)-1].Done, 2*time.Second)
		}
	})
}

func TestATraceIsReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: steady}
		c := e.start(t)
		c.Concurrency, c.MaxRequests, c.Workload = 0, 0, Workload{}
		c.Trace = &Trace{Rows: []TraceRow{
			{At: 0, Input: 1024, Output: 2, Blocks: []uint64{7, 8}}, {At: 300 * ms, Input: 1100, Output: 3, Blocks: []uint64{7, 9}},
			{At: 300 * ms, Input: 5, Output: 1}, {At: 2 * time.Second, Input: 1100, Output: 3, Blocks: []uint64{7, 9}},
		}}
		r, err := Run(t.Context(), c)
		require.NoError(t, err)
		require.Len(t, r.Records, 4)
		begin := r.Records[0].Scheduled
		var prompts [][]int
		for i, row := range c.Trace.Rows {
			rec := r.Records[i]
			assert.Equal(t, begin+row.At, rec.Scheduled)
			assert.Equal(t, [2]int{row.Input, row.Output}, [2]int{int(rec.PromptTokens), int(rec.OutputTokens)})
		}
		for _, request := range e.seen()[len(r.Warmup):] {
			prompts = append(prompts, request.ids())
		}
		byLength := map[int][][]int{}
		for _, p := range prompts {
			byLength[len(p)] = append(byLength[len(p)], p)
		}
		first, second, third := byLength[1024][0], byLength[1100][0], byLength[1100][1]
		assert.Equal(t, first[:512], second[:512], "block 7")
		assert.NotEqual(t, first[512:520], second[512:520], "blocks 8 and 9")
		assert.Equal(t, second[:1024], third[:1024])
		assert.NotEqual(t, second[1024:], third[1024:], "what has no name is the request's own")
	})
}

func TestRawRecordsGiveTheSameSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: func(w *answer, i int, r *request) {
			if i%5 == 4 {
				w.fail(500, "sorry")
				return
			}
			w.tokens(r, 100*ms, time.Duration(i)*ms, r.MaxTokens)
		}}
		c := e.start(t)
		c.Bounds = []Bound{{"ttft", 0.5, 1000}}
		first, err := Run(t.Context(), c)
		require.NoError(t, err)
		c.Concurrency, c.Rate = 0, 5
		second, err := Run(t.Context(), c)
		require.NoError(t, err)
		var file bytes.Buffer
		require.NoError(t, WriteRecords(&file, first))
		require.NoError(t, WriteRecords(&file, second))
		read, err := ReadRecords(&file)
		require.NoError(t, err)
		require.Len(t, read, 2)
		for i, want := range []*Result{first, second} {
			assert.Equal(t, Summarize(want), Summarize(read[i]))
			assert.Equal(t, want.Records, read[i].Records)
			assert.Equal(t, want.Warmup, read[i].Warmup)
		}
	})
	_, err := ReadRecords(bytes.NewReader(nil))
	assert.ErrorContains(t, err, "read records: EOF")
}

func TestLoadsThatContradictThemselvesAreRefused(t *testing.T) {
	base := Config{BaseURL: "http://x", Model: "m", Workload: Workload{FixedLength(1), FixedLength(1)}, Concurrency: 1, MaxRequests: 1}
	trace := &Trace{Rows: []TraceRow{{Input: 1, Output: 1}}}
	talk := &Conversations{NumConversations: 1, TurnsPerConversation: FixedLength(1), InputTokensPerTurn: FixedLength(1), OutputTokensPerTurn: FixedLength(1)}
	for want, change := range map[string]func(*Config){
		"concurrency: does not go with a rate or a trace":                func(c *Config) { c.Rate = 1 },
		"rate: must be from 0 to 1e+06, is NaN":                          func(c *Config) { c.Rate = math.NaN() },
		"rate: does not go with a trace, which has its own times":        func(c *Config) { c.Rate, c.Trace, c.Concurrency = 1, trace, 0 },
		"trace: has no requests":                                         func(c *Config) { c.Trace, c.Concurrency = &Trace{}, 0 },
		"conversations: go with a concurrency":                           func(c *Config) { c.Rate, c.Concurrency, c.Conversations = 1, 0, talk },
		"dataset: has no prompts":                                        func(c *Config) { c.Dataset = &Dataset{} },
		"arrival: the burstiness must be from 0.01 to 1e+06, is 0":       func(c *Config) { c.Rate, c.Concurrency, c.Arrival.Process = 1, 0, Gamma },
		"ramp-up: must not be negative, is -1ns":                         func(c *Config) { c.RampUp = -1 },
		"warm-up ratio: must be in [0, 1), is 1":                         func(c *Config) { c.WarmupRatio = 1 },
		"numConversations: must be at least 1":                           func(c *Config) { c.Conversations = &Conversations{} },
		`bound of "itl": must be of ttft, firstAnswer, tpot, e2e or err`: func(c *Config) { c.Bounds = []Bound{{"itl", 0.99, 1}} },
		"bound of ttft: the percentile must be from 0.5 to below 1":      func(c *Config) { c.Bounds = []Bound{{"ttft", 1, 1}} },
	} {
		c := base
		change(&c)
		_, err := Run(t.Context(), c)
		assert.ErrorContains(t, err, want)
	}
}

// delayed is a client whose connections are slow to come by.
type delayed struct {
	http.RoundTripper
	by time.Duration
}

func (d delayed) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(d.by)
	return d.RoundTripper.RoundTrip(r)
}
