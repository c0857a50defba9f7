// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

func TestFailureSignatures(t *testing.T) {
	rows := []struct {
		engine, line, class, message string
		harmless                     bool
	}{
		{"vllm", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", "gpu_oom",
			"gpu_oom: no GPU memory is left for the KV cache: \"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\"", false},
		{"vllm", "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed, which is larger than the available KV cache memory (4.91 GiB). Based on the available memory, the estimated maximum model length is 40192.", "config_error",
			`config_error: the context does not fit into the KV cache; lower maxModelLen: "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed, which is larger than the available KV cache memory (4.91 GiB). Based on the available memory, the estimated maximum model length is 40192."`, false},
		{"vllm", "ValueError: Free memory on device cuda:0 (40.1/79.1 GiB) on startup is less than desired GPU memory utilization (0.95, 75.1 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.", "gpu_oom", "", false},
		{"vllm", "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.", "gpu_oom", "", false},
		{"vllm", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB", "gpu_oom",
			`gpu_oom: out of GPU memory: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB"`, false},
		{"vllm", "torch.cuda.OutOfMemoryError: CUDA out of memory.", "gpu_oom", "", false},
		{"vllm", "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': 1}", "server_died", "", false},
		{"vllm", "(EngineCore_DP0 pid=271) ERROR 08-17 10:00:00 [core.py:1346] EngineCore failed to start.", "server_died", "", false},
		{"vllm", "ValueError: World size (4) is larger than the number of available GPUs (2) in this node. If this is intentional …", "config_error", "", false},
		{"vllm", "Total number of attention heads (32) must be divisible by tensor parallel size (3).", "config_error", "", false},
		{"vllm", "max_num_batched_tokens (512) must be greater than or equal to max_num_seqs (1024).", "config_error", "", false},
		{"vllm", "max_num_batched_tokens (512) is smaller than max_model_len (8192). This effectively limits …", "config_error", "", false},
		{"vllm", "vllm serve: error: unrecognized arguments: --disable-log-requests", "config_error",
			`config_error: the engine does not accept its command line: "vllm serve: error: unrecognized arguments: --disable-log-requests"`, false},
		{"vllm", "api_server.py: error: argument --dtype: invalid choice: 'x' (choose from 'auto')", "config_error", "", false},
		{"vllm", "vllm serve: error: argument --max-num-seqs: expected one argument", "config_error", "", false},
		{"vllm", "OSError: [Errno 98] Address already in use", "port_in_use", "", false},
		{"vllm", "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error", "infra_error", "", false},
		{"vllm", "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (856)", "config_error",
			`config_error: the model has 856 Mamba state blocks, each running request needs one; lower maxNumSeqs: "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (856)"`, false},
		{"vllm", "(EngineCore pid=1) ERROR 08-17 10:00:00 [core.py:1] pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig", "config_error", "", false},
		{"vllm", "(APIServer pid=1) AssertionError: something else", "config_error", `config_error: "(APIServer pid=1) AssertionError: something else"`, false},
		{"simulator", "llmctl simulate: error: unrecognized arguments: --x", "config_error", "", false},
		{"sglang", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: self.server_args.mem_fraction_static=0.5", "gpu_oom", "", false},
		{"sglang", "Exception: Capture cuda graph failed: CUDA out of memory.", "gpu_oom",
			`gpu_oom: CUDA graphs could not be captured; lower gpuMemoryUtilization or cudaGraphMaxBs: "Exception: Capture cuda graph failed: CUDA out of memory."`, false},
		{"sglang", "[2026-08-21 10:00:00 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.9998 -> 1.0000", "kv_pressure", "", true},
		{"sglang", "Prefill out of memory. Try to lower your batch size.", "gpu_oom", "", false},
		{"sglang", "Decode out of memory. Try to lower your batch size.", "gpu_oom", "", false},
		{"sglang", "[2026-08-21 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):", "server_died", "", false},
		{"sglang", "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9).", "server_died", "", false},
		{"sglang", "Initialization failed. warmup error: Traceback", "server_died", "", false},
		{"sglang", "SIGQUIT received. signum=3. It usually means one child failed.", "server_died", "", false},
		{"sglang", "ValueError: nccl_port at 31000 is not available in 30 seconds. Another process", "port_in_use", "", false},
		{"sglang", "The request queue is full.", "queue_full", "", true},
		{"sglang", "sglang serve: error: unrecognized arguments: --tp_size 2", "config_error", "", false},
		{"sglang", "launch_server.py: error: ambiguous option: --pp could match --pp-size, --pp-max-micro-batch-size", "config_error", "", false},
	}
	for _, row := range rows {
		t.Run(row.engine+" "+row.line[:min(40, len(row.line))], func(t *testing.T) {
			cause, fatal := load(t, row.engine).Classify(strings.NewReader("INFO start\n" + row.line + "\nINFO end\n"))
			assert.Equal(t, row.class, cause.Class)
			assert.Equal(t, !row.harmless, fatal)
			if row.message != "" {
				assert.Equal(t, row.message, cause.Message)
			}
		})
	}
}

func TestTheMostTellingLineIsTheCause(t *testing.T) {
	rows := []struct {
		name, engine string
		lines        []string
		class, quote string
		fatal        bool
	}{
		{name: "cause before the wrapper", engine: "vllm", class: "gpu_oom", quote: "No available memory", fatal: true, lines: []string{
			"(EngineCore pid=9) ERROR 08-17 10:00:00 [core.py:1] EngineCore failed to start.",
			"(EngineCore pid=9) ERROR 08-17 10:00:00 [core.py:1] Traceback (most recent call last):",
			"(EngineCore pid=9) ERROR 08-17 10:00:00 [core.py:1] ValueError: No available memory for the cache blocks.",
			"RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
		}},
		{name: "unknown cause before the wrapper", engine: "vllm", class: "config_error", quote: "ValueError: nobody knows", fatal: true, lines: []string{
			"WARNING 08-17 10:00:00 [x.py:1] ImportError: optional module",
			"(EngineCore pid=9) ERROR 08-17 10:00:00 [core.py:1] ValueError: nobody knows",
			"RuntimeError: Engine core initialization failed. See root cause above.",
		}},
		{name: "the hint of the same class", engine: "vllm", class: "gpu_oom", quote: "warming up sampler", fatal: true, lines: []string{
			"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB.",
			"The above exception was the direct cause of the following exception:",
			"RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.",
		}},
		{name: "the first cause of several classes", engine: "vllm", class: "infra_error", quote: "NCCL", fatal: true, lines: []string{
			"torch.distributed.DistBackendError: NCCL error in: x", "torch.OutOfMemoryError: CUDA out of memory.",
		}},
		{name: "pressure before the crash", engine: "sglang", class: "gpu_oom", quote: "Decode out of memory", fatal: true, lines: []string{
			"KV cache pool is full. Retract requests. #retracted_reqs: 1", "Scheduler hit an exception: Traceback", "RuntimeError: Decode out of memory. Try to lower your batch size.", "SIGQUIT received. It usually means one child failed.",
		}},
		{name: "only pressure", engine: "sglang", class: "kv_pressure", quote: "KV cache pool", lines: []string{"fine", "KV cache pool is full. Retract requests."}},
		{name: "nothing", engine: "sglang", lines: []string{"The server is fired up and ready to roll!"}},
		{name: "no line at all", engine: "vllm"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			cause, fatal := load(t, row.engine).Classify(strings.NewReader(strings.Join(row.lines, "\r\n")))
			assert.Equal(t, row.class, cause.Class)
			assert.Contains(t, cause.Message, row.quote)
			assert.Equal(t, row.fatal, fatal)
		})
	}
}

func TestF22TheEngineNamesItsLimit(t *testing.T) {
	e := load(t, "vllm")
	cause, _ := e.Classify(strings.NewReader("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (856).\n"))
	assert.Equal(t, &experiment.Limit{Param: "maxNumSeqs", Value: 856}, cause.Limit)
	cause, _ = e.Classify(strings.NewReader("torch.OutOfMemoryError: CUDA out of memory.\n"))
	assert.Nil(t, cause.Limit)
}

func TestLinesAreQuotedShortAndClean(t *testing.T) {
	e := load(t, "vllm")
	long := strings.Repeat("x", 100_000)
	cause, _ := e.Classify(strings.NewReader("\x1b[31mOSError: [Errno 98] Address already in use\x1b[0m\n"))
	assert.Equal(t, `port_in_use: the port is taken: "OSError: [Errno 98] Address already in use"`, cause.Message)
	cause, _ = e.Classify(strings.NewReader("vllm serve: error: unrecognized arguments: --api-key sk-123 --x\n"))
	assert.Equal(t, `config_error: the engine does not accept its command line: "vllm serve: error: unrecognized arguments: --api-key … --x"`, cause.Message)
	cause, _ = e.Classify(strings.NewReader("torch.OutOfMemoryError: \xff CUDA out of memory. " + long + "\nOSError: [Errno 98] Address already in use\n"))
	assert.Equal(t, "gpu_oom", cause.Class, "what follows a very long line is not read as a part of it")
	assert.Less(t, len(cause.Message), 400)
	cause, _ = e.Classify(strings.NewReader(strings.Repeat("prefix ", 100) + "CUDA out of memory. " + long + "\n"))
	assert.Contains(t, cause.Message, `"…CUDA out of memory. xxx`)
}

func TestLongLogsAreReadFromTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	filler := strings.Repeat(strings.Repeat("x", 99)+"\n", maxLog/100+100)
	require.NoError(t, os.WriteFile(path, []byte("OSError: [Errno 98] Address already in use\n"+filler+"torch.OutOfMemoryError: CUDA out of memory.\n"), 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	cause, _ := load(t, "vllm").Classify(f)
	assert.Equal(t, "gpu_oom", cause.Class)
}

func TestExitHints(t *testing.T) {
	rows := []struct {
		code   int
		signal syscall.Signal
		want   experiment.Cause
	}{
		{137, 0, experiment.Cause{Class: "oom", Message: "oom: killed (SIGKILL), most often because the memory limit was reached"}},
		{-1, syscall.SIGKILL, experiment.Cause{Class: "oom", Message: "oom: killed (SIGKILL), most often because the memory limit was reached"}},
		{2, 0, experiment.Cause{Class: "config_error", Message: "config_error: exit code 2, the command line was not accepted"}},
		{127, 0, experiment.Cause{Class: "config_error", Message: "config_error: exit code 127, the command could not be started"}},
		{139, 0, experiment.Cause{Class: "server_died", Message: "server_died: killed by signal 11 (segmentation fault)"}},
		{1, 0, experiment.Cause{Class: "server_died", Message: "server_died: exit code 1"}},
		{0, 0, experiment.Cause{Class: "server_died", Message: "server_died: exit code 0"}},
		{255, 0, experiment.Cause{Class: "server_died", Message: "server_died: exit code 255"}},
	}
	for _, row := range rows {
		assert.Equal(t, row.want, ExitHint(row.code, row.signal))
	}
}
