// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

// FuzzScript edits shell scripts: it must never panic, change bytes only within
// the engine's own arguments, and leave a script that says the parameters.
func FuzzScript(f *testing.F) {
	for _, script := range []string{
		"vllm serve m --max-num-seqs 64", "set -e\nexec vllm serve \"$MODEL\" \\\n  --enforce-eager \\\n --max_num_seqs=$N 2>&1 | tee x",
		"A=(--x 1); A+=(y); vllm serve m \"${A[@]}\" $B ${C:-d e} \"$@\"", "vllm serve m -cc '{\"a\": 1}' --compilation-config.b=$'x' $((1+2)) `x` <(y)",
		"$$(x) $(VAR) vllm serve $$VAR $(VAR) \\$ '$(VAR)' \"$(VAR)\"", "while :; do vllm serve; done", "vllm serve 'é' $X --max-num-seqs",
		"eval vllm serve m", "X=vllm; $X serve m --max-num-seqs 1 -- a", "vllm serve m <<E --enforce-eager\n$X\nE\n", "vllm serve{a,b} ~/m *.x", "vllm serve m --port 1 \\",
	} {
		f.Add(script, "--max-num-seqs 8 x")
	}
	e := load(f, "vllm")
	params := values("maxNumSeqs=256", "enforceEager=false", "compilationConfig.z='a b'", "dtype=auto")
	f.Fuzz(func(t *testing.T, script, variable string) {
		line := commandLine{argv: []string{"bash", "-c", script, "name", "--port", "1"}, command: 2, env: env("VAR="+variable, "B="+variable, "N=1", "SECRET")}
		inv, err := e.locate(line)
		if err != nil || inv == nil {
			return
		}
		settings, _, err := e.grammar.settings(params)
		require.NoError(t, err)
		changes, err := e.grammar.edit(inv.words, inv.positional, settings)
		if err != nil {
			return
		}
		plan, err := inv.plan(changes, func(name string) int { return countUses(text(script), name) })
		if err != nil {
			return
		}
		if inv.script >= 0 {
			behind := inv.last
			for _, w := range inv.words {
				behind = max(behind, w.place.behind)
			}
			for _, s := range plan.script {
				assert.LessOrEqual(t, inv.last, s.start)
				assert.LessOrEqual(t, s.end, behind)
			}
			require.False(t, overlap(plan.script))
		}
		_, argv := plan.list(line.argv, inv.script)
		again := commandLine{argv: argv, command: 2, env: environment{}}
		for _, v := range line.env.vars {
			if spans := plan.env[v.Name]; spans != nil {
				v.Value = apply(line.env.raw[v.Name], spans)
			}
			again.env.add(v)
		}
		second, err := e.locate(again)
		require.NoError(t, err)
		require.NotNil(t, second, "%q", argv)
		more, err := e.grammar.edit(second.words, second.positional, settings)
		require.NoError(t, err, "%q", argv)
		assert.Empty(t, more, "%q → %q", line.argv, argv)
	})
}

// FuzzManifest renders arbitrary YAML: it must never panic, and rendering twice
// must change nothing more.
func FuzzManifest(f *testing.F) {
	for _, name := range []string{"deployment", "statefulset-flow", "pod-entrypoint", "pod-noargs", "script-literal", "script-folded", "script-quoted",
		"env-args", "aliases", "crlf", "inferenceservice"} {
		f.Add(string(manifest(f, name)))
	}
	f.Add(podWith(vllmContainer) + "---\n{}\n")
	e := load(f, "vllm")
	p := experiment.Params{"default": values("maxNumSeqs=256", "enforceEager=false", `compilationConfig={"a":"b: c"}`, "env:A=$(x)", "env:B=1")}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := e.Render([]byte(text), p, Options{})
		if err != nil {
			return
		}
		again, err := e.Render(got, p, Options{})
		require.NoError(t, err, "%s", got)
		assert.Equal(t, string(got), string(again))
		if _, err := e.Check(got, []experiment.Params{p}, Options{}); err != nil {
			t.Fatal(err)
		}
	})
}
