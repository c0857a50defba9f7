// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// settings is a command line as the server needs it.
type settings struct {
	host       string
	port       int
	timeScale  float64
	startup    time.Duration // in real time
	neverReady bool
	requestLog string
	config     Config
	options    Options
}

// newSettings converts a command line. apiKey is the one of the environment.
func newSettings(a arguments, apiKey string) settings {
	scale := argument(a, "time-scale", 1.0)
	s := settings{
		host:       argument(a, "host", ""),
		port:       argument(a, "port", 8000),
		timeScale:  scale,
		startup:    time.Duration(float64(argument(a, "startup-time", 2*time.Second)) / scale),
		neverReady: argument(a, "fault-never-ready", false),
		requestLog: argument(a, "request-log", ""),
		config:     newConfig(a),
		options: Options{
			ServedModelNames:  argument(a, "served-model-name", []string{a.model}),
			Root:              a.model,
			APIKeys:           argument(a, "api-key", []string{apiKey}),
			Seed:              int64(argument(a, "seed", 0)),
			Noise:             argument(a, "noise", 0.0),
			TimeScale:         scale,
			StreamInterval:    argument(a, "stream-interval", 1),
			ForceIncludeUsage: argument(a, "enable-force-include-usage", false),
			Faults: Faults{
				CrashAt:         argument(a, "fault-crash-after", 0),
				OutOfMemoryAt:   argument(a, "fault-oom-after", 0),
				HangFrom:        argument(a, "fault-hang-after", -1) + 1,
				MidstreamErrors: argument(a, "fault-midstream-error-rate", 0.0),
				HTTP500s:        argument(a, "fault-http500-rate", 0.0),
				SlowFirstToken:  argument(a, "fault-slow-first-token", time.Duration(0)),
				NotServing:      argument(a, "fault-not-serving", false),
			},
		},
	}
	s.options.APIKeys = slices.DeleteFunc(s.options.APIKeys, func(k string) bool { return k == "" })
	return s
}

func newConfig(a arguments) Config {
	c := DefaultConfig()
	if argument(a, "performance-mode", "") == "throughput" {
		c.MaxNumSeqs *= 2
		c.MaxNumBatchedTokens *= 2
	}
	c.MaxNumBatchedTokens = argument(a, "max-num-batched-tokens", c.MaxNumBatchedTokens)
	// Only a default is clipped; a value of the user's that is too large is an error.
	c.MaxNumSeqs = argument(a, "max-num-seqs", min(c.MaxNumSeqs, c.MaxNumBatchedTokens))
	c.ChunkedPrefill = argument(a, "enable-chunked-prefill", c.ChunkedPrefill)
	c.GPUMemoryUtilization = argument(a, "gpu-memory-utilization", c.GPUMemoryUtilization)
	c.TensorParallel = argument(a, "tensor-parallel-size", c.TensorParallel)
	c.AsyncScheduling = argument(a, "async-scheduling", c.AsyncScheduling)
	c.KVBytesPerToken = kvBytes[argument(a, "kv-cache-dtype", "auto")]
	c.MaxModelLen = argument(a, "max-model-len", c.MaxModelLen)
	c.BlockSize = argument(a, "block-size", c.BlockSize)
	c.BlocksOverride = argument(a, "num-gpu-blocks-override", c.BlocksOverride)

	g := newGraphs(a)
	c.EnforceEager = argument(a, "enforce-eager", false) || g.mode == "NONE"
	c.GraphMax = g.max
	return c
}

// nativeContext is the longest context of Llama-3.1.
const nativeContext = 131072

// resolve fits an automatic context length to the memory and checks the
// settings. The error is a *StartError.
func (s *settings) resolve(a arguments) error {
	c := &s.config
	auto := c.MaxModelLen == -1
	if auto {
		c.MaxModelLen = nativeContext
	}
	if err := checkArguments(a, *c); err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return err
	}
	if auto {
		unlimited := *c
		unlimited.MaxModelLen = 0
		// A configuration without memory is refused later, by Memory itself.
		if blocks, err := Memory(unlimited); err == nil {
			c.MaxModelLen = min(c.MaxModelLen, blocks*c.BlockSize)
		}
	}
	return nil
}

// checkArguments checks flags that are not part of Config.
func checkArguments(a arguments, c Config) error {
	if c.MaxModelLen < 1 {
		return rangeError("ModelConfig", "max_model_len", "greater than or equal to 1", c.MaxModelLen)
	}
	for _, long := range []string{"num-gpu-blocks-override", "pipeline-parallel-size", "data-parallel-size"} {
		if v := argument(a, long, 1); v < 1 {
			return rangeError("EngineArgs", strings.ReplaceAll(long, "-", "_"), "greater than or equal to 1", v)
		}
	}
	if err := newGraphs(a).err; err != nil {
		return err
	}
	if t := argument(a, "long-prefill-token-threshold", 0); t > c.MaxModelLen {
		return valueError("SchedulerConfig", "long_prefill_token_threshold (%d) cannot be greater than the max_model_len (%d).", t, c.MaxModelLen)
	}
	world := c.TensorParallel * argument(a, "pipeline-parallel-size", 1) * argument(a, "data-parallel-size", 1)
	if world > GPUs && attentionHeads%max(c.TensorParallel, 1) == 0 {
		return worldSizeError(world)
	}
	return nil
}

// graphs is what the flags say about CUDA graphs.
type graphs struct {
	mode string // "NONE": there are none
	max  int    // tokens
	err  error
}

var graphModes = []string{"NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"}

func newGraphs(a arguments) graphs {
	g := graphs{max: DefaultConfig().GraphMax}
	if argument(a, "optimization-level", 2) == 0 {
		g.mode = "NONE"
	}
	if sizes, ok := a.values["cudagraph-capture-sizes"]; ok {
		g.max = slices.Max(sizes.([]int))
	}
	g.max = argument(a, "max-cudagraph-capture-size", g.max)
	json := argument(a, "compilation-config", map[string]any{})
	for _, key := range slices.Sorted(maps.Keys(json)) {
		if err := g.apply(a, key, json[key]); err != nil {
			g.err = err
			return g
		}
	}
	return g
}

// apply reads one key of --compilation-config. Keys that have nothing to do
// with graphs are not looked at.
func (g *graphs) apply(a arguments, key string, v any) error {
	if (key == "max_cudagraph_capture_size" || key == "cudagraph_capture_sizes") && a.has(strings.ReplaceAll(key, "_", "-")) {
		return &StartError{Exception: "ValueError", Message: fmt.Sprintf("%s and compilation_config.%s are mutually exclusive", key, key)}
	}
	bad := valueError("CompilationConfig", "%s: invalid value %v", key, v)
	switch key {
	case "cudagraph_mode":
		mode, ok := v.(string)
		if !ok || !slices.Contains(graphModes, strings.ToUpper(mode)) {
			return bad
		}
		g.mode = strings.ToUpper(mode)
	case "max_cudagraph_capture_size":
		n, ok := v.(float64)
		if !ok || n != float64(int(n)) {
			return bad
		}
		g.max = int(n)
	case "cudagraph_capture_sizes":
		list, ok := v.([]any)
		if !ok || len(list) == 0 {
			return bad
		}
		g.max = 0
		for _, item := range list {
			n, ok := item.(float64)
			if !ok || n != float64(int(n)) {
				return bad
			}
			g.max = max(g.max, int(n))
		}
	}
	return nil
}
