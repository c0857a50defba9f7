// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/llmctl/llmctl/experiment"
)

// effective says where an engine reports the arguments that it really runs
// with. Their names are those of the flags, with underscores.
type effective struct {
	Log  string `yaml:"log"`  // what stands before a Python dictionary of them in the log
	Path string `yaml:"path"` // URL path that answers them as a JSON object
	// Except are flags whose value the engine changes on purpose.
	Except []string `yaml:"except"`
}

// Arguments are what an engine reports to run with, by flag without dashes and
// with underscores; numbers and booleans as in JSON.
type Arguments map[string]string

// ArgumentsPath is the URL path at which the engine reports its arguments, or "".
func (e *Engine) ArgumentsPath() string { return e.desc.Effective.Path }

// ArgumentsFromJSON reads the answer at ArgumentsPath; values that are neither
// numbers, booleans nor text are left out.
func ArgumentsFromJSON(data []byte) (Arguments, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil {
		return nil, fmt.Errorf("the engine's arguments: %w", err)
	}
	reported := Arguments{}
	for name, raw := range object {
		if text := strings.Trim(string(raw), `"`); text != "" && text[0] != '{' && text[0] != '[' && text != "null" {
			reported[name] = text
		}
	}
	return reported, nil
}

// pythonEntry is an entry of a printed Python dictionary with a plain value.
var pythonEntry = regexp.MustCompile(`'(\w+)': ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,'"\[\]{}()]+)`)

// ArgumentsFromLog finds the report in the engine's log; nil where there is none.
func (e *Engine) ArgumentsFromLog(log []byte) Arguments {
	mark := e.desc.Effective.Log
	if mark == "" {
		return nil
	}
	_, rest, found := bytes.Cut(log, []byte(mark))
	if !found {
		return nil
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	reported := Arguments{}
	for _, m := range pythonEntry.FindAllSubmatch(outermost(line), -1) {
		value := strings.Trim(string(m[2]), `'"`)
		switch value {
		case "None":
			continue
		case "True", "False":
			value = strings.ToLower(value)
		}
		reported[string(m[1])] = value
	}
	return reported
}

// outermost blanks what stands inside nested brackets, so that an entry of a
// nested dictionary is not taken for an argument.
func outermost(line []byte) []byte {
	out := slices.Clone(line)
	depth := 0
	for i, c := range line {
		switch c {
		case '{', '[', '(':
			depth++
		case '}', ']', ')':
			depth--
		}
		if depth > 1 {
			out[i] = ' '
		}
	}
	return out
}

// Mismatches lists the numbers and switches on the container's command line
// that the engine reports differently, such as "--max-num-seqs is 64, the engine
// runs with 32". A flag that the engine does not report is none.
func (e *Engine) Mismatches(c Container, reported Arguments) ([]string, error) {
	given, err := e.given(c)
	if err != nil {
		return nil, err
	}
	var differ []string
	for _, g := range given {
		has, ok := reported[strings.ReplaceAll(strings.TrimLeft(g.flag.name, "-"), "-", "_")]
		if ok && !slices.Contains(e.desc.Effective.Except, g.flag.name) && !sameArgument(g.value, has) {
			differ = append(differ, fmt.Sprintf("%s is %s, the engine runs with %s", g.flag.name, g.value, has))
		}
	}
	return differ, nil
}

// sameArgument compares numbers by value. What is not a number on both sides,
// such as "auto", which the engine replaces, tells nothing.
func sameArgument(given, reported string) bool {
	a, aok := argumentNumber(given)
	b, bok := argumentNumber(reported)
	return !aok || !bok || a == b
}

func argumentNumber(text string) (float64, bool) {
	switch text {
	case "true":
		return 1, true
	case "false":
		return 0, true
	}
	if n, ok := suffixed(text); ok {
		return float64(n), true
	}
	f, err := strconv.ParseFloat(text, 64)
	return f, err == nil
}

// ContextLength is the longest sequence, in tokens, that the container's command
// line lets the engine serve; 0 when it does not say.
func (e *Engine) ContextLength(c Container) (int, error) {
	given, err := e.given(c)
	if err != nil {
		return 0, err
	}
	for _, g := range given {
		if n, ok := argumentNumber(g.value); ok && g.flag.param == contextLength && n > 0 {
			return int(n), nil
		}
	}
	return 0, nil
}

// contextLength is the abstract parameter of the longest sequence.
const contextLength = "maxModelLen"

// argument is a flag with the value that counts.
type argument struct {
	flag  *flag
	value string
}

// given lists the parameters that are numbers or switches on a command line, in
// the order of their last occurrence, which is the one that counts.
func (e *Engine) given(c Container) ([]argument, error) {
	inv, err := e.locate(c.line())
	if err != nil || inv == nil {
		return nil, err
	}
	var list []argument
	for _, o := range e.grammar.scan(inv.words, inv.positional).found {
		if o.flag == nil || o.flag.rule == nil || o.key != "" {
			continue
		}
		value, ok := o.text(inv.words)
		if !ok {
			continue
		}
		list = slices.DeleteFunc(list, func(a argument) bool { return a.flag == o.flag })
		list = append(list, argument{o.flag, value})
	}
	return list, nil
}

// text is the value of an option of one number or of a switch, if it can be seen.
func (o occurrence) text(words []word) (string, bool) {
	switch {
	case o.flag.kind == negatable || o.flag.kind == presentOnly:
		return experiment.Bool(!o.negated).String(), !o.attached
	case o.flag.kind != valueStyle || o.flag.rule.Type == "" || o.flag.list:
		return "", false
	case o.attached:
		return o.value, !words[o.at].open
	case o.n == 2:
		return words[o.at+1].text, !words[o.at+1].open
	}
	return "", false
}
