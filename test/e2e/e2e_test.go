// SPDX-License-Identifier: Apache-2.0

// Package e2e runs the built binary as a user would.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/test/bed"
)

// binary is llmctl, built once for all tests.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "llmctl-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "llmctl")
	build := exec.Command("go", "build", "-o", binary, "github.com/llmctl/llmctl/cmd/llmctl")
	build.Stderr = os.Stderr
	code := 1
	if err := build.Run(); err == nil {
		cluster.Config = bed.Config{Llmctl: binary, Log: os.Stderr}
		code = cluster.Main(m)
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// home is a state directory with a way to run llmctl on it.
type home struct {
	t   testing.TB
	dir string
	// onCluster: the engines are the bed's processes and not looked for.
	onCluster bool
}

func newHome(t testing.TB) *home {
	h := &home{t: t, dir: t.TempDir()}
	t.Cleanup(h.noProcessLeft)
	return h
}

func (h *home) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, binary, args...)
	c.Env = append(os.Environ(), "LLMCTL_STATE_DIR="+h.dir, "LLMCTL_CONFIG=/dev/null")
	return c
}

// output is what a finished command left.
type output struct {
	stdout, stderr string
	code           int
}

// llmctl runs a command to its end.
func (h *home) llmctl(args ...string) output {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	c := h.command(ctx, args...)
	c.Stdout, c.Stderr = &stdout, &stderr
	return output{code: exitCode(h.t, c.Run()), stdout: stdout.String(), stderr: stderr.String()}
}

// must runs a command that has to succeed.
func (h *home) must(args ...string) output {
	h.t.Helper()
	out := h.llmctl(args...)
	require.Equal(h.t, 0, out.code, "%v\n%s", args, out.stderr)
	return out
}

func exitCode(t testing.TB, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal())
		}
		return exit.ExitCode()
	}
	require.NoError(t, err)
	return -1
}

// processes lists the running processes whose command line names the state
// directory: guards do, with the path of their record, and so does llmctl here
// only by its environment.
func (h *home) processes() []string {
	out, err := exec.Command("ps", "-eo", "pid,args").Output()
	require.NoError(h.t, err)
	var found []string
	for _, line := range strings.Split(string(out), "\n") {
		engine := strings.Contains(line, binary) && strings.Contains(line, "simulate")
		if strings.Contains(line, h.dir) || (engine && !h.onCluster) {
			found = append(found, line)
		}
	}
	return found
}

// noProcessLeft waits for guards that are just ending what a killed run left.
func (h *home) noProcessLeft() {
	h.t.Helper()
	require.Eventually(h.t, func() bool { return len(h.processes()) == 0 }, 20*time.Second, 20*time.Millisecond,
		"processes are left: %v", h.processes)
}

// result is status -o json.
func (h *home) result(name string) experiment.Result {
	h.t.Helper()
	var r struct {
		experiment.Result
		Config map[string]any `json:"config"`
	}
	require.NoError(h.t, json.Unmarshal([]byte(h.must("autobench", "status", name, "-o", "json").stdout), &r))
	return r.Result
}

// file writes an experiment: the quickstart with its templates, on the engine's
// pure model so that figures are exact, changed as asked.
func file(t testing.TB, changes ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"experiment.yaml", "graphs.yaml", "eager.yaml"} {
		data, err := os.ReadFile(filepath.Join("../../examples/quickstart", name))
		require.NoError(t, err)
		text := strings.NewReplacer("startup-time=500ms", "startup-time=0s", "startup-time 500ms", "startup-time 0s").Replace(string(data))
		if name == "experiment.yaml" {
			// The model's figures are those of an engine at its own speed.
			text = strings.NewReplacer("ttftP99MaxMs: 450", "ttftP99MaxMs: 900", "tpotP99MaxMs: 5.7", "tpotP99MaxMs: 11.4").Replace(text)
			text += "\nevaluator:\n  type: model\n"
			text = strings.NewReplacer(changes...).Replace(text)
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return filepath.Join(dir, "experiment.yaml")
}

// S34: a prompt and answer that cannot fit the engine's context are told before
// anything is started, and a trial whose context is too short is not deployed.
func TestRequestsBeyondTheContextAreNotTried(t *testing.T) {
	h := newHome(t)
	out := h.llmctl("autobench", "validate", "-f", file(t, "fixed(512,64)", "fixed(4096000,64)"))
	assert.Equal(t, 0, out.code, "the template does not limit the context")
	path := file(t, "maxNumSeqs: {type: pow2, min: 8, max: 64}", "maxModelLen: {type: categorical, values: [500, 4096]}",
		"    maxNumBatchedTokens: {type: pow2, min: 256, max: 4096}\n", "", "algorithm: qmc", "algorithm: grid", "maxTrialsPerTemplate: 8", "maxTrialsPerTemplate: 3")
	h.llmctl("autobench", "run", "-f", path, "--name", "demo")
	trial := h.result("demo").Templates[0].Trials[1]
	assert.Equal(t, "config_error", trial.Reason)
	assert.Equal(t, `container "engine": requests have up to 576 tokens, prompt and answer together, but the engine's context is limited to 500`, trial.Error)
	assert.Empty(t, trial.Phases, "nothing was deployed")

	rewrite(t, filepath.Join(filepath.Dir(path), "graphs.yaml"), "- --max-num-seqs=16", "- --max-model-len=500")
	out = h.llmctl("autobench", "validate", "-f", path)
	assert.Equal(t, 2, out.code)
	assert.Contains(t, out.stderr, "templates[0].template: container \"engine\": requests have up to 576 tokens")
}

// Every example that needs no GPU runs to its end from the root of the repository
// and finds a winner.
func TestTheExamplesRun(t *testing.T) {
	for name, check := range map[string]func(t *testing.T, r experiment.Result){
		"conversations": func(t *testing.T, r experiment.Result) {
			for _, trial := range r.Templates[0].Trials {
				assert.Greater(t, trial.Metrics.Requests.OK, 24, "several turns of 24 conversations")
				if trial.Metrics.Partial == "" {
					assert.Equal(t, 88, trial.Metrics.Requests.Sent, "the same conversations in every trial")
				}
			}
		},
		"rate-sweep": func(t *testing.T, r experiment.Result) {
			for _, trial := range r.Templates[0].Trials {
				assert.Contains(t, []float64{20, 80, 160}, trial.Metrics.Rate)
				assert.NotNil(t, trial.Metrics.SendDelay.P99)
			}
		},
		"exec": func(t *testing.T, r experiment.Result) {
			assert.Equal(t, 20, r.Templates[0].Trials[0].Metrics.Requests.OK)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			c := h.command(t.Context(), "autobench", "run", "-f", filepath.Join("examples", name, "experiment.yaml"), "--name", name)
			c.Dir = "../.."
			out, err := c.CombinedOutput()
			require.NoError(t, err, "%s", out)
			r := h.result(name)
			require.NotNil(t, r.Best)
			assert.Len(t, r.Templates[0].Trials, 3)
			check(t, r)
		})
	}
}

func TestRunInterruptResumeStatusBest(t *testing.T) {
	h := newHome(t)
	path := file(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stderr bytes.Buffer
	c := h.command(ctx, "autobench", "run", "-f", path, "--name", "demo")
	c.Stderr = &stderr
	require.NoError(t, c.Start())
	require.Eventually(t, func() bool { return trials(h.dir, "demo") >= 3 }, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, c.Process.Signal(os.Interrupt))
	require.Equal(t, 130, exitCode(t, c.Wait()))
	assert.Contains(t, stderr.String(), "go on with: llmctl autobench resume demo")
	h.noProcessLeft()

	interrupted := h.result("demo")
	require.Equal(t, experiment.Interrupted, interrupted.Status)
	done := len(interrupted.Templates[0].Trials)
	require.GreaterOrEqual(t, done, 3)

	h.must("autobench", "resume", "demo")
	finished := h.result("demo")
	assert.Equal(t, experiment.Completed, finished.Status)
	assert.Equal(t, interrupted.Templates[0].Trials, finished.Templates[0].Trials[:done], "finished trials are not run again")
	assert.Len(t, finished.Templates[0].Trials, 8)
	assert.Equal(t, "maxTrialsPerTemplate 8 reached", finished.Templates[0].TerminationReason)
	assert.Equal(t, "SLA failure rate 1.00 (3 of 3 measured trials) reached maxSLAFailureRate 1", finished.Templates[1].TerminationReason)
	require.NotNil(t, finished.Best)
	assert.Equal(t, "graphs", finished.Best.Template)
	assert.Greater(t, *finished.Best.Gain, 0.3)

	best := h.must("autobench", "best", "demo", "-o", "yaml")
	assert.Empty(t, best.stderr)
	stored, err := os.ReadFile(filepath.Join(h.dir, "demo", "best_trial.yaml"))
	require.NoError(t, err)
	assert.Equal(t, string(stored), best.stdout)
	template, err := os.ReadFile(filepath.Join(filepath.Dir(path), "graphs.yaml"))
	require.NoError(t, err)
	changed := difference(string(template), best.stdout)
	assert.Equal(t, []string{
		"-        - --max-num-seqs=16",
		fmt.Sprintf("+        - --max-num-seqs=%s", finished.Best.Params["default"]["maxNumSeqs"]),
		"+        - --max-num-batched-tokens",
		fmt.Sprintf("+        - %q", finished.Best.Params["default"]["maxNumBatchedTokens"]),
	}, changed, "only the tuned flags differ from the user's own manifest")

	assert.Contains(t, h.must("autobench", "status", "demo").stdout, "feasible*")
	assert.Contains(t, h.must("autobench", "logs", "demo").stdout, "going on after")
	assert.Contains(t, h.must("autobench", "logs", "demo", "--trial", "graphs/0").stdout, "128 requests at concurrency 32")
	assert.Contains(t, h.must("autobench", "logs", "demo", "--trial", "graphs/0", "--pod").stdout, "startup complete")
	assert.Equal(t, "autobench/demo\n", h.must("autobench", "list", "-o", "name").stdout)
	h.must("autobench", "delete", "demo")
	assert.Contains(t, h.must("autobench", "list").stderr, "No experiments found")
}

// difference lists the lines that are in one text only, in order.
func difference(a, b string) []string {
	var lines []string
	inB := map[string]bool{}
	for _, line := range strings.Split(b, "\n") {
		inB[line] = true
	}
	inA := map[string]bool{}
	for _, line := range strings.Split(a, "\n") {
		inA[line] = true
		if !inB[line] {
			lines = append(lines, "-"+line)
		}
	}
	for _, line := range strings.Split(b, "\n") {
		if !inA[line] {
			lines = append(lines, "+"+line)
		}
	}
	return lines
}

// trials counts the finished trials of the first template from its checkpoint.
func trials(dir, name string) int {
	data, err := os.ReadFile(filepath.Join(dir, name, "templates", "graphs.json"))
	if err != nil {
		return 0
	}
	var st experiment.TemplateState
	if json.Unmarshal(data, &st) != nil {
		return 0
	}
	return len(st.Trials)
}

func TestTheSecondCtrlCEndsAtOnceAndTheEngineStillGoes(t *testing.T) {
	h := newHome(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := h.command(ctx, "autobench", "run", "-f", file(t, "type: model", "type: native"), "--name", "demo")
	require.NoError(t, c.Start())
	require.Eventually(t, func() bool { return len(h.processes()) > 1 }, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, c.Process.Signal(os.Interrupt))
	_ = c.Process.Signal(os.Interrupt) // may come after the end
	assert.Equal(t, 130, exitCode(t, c.Wait()))
}

// The loop with the real load generator, streams and all.
func TestMeasuredTrialsHaveTheirFigures(t *testing.T) {
	h := newHome(t)
	path := file(t, "type: model", "type: native", "ttftP99MaxMs: 900", "ttftP99MaxMs: 60000", "tpotP99MaxMs: 11.4", "tpotP99MaxMs: 1000",
		"maxTrialsPerTemplate: 8", "maxTrialsPerTemplate: 2", "fixed(512,64)", "uniform(20,60/8,16)", "maxRequests: 128", "maxRequests: 64")
	h.must("autobench", "run", "-f", path, "--name", "demo")
	r := h.result("demo")
	require.Equal(t, experiment.Completed, r.Status)
	for _, template := range r.Templates {
		require.Len(t, template.Trials, 2)
		for _, trial := range template.Trials {
			require.Empty(t, trial.Error)
			m := trial.Metrics
			assert.Equal(t, 64, m.Requests.Sent)
			assert.Equal(t, 64, m.Requests.OK)
			assert.Equal(t, 64, m.TTFT.N)
			assert.Positive(t, *m.TTFT.P50)
			assert.Positive(t, *m.TPOT.P99)
			assert.Positive(t, *m.OutputThroughput)
			assert.Zero(t, *m.ErrorRate)
			assert.Equal(t, experiment.Feasible, trial.Outcome())
		}
	}
	assert.NotEmpty(t, h.must("autobench", "logs", "demo", "--trial", "graphs/1").stdout)
}

func TestExitCodesAndMessages(t *testing.T) {
	h := newHome(t)
	hopeless := file(t, "ttftP99MaxMs: 900", "ttftP99MaxMs: 1", "maxTrialsPerTemplate: 8", "maxTrialsPerTemplate: 2")
	out := h.llmctl("autobench", "run", "-f", hopeless, "--name", "hopeless")
	assert.Equal(t, 3, out.code)
	assert.Contains(t, out.stderr, "error: nothing met the SLA; nearest miss: trial")
	out = h.llmctl("autobench", "best", "hopeless", "-o", "yaml")
	assert.Equal(t, 3, out.code)
	assert.Empty(t, out.stdout)
	assert.Contains(t, out.stderr, "nearest miss: trial")
	assert.NoFileExists(t, filepath.Join(h.dir, "hopeless", "best_trial.yaml"))

	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no such experiment":     {[]string{"status", "hopeles"}, 1, `experiment "hopeles" not found in ` + h.dir + "; did you mean hopeless?"},
		"path trick":             {[]string{"status", "../x"}, 1, "experiment name must be lower-case"},
		"taken name":             {[]string{"run", "-f", hopeless, "--name", "hopeless"}, 1, `experiment "hopeless" already exists`},
		"bad name":               {[]string{"run", "-f", hopeless, "--name", "A"}, 2, "--name: must be lower-case"},
		"no file flag":           {[]string{"run"}, 2, "-f is required"},
		"no file":                {[]string{"run", "-f", "none.yaml"}, 1, "read experiment file: open none.yaml: no such file or directory"},
		"unknown verb":           {[]string{"stauts"}, 2, `unknown command "stauts" for "llmctl autobench"; did you mean "status"?`},
		"unknown flag":           {[]string{"run", "--bogus"}, 2, "unknown flag: --bogus"},
		"unknown format":         {[]string{"list", "-o", "xml"}, 2, "--output xml is not known"},
		"two names":              {[]string{"best", "a", "b"}, 2, "takes the name of one experiment"},
		"pod without trial":      {[]string{"logs", "hopeless", "--pod"}, 2, "--pod goes with --trial"},
		"no such trial":          {[]string{"logs", "hopeless", "--trial", "graphs/77"}, 1, "has no trial graphs/77"},
		"malformed trial":        {[]string{"logs", "hopeless", "--trial", "graphs"}, 2, "--trial must be TEMPLATE/INDEX"},
		"invalid file":           {[]string{"validate", "-f", file(t, "backend: simulator", "backend: simulater")}, 2, "backend: "},
		"unwritable state dir":   {[]string{"run", "-f", hopeless, "--state-dir", "/proc/none"}, 1, "/proc/none"},
		"state dir is a file":    {[]string{"run", "-f", hopeless, "--state-dir", hopeless}, 1, "choose another --state-dir"},
		"algorithm is not yet":   {[]string{"validate", "-f", file(t, "algorithm: qmc", "algorithm: tpe")}, 2, "strategy.algorithm: tpe: not yet"},
		"parameter of no engine": {[]string{"validate", "-f", file(t, "maxNumSeqs:", "maxNumSequences:")}, 2, "maxNumSequences"},
		"misspelt trial budget":  {[]string{"validate", "-f", file(t, "maxTrialsPerTemplate", "maxTrials")}, 2, "strategy.maxTrials: unknown key; did you mean"},
	} {
		t.Run(name, func(t *testing.T) {
			out := h.llmctl(append([]string{"autobench"}, c.args...)...)
			assert.Equal(t, c.code, out.code, out.stderr)
			assert.Contains(t, out.stderr, c.want)
			assert.Empty(t, out.stdout)
		})
	}
}

func TestATimedOutExperimentGoesOn(t *testing.T) {
	h := newHome(t)
	path := file(t, "seed: 2", "seed: 2\n  timeout: 100ms")
	out := h.llmctl("autobench", "run", "-f", path, "--name", "demo")
	require.Equal(t, 4, out.code, out.stderr)
	assert.Contains(t, out.stderr, "strategy.timeout reached; go on with")
	assert.Equal(t, experiment.TimedOut, h.result("demo").Status)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, bytes.Replace(data, []byte("timeout: 100ms"), []byte("timeout: 5m"), 1), 0o600))
	assert.Contains(t, h.must("autobench", "resume", "demo").stderr, "taking up strategy.timeout: was 100ms, is 5m0s")
	assert.Equal(t, experiment.Completed, h.result("demo").Status)
}

func TestASecondRunIsRefusedWhileTheFirstIsAlive(t *testing.T) {
	h := newHome(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	path := file(t, "type: model", "type: native")
	c := h.command(ctx, "autobench", "run", "-f", path, "--name", "demo")
	require.NoError(t, c.Start())
	require.Eventually(t, func() bool { return len(h.processes()) > 1 }, 30*time.Second, 5*time.Millisecond)
	for _, args := range [][]string{{"run", "-f", path, "--name", "demo"}, {"resume", "demo"}, {"delete", "demo"}} {
		out := h.llmctl(append([]string{"autobench"}, args...)...)
		assert.Equal(t, 5, out.code, out.stderr)
		assert.Contains(t, out.stderr, `experiment "demo" is locked by another run (pid `+fmt.Sprint(c.Process.Pid))
	}
	assert.Contains(t, h.must("autobench", "status").stdout, "running")
	require.NoError(t, c.Process.Signal(os.Interrupt))
	assert.Equal(t, 130, exitCode(t, c.Wait()))
}

func TestResumeJudgesAgainOrRefuses(t *testing.T) {
	h := newHome(t)
	path := file(t, "maxTrialsPerTemplate: 8", "maxTrialsPerTemplate: 3")
	h.must("autobench", "run", "-f", path, "--name", "demo")
	before := h.result("demo")
	require.NotNil(t, before.Best)
	original, err := os.ReadFile(path)
	require.NoError(t, err)
	edit := func(from, to string) {
		require.NoError(t, os.WriteFile(path, bytes.Replace(original, []byte(from), []byte(to), 1), 0o600))
	}

	edit("concurrency: 32", "concurrency: 16")
	out := h.llmctl("autobench", "resume", "demo")
	assert.Equal(t, 2, out.code)
	assert.Contains(t, out.stderr, "scenario.concurrency: was 32, is 16")

	edit("ttftP99MaxMs: 900", "ttftP99MaxMs: 1")
	out = h.llmctl("autobench", "resume", "demo")
	assert.Equal(t, 3, out.code, out.stderr)
	after := h.result("demo")
	assert.Nil(t, after.Best)
	require.Len(t, after.Templates[0].Trials, 3)
	for i, trial := range after.Templates[0].Trials {
		assert.Equal(t, experiment.Violated, trial.Outcome())
		assert.Equal(t, before.Templates[0].Trials[i].Metrics, trial.Metrics, "nothing is measured again")
	}
	assert.NoFileExists(t, filepath.Join(h.dir, "demo", "best_trial.yaml"))
}

func TestDryRunPrintsTheTrialsAndLeavesNothing(t *testing.T) {
	h := newHome(t)
	out := h.must("autobench", "run", "-f", file(t), "--dry-run")
	assert.Contains(t, out.stdout, "graphs/0   template unchanged")
	assert.Contains(t, out.stdout, "graphs/7   maxNumBatchedTokens=")
	entries, err := os.ReadDir(h.dir)
	require.NoError(t, err)
	assert.Empty(t, entries)
}

func TestErroredTrialsCarryTheEnginesOwnCause(t *testing.T) {
	h := newHome(t)
	path := file(t, "maxNumSeqs: {type: pow2, min: 8, max: 64}", "gpuMemoryUtilization: {type: categorical, values: [0.99]}\n    maxModelLen: {type: categorical, values: [8192, 4096]}",
		"maxTrialsPerTemplate: 8", "maxTrialsPerTemplate: 3", "    maxNumBatchedTokens: {type: pow2, min: 256, max: 4096}\n", "")
	h.must("autobench", "run", "-f", path, "--name", "demo")
	r := h.result("demo")
	trial := r.Templates[0].Trials[1]
	assert.Equal(t, "gpu_oom", trial.Reason)
	assert.Contains(t, trial.Error, "exit code 1")
	assert.Equal(t, experiment.Feasible, r.Templates[0].Trials[0].Outcome())
	out := h.must("autobench", "logs", "demo", "--trial", "graphs/1", "--pod")
	assert.NotEmpty(t, out.stdout)
}
