// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tolerance is relative. The reference and this package add the same terms in
// nearly the same order, and may differ by the last bits of pow.
const tolerance = 1e-9

// table is one case of testdata/tables.json; see the README there.
type table struct {
	Name   string
	Config struct {
		MaxNumSeqs int `json:"max_num_seqs"`
		MNBT       int
		Chunked    bool
		GMU        float64
		TP         int
		PrefixHit  float64 `json:"prefix_hit"`
		GraphMax   int     `json:"graph_max"`
		Eager      bool
		Async      bool `json:"async_sched"`
		KVBytes    int  `json:"kv_bytes"`
	}
	Concurrency int
	Requests    [][3]float64 // arrival, prompt, output
	Error       string
	Summary     struct {
		Blocks, Steps, Preemptions                                   int
		Duration, MaxUsage                                           float64
		RequestsPerSecond, OutputTokensPerSecond, TTFTP99, TPOTP99Ms float64
	}
	Timings [][4]float64 // arrival, TTFT, done, pre-emptions
}

func (t table) config() Config {
	return Config{
		MaxNumSeqs:           t.Config.MaxNumSeqs,
		MaxNumBatchedTokens:  t.Config.MNBT,
		ChunkedPrefill:       t.Config.Chunked,
		GPUMemoryUtilization: t.Config.GMU,
		TensorParallel:       t.Config.TP,
		EnforceEager:         t.Config.Eager,
		GraphMax:             t.Config.GraphMax,
		AsyncScheduling:      t.Config.Async,
		KVBytesPerToken:      t.Config.KVBytes,
		PrefixHit:            t.Config.PrefixHit,
		BlockSize:            16,
	}
}

func (t table) requests() []Request {
	var out []Request
	for _, r := range t.Requests {
		out = append(out, Request{Arrival: r[0], Prompt: int(r[1]), Output: int(r[2])})
	}
	return out
}

func readTables(t *testing.T) []table {
	data, err := os.ReadFile("testdata/tables.json")
	require.NoError(t, err)
	var tables []table
	require.NoError(t, json.Unmarshal(data, &tables))
	return tables
}

func TestSimulateEqualsTheReference(t *testing.T) {
	tables := readTables(t)
	require.GreaterOrEqual(t, len(tables), 25)
	for _, tt := range tables {
		if tt.Error != "" {
			continue // see TestMemoryRefusesWhatTheReferenceRefuses
		}
		t.Run(tt.Name, func(t *testing.T) {
			got, err := Simulate(tt.config(), tt.requests(), tt.Concurrency)
			require.NoError(t, err)
			want := tt.Summary
			assert.Equal(t, want.Blocks, got.Blocks, "blocks")
			assert.Equal(t, want.Steps, got.Steps, "steps")
			assert.Equal(t, want.Preemptions, got.Preemptions, "pre-emptions")
			near(t, want.Duration, got.Duration, "duration")
			near(t, want.MaxUsage, got.MaxUsage, "largest usage")
			near(t, want.RequestsPerSecond, float64(len(got.Requests))/got.Duration, "requests/s")
			near(t, want.OutputTokensPerSecond, outputThroughput(got), "output tokens/s")
			near(t, want.TTFTP99, quantile(ttfts(got), 0.99), "TTFT p99")
			near(t, want.TPOTP99Ms, 1e3*quantile(tpots(got), 0.99), "TPOT p99")
			for i, w := range tt.Timings {
				near(t, w[0], got.Requests[i].Arrival, "arrival %d", i)
				near(t, w[1], got.Requests[i].TTFT(), "TTFT %d", i)
				near(t, w[2], got.Requests[i].Done, "done %d", i)
				assert.EqualValues(t, w[3], got.Requests[i].Preemptions, "pre-emptions of %d", i)
			}
		})
	}
}

func TestMemoryRefusesWhatTheReferenceRefuses(t *testing.T) {
	want := map[string]string{
		"startup: free memory < requested": "ValueError: Free memory on device cuda:0 (78.55/79.10 GiB) on startup is less than desired GPU memory utilization (0.995, 78.70 GiB). " +
			"Decrease GPU memory utilization or reduce GPU memory used by other processes.",
		"CUDA OOM (capture/sampler warm-up)": "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. " +
			"Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.",
		"no available memory for cache blocks": "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
	}
	seen := 0
	for _, tt := range readTables(t) {
		if tt.Error == "" {
			continue
		}
		_, err := Simulate(tt.config(), tt.requests(), tt.Concurrency)
		require.EqualError(t, err, want[tt.Error], tt.Name)
		seen++
	}
	require.Equal(t, 4, seen)
}

func TestMemoryRefusesAContextThatDoesNotFit(t *testing.T) {
	c := DefaultConfig()
	c.BlocksOverride = 256
	_, err := Memory(c)
	require.EqualError(t, err, "ValueError: To serve at least one request with the model's max seq len (8192), "+
		"(1.00 GiB KV cache is needed, which is larger than the available KV cache memory (0.50 GiB). "+
		"Based on the available memory, the estimated maximum model length is 4096. "+
		"Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.")
}

func TestSimulateRefusesWhatCanNeverFinish(t *testing.T) {
	c := DefaultConfig()
	c.MaxModelLen, c.BlocksOverride = 0, 10
	_, err := Simulate(c, []Request{{Prompt: 16, Output: 16}, {Prompt: 100, Output: 61}}, 1)
	require.EqualError(t, err, "request 1: request with 100 prompt and 61 output tokens does not fit in a KV cache of 160 tokens")

	c = DefaultConfig()
	c.ChunkedPrefill = false
	_, err = Simulate(c, []Request{{Prompt: 8193, Output: 1}}, 0)
	require.ErrorIs(t, err, ErrStuck)

	_, err = Simulate(c, []Request{{Prompt: 0, Output: 1}}, 0)
	require.EqualError(t, err, "request 0: request with 0 prompt and 1 output tokens: both must be at least 1")
}

func TestSimulateOfNothingIsNothing(t *testing.T) {
	got, err := Simulate(DefaultConfig(), nil, 8)
	require.NoError(t, err)
	assert.Equal(t, Result{Blocks: 28207, Requests: []Timing{}}, got)
}

func TestNoiseFactorDependsOnSeedAndSettings(t *testing.T) {
	c := DefaultConfig()
	assert.Equal(t, 1.0, NoiseFactor(c, 0, 7))
	assert.Equal(t, NoiseFactor(c, 0.02, 7), NoiseFactor(c, 0.02, 7))
	assert.NotEqual(t, NoiseFactor(c, 0.02, 7), NoiseFactor(c, 0.02, 8))
	other := c
	other.MaxNumSeqs++
	assert.NotEqual(t, NoiseFactor(c, 0.02, 7), NoiseFactor(other, 0.02, 7))

	var logs []float64
	for seed := range int64(2000) {
		logs = append(logs, math.Log(NoiseFactor(c, 0.02, seed)))
	}
	mean, sigma := moments(logs)
	assert.InDelta(t, 0, mean, 0.002)
	assert.InDelta(t, 0.02, sigma, 0.002)
}

func near(t *testing.T, want, got float64, what string, args ...any) {
	t.Helper()
	assert.LessOrEqual(t, math.Abs(want-got), tolerance*math.Max(math.Abs(want), 1e-3),
		append([]any{what + ": want %v, got %v"}, append(args, want, got)...)...)
}

func outputThroughput(r Result) float64 {
	tokens := 0
	for _, t := range r.Requests {
		tokens += t.Output
	}
	return float64(tokens) / r.Duration
}

func ttfts(r Result) (out []float64) {
	for _, t := range r.Requests {
		out = append(out, t.TTFT())
	}
	return out
}

func tpots(r Result) (out []float64) {
	for _, t := range r.Requests {
		if t.Output > 1 {
			out = append(out, (t.E2E()-t.TTFT())/float64(t.Output-1))
		}
	}
	return out
}

// quantile is the reference's: an element of the list, not interpolated.
func quantile(v []float64, p float64) float64 {
	slices.Sort(v)
	return v[min(len(v)-1, int(p*float64(len(v))))]
}

func moments(v []float64) (mean, sigma float64) {
	for _, x := range v {
		mean += x / float64(len(v))
	}
	for _, x := range v {
		sigma += (x - mean) * (x - mean) / float64(len(v))
	}
	return mean, math.Sqrt(sigma)
}
