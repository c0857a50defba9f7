// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"regexp"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// script is a shell script that is the argument of a shell's -c.
type script struct {
	text    string // as written in the manifest
	line    commandLine
	element int

	vars     map[string]*shellVar
	args     []word // $0, $1, …
	argsOpen bool   // the script changes its own arguments
	sources  bool   // the script runs other files, which may set variables
}

// shellVar is what a script assigns to a variable.
type shellVar struct {
	values []*syntax.Word // all that is ever assigned to it
	open   bool           // something else may be, too
	busy   bool           // its value is being worked out
}

// engineCall is a simple command of a script that starts the engine.
type engineCall struct {
	cmd   *command
	words []word // the engine's arguments
	last  int    // byte after the engine's command
	line  uint
	bars  string // a loop or function around it
}

// mask stands for the first $ of $$, which Kubernetes turns into one $: the
// shell never sees it.
const mask = '\x01'

// locateInScript finds the engine's command in a shell script.
func (e *Engine) locateInScript(line commandLine, shell shellCall) (*invocation, error) {
	s := &script{text: line.argv[shell.script], line: line, element: shell.script, args: shell.args, vars: map[string]*shellVar{}}
	if strings.ContainsAny(s.text, "\x00"+string(mask)) {
		return nil, &hidden{fmt.Sprintf("the script in %s has control characters", line.label(shell.script))}
	}
	file, err := syntax.NewParser(syntax.Variant(variant(shell.name))).Parse(strings.NewReader(masked(s.text)), "")
	if err != nil {
		if e.mentioned(s.text) {
			return nil, &hidden{fmt.Sprintf("the script in %s cannot be read: %v", line.label(shell.script), err)}
		}
		return nil, nil
	}
	s.assignments(file)
	calls := s.calls(e, file)
	switch {
	case len(calls) > 1:
		return nil, &hidden{fmt.Sprintf("the script in %s starts the engine twice, in lines %d and %d",
			line.label(shell.script), calls[0].line, calls[1].line)}
	case len(calls) == 1 && calls[0].bars != "":
		return nil, &hidden{fmt.Sprintf("the script in %s starts the engine in %s", line.label(shell.script), calls[0].bars)}
	case len(calls) == 0 && s.hides(e, file):
		return nil, &hidden{fmt.Sprintf("the script in %s hides the engine's command, behind eval, another shell or a variable",
			line.label(shell.script))}
	case len(calls) == 0:
		return nil, nil
	}
	call := calls[0]
	return &invocation{line: line, words: call.words, positional: call.cmd.Positional, script: shell.script, last: call.last}, nil
}

func variant(shell string) syntax.LangVariant {
	switch shell {
	case "sh", "dash", "ash":
		return syntax.LangPOSIX
	case "ksh":
		return syntax.LangMirBSDKorn
	default:
		return syntax.LangBash
	}
}

// masked is a script of the same length in which the first $ of each $$ is no
// shell syntax.
func masked(text string) string {
	b := []byte(text)
	for _, p := range references(text) {
		if p.text == "$$" && p.name == "" {
			b[p.at] = mask
		}
	}
	return string(b)
}

// calls lists the simple commands that start the engine.
func (s *script) calls(e *Engine, file *syntax.File) []engineCall {
	var calls []engineCall
	var stack []syntax.Node
	syntax.Walk(file, func(n syntax.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		if call, ok := n.(*syntax.CallExpr); ok {
			words := s.flatten(call)
			if cmd, next := e.match(words); cmd != nil {
				calls = append(calls, engineCall{
					cmd: cmd, words: words[next:], last: words[next-1].place.behind, line: call.Pos().Line(), bars: bars(stack),
				})
			}
		}
		stack = append(stack, n)
		return true
	})
	return calls
}

// bars names what around a command makes it run more than once or elsewhere.
func bars(stack []syntax.Node) string {
	for _, n := range stack {
		switch n.(type) {
		case *syntax.WhileClause, *syntax.ForClause:
			return "a loop"
		case *syntax.FuncDecl:
			return "a function"
		case *syntax.CmdSubst, *syntax.ProcSubst:
			return "a substitution"
		}
	}
	return ""
}

// talkers only print or look for names, or wait for others.
var talkers = regexp.MustCompile(`^(echo|printf|grep|pgrep|pkill|which|type|sleep|curl|wget|cat|kill|nc|test|\[)$`)

// hides tells whether the script names the engine's command in something that
// may run it.
func (s *script) hides(e *Engine, file *syntax.File) bool {
	found := false
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CallExpr:
			if len(n.Args) > 0 && talkers.MatchString(n.Args[0].Lit()) {
				return false
			}
			found = found || e.mentioned(s.source(n))
		case *syntax.DeclClause:
			found = found || e.mentioned(s.source(n))
		}
		return true
	})
	return found
}

func (s *script) source(n syntax.Node) string { return s.text[n.Pos().Offset():n.End().Offset()] }

// assignments records which variables the script sets.
func (s *script) assignments(file *syntax.File) {
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CallExpr:
			if len(n.Args) == 0 {
				s.assign(n.Assigns)
				return true
			}
			s.builtin(n)
		case *syntax.DeclClause:
			s.assign(n.Args)
		case *syntax.WordIter:
			s.variable(n.Name.Value).open = true
		case *syntax.ParamExp:
			if n.Exp != nil && (n.Exp.Op == syntax.AssignUnset || n.Exp.Op == syntax.AssignUnsetOrNull) {
				s.variable(n.Param.Value).open = true
			}
		}
		return true
	})
}

func (s *script) variable(name string) *shellVar {
	if s.vars[name] == nil {
		s.vars[name] = &shellVar{}
	}
	return s.vars[name]
}

func (s *script) assign(assigns []*syntax.Assign) {
	for _, a := range assigns {
		if a.Name == nil || a.Naked {
			continue
		}
		v := s.variable(a.Name.Value)
		switch {
		case a.Index != nil:
			v.open = true
		case a.Array != nil:
			for _, elem := range a.Array.Elems {
				v.open = v.open || elem.Index != nil || elem.Value == nil
				v.values = append(v.values, elem.Value)
			}
		case a.Value != nil:
			v.values = append(v.values, a.Value)
		}
	}
}

// builtin records what commands of the shell do to variables.
func (s *script) builtin(call *syntax.CallExpr) {
	switch call.Args[0].Lit() {
	case "source", ".", "eval":
		s.sources = true
	case "set", "shift":
		s.argsOpen = s.argsOpen || call.Args[0].Lit() == "shift" || setsArguments(call)
	case "read", "mapfile", "readarray", "getopts", "printf", "unset":
		for _, w := range call.Args[1:] {
			if name := w.Lit(); syntax.ValidName(name) {
				s.variable(name).open = true
			}
		}
	}
}

// setsArguments tells whether a set command replaces $1, $2, …: "set -e" does not.
func setsArguments(call *syntax.CallExpr) bool {
	for i := 1; i < len(call.Args); i++ {
		lit := call.Args[i].Lit()
		if lit == "--" || lit == "" || lit[0] != '-' && lit[0] != '+' {
			return true
		}
		if strings.HasSuffix(lit, "o") {
			i++ // the name of an option
		}
	}
	return false
}

// quote writes a word for the shell.
func quote(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// plainWord is a text that the shell takes for one word as it stands, quoted
// or not.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)
