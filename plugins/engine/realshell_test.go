// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// runScript runs a command line as a container would, with a vllm that only
// tells its arguments.
func runScript(t *testing.T, line commandLine) []string {
	t.Helper()
	dir := t.TempDir()
	told := filepath.Join(dir, "told")
	stub := "#!/bin/sh\nprintf '%s\\0' \"$@\" > \"${0%/*}/told\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "vllm"), []byte(stub), 0o700))
	argv := Expand(line.argv, line.env.literal)
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
	for _, v := range line.env.vars {
		cmd.Env = append(cmd.Env, v.Name+"="+v.Value)
	}
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", output)
	data, err := os.ReadFile(told)
	require.NoError(t, err)
	return append([]string{"vllm"}, strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")...)
}

// What a real shell gives the engine after the edit is what the edit of the
// engine's plain arguments gives.
func TestARealShellRunsWhatWasMeant(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash to run the scripts with:", err)
	}
	rows := []struct {
		script string
		after  []string
		env    []string
	}{
		{script: `vllm serve m --max-num-seqs 64 --port 1`},
		{script: "set -eu\nA=1 exec vllm serve 'a b' \\\n  --max-num-seqs=64 \\\n  --enforce-eager \\\n  --chat-template \"{{ it's }} \\\"x\\\" \\$HOME\" 2>&1 | cat\n"},
		{script: `vllm serve m --compilation-config '{"a": "it'\''s $HOME ` + "`x`" + `"}' --max_num_seqs "6""4">/dev/null`},
		{script: `vllm serve m>/dev/null`},
		{script: `(vllm serve m --enforce-eager) && echo done || exit 3`},
		{script: `if true; then vllm serve "$MODEL" $EXTRA; fi`, env: []string{"MODEL=o/m", "EXTRA=--port 2 --max-num-seqs 64 --enforce-eager"}},
		{script: `vllm serve $(MODEL) $(EXTRA) --port $$((1+1)) $UNSET ${UNSET:-}`, env: []string{"MODEL=o/m", "EXTRA=--max-num-seqs=64 --enforce-eager"}},
		{script: `A=(--port 3 "x y"); vllm serve m --chat-template "${A[2]}" "${A[@]}"`},
		{script: `exec vllm serve m "$@" --port 5`, after: []string{"--", "--max-num-seqs", "64", "--chat-template", "a b $(X)"}, env: []string{"X=1"}},
		{script: `exec "$@"`, after: []string{"sh", "vllm", "serve", "m", "--max-num-seqs", "64", "--enforce-eager"}},
		{script: `N=7; vllm serve m --max-num-seqs $N --port ${P:-9} --dtype "${D}"`, env: []string{"D=auto"}},
		{script: `vllm serve m --max-num-seqs $N>log --port "$((2*4))"`, env: []string{"N=5"}},
		{script: `vllm serve m --enforce-eager --no-enforce-eager $'\x2d-max-num-seqs' 64`},
		{script: `time -p env X=y vllm serve m --x="a  b" --y='' ""`},
	}
	e := load(t, "vllm")
	params := values("maxNumSeqs=256", "enforceEager=false", `compilationConfig={"b": "it's \"<&>\" $HOME $(D) \\"}`)
	for _, row := range rows {
		t.Run(row.script, func(t *testing.T) {
			line := commandLine{argv: append([]string{"bash", "-c", row.script}, row.after...), command: 2, env: env(row.env...)}
			before := runScript(t, line)
			got, err := overlayLine(e, line, params)
			require.NoError(t, err)
			edited := commandLine{argv: got.argv, command: 2}
			for _, v := range line.env.vars {
				if value, ok := got.env[v.Name]; ok {
					v.Value = value
				}
				edited.env.add(v)
			}
			want, err := overlay(e, before, params)
			require.NoError(t, err)
			after := runScript(t, edited)
			for i := range want {
				want[i] = expand(want[i], func(string) (string, bool) { return "", false })
			}
			assert.ElementsMatch(t, want, after)
		})
	}
}
