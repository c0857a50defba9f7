// SPDX-License-Identifier: Apache-2.0

package printers

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

func f64(f float64) *float64 { return &f }

// sample is an experiment with one trial of each outcome.
func sample() *experiment.Result {
	r := experiment.NewResult(&experiment.Spec{
		Name:       "demo",
		Objectives: experiment.Objectives{Optimize: "outputThroughput", Bounds: []experiment.Bound{{Metric: "ttftP99", Max: true, Limit: 100}, {Metric: "errorRate", Max: true, Limit: 0.01}}},
		Strategy:   experiment.Strategy{MaxTrialsPerTemplate: 3},
	})
	r.Status = experiment.Running
	r.Started = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	r.Updated = r.Started.Add(time.Minute)
	metrics := func(throughput, ttft float64) *experiment.Metrics {
		return &experiment.Metrics{OutputThroughput: &throughput, TTFT: experiment.Distribution{P99: &ttft}, ErrorRate: f64(0), Requests: experiment.Requests{Sent: 200}}
	}
	state := experiment.TemplateState{Name: "small", Completed: true, TerminationReason: "maxTrialsPerTemplate 3 reached", Trials: []experiment.Trial{
		{Template: "small", Metrics: metrics(1000, 51.25), Seconds: 61},
		{Template: "small", Index: 1, Params: experiment.Params{"default": {"maxNumSeqs": experiment.Int(256)}}, Metrics: metrics(12345.6, 120), Seconds: 5},
		{Template: "small", Index: 2, Params: experiment.Params{"default": {"maxNumSeqs": experiment.Int(512)}}, Error: "CUDA out of memory", Reason: "gpu_oom"},
	}}
	state.Rejudge(r.Config.Objectives)
	r.Templates = []experiment.TemplateState{state, {Name: "large"}}
	r.Best = experiment.FindBest(r.Config.Objectives, r.Templates)
	return r
}

func list() View {
	r := sample()
	empty := experiment.Summary{Name: "new", Status: experiment.Interrupted}
	return List([]experiment.Summary{r.Summary(), empty}, r.Started.Add(90*time.Minute))
}

func output(t *testing.T, format string, v View) string {
	t.Helper()
	flags := Flags{Output: format}
	printer, err := flags.Printer()
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, printer(&b, v))
	return b.String()
}

func TestTables(t *testing.T) {
	assert.Equal(t, `NAME   STATUS        TEMPLATES   TRIALS   FEASIBLE   BEST      SCORE    GAIN     AGE
demo   running       1/2         3        1          small/0   1000     +0.0%    90m
new    interrupted   0/0         0        0          <none>    <none>   <none>   <none>
`, output(t, "", list()))
	assert.Equal(t, `TEMPLATE   STATUS      TRIALS   FEASIBLE   VIOLATED   ERRORS   REASON
small      Completed   3/3      1          1          1        maxTrialsPerTemplate 3 reached
large      Running     0/3      0          0          0        <none>

TRIAL     OUTCOME           OUTPUTTHROUGHPUT   TTFTP99   TPOTP99   ERRORRATE   N        PARAMS
small/0   feasible*         1000               51.25     <none>    0           200      template unchanged
small/1   violated          12346              120!      <none>    0           200      maxNumSeqs=256
small/2   error (gpu_oom)   <none>             <none>    <none>    <none>      <none>   maxNumSeqs=512
`, output(t, "", Experiment(sample())))
}

func TestWideTablesSayWhy(t *testing.T) {
	text := output(t, "wide", Experiment(sample()))
	assert.Contains(t, text, "ttftP99MaxMs 100: measured 120 (20.0 % beyond)")
	assert.Contains(t, text, "CUDA out of memory")
}

func TestNoHeaders(t *testing.T) {
	flags := Flags{NoHeaders: true}
	printer, err := flags.Printer()
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, printer(&b, list()))
	assert.NotContains(t, b.String(), "STATUS")
}

func TestEveryOtherFormOfKubectl(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for format, want := range map[string]string{
		"name":                                "autobench/demo\nautobench/new\n",
		"jsonpath={.items[*].status}":         "running interrupted",
		"jsonpath-as-json={.items[*].status}": "[\n    \"running\",\n    \"interrupted\"\n]\n",
		"jsonpath-file=" + write("path", "{.items[0].best.score}"):          "1000",
		"go-template={{range .items}}{{.name}},{{end}}":                     "demo,new,",
		"go-template-file=" + write("template", "{{len .items}}"):           "2",
		"custom-columns=NAME:.name,BEST:.best.index":                        "NAME   BEST\ndemo   0\nnew    <none>\n",
		"custom-columns=NAME:{.name}":                                       "NAME\ndemo\nnew\n",
		"custom-columns-file=" + write("columns", "WHO HOW\nname status\n"): "WHO    HOW\ndemo   running\nnew    interrupted\n",
	} {
		assert.Equal(t, want, output(t, format, list()), format)
	}
	assert.Contains(t, output(t, "json", Experiment(sample())), "    \"kind\": \"AutoBenchmarkResult\",\n")
	assert.Contains(t, output(t, "yaml", Experiment(sample())), "\nkind: AutoBenchmarkResult\n")
	assert.Contains(t, output(t, "yaml", list()), "kind: List\n")
}

func TestUnknownFormsAreRefusedBeforeAnythingIsDone(t *testing.T) {
	for format, want := range map[string]string{
		"xml":                   "--output xml is not known; allowed formats are: (json, yaml, name, wide",
		"custom-columns":        "needs columns, such as custom-columns=NAME:.name",
		"custom-columns=NAME":   `"NAME" must be HEADER:path`,
		"custom-columns=A:.[":   "custom-columns",
		"custom-columns-file=x": "open x: no such file or directory",
		"jsonpath={":            "jsonpath",
	} {
		flags := Flags{Output: format}
		_, err := flags.Printer()
		require.ErrorContains(t, err, want, format)
	}
}

func TestTheWinnerIsShownBesideTheBaselineAndAsItsObjects(t *testing.T) {
	r := sample()
	r.Best = &experiment.Best{Template: "small", Index: 1, Params: experiment.Params{"default": {"maxNumSeqs": experiment.Int(256)}}, Metric: "outputThroughput", Score: 1500, Baseline: f64(1000), Gain: f64(0.5)}
	deployment := map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "chat"}}
	service := map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": "chat"}}
	both := Winner(r, []any{deployment, service})
	assert.Equal(t, `TEMPLATE   TRIAL   OUTPUTTHROUGHPUT   BASELINE                  GAIN     PARAMS
small      1       1500               1000 (violates the SLA)   +50.0%   maxNumSeqs=256
`, output(t, "", both))
	assert.Equal(t, "deployment.apps/chat\nservice/chat\n", output(t, "name", both))
	assert.Equal(t, "Deployment Service", output(t, "jsonpath={.items[*].kind}", both))
	assert.Equal(t, "Deployment", output(t, "jsonpath={.kind}", Winner(r, []any{deployment})))
}

func TestTiesAreShown(t *testing.T) {
	r := sample()
	state := &r.Templates[0]
	other := *state.Trials[0].Metrics
	other.OutputThroughput, other.Margins = f64(1030), map[string]float64{"outputThroughput": 40}
	state.Trials[1].Metrics = &other
	state.Rejudge(r.Config.Objectives)
	r.Best = experiment.FindBest(r.Config.Objectives, r.Templates)
	text := output(t, "", Experiment(r))
	assert.Contains(t, text, "small/0   feasible (tie)    1000 ")
	assert.Contains(t, text, "small/1   feasible*         1030 ")
	assert.Equal(t, "as good, as far as these measurements tell: small/0 (1000)", Ties(r.Best))
	assert.Empty(t, Ties(sample().Best))

	assert.Contains(t, output(t, "", Winner(r, nil)), "small      1       1030 ±40           1000       +3.0% (within noise)   maxNumSeqs=256")
}

func TestAMeasurementShowsItsMargins(t *testing.T) {
	m := &experiment.Metrics{OutputThroughput: f64(1030), ErrorRate: f64(0), Margins: map[string]float64{"outputThroughput": 40}}
	assert.Contains(t, output(t, "", Measurement(&experiment.Measurement{Metrics: m})), "outputThroughput   1030                     ±40      tokens/s\n")
}

func TestThePlanListsTheTrials(t *testing.T) {
	assert.Equal(t, "TRIAL     PARAMS\nsmall/0   template unchanged\nsmall/1   maxNumSeqs=256\nsmall/2   maxNumSeqs=512\n", output(t, "", Plan(sample())))
}
