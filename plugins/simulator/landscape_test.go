// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The expected figures of this file were measured with the reference and
// other random lengths. They hold within 10 %; what a tuner has to find, the
// order of the settings, holds exactly.
const landscapeTolerance = 0.10

// logNormal returns n requests with log-normal lengths (mean, cv 0.5) and, if
// rate is not 0, Poisson arrivals.
func logNormal(n int, prompt, output, rate float64) []Request {
	rnd := rand.New(rand.NewPCG(1, 2))
	length := func(mean float64, least int) int {
		return max(least, int(math.Exp(math.Log(mean)-0.125+0.5*rnd.NormFloat64())))
	}
	out := make([]Request, n)
	now := 0.0
	for i := range out {
		if rate > 0 {
			now += rnd.ExpFloat64() / rate
		}
		out[i] = Request{Arrival: now, Prompt: length(prompt, 16), Output: length(output, 2)}
	}
	return out
}

// throughputs returns output tokens per second for each change of the
// reference's default configuration with asynchronous scheduling.
func throughputs(t *testing.T, requests []Request, clients int, changes ...func(*Config)) []float64 {
	var out []float64
	for _, change := range changes {
		c := DefaultConfig()
		c.MaxModelLen = 0
		change(&c)
		r, err := Simulate(c, requests, clients)
		require.NoError(t, err)
		out = append(out, outputThroughput(r))
	}
	return out
}

func seqs(n int) func(*Config)      { return func(c *Config) { c.MaxNumSeqs = n } }
func budget(n int) func(*Config)    { return func(c *Config) { c.MaxNumBatchedTokens = n } }
func devices(n int) func(*Config)   { return func(c *Config) { c.TensorParallel = n } }
func share(g float64) func(*Config) { return func(c *Config) { c.GPUMemoryUtilization = g } }

func assertLandscape(t *testing.T, want, got []float64) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		assert.InEpsilon(t, want[i], got[i], landscapeTolerance, "point %d of %v", i, got)
	}
}

func TestThroughputRisesWithSequencesUntilTheyArePreempted(t *testing.T) {
	got := throughputs(t, logNormal(1200, 1024, 256, 0), 512, seqs(32), seqs(128), seqs(256), seqs(384), seqs(512))
	assertLandscape(t, []float64{2895, 5029, 5587, 5760, 5665}, got)
	for i := range 3 {
		assert.Less(t, got[i], got[i+1])
	}
	assert.Less(t, got[4], got[3])
}

func TestThroughputOverTheTokenBudget(t *testing.T) {
	got := throughputs(t, logNormal(1200, 1024, 256, 0), 512, budget(256), budget(512), budget(1024), budget(8192))
	assertLandscape(t, []float64{4350, 5354, 5240, 5587}, got)
	assert.Less(t, got[0], got[1])
	assert.Less(t, got[2], got[1], "a chunk of 1024 has no CUDA graph")
}

func TestThroughputWithAFullKVCacheHasAnInteriorOptimum(t *testing.T) {
	got := throughputs(t, logNormal(300, 6000, 1500, 0), 160, seqs(16), seqs(32), seqs(64), seqs(160))
	assertLandscape(t, []float64{1207, 1614, 1900, 1862}, got)
	assert.Less(t, got[0], got[1])
	assert.Less(t, got[1], got[2])
	assert.Less(t, got[3], got[2])
}

func TestThroughputRisesWithMemoryUntilCUDAIsOutOfIt(t *testing.T) {
	requests := logNormal(300, 6000, 1500, 0)
	got := throughputs(t, requests, 160, share(.5), share(.7), share(.92), share(.98))
	assertLandscape(t, []float64{1459, 1726, 1869, 1889}, got)
	for i := range 3 {
		assert.Less(t, got[i], got[i+1])
	}
	c := DefaultConfig()
	c.GPUMemoryUtilization = .99
	_, err := Simulate(c, requests, 160)
	require.ErrorContains(t, err, "CUDA out of memory")
}

func TestTensorParallelGainsLessThanItsDevices(t *testing.T) {
	got := throughputs(t, logNormal(1200, 1024, 256, 0), 512, devices(1), devices(2), devices(4))
	assertLandscape(t, []float64{5587, 7892, 11583}, got)
	assert.Less(t, got[1]/2, got[0])
	assert.Less(t, got[2]/4, got[1]/2)
}

func TestGraphsAndKVElementsMatterAtSmallBatches(t *testing.T) {
	got := throughputs(t, logNormal(400, 512, 256, 0), 64,
		func(*Config) {},
		func(c *Config) { c.EnforceEager = true },
		func(c *Config) { c.GraphMax = 16 },
		func(c *Config) { c.GraphMax = 64 },
		func(c *Config) { c.KVBytesPerToken = KVBytes8 })
	assertLandscape(t, []float64{4724, 3463, 3730, 4618, 5079}, got)
}

func TestUnderAnSLATheBestTokenBudgetIsInside(t *testing.T) {
	capacity := func(mnbt int) float64 {
		low, high := 0.5, 40.0
		for high-low > 0.5 {
			rate := (low + high) / 2
			c := DefaultConfig()
			c.MaxNumSeqs, c.MaxNumBatchedTokens = 128, mnbt
			r, err := Simulate(c, logNormal(500, 1024, 256, rate), 0)
			require.NoError(t, err)
			if quantile(ttfts(r), .99) <= 1 && quantile(tpots(r), .99) <= 0.030 {
				low = rate
			} else {
				high = rate
			}
		}
		return low
	}
	small, best, large := capacity(256), capacity(512), capacity(8192)
	assert.Less(t, small, 0.9*best)
	assert.Less(t, large, best)
	assert.InEpsilon(t, 25.5, best, landscapeTolerance)
	assert.InEpsilon(t, 24.0, large, landscapeTolerance)
}
