// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"mvdan.cc/sh/v3/syntax"

	"github.com/llmctl/llmctl/experiment"
)

// reference is a small parser for the command lines that the tests make up. It
// shares no code with the package: it says what each flag's value is and how
// often the flag stands there.
type reference struct {
	values map[string]string
	counts map[string]int
	config map[string]any // the JSON flag, all spellings merged
	models []string
}

var (
	referenceAliases  = map[string]string{"-tp": "tensor-parallel-size", "-cc": "compilation-config", "-q": "quantization"}
	referenceSwitches = []string{"enforce-eager", "enable-prefix-caching", "disable-log-stats"}
)

func parseReference(t *testing.T, argv []string) reference {
	t.Helper()
	require.Equal(t, []string{"vllm", "serve"}, argv[:2])
	r := reference{values: map[string]string{}, counts: map[string]int{}}
	for i := 2; i < len(argv); i++ {
		name, value, attached := strings.Cut(argv[i], "=")
		if !strings.HasPrefix(name, "-") {
			r.models = append(r.models, argv[i])
			continue
		}
		base, key, dotted := strings.Cut(name, ".")
		if alias, ok := referenceAliases[base]; ok {
			base = alias
		} else {
			base = strings.ReplaceAll(strings.TrimPrefix(base, "--"), "_", "-")
		}
		r.counts[strings.TrimPrefix(base, "no-")]++
		if positive := strings.TrimPrefix(base, "no-"); slices.Contains(referenceSwitches, positive) {
			r.values[positive] = fmt.Sprint(positive == base)
			continue
		}
		if !attached {
			i++
			require.Less(t, i, len(argv), "%s has no value", name)
			value = argv[i]
		}
		if base != "compilation-config" {
			r.values[base] = value
			continue
		}
		var part any
		require.NoError(t, json.Unmarshal([]byte(value), &part))
		if dotted {
			for _, k := range slices.Backward(strings.Split(key, ".")) {
				part = map[string]any{k: part}
			}
		}
		r.config = mergeReference(r.config, part.(map[string]any))
	}
	return r
}

func mergeReference(into, from map[string]any) map[string]any {
	out := maps.Clone(into)
	if out == nil {
		out = map[string]any{}
	}
	for k, v := range from {
		a, both := out[k].(map[string]any)
		if b, ok := v.(map[string]any); ok && both {
			v = mergeReference(a, b)
		}
		out[k] = v
	}
	return out
}

// randomArgv makes a command line of vLLM with flags in all spellings.
func randomArgv(r *rand.Rand) []string {
	argv := []string{"vllm", "serve", "org/model"}
	pick := func(options ...string) string { return options[r.IntN(len(options))] }
	for range r.IntN(9) {
		switch r.IntN(8) {
		case 0, 1, 2:
			name := pick("--max-num-seqs", "--max_num_seqs", "--max-num-batched-tokens", "--tensor-parallel-size", "-tp", "--port", "--gpu_memory-utilization")
			value := fmt.Sprint(1 + r.IntN(99))
			if r.IntN(2) == 0 {
				argv = append(argv, name+"="+value)
			} else {
				argv = append(argv, name, value)
			}
		case 3:
			argv = append(argv, pick("--enforce-eager", "--no-enforce-eager", "--enable_prefix_caching", "--no-enable-prefix-caching", "--disable-log-stats"))
		case 4:
			argv = append(argv, pick("--compilation-config", "-cc", "--compilation_config"), pick(`{"mode": 3}`, `{"a": {"b": 1}, "s": "it's $HOME \"x\""}`))
		case 5:
			argv = append(argv, pick("--compilation-config.mode=1", "-cc.a.b=7", `--compilation_config.l=[1, 2]`))
		case 6:
			argv = append(argv, pick("--quantization", "-q"), pick("fp8", "awq"))
		case 7:
			argv = append(argv, "--chat-template", pick("/t/x y.jinja", "{{ a }}", "#no comment", "a: b", "--max-num-seqs 9"))
		}
	}
	return argv
}

func randomParams(r *rand.Rand) map[string]experiment.Value {
	all := map[string]experiment.Value{
		"maxNumSeqs":                   experiment.Int(int64(100 + r.IntN(900))),
		"gpuMemoryUtilization":         experiment.Float(float64(50+r.IntN(50)) / 100),
		"tensorParallelSize":           experiment.Int(2),
		"enforceEager":                 experiment.Bool(r.IntN(2) == 0),
		"enablePrefixCaching":          experiment.Bool(r.IntN(2) == 0),
		"compilationConfig":            experiment.String(`{"z": 1, "a": {"c": 2}}`),
		"--compilation-config.a.d":     experiment.String("x'y"),
		"--disable-log-stats":          experiment.Bool(r.IntN(2) == 0),
		"quantization":                 experiment.String("gptq"),
		"--some-new-flag":              experiment.String("v w"),
		"compilationConfig.cudagraphs": experiment.Bool(true),
	}
	params := map[string]experiment.Value{}
	for name, v := range all {
		if r.IntN(3) == 0 {
			params[name] = v
		}
	}
	return params
}

// checkReference compares what two command lines mean: every parameter is set
// exactly once, and nothing else has changed.
func checkReference(t *testing.T, before, after []string, params map[string]experiment.Value) {
	t.Helper()
	was, is := parseReference(t, before), parseReference(t, after)
	flags := map[string]string{
		"maxNumSeqs": "max-num-seqs", "gpuMemoryUtilization": "gpu-memory-utilization", "tensorParallelSize": "tensor-parallel-size",
		"enforceEager": "enforce-eager", "enablePrefixCaching": "enable-prefix-caching", "--disable-log-stats": "disable-log-stats",
		"quantization": "quantization", "--some-new-flag": "some-new-flag",
	}
	for param, name := range flags {
		if v, set := params[param]; set {
			on, isSwitch := v.Truth()
			switch {
			case isSwitch && !on && name != "enable-prefix-caching":
				assert.NotEqual(t, "true", is.values[name], name)
				assert.LessOrEqual(t, is.counts[name], 1, name)
			default:
				assert.Equal(t, v.String(), is.values[name], name)
				assert.Equal(t, 1, is.counts[name], name)
			}
			continue
		}
		assert.Equal(t, was.values[name], is.values[name], name)
		assert.Equal(t, was.counts[name], is.counts[name], name)
	}
	config := was.config
	touched := false
	for _, param := range []string{"compilationConfig", "--compilation-config.a.d", "compilationConfig.cudagraphs"} {
		if _, set := params[param]; !set {
			continue
		}
		touched = true
		var part map[string]any
		switch param {
		case "compilationConfig":
			part = map[string]any{"z": 1.0, "a": map[string]any{"c": 2.0}}
		case "compilationConfig.cudagraphs":
			part = map[string]any{"cudagraphs": true}
		default:
			part = map[string]any{"a": map[string]any{"d": "x'y"}}
		}
		config = mergeReference(config, part)
	}
	assert.Equal(t, config, is.config)
	if touched {
		assert.Equal(t, 1, is.counts["compilation-config"])
	}
	assert.Equal(t, was.values["chat-template"], is.values["chat-template"])
	assert.Equal(t, was.values["port"], is.values["port"])
	assert.Equal(t, []string{"org/model"}, is.models)
}

func TestRandomCommandLinesSayWhatTheyShould(t *testing.T) {
	e := load(t, "vllm")
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		argv, params := randomArgv(r), randomParams(r)
		got, err := overlay(e, argv, params)
		require.NoError(t, err, "%q %v", argv, params)
		checkReference(t, argv, got, params)
		again, err := overlay(e, got, params)
		require.NoError(t, err)
		if !assert.Equal(t, got, again) || t.Failed() {
			t.Fatalf("seed %d: %q with %v", seed, argv, params)
		}
	}
}

// randomManifest writes a command line into a manifest in one of many layouts.
// The text keep stands in the edited document and must survive as it is.
func randomManifest(t *testing.T, r *rand.Rand, argv []string) (text, keep string) {
	t.Helper()
	keep = "        resources:   {limits:  {cpu: '1' } }    # odd   layout"
	var b strings.Builder
	b.WriteString("kind: Pod\napiVersion: v1\nmetadata:\n    name:  p  # kept\nspec:\n    containers:\n")
	fmt.Fprintf(&b, "      - name: engine\n%s\n", keep)
	split := 1 + r.IntN(2)
	switch r.IntN(4) {
	case 0: // one script
		b.WriteString("        command: [bash, -ec]\n        args:\n")
		writeScript(t, &b, r, argv)
	case 1:
		writeList(t, &b, r, "command", argv)
	default:
		writeList(t, &b, r, "command", argv[:split])
		writeList(t, &b, r, "args", argv[split:])
	}
	b.WriteString("        workingDir: /x\n")
	return b.String(), keep
}

func writeScript(t *testing.T, b *strings.Builder, r *rand.Rand, argv []string) {
	t.Helper()
	style := r.IntN(3)
	gap := []string{" ", "  ", " \\\n  "}[r.IntN(3)]
	if style == 1 {
		gap = []string{" ", "\n"}[r.IntN(2)] // a folded scalar makes a blank of a line end
	}
	var quoted []string
	for _, a := range argv {
		q, err := syntax.Quote(a, syntax.LangBash)
		require.NoError(t, err)
		quoted = append(quoted, q)
	}
	script := "echo 'vllm  serve' && exec " + strings.Join(quoted, gap) + " 2>&1 | tee log"
	switch style {
	case 0:
		fmt.Fprintf(b, "        - |\n          %s\n\n", strings.ReplaceAll(script, "\n", "\n          "))
	case 1:
		fmt.Fprintf(b, "        - >-\n          %s\n", strings.ReplaceAll(script, "\n", "\n          "))
	default:
		text, err := json.Marshal(script)
		require.NoError(t, err)
		fmt.Fprintf(b, "        - %s\n", text)
	}
}

func writeList(t *testing.T, b *strings.Builder, r *rand.Rand, key string, items []string) {
	t.Helper()
	item := func(text string) string {
		style := []yaml.Style{0, yaml.SingleQuotedStyle, yaml.DoubleQuotedStyle}[r.IntN(3)]
		out, err := writeScalar(text, style, true)
		require.NoError(t, err)
		return out
	}
	if r.IntN(2) == 0 {
		var all []string
		for _, text := range items {
			all = append(all, item(text))
		}
		fmt.Fprintf(b, "        %s: [%s]   # flow\n", key, strings.Join(all, []string{",", ", ", ",\n          "}[r.IntN(3)]))
		return
	}
	indent := []string{"        ", "          "}[r.IntN(2)]
	fmt.Fprintf(b, "        %s:\n", key)
	for i, text := range items {
		comment := ""
		if i%3 == 0 {
			comment = "  # item"
		}
		fmt.Fprintf(b, "%s- %s%s\n", indent, item(text), comment)
	}
}

func TestRandomManifestsKeepTheirLayout(t *testing.T) {
	e := load(t, "vllm")
	other := "---\n# another   document\napiVersion: v1\nkind: Service\nmetadata: {name:  s}\n...\n"
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		argv, params := randomArgv(r), randomParams(r)
		text, keep := randomManifest(t, r, argv)
		text = other + "---\n" + text + other
		got, err := e.Render([]byte(text), experiment.Params{"default": params}, Options{})
		require.NoError(t, err, "seed %d: %s", seed, text)
		found, err := e.Find(got, Options{})
		require.NoError(t, err, "seed %d: %s", seed, got)
		checkReference(t, argv, plainArgv(t, found[0].Argv), params)
		again, err := e.Render(got, experiment.Params{"default": params}, Options{})
		require.NoError(t, err)
		assert.Equal(t, string(got), string(again))
		assert.Contains(t, string(got), keep)
		assert.Equal(t, 2, strings.Count(string(got), other))
		if t.Failed() {
			t.Fatalf("seed %d: %v\n%s\n→\n%s", seed, params, text, got)
		}
	}
}

// plainArgv undoes the shell around a command line, with the shell's parser.
func plainArgv(t *testing.T, argv []string) []string {
	t.Helper()
	argv = Expand(argv, func(string) (string, bool) { return "", false })
	if argv[0] != "bash" {
		return argv
	}
	file, err := syntax.NewParser().Parse(strings.NewReader(argv[2]), "")
	require.NoError(t, err)
	var out []string
	syntax.Walk(file, func(n syntax.Node) bool {
		call, ok := n.(*syntax.CallExpr)
		if !ok || call.Args[0].Lit() != "exec" {
			return true
		}
		for _, w := range call.Args[1:] {
			var text strings.Builder
			for _, part := range w.Parts {
				switch part := part.(type) {
				case *syntax.Lit:
					text.WriteString(unescape(part.Value, false))
				case *syntax.SglQuoted:
					require.False(t, part.Dollar)
					text.WriteString(part.Value)
				case *syntax.DblQuoted:
					for _, inner := range part.Parts {
						text.WriteString(unescape(inner.(*syntax.Lit).Value, true))
					}
				}
			}
			out = append(out, text.String())
		}
		return false
	})
	return out
}
