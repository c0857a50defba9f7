// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestArgumentsThatTheEngineDoesNotRunWithAreNamed(t *testing.T) {
	const log = "INFO 08-17 [api_server.py:12] starting\nINFO 08-17 [utils.py:253] non-default args: "
	for name, c := range map[string]struct {
		engine, argv string
		env          []EnvVar
		log, answer  string
		want         []string
	}{
		"as asked": {engine: "vllm", argv: "vllm serve m --max-num-seqs 64 --gpu-memory-utilization 0.9 --enforce-eager",
			log: log + "{'model_tag': 'm', 'max_num_seqs': 64, 'gpu_memory_utilization': 0.90, 'enforce_eager': True}\n"},
		"another number": {engine: "vllm", argv: "vllm serve m --max-num-seqs=64",
			log: log + "{'model_tag': 'm', 'max_num_seqs': 32}\n", want: []string{"--max-num-seqs is 64, the engine runs with 32"}},
		"the last one counts": {engine: "vllm", argv: "vllm serve m --max_num_seqs 64 --max-num-seqs 128",
			log: log + "{'max_num_seqs': 64}\n", want: []string{"--max-num-seqs is 128, the engine runs with 64"}},
		"a switch": {engine: "vllm", argv: "vllm serve m --no-enable-prefix-caching",
			log: log + "{'enable_prefix_caching': True}\n", want: []string{"--enable-prefix-caching is false, the engine runs with true"}},
		"a suffix": {engine: "vllm", argv: "vllm serve m --max-model-len 8K", log: log + "{'max_model_len': 8192}\n"},
		"in a shell": {engine: "vllm", argv: "", env: nil,
			log: log + "{'max_num_seqs': 32}\n", want: []string{"--max-num-seqs is 64, the engine runs with 32"}},
		"a variable": {engine: "vllm", argv: "vllm serve m --max-num-seqs $(SEQS)", env: []EnvVar{{Name: "SEQS", Value: "64"}},
			log: log + "{'max_num_seqs': 32}\n", want: []string{"--max-num-seqs is 64, the engine runs with 32"}},
		"auto":                {engine: "vllm", argv: "vllm serve m --max-model-len auto", log: log + "{'max_model_len': 8192}\n"},
		"a default":           {engine: "vllm", argv: "vllm serve m --max-num-seqs 64", log: log + "{'model_tag': 'm'}\n"},
		"a nested namesake":   {engine: "vllm", argv: "vllm serve m --max-num-seqs 64", log: log + "{'compilation_config': {'max_num_seqs': 8}, 'a': [1, 2]}\n"},
		"no report":           {engine: "vllm", argv: "vllm serve m --max-num-seqs 64", log: "INFO hello\n"},
		"server info":         {engine: "sglang", argv: "sglang serve --model-path m --max-running-requests 64", answer: `{"max_running_requests": 32, "x": {"y": 1}}`, want: []string{"--max-running-requests is 64, the engine runs with 32"}},
		"adjusted on purpose": {engine: "sglang", argv: "sglang serve --model-path m --chunked-prefill-size 8192", answer: `{"chunked_prefill_size": 2048}`},
		"not set":             {engine: "sglang", argv: "sglang serve --model-path m --max-running-requests 64", answer: `{"max_running_requests": null}`},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := Load(c.engine)
			require.NoError(t, err)
			container := Container{Name: "engine", Argv: words(c.argv), Env: c.env}
			if c.argv == "" {
				container.Argv = []string{"sh", "-c", "exec vllm serve m --max-num-seqs 64"}
			}
			reported := e.ArgumentsFromLog([]byte(c.log))
			if c.answer != "" {
				reported, err = ArgumentsFromJSON([]byte(c.answer))
				require.NoError(t, err)
			}
			have, err := e.Mismatches(container, reported)
			require.NoError(t, err)
			assert.Equal(t, c.want, have)
		})
	}
}

func TestTheContextLengthIsReadFromTheCommandLine(t *testing.T) {
	for argv, want := range map[string]int{
		"vllm serve m":                                     0,
		"vllm serve m --max-model-len auto":                0,
		"vllm serve m --max-model-len -1":                  0,
		"vllm serve m --max-model-len 4096":                4096,
		"vllm serve m --max_model_len=16k":                 16000,
		"vllm serve m --max-model-len 1 --max-model-len 2": 2,
	} {
		e, err := Load("vllm")
		require.NoError(t, err)
		have, err := e.ContextLength(Container{Argv: words(argv)})
		require.NoError(t, err)
		assert.Equal(t, want, have, argv)
	}
}
