// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const validFile = `
name: demo
templates:
- name: small
  template: small.yaml
backend: vllm
searchSpace:
  default:
    maxNumSeqs: {type: pow2, min: 16, max: 256}
scenario:
  workload: fixed(512,128)
  concurrency: 32
  maxRequests: 100
objectives:
  sla: {ttftP99MaxMs: 500}
strategy: {algorithm: grid, maxTrialsPerTemplate: 5}
execution: {target: local}
`

// write puts an experiment file beside the template it names.
func write(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "small.yaml"), []byte("kind: Deployment\n"), 0o600))
	path := filepath.Join(dir, "experiment.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestLoadFillsInDefaults(t *testing.T) {
	s, err := Load(write(t, strings.Replace(validFile, "  maxRequests: 100\n", "", 1)))
	require.NoError(t, err)
	assert.Equal(t, 320, s.Scenario.MaxRequests)
	assert.Equal(t, DefaultReadyTimeout, s.Execution.ReadyTimeout)
	assert.Equal(t, 3, s.Strategy.EarlyTermination.MaxConsecutiveErrors)
	assert.Equal(t, "outputThroughput", s.Objectives.Optimize)
	assert.Equal(t, "native", s.Evaluator.Type)
	assert.Equal(t, []Bound{{"errorRate", true, 0.01}, {"ttftP99", true, 500}}, s.Objectives.Bounds)
	assert.Equal(t, "kind: Deployment\n", string(s.Templates[0].Source))
}

func TestLoadNamesEveryProblemWithItsPath(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"unknown key":         {"strategy: {", "strategy: {algoritm: x, ", "strategy.algoritm: unknown key; did you mean algorithm?"},
		"unknown top key":     {"backend:", "extra: 1\nbackend:", "extra: unknown key; known here: apiVersion"},
		"older key":           {"  workload: fixed(512,128)", "  workloads: [x]", "scenario.workloads: unknown key; it is now scenario.workload, one workload"},
		"failure rate":        {"strategy: {", "strategy: {earlyTermination: {maxSLAFailureRate: 1.5}, ", "strategy.earlyTermination.maxSLAFailureRate: must be in (0, 1], is 1.5"},
		"failure rate 0":      {"strategy: {", "strategy: {earlyTermination: {maxSLAFailureRate: 0}, ", "strategy.earlyTermination.maxSLAFailureRate: must be in (0, 1], is 0"},
		"negative requests":   {"maxRequests: 100", "maxRequests: -1", "scenario.maxRequests: must not be negative, is -1"},
		"text for a number":   {"concurrency: 32", "concurrency: many", `scenario.concurrency: must be a number, is "many"`},
		"zero concurrency":    {"concurrency: 32", "concurrency: 0", "scenario.concurrency: must be at least 1, is 0"},
		"fraction":            {"concurrency: 32", "concurrency: 1.5", "scenario.concurrency: must be a whole number, is 1.5"},
		"infinite":            {"ttftP99MaxMs: 500", "ttftP99MaxMs: .inf", "objectives.sla.ttftP99MaxMs: must be a finite number, is .inf"},
		"unknown bound":       {"ttftP99MaxMs: 500", "ttftP98MaxMs: 500", "objectives.sla.ttftP98MaxMs: unknown bound; did you mean ttftP9"},
		"negative bound":      {"ttftP99MaxMs: 500", "ttftP99MaxMs: -5", "objectives.sla.ttftP99MaxMs: must not be negative, is -5"},
		"no latency bound":    {"ttftP99MaxMs: 500", "errorRateMax: 0.1", "objectives.sla: has no latency bound"},
		"error rate bound":    {"ttftP99MaxMs: 500", "ttftP99MaxMs: 500, errorRateMax: 5", "objectives.sla.errorRateMax: must be in [0, 1], is 5"},
		"metric":              {"objectives:", "objectives:\n  optimize: outputThruput", `objectives.optimize: "outputThruput" is not a metric; did you mean outputThroughput?`},
		"min above max":       {"min: 16, max: 256", "min: 512, max: 256", "searchSpace.default.maxNumSeqs: min 512 is above max 256"},
		"no power of two":     {"min: 16, max: 256", "min: 5, max: 7", "searchSpace.default.maxNumSeqs: there is no power of two from 5 to 7"},
		"pow2 from zero":      {"min: 16, max: 256", "min: 0, max: 256", "searchSpace.default.maxNumSeqs.min: must be above 0"},
		"missing max":         {"min: 16, max: 256", "min: 16", "searchSpace.default.maxNumSeqs: type pow2 needs min and max"},
		"domain type":         {"type: pow2", "type: power", `searchSpace.default.maxNumSeqs.type: must be one of float, int, pow2, categorical, bool, is "power"`},
		"step on pow2":        {"min: 16, max: 256", "min: 16, max: 256, step: 2", "searchSpace.default.maxNumSeqs.step: does not go with type pow2"},
		"zero step":           {"type: pow2, min: 16, max: 256", "type: int, min: 16, max: 256, step: 0", "searchSpace.default.maxNumSeqs.step: must be above 0, is 0"},
		"fraction in an int":  {"type: pow2, min: 16, max: 256", "type: int, min: 1.5, max: 256", "searchSpace.default.maxNumSeqs: type int needs whole numbers"},
		"log from zero":       {"type: pow2, min: 16, max: 256", "type: float, min: 0, max: 256, log: true", "searchSpace.default.maxNumSeqs.min: must be above 0"},
		"yaml 1.1 value":      {"{type: pow2, min: 16, max: 256}", "{type: categorical, values: [on, auto]}", "searchSpace.default.maxNumSeqs.values[0]: on is read as true or false by YAML 1.1"},
		"yaml 1.1 text":       {"backend: vllm", "backend: no", "backend: must be text, is no (true or false in YAML 1.1; use quotes for text)"},
		"yaml 1.1 key":        {"    maxNumSeqs:", "    on:", "searchSpace.default.on: is read as true or false by YAML 1.1; put the key in quotes"},
		"yaml 1.1 switch":     {"objectives:", "objectives:\n  allowNoSLA: yes", "objectives.allowNoSLA: must be true or false, is yes"},
		"value twice":         {"{type: pow2, min: 16, max: 256}", "{type: categorical, values: [1, 1.0]}", "searchSpace.default.maxNumSeqs.values[1]: 1 is given twice"},
		"empty value":         {"{type: pow2, min: 16, max: 256}", `{type: categorical, values: [""]}`, "searchSpace.default.maxNumSeqs.values[0]: must not be empty"},
		"duration unit":       {"concurrency: 32", "concurrency: 32\n  duration: 90", "scenario.duration: needs a unit, such as 90s or 90m"},
		"duration":            {"concurrency: 32", "concurrency: 32\n  duration: soon", `scenario.duration: must be a duration such as 90s, 15m or 1h30m, is "soon"`},
		"key twice":           {"backend: vllm", "backend: vllm\nbackend: sglang", `backend: is given twice`},
		"missing template":    {"template: small.yaml", "template: other.yaml", "templates[0].template: open "},
		"path trick":          {"name: small", "name: ../small", "templates[0].name: must be lower-case letters"},
		"long name":           {"name: demo", "name: " + strings.Repeat("a", 64), "name: must have at most 63 characters"},
		"template twice":      {"- name: small\n  template: small.yaml", "- {name: a, template: small.yaml}\n- {name: a, template: small.yaml}", `templates[1].name: "a" is also the name of templates[0]`},
		"target":              {"target: local", "target: docker", `execution.target: must be one of kubernetes, local, is "docker"`},
		"apiVersion":          {"name: demo", "apiVersion: apps/v1\nname: demo", "apiVersion: must be llmctl.io/v1alpha1"},
		"scalar for a map":    {"  sla: {ttftP99MaxMs: 500}", "  sla: fast", `objectives.sla: must be a mapping, is "fast"`},
		"constraint":          {"backend: vllm", "backend: vllm\nconstraints: ['maxNumSeqs +']", "constraints[0]: "},
		"unknown in formula":  {"backend: vllm", "backend: vllm\nconstraints: ['nope > 1']", "constraints[0]: ERROR: <input>:1:1: undeclared reference to 'nope'"},
		"formula of a number": {"backend: vllm", "backend: vllm\nconstraints: ['1 + 1']", "constraints[0]: must be true or false, is of type int"},
		"sweep twice":         {"concurrency: 32", "concurrencySweep: [8, 8]", "scenario.concurrencySweep[1]: 8 is given twice"},
		"two loads":           {"concurrency: 32", "concurrency: 32\n  rate: 4", "scenario: scenario.concurrency and scenario.rate exclude each other"},
		"no load":             {"  concurrency: 32\n", "", "scenario.concurrency: is required: the number of requests in flight (or a rate,"},
		"zero rate":           {"concurrency: 32", "rate: 0", "scenario.rate: must be above 0, is 0"},
		"rate twice":          {"concurrency: 32", "rateSweep: [2, 2.0]", "scenario.rateSweep[1]: 2 is given twice"},
		"arrival closed loop": {"concurrency: 32", "concurrency: 32\n  arrival: poisson", "scenario.arrival: goes with scenario.rate"},
		"ramp closed loop":    {"concurrency: 32", "concurrency: 32\n  rampUp: 5s", "scenario.rampUp: goes with scenario.rate"},
		"missing trace":       {"concurrency: 32", "trace: none.csv", "scenario.trace: open "},
		"endless search":      {"concurrency: 32", "maxLoad: {of: rate}", "scenario.maxLoad.max: is required: where the search ends at the latest"},
		"search of half":      {"concurrency: 32", "maxLoad: {max: 2.5}", "scenario.maxLoad: of concurrency needs whole numbers"},
		"search of what":      {"concurrency: 32", "maxLoad: {of: users, max: 2}", `scenario.maxLoad.of: must be one of concurrency, rate, is "users"`},
		"search upside down":  {"concurrency: 32", "maxLoad: {min: 4, max: 2}", "scenario.maxLoad: min 4 is above max 2"},
		"parameter name":      {"    maxNumSeqs:", "    -max:", "searchSpace.default.-max: must be a parameter's name"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(validFile, c.old, c.new, 1)
			require.NotEqual(t, validFile, text)
			_, err := Load(write(t, text))
			var problems *Problems
			require.ErrorAs(t, err, &problems)
			found := false
			for _, p := range problems.List {
				found = found || strings.HasPrefix(p.String(), c.want)
			}
			assert.True(t, found, "want a problem beginning with %q in\n%v", c.want, err)
		})
	}
}

func TestLoadReportsAllProblemsAtOnce(t *testing.T) {
	s, err := Load(write(t, `
templates: [{name: A/B, template: small.yaml}]
searchSpace: {default: {x: {type: int, min: 1}}}
scenario: {workload: "fixed(1,1)", concurrency: -1, bogus: 1}
strategy: {earlyTermination: {maxSLAFailureRate: 2}}
`))
	require.NotNil(t, s, "what could be read is returned for further checks")
	var problems *Problems
	require.ErrorAs(t, err, &problems)
	var paths []string
	for _, p := range problems.List {
		paths = append(paths, p.Path)
	}
	assert.Equal(t, []string{
		"backend", "objectives.sla", "scenario.bogus", "scenario.concurrency",
		"searchSpace.default.x", "strategy.earlyTermination.maxSLAFailureRate", "templates[0].name",
	}, paths)
}

func TestLoadRefusesWhatIsNotOneDocument(t *testing.T) {
	for text, want := range map[string]string{
		"":                   "is empty",
		"a: [":               "is not valid YAML",
		validFile + "---\nx": "more than one YAML document",
		"a: &a [*a]\n":       "is not valid YAML",
		"just text":          `must be a mapping, is "just text"`,
	} {
		_, err := Load(write(t, text))
		require.ErrorContains(t, err, want)
	}
	_, err := Load(filepath.Join(t.TempDir(), "none.yaml"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// storeAndLoad loads an experiment, and its stored form in the same place.
func storeAndLoad(t *testing.T, text string) (first, second *Spec) {
	t.Helper()
	path := write(t, text)
	first, err := Load(path)
	require.NoError(t, err)
	stored, err := yaml.Marshal(first)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, stored, 0o600))
	second, err = Load(path)
	require.NoError(t, err, "%s", stored)
	return first, second
}

// The stored form of a loaded experiment loads again to the same experiment.
func TestSpecSurvivesItsOwnForm(t *testing.T) {
	text := strings.Replace(validFile, "strategy: {", "excludeDefaultRoles: [router]\nconstraints: ['maxNumSeqs < 200']\nevaluator: {type: native, config: {apiType: chat}}\n"+
		"strategy: {seed: 18446744073709551615, timeout: 90m, earlyTermination: {minTrials: 2, maxSLAFailureRate: 0.5}, ", 1)
	first, second := storeAndLoad(t, text)
	changes, err := Changed(first, second)
	require.NoError(t, err)
	assert.Empty(t, changes)
	assert.Equal(t, first.Strategy, second.Strategy)
	assert.Equal(t, first.Space, second.Space)
	assert.Equal(t, 90*time.Minute, second.Strategy.Timeout)
}

func TestEveryLoadShapeSurvivesItsStoredForm(t *testing.T) {
	for name, load := range map[string]string{
		"rate":      "{workload: 'fixed(8,8)', rate: 2.5, arrival: gamma(0.5), rampUp: 10s, duration: 1m, stopWhenDecided: false}",
		"rateSweep": "{workload: 'fixed(8,8)', rateSweep: [4, 1.5]}",
		"maxLoad":   "{workload: 'fixed(8,8)', maxLoad: {of: rate, min: 0.5, max: 64}}",
		"trace":     "{trace: small.yaml}", // any file will do
	} {
		t.Run(name, func(t *testing.T) {
			head, tail, _ := strings.Cut(validFile, "scenario:")
			_, tail, _ = strings.Cut(tail, "objectives:")
			first, second := storeAndLoad(t, head+"scenario: "+load+"\nobjectives:"+tail)
			assert.Equal(t, first.Scenario, second.Scenario)
		})
	}
}

func TestDefaultRequestsAreAMinuteOfTheHighestRate(t *testing.T) {
	s, err := Load(write(t, strings.Replace(validFile, "concurrency: 32\n  maxRequests: 100", "rateSweep: [8, 2]", 1)))
	require.NoError(t, err)
	assert.Equal(t, []float64{2, 8}, s.Scenario.RateSweep)
	assert.Equal(t, 480, s.Scenario.MaxRequests)
}

func TestAChangedTraceIsAnotherExperiment(t *testing.T) {
	text := strings.Replace(validFile, "concurrency: 32", "trace: small.yaml", 1)
	was, err := Load(write(t, text))
	require.NoError(t, err)
	is, err := Load(write(t, text)) // in another folder
	require.NoError(t, err)
	changes, err := Changed(was, is)
	require.NoError(t, err)
	assert.Empty(t, changes, "the place of the file does not matter")
	is.Scenario.TraceSource = []byte("other")
	changes, err = Changed(was, is)
	require.NoError(t, err)
	require.Len(t, changes, 1)
	assert.Equal(t, "scenario.trace", changes[0].Path)
}

func TestChangedNamesFieldsAndTellsBudgetsApart(t *testing.T) {
	was, err := Load(write(t, validFile))
	require.NoError(t, err)
	is, err := Load(write(t, strings.NewReplacer("500", "300", "concurrency: 32", "concurrency: 64", "maxTrialsPerTemplate: 5", "maxTrialsPerTemplate: 9").Replace(validFile)))
	require.NoError(t, err)
	is.Templates[0].Source = []byte("other")
	changes, err := Changed(was, is)
	require.NoError(t, err)
	var lines []string
	for _, c := range changes {
		if c.Adjustable() {
			lines = append(lines, "may: "+c.String())
		} else {
			lines = append(lines, "not: "+c.String())
		}
	}
	assert.Equal(t, []string{
		"may: objectives.sla.ttftP99MaxMs: was 500, is 300",
		"not: scenario.concurrency: was 32, is 64",
		"may: strategy.maxTrialsPerTemplate: was 5, is 9",
		"not: templates[0] (text of small): was 17 bytes, checksum 076f88d3, is 5 bytes, checksum d9583520",
	}, lines)
}

func TestConstraintsSeeParametersByNameAndRole(t *testing.T) {
	s, err := Load(write(t, strings.Replace(validFile, "scenario:", `    "--max-num-batched-tokens": {type: int, min: 1, max: 9000}
constraints:
- maxNumSeqs <= roles["default"]["--max-num-batched-tokens"]
scenario:`, 1)))
	require.NoError(t, err)
	for batched, want := range map[int64]bool{64: true, 63: false} {
		ok, err := s.Constraints.Allow(Params{"default": {"maxNumSeqs": Int(64), "--max-num-batched-tokens": Int(batched)}})
		require.NoError(t, err)
		assert.Equal(t, want, ok)
	}
	_, err = s.Constraints.Allow(Params{"default": {"maxNumSeqs": String("x"), "--max-num-batched-tokens": Int(1)}})
	require.ErrorContains(t, err, "constraints[0] with --max-num-batched-tokens=1 maxNumSeqs=x")
}

// A file with the keys and values of existing auto-benchmark users.
func TestExistingFilesLoadUnchanged(t *testing.T) {
	s, err := Load(write(t, `
apiVersion: rbg.io/v1
kind: AutoBenchmarkConfig
name: my-experiment
templates:
- name: single
  template: ./small.yaml
backend: sglang
searchSpace:
  default:
    gpuMemoryUtilization: {type: float, min: 0.70, max: 0.95, step: 0.05}
    maxNumSeqs: {type: pow2, min: 256, max: 2048}
    schedulePolicy: {type: categorical, values: ["lpm", "dfs-weight", "random"]}
scenario:
  name: chat
  workload: "normal(512,256/2048,1024)"
  concurrency: 64
  concurrencySweep: [256, 64, 128]
  duration: 3m
  maxRequests: 500
objectives:
  sla: {ttftP99MaxMs: 2000, tpotP99MaxMs: 15, errorRateMax: 0.01}
  optimize: outputThroughput
strategy:
  algorithm: tpe
  maxTrialsPerTemplate: 20
  timeout: 4h
  storagePath: /data/optuna.db
  algorithmConfig: {n_startup_trials: 5}
evaluator:
  type: genai-bench
  config: {tokenizerSource: Qwen/Qwen3-8B}
results: {pvc: bench, subPath: auto-benchmark}
execution: {rbgReadyTimeout: 15m, trialTimeout: 30m}
`))
	require.NoError(t, err)
	assert.Equal(t, []int{64, 128, 256}, s.Scenario.ConcurrencySweep)
	assert.Equal(t, Results{"bench", "auto-benchmark"}, s.Results)
	assert.Equal(t, 4*time.Hour, s.Strategy.Timeout)
	data, err := json.Marshal(s.Objectives)
	require.NoError(t, err)
	assert.JSONEq(t, `{"sla":{"ttftP99MaxMs":2000,"tpotP99MaxMs":15,"errorRateMax":0.01},"optimize":"outputThroughput"}`, string(data))
}

func TestALoadAloneIsReadLikeAnExperiments(t *testing.T) {
	s, err := ReadLoad([]byte("scenario: {workload: 'fixed(8,8)', rate: 4}\nobjectives: {sla: {ttftP99MaxMs: 500}}\nevaluator: {config: {datasetPath: chat.jsonl}}"), "/data")
	require.NoError(t, err)
	assert.Equal(t, 240, s.Scenario.MaxRequests)
	assert.Equal(t, []Bound{{"errorRate", true, 0.01}, {"ttftP99", true, 500}}, s.Objectives.Bounds)
	assert.Equal(t, Plugin{Type: "native", Config: map[string]any{"datasetPath": "/data/chat.jsonl"}}, s.Evaluator)

	_, err = ReadLoad([]byte("scenario: {rate: -1, trace: none.csv}\nname: x"), t.TempDir())
	var problems *Problems
	require.ErrorAs(t, err, &problems)
	var paths []string
	for _, p := range problems.List {
		paths = append(paths, p.Path)
	}
	assert.Equal(t, []string{"name", "scenario.rate", "scenario.trace"}, paths)
}
