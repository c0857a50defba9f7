// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"reflect"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// pattern is a regular expression that is compiled as the file is read.
type pattern struct {
	*regexp.Regexp
	// words are texts of which every match has at least one; nil when there are
	// no such texts. Looking for them first makes long logs a hundred times cheaper.
	words []string
}

func (p *pattern) UnmarshalYAML(n *yaml.Node) error {
	re, err := regexp.Compile(n.Value)
	if err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	p.Regexp = re
	if tree, err := syntax.Parse(n.Value, syntax.Perl); err == nil {
		p.words = requiredWords(tree.Simplify())
	}
	return nil
}

// find returns the positions of the first match and its groups, or nil.
func (p *pattern) find(line string) []int {
	if p.words != nil && !slices.ContainsFunc(p.words, func(w string) bool { return strings.Contains(line, w) }) {
		return nil
	}
	return p.FindStringSubmatchIndex(line)
}

// requiredWords lists texts of which every match has at least one.
func requiredWords(re *syntax.Regexp) []string {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase != 0 {
			return nil
		}
		return []string{string(re.Rune)}
	case syntax.OpCapture, syntax.OpPlus:
		return requiredWords(re.Sub[0])
	case syntax.OpConcat:
		var best []string
		for _, sub := range re.Sub {
			if words := requiredWords(sub); words != nil && (best == nil || shortest(words) > shortest(best)) {
				best = words
			}
		}
		return best
	case syntax.OpAlternate:
		var all []string
		for _, sub := range re.Sub {
			words := requiredWords(sub)
			if words == nil {
				return nil
			}
			all = append(all, words...)
		}
		return all
	default:
		return nil
	}
}

func shortest(words []string) int {
	n := len(words[0])
	for _, w := range words {
		n = min(n, len(w))
	}
	return n
}

// knownKeys walks a document beside the type it will be decoded into and
// refuses the first key that the type does not have, with its path. The
// decoder's own check names a Go type instead.
func knownKeys(doc *yaml.Node, v any) error {
	return keysOf(doc.Content[0], reflect.TypeOf(v), "")
}

func keysOf(n *yaml.Node, t reflect.Type, path string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case n.Kind == yaml.SequenceNode && t.Kind() == reflect.Slice:
		for i, item := range n.Content {
			if err := keysOf(item, t.Elem(), path+"["+strconv.Itoa(i)+"]"); err != nil {
				return err
			}
		}
	case n.Kind == yaml.MappingNode && t.Kind() == reflect.Map:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if err := keysOf(n.Content[i+1], t.Elem(), join(path, n.Content[i].Value)); err != nil {
				return err
			}
		}
	case n.Kind == yaml.MappingNode && t.Kind() == reflect.Struct:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			field, ok := fieldByTag(t, key)
			if !ok {
				return fmt.Errorf("line %d: unknown key %s", n.Content[i].Line, join(path, key))
			}
			if err := keysOf(n.Content[i+1], field.Type, join(path, key)); err != nil {
				return err
			}
		}
	}
	return nil
}

func fieldByTag(t reflect.Type, key string) (reflect.StructField, bool) {
	for f := range t.Fields() {
		if tag, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); tag == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
