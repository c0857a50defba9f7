// SPDX-License-Identifier: Apache-2.0

// Package simulator is a simulated LLM inference engine.
//
// Inside is a pure step model in virtual time: how much memory a
// configuration leaves for the KV cache (Memory), how long one step of
// continuous batching takes (StepTime), and which requests take part in it
// (Engine). Simulate runs it over a list of requests. Around it is a server
// (New, Server.Serve) that speaks the OpenAI HTTP API and plays the model in
// real time, and a command line (Main) that takes vLLM's flags.
//
// The constants stand for Llama-3.1-8B in bfloat16 on one H100 (80 GB). They
// were fitted to published operator timings and to load tests of vLLM; the
// median error of the time per output token against an outside data set is
// about 5 %. Other models and GPUs are not simulated.
package simulator

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
)

const (
	layers         = 32
	hidden         = 4096
	attentionHeads = 32

	// GPUs is the number of devices of the simulated node.
	GPUs = 8

	// KVBytes16 and KVBytes8 are the KV cache bytes of one token with 16-bit
	// and 8-bit elements: 2 (K and V) · 32 layers · 8 heads · 128 · bytes.
	KVBytes16 = 131072
	KVBytes8  = KVBytes16 / 2

	// APIOverhead is the time in seconds that a request spends outside of
	// the engine: HTTP, tokenizer and detokenizer. It is part of TTFT.
	APIOverhead = 0.016
)

// Config holds the engine settings that the model knows. Start from
// DefaultConfig: most zero values are refused by Validate.
type Config struct {
	MaxNumSeqs           int     // sequences in one step
	MaxNumBatchedTokens  int     // tokens in one step
	ChunkedPrefill       bool    // a prompt may be spread over several steps
	GPUMemoryUtilization float64 // share of the device memory, (0, 1]
	TensorParallel       int     // devices that share each layer
	EnforceEager         bool    // no CUDA graphs
	GraphMax             int     // largest step, in tokens, that has a CUDA graph
	AsyncScheduling      bool    // the CPU prepares a step while the GPU runs the one before
	KVBytesPerToken      int     // KVBytes16 or KVBytes8, before sharing by TensorParallel
	MaxModelLen          int     // longest prompt plus answer; 0 = what fits
	PrefixHit            float64 // share of each prompt that is in the prefix cache, [0, 1]
	BlockSize            int     // tokens of one KV block
	BlocksOverride       int     // KV blocks; 0 = as many as the memory holds
}

// DefaultConfig returns vLLM's defaults for an H100, with two exceptions that
// keep the model inside the range it was checked in: 256 sequences and a
// context of 8192 tokens.
func DefaultConfig() Config {
	return Config{
		MaxNumSeqs:           256,
		MaxNumBatchedTokens:  8192,
		ChunkedPrefill:       true,
		GPUMemoryUtilization: 0.92,
		TensorParallel:       1,
		GraphMax:             512,
		AsyncScheduling:      true,
		KVBytesPerToken:      KVBytes16,
		MaxModelLen:          8192,
		BlockSize:            16,
	}
}

// Batch is the work of one step.
type Batch struct {
	Decodes       int     // sequences that get one more token
	DecodeContext int     // their tokens so far, summed
	PrefillTokens int     // prompt tokens to compute
	PrefillArea   float64 // Σ n·(prefix + n/2) over the chunks: pairs of tokens that attend to each other
	Sequences     int     // sequences in the step
	Outputs       int     // sequences that end the step with a new token
}

// StepTime returns how long the engine takes for b, in milliseconds.
//
// The matrix products are a smooth maximum of the time to read the weights and
// the time to compute; attention reads the KV cache (decode) or computes
// (prefill); the rest are the output head, small kernels, all-reduce with
// tensor parallelism, and kernel launches when no CUDA graph fits.
func StepTime(c Config, b Batch) float64 {
	tp := float64(c.TensorParallel)
	tokens := float64(b.Decodes + b.PrefillTokens)

	gpu := math.Pow(math.Pow(5.05/tp, 2.5)+math.Pow(0.0172*tokens/tp, 2.5), 0.4)
	if b.Decodes > 0 {
		gpu += 0.0125 * layers
	}
	gpu += float64(b.DecodeContext) * (float64(c.KVBytesPerToken) / 2.9e12 * 1e3) / tp
	if b.PrefillTokens > 0 {
		gpu += 0.010 * layers
	}
	gpu += b.PrefillArea * 4 * hidden * layers / 4.5e14 * 1e3 / tp
	gpu += 0.37/tp + 0.0016*float64(b.Outputs)/tp
	gpu += 0.022*layers + 0.13
	if c.TensorParallel > 1 {
		gpu += 2 * layers * (0.0055 + tokens*hidden*2/1.0e8)
	}
	if c.EnforceEager || b.Decodes+b.PrefillTokens > c.GraphMax {
		gpu += 0.12 * layers
	}

	cpu := 0.3 + 0.014*float64(b.Sequences)
	if c.AsyncScheduling {
		return math.Max(gpu, cpu) + 0.15
	}
	return gpu + cpu
}

// NoiseFactor returns the factor on every step time of one run: log-normal
// with median 1 and the given sigma. It depends on the seed and on the
// settings, so that two configurations of one experiment are disturbed
// differently while a repeated run is not. Sigma 0 gives exactly 1.
func NoiseFactor(c Config, sigma float64, seed int64) float64 {
	if sigma == 0 {
		return 1
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%+v", c)
	return math.Exp(sigma * rand.New(rand.NewPCG(uint64(seed), h.Sum64())).NormFloat64())
}
