// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

// edited is what became of a command line and the variables around it.
type edited struct {
	argv []string
	env  map[string]string // variables that changed
}

func overlayLine(e *Engine, line commandLine, params map[string]experiment.Value) (edited, error) {
	inv, err := e.locate(line)
	if err != nil || inv == nil {
		return edited{}, err
	}
	settings, _, err := e.grammar.settings(params)
	if err != nil {
		return edited{}, err
	}
	changes, err := e.grammar.edit(inv.words, inv.positional, settings)
	if err != nil {
		return edited{}, err
	}
	all := strings.Join(line.argv, " ")
	plan, err := inv.plan(changes, func(name string) int { return countUses(text(all), name) })
	if err != nil {
		return edited{}, err
	}
	_, argv := plan.list(line.argv, inv.script)
	out := edited{argv: argv, env: map[string]string{}}
	for name, spans := range plan.env {
		out.env[name] = apply(line.env.raw[name], spans)
	}
	return out, nil
}

func env(pairs ...string) environment {
	var e environment
	for _, pair := range pairs {
		name, value, literal := strings.Cut(pair, "=")
		v := EnvVar{Name: name, Value: value}
		switch {
		case name == "*":
			e.open = true
			continue
		case !literal:
			v.From = "secretKeyRef s k"
		}
		e.add(v)
	}
	return e
}

type shellRow struct {
	name   string
	script string
	shell  string   // default bash -c
	after  []string // behind the script
	env    []string // NAME=value, NAME for a reference, * for envFrom
	params []string // default maxNumSeqs=256
	want   string
	after2 []string // what becomes of after
	vars   map[string]string
	err    string
}

func TestShellScripts(t *testing.T) {
	e := load(t, "vllm")
	rows := []shellRow{
		{name: "F1 value in a script", script: "vllm serve m --max-num-seqs 64", want: "vllm serve m --max-num-seqs 256"},
		{name: "login shell", shell: "/bin/bash -lc", script: "vllm serve m --max-num-seqs 64", want: "vllm serve m --max-num-seqs 256"},
		{name: "options with names", shell: "bash -euo pipefail -c", script: "vllm serve m", want: "vllm serve m --max-num-seqs 256"},
		{name: "sh", shell: "/bin/sh -c", script: "exec vllm serve m", want: "exec vllm serve m --max-num-seqs 256"},
		{name: "init around the shell", shell: "tini -- /bin/sh -c", script: "vllm serve m", want: "vllm serve m --max-num-seqs 256"},
		{name: "=", script: "vllm serve m --max-num-seqs=64 --port 1", want: "vllm serve m --max-num-seqs=256 --port 1"},
		{name: "nothing else changes", script: "  set -e;  # start\n\tVLLM_USE_V1=1   exec  vllm  serve   m  --port 1   2>&1 | tee /tmp/log\n",
			want: "  set -e;  # start\n\tVLLM_USE_V1=1   exec  vllm  serve   m  --port 1 --max-num-seqs 256   2>&1 | tee /tmp/log\n"},
		{name: "continued lines", script: "vllm serve m \\\n  --max-num-seqs 64 \\\n  --port 1\n", want: "vllm serve m \\\n  --max-num-seqs 256 \\\n  --port 1\n"},
		{name: "removed with its line", script: "vllm serve m \\\n  --enforce-eager \\\n  --port 1\n", params: []string{"enforceEager=false"}, want: "vllm serve m \\\n  --port 1\n"},
		{name: "last line removed", script: "vllm serve m \\\n  --port 1 \\\n  --enforce-eager\n", params: []string{"enforceEager=false"}, want: "vllm serve m \\\n  --port 1\n"},
		{name: "redirection between words", script: "vllm serve m >log --enforce-eager --port 1", params: []string{"enforceEager=false"}, want: "vllm serve m >log --port 1"},
		{name: "redirection without a blank", script: "vllm serve m>log", want: "vllm serve m --max-num-seqs 256 >log"},
		{name: "value before a redirection", script: "vllm serve m --max-num-seqs $N>log", env: []string{"N"}, want: "vllm serve m --max-num-seqs 256 >log"},
		{name: "backslash at the end", script: "vllm serve m \\", want: "vllm serve m \\\\ --max-num-seqs 256"},
		{name: "chain", script: "cd /models && . /venv/bin/activate && vllm serve m --port 1 && echo done", want: "cd /models && . /venv/bin/activate && vllm serve m --port 1 --max-num-seqs 256 && echo done"},
		{name: "background and wait", script: "vllm serve m &\nwait -n", want: "vllm serve m --max-num-seqs 256 &\nwait -n"},
		{name: "condition", script: "if [ -d /m ]; then vllm serve /m; else sleep 9; fi", want: "if [ -d /m ]; then vllm serve /m --max-num-seqs 256; else sleep 9; fi"},
		{name: "subshell and time", script: "(time vllm serve m)", want: "(time vllm serve m --max-num-seqs 256)"},
		{name: "launchers", script: "numactl --cpunodebind=0 python3 -u -m vllm.entrypoints.openai.api_server --model m", want: "numactl --cpunodebind=0 python3 -u -m vllm.entrypoints.openai.api_server --model m --max-num-seqs 256"},
		{name: "env in front", script: "env A=b /opt/venv/bin/vllm serve m", want: "env A=b /opt/venv/bin/vllm serve m --max-num-seqs 256"},
		{name: "quoted words", script: `"vllm" 'serve' "m" '--max-num-seqs' "64" --port "1"`, want: `"vllm" 'serve' "m" '--max-num-seqs' 256 --port "1"`},
		{name: "escaped word", script: `vllm serve m --max\-num-seqs=6\4`, want: `vllm serve m --max-num-seqs=256`},
		{name: "F13 JSON is quoted", script: `vllm serve m`, params: []string{`speculativeConfig={"method":"ngram"}`}, want: `vllm serve m --speculative-config '{"method":"ngram"}'`},
		{name: "JSON in quotes is merged", script: `vllm serve m --compilation-config '{"a": "it'\''s"}' --port 1`, params: []string{"compilationConfig.b=1"},
			want: `vllm serve m --compilation-config '{"a":"it'\''s","b":1}' --port 1`},
		{name: "JSON in double quotes is merged", script: `vllm serve m --compilation-config "{\"a\": 1}" --port 1`, params: []string{"compilationConfig.b=1"},
			want: `vllm serve m --compilation-config '{"a":1,"b":1}' --port 1`},
		{name: "F4 one word in quotes", script: `vllm serve m "--max-num-seqs 64"`,
			err: `maxNumSeqs: args[0]: "--max-num-seqs 64" is one word, which the engine does not read as a flag: write flag and value as two words`},
		{name: "hidden value gives way", script: "vllm serve m --max-num-seqs $N --port $P", env: []string{"N", "P"}, want: "vllm serve m --max-num-seqs 256 --port $P"},
		{name: "hidden value behind =", script: `vllm serve m --max-num-seqs="${N}" --port 1`, env: []string{"N"}, want: "vllm serve m --max-num-seqs=256 --port 1"},
		{name: "value from a literal variable", script: "vllm serve m --max-num-seqs ${N:-64} --port 1", env: []string{"N=8"}, want: "vllm serve m --max-num-seqs 256 --port 1"},
		{name: "the model is a variable", script: "vllm serve $MODEL --port 1", env: []string{"MODEL"}, want: "vllm serve $MODEL --port 1 --max-num-seqs 256"},
		{name: "the model is a literal variable", script: `vllm serve "$MODEL"`, env: []string{"MODEL=org/m"}, want: `vllm serve "$MODEL" --max-num-seqs 256`},
		{name: "the model of Kubernetes", script: "vllm serve $(MODEL)", env: []string{"MODEL=org/m"}, want: "vllm serve $(MODEL) --max-num-seqs 256"},
		{name: "F16 flag in a variable", script: "vllm serve m $EXTRA_ARGS", env: []string{"EXTRA_ARGS=--max-num-seqs 64 --enforce-eager"}, want: "vllm serve m $EXTRA_ARGS",
			vars: map[string]string{"EXTRA_ARGS": "--max-num-seqs 256 --enforce-eager"}},
		{name: "F16 flag in braces", script: "vllm serve m ${EXTRA_ARGS} --port 1", env: []string{"EXTRA_ARGS=--enforce-eager --max-num-seqs=64"}, want: "vllm serve m ${EXTRA_ARGS} --port 1",
			vars: map[string]string{"EXTRA_ARGS": "--enforce-eager --max-num-seqs=256"}},
		{name: "F16 flag in a variable of Kubernetes", script: "vllm serve m $(EXTRA_ARGS)", env: []string{"EXTRA_ARGS=--max-num-seqs 64"}, want: "vllm serve m $(EXTRA_ARGS)",
			vars: map[string]string{"EXTRA_ARGS": "--max-num-seqs 256"}},
		{name: "switch removed from a variable", script: "vllm serve m $EXTRA_ARGS", env: []string{"EXTRA_ARGS=--port 1  --enforce-eager"}, params: []string{"enforceEager=false"}, want: "vllm serve m $EXTRA_ARGS",
			vars: map[string]string{"EXTRA_ARGS": "--port 1"}},
		{name: "a variable without the flag", script: "vllm serve m $EXTRA_ARGS", env: []string{"EXTRA_ARGS=--enforce-eager"}, want: "vllm serve m $EXTRA_ARGS --max-num-seqs 256"},
		{name: "an empty variable", script: "vllm serve m $EXTRA_ARGS", env: []string{"EXTRA_ARGS="}, want: "vllm serve m $EXTRA_ARGS --max-num-seqs 256"},
		{name: "a variable that nothing sets", script: "vllm serve m $EXTRA_ARGS ${MORE:-}", want: "vllm serve m $EXTRA_ARGS ${MORE:-} --max-num-seqs 256"},
		{name: "a variable that cannot be seen", script: "vllm serve m $EXTRA_ARGS", env: []string{"EXTRA_ARGS"},
			err: "maxNumSeqs: args[0] may hold --max-num-seqs, and what it holds cannot be seen: write the engine's flags out"},
		{name: "a variable that envFrom may set", script: "vllm serve m $EXTRA_ARGS", env: []string{"*"},
			err: "maxNumSeqs: args[0] may hold --max-num-seqs, and what it holds cannot be seen: write the engine's flags out"},
		{name: "a variable used twice", script: "echo $EXTRA_ARGS; vllm serve m $EXTRA_ARGS", env: []string{"EXTRA_ARGS=--max-num-seqs 64"},
			err: "maxNumSeqs: the variable EXTRA_ARGS in args[0] holds the flag, and the variable is used elsewhere too: write the flag on the engine's own command line"},
		{name: "JSON cannot go into an unquoted variable", script: "vllm serve m $EXTRA_ARGS", env: []string{`EXTRA_ARGS=--compilation-config {"a":1}`}, params: []string{"compilationConfig.b=1"},
			err: `compilationConfig.b: the variable EXTRA_ARGS in args[0] holds the flag, but "{\"a\":1,\"b\":1}" cannot be put there as one word: write the flag on the engine's own command line`},
		{name: "arguments behind the script", script: `exec vllm serve m "$@"`, after: []string{"--", "--max-num-seqs", "64"}, want: `exec vllm serve m "$@"`, after2: []string{"--", "--max-num-seqs", "256"}},
		{name: "arguments without the flag", script: `exec vllm serve m "$@" >log`, after: []string{"x", "--port", "1"}, want: `exec vllm serve m "$@" --max-num-seqs 256 >log`, after2: []string{"x", "--port", "1"}},
		{name: "F1 arguments that no one reads", script: `vllm serve m`, after: []string{"--max-num-seqs", "64"}, want: `vllm serve m --max-num-seqs 256`, after2: []string{"--max-num-seqs", "64"}},
		{name: "all arguments are the command", script: `exec "$@"`, after: []string{"sh", "vllm", "serve", "m"}, want: `exec "$@" --max-num-seqs 256`, after2: []string{"sh", "vllm", "serve", "m"}},
		{name: "changed arguments", script: `shift; vllm serve m "$@"`, after: []string{"x"}, err: "maxNumSeqs: args[0] may hold --max-num-seqs, and what it holds cannot be seen: write the engine's flags out"},
		{name: "set -e is no change", script: `set -eux -o pipefail; vllm serve m "$@"`, want: `set -eux -o pipefail; vllm serve m "$@" --max-num-seqs 256`},
		{name: "variable of the script without the flag", script: "ARGS=\"--port 1\"\nif true; then ARGS=\"$ARGS --enforce-eager\"; fi\nvllm serve m $ARGS\n",
			want: "ARGS=\"--port 1\"\nif true; then ARGS=\"$ARGS --enforce-eager\"; fi\nvllm serve m $ARGS --max-num-seqs 256\n"},
		{name: "variable of the script with the flag", script: "ARGS='--max-num-seqs 64'; vllm serve m $ARGS",
			err: "maxNumSeqs: the script's variable ARGS in args[0] holds the flag: write it on the engine's own command line"},
		{name: "variable of the script that may have the flag", script: "ARGS=--x; ARGS=\"$ARGS --max-num-seqs 64\"; vllm serve m $ARGS",
			err: "maxNumSeqs: args[0] may hold --max-num-seqs, and what it holds cannot be seen: write the engine's flags out"},
		{name: "array of the script", script: `ARGS=(--port 1); ARGS+=(--enforce-eager); vllm serve m "${ARGS[@]}"`, want: `ARGS=(--port 1); ARGS+=(--enforce-eager); vllm serve m "${ARGS[@]}" --max-num-seqs 256`},
		{name: "array of the script with the flag", script: `ARGS=(--max-num-seqs 64); vllm serve m "${ARGS[@]}"`,
			err: "maxNumSeqs: the script's variable ARGS in args[0] holds the flag: write it on the engine's own command line"},
		{name: "flags from a command", script: "vllm serve m $(cat /flags)", err: "maxNumSeqs: args[0] may hold --max-num-seqs, and what it holds cannot be seen: write the engine's flags out"},
		{name: "value from a command", script: "vllm serve m --tensor-parallel-size $(nvidia-smi -L | wc -l) --port $((8000+1))", want: "vllm serve m --tensor-parallel-size $(nvidia-smi -L | wc -l) --port $((8000+1)) --max-num-seqs 256"},
		{name: "escaped dollar of Kubernetes", script: "echo $$(hostname) $$; vllm serve m --port $$PORT", want: "echo $$(hostname) $$; vllm serve m --port $$PORT --max-num-seqs 256"},
		{name: "default of an unset variable", script: "vllm serve m ${EXTRA:---enforce-eager}", params: []string{"enforceEager=true"}, want: "vllm serve m ${EXTRA:---enforce-eager}"},
		{name: "line of the trouble", script: "set -e\nvllm serve m \\\n  --port 1 \\\n  $(cat /flags)\n", err: "maxNumSeqs: args[0] line 4 may hold --max-num-seqs, and what it holds cannot be seen: write the engine's flags out"},
		{name: "the engine's words may be a variable", script: "$PREFIX vllm serve m", env: []string{"PREFIX"}, want: "$PREFIX vllm serve m --max-num-seqs 256"},
		{name: "the command in a variable", script: "exec $CMD", env: []string{"CMD=vllm serve m --max-num-seqs 64"}, want: "exec $CMD", vars: map[string]string{"CMD": "vllm serve m --max-num-seqs 256"}},
		{name: "value with a dollar is literal", script: "vllm serve m", params: []string{"--x='$(HOME)'"}, want: "vllm serve m --x '$$(HOME)'"},
		{name: "busybox", shell: "busybox sh -c", script: "vllm serve m", want: "vllm serve m --max-num-seqs 256"},
		{name: "ksh with long options", shell: "bash --rcfile x --norc +x -c", script: "vllm serve m", want: "vllm serve m --max-num-seqs 256"},
		{name: "end of options", shell: "dash -c --", script: "vllm serve m", want: "vllm serve m --max-num-seqs 256"},
		{name: "variable that the script reads", script: "read X; vllm serve m $X", err: "maxNumSeqs: args[0] may hold --max-num-seqs, and what it holds cannot be seen: write the engine's flags out"},
		{name: "variable of a loop", script: "for X in a b; do :; done; vllm serve m $X", err: "maxNumSeqs: args[0] may hold --max-num-seqs, and what it holds cannot be seen: write the engine's flags out"},
		{name: "element of an array", script: "X[0]=y; vllm serve m ${X[@]}", err: "maxNumSeqs: args[0] may hold --max-num-seqs, and what it holds cannot be seen: write the engine's flags out"},
		{name: "variable that another file may set", script: ". /etc/x; vllm serve m $X", err: "maxNumSeqs: args[0] may hold --max-num-seqs, and what it holds cannot be seen: write the engine's flags out"},
		{name: "part of a flag", script: "vllm serve m --max-$X 1", env: []string{"X"}, err: "maxNumSeqs: args[0] may hold --max-num-seqs, and what it holds cannot be seen: write the engine's flags out"},
		{name: "variable with quotes that holds the flag", script: "vllm serve m $(X)", env: []string{"X=--chat-template 'a b' --max-num-seqs 1"}, err: "maxNumSeqs: args[0] may hold --max-num-seqs, and what it holds cannot be seen: write the engine's flags out"},
		{name: "variable with quotes that does not", script: "vllm serve m $(X)", env: []string{"X=--chat-template 'a b'"}, want: "vllm serve m $(X) --max-num-seqs 256"},
		{name: "exported variables", script: "export A=x B; declare X='--port 1'; vllm serve m $X", want: "export A=x B; declare X='--port 1'; vllm serve m $X --max-num-seqs 256"},
		{name: "variable with a default of its own", script: "P=${P:-8000}; vllm serve m --port $P ${#P}", want: "P=${P:-8000}; vllm serve m --port $P ${#P} --max-num-seqs 256"},
		{name: "variables that mean each other", script: `A="$B"; B="$A"; vllm serve m $A`, want: `A="$B"; B="$A"; vllm serve m $A --max-num-seqs 256`},
		{name: "alternative", script: "vllm serve m ${X:+--enforce-eager} ${Y:+--port 1}", env: []string{"X=1"}, params: []string{"enforceEager=true"}, want: "vllm serve m ${X:+--enforce-eager} ${Y:+--port 1}"},
		{name: "numbered argument as value", script: "vllm serve m --max-num-seqs $1 --port ${2}", after: []string{"x", "64", "1"}, want: "vllm serve m --max-num-seqs 256 --port ${2}", after2: []string{"x", "64", "1"}},
		{name: "numbered argument as flag", script: "vllm serve m $1", after: []string{"x", "--max-num-seqs=64"}, want: "vllm serve m --max-num-seqs=256", after2: []string{"x", "--max-num-seqs=64"}},
		{name: "further values in a variable", script: "vllm serve m $X", env: []string{"X=--cudagraph-capture-sizes 1 --port 1"}, params: []string{"cudagraphCaptureSizes='1 2 4'"}, want: "vllm serve m $X",
			vars: map[string]string{"X": "--cudagraph-capture-sizes 1 2 4 --port 1"}},
		{name: "further values behind the script", script: `vllm serve m "$@" --port 1`, after: []string{"x", "--cudagraph-capture-sizes", "1"}, params: []string{"cudagraphCaptureSizes='2 4'"}, want: `vllm serve m "$@" --port 1`,
			after2: []string{"x", "--cudagraph-capture-sizes", "2", "4"}},
		{name: "further values in the script", script: "vllm serve m --cudagraph-capture-sizes 1 >log --port 1", params: []string{"cudagraphCaptureSizes='2 4'"}, want: "vllm serve m --cudagraph-capture-sizes 2 4 >log --port 1"},
		{name: "arguments end in a variable", script: "vllm serve m $X", env: []string{"X=--port 1 -- y"},
			err: "maxNumSeqs: the variable X in args[0] holds a --, before which new flags must stand: write it on the engine's own command line"},
		{name: "sglang is no vllm", script: "python3 -m sglang.launch_server --model-path m"},
		{name: "loop", script: "while true; do vllm serve m; sleep 1; done", err: "cannot be edited safely: the script in args[0] starts the engine in a loop; " + advice},
		{name: "for loop", script: "for i in 1 2; do vllm serve m --port $i & done; wait", err: "cannot be edited safely: the script in args[0] starts the engine in a loop; " + advice},
		{name: "function", script: "run() { vllm serve m; }; run", err: "cannot be edited safely: the script in args[0] starts the engine in a function; " + advice},
		{name: "eval", script: `eval "vllm serve m $X"`, err: "cannot be edited safely: the script in args[0] hides the engine's command, behind eval, another shell or a variable; " + advice},
		{name: "shell in a shell", script: `bash -c 'vllm serve m'`, err: "cannot be edited safely: the script in args[0] hides the engine's command, behind eval, another shell or a variable; " + advice},
		{name: "twice", script: "vllm serve a &\nvllm serve b", err: "cannot be edited safely: the script in args[0] starts the engine twice, in lines 1 and 2; " + advice},
		{name: "no shell syntax", script: "vllm serve m '", err: "cannot be edited safely: the script in args[0] cannot be read: 1:14: reached EOF without closing quote `'`; " + advice},
		{name: "only talk", script: "until curl -s x; do echo waiting for vllm serve; sleep 1; done"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			shell := row.shell
			if shell == "" {
				shell = "bash -c"
			}
			head := strings.Fields(shell)
			line := commandLine{argv: append(append(head, row.script), row.after...), command: len(head), env: env(row.env...)}
			params := row.params
			if params == nil {
				params = []string{"maxNumSeqs=256"}
			}
			got, err := overlayLine(e, line, values(params...))
			if row.err != "" {
				require.Error(t, err)
				assert.Equal(t, row.err, err.Error())
				return
			}
			require.NoError(t, err)
			if row.want == "" {
				assert.Empty(t, got.argv)
				return
			}
			want := edited{argv: append(append(head[:len(head):len(head)], row.want), row.after2...), env: row.vars}
			if want.env == nil {
				want.env = map[string]string{}
			}
			assert.Equal(t, want, got)
			again := line
			again.argv, again.env = got.argv, environment{open: line.env.open}
			for _, v := range line.env.vars {
				if changed, ok := got.env[v.Name]; ok {
					v.Value = changed
				}
				again.env.add(v)
			}
			twice, err := overlayLine(e, again, values(params...))
			require.NoError(t, err)
			assert.Equal(t, edited{argv: got.argv, env: map[string]string{}}, twice, "a second time changes nothing")
		})
	}
}

const advice = "write the engine's command itself into command and args, or as one simple command of the script"
