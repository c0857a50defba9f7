// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// covered is the share of many measurements whose interval holds the true value.
func covered(t *testing.T, truth float64, measure func(r *rand.Rand) (value, margin float64)) float64 {
	t.Helper()
	const runs = 300
	n := 0
	r := rand.New(rand.NewPCG(7, 8))
	for range runs {
		value, margin := measure(r)
		require.Positive(t, margin)
		if math.Abs(value-truth) <= margin {
			n++
		}
	}
	return float64(n) / runs
}

// The intervals hold the true value as often as they should, or more often: also where requests that follow
// each other are alike, as under a queue.
func TestMarginsHoldTheTrueValue(t *testing.T) {
	const n = 500
	exponential := func(r *rand.Rand) []float64 {
		values := make([]float64, n)
		for i := range values {
			values[i] = 100 * r.ExpFloat64()
		}
		return values
	}
	alike := func(r *rand.Rand) []float64 { // autoregressive, around 100
		values, last := make([]float64, n), 0.0
		for i := range values {
			last = 0.8*last + 10*r.NormFloat64()
			values[i] = 100 + last
		}
		return values
	}
	quantile := func(p float64) float64 { return -100 * math.Log(1-p) }
	deviation := 10 / math.Sqrt(1-0.8*0.8)
	for name, c := range map[string]struct {
		values func(r *rand.Rand) []float64
		truth  float64
		pick   func(Distribution) *float64
	}{
		"mean":            {exponential, 100, func(d Distribution) *float64 { return d.Mean }},
		"p50":             {exponential, quantile(0.5), func(d Distribution) *float64 { return d.P50 }},
		"p90":             {exponential, quantile(0.9), func(d Distribution) *float64 { return d.P90 }},
		"p95":             {exponential, quantile(0.95), func(d Distribution) *float64 { return d.P95 }},
		"mean, dependent": {alike, 100, func(d Distribution) *float64 { return d.Mean }},
		"p50, dependent":  {alike, 100, func(d Distribution) *float64 { return d.P50 }},
		"p90, dependent":  {alike, 100 + 1.2816*deviation, func(d Distribution) *float64 { return d.P90 }},
	} {
		share := covered(t, c.truth, func(r *rand.Rand) (float64, float64) {
			values := c.values(r)
			d, m := estimate(values)
			return *c.pick(d), *c.pick(m)
		})
		assert.GreaterOrEqual(t, share, 0.91, name)
	}
	// Where the sample is too small to bound a percentile upwards.
	for _, few := range []int{20, 50, 100, 200, n} {
		for p, pick := range map[float64]func(Distribution) *float64{
			0.9: func(d Distribution) *float64 { return d.P90 }, 0.95: func(d Distribution) *float64 { return d.P95 }, 0.99: func(d Distribution) *float64 { return d.P99 },
		} {
			assert.GreaterOrEqual(t, covered(t, quantile(p), func(r *rand.Rand) (float64, float64) {
				values := exponential(r)[:few]
				d, m := estimate(values)
				return *pick(d), *pick(m)
			}), 0.8, "p%g of %d", 100*p, few)
		}
	}
}

func TestMarginsShrinkWithTheRootOfTheSample(t *testing.T) {
	width := func(n int) (mean, p90 float64) {
		r := rand.New(rand.NewPCG(9, 9))
		for range 200 {
			values := make([]float64, n)
			for i := range values {
				values[i] = 100 + 10*r.NormFloat64()
			}
			_, m := estimate(values)
			mean, p90 = mean+*m.Mean/200, p90+*m.P90/200
		}
		return mean, p90
	}
	mean, p90 := width(400)
	assert.InDelta(t, 2.262*10/math.Sqrt(400), mean, 0.1)
	fewMean, fewP90 := width(100)
	assert.InDelta(t, 2, fewMean/mean, 0.2)
	assert.InDelta(t, 2, fewP90/p90, 0.5)
	_, none := estimate(make([]float64, 19))
	assert.Equal(t, Distribution{}, none, "too few to tell")
}

// loop plays a closed loop of workers whose requests take a random time.
func loop(r *rand.Rand, workers, n int, draw func(*rand.Rand) time.Duration) *Result {
	free := make([]time.Duration, workers)
	result := &Result{Concurrency: workers}
	for i := range n {
		first := 0
		for w := range free {
			if free[w] < free[first] {
				first = w
			}
		}
		at, took := free[first], draw(r)
		free[first] += took
		result.Records = append(result.Records, Record{
			Index: int32(i), Scheduled: at, Sent: at, Done: at + took, TTFT: took / 10, E2E: took,
			PromptTokens: 10, OutputTokens: 20, FirstChunkTokens: 1, TokensSource: FromUsage, Chunks: 20, FinishReason: "length",
		})
	}
	return result
}

func TestTheMarginOfAThroughputHoldsTheTrueOne(t *testing.T) {
	const workers, n = 8, 400
	draw := func(r *rand.Rand) time.Duration { return time.Duration((0.5 + r.Float64()) * float64(time.Second)) }
	share := covered(t, workers*20, func(r *rand.Rand) (float64, float64) {
		s := Summarize(loop(r, workers, n, draw))
		assert.InDelta(t, s.Margins.Output, s.Margins.Requests, 1e-9)
		assert.Less(t, s.Margins.Output, 0.1)
		return *s.OutputTokensPerSecond, *s.OutputTokensPerSecond * s.Margins.Output
	})
	// The last requests run out one by one, which costs the window a little.
	assert.GreaterOrEqual(t, share, 0.85)
}

// At a rate, how many requests came is chance, and so is the throughput.
func TestTheMarginOfARateIsThatOfItsArrivals(t *testing.T) {
	open := func(r *rand.Rand, random bool) *Result {
		result := &Result{Open: true, Rate: 10}
		at := time.Duration(0)
		for i := range 400 {
			gap := 1.0
			if random {
				gap = r.ExpFloat64()
			}
			at += time.Duration(gap * float64(100*ms))
			result.Records = append(result.Records, Record{
				Index: int32(i), Scheduled: at, Sent: at, Done: at + 50*ms, TTFT: 10 * ms, E2E: 50 * ms,
				PromptTokens: 10, OutputTokens: 20, FirstChunkTokens: 1, TokensSource: FromUsage, Chunks: 20, FinishReason: "length",
			})
		}
		return result
	}
	assert.GreaterOrEqual(t, covered(t, 10, func(r *rand.Rand) (float64, float64) {
		s := Summarize(open(r, true))
		return *s.RequestsPerSecond, *s.RequestsPerSecond * s.Margins.Requests
	}), 0.9)
	assert.Less(t, Summarize(open(rand.New(rand.NewPCG(1, 1)), false)).Margins.Requests, 0.01)
	ramp := open(rand.New(rand.NewPCG(1, 1)), false)
	for i := range ramp.Records[:40] {
		ramp.Records[i].Scheduled -= time.Duration(40-i) * 100 * ms // slower at first
	}
	ramp.RampUp = ramp.Records[40].Scheduled - ramp.Records[0].Scheduled
	assert.Less(t, Summarize(ramp).Margins.Requests, 0.01, "the ramp is no chance")
	trace := open(rand.New(rand.NewPCG(1, 1)), true)
	trace.Rate = 0
	assert.Zero(t, Summarize(trace).Margins.Requests, "a trace's is its own")
}

func TestTheMarginOfAShareIsBinomial(t *testing.T) {
	r := &Result{Records: records(400), Bounds: []Bound{{"ttft", 0.99, 50}}}
	for i := range r.Records {
		if i%10 == 0 {
			r.Records[i].TTFT = 60 * ms
		}
		if i%20 == 1 {
			r.Records[i].fail("http_500", "no")
		}
	}
	s := Summarize(r)
	assert.InDelta(t, 1.96*math.Sqrt(0.05*0.95/400), s.Margins.ErrorRate, 1e-9)
	assert.InDelta(t, 1.96*math.Sqrt(0.85*0.15/400), s.Margins.Goodput, 1e-9)
	assert.Zero(t, s.Margins.GoodRequests, "of all requests there is none, because none took longer than another")
	r.Records[0].E2E += ms
	s = Summarize(r)
	assert.InDelta(t, math.Hypot(s.Margins.Requests, s.Margins.Goodput/0.85), s.Margins.GoodRequests, 1e-9)
	assert.Greater(t, s.Margins.GoodRequests, s.Margins.Goodput/0.85)
}
