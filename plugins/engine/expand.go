// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
)

// Expand replaces $(NAME) in each argument by the variable's value, by the
// rules of Kubernetes: $$ stands for a $ that starts nothing, and a name that
// lookup does not know stays as it is.
func Expand(argv []string, lookup func(name string) (string, bool)) []string {
	out := make([]string, len(argv))
	for i, arg := range argv {
		out[i] = expand(arg, lookup)
	}
	return out
}

func expand(text string, lookup func(string) (string, bool)) string {
	var b strings.Builder
	for _, p := range references(text) {
		switch {
		case p.name != "":
			if value, ok := lookup(p.name); ok {
				b.WriteString(value)
			} else {
				b.WriteString(p.text)
			}
		case p.text == "$$":
			b.WriteString("$")
		default:
			b.WriteString(p.text)
		}
	}
	return b.String()
}

// piece is a part of a text that Kubernetes expands: a reference $(NAME), an
// escape $$, or other text.
type piece struct {
	at   int // byte in the text
	text string
	name string // of a reference
}

// references cuts a text into its pieces.
func references(text string) []piece {
	var pieces []piece
	plain := 0
	add := func(at, end int, name string) {
		if plain < at {
			pieces = append(pieces, piece{at: plain, text: text[plain:at]})
		}
		pieces = append(pieces, piece{at: at, text: text[at:end], name: name})
		plain = end
	}
	for i := 0; i < len(text); {
		rest := text[i:]
		closing := strings.IndexByte(rest, ')')
		switch {
		case strings.HasPrefix(rest, "$$"):
			add(i, i+2, "")
			i += 2
		case strings.HasPrefix(rest, "$(") && closing > 2:
			add(i, i+closing+1, rest[2:closing])
			i += closing + 1
		default:
			i++
		}
	}
	if plain < len(text) {
		pieces = append(pieces, piece{at: plain, text: text[plain:]})
	}
	return pieces
}

// escape keeps Kubernetes from expanding anything in a text that is meant literally.
func escape(text string) string {
	if !strings.Contains(text, "$$") && !strings.Contains(text, "$(") {
		return text
	}
	return strings.ReplaceAll(text, "$", "$$")
}

// environment is what a container's env says, as far as it can be seen.
type environment struct {
	vars []EnvVar
	raw  map[string]string // literal values as written, references unexpanded
	open bool              // envFrom may define more
}

// variable finds a variable; of one name the last entry counts.
func (e environment) variable(name string) (EnvVar, bool) {
	for i := len(e.vars) - 1; i >= 0; i-- {
		if e.vars[i].Name == name {
			return e.vars[i], true
		}
	}
	return EnvVar{}, false
}

// literal is the value of a variable that is written in the manifest.
func (e environment) literal(name string) (string, bool) {
	v, ok := e.variable(name)
	return v.Value, ok && v.From == ""
}

// add appends an entry; references in a literal mean the entries before it.
func (e *environment) add(v EnvVar) {
	if v.From == "" {
		if e.raw == nil {
			e.raw = map[string]string{}
		}
		e.raw[v.Name] = v.Value
		v.Value = expand(v.Value, e.literal)
	}
	e.vars = append(e.vars, v)
}

// unseen tells whether the value of a variable is not in the manifest.
func (e environment) unseen(name string) bool {
	v, ok := e.variable(name)
	if !ok {
		return e.open
	}
	return v.From != "" || strings.Contains(v.Value, "$(")
}
