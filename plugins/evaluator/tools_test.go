// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/llmctl/llmctl/experiment"
)

// script writes an executable and returns the directory to put on the PATH.
func script(t *testing.T, name, text string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700))
	return dir
}

// onPath is an environment with a directory before the others.
func onPath(dir string, more ...string) Environment {
	environ := append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	values := map[string]string{"KEY": "sk-secret"}
	return Environment{Getenv: func(name string) string { return values[name] }, Environ: append(environ, more...)}
}

func measure(t *testing.T, s *experiment.Spec, e Environment) (*experiment.Metrics, string, error) {
	t.Helper()
	plan, problems := Read(s, e)
	require.Empty(t, problems)
	var log bytes.Buffer
	m, err := plan.Evaluator.Evaluate(t.Context(), experiment.Target{BaseURL: "http://engine:8000", Model: "m"},
		experiment.Traffic{Scenario: s.Scenario, Objectives: s.Objectives, Seed: 7, Log: &log})
	return m, log.String(), err
}

func execSpec(command ...any) *experiment.Spec {
	return spec(func(s *experiment.Spec) {
		s.Evaluator = experiment.Plugin{Type: "exec", Config: map[string]any{"command": command, "apiKey": "env:KEY", "env": map[string]any{"MORE": "x"}}}
		s.Scenario.Duration = 90 * time.Second
	})
}

func TestACommandMeasures(t *testing.T) {
	dir := script(t, "measure", `#!/bin/sh
env | grep -E '^(LLMCTL_|MORE)' | grep -v METRICS_FILE | sort
echo "key: $LLMCTL_API_KEY"
cat > "$LLMCTL_METRICS_FILE" <<END
{"ttft": {"p99": 12.5, "n": 10}, "tpot": {"p99": NaN}, "outputThroughput": 100, "e2e": {"mean": -Infinity}, "warnings": ["NaN stays in text"]}
END
`)
	m, log, err := measure(t, execSpec(filepath.Join(dir, "measure"), "now"), onPath(dir))
	require.NoError(t, err)
	assert.Equal(t, 12.5, *m.TTFT.P99)
	assert.Nil(t, m.TPOT.P99)
	assert.Equal(t, 100.0, *m.OutputThroughput)
	assert.Equal(t, []string{"NaN stays in text", "2 numbers of the command's metrics were NaN or infinite and are treated as not measured"}, m.Warnings)
	assert.Equal(t, `LLMCTL_API_KEY=[redacted]
LLMCTL_BASE_URL=http://engine:8000
LLMCTL_CONCURRENCY=4
LLMCTL_DURATION_SECONDS=90
LLMCTL_MAX_REQUESTS=16
LLMCTL_MODEL=m
LLMCTL_SEED=7
LLMCTL_WARM=false
LLMCTL_WORKLOAD=fixed(40,8)
MORE=x
key: [redacted]
`, log)
}

func TestSecretsOfTheEnvironmentAreNotLogged(t *testing.T) {
	dir := script(t, "measure", "#!/bin/sh\necho $TOKEN\necho '{}' > $LLMCTL_METRICS_FILE\n")
	s := execSpec(filepath.Join(dir, "measure"))
	s.Evaluator.Config["env"] = map[string]any{"TOKEN": "env:KEY"}
	delete(s.Evaluator.Config, "apiKey")
	_, log, err := measure(t, s, onPath(dir))
	require.NoError(t, err)
	assert.Equal(t, "[redacted]\n", log)
}

// What a secret is made of is seen line by line, and often without its last line end.
func TestSecretsOfSeveralLinesAreNotLogged(t *testing.T) {
	var log bytes.Buffer
	r := newRedactor(&log, []string{"sk-abcdef\n", "-----BEGIN KEY-----\r\nMIIEow==\r\nab\r\n-----END KEY-----\r\n", " \n"})
	for _, line := range []string{"key [sk-abcdef]\n", "-----BEGIN KEY-----\n", "MIIEow==\n", "ab\n"} {
		_, err := r.Write([]byte(line))
		require.NoError(t, err)
	}
	assert.Equal(t, "key [[redacted]]\n[redacted]\n[redacted]\nab\n", log.String())
}

// A progress bar returns to the start of its line and never ends it.
func TestAProgressBarIsLoggedAsItMoves(t *testing.T) {
	var log bytes.Buffer
	r := newRedactor(&log, []string{"secret", "sk-secret"})
	_, err := r.Write([]byte("10 %\r20 % sk-sec"))
	require.NoError(t, err)
	assert.Equal(t, "10 %\r", log.String())
	_, err = r.Write([]byte("ret\r"))
	require.NoError(t, err)
	assert.Equal(t, "10 %\r20 % [redacted]\r", log.String())
}

// A17: what cannot be read is an error that names the file, and no number.
func TestACommandWithoutAResultIsAnError(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"no file":        {"exit 0", "no result: the command wrote no $LLMCTL_METRICS_FILE"},
		"no file, fails": {"echo 'no GPU'; exit 3", "exit status 3; its last words: no GPU"},
		"an empty file":  {": > $LLMCTL_METRICS_FILE", "no result: $LLMCTL_METRICS_FILE is empty"},
		"not JSON":       {"echo Not Found > $LLMCTL_METRICS_FILE", "it begins with: Not Found"},
		"more than one":  {`echo '{} {}' > $LLMCTL_METRICS_FILE`, "something follows the object; it begins with: {} {}"},
		"unknown key":    {`echo '{"tfft": {}}' > $LLMCTL_METRICS_FILE`, `unknown field "tfft"`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := script(t, "measure", "#!/bin/sh\n"+c.script+"\n")
			_, _, err := measure(t, execSpec(filepath.Join(dir, "measure")), onPath(dir))
			require.ErrorContains(t, err, c.want)
		})
	}
	_, _, err := measure(t, execSpec("/none"), onPath(t.TempDir()))
	require.ErrorContains(t, err, "start /none: ")
}

func TestAResultCountsWhateverTheExitCode(t *testing.T) {
	dir := script(t, "measure", "#!/bin/sh\necho '{\"outputThroughput\": 1}' > $LLMCTL_METRICS_FILE\nexit 3\n")
	m, _, err := measure(t, execSpec(filepath.Join(dir, "measure")), onPath(dir))
	require.NoError(t, err)
	require.Len(t, m.Warnings, 1)
	assert.Contains(t, m.Warnings[0], "the command gave metrics, but ")
}

// Nothing that the command started outlives it.
func TestACancelledCommandEndsWithAllThatItStarted(t *testing.T) {
	dir := script(t, "measure", "#!/bin/sh\nsleep 1000 &\necho $! > child\nwait\n")
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("interrupted")
	done := make(chan error, 1)
	go func() {
		done <- process{argv: []string{filepath.Join(dir, "measure")}, dir: dir, environ: os.Environ(), log: io.Discard}.run(ctx)
	}()
	var child int
	require.Eventually(t, func() bool {
		data, err := os.ReadFile(filepath.Join(dir, "child"))
		if err != nil {
			return false
		}
		n, err := fmt.Sscan(string(data), &child)
		return n == 1 && err == nil
	}, 10*time.Second, 5*time.Millisecond)
	cancel(stop)
	require.ErrorIs(t, <-done, stop)
	require.Eventually(t, func() bool { return syscall.Kill(child, 0) != nil }, 10*time.Second, 5*time.Millisecond)
}

func toolSpec(kind string, change ...func(*experiment.Spec)) *experiment.Spec {
	return spec(append([]func(*experiment.Spec){func(s *experiment.Spec) {
		s.Scenario = experiment.Scenario{Workload: "fixed(128,32)", Concurrency: 8, MaxRequests: 80}
		s.Evaluator = experiment.Plugin{Type: kind, Config: map[string]any{"tokenizerSource": "/tok", "apiKey": "env:KEY"}}
	}}, change...)...)
}

// The recorded files are of a real run of genai-bench 0.0.5 against the simulated engine.
func TestGenAIBenchIsRunAndItsFilesAreRead(t *testing.T) {
	results, err := filepath.Abs("testdata/genai-bench")
	require.NoError(t, err)
	dir := script(t, "genai-bench", `#!/bin/sh
echo "argv: $*"
echo "key: $MODEL_API_KEY"
while [ $# -gt 0 ]; do [ "$1" = --experiment-base-dir ] && dir=$2; shift; done
mkdir "$dir/run" && cp `+results+`/*.json "$dir/run"
echo '{}' > "$dir/run/experiment_metadata.json"
`)
	m, log, err := measure(t, toolSpec("genai-bench"), onPath(dir, "MODEL_API_KEY=another"))
	require.NoError(t, err)
	assert.Regexp(t, `^argv: benchmark --api-backend openai --api-base http://engine:8000 --api-key none --api-model-name m --model m --task text-to-text --model-tokenizer /tok --num-concurrency 8 --traffic-scenario D\(128,32\) --max-requests-per-run 80 `, log)
	assert.NotContains(t, log, "sk-secret")
	assert.Contains(t, log, "key: [redacted]")
	assert.Equal(t, experiment.Requests{Sent: 128, OK: 128}, m.Requests)
	assert.InDelta(t, 18.599, *m.TTFT.P50, 0.001)
	assert.InDelta(t, 41.172, *m.TTFT.P99, 0.001)
	assert.InDelta(t, 1.012, *m.TPOT.P50, 0.001)
	assert.InDelta(t, 243.758, *m.E2E.P99, 0.001)
	assert.InDelta(t, 3287.4, *m.OutputThroughput, 0.1)
	assert.InDelta(t, 102.73, *m.RequestsPerSecond, 0.01)
	assert.Equal(t, 0.0, *m.ErrorRate)
	assert.Equal(t, 128, m.TTFT.N)
}

// The recorded files are of a real run of inference-perf 0.7.0 against the simulated engine.
func TestInferencePerfIsRunAndItsFilesAreRead(t *testing.T) {
	results, err := filepath.Abs("testdata/inference-perf")
	require.NoError(t, err)
	dir := script(t, "inference-perf", `#!/bin/sh
cat "$2"
mkdir "$(dirname "$2")/reports" && cp `+results+`/*.json "$(dirname "$2")/reports"
exit 1
`)
	m, log, err := measure(t, toolSpec("inference-perf"), onPath(dir))
	require.NoError(t, err)
	assert.NotContains(t, log, "sk-secret")
	var config map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(log), &config))
	assert.Equal(t, map[string]any{"type": "vllm", "model_name": "m", "base_url": "http://engine:8000", "ignore_eos": true, "api_key": []any{"redacted"}}, config["server"])
	assert.Equal(t, []any{map[string]any{"num_requests": 80.0, "concurrency_level": 8.0}}, config["load"].(map[string]any)["stages"])
	assert.Equal(t, experiment.Requests{Sent: 80, OK: 80}, m.Requests)
	assert.InDelta(t, 3.5866, *m.TTFT.P50, 0.001)
	assert.InDelta(t, 6.6274, *m.TTFT.P99, 0.001)
	assert.InDelta(t, 0.6961, *m.TPOT.P50, 0.001)
	assert.InDelta(t, 0.6795, *m.ITL.P50, 0.001)
	assert.InDelta(t, 28.36, *m.E2E.P99, 0.01)
	assert.InDelta(t, 2522.67, *m.OutputThroughput, 0.01)
	require.Len(t, m.Warnings, 1)
	assert.Contains(t, m.Warnings[0], "there is a result, but ")
}

func TestInferencePerfIsToldTheScenarioInItsOwnWords(t *testing.T) {
	dir := script(t, "inference-perf", "#!/bin/sh\ncat \"$2\"\n")
	for name, c := range map[string]struct {
		change func(*experiment.Spec)
		want   string // JSON of data and stages
	}{
		"poisson": {func(s *experiment.Spec) {
			s.Scenario = experiment.Scenario{Workload: "normal(100,20/50,10)", Rate: 5, Arrival: "poisson", MaxRequests: 100}
		}, `[{"type":"random","input_distribution":{"type":"normal","min":1,"max":160,"mean":100,"std_dev":20},"output_distribution":{"type":"normal","min":1,"max":80,"mean":50,"std_dev":10}},"poisson",[{"rate":5,"duration":20}]]`},
		"conversations": {func(s *experiment.Spec) {
			s.Scenario = experiment.Scenario{Workload: "conversation_replay", Concurrency: 2, MaxRequests: 9}
			s.Evaluator.Config["conversationReplay"] = map[string]any{"numConversations": 3, "sharedSystemPromptLen": 20, "inputTokensPerTurn": 7,
				"outputTokensPerTurn": map[string]any{"type": "uniform", "min": 2, "max": 4}, "toolCallLatencySec": 2, "seed": 5}
		}, `[{"type":"conversation_replay","conversation_replay":{"seed":5,"num_conversations":3,"shared_system_prompt_len":20,"dynamic_system_prompt_len":null,
			"turns_per_conversation":{"type":"fixed","min":1,"max":1,"mean":1,"std_dev":0},"input_tokens_per_turn":{"type":"fixed","min":7,"max":7,"mean":7,"std_dev":0},
			"output_tokens_per_turn":{"type":"uniform","min":2,"max":4,"mean":3,"std_dev":0},"tool_call_latency_sec":{"type":"fixed","min":2,"max":2,"mean":2,"std_dev":0}}},
			"concurrent",[{"num_requests":9,"concurrency_level":2}]]`},
		"conversations without what may be left out": {func(s *experiment.Spec) {
			s.Scenario = experiment.Scenario{Workload: "conversation_replay", Concurrency: 2, MaxRequests: 9}
			s.Evaluator.Config["baseSeed"] = 7
			s.Evaluator.Config["conversationReplay"] = map[string]any{"numConversations": 3, "sharedSystemPromptLen": 0, "inputTokensPerTurn": 7,
				"dynamicSystemPromptLen": map[string]any{"type": "uniform", "min": 0, "max": 4}, "outputTokensPerTurn": 5, "toolCallLatencySec": 0}
		}, `[{"type":"conversation_replay","conversation_replay":{"seed":7,"num_conversations":3,"shared_system_prompt_len":0,
			"dynamic_system_prompt_len":{"type":"uniform","min":0,"max":4,"mean":2,"std_dev":0},
			"turns_per_conversation":{"type":"fixed","min":1,"max":1,"mean":1,"std_dev":0},"input_tokens_per_turn":{"type":"fixed","min":7,"max":7,"mean":7,"std_dev":0},
			"output_tokens_per_turn":{"type":"fixed","min":5,"max":5,"mean":5,"std_dev":0},"tool_call_latency_sec":null}},
			"concurrent",[{"num_requests":9,"concurrency_level":2}]]`},
	} {
		t.Run(name, func(t *testing.T) {
			_, log, err := measure(t, toolSpec("inference-perf", c.change), onPath(dir))
			require.ErrorIs(t, err, errNoResult)
			var config map[string]any
			require.NoError(t, yaml.Unmarshal([]byte(log), &config))
			load := config["load"].(map[string]any)
			have, err := json.Marshal([]any{config["data"], load["type"], load["stages"]})
			require.NoError(t, err)
			assert.JSONEq(t, c.want, string(have))
		})
	}
}

func TestWhatAToolCannotDoIsSaidBeforeTheRun(t *testing.T) {
	dir := script(t, "genai-bench", "#!/bin/sh\n")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "inference-perf"), []byte("#!/bin/sh\n"), 0o700))
	for want, s := range map[string]*experiment.Spec{
		"scenario.workload: lognormal(9,1/9,1) is not for evaluator genai-bench": toolSpec("genai-bench", func(s *experiment.Spec) { s.Scenario.Workload = "lognormal(9,1/9,1)" }),
		"scenario.rate: is not for evaluator genai-bench":                        toolSpec("genai-bench", func(s *experiment.Spec) { s.Scenario.Concurrency, s.Scenario.Rate = 0, 1 }),
		"evaluator.config.apiType: completions is not for evaluator genai-bench": toolSpec("genai-bench", func(s *experiment.Spec) { s.Evaluator.Config["apiType"] = "completions" }),
		"evaluator.config.tokenizerSource: is required by evaluator genai-bench": toolSpec("genai-bench", func(s *experiment.Spec) { delete(s.Evaluator.Config, "tokenizerSource") }),
		"evaluator.config.baseSeed: is not for evaluator genai-bench, but for":   toolSpec("genai-bench", func(s *experiment.Spec) { s.Evaluator.Config["baseSeed"] = 1 }),
		"evaluator.config.streaming: must be true":                               toolSpec("inference-perf", func(s *experiment.Spec) { s.Evaluator.Config["streaming"] = false }),
		"scenario.arrival: gamma is not for evaluator inference-perf": toolSpec("inference-perf", func(s *experiment.Spec) {
			s.Scenario.Concurrency, s.Scenario.Rate, s.Scenario.Arrival = 0, 1, "gamma(0.5)"
		}),
		"scenario.maxRequests: is required by evaluator inference-perf": toolSpec("inference-perf", func(s *experiment.Spec) { s.Scenario.MaxRequests = 0 }),
		"scenario.trace: is for evaluator native": toolSpec("inference-perf", func(s *experiment.Spec) {
			s.Scenario = experiment.Scenario{Trace: "/t.csv"}
			s.Scenario.MaxRequests = 1
		}),
		"evaluator.config.apiType: chat is for evaluator inference-perf with": toolSpec("inference-perf", func(s *experiment.Spec) { s.Evaluator.Config["apiType"] = "chat" }),
		"evaluator.config.command: must be a list":                            execSpec(),
	} {
		_, problems := Read(s, onPath(dir))
		require.NotEmpty(t, problems, want)
		assert.Contains(t, problems[0].String(), want)
	}
	_, missing := Read(toolSpec("genai-bench"), Environment{Getenv: onPath(dir).Getenv, Environ: []string{"PATH=" + t.TempDir()}})
	require.Len(t, missing, 1)
	assert.Equal(t, "evaluator.type: genai-bench is not on the PATH: pip install genai-bench==0.0.5", missing[0].String())
}

// The worst latency and the mean throughput of several files count, and a NaN is nothing.
func TestSeveralResultFilesGiveTheWorstLatencyAndTheMeanThroughput(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("stage_0_lifecycle_metrics.json", `{"successes": {"count": 3, "latency": {"time_to_first_token": {"p99": 0.5, "median": NaN}}, "throughput": {"output_tokens_per_sec": 100}}, "failures": {"count": 1}}`)
	write("stage_1_lifecycle_metrics.json", `{"successes": {"count": 4, "latency": {"time_to_first_token": {"p99": 0.25, "median": 0.1}}, "throughput": {"output_tokens_per_sec": 300}}, "failures": {"count": 0}}`)
	m, err := readInferencePerf(dir, experiment.Scenario{})
	require.NoError(t, err)
	assert.Equal(t, 500.0, *m.TTFT.P99)
	assert.Equal(t, 100.0, *m.TTFT.P50)
	assert.Equal(t, 200.0, *m.OutputThroughput)
	assert.Equal(t, 0.125, *m.ErrorRate)
	write("stage_2_lifecycle_metrics.json", " ")
	_, err = readInferencePerf(dir, experiment.Scenario{})
	assert.EqualError(t, err, "no result: stage_2_lifecycle_metrics.json is empty")
}

func TestWordsThatAreNoJSONBecomeNull(t *testing.T) {
	for in, want := range map[string]string{
		`{"a": NaN, "b": [Infinity, -Infinity, -1]}`: `{"a": null, "b": [null, null, -1]}`,
		`{"a": "NaN \" Infinity"}`:                   `{"a": "NaN \" Infinity"}`,
		`NaN`:                                        `null`,
		`N`:                                          `N`,
	} {
		have, _ := withoutNaN([]byte(in))
		assert.Equal(t, want, string(have))
	}
	assert.Equal(t, "a | b | c", strings.TrimSpace((&lastLines{text: []byte("x\na\nb\nc\n")}).String()))
}
