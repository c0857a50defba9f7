// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// docEditor changes a document twice: the tree of nodes, and the text where
// each node stands. If the text, read again, is not the tree, the tree is
// written out anew, so a mistake costs layout and never content.
type docEditor struct {
	doc   *document
	spans []span
	exact bool // the text follows the tree so far
	// located remembers where scalars stand: they are found by their value,
	// which changes.
	located map[*yaml.Node]scalarText
}

func newDocEditor(d *document) *docEditor {
	return &docEditor{doc: d, exact: d.placed, located: map[*yaml.Node]scalarText{}}
}

// result is the text of the edited document.
func (e *docEditor) result() (string, error) {
	if e.exact && !overlap(e.spans) {
		text := apply(e.doc.text, e.spans)
		var again yaml.Node
		if yaml.Unmarshal([]byte(text), &again) == nil && again.Kind == yaml.DocumentNode && sameData(again.Content[0], e.doc.root) {
			return text, nil
		}
	}
	return e.doc.encode()
}

// sameData tells whether two trees mean the same.
func sameData(a, b *yaml.Node) bool {
	if a.Kind != b.Kind || a.ShortTag() != b.ShortTag() || len(a.Content) != len(b.Content) {
		return false
	}
	if a.Kind == yaml.ScalarNode && a.Value != b.Value {
		return false
	}
	for i := range a.Content {
		if !sameData(a.Content[i], b.Content[i]) {
			return false
		}
	}
	return true
}

// replace records a change of the text.
func (e *docEditor) replace(start, end int, text string) {
	e.spans = append(e.spans, span{start, end, text})
}

// offset is the byte at which a node starts.
func (e *docEditor) offset(n *yaml.Node) (int, bool) {
	at := 0
	for range n.Line - 1 {
		i := strings.IndexByte(e.doc.text[at:], '\n')
		if i < 0 {
			return 0, false
		}
		at += i + 1
	}
	for range n.Column - 1 {
		_, size := utf8.DecodeRuneInString(e.doc.text[at:])
		at += size
	}
	return at, n.Line > 0 && at < len(e.doc.text)
}

// locate finds a scalar's text.
func (e *docEditor) locate(n *yaml.Node) (scalarText, bool) {
	if s, ok := e.located[n]; ok {
		return s, true
	}
	at, ok := e.offset(n)
	if !ok || n.Kind != yaml.ScalarNode {
		return scalarText{}, false
	}
	s, ok := locateScalar(e.doc.text, at, n)
	if ok {
		e.located[n] = s
	}
	return s, ok
}

// setScalar changes a scalar's value. edits are what changes in it, when the
// change is a small part; without them the whole scalar is written anew.
func (e *docEditor) setScalar(n *yaml.Node, value string, edits []span, inFlow bool) error {
	s, ok := e.locate(n)
	switch {
	case !ok:
		e.exact = false
	case edits != nil:
		if spans, ok := s.edit(n.Value, edits); ok {
			e.spans = append(e.spans, spans...)
			break
		}
		fallthrough
	default:
		text, err := writeScalar(value, s.style, inFlow)
		if err != nil {
			return err
		}
		e.replace(s.start, s.end, text)
	}
	n.Value, n.Tag = value, "!!str"
	if s.style == 0 || strings.ContainsAny(value, "\n") {
		n.Style &^= yaml.TaggedStyle
	}
	return nil
}

// setList changes a list of scalars. from tells for each new element which old
// one it was, or -1 for a new one; edits are those of old elements of which only
// a part changes.
func (e *docEditor) setList(seq *yaml.Node, from []int, texts []string, edits map[int][]span) error {
	old := seq.Content
	seq.Content = nil
	kept := make([]bool, len(old))
	last, added := -1, []string{}
	flush := func() error {
		if len(added) == 0 {
			return nil
		}
		err := e.insertItems(seq, old, last, added)
		added = nil
		return err
	}
	for i, at := range from {
		if at < 0 {
			added = append(added, texts[i])
			seq.Content = append(seq.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: texts[i]})
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		kept[at], last = true, at
		seq.Content = append(seq.Content, old[at])
		if old[at].Value == texts[i] {
			continue
		}
		if err := e.setScalar(old[at], texts[i], edits[at], seq.Style&yaml.FlowStyle != 0); err != nil {
			return err
		}
	}
	if err := flush(); err != nil {
		return err
	}
	for i := range old {
		if !kept[i] {
			e.removeItem(seq, old, i)
		}
	}
	return nil
}

// insertItems writes new elements behind element last of a list, or in front
// of the first for -1.
func (e *docEditor) insertItems(seq *yaml.Node, old []*yaml.Node, last int, added []string) error {
	inFlow := seq.Style&yaml.FlowStyle != 0
	style := itemStyle(old)
	var items []string
	for _, text := range added {
		item, err := writeScalar(text, style, inFlow)
		if err != nil {
			return err
		}
		items = append(items, item)
	}
	if last < 0 {
		e.exact = false
		return nil
	}
	s, ok := e.locate(old[last])
	if !ok {
		e.exact = false
		return nil
	}
	if inFlow {
		e.replace(s.end, s.end, ", "+strings.Join(items, ", "))
		return nil
	}
	dash, ok := e.dash(s.start)
	if !ok {
		e.exact = false
		return nil
	}
	end, newline := e.lineEnd(s.end)
	var b strings.Builder
	for _, item := range items {
		b.WriteString(newline + dash + item)
	}
	e.replace(end, end, b.String())
	return nil
}

// itemStyle is how new elements are quoted: as the others are, if all are.
func itemStyle(items []*yaml.Node) yaml.Style {
	style := yaml.Style(0)
	for _, n := range items {
		quoted := n.Style & (yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle)
		if quoted == 0 {
			return 0
		}
		style = quoted
	}
	return style
}

// dash is the text before an element of a block list, from the start of its line.
func (e *docEditor) dash(at int) (string, bool) {
	start := strings.LastIndexByte(e.doc.text[:at], '\n') + 1
	prefix := e.doc.text[start:at]
	trimmed := strings.Trim(prefix, " ")
	return prefix, trimmed == "-"
}

// lineEnd is where the line around a byte ends, without the line end, and how
// lines end in the document.
func (e *docEditor) lineEnd(at int) (int, string) {
	newline := "\n"
	if e.doc.crlf {
		newline = "\r\n"
	}
	i := strings.Index(e.doc.text[at:], newline)
	if i < 0 {
		return len(e.doc.text), newline
	}
	return at + i, newline
}

// removeItem takes an element out of the text.
func (e *docEditor) removeItem(seq *yaml.Node, old []*yaml.Node, i int) {
	s, ok := e.locate(old[i])
	if !ok {
		e.exact = false
		return
	}
	if seq.Style&yaml.FlowStyle == 0 {
		prefix, ok := e.dash(s.start)
		end, newline := e.lineEnd(s.end)
		if !ok {
			e.exact = false
			return
		}
		start := s.start - len(prefix)
		if end < len(e.doc.text) {
			end += len(newline)
		} else if start > 0 {
			start -= len(newline) // the last line of a file that does not end in one
		}
		e.replace(start, end, "")
		return
	}
	// In [a, b, c] an element goes with the comma before it, the first ones with
	// the comma behind.
	if before, ok := e.lastKept(seq, old, i); ok {
		e.replace(before, s.end, "")
		return
	}
	if i+1 >= len(old) {
		e.replace(s.start, s.end, "")
		return
	}
	next, ok := e.offset(old[i+1])
	e.exact = e.exact && ok
	e.replace(s.start, next, "")
}

// lastKept is where the element before i ends, unless all before it go too.
func (e *docEditor) lastKept(seq *yaml.Node, old []*yaml.Node, i int) (int, bool) {
	for _, kept := range seq.Content {
		for j := range i {
			if old[j] == kept {
				s, ok := e.locate(old[i-1])
				e.exact = e.exact && ok
				return s.end, ok
			}
		}
	}
	return 0, false
}

// addKey adds a key to a block mapping, on lines of its own behind the line of
// an existing key with a scalar.
func (e *docEditor) addKey(m *yaml.Node, behind, key string, value *yaml.Node) error {
	added := []*yaml.Node{{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, value}
	at := slices.IndexFunc(m.Content, func(n *yaml.Node) bool { return n == child(m, behind) })
	if at < 0 {
		m.Content = append(m.Content, added...)
		e.exact = false
		return nil
	}
	anchor := m.Content[at]
	for at+2 < len(m.Content) && m.Content[at+1].Line == 0 {
		at += 2 // an earlier addition stands first
	}
	m.Content = slices.Insert(m.Content, at+1, added...)
	if m.Style&yaml.FlowStyle != 0 || m.Column < 1 {
		e.exact = false
		return nil
	}
	s, ok := e.locate(anchor)
	if !ok || s.style != 0 && strings.Contains(e.doc.text[s.start:s.end], "\n") {
		e.exact = false
		return nil
	}
	text, err := encode(&yaml.Node{Kind: yaml.MappingNode, Content: added})
	if err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	end, newline := e.lineEnd(s.end)
	indent := strings.Repeat(" ", m.Column-1)
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(newline + indent + strings.TrimSuffix(line, "\n"))
	}
	e.replace(end, end, b.String())
	return nil
}

// addItems adds mappings to the end of a list: in the text of a block list with
// the layout of the items before them.
func (e *docEditor) addItems(seq, added *yaml.Node) error {
	old := seq.Content
	seq.Content = append(seq.Content, added.Content...)
	if seq.Style&yaml.FlowStyle != 0 || len(old) == 0 {
		e.exact = false
		return nil
	}
	first, ok := e.offset(old[0])
	last, found := e.locate(lastScalar(old[len(old)-1]))
	if !ok || !found {
		e.exact = false
		return nil
	}
	dash, ok := e.dash(first)
	e.exact = e.exact && ok
	text, err := encode(added)
	if err != nil {
		return fmt.Errorf("write items: %w", err)
	}
	// The items are written as "- name: …": the list's own layout replaces the dash.
	end, newline := e.lineEnd(last.end)
	indent := strings.Repeat(" ", len(dash))
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if item, ok := strings.CutPrefix(line, "- "); ok {
			b.WriteString(newline + dash + item)
		} else {
			b.WriteString(newline + indent + strings.TrimLeft(line, " "))
		}
	}
	e.replace(end, end, b.String())
	return nil
}

// lastScalar is the scalar that ends a node's text.
func lastScalar(n *yaml.Node) *yaml.Node {
	for len(n.Content) > 0 {
		n = n.Content[len(n.Content)-1]
	}
	return n
}
