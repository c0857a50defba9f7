// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"
	"math"
)

// Memory of one device in GiB: what CUDA reports, what its context takes, and
// the weights of the model.
const (
	deviceGiB  = 79.1
	contextGiB = 0.55
	weightsGiB = 14.99
)

// StartError is a reason not to start, in vLLM's words.
type StartError struct {
	Exception string // Python class
	Message   string
	InEngine  bool // found while the engine loads, not while it reads its settings
}

func (e *StartError) Error() string { return e.Exception + ": " + e.Message }

// Memory returns the number of KV cache blocks that c leaves room for, over
// all devices. The error is a *StartError with InEngine set.
func Memory(c Config) (blocks int, err error) {
	budget := c.GPUMemoryUtilization * deviceGiB
	kv := kvGiB(c)
	switch {
	case budget > deviceGiB-contextGiB:
		return 0, engineError("ValueError", "Free memory on device cuda:0 (%.2f/%.2f GiB) on startup is less than desired GPU memory utilization (%v, %.2f GiB). "+
			"Decrease GPU memory utilization or reduce GPU memory used by other processes.",
			deviceGiB-contextGiB, deviceGiB, c.GPUMemoryUtilization, budget)
	case deviceGiB*(1-c.GPUMemoryUtilization) < warmUpGiB(c):
		return 0, engineError("RuntimeError", "CUDA out of memory occurred when warming up sampler with %d dummy requests. "+
			"Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.", c.MaxNumSeqs)
	case kv <= 0:
		return 0, engineError("ValueError", "No available memory for the cache blocks. "+
			"Try increasing `gpu_memory_utilization` when initializing the engine.")
	}

	blocks = kvTokens(c, kv) / c.BlockSize
	if c.BlocksOverride > 0 {
		blocks = c.BlocksOverride
	}
	if blocks*c.BlockSize < c.MaxModelLen {
		return 0, engineError("ValueError", "To serve at least one request with the model's max seq len (%d), "+
			"(%.2f GiB KV cache is needed, which is larger than the available KV cache memory (%.2f GiB). "+
			"Based on the available memory, the estimated maximum model length is %d. "+
			"Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
			c.MaxModelLen, perDeviceGiB(c, c.MaxModelLen), perDeviceGiB(c, blocks*c.BlockSize), blocks*c.BlockSize)
	}
	return blocks, nil
}

// kvGiB is what remains of one device's budget for the KV cache.
func kvGiB(c Config) float64 {
	activations := 0.30 + float64(c.MaxNumBatchedTokens)*0.10/1024 + float64(c.MaxNumSeqs)*1.5/1024
	graphs := 0.0
	if !c.EnforceEager {
		graphs = 0.30 + 0.0012*float64(c.GraphMax)
	}
	other := 0.30
	if c.TensorParallel > 1 {
		other += 0.3
	}
	return c.GPUMemoryUtilization*deviceGiB - weightsGiB/float64(c.TensorParallel) - activations - graphs - other
}

// warmUpGiB is the memory outside of the budget that graph capture and the
// sampler's first run need.
func warmUpGiB(c Config) float64 {
	need := 1.0 + 0.6*float64(c.MaxNumSeqs)/1024 + 0.05*float64(c.MaxNumBatchedTokens)/1024
	if c.TensorParallel > 1 {
		need += 0.4
	}
	return need
}

func kvTokens(c Config, kvGiB float64) int {
	return int(kvGiB * math.Exp2(30) * float64(c.TensorParallel) / float64(c.KVBytesPerToken))
}

func perDeviceGiB(c Config, tokens int) float64 {
	return float64(tokens) * float64(c.KVBytesPerToken) / float64(c.TensorParallel) / math.Exp2(30)
}

func engineError(exception, format string, args ...any) error {
	return &StartError{Exception: exception, Message: fmt.Sprintf(format, args...), InEngine: true}
}
