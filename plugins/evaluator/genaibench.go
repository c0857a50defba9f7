// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/loadgen"
)

// genAIBench measures with genai-bench, as a closed loop over its chat API.
type genAIBench struct{ settings }

// genAIKey holds the API key. The tool prefers it to --api-key, which it insists on
// although anybody can see that in the list of processes.
const genAIKey = "MODEL_API_KEY"

func (e genAIBench) Evaluate(ctx context.Context, t experiment.Target, traffic experiment.Traffic) (*experiment.Metrics, error) {
	script, err := lookPath(typeGenAI, e.environ)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "llmctl-genai-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	p := process{
		argv: append([]string{script}, e.arguments(t, traffic.Scenario, dir)...),
		dir:  dir, environ: append(slices.Clone(e.environ), genAIKey+"="+e.apiKey, "TERM=dumb"),
		log: traffic.Log, secrets: e.secrets,
	}
	return p.measure(ctx, "there is a result", func() (*experiment.Metrics, error) { return readGenAI(filepath.Join(dir, "run")) })
}

func (e genAIBench) arguments(t experiment.Target, s experiment.Scenario, dir string) []string {
	minutes := 24 * 60
	if s.Duration > 0 {
		minutes = int(math.Ceil(s.Duration.Minutes()))
	}
	requests := s.MaxRequests
	if requests == 0 {
		requests = math.MaxInt32
	}
	args := []string{
		"benchmark", "--api-backend", "openai", "--api-base", t.BaseURL, "--api-key", "none", "--api-model-name", t.Model, "--model", t.Model,
		"--task", "text-to-text", "--model-tokenizer", e.tokenizer,
		"--num-concurrency", strconv.Itoa(s.Concurrency), "--traffic-scenario", genAIScenario(e.workload),
		"--max-requests-per-run", strconv.Itoa(requests), "--max-time-per-run", strconv.Itoa(minutes),
		"--metrics-time-unit", "ms", "--additional-request-params", `{"ignore_eos": true}`,
		"--experiment-base-dir", dir, "--experiment-folder-name", "run", "--log-dir", dir,
	}
	ratio := e.warmupRatio
	if e.warmup > 0 && s.MaxRequests > 0 {
		ratio = max(ratio, min(0.9, float64(e.warmup)/float64(s.MaxRequests)))
	}
	if ratio > 0 {
		args = append(args, "--warmup-ratio", strconv.FormatFloat(ratio, 'f', -1, 64))
	}
	return args
}

// genAIScenario words a workload as the tool does; "" where it has no words for it.
func genAIScenario(w loadgen.Workload) string {
	in, out := w.Input, w.Output
	switch in.Shape {
	case loadgen.Fixed:
		return fmt.Sprintf("D(%d,%d)", in.Min, out.Min)
	case loadgen.Normal:
		return fmt.Sprintf("N(%g,%g)/(%g,%g)", math.Round(in.Mean), math.Round(in.StdDev), math.Round(out.Mean), math.Round(out.StdDev))
	case loadgen.Uniform:
		return fmt.Sprintf("U(%d,%d)/(%d,%d)", in.Min, in.Max, out.Min, out.Max)
	}
	return ""
}

// checkGenAI says what of a scenario the tool cannot do.
func checkGenAI(s *settings, scenario experiment.Scenario, problem func(path, format string, args ...any)) {
	if scenario.Workload == datasetWorkload || scenario.Workload == conversationWorkload || s.workload != (loadgen.Workload{}) && genAIScenario(s.workload) == "" {
		problem("scenario.workload", "%s is not for evaluator %s, which takes fixed, normal and uniform", scenario.Workload, typeGenAI)
	}
	if s.api == loadgen.Completions {
		problem("evaluator.config.apiType", "completions is not for evaluator %s, which chats", typeGenAI)
	}
}

// genAIRun is what is read of a run's result file.
type genAIRun struct {
	Unit       string `json:"_time_unit"`
	Aggregated struct {
		Concurrency int                  `json:"num_concurrency"`
		Seconds     float64              `json:"run_duration"`
		Output      *float64             `json:"mean_output_throughput_tokens_per_s"`
		Input       *float64             `json:"mean_input_throughput_tokens_per_s"`
		Total       *float64             `json:"mean_total_tokens_throughput_tokens_per_s"`
		Requests    *float64             `json:"requests_per_second"`
		Errors      map[string]int       `json:"error_codes_frequency"`
		ErrorRate   *float64             `json:"error_rate"`
		Failed      int                  `json:"num_error_requests"`
		Completed   int                  `json:"num_completed_requests"`
		Sent        int                  `json:"num_requests"`
		Stats       map[string]toolStats `json:"stats"`
	} `json:"aggregated_metrics"`
}

// toolStats is a distribution as the tools write it.
type toolStats struct {
	Mean   *float64 `json:"mean"`
	Median *float64 `json:"median"` // inference-perf's p50
	P50    *float64 `json:"p50"`
	P90    *float64 `json:"p90"`
	P95    *float64 `json:"p95"`
	P99    *float64 `json:"p99"`
}

// readGenAI reads the result files of an experiment folder: the worst latency
// and the mean throughput over the runs.
func readGenAI(folder string) (*experiment.Metrics, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	var runs []genAIRun
	for _, file := range files {
		if base := filepath.Base(file); base == "experiment_metadata.json" || strings.HasPrefix(base, "debug_for_run_") {
			continue
		}
		var run genAIRun
		if err := readTool(file, &run); err != nil {
			return nil, err
		}
		runs = append(runs, run)
	}
	if len(runs) == 0 {
		return nil, fmt.Errorf("%w: genai-bench wrote no result file", errNoResult)
	}
	collect := func(of func(genAIRun) *float64) (values []*float64) {
		for _, r := range runs {
			values = append(values, of(r))
		}
		return values
	}
	latency := func(name string) experiment.Distribution {
		n := 0
		for _, r := range runs {
			n += r.Aggregated.Completed
		}
		return worstOf(n, func(pick func(toolStats) *float64) []*float64 {
			return collect(func(r genAIRun) *float64 { return inMillis(pick(r.Aggregated.Stats[name]), r.Unit) })
		})
	}
	m := &experiment.Metrics{
		TTFT: latency("ttft"), TPOT: latency("tpot"), E2E: latency("e2e_latency"),
		OutputThroughput:  mean(collect(func(r genAIRun) *float64 { return r.Aggregated.Output })),
		InputThroughput:   mean(collect(func(r genAIRun) *float64 { return r.Aggregated.Input })),
		TotalThroughput:   mean(collect(func(r genAIRun) *float64 { return r.Aggregated.Total })),
		RequestsPerSecond: mean(collect(func(r genAIRun) *float64 { return r.Aggregated.Requests })),
		ErrorRate:         worst(collect(func(r genAIRun) *float64 { return r.Aggregated.ErrorRate })),
		Concurrency:       runs[0].Aggregated.Concurrency,
	}
	for _, r := range runs {
		a := r.Aggregated
		m.Seconds += a.Seconds
		m.Requests.Sent += a.Sent
		m.Requests.OK += a.Completed
		m.Requests.Failed += a.Failed
		for code, n := range a.Errors {
			if m.Requests.Failures == nil {
				m.Requests.Failures = map[string]int{}
			}
			m.Requests.Failures["http_"+code] += n
		}
	}
	return m, nil
}

// worstOf makes a distribution of the worst of each statistic.
func worstOf(n int, collect func(pick func(toolStats) *float64) []*float64) experiment.Distribution {
	return experiment.Distribution{
		N: n, Mean: worst(collect(func(s toolStats) *float64 { return s.Mean })),
		P50: worst(collect(func(s toolStats) *float64 {
			if s.P50 == nil {
				return s.Median
			}
			return s.P50
		})),
		P90: worst(collect(func(s toolStats) *float64 { return s.P90 })),
		P95: worst(collect(func(s toolStats) *float64 { return s.P95 })),
		P99: worst(collect(func(s toolStats) *float64 { return s.P99 })),
	}
}

func inMillis(v *float64, unit string) *float64 {
	if v == nil || unit == "ms" {
		return v
	}
	return new(*v * 1000)
}

// readTool reads a result file of a tool, with its NaNs as null.
func readTool(file string, into any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return fmt.Errorf("%w: %s is empty", errNoResult, filepath.Base(file))
	}
	clean, _ := withoutNaN(data)
	if err := json.Unmarshal(clean, into); err != nil {
		return fmt.Errorf("%w: %s: %w; it begins with: %.200s", errNoResult, filepath.Base(file), err, bytes.TrimSpace(data))
	}
	return nil
}

// lookPath finds a program on the PATH of the given environment.
func lookPath(name string, environ []string) (string, error) {
	path := ""
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			path = value
		}
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if found, err := exec.LookPath(file); err == nil {
			return filepath.Abs(found)
		}
	}
	return "", fmt.Errorf("%s is not on the PATH: pip install %s", name, toolVersions[name])
}

// Requirement is the tool and version that an evaluator of this name was tested
// with, as pip takes it; "" for others.
func Requirement(name string) string { return toolVersions[name] }

// toolVersions are those that the evaluators were tested with.
var toolVersions = map[string]string{typeGenAI: "genai-bench==0.0.5", typeInference: "inference-perf==0.7.0"}
