// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

const usage = "usage: llmctl simulate [serve] [model_tag] [options]"

// kvBytes maps each cache type to the bytes of one token. The types of 4 bits
// keep scales beside the values and are counted as half of 8 bits.
var kvBytes = map[string]int{
	"auto": KVBytes16, "float16": KVBytes16, "bfloat16": KVBytes16,
	"fp8": KVBytes8, "fp8_e4m3": KVBytes8, "fp8_e5m2": KVBytes8, "fp8_inc": KVBytes8, "fp8_ds_mla": KVBytes8,
	"fp8_per_token_head": KVBytes8, "int8_per_token_head": KVBytes8,
	"int4_per_token_head": KVBytes8 / 2, "nvfp4": KVBytes8 / 2,
}

var kvCacheDtypes = []string{"auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla",
	"int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4"}

// options returns the command line: first what has an effect, then vLLM's
// flags that are only checked, then the simulator's own.
func options() []option {
	return slices.Concat(engineOptions(), serverOptions(), uncheckedOptions(), ownOptions())
}

func engineOptions() []option {
	return []option{
		{long: "model", kind: text, help: "model name, in place of the positional argument"},
		{long: "max-model-len", kind: modelLength, help: "longest prompt plus answer, or auto (default 8192)"},
		{long: "seed", kind: integer, help: "seed of noise, answer lengths and faults (default 0)"},
		{long: "gpu-memory-utilization", kind: number, help: "share of the GPU's memory, (0, 1] (default 0.92)"},
		{long: "kv-cache-dtype", kind: text, choices: kvCacheDtypes, help: "8-bit types halve the cache's bytes, 4-bit types quarter them (default auto)"},
		{long: "block-size", kind: integer, help: "tokens of a KV block (default 16)"},
		{long: "num-gpu-blocks-override", kind: integer, help: "KV blocks, whatever the memory holds"},
		{long: "max-num-seqs", kind: integer, help: "sequences in a step (default 256, at most max-num-batched-tokens)"},
		{long: "max-num-batched-tokens", kind: sizeInteger, help: "tokens in a step (default 8192)"},
		{long: "enable-chunked-prefill", kind: negatable, help: "(default on)"},
		{long: "async-scheduling", kind: negatable, help: "(default on)"},
		{long: "long-prefill-token-threshold", kind: integer, help: "checked against max-model-len; no other effect"},
		{long: "tensor-parallel-size", short: "tp", kind: integer, help: "GPUs that share each layer: 1, 2, 4 or 8 (default 1)"},
		{long: "pipeline-parallel-size", short: "pp", kind: integer, help: "checked against the 8 GPUs; no other effect"},
		{long: "data-parallel-size", short: "dp", kind: integer, help: "checked against the 8 GPUs; no other effect"},
		{long: "enforce-eager", kind: negatable, help: "no CUDA graphs"},
		{long: "max-cudagraph-capture-size", kind: integer, help: "largest step with a CUDA graph (default 512)"},
		{long: "cudagraph-capture-sizes", kind: integers, help: "the largest one counts"},
		{long: "compilation-config", short: "cc", kind: jsonObject, help: "cudagraph_mode, max_cudagraph_capture_size, cudagraph_capture_sizes"},
		{long: "optimization-level", kind: integer, choices: []string{"0", "1", "2", "3"}, help: "0 means no CUDA graphs (default 2); also -O0 … -O3"},
		{long: "performance-mode", kind: text, choices: []string{"balanced", "interactivity", "throughput"},
			help: "throughput doubles the defaults of max-num-seqs and max-num-batched-tokens"},
	}
}

func serverOptions() []option {
	return []option{
		{long: "host", kind: text, help: "address to listen on (default all)"},
		{long: "port", kind: integer, check: between(0, 65535), help: "(default 8000; 0 = any free port)"},
		{long: "served-model-name", kind: texts, help: "names of the model in the API; answers carry the first"},
		{long: "api-key", kind: texts, help: "keys that /v1 asks for (default $VLLM_API_KEY)"},
		{long: "stream-interval", kind: integer, check: atLeast(1), help: "tokens in a chunk, after the first (default 1)"},
		{long: "enable-force-include-usage", kind: negatable, help: "usage in every chunk, asked for or not"},
	}
}

// uncheckedOptions are flags of vLLM that the model knows nothing about.
func uncheckedOptions() []option {
	flag := func(k kind, names ...string) (out []option) {
		for _, n := range names {
			long, short, _ := strings.Cut(n, " ")
			out = append(out, option{long: long, short: short, kind: k})
		}
		return out
	}
	return slices.Concat(
		[]option{
			{long: "dtype", kind: text, choices: []string{"auto", "half", "float16", "bfloat16", "float", "float32"}},
			{long: "scheduling-policy", kind: text, choices: []string{"fcfs", "priority"}},
			{long: "prefix-caching-hash-algo", kind: text, choices: []string{"sha256", "sha256_cbor", "xxhash", "xxhash_cbor"}},
		},
		flag(negatable, "enable-prefix-caching", "enable-expert-parallel ep", "trust-remote-code", "scheduler-reserve-full-isl",
			"enable-log-requests", "enable-prompt-tokens-details", "enable-auto-tool-choice"),
		flag(presentOnly, "disable-log-stats", "disable-uvicorn-access-log"),
		flag(integer, "decode-context-parallel-size dcp", "prefill-context-parallel-size pcp", "prefill-schedule-interval"),
		flag(number, "watermark", "kv-offloading-size", "cpu-offload-gb"),
		flag(text, "quantization q", "attention-backend", "tokenizer", "tokenizer-mode", "revision", "load-format", "download-dir",
			"chat-template", "uvicorn-log-level", "tool-call-parser", "reasoning-parser", "distributed-executor-backend"),
		flag(jsonObject, "speculative-config sc", "attention-config ac", "hf-overrides", "kv-transfer-config",
			"override-generation-config", "additional-config"),
	)
}

func ownOptions() []option {
	return []option{
		{long: "time-scale", kind: number, check: atLeast(0.001), help: "times faster than the modelled engine (default 1)"},
		{long: "startup-time", kind: duration, check: notNegative, help: "time to load, divided by the time scale (default 2s)"},
		{long: "noise", kind: number, check: between(0, 1), help: "sigma of the log-normal factor on all step times of this run (default 0)"},
		{long: "request-log", kind: text, help: "file for one JSON line per request; - is stderr"},
		{long: "fault-crash-after", kind: integer, check: atLeast(1), help: "exit 1 when this many requests have arrived"},
		{long: "fault-oom-after", kind: integer, check: atLeast(1), help: "the same with an out-of-memory error"},
		{long: "fault-hang-after", kind: integer, check: atLeast(0), help: "never answer requests after this many"},
		{long: "fault-midstream-error-rate", kind: number, check: between(0, 1), help: "share of answers that end in an error half way"},
		{long: "fault-http500-rate", kind: number, check: between(0, 1), help: "share of requests answered with status 500"},
		{long: "fault-slow-first-token", kind: duration, check: notNegative, help: "delay of every first token, divided by the time scale"},
		{long: "fault-never-ready", kind: presentOnly, help: "live, but never listen"},
		{long: "fault-not-serving", kind: presentOnly, help: "be healthy, but answer every completion with status 503"},
		{long: "help", short: "h", kind: presentOnly, help: "print this text"},
	}
}

func between(low, high float64) func(any) error {
	return func(v any) error {
		if f := asFloat(v); !(f >= low && f <= high) {
			return fmt.Errorf("must be between %v and %v, is %v", low, high, v)
		}
		return nil
	}
}

func atLeast(low float64) func(any) error {
	return func(v any) error {
		if f := asFloat(v); !(f >= low) {
			return fmt.Errorf("must be at least %v, is %v", low, v)
		}
		return nil
	}
}

func notNegative(v any) error {
	if d := v.(time.Duration); d < 0 {
		return fmt.Errorf("must not be negative, is %v", d)
	}
	return nil
}

func asFloat(v any) float64 {
	if n, ok := v.(int); ok {
		return float64(n)
	}
	return v.(float64)
}

// parseCommandLine reads "[serve] MODEL flags".
func parseCommandLine(args []string) (arguments, error) {
	if len(args) > 0 && args[0] == "serve" {
		args = args[1:]
	}
	a, err := parseArguments(options(), args)
	switch {
	case err != nil:
		return a, err
	case a.model == "" && a.has("served-model-name"):
		// vLLM: a positional model after a list is swallowed by it.
		return a, errors.New("argument model_tag: `model` should be provided as the first positional argument when using `vllm serve`")
	case a.model == "":
		return a, errors.New("the following arguments are required: model_tag")
	}
	return a, nil
}

// display is the option's spellings in the help text.
func (o option) display() string {
	s := "--" + o.long
	if o.kind == negatable {
		s = "--[no-]" + o.long
	}
	if o.short != "" {
		s += ", -" + o.short
	}
	return s
}

func printHelp(w io.Writer) error {
	var b strings.Builder
	b.WriteString(usage + `

A simulated vLLM: Llama-3.1-8B on up to 8 H100 GPUs as a step model played in
real time behind the OpenAI API. It takes vLLM's flags, and refuses at start
what that hardware could not run.

Without ignore_eos an answer ends by itself after a log-normal number of tokens
(median 256) that depends on the prompt and the seed. A token of text is at most
four bytes, with a space only at its start. Durations are 500ms, 1m or seconds.

`)
	section := func(title string, options []option) {
		fmt.Fprintf(&b, "%s:\n", title)
		for _, o := range options {
			fmt.Fprintf(&b, "  %-36s %s\n", o.display(), o.help)
		}
		b.WriteString("\n")
	}
	section("engine (as vLLM)", engineOptions())
	section("server (as vLLM)", serverOptions())
	section("simulator", ownOptions())
	b.WriteString("accepted without effect:\n")
	for _, o := range uncheckedOptions() {
		fmt.Fprintf(&b, "  %s\n", o.display())
	}
	_, err := io.WriteString(w, b.String())
	return err
}
