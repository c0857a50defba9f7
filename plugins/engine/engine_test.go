// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

func TestBuiltInEngines(t *testing.T) {
	assert.Equal(t, []string{"sglang", "simulator", "vllm"}, Names())
	rows := []struct {
		name, health, metrics string
		port                  int
	}{{"sglang", "/health", "/metrics", 30000}, {"simulator", "/health", "/metrics", 8000}, {"vllm", "/health", "/metrics", 8000}}
	for _, row := range rows {
		e := load(t, row.name)
		assert.Equal(t, row.name, e.Name)
		assert.Equal(t, row.port, e.DefaultPort)
		assert.Equal(t, row.health, e.HealthPath)
		assert.Equal(t, row.metrics, e.MetricsPath)
	}
}

// Every parameter of the engines' common table has a flag or a hint.
func TestAbstractParameters(t *testing.T) {
	abstract := strings.Fields(`gpuMemoryUtilization kvCacheDtype maxNumSeqs maxNumBatchedTokens chunkedPrefillSize enableChunkedPrefill
		maxPrefillTokens maxTotalTokens schedulePolicy scheduleConservativeness tensorParallelSize tensorParallel dataParallelSize
		dataParallel pipelineParallelSize pipelineParallel expertParallel decodeContextParallelSize maxModelLen contextLength
		attentionBackend enforceEager maxCudagraphCaptureSize cudaGraphMaxBs enablePrefixCaching speculativeConfig compilationConfig
		quantization dtype blockSize pageSize asyncScheduling streamInterval numContinuousDecodeSteps cpuOffloadGb maxQueuedRequests
		enableMixedChunk`)
	for _, name := range []string{"vllm", "sglang", "simulator"} {
		g := load(t, name).grammar
		for _, p := range abstract {
			assert.Truef(t, (g.params[p] != nil) != (g.missing[p] != ""), "%s: %s needs either a flag or a hint", name, p)
		}
	}
	assert.True(t, slices.IsSorted(load(t, "vllm").Parameters()))
	assert.Contains(t, load(t, "sglang").Parameters(), "chunkedPrefillSize")
}

func TestNoRemovedFlagIsAParameter(t *testing.T) {
	for _, name := range Names() {
		e := load(t, name)
		for _, p := range e.Parameters() {
			if flag := e.desc.Parameters[p].Flag; flag != "--disable-cuda-graph" { // deprecated, but in every version
				assert.NotContains(t, e.desc.Removed, flag)
			}
		}
		for _, p := range e.desc.Parameters {
			if p.Twin != nil {
				assert.NotNil(t, e.grammar.options[p.Twin.Flag].flag, p.Twin.Flag)
			}
		}
	}
}

func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

func TestUserEngines(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"house.yaml": `
extends: sglang
commands: [{program: house-serve, positional: true}]
parameters:
  warp: {flag: --warp, type: int, min: 1, max: 9}
  maxNumSeqs: {flag: --slots, type: int}
removed: {--old: use --new}
`,
		"vllm.yaml": "extends: vllm\nport: {default: 9000}\nparameters:\n  chunkedPrefillSize: {flag: --chunk, type: int}\n",
		"notes.txt": "not an engine",
	})
	house, err := Load("house", dir)
	require.NoError(t, err)
	assert.Equal(t, 30000, house.DefaultPort)
	argv, err := overlay(house, words("house-serve m --tp 2 --slots 3"), values("warp=9", "maxNumSeqs=5", "tensorParallelSize=4"))
	require.NoError(t, err)
	assert.Equal(t, words("house-serve m --tp 4 --slots 5 --warp 9"), argv)

	vllm, err := Load("vllm", dir)
	require.NoError(t, err)
	assert.Equal(t, 9000, vllm.DefaultPort)
	argv, err = overlay(vllm, words("vllm serve m"), values("chunkedPrefillSize=5", "maxNumSeqs=6"))
	require.NoError(t, err)
	assert.Equal(t, words("vllm serve m --chunk 5 --max-num-seqs 6"), argv)

	simulator, err := Load("simulator", dir)
	require.NoError(t, err)
	assert.Equal(t, 9000, simulator.DefaultPort, "an engine that extends another sees the user's version of it")
}

func TestTroubleWithEngineFiles(t *testing.T) {
	rows := []struct {
		name, text, want string
	}{
		{"unknown key", "commands: [{program: x}]\nboolean: negatable\nparameters:\n  a:\n    flag: --a\n    knd: value\n", "DIR/x.yaml: line 6: unknown key parameters.a.knd"},
		{"unknown key in a list", "commands:\n- {program: x, args: []}\n", "DIR/x.yaml: line 2: unknown key commands[0].args"},
		{"no YAML", "a: [", "DIR/x.yaml: yaml: line 1: did not find expected node content"},
		{"wrong type", "extends: vllm\nport: {default: many}\n", "DIR/x.yaml: yaml: unmarshal errors:\n  line 2: cannot unmarshal !!str `many` into int"},
		{"pattern", "extends: vllm\nfailures: [{match: '('}]\n", "DIR/x.yaml: line 2: error parsing regexp: missing closing ): `(`"},
		{"everything at once", "boolean: yes please\nparameters: {a: {flag: a, kind: flag, type: uint}, b: }\n",
			"engine x: commands: an engine needs at least one command\nparameters.a.flag: must be a flag, is \"a\"\n" +
				"parameters.a.kind: must be value, negatable, present-only or json, is \"flag\"\nparameters.a.type: must be int, float or string, is \"uint\"\n" +
				"parameters.b: is empty\nboolean: must be negatable or present-only, is \"yes please\""},
		{"one flag twice", "extends: vllm\nparameters: {a: {flag: --max-num-seqs}}\n", "engine x: parameters.maxNumSeqs: another parameter has the flag --max-num-seqs"},
		{"one name twice", "extends: vllm\nparameters: {a: {flag: --a, names: [maxNumSeqs]}}\n", "engine x: parameters.maxNumSeqs: another parameter has the name maxNumSeqs"},
		{"extends nothing", "extends: trt\n", `DIR/x.yaml: extends: engine "trt": no such engine; known are sglang, simulator, vllm, y`},
		{"extends itself", "extends: x\n", `DIR/x.yaml: extends: engine "x": no such engine; known are sglang, simulator, vllm`},
		{"extends in a circle", "extends: y\n", `DIR/x.yaml: extends: DIR/y.yaml: extends: engine "x": no such engine; known are sglang, simulator, vllm`},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			dir := writeFiles(t, map[string]string{"x.yaml": row.text, "y.yaml": "extends: x\n"})
			_, err := Load("x", dir)
			require.Error(t, err)
			assert.Equal(t, row.want, strings.ReplaceAll(err.Error(), dir, "DIR"))
		})
	}
	_, err := Load("nope")
	assert.EqualError(t, err, `engine "nope": no such engine; known are sglang, simulator, vllm`)
	_, err = Load("vllm", filepath.Join(t.TempDir(), "missing"))
	assert.ErrorContains(t, err, "engine directory: ")
}

func TestExpandFollowsKubernetes(t *testing.T) {
	lookup := func(name string) (string, bool) {
		v, ok := map[string]string{"A": "1", "B": "two words", "E": "", "R": "$(A)"}[name]
		return v, ok
	}
	rows := [][2]string{
		{"$(A)", "1"}, {"x$(A)y$(A)", "x1y1"}, {"$(B)", "two words"}, {"$(E)", ""}, {"$(R)", "$(A)"},
		{"$(NO)", "$(NO)"}, {"$$(A)", "$(A)"}, {"$$$(A)", "$1"}, {"$$", "$"}, {"$A ${A}", "$A ${A}"},
		{"$(A", "$(A"}, {"$", "$"}, {"$()", "$()"}, {"$(nproc --all)", "$(nproc --all)"}, {"", ""},
	}
	for _, row := range rows {
		assert.Equal(t, []string{row[1]}, Expand([]string{row[0]}, lookup), row[0])
	}
}

func TestVariablesMayUseEarlierOnes(t *testing.T) {
	found, err := load(t, "vllm").Find([]byte(podWith(
		`{name: c, command: [vllm, serve, m, --port, $(P)], env: [{name: A, value: "80"}, {name: P, value: "$(A)80$(LATER)"}, {name: LATER, value: x}, {name: A, value: "9"}], envFrom: [{secretRef: {name: s}}, {prefix: X_, configMapRef: {name: c}}]}`)), Options{})
	require.NoError(t, err)
	c := found[0]
	assert.Equal(t, []EnvVar{{Name: "A", Value: "80"}, {Name: "P", Value: "8080$(LATER)"}, {Name: "LATER", Value: "x"}, {Name: "A", Value: "9"}}, c.Env)
	assert.Equal(t, []string{"secretRef s", "configMapRef c"}, c.EnvFrom)
	value, ok := c.Lookup("A")
	assert.True(t, ok)
	assert.Equal(t, "9", value, "of one name the last entry counts")
}

func TestAddress(t *testing.T) {
	rows := []struct {
		name, engine string
		container    Container
		want         []string
		err          string
	}{
		{name: "new flags", engine: "vllm", container: Container{Argv: words("vllm serve m --max-num-seqs 1")}, want: words("vllm serve m --max-num-seqs 1 --host 127.0.0.1 --port 4711")},
		{name: "own address", engine: "sglang", container: Container{Argv: words("sglang serve m --port=1 --host 0.0.0.0 --tp 2")}, want: words("sglang serve m --port=4711 --host 127.0.0.1 --tp 2")},
		{name: "variables", engine: "vllm", container: Container{Argv: words("vllm serve $(M) --port $(P) $(H)"), Env: []EnvVar{{Name: "M", Value: "m"}, {Name: "P", Value: "1"}, {Name: "H", Value: "--host=0.0.0.0"}}},
			want: words("vllm serve $(M) --port 4711 $(H) --host 127.0.0.1")},
		{name: "script", engine: "vllm", container: Container{Argv: []string{"sh", "-c", "cd /x && exec vllm serve m --port $PORT | tee log"}},
			want: []string{"sh", "-c", "cd /x && exec vllm serve m --port 4711 --host 127.0.0.1 | tee log"}},
		{name: "entrypoint", engine: "simulator", container: Container{Argv: words("llmctl simulate m")}, want: words("llmctl simulate m --host 127.0.0.1 --port 4711")},
		{name: "another command", engine: "vllm", container: Container{Name: "c", Argv: words("nginx")}, err: `container "c": its command is not vllm's`},
		{name: "inside a variable", engine: "vllm", container: Container{Name: "c", Argv: []string{"sh", "-c", "vllm serve m $X"}, Env: []EnvVar{{Name: "X", Value: "--port 1 --dtype auto"}}},
			err: `container "c": --port: the variable X in command[2] holds the flag: write it on the engine's own command line`},
	}
	rows[2].want = words("vllm serve $(M) --port 4711 --host=127.0.0.1")
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			got, err := load(t, row.engine).WithAddress(row.container, "127.0.0.1", 4711)
			if row.err != "" {
				assert.EqualError(t, err, row.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, row.want, got)
		})
	}
}

func TestNoParametersGiveTheInputBack(t *testing.T) {
	e := load(t, "vllm")
	for _, p := range []experiment.Params{nil, {}, {"default": nil, "x": {}}} {
		got, err := e.Render([]byte("anything at all"), p, Options{})
		require.NoError(t, err)
		assert.Equal(t, "anything at all", string(got))
	}
}
