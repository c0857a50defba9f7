// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// parsed returns the settings of "M" and the given flags.
func parsed(t *testing.T, args ...string) settings {
	t.Helper()
	a, err := parseCommandLine(append([]string{"M"}, args...))
	require.NoError(t, err)
	return newSettings(a, "")
}

func TestFlagsSetTheConfiguration(t *testing.T) {
	for name, tt := range map[string]struct {
		args   []string
		change func(*Config)
	}{
		"nothing":                      {nil, func(*Config) {}},
		"underscores":                  {[]string{"--max_num_seqs", "64"}, func(c *Config) { c.MaxNumSeqs = 64 }},
		"equals":                       {[]string{"--max-num_seqs=64"}, func(c *Config) { c.MaxNumSeqs = 64 }},
		"last wins":                    {[]string{"--max_num_seqs", "3", "--max-num-seqs=4"}, func(c *Config) { c.MaxNumSeqs = 4 }},
		"alias":                        {[]string{"-tp", "2"}, func(c *Config) { c.TensorParallel = 2 }},
		"alias and long name":          {[]string{"-tp=2", "--tensor-parallel-size", "4"}, func(c *Config) { c.TensorParallel = 4 }},
		"abbreviation":                 {[]string{"--max-num-b", "1024"}, func(c *Config) { c.MaxNumBatchedTokens = 1024 }},
		"abbreviation with equals":     {[]string{"--gpu-mem=.5"}, func(c *Config) { c.GPUMemoryUtilization = 0.5 }},
		"abbreviated alias":            {[]string{"-t", "2"}, func(c *Config) { c.TensorParallel = 2 }},
		"decimal suffix":               {[]string{"--max-num-batched-tokens", "2k"}, func(c *Config) { c.MaxNumBatchedTokens = 2000 }},
		"binary suffix":                {[]string{"--max-num-batched-tokens", "2K"}, func(c *Config) { c.MaxNumBatchedTokens = 2048 }},
		"decimals":                     {[]string{"--max-model-len", "2.5k"}, func(c *Config) { c.MaxModelLen = 2500 }},
		"automatic context":            {[]string{"--max-model-len", "auto"}, func(c *Config) { c.MaxModelLen = -1 }},
		"automatic context as -1":      {[]string{"--max-model-len", "-1"}, func(c *Config) { c.MaxModelLen = -1 }},
		"seqs follow a small budget":   {[]string{"--max-num-batched-tokens", "128"}, func(c *Config) { c.MaxNumBatchedTokens, c.MaxNumSeqs = 128, 128 }},
		"a set value does not":         {[]string{"--max-num-batched-tokens", "128", "--max-num-seqs", "200"}, func(c *Config) { c.MaxNumBatchedTokens, c.MaxNumSeqs = 128, 200 }},
		"throughput mode":              {[]string{"--performance-mode", "throughput"}, func(c *Config) { c.MaxNumBatchedTokens, c.MaxNumSeqs = 16384, 512 }},
		"throughput mode and a value":  {[]string{"--performance-mode=throughput", "--max-num-seqs=9"}, func(c *Config) { c.MaxNumBatchedTokens, c.MaxNumSeqs = 16384, 9 }},
		"off":                          {[]string{"--no-async-scheduling", "--no-enable-chunked-prefill"}, func(c *Config) { c.AsyncScheduling, c.ChunkedPrefill = false, false }},
		"off and on":                   {[]string{"--no-async-scheduling", "--async_scheduling"}, func(*Config) {}},
		"on and off":                   {[]string{"--enforce-eager", "--no-enforce-eager"}, func(*Config) {}},
		"eager":                        {[]string{"--enforce-eager"}, func(c *Config) { c.EnforceEager = true }},
		"8-bit cache":                  {[]string{"--kv-cache-dtype", "fp8_e5m2"}, func(c *Config) { c.KVBytesPerToken = 65536 }},
		"4-bit cache":                  {[]string{"--kv-cache-dtype", "nvfp4"}, func(c *Config) { c.KVBytesPerToken = 32768 }},
		"blocks":                       {[]string{"--block-size", "32", "--num-gpu-blocks-override", "1000"}, func(c *Config) { c.BlockSize, c.BlocksOverride = 32, 1000 }},
		"graph size":                   {[]string{"--max-cudagraph-capture-size", "64"}, func(c *Config) { c.GraphMax = 64 }},
		"graph sizes":                  {[]string{"--cudagraph-capture-sizes", "1", "128", "2"}, func(c *Config) { c.GraphMax = 128 }},
		"graph size in JSON":           {[]string{"--compilation-config", `{"max_cudagraph_capture_size": 64, "mode": 3}`}, func(c *Config) { c.GraphMax = 64 }},
		"graph sizes in JSON":          {[]string{"-cc", `{"cudagraph_capture_sizes": [1, 32]}`}, func(c *Config) { c.GraphMax = 32 }},
		"no graphs in JSON":            {[]string{`-cc={"cudagraph_mode": "none"}`}, func(c *Config) { c.EnforceEager = true }},
		"dotted":                       {[]string{"--compilation-config.cudagraph_mode", "NONE"}, func(c *Config) { c.EnforceEager = true }},
		"dotted alias with equals":     {[]string{"-cc.max_cudagraph_capture_size=8"}, func(c *Config) { c.GraphMax = 8 }},
		"dotted list":                  {[]string{"--compilation_config.cudagraph_capture_sizes+", "4,8", "-cc.mode", "3"}, func(*Config) {}},
		"dotted list alone":            {[]string{"--compilation_config.cudagraph_capture_sizes+", "4,8"}, func(c *Config) { c.GraphMax = 8 }},
		"dotted after JSON wins":       {[]string{"-cc.pass_config.x", "1", "-cc", `{"max_cudagraph_capture_size":1}`}, func(*Config) {}},
		"dotted keys are merged":       {[]string{"-cc.max_cudagraph_capture_size", "8", "--seed", "1", "-cc.cudagraph_mode", "NONE"}, func(c *Config) { c.GraphMax, c.EnforceEager = 8, true }},
		"optimization level 0":         {[]string{"-O0"}, func(c *Config) { c.EnforceEager = true }},
		"optimization level 0, apart":  {[]string{"-O", "0"}, func(c *Config) { c.EnforceEager = true }},
		"optimization level 3":         {[]string{"-O=3"}, func(*Config) {}},
		"mode against level":           {[]string{"-O0", "-cc.cudagraph_mode", "FULL"}, func(*Config) {}},
		"flags without effect":         {[]string{"--dtype", "half", "--enable-prefix-caching", "-ep", "--disable-log-stats", "-q", "fp8", "--cpu-offload-gb", "1.5"}, func(*Config) {}},
		"JSON flags without effect":    {[]string{"--speculative-config", `{"method":"ngram"}`, "--hf-overrides.a.b", "1"}, func(*Config) {}},
		"end of flags":                 {[]string{"--enforce-eager", "--"}, func(c *Config) { c.EnforceEager = true }},
		"value that looks like a flag": {[]string{"--tokenizer=--x"}, func(*Config) {}},
	} {
		t.Run(name, func(t *testing.T) {
			want := DefaultConfig()
			tt.change(&want)
			assert.Equal(t, want, parsed(t, tt.args...).config)
		})
	}
}

func TestFlagsSetTheServer(t *testing.T) {
	got := parsed(t, "--served-model-name", "a", "b", "--host", "127.0.0.1", "--port=0", "--api-key", "k1", "k2", "--seed", "7",
		"--noise", "0.02", "--time-scale", "10", "--startup-time", "5s", "--stream-interval", "4", "--enable-force-include-usage",
		"--request-log", "-", "--fault-crash-after", "3", "--fault-oom-after", "4", "--fault-hang-after", "0",
		"--fault-midstream-error-rate", "0.1", "--fault-http500-rate", "0.2", "--fault-slow-first-token", "1.5",
		"--fault-never-ready", "--fault-not-serving")
	assert.Equal(t, settings{
		host: "127.0.0.1", timeScale: 10, startup: 500 * time.Millisecond, neverReady: true, requestLog: "-", config: DefaultConfig(),
		options: Options{
			ServedModelNames: []string{"a", "b"}, Root: "M", APIKeys: []string{"k1", "k2"}, Seed: 7, Noise: 0.02, TimeScale: 10,
			StreamInterval: 4, ForceIncludeUsage: true,
			Faults: Faults{CrashAt: 3, OutOfMemoryAt: 4, HangFrom: 1, MidstreamErrors: 0.1, HTTP500s: 0.2,
				SlowFirstToken: 1500 * time.Millisecond, NotServing: true},
		},
	}, got)

	assert.Equal(t, settings{
		port: 8000, timeScale: 1, startup: 2 * time.Second, config: DefaultConfig(),
		options: Options{ServedModelNames: []string{"M"}, Root: "M", APIKeys: []string{}, TimeScale: 1, StreamInterval: 1},
	}, parsed(t))
}

func TestModelByPositionOrFlag(t *testing.T) {
	for _, args := range [][]string{
		{"M"}, {"serve", "M"}, {"--model", "M"}, {"serve", "--model=M"}, {"--port", "1", "M"}, {"--enforce-eager", "M"},
		{"--enforce-eager", "--", "M"}, {"--served-model-name", "a", "--port", "1", "M"},
	} {
		a, err := parseCommandLine(args)
		require.NoError(t, err, args)
		assert.Equal(t, "M", a.model, args)
	}
}

func TestEnvironmentKeyIsUsedWithoutAFlag(t *testing.T) {
	a, err := parseCommandLine([]string{"M"})
	require.NoError(t, err)
	assert.Equal(t, []string{"secret"}, newSettings(a, "secret").options.APIKeys)
	a, err = parseCommandLine([]string{"M", "--api-key", "flag"})
	require.NoError(t, err)
	assert.Equal(t, []string{"flag"}, newSettings(a, "secret").options.APIKeys)
}

// The texts were compared with those of Python 3.11's argparse.
func TestCommandLineErrors(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{}, "the following arguments are required: model_tag"},
		{[]string{"--served-model-name", "a", "M"}, "argument model_tag: `model` should be provided as the first positional argument when using `vllm serve`"},
		{[]string{"M", "--swap-space", "4"}, "unrecognized arguments: --swap-space 4"},
		{[]string{"--swap-space", "4", "M"}, "unrecognized arguments: --swap-space M"},
		{[]string{"M", "--swap-space=4", "--x"}, "unrecognized arguments: --swap-space=4 --x"},
		{[]string{"M", "--enable-prefix-caching", "true"}, "unrecognized arguments: true"},
		{[]string{"--model", "M", "--enable-prefix-caching", "true"}, "unrecognized arguments: true"},
		{[]string{"M", "--model", "N"}, "unrecognized arguments: M"},
		{[]string{"M", "--quantization bitsandbytes"}, "unrecognized arguments: --quantization bitsandbytes"},
		{[]string{"M", "--", "-tp"}, "unrecognized arguments: -tp"},
		{[]string{"M", "-tp2"}, "unrecognized arguments: -tp2"},
		{[]string{"M", "-"}, "unrecognized arguments: -"},
		{[]string{"M", "--enable-prefix-caching=true"}, "argument --enable-prefix-caching/--no-enable-prefix-caching: ignored explicit argument 'true'"},
		{[]string{"M", "-ep=1"}, "argument --enable-expert-parallel/--no-enable-expert-parallel/-ep: ignored explicit argument '1'"},
		{[]string{"M", "--disable-log-stats=1"}, "argument --disable-log-stats: ignored explicit argument '1'"},
		{[]string{"M", "--no-disable-log-stats"}, "unrecognized arguments: --no-disable-log-stats"},
		{[]string{"M", "--max-num-seqs"}, "argument --max-num-seqs: expected one argument"},
		{[]string{"M", "-tp"}, "argument --tensor-parallel-size/-tp: expected one argument"},
		{[]string{"M", "--dtype", "--x"}, "argument --dtype: expected one argument"},
		{[]string{"M", "--served-model-name"}, "argument --served-model-name: expected at least one argument"},
		{[]string{"M", "--max-num-seqs", "many"}, "argument --max-num-seqs: invalid int value: 'many'"},
		{[]string{"M", "--max-num-seqs", "1k"}, "argument --max-num-seqs: invalid int value: '1k'"},
		{[]string{"M", "--max-num-seqs", "1.5"}, "argument --max-num-seqs: invalid int value: '1.5'"},
		{[]string{"M", "--max-num-seqs", "it's"}, `argument --max-num-seqs: invalid int value: "it's"`},
		{[]string{"M", "--max-num-batched-tokens", "many"}, "argument --max-num-batched-tokens: invalid human_readable_int value: 'many'"},
		{[]string{"M", "--max-num-batched-tokens", "1.5K"}, "argument --max-num-batched-tokens: Decimals are not allowed with binary suffixes like K. Did you mean to use 1.5k instead?"},
		{[]string{"M", "--gpu-memory-utilization", "high"}, "argument --gpu-memory-utilization: invalid float value: 'high'"},
		{[]string{"M", "--cudagraph-capture-sizes", "1", "x"}, "argument --cudagraph-capture-sizes: invalid int value: 'x'"},
		{[]string{"M", "--dtype", "int8"}, "argument --dtype: invalid choice: 'int8' (choose from 'auto', 'half', 'float16', 'bfloat16', 'float', 'float32')"},
		{[]string{"M", "-O9"}, "argument --optimization-level: invalid choice: 9 (choose from 0, 1, 2, 3)"},
		{[]string{"M", "-cc", "{x"}, "argument --compilation-config/-cc: Value {x cannot be converted to <function loads>."},
		{[]string{"M", "-cc.mode"}, "argument -cc.mode: expected one argument"},
		{[]string{"M", "--max-num", "4"}, "ambiguous option: --max-num could match --max-num-seqs, --max-num-batched-tokens"},
		{[]string{"M", "--startup-time", "soon"}, "argument --startup-time: invalid duration value: 'soon'"},
		{[]string{"M", "--startup-time", "-1s"}, "argument --startup-time: expected one argument"},
		{[]string{"M", "--startup-time=-1s"}, "argument --startup-time: must not be negative, is -1s"},
		{[]string{"M", "--time-scale", "0"}, "argument --time-scale: must be at least 0.001, is 0"},
		{[]string{"M", "--time-scale", "nan"}, "argument --time-scale: must be at least 0.001, is NaN"},
		{[]string{"M", "--port", "70000"}, "argument --port: must be between 0 and 65535, is 70000"},
		{[]string{"M", "--fault-http500-rate", "2"}, "argument --fault-http500-rate: must be between 0 and 1, is 2"},
		{[]string{"M", "--fault-crash-after", "0"}, "argument --fault-crash-after: must be at least 1, is 0"},
	} {
		_, err := parseCommandLine(tt.args)
		require.EqualError(t, err, tt.want, tt.args)
	}
}

func TestHelpWinsOverWhatFollows(t *testing.T) {
	for _, args := range [][]string{{"-h"}, {"M", "--help", "--max-num-seqs"}, {"serve", "--hel"}} {
		_, err := parseCommandLine(args)
		require.ErrorIs(t, err, errHelp, args)
	}
}

func TestDuplicatesAreNamedOnce(t *testing.T) {
	a, err := parseCommandLine([]string{"M", "--port", "1", "--port=2", "--port", "3", "-tp", "1", "--tensor-parallel-size", "2"})
	require.NoError(t, err)
	assert.Equal(t, []string{"--port"}, a.duplicates)
}

func TestSettingsThatVLLMRefuses(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--max-num-batched-tokens=128", "--max-num-seqs=129"}, "max_num_batched_tokens (128) must be greater than or equal to max_num_seqs (129)."},
		{[]string{"--max-num-seqs", "10000"}, "max_num_batched_tokens (8192) must be greater than or equal to max_num_seqs (10000)."},
		{[]string{"--no-enable-chunked-prefill", "--max-num-batched-tokens=4096"}, "max_num_batched_tokens (4096) is smaller than max_model_len (8192)."},
		{[]string{"--long-prefill-token-threshold=9000"}, "long_prefill_token_threshold (9000) cannot be greater than the max_model_len (8192)."},
		{[]string{"-tp", "3"}, "Total number of attention heads (32) must be divisible by tensor parallel size (3)."},
		{[]string{"-tp", "16"}, "World size (16) is larger than the number of available GPUs (8) in this node."},
		{[]string{"-tp", "4", "-pp", "2", "-dp", "2"}, "World size (16) is larger than the number of available GPUs (8) in this node."},
		{[]string{"--max-num-seqs", "0"}, "max_num_seqs\n  Input should be greater than or equal to 1"},
		{[]string{"--max-num-batched-tokens", "-5"}, "max_num_batched_tokens\n  Input should be greater than or equal to 1"},
		{[]string{"--gpu-memory-utilization", "1.1"}, "gpu_memory_utilization\n  Input should be less than or equal to 1"},
		{[]string{"--gpu-memory-utilization", "0"}, "gpu_memory_utilization\n  Input should be greater than 0"},
		{[]string{"--gpu-memory-utilization", "nan"}, "gpu_memory_utilization\n  Input should be greater than 0"},
		{[]string{"-tp", "0"}, "tensor_parallel_size\n  Input should be greater than or equal to 1"},
		{[]string{"-pp", "0"}, "pipeline_parallel_size\n  Input should be greater than or equal to 1"},
		{[]string{"--block-size", "0"}, "block_size\n  Input should be greater than or equal to 1"},
		{[]string{"--max-model-len", "0"}, "max_model_len\n  Input should be greater than or equal to 1"},
		{[]string{"--max-model-len", "-2"}, "max_model_len\n  Input should be greater than or equal to 1"},
		{[]string{"--num-gpu-blocks-override", "0"}, "num_gpu_blocks_override\n  Input should be greater than or equal to 1"},
		{[]string{"--max-cudagraph-capture-size", "-1"}, "max_cudagraph_capture_size\n  Input should be greater than or equal to 0"},
		{[]string{"-cc.cudagraph_mode", "SOME"}, "cudagraph_mode: invalid value SOME"},
		{[]string{"-cc.max_cudagraph_capture_size", "1.5"}, "max_cudagraph_capture_size: invalid value 1.5"},
		{[]string{"-cc.cudagraph_capture_sizes", "8"}, "cudagraph_capture_sizes: invalid value 8"},
		{[]string{"--max-cudagraph-capture-size=8", "-cc.max_cudagraph_capture_size=8"}, "max_cudagraph_capture_size and compilation_config.max_cudagraph_capture_size are mutually exclusive"},
	} {
		a, err := parseCommandLine(append([]string{"M"}, tt.args...))
		require.NoError(t, err, tt.args)
		s := newSettings(a, "")
		require.ErrorContains(t, s.resolve(a), tt.want, tt.args)
	}
}

func TestAutomaticContextFitsTheMemory(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want int
	}{
		{nil, nativeContext},
		{[]string{"--num-gpu-blocks-override", "1000"}, 16000},
	} {
		a, err := parseCommandLine(append([]string{"M", "--max-model-len", "auto"}, tt.args...))
		require.NoError(t, err)
		s := newSettings(a, "")
		require.NoError(t, s.resolve(a))
		assert.Equal(t, tt.want, s.config.MaxModelLen)
	}
}

func TestLoggedArgumentsHideKeys(t *testing.T) {
	a, err := parseCommandLine([]string{"it's", "--api-key", "sesame", "--max-num-seqs", "4", "--enforce-eager", "-cc.mode", "3",
		"--startup-time", "1s", "--served-model-name", "a", "b", "--noise", "0.5", "--host", "h"})
	require.NoError(t, err)
	assert.Equal(t, `{'model_tag': "it's", 'api_key': '***', 'compilation_config': {"mode":3}, 'enforce_eager': True, 'host': 'h', `+
		`'max_num_seqs': 4, 'noise': 0.5, 'served_model_name': ["a","b"], 'startup_time': '1s'}`, a.nonDefault())
}

func TestEveryFlagNameIsUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, o := range options() {
		for _, n := range o.names() {
			assert.False(t, seen[n], n)
			seen[n] = true
		}
	}
	for _, dtype := range kvCacheDtypes {
		assert.Contains(t, kvBytes, dtype)
	}
	assert.Len(t, kvBytes, len(kvCacheDtypes))
}
