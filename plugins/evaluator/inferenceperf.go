// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/loadgen"
)

// inferencePerf measures with inference-perf.
type inferencePerf struct{ settings }

func (e inferencePerf) Evaluate(ctx context.Context, t experiment.Target, traffic experiment.Traffic) (*experiment.Metrics, error) {
	script, err := lookPath(typeInference, e.environ)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "llmctl-inference-perf-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	config, err := yaml.Marshal(e.config(t, traffic, dir))
	if err != nil {
		return nil, err
	}
	// The key stands in the file, which nobody else can read and which goes with the
	// directory: the tool takes it from nowhere else.
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, err
	}
	p := process{argv: []string{script, "--config_file", file}, dir: dir, environ: e.environ, log: traffic.Log, secrets: e.secrets}
	return p.measure(ctx, "there is a result", func() (*experiment.Metrics, error) {
		return readInferencePerf(filepath.Join(dir, "reports"), traffic.Scenario)
	})
}

type object = map[string]any

// config is the tool's configuration.
func (e inferencePerf) config(t experiment.Target, traffic experiment.Traffic, dir string) object {
	s := traffic.Scenario
	api := "completion"
	if e.api == loadgen.Chat {
		api = "chat"
	}
	seed := traffic.Seed>>33 + e.baseSeed
	load := object{"num_workers": 1, "worker_max_concurrency": max(100, s.Concurrency), "base_seed": seed}
	if s.Rate > 0 {
		load["type"] = string(loadgen.Constant)
		if e.arrival.Process == loadgen.Poisson {
			load["type"] = string(loadgen.Poisson)
		}
		load["worker_max_concurrency"] = 2500
		load["stages"] = []any{object{"rate": s.Rate, "duration": seconds(s)}}
	} else {
		load["type"] = "concurrent"
		load["stages"] = []any{object{"num_requests": s.MaxRequests, "concurrency_level": s.Concurrency}}
	}
	server := object{"type": "vllm", "model_name": t.Model, "base_url": t.BaseURL, "ignore_eos": true}
	if e.apiKey != "" {
		server["api_key"] = e.apiKey
	}
	return object{
		"api":       object{"type": api, "streaming": true},
		"data":      e.data(seed),
		"load":      load,
		"server":    server,
		"tokenizer": object{"pretrained_model_name_or_path": e.tokenizer},
		"storage":   object{"local_storage": object{"path": filepath.Join(dir, "reports")}},
		"report": object{"request_lifecycle": object{
			"summary": true, "per_stage": true, "per_request": false,
			"percentiles": []float64{50, 90, 95, 99}, "use_server_output_tokens": true,
		}},
	}
}

// seconds is the length of a stage at a rate.
func seconds(s experiment.Scenario) int {
	if s.Duration > 0 && (s.MaxRequests == 0 || s.Duration.Seconds()*s.Rate < float64(s.MaxRequests)) {
		return int(math.Ceil(s.Duration.Seconds()))
	}
	return max(1, int(math.Ceil(float64(s.MaxRequests)/s.Rate)))
}

// data is what is sent; seed decides it where the file gives none.
func (e inferencePerf) data(seed uint64) object {
	switch {
	case e.conversations != nil:
		c := e.conversations
		if c.Seed != 0 {
			seed = c.Seed
		}
		return object{"type": "conversation_replay", "conversation_replay": object{
			"seed": seed, "num_conversations": c.NumConversations, "shared_system_prompt_len": c.SharedSystemPromptLen.Min,
			"dynamic_system_prompt_len": lengths(c.DynamicSystemPromptLen, 1), "turns_per_conversation": lengths(c.TurnsPerConversation, 1),
			"input_tokens_per_turn": lengths(c.InputTokensPerTurn, 1), "output_tokens_per_turn": lengths(c.OutputTokensPerTurn, 1),
			"tool_call_latency_sec": lengths(c.ToolCall, 1000),
		}}
	case e.datasetPath != "":
		return object{"type": "shareGPT", "path": e.datasetPath}
	}
	return object{"type": "random", "input_distribution": lengths(e.workload.Input, 1), "output_distribution": lengths(e.workload.Output, 1)}
}

// lengths is a distribution in the tool's words; nil is none.
func lengths(l loadgen.Length, scale float64) any {
	low, high := float64(l.Min), float64(l.Longest())
	if high == 0 {
		return nil
	}
	if l.Shape == loadgen.Normal || l.Shape == loadgen.Lognormal {
		low = max(low, 1)
	}
	d := object{"type": string(l.Shape), "min": int(low / scale), "max": int(math.Ceil(high / scale)), "mean": l.Mean / scale, "std_dev": l.StdDev / scale}
	if l.Shape == loadgen.Fixed || l.Shape == loadgen.Uniform {
		d["mean"] = (low + high) / 2 / scale
	}
	return d
}

// checkInferencePerf says what of a scenario the tool cannot do.
func checkInferencePerf(s *settings, scenario experiment.Scenario, problem func(path, format string, args ...any)) {
	if s.arrival.Process == loadgen.Gamma {
		problem("scenario.arrival", "gamma is not for evaluator %s, which has constant and poisson", typeInference)
	}
	if scenario.RampUp > 0 {
		problem("scenario.rampUp", "is not for evaluator %s", typeInference)
	}
	if !scenario.Rated() && scenario.MaxRequests == 0 {
		problem("scenario.maxRequests", "is required by evaluator %s with a concurrency", typeInference)
	}
	if s.api == loadgen.Chat && scenario.Workload != datasetWorkload {
		problem("evaluator.config.apiType", "chat is for evaluator %s with workload %s only; use completions", typeInference, datasetWorkload)
	}
	if c := s.conversations; c != nil && c.SharedSystemPromptLen != (loadgen.Length{}) && c.SharedSystemPromptLen.Shape != loadgen.Fixed {
		problem("evaluator.config.conversationReplay", "sharedSystemPromptLen must be a number for evaluator %s", typeInference)
	}
}

// perfReport is what is read of a report of the tool; latencies are seconds.
type perfReport struct {
	Seconds   float64 `json:"benchmark_time_seconds"`
	Successes struct {
		Count   int                  `json:"count"`
		Latency map[string]toolStats `json:"latency"`
		Rates   struct {
			Input    *float64 `json:"input_tokens_per_sec"`
			Output   *float64 `json:"output_tokens_per_sec"`
			Total    *float64 `json:"total_tokens_per_sec"`
			Requests *float64 `json:"requests_per_sec"`
		} `json:"throughput"`
	} `json:"successes"`
	Failures struct {
		Count  int            `json:"count"`
		Labels map[string]any `json:"by_label"`
	} `json:"failures"`
}

// readInferencePerf reads the reports of all stages.
func readInferencePerf(folder string, s experiment.Scenario) (*experiment.Metrics, error) {
	files, err := filepath.Glob(filepath.Join(folder, "stage_*_lifecycle_metrics.json"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%w: inference-perf wrote no report of a stage", errNoResult)
	}
	reports := make([]perfReport, len(files))
	for i, file := range files {
		if err := readTool(file, &reports[i]); err != nil {
			return nil, err
		}
	}
	collect := func(of func(perfReport) *float64) (values []*float64) {
		for _, r := range reports {
			values = append(values, of(r))
		}
		return values
	}
	m := &experiment.Metrics{Concurrency: s.Concurrency, Rate: s.Rate}
	for _, r := range reports {
		m.Seconds += r.Seconds
		m.Requests.OK += r.Successes.Count
		m.Requests.Failed += r.Failures.Count
	}
	m.Requests.Sent = m.Requests.OK + m.Requests.Failed
	if m.Requests.Sent > 0 {
		m.ErrorRate = new(float64(m.Requests.Failed) / float64(m.Requests.Sent))
	}
	latency := func(name string) experiment.Distribution {
		return worstOf(m.Requests.OK, func(pick func(toolStats) *float64) []*float64 {
			return collect(func(r perfReport) *float64 { return inMillis(pick(r.Successes.Latency[name]), "s") })
		})
	}
	m.TTFT, m.TPOT = latency("time_to_first_token"), latency("time_per_output_token")
	m.ITL, m.E2E = latency("inter_token_latency"), latency("request_latency")
	m.OutputThroughput = mean(collect(func(r perfReport) *float64 { return r.Successes.Rates.Output }))
	m.InputThroughput = mean(collect(func(r perfReport) *float64 { return r.Successes.Rates.Input }))
	m.TotalThroughput = mean(collect(func(r perfReport) *float64 { return r.Successes.Rates.Total }))
	m.RequestsPerSecond = mean(collect(func(r perfReport) *float64 { return r.Successes.Rates.Requests }))
	return m, nil
}
