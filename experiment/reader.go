// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// reader turns YAML nodes into typed fields and collects every problem on the way.
type reader struct {
	problems []Problem
}

// field reads the node at path into its place.
type field func(path string, n *yaml.Node)

// fields are the known keys of a mapping.
type fields map[string]field

func (r *reader) problem(path, format string, args ...any) {
	r.problems = append(r.problems, Problem{path, fmt.Sprintf(format, args...)})
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// each visits the entries of a mapping; a repeated key is a problem.
func (r *reader) each(path string, n *yaml.Node, visit func(path, key string, n *yaml.Node)) {
	if n = resolve(n); n.Kind != yaml.MappingNode {
		r.problem(path, "must be a mapping, is %s", describe(n))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch at := join(path, key.Value); {
		case key.Kind != yaml.ScalarNode || key.Tag == "!!merge":
			r.problem(path, "keys must be plain words")
		case seen[key.Value]:
			r.problem(at, "is given twice")
		case trap(key):
			r.problem(at, "is read as true or false by YAML 1.1; put the key in quotes")
		default:
			seen[key.Value] = true
			visit(at, key.Value, n.Content[i+1])
		}
	}
}

// object reads a mapping whose keys are all known.
func (r *reader) object(known fields) field {
	return func(path string, n *yaml.Node) {
		r.each(path, n, func(at, key string, n *yaml.Node) {
			read, ok := known[key]
			if !ok {
				r.problem(at, "unknown key%s", suggest(key, slices.Sorted(maps.Keys(known))))
				return
			}
			if r.null(n) {
				return // a key without a value keeps the default
			}
			read(at, n)
		})
	}
}

// suggest words a hint at the key that was meant.
func suggest(word string, known []string) string {
	if hint, ok := renamed[word]; ok {
		return "; " + hint
	}
	if near := Nearest(word, known); near != "" {
		return "; did you mean " + near + "?"
	}
	return "; known here: " + strings.Join(known, ", ")
}

// renamed explains keys of older auto-benchmark files.
var renamed = map[string]string{
	"workloads":         "it is now scenario.workload, one workload",
	"earlyStopPatience": "it is now strategy.earlyTermination",
}

func (r *reader) null(n *yaml.Node) bool { return resolve(n).Tag == "!!null" }

// list reads a sequence.
func (r *reader) list(item field) field {
	return func(path string, n *yaml.Node) {
		if n = resolve(n); n.Kind != yaml.SequenceNode {
			r.problem(path, "must be a list, is %s", describe(n))
			return
		}
		for i, c := range n.Content {
			item(fmt.Sprintf("%s[%d]", path, i), c)
		}
	}
}

func (r *reader) text(into *string) field {
	return func(path string, n *yaml.Node) {
		n = resolve(n)
		if n.Kind != yaml.ScalarNode || n.Tag != "!!str" || trap(n) {
			r.problem(path, "must be text, is %s", describe(n))
			return
		}
		*into = n.Value
	}
}

func (r *reader) texts(into *[]string) field {
	return r.list(func(path string, n *yaml.Node) {
		var s string
		r.text(&s)(path, n)
		*into = append(*into, s)
	})
}

// oneOf reads text that must be one of the choices.
func oneOf[T ~string](r *reader, into *T, choices ...T) field {
	return func(path string, n *yaml.Node) {
		var s string
		r.text(&s)(path, n)
		if s == "" {
			return
		}
		if !slices.Contains(choices, T(s)) {
			r.problem(path, "must be one of %s, is %q", joinWords(choices), s)
			return
		}
		*into = T(s)
	}
}

func joinWords[T ~string](words []T) string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = string(w)
	}
	return strings.Join(texts, ", ")
}

func (r *reader) truth(into *bool) field {
	return func(path string, n *yaml.Node) {
		n = resolve(n)
		if n.Tag != "!!bool" {
			r.problem(path, "must be true or false, is %s", describe(n))
			return
		}
		*into = strings.EqualFold(n.Value, "true")
	}
}

// number reads a finite number.
func (r *reader) number(into *float64) field {
	return func(path string, n *yaml.Node) {
		if f, ok := r.float(path, n); ok {
			*into = f
		}
	}
}

// above0 reads a finite number above 0.
func (r *reader) above0(into *float64) field {
	return func(path string, n *yaml.Node) {
		if f, ok := r.float(path, n); ok && f <= 0 {
			r.problem(path, "must be above 0, is %s", resolve(n).Value)
		} else if ok {
			*into = f
		}
	}
}

func (r *reader) float(path string, n *yaml.Node) (float64, bool) {
	n = resolve(n)
	var f float64
	if (n.Tag != "!!int" && n.Tag != "!!float") || n.Decode(&f) != nil {
		r.problem(path, "must be a number, is %s", describe(n))
		return 0, false
	}
	if math.IsNaN(f) || math.IsInf(f, 0) {
		r.problem(path, "must be a finite number, is %s", n.Value)
		return 0, false
	}
	return f, true
}

// count reads a whole number of at least least.
func (r *reader) count(into *int, least int) field {
	return func(path string, n *yaml.Node) {
		f, ok := r.float(path, n)
		switch {
		case !ok:
		case f != math.Trunc(f) || math.Abs(f) > 1<<53:
			r.problem(path, "must be a whole number, is %s", resolve(n).Value)
		case f < 0 && least == 0:
			r.problem(path, "must not be negative, is %s", resolve(n).Value)
		case f < float64(least):
			r.problem(path, "must be at least %d, is %s", least, resolve(n).Value)
		default:
			*into = int(f)
		}
	}
}

func (r *reader) seed(into *uint64) field {
	return func(path string, n *yaml.Node) {
		n = resolve(n)
		u, err := strconv.ParseUint(n.Value, 0, 64)
		if n.Tag != "!!int" || err != nil {
			r.problem(path, "must be a whole number from 0 to 2^64-1, is %s", describe(n))
			return
		}
		*into = u
	}
}

// duration reads text such as 90s, 15m or 1h30m.
func (r *reader) duration(into *time.Duration) field {
	return func(path string, n *yaml.Node) {
		n = resolve(n)
		if n.Kind == yaml.ScalarNode && n.Tag == "!!int" && n.Value != "0" {
			r.problem(path, "needs a unit, such as %ss or %sm", n.Value, n.Value)
			return
		}
		d, err := time.ParseDuration(n.Value)
		switch {
		case n.Kind != yaml.ScalarNode || err != nil:
			r.problem(path, "must be a duration such as 90s, 15m or 1h30m, is %s", describe(n))
		case d < 0:
			r.problem(path, "must not be negative, is %s", n.Value)
		default:
			*into = d
		}
	}
}

// value reads a number, text or bool of a categorical list.
func (r *reader) value(into *[]Value) field {
	return func(path string, n *yaml.Node) {
		n = resolve(n)
		var v Value
		switch {
		case n.Kind != yaml.ScalarNode:
			r.problem(path, "must be a number, text, true or false, is %s", describe(n))
			return
		case trap(n):
			r.problem(path, "%s is read as true or false by YAML 1.1; write true or false, or %q in quotes", n.Value, n.Value)
			return
		case n.Tag == "!!str" && n.Value == "":
			r.problem(path, "must not be empty")
			return
		case n.Tag == "!!str":
			v = String(n.Value)
		case n.Tag == "!!bool":
			v = Bool(strings.EqualFold(n.Value, "true"))
		default:
			i, err := strconv.ParseInt(n.Value, 0, 64)
			if n.Tag == "!!int" && err == nil {
				v = Int(i)
				break
			}
			f, ok := r.float(path, n)
			if !ok {
				return
			}
			v = Float(f)
		}
		if slices.Contains(*into, v) {
			r.problem(path, "%s is given twice", v)
			return
		}
		*into = append(*into, v)
	}
}

// free reads any YAML into plain Go values for a plugin to interpret.
func (r *reader) free(into *map[string]any) field {
	return func(path string, n *yaml.Node) {
		r.traps(path, n)
		if n = resolve(n); n.Kind != yaml.MappingNode {
			r.problem(path, "must be a mapping, is %s", describe(n))
			return
		}
		if err := n.Decode(into); err != nil {
			r.problem(path, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
		}
	}
}

// traps reports words below n that YAML 1.1 reads as bools.
func (r *reader) traps(path string, n *yaml.Node) {
	n = resolve(n)
	if trap(n) {
		r.problem(path, "%s is read as true or false by YAML 1.1; write true or false, or %q in quotes", n.Value, n.Value)
	}
	for i, c := range n.Content {
		if n.Kind == yaml.SequenceNode {
			r.traps(fmt.Sprintf("%s[%d]", path, i), c)
		} else if i%2 == 1 {
			r.traps(join(path, n.Content[i-1].Value), c)
		}
	}
}

// trap tells whether n is an unquoted word that YAML 1.1 reads as a bool and
// YAML 1.2 as text: kubectl and Python tools would disagree about the file.
func trap(n *yaml.Node) bool {
	if n.Kind != yaml.ScalarNode || n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		return false
	}
	switch strings.ToLower(n.Value) {
	case "on", "off", "yes", "no", "y", "n":
		return true
	}
	return false
}

func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "empty"
	case trap(n):
		return n.Value + " (true or false in YAML 1.1; use quotes for text)"
	case n.Tag == "!!str":
		return strconv.Quote(n.Value)
	default:
		return n.Value
	}
}
