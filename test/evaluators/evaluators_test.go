// SPDX-License-Identifier: Apache-2.0

//go:build evaluators

// Package evaluators runs the real genai-bench and inference-perf against the
// simulated engine, and compares what they measure with the native evaluator.
package evaluators

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/evaluator"
	"github.com/llmctl/llmctl/plugins/simulator"
	"github.com/llmctl/llmctl/plugins/simulator/simulatortest"
)

// tools are installed into an environment of their own, since their requirements
// exclude each other.
var tools = []string{"genai-bench", "inference-perf"}

// apis are those that the tools put synthetic prompts on.
var apis = map[string]string{"genai-bench": "chat", "inference-perf": "completions"}

// python finds an interpreter that is new enough, or skips the test and says why.
func python(t *testing.T) string {
	t.Helper()
	candidates := []string{"python3", "python3.12", "python3.13", "python3.14"}
	home, _ := os.UserHomeDir() // without one there are no versions of pyenv
	for _, root := range []string{os.Getenv("PYENV_ROOT"), filepath.Join(home, ".pyenv")} {
		versions, err := filepath.Glob(filepath.Join(root, "versions", "3.*", "bin", "python"))
		require.NoError(t, err)
		candidates = append(candidates, versions...)
	}
	var tried []string
	for _, name := range candidates {
		out, err := exec.Command(name, "-c", "import sys, venv; print(sys.version_info >= (3, 12))").CombinedOutput()
		if err == nil && strings.TrimSpace(string(out)) == "True" {
			return name
		}
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		tried = append(tried, fmt.Sprintf("%s: %s", name, first))
	}
	t.Skipf("genai-bench and inference-perf are not tested: they need Python 3.12 or newer with venv (%s)", strings.Join(tried, "; "))
	return ""
}

// install makes the environment of a tool in the user's cache directory, once for
// each version of it, and returns its bin directory.
func install(t *testing.T, tool string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	requirement := evaluator.Requirement(tool)
	sum := sha256.Sum256([]byte(requirement))
	dir := filepath.Join(cache, "llmctl", "venv", tool+"-"+hex.EncodeToString(sum[:6]))
	bin := filepath.Join(dir, "bin")
	if _, err := os.Stat(filepath.Join(dir, "installed")); err == nil {
		return bin
	}
	interpreter := python(t)
	fmt.Fprintf(os.Stderr, "installing %s into %s (once; takes minutes) …\n", requirement, dir)
	out, err := exec.Command(interpreter, "-m", "venv", "--clear", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(filepath.Join(bin, "pip"), "install", "--quiet", "--disable-pip-version-check", requirement).CombinedOutput()
	if err != nil {
		t.Skipf("%s is not tested: pip cannot install it here: %v\n%s", tool, err, out)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "installed"), nil, 0o600))
	return bin
}

// tokenizer makes one that needs no network.
func tokenizer(t *testing.T, bin string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tokenizer")
	out, err := exec.Command(filepath.Join(bin, "python"), "testdata/tokenizer.py", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

// serve runs the simulated engine at its own speed.
func serve(t *testing.T) experiment.Target {
	t.Helper()
	url := simulatortest.Start(t, simulator.DefaultConfig(), simulator.Options{ServedModelNames: []string{"sim"}, APIKeys: []string{"sk-secret"}})
	return experiment.Target{BaseURL: url, Model: "sim"}
}

func evaluate(t *testing.T, target experiment.Target, kind string, config map[string]any, path string) *experiment.Metrics {
	t.Helper()
	t.Setenv("TEST_KEY", "sk-secret")
	config["apiKey"] = "env:TEST_KEY"
	s := &experiment.Spec{
		Scenario:   experiment.Scenario{Workload: "fixed(256,64)", Concurrency: 8, MaxRequests: 96},
		Evaluator:  experiment.Plugin{Type: kind, Config: config},
		Objectives: experiment.Objectives{Optimize: "outputThroughput"},
	}
	environ := append(os.Environ(), "HF_HUB_OFFLINE=1", "PATH="+path+string(os.PathListSeparator)+os.Getenv("PATH"))
	env := evaluator.Environment{Getenv: os.Getenv, Environ: environ}
	plan, problems := evaluator.Read(s, env)
	require.Empty(t, problems)
	var log bytes.Buffer
	m, err := plan.Evaluator.Evaluate(t.Context(), target, experiment.Traffic{Scenario: s.Scenario, Objectives: s.Objectives, Seed: 1, Log: &log})
	require.NoError(t, err, "%s", log.String())
	assert.NotContains(t, log.String(), "sk-secret")
	return m
}

// The tools agree with the native evaluator on the same server. Their clients are
// slower, which shows in the time to first token; the time per output token is the
// server's.
func TestTheToolsAgreeWithTheNativeEvaluator(t *testing.T) {
	target := serve(t)
	measured := map[string]*experiment.Metrics{"native": evaluate(t, target, "native", map[string]any{"apiType": "chat"}, "")}
	for _, tool := range tools {
		t.Run(tool, func(t *testing.T) {
			bin := install(t, tool)
			m := evaluate(t, target, tool, map[string]any{"tokenizerSource": tokenizer(t, bin), "apiType": apis[tool]}, bin)
			measured[tool] = m
			assert.Zero(t, *m.ErrorRate)
			assert.GreaterOrEqual(t, m.Requests.OK, 96)
			native := measured["native"]
			for metric, within := range map[string]float64{"tpotP50": 0.3, "e2eP50": 0.5, "outputThroughput": 0.5} {
				want, have := *native.Value(metric), *m.Value(metric)
				assert.InDelta(t, want, have, within*want, metric)
			}
		})
	}
	fmt.Printf("%-15s %-8s %10s %10s %10s %10s\n", "evaluator", "n", "ttftP50", "tpotP50", "e2eP50", "tokens/s")
	for _, name := range append([]string{"native"}, tools...) {
		if m := measured[name]; m != nil {
			fmt.Printf("%-15s %-8d %10.2f %10.3f %10.1f %10.1f\n", name, m.Requests.OK, *m.TTFT.P50, *m.TPOT.P50, *m.E2E.P50, *m.OutputThroughput)
		}
	}
}
