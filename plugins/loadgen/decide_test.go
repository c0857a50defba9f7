// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// verdict tells whether a finished level keeps a bound.
func verdict(b Bound, records []Record) bool {
	s := Summarize(&Result{Records: records})
	var v *float64
	switch d := s.TTFT; {
	case b.Metric == "errorRate":
		v = s.ErrorRate
	case b.Percentile == 0:
		v = d.Mean
	case b.Percentile == 0.5:
		v = d.P50
	case b.Percentile == 0.9:
		v = d.P90
	default:
		v = d.P99
	}
	return v != nil && *v <= b.Max
}

// Whatever is decided early is what the whole level would have come to, and with every completion of it.
func TestWhatIsDecidedEarlyIsTheVerdictOfTheWholeLevel(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	stopped := 0
	for round := range 1500 {
		n := 1 + r.IntN(60)
		bound := []Bound{{"ttft", 0.5, 100}, {"ttft", 0.9, 100}, {"ttft", 0.99, 100}, {"ttft", 0, 100}, {"errorRate", 0, 0.1}}[r.IntN(5)]
		bad, fail := r.Float64(), 0.3*r.Float64()
		d := newDecider(n, []Bound{bound}, false)
		var records []Record
		for i := range n {
			rec := Record{Index: int32(i), TTFT: 50 * ms, E2E: 50 * ms}
			switch {
			case r.Float64() < fail:
				rec = Record{Index: int32(i), Category: "http_500"}
			case r.Float64() < bad:
				rec.TTFT = time.Duration(101+r.IntN(400)) * ms
			}
			records = append(records, rec)
			d.add(&rec)
			if d.decided(func(Bound) int { return 0 }) == "" {
				continue
			}
			stopped++
			for completion := range 12 {
				rest := append([]Record(nil), records...)
				for len(rest) < n {
					rec := Record{Index: int32(len(rest)), TTFT: ms, E2E: ms} // as good as can be
					if completion > 0 {
						switch r.IntN(3) {
						case 0:
							rec = Record{Index: int32(len(rest)), Category: "http_500"}
						case 1:
							rec.TTFT = time.Duration(1+r.IntN(300)) * ms
						}
					}
					rest = append(rest, rec)
				}
				require.False(t, verdict(bound, rest), "round %d: %v after %d of %d, completion %d", round, bound, len(records), n, completion)
			}
			break
		}
		if len(records) == n && d.decided(func(Bound) int { return 0 }) == "" && bound.Percentile > 0 && verdict(bound, records) == false {
			// Undecided to the end: only interpolation between a value within and one beyond can miss then.
			within, beyond := d.counts[0].within, d.counts[0].beyond
			if within+beyond > 0 {
				require.False(t, missed(bound.Percentile, within, beyond))
			}
		}
	}
	assert.Greater(t, stopped, 200, "the rules do stop levels")
}

// While the verdict is open there is a way to keep the bound, and once there is none the level does stop: the
// rule counts neither too many nor too few.
func TestALevelStopsAsSoonAsNothingCanSaveIt(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 150 {
		n, bad := 1+r.IntN(110), r.Float64()
		bound := Bound{"ttft", []float64{0.5, 0.9, 0.99}[r.IntN(3)], 100}
		d := newDecider(n, []Bound{bound}, false)
		var records []Record
		for range n {
			rec := Record{TTFT: ms, E2E: ms}
			switch {
			case r.Float64() < bad:
				rec = Record{TTFT: 100*ms + 1, E2E: 100*ms + 1} // the least that breaks it
			case r.Float64() < 0.2:
				rec = Record{Category: "http_500"}
			}
			records = append(records, rec)
			d.add(&rec)
			best := append([]Record(nil), records...)
			for len(best) < n {
				best = append(best, Record{TTFT: ms, E2E: ms})
			}
			if len(best) == d.failed {
				continue // nothing was measured: missing, not missed
			}
			decided := d.decided(func(Bound) int { return 0 }) != ""
			require.Equal(t, !verdict(bound, best), decided, "%v after %d of %d: %+v", bound, len(records), n, d.counts[0])
			if decided {
				break
			}
		}
	}
}

// A bound has a value exactly where the summary has one; otherwise a decision would be about another sample.
func TestBoundsAndSummaryHaveTheSameSample(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	records := make([]Record, 500)
	for i := range records {
		ttft := time.Duration(r.IntN(3)) * 50 * ms
		records[i] = Record{
			TTFT: ttft, FirstAnswer: ttft * time.Duration(r.IntN(2)), E2E: ttft + time.Duration(r.IntN(3))*5,
			OutputTokens: r.Int32N(20), FirstChunkTokens: 1, TokensSource: []TokensSource{FromUsage, FromChunks, ""}[r.IntN(3)],
		}
	}
	for _, chunks := range []bool{false, true} {
		s := Summarize(&Result{Records: records, AllowChunkCount: chunks})
		for metric, want := range map[string]Distribution{"ttft": s.TTFT, "firstAnswer": s.FirstAnswer, "tpot": s.TPOT, "e2e": s.E2E} {
			var values []float64
			for i := range records {
				if v, ok := (Bound{Metric: metric}).value(&records[i], chunks); ok {
					values = append(values, v)
				}
			}
			assert.Equal(t, want, describe(values), "%s, chunks %v", metric, chunks)
			assert.NotEmpty(t, values)
		}
	}
}

// With 1,000 requests and a bound on p99, the eleventh beyond it decides.
func TestTheNumberThatDecidesFollowsFromThePercentile(t *testing.T) {
	for name, c := range map[string]struct {
		planned int
		p       float64
		want    int
	}{
		"p99 of 1000": {1000, 0.99, 11}, // h = 989.01: 990 within would do
		"p99 of 100":  {100, 0.99, 2},   // h = 98.01: 99 within would do
		"p50 of 10":   {10, 0.5, 6},     // h = 4.5: 5 within would do
		"p90 of 11":   {11, 0.9, 2},     // h = 9: exactly the tenth value
		"p99 of 1":    {1, 0.99, 1},
	} {
		d := newDecider(c.planned, []Bound{{"ttft", c.p, 100}}, false)
		have := 0
		for d.decided(func(Bound) int { return 0 }) == "" {
			have++
			d.add(&Record{TTFT: time.Second})
		}
		assert.Equal(t, c.want, have, name)
	}
}

func TestALevelEndsWhenItsVerdictIsCertain(t *testing.T) {
	slow := func(w *answer, i int, r *request) {
		ttft := 100 * ms
		if i%10 == 9 {
			ttft = 900 * ms
		}
		w.tokens(r, ttft, 20*ms, r.MaxTokens)
	}
	for name, c := range map[string]struct {
		answer func(w *answer, i int, r *request)
		change func(*Config)
		err    string // "": it runs to its end
	}{
		"a percentile": {slow, func(c *Config) { c.Bounds = []Bound{{"ttft", 0.99, 500}} },
			"decided early: 3 of 200 requests broke ttft p99 ≤ 500 ms, so it cannot be kept"},
		"a mean": {slow, func(c *Config) { c.Bounds = []Bound{{"e2e", 0, 10}} }, "decided early: the sum over"},
		"errors": {func(w *answer, i int, r *request) {
			if i%20 == 19 {
				w.fail(500, "no")
				return
			}
			steady(w, i, r)
		}, func(c *Config) { c.Bounds = []Bound{{"errorRate", 0, 0.01}} }, "decided early: 3 of 200 requests failed, so errorRate ≤ 0.01 cannot be kept"},
		"a hanging server": {hangsFrom(20), func(c *Config) {
			c.Concurrency = 8
			c.Bounds = []Bound{{"ttft", 0.99, 500}, {"errorRate", 0, 0.01}}
		}, "decided early: 0 of 200 requests broke ttft p99 ≤ 500 ms and 8 more have been running for longer, so it cannot be kept"},
		"within the bounds": {slow, func(c *Config) { c.Bounds = []Bound{{"ttft", 0.5, 500}, {"errorRate", 0, 0}} }, ""},
		"not asked for":     {slow, func(c *Config) { c.Bounds, c.StopWhenDecided = []Bound{{"ttft", 0.99, 500}}, false }, ""},
		"number of requests unknown": {slow, func(c *Config) {
			c.Bounds, c.MaxRequests, c.Duration = []Bound{{"ttft", 0.99, 500}}, 0, 10*time.Second
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{answer: c.answer}
				config := e.start(t)
				config.MaxRequests, config.StopWhenDecided = 200, true
				c.change(&config)
				r, err := Run(t.Context(), config)
				s := Summarize(r)
				if c.err == "" {
					require.NoError(t, err)
					assert.False(t, s.Partial)
					return
				}
				require.ErrorIs(t, err, ErrDecided)
				assert.Contains(t, err.Error(), c.err)
				assert.Equal(t, err.Error(), r.Stopped)
				assert.True(t, s.Partial)
				assert.Less(t, s.Sent, 200)
				assert.Equal(t, s.Sent, s.OK+s.Failed, "what was cut does not count")
			})
		})
	}
}

// hangsFrom answers steadily until the n-th request, and from there on never.
func hangsFrom(n int) func(w *answer, i int, r *request) {
	return func(w *answer, i int, r *request) {
		if i >= n {
			<-w.gone
			panic(http.ErrAbortHandler)
		}
		steady(w, i, r)
	}
}

// Requests that hang decide nothing where they could still end without breaking the bound, or failing.
func TestAHangingServerDecidesNothingWhereThereIsAnotherWay(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"errors are allowed":        func(c *Config) { c.Bounds[1].Max = 0.9 },
		"reasoning without answer":  func(c *Config) { c.Bounds[0].Metric = "firstAnswer" },
		"an answer without a token": func(c *Config) { c.AllowEmptyOutput = true },
		"cut by the duration":       func(c *Config) { c.Duration = time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{answer: hangsFrom(20)}
				c := e.start(t)
				c.Concurrency, c.MaxRequests, c.StopWhenDecided, c.StallTimeout = 8, 100, true, time.Minute
				c.Bounds = []Bound{{"ttft", 0.99, 500}, {"errorRate", 0, 0.01}}
				change(&c)
				r, err := Run(t.Context(), c)
				require.ErrorIs(t, err, ErrStalled)
				assert.NotContains(t, r.Stopped, ErrDecided.Error())
			})
		})
	}
}

// A process that was held up has not read what arrived in the meantime, and decides nothing from that.
func TestAfterAPauseNothingIsTakenForLate(t *testing.T) {
	p := pulse{}
	var steady []bool
	for _, at := range []time.Duration{1000, 2000, 3100, 6000, 6500, 7000, 8000} {
		steady = append(steady, p.beat(at*ms))
	}
	assert.Equal(t, []bool{true, true, true, false, false, true, true}, steady)
}

// A server that hangs after it has served is ended by the limit, and what hung has failed.
func TestAServerThatStandsStillIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: hangsFrom(4)}
		c := e.start(t)
		c.StallTimeout = time.Minute
		r, err := Run(t.Context(), c)
		require.ErrorIs(t, err, ErrStalled)
		assert.Contains(t, err.Error(), "nothing arrived for 1m0s with 2 requests in flight")
		s := Summarize(r)
		assert.Equal(t, map[Category]int{Stalled: 2}, s.Categories)
		assert.Equal(t, new(0.5), s.ErrorRate)
		assert.True(t, s.Partial)
	})
}

// A13: a queue that grows for as long as the load lasts is hopeless; a burst that is worked off is not.
func TestAnOverSaturatedServerIsRecognised(t *testing.T) {
	// One request after the other, each in 200 ms: five a second.
	queue := func(t *testing.T, change func(*Config)) (*Result, error) {
		busy := make(chan struct{}, 1)
		e := &engine{answer: func(w *answer, i int, r *request) {
			select {
			case busy <- struct{}{}:
			case <-w.gone:
				panic(http.ErrAbortHandler)
			}
			defer func() { <-busy }()
			w.started = time.Now()
			w.tokens(r, 140*ms, 20*ms, r.MaxTokens)
		}}
		c := e.start(t)
		c.Concurrency, c.MaxRequests, c.Duration = 0, 0, 3*time.Minute
		c.StopWhenDecided, c.Bounds = true, []Bound{{"ttft", 0.9, 1000}}
		change(&c)
		return Run(t.Context(), c)
	}
	synctest.Test(t, func(t *testing.T) {
		r, err := queue(t, func(c *Config) { c.Rate = 8 })
		require.ErrorIs(t, err, ErrDecided)
		assert.Regexp(t, `decided early: over_saturated: the requests in flight grew from \d+ to \d+ over 30 s, and those that ended, lately and in all, break ttft p90 ≤ 1000 ms`, err.Error())
		assert.Less(t, r.Elapsed, 45*time.Second)
	})
	for name, change := range map[string]func(*Config){
		"as fast as it can": func(c *Config) { c.Rate = 4.8 },
		"a burst at the start": func(c *Config) {
			rows := make([]TraceRow, 400)
			for i := range rows {
				rows[i] = TraceRow{At: time.Duration(max(0, i-30)) * 250 * ms, Input: 8, Output: 4}
			}
			c.Trace, c.Bounds = &Trace{Rows: rows}, []Bound{{"ttft", 0.5, 1000}}
		},
		"no bound that it breaks": func(c *Config) { c.Rate, c.Bounds = 8, []Bound{{"ttft", 0.9, 1e9}} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, err := queue(t, change)
				assert.NoError(t, err)
			})
		})
	}
}

func TestSaturationIsJudgedOverTheWholeWindow(t *testing.T) {
	broken := make([]Record, 1000)
	for i := range broken {
		broken[i] = Record{TTFT: time.Second}
	}
	lately := slices.Clone(broken) // of 31 s
	for i := range lately[:280] {
		lately[i] = Record{TTFT: ms}
	}
	for name, c := range map[string]struct {
		inFlight func(second int) int
		records  []Record
		stops    bool
	}{
		"grows":                         {func(s int) int { return 10 + 5*s }, broken, true},
		"grows, but broken lately only": {func(s int) int { return 10 + 5*s }, lately, false},
		"grows, then rests":             {func(s int) int { return 10 + 5*min(s, 20) }, broken, false},
		"a burst":                       {func(s int) int { return max(10, 200-10*s) }, broken, false},
		"steady":                        {func(int) int { return 100 }, broken, false},
		"slowly":                        {func(s int) int { return 100 + s }, broken, false},
	} {
		s := saturation{bounds: []Bound{{"ttft", 0.9, 100}}}
		reason := ""
		for second := 0; second < 31 && reason == ""; second++ {
			reason = s.sample(c.inFlight(second), c.records[:second*10])
		}
		assert.Equal(t, c.stops, reason != "", "%s: %s", name, reason)
	}
}

func TestGoodputCountsRequestsThatKeepEveryBound(t *testing.T) {
	records := func(n int) (list []Record) {
		for i := range n {
			list = append(list, Record{Sent: time.Duration(i) * time.Second, Done: time.Duration(i+1) * time.Second,
				TTFT: time.Duration(100*(i+1)) * ms, E2E: time.Second, FirstChunkTokens: 1, OutputTokens: 11, TokensSource: FromUsage})
		}
		list[0] = Record{Category: "http_500", Done: ms}
		return list
	}
	s := Summarize(&Result{Records: records(10), Bounds: []Bound{{"ttft", 0.99, 500}, {"e2e", 0, 1}, {"errorRate", 0, 0}}})
	assert.Equal(t, new(0.4), s.Goodput, "numbers 1 to 4 of ten; means and errors do not enter")
	assert.Equal(t, new(0.4), s.GoodRequestsPerSecond)
	s = Summarize(&Result{Records: records(10), Bounds: []Bound{{"errorRate", 0, 0}}})
	assert.Nil(t, s.Goodput)
	s = Summarize(&Result{Records: records(1), Bounds: []Bound{{"ttft", 0.99, 500}}})
	assert.Equal(t, new(0.0), s.Goodput, "nothing succeeded, so nothing was good")
	assert.Nil(t, s.GoodRequestsPerSecond, "there is no window")
}

func ExampleBound() {
	fmt.Println(Bound{"ttft", 0.99, 500})
	fmt.Println(Bound{"tpot", 0, 25})
	fmt.Println(Bound{"errorRate", 0, 0.01})
	// Output:
	// ttft p99 ≤ 500 ms
	// tpot mean ≤ 25 ms
	// errorRate ≤ 0.01
}
