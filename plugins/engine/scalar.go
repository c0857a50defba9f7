// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// scalarText is a scalar as it is written in a document: the bytes that hold
// it and, when its value can be followed byte by byte, where each byte is.
type scalarText struct {
	start, end int
	style      yaml.Style
	// at[i] is where byte i of the value is written and at[len(value)] where the
	// value ends; nil when escapes or folded lines make that too complicated.
	at []int
}

// locateScalar finds the text of a scalar node; false when it cannot be done
// for certain.
func locateScalar(text string, start int, n *yaml.Node) (scalarText, bool) {
	s := scalarText{start: start, style: n.Style &^ (yaml.FlowStyle | yaml.TaggedStyle)}
	switch s.style {
	case 0:
		if n.Value == "" || !strings.HasPrefix(text[start:], n.Value) || strings.Contains(n.Value, "\n") {
			return s, false
		}
		s.end = start + len(n.Value)
		s.at = run(nil, start, len(n.Value)+1)
		return s, true
	case yaml.SingleQuotedStyle, yaml.DoubleQuotedStyle:
		return s, s.locateQuoted(text, n.Value)
	default:
		return s, s.locateBlock(text, n.Value)
	}
}

// run appends n consecutive positions.
func run(at []int, from, n int) []int {
	for i := range n {
		at = append(at, from+i)
	}
	return at
}

func (s *scalarText) locateQuoted(text, value string) bool {
	if s.start >= len(text) {
		return false
	}
	quote := text[s.start]
	if quote != '"' && quote != '\'' {
		return false
	}
	var decoded strings.Builder
	var at []int
	simple := true
	for i := s.start + 1; i < len(text); i++ {
		c := text[i]
		switch {
		case c == quote && quote == '\'' && strings.HasPrefix(text[i+1:], "'"):
			at = append(at, i)
			decoded.WriteByte('\'')
			i++
		case c == quote:
			s.end = i + 1
			if simple && decoded.String() == value {
				s.at = append(at, i)
			}
			return true
		case c == '\\' && quote == '"' && i+1 < len(text):
			if !strings.ContainsRune(`"\/`, rune(text[i+1])) {
				simple = false
			}
			at = append(at, i)
			decoded.WriteByte(text[i+1])
			i++
		default:
			simple = simple && c != '\n'
			at = append(at, i)
			decoded.WriteByte(c)
		}
	}
	return false
}

// locateBlock follows a literal (|) or folded (>) scalar, by the rules of YAML
// for folding and for line ends at the end.
func (s *scalarText) locateBlock(text, value string) bool {
	header, body, ok := strings.Cut(text[s.start:], "\n")
	if !ok || header == "" || header[0] != '|' && header[0] != '>' || strings.ContainsAny(strings.SplitN(header, "#", 2)[0], "123456789") {
		return false
	}
	b := blockReader{folded: header[0] == '>', offset: s.start + len(header) + 1}
	for line := range strings.Lines(body) {
		if !b.line(line) {
			break
		}
	}
	s.end = b.end
	switch marker := strings.SplitN(header, "#", 2)[0]; {
	case strings.Contains(marker, "-"):
	case strings.Contains(marker, "+"):
		b.flush(true)
	default:
		b.pending = b.pending[:min(1, len(b.pending))]
		b.flush(true)
	}
	if b.value.String() == value {
		s.at = append(b.at, b.end)
	}
	return b.end > 0
}

// blockReader reads the lines of a block scalar.
type blockReader struct {
	folded  bool
	offset  int // of the next line
	indent  int // of the content; 0 before the first line with content
	value   strings.Builder
	at      []int
	end     int   // of the content read so far
	pending []int // positions of line ends that are not part of the value yet
	blank   bool  // the last line began with white space
}

// line takes one line and reports whether it belongs to the scalar.
func (b *blockReader) line(line string) bool {
	start := b.offset
	b.offset += len(line)
	content := strings.TrimRight(line, "\r\n")
	indent := len(content) - len(strings.TrimLeft(content, " "))
	if strings.TrimSpace(content) == "" && (b.indent == 0 || len(content) <= b.indent) {
		b.pending = append(b.pending, start+len(content))
		return true
	}
	if b.indent == 0 {
		b.indent = indent
	}
	if indent < b.indent || b.indent == 0 {
		return false
	}
	text := content[b.indent:]
	blank := text[0] == ' ' || text[0] == '\t'
	if b.value.Len() > 0 || len(b.pending) > 0 {
		b.fold(blank)
	}
	b.at = run(b.at, start+b.indent, len(text))
	b.value.WriteString(text)
	b.end = start + len(content)
	b.pending = nil
	if len(line) > len(content) {
		b.pending = []int{b.end}
	}
	b.blank = blank
	return true
}

// fold turns the line ends before a line into a blank or line ends.
func (b *blockReader) fold(blank bool) {
	first := b.value.Len() == 0
	if !b.folded || b.blank || blank || first {
		b.flush(true)
		return
	}
	if len(b.pending) == 1 {
		b.at = append(b.at, b.pending[0])
		b.value.WriteByte(' ')
		b.pending = nil
		return
	}
	b.pending = b.pending[1:]
	b.flush(true)
}

func (b *blockReader) flush(keep bool) {
	for _, at := range b.pending {
		if keep {
			b.at = append(b.at, at)
			b.value.WriteByte('\n')
		}
	}
	b.pending = nil
}

// edit writes edits of the value into the document's text.
func (s scalarText) edit(value string, edits []span) ([]span, bool) {
	if s.at == nil {
		return nil, false
	}
	var out []span
	for _, e := range edits {
		if strings.ContainsAny(e.text, "\n\r") {
			return nil, false
		}
		end := s.at[e.end]
		if e.end > 0 && e.end > e.start {
			end = s.behind(e.end - 1)
		}
		start := s.at[e.start]
		if e.end == e.start && e.start > 0 {
			start = s.behind(e.start - 1)
			end = start
		}
		out = append(out, span{start, end, s.inside(e.text)})
	}
	return out, true
}

// behind is where the text of byte i of the value ends.
func (s scalarText) behind(i int) int {
	if s.style == yaml.LiteralStyle || s.style == yaml.FoldedStyle {
		return s.at[i] + 1 // indentation may stand before the next byte
	}
	return s.at[i+1]
}

// inside writes a text so that it can stand inside the scalar.
func (s scalarText) inside(text string) string {
	switch s.style {
	case yaml.SingleQuotedStyle:
		return strings.ReplaceAll(text, "'", "''")
	case yaml.DoubleQuotedStyle:
		quoted := strconv.Quote(text)
		return quoted[1 : len(quoted)-1]
	default:
		return text
	}
}

// writeScalar writes a text as a scalar of its own, in the given style if it
// can have it.
func writeScalar(text string, style yaml.Style, inFlow bool) (string, error) {
	if style != yaml.SingleQuotedStyle && style != yaml.DoubleQuotedStyle {
		style = 0
		if inFlow && strings.ContainsAny(text, ",[]{}") {
			style = yaml.SingleQuotedStyle
		}
	}
	if strings.ContainsAny(text, "\n\r\t") {
		style = yaml.DoubleQuotedStyle
	}
	b, err := yaml.Marshal(&yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text, Style: style})
	return strings.TrimSuffix(string(b), "\n"), err
}
