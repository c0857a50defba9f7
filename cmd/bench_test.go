// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/llmctl/llmctl/plugins/simulator"
	"github.com/llmctl/llmctl/plugins/simulator/simulatortest"
)

// engine runs a simulated engine, very fast, until the test ends.
func engine(t *testing.T) (url string) {
	t.Helper()
	return simulatortest.Start(t, simulator.DefaultConfig(), simulator.Options{ServedModelNames: []string{"m"}, TimeScale: 50})
}

func bench(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut}
	root := New(streams, "llmctl")
	root.SetArgs(append([]string{"bench"}, args...))
	code = exit(root.ExecuteContext(t.Context()), &errOut)
	return code, out.String(), errOut.String()
}

func TestBenchMeasuresAServer(t *testing.T) {
	t.Setenv("LLMCTL_CONFIG", os.DevNull)
	url := engine(t)
	load := []string{"--url", url + "/v1", "--workload", "fixed(40,8)", "--concurrency", "4", "--max-requests", "16"}

	code, out, stderr := bench(t, append(load, "--sla", "ttftP99MaxMs=60000")...)
	require.Zero(t, code, stderr)
	assert.Regexp(t, `LATENCY \(MS\) +MEAN +P50 +P90 +P95 +P99 +N\nttft .* 16\n`, out)
	assert.Contains(t, out, "16 sent, 16 ok, 0 failed")
	assert.Contains(t, stderr, "measured: finished, 16 requests")
	assert.Contains(t, stderr, "warning: small_sample: ")

	records := filepath.Join(t.TempDir(), "requests.jsonl.gz")
	code, out, stderr = bench(t, append(load, "-o", "json", "--sla", "ttftP99MaxMs=0.001", "--records", records)...)
	assert.Equal(t, exitInfeasible, code)
	assert.Contains(t, stderr, "error: the SLA is missed: decided early: 2 of 16 requests broke ttft p99 ≤ 0.001 ms, so it cannot be kept; ttftP99MaxMs 0.001: measured ")
	var result struct {
		Kind, Model string
		Scenario    map[string]any
		Metrics     struct{ Requests struct{ Sent int } }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &result))
	assert.Equal(t, "Measurement", result.Kind)
	assert.Equal(t, "m", result.Model)
	assert.Equal(t, "fixed(40,8)", result.Scenario["workload"])
	assert.Positive(t, result.Metrics.Requests.Sent)
	info, err := os.Stat(records)
	require.NoError(t, err)
	assert.Positive(t, info.Size())

	code, out, _ = bench(t, append(load, "-o", "csv")...)
	require.Zero(t, code)
	lines, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	require.NoError(t, err)
	require.Len(t, lines, 2)
	assert.Contains(t, lines[0], "ttftP99")
}

func TestBenchNamesItsFlagsInErrors(t *testing.T) {
	t.Setenv("LLMCTL_CONFIG", os.DevNull)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--workload", "fixed(1,1)"}, "--url is required"},
		{[]string{"--url", "http://x", "--workload", "fixed(1,1)"}, "--concurrency: is required: the number of requests in flight"},
		{[]string{"--url", "http://x", "--concurrency", "1"}, "--workload: is required: such as"},
		{[]string{"--url", "http://x", "--max-requests", "-1"}, "--max-requests: must not be negative, is -1"},
		{[]string{"--url", "http://x", "--workload", "fixed(1,1)", "--concurrency", "1", "--rate", "1"}, "--concurrency and --rate exclude each other"},
		{[]string{"--url", "http://x", "--sla", "ttftP98MaxMs=1"}, "--sla ttftP98MaxMs: unknown bound; did you mean ttftP9"},
		{[]string{"--url", "http://x", "--sla", "ttftP99MaxMs"}, "--sla ttftP99MaxMs: must be a bound and its limit"},
		{[]string{"--url", "http://x", "--max-load", "rate"}, "--max-load rate: must be concurrency:MIN:MAX or rate:MIN:MAX"},
		{[]string{"--url", "http://x", "--request-timeout", "-1s"}, "--request-timeout: must be a duration such as 90s, is -1s"},
		{[]string{"--url", "http://x", "--trace", "/none"}, "--trace: open "},
		{[]string{"--url", "http://x", "--api-key", "env:NO_KEY"}, "--api-key: environment variable NO_KEY"},
		{[]string{"--url", "http://x", "-o", "xml"}, "--output xml is not known"},
	} {
		code, _, stderr := bench(t, c.args...)
		assert.Equal(t, exitUsage, code, "%v", c.args)
		assert.Contains(t, stderr, c.want)
	}
}

func TestAnUnreachableServerIsAnError(t *testing.T) {
	t.Setenv("LLMCTL_CONFIG", os.DevNull)
	code, _, stderr := bench(t, "--url", "http://127.0.0.1:1", "--workload", "fixed(1,1)", "--concurrency", "1")
	assert.Equal(t, exitFailure, code)
	assert.Contains(t, stderr, "connection refused")
}

func TestTheLiveLineShowsTheLatestProgress(t *testing.T) {
	var out bytes.Buffer
	line := &liveLine{out: &out}
	_, err := line.Write([]byte("one\ntwo\n"))
	require.NoError(t, err)
	line.clear()
	line.clear()
	assert.Equal(t, "\r\x1b[Ktwo\r\x1b[K", out.String())
}
