// SPDX-License-Identifier: Apache-2.0

package simulator

import "fmt"

// Validate checks c the way vLLM checks its settings before it loads a model:
// ranges first, then combinations. The error is a *StartError and names the
// first problem, as vLLM does.
func (c Config) Validate() error {
	for _, r := range []struct {
		section, field string
		value          int
	}{
		{"SchedulerConfig", "max_num_batched_tokens", c.MaxNumBatchedTokens},
		{"SchedulerConfig", "max_num_seqs", c.MaxNumSeqs},
		{"ParallelConfig", "tensor_parallel_size", c.TensorParallel},
		{"CacheConfig", "block_size", c.BlockSize},
		{"ModelConfig", "kv_bytes_per_token", c.KVBytesPerToken},
	} {
		if r.value < 1 {
			return rangeError(r.section, r.field, "greater than or equal to 1", r.value)
		}
	}
	switch {
	case !(c.GPUMemoryUtilization > 0):
		return rangeError("CacheConfig", "gpu_memory_utilization", "greater than 0", c.GPUMemoryUtilization)
	case c.GPUMemoryUtilization > 1:
		return rangeError("CacheConfig", "gpu_memory_utilization", "less than or equal to 1", c.GPUMemoryUtilization)
	case c.GraphMax < 0:
		return rangeError("CompilationConfig", "max_cudagraph_capture_size", "greater than or equal to 0", c.GraphMax)
	case c.MaxModelLen < 0:
		return rangeError("ModelConfig", "max_model_len", "greater than or equal to 1", c.MaxModelLen)
	case c.BlocksOverride < 0:
		return rangeError("CacheConfig", "num_gpu_blocks_override", "greater than or equal to 1", c.BlocksOverride)
	case !(c.PrefixHit >= 0 && c.PrefixHit <= 1):
		return rangeError("CacheConfig", "prefix_hit", "between 0 and 1", c.PrefixHit)
	}
	return c.validateCombination()
}

func (c Config) validateCombination() error {
	switch {
	case attentionHeads%c.TensorParallel != 0:
		return valueError("ModelConfig", "Total number of attention heads (%d) must be divisible by tensor parallel size (%d).",
			attentionHeads, c.TensorParallel)
	case c.TensorParallel > GPUs:
		return worldSizeError(c.TensorParallel)
	case !c.ChunkedPrefill && c.MaxNumBatchedTokens < c.MaxModelLen:
		return valueError("SchedulerConfig", "max_num_batched_tokens (%d) is smaller than max_model_len (%d). "+
			"This effectively limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. "+
			"Please increase max_num_batched_tokens or decrease max_model_len.", c.MaxNumBatchedTokens, c.MaxModelLen)
	case c.MaxNumBatchedTokens < c.MaxNumSeqs:
		return valueError("SchedulerConfig", "max_num_batched_tokens (%d) must be greater than or equal to max_num_seqs (%d).",
			c.MaxNumBatchedTokens, c.MaxNumSeqs)
	}
	return nil
}

func worldSizeError(world int) error {
	return valueError("ParallelConfig", "World size (%d) is larger than the number of available GPUs (%d) in this node. "+
		"If this is intentional and you are using:\n"+
		"- ray, set '--distributed-executor-backend ray'.\n"+
		"- multiprocessing, set '--nnodes' appropriately.", world, GPUs)
}

// rangeError and valueError write pydantic's report of one bad field.
func rangeError(section, field, want string, have any) error {
	return &StartError{
		Exception: "pydantic_core._pydantic_core.ValidationError",
		Message:   fmt.Sprintf("1 validation error for %s\n%s\n  Input should be %s [input_value=%v]", section, field, want, have),
	}
}

func valueError(section, format string, args ...any) error {
	return &StartError{
		Exception: "pydantic_core._pydantic_core.ValidationError",
		Message:   fmt.Sprintf("1 validation error for %s\n  Value error, ", section) + fmt.Sprintf(format, args...) + " [type=value_error]",
	}
}
