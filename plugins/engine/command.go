// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// commandLine is a container's command and args with its environment.
type commandLine struct {
	argv []string
	// implied is the number of leading elements that come from the image.
	implied int
	// command is the number of elements, after the implied ones, of command:.
	command int
	env     environment
}

// label names an element for messages.
func (c commandLine) label(i int) string {
	switch {
	case i < c.implied:
		return "the image's entrypoint"
	case i < c.implied+c.command:
		return fmt.Sprintf("command[%d]", i-c.implied)
	default:
		return fmt.Sprintf("args[%d]", i-c.implied-c.command)
	}
}

// invocation is an engine's command found in a command line.
type invocation struct {
	line       commandLine
	words      []word // the engine's arguments
	positional bool   // the first positional argument is the model
	script     int    // element that holds the script, or -1
	// last is what new words follow when the engine has no arguments yet: an
	// element, or a byte of the script.
	last int
}

// hidden is the error of a command line that seems to start the engine, in a
// way that cannot be edited safely.
type hidden struct{ why string }

func (h *hidden) Error() string {
	return "cannot be edited safely: " + h.why + "; write the engine's command itself into command and args, or as one simple command of the script"
}

var errScriptFile = &hidden{"it runs a script file, which may start the engine"}

// locate finds the engine's command in a command line. It returns nil when
// there is none.
func (e *Engine) locate(line commandLine) (*invocation, error) {
	words := line.words(0)
	if cmd, next := e.match(words); cmd != nil {
		return &invocation{line: line, words: words[next:], positional: cmd.Positional, script: -1, last: next - 1}, nil
	}
	shell, ok := findShell(words)
	if !ok || shell.script < 0 {
		return nil, nil
	}
	return e.locateInScript(line, shell)
}

// words reads the elements of a command line from the given one on.
func (c commandLine) words(from int) []word {
	var words []word
	for i := from; i < len(c.argv); i++ {
		words = append(words, c.word(i))
	}
	return words
}

// word reads one element: Kubernetes puts values in for $(NAME) and never
// splits an element.
func (c commandLine) word(i int) word {
	w := word{place: place{kind: inList, element: i, label: c.label(i)}}
	pieces := references(c.argv[i])
	for _, p := range pieces {
		if w.open {
			break
		}
		switch {
		case p.name == "" && p.text == "$$":
			w.text += "$"
		case p.name == "":
			w.text += p.text
		case c.env.unseen(p.name):
			w.open = true
		default:
			value, ok := c.env.literal(p.name)
			if !ok {
				value = p.text
			}
			w.text += value
			if ok && len(pieces) == 1 {
				w.place = place{kind: inEnv, element: i, variable: p.name, to: len(value), alone: true,
					label: "the variable " + p.name + " in " + c.label(i)}
			}
		}
	}
	return w
}

var (
	pythonName = regexp.MustCompile(`^(python|pypy)[0-9.]*$`)
	shellName  = regexp.MustCompile(`^(sh|bash|dash|ash|zsh|ksh|busybox)$`)
)

// launchers start the command that follows their own options.
var launchers = []string{
	"catchsegv", "chrt", "command", "conda", "ddtrace-run", "dumb-init", "env", "exec", "gosu", "ionice", "micromamba", "mpirun",
	"newrelic-admin", "nice", "nohup", "nsys", "numactl", "opentelemetry-instrument", "pixi", "poetry", "setsid",
	"stdbuf", "su-exec", "sudo", "taskset", "time", "timeout", "tini", "unshare", "uv", "xvfb-run",
}

// starts lists where in a command line a command may start: at the front, and
// anywhere behind a launcher or a prefix that cannot be seen.
func starts(words []word) int {
	if len(words) == 0 {
		return 0
	}
	if words[0].open || slices.Contains(launchers, path.Base(words[0].text)) {
		return len(words)
	}
	return 1
}

// match finds the engine's command at the front of a command line, behind
// launchers if need be; next is the first word that is an argument.
func (e *Engine) match(words []word) (cmd *command, next int) {
	for i := range starts(words) {
		for c := range e.desc.Commands {
			if n := e.desc.Commands[c].match(words[i:]); n > 0 {
				return &e.desc.Commands[c], i + n
			}
		}
	}
	return nil, 0
}

// match counts the words of the command at the front of words, or returns 0.
func (c *command) match(words []word) int {
	if len(words) == 0 || words[0].open {
		return 0
	}
	at := 0
	if pythonName.MatchString(path.Base(words[0].text)) {
		at = 1
		for at < len(words) && strings.HasPrefix(words[at].text, "-") {
			switch option := words[at].text; {
			case option == "-m":
				if c.Module != "" && at+1 < len(words) && words[at+1].text == c.Module {
					return at + 2
				}
				return 0
			case c.Module != "" && option == "-m"+c.Module:
				return at + 1
			case option == "-X" || option == "-W":
				at++
			}
			at++
		}
	}
	if c.Program == "" || at >= len(words) || path.Base(words[at].text) != c.Program {
		return 0
	}
	for i, want := range c.Words {
		if at+1+i >= len(words) || words[at+1+i].text != want {
			return 0
		}
	}
	return at + 1 + len(c.Words)
}

// mentioned tells whether a text names the engine's command.
func (e *Engine) mentioned(text string) bool {
	for _, c := range e.desc.Commands {
		name := c.Module
		if name == "" {
			name = strings.Join(append([]string{c.Program}, c.Words...), " ")
		}
		if strings.Contains(strings.Join(strings.Fields(text), " "), name) {
			return true
		}
	}
	return false
}

// shellCall is a shell found in a command line.
type shellCall struct {
	name   string // bash, sh, …
	script int    // element that holds the script of -c; -1: the shell reads a file
	args   []word // what follows the script: $0, $1, …
}

// findShell finds a shell at the front of a command line, behind launchers if
// need be.
func findShell(words []word) (shellCall, bool) {
	for i := range starts(words) {
		name := path.Base(words[i].text)
		if words[i].open || !shellName.MatchString(name) {
			continue
		}
		at := i + 1
		if name == "busybox" && at < len(words) {
			name = words[at].text
			at++
		}
		return shellScript(name, words, at), true
	}
	return shellCall{}, false
}

// shellScript reads a shell's options up to the script.
func shellScript(name string, words []word, at int) shellCall {
	call := shellCall{name: name, script: -1}
	command := false
	for at < len(words) {
		text := words[at].text
		if text == "--" {
			at++
			break
		}
		if len(text) < 2 || text[0] != '-' && text[0] != '+' {
			break
		}
		at++
		if strings.HasPrefix(text, "--") {
			if text == "--rcfile" || text == "--init-file" {
				at++
			}
			continue
		}
		command = command || strings.Contains(text, "c")
		at += strings.Count(text, "o") + strings.Count(text, "O") // each takes a name
	}
	if command && at < len(words) {
		call.script = words[at].place.element
		call.args = words[at+1:]
	}
	return call
}
