// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"strings"

	shexpand "mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// flatten turns the words of a simple command into the words that it will run
// with, as far as they can be seen.
func (s *script) flatten(call *syntax.CallExpr) []word {
	var out []word
	gap := 0
	for _, w := range call.Args {
		at := s.placeOf(w, gap)
		words := s.expandWord(w, at)
		if len(words) == 0 && len(out) > 0 {
			out[len(out)-1].place.behind = at.end // it may still be something, so new words go behind it
		}
		out = append(out, words...)
		gap = at.end
	}
	return out
}

func (s *script) placeOf(w *syntax.Word, gap int) place {
	start, end := int(w.Pos().Offset()), int(w.End().Offset())
	// Only white space and continued lines belong to the gap; a redirection
	// between two words does not.
	blank := strings.TrimRight(s.text[gap:start], " \t\n\\")
	label := s.line.label(s.element)
	if strings.Contains(strings.TrimSpace(s.text), "\n") {
		label = fmt.Sprintf("%s line %d", label, w.Pos().Line())
	}
	return place{kind: inScript, element: s.element, start: start, end: end, gap: gap + len(blank), behind: end, label: label}
}

// expandWord gives the words that one word of the script becomes.
func (s *script) expandWord(w *syntax.Word, at place) []word {
	if len(w.Parts) == 1 {
		part, quoted := w.Parts[0], false
		if q, ok := part.(*syntax.DblQuoted); ok && len(q.Parts) == 1 {
			part, quoted = q.Parts[0], true
		}
		if words, ok := s.expandAlone(part, quoted, at); ok {
			return words
		}
	}
	joined := s.join(w.Parts, false)
	out := word{text: joined.text, open: joined.open, many: joined.many, holds: joined.holds, place: at}
	if mayBeFlag(out.text) {
		out.holds = nil // what completes the flag's name is not known
	}
	return []word{out}
}

// seen is what an expansion gives, as far as it can be seen.
type seen struct {
	text     string
	open     bool
	many     bool
	holds    []string // see word
	variable string   // where text comes from
	inShell  bool     // the variable is the script's own
	raw      bool     // text is the variable's value byte for byte
}

// join puts the parts of a word together.
func (s *script) join(parts []syntax.WordPart, quoted bool) seen {
	var out seen
	var all strings.Builder // all that can be seen, to look for flags in
	blind := false
	for _, part := range parts {
		p := s.expandPart(part, quoted)
		if !out.open {
			out.text += p.text
		}
		all.WriteString(p.text)
		if p.open {
			out.open, out.many = true, out.many || p.many
			blind = blind || p.holds == nil
			all.WriteString(" " + strings.Join(p.holds, " ") + " ")
		}
	}
	if out.open && !blind {
		out.holds = crudeWords(all.String())
	}
	return out
}

// expandAlone handles a word that is one expansion and nothing else: unquoted,
// it may become any number of words.
func (s *script) expandAlone(part syntax.WordPart, quoted bool, at place) ([]word, bool) {
	if words, ok := s.arguments(part, quoted, at); ok {
		return words, true
	}
	p, ok := s.expansion(part, quoted)
	if !ok {
		return nil, false
	}
	if p.open {
		return []word{{open: true, many: p.many, holds: p.holds, place: at}}, true
	}
	if p.variable == "" {
		if quoted || p.text != "" {
			return []word{{text: p.text, place: at}}, true
		}
		return nil, true // an unquoted empty expansion is no word at all
	}
	fields := []string{p.text}
	if !quoted {
		fields = strings.Fields(p.text)
	}
	var words []word
	from := 0
	for _, f := range fields {
		from += strings.Index(p.text[from:], f)
		where := at
		where.variable, where.from, where.to = p.variable, from, from+len(f)
		where.kind, where.alone = inEnv, len(fields) == 1
		where.label = fmt.Sprintf("the variable %s in %s", p.variable, at.label)
		if p.inShell {
			where.kind = inShellVar
			where.label = fmt.Sprintf("the script's variable %s in %s", p.variable, at.label)
		}
		if !p.raw {
			where.from, where.to = 0, -1
		}
		words = append(words, word{text: f, place: where})
		from += len(f)
	}
	return words, true
}

// arguments handles "$@", $@ and $*, and arrays of the script.
func (s *script) arguments(part syntax.WordPart, quoted bool, at place) ([]word, bool) {
	p, ok := part.(*syntax.ParamExp)
	if !ok || p.Param == nil || p.Excl || p.Length || p.Slice != nil || p.Repl != nil || p.Exp != nil {
		return nil, false
	}
	if p.Index != nil {
		return s.array(p, at)
	}
	if p.Param.Value != "@" && (p.Param.Value != "*" || quoted) {
		return nil, false
	}
	if s.argsOpen {
		return []word{{open: true, many: true, place: at}}, true
	}
	var words []word
	for _, arg := range s.args[min(1, len(s.args)):] {
		if strings.ContainsAny(arg.text, " \t\n") && !quoted {
			return []word{{open: true, many: true, place: at}}, true
		}
		arg.place.listed, arg.place.behind = true, at.end
		words = append(words, arg)
	}
	return words, true
}

// array gives the elements of "${NAME[@]}".
func (s *script) array(p *syntax.ParamExp, at place) ([]word, bool) {
	index, ok := p.Index.(*syntax.Word)
	if !ok || index.Lit() != "@" && index.Lit() != "*" {
		return nil, false
	}
	v := s.vars[p.Param.Value]
	if v == nil || v.open || v.busy {
		return []word{{open: true, many: true, place: at}}, true
	}
	v.busy = true
	defer func() { v.busy = false }()
	at.kind = inShellVar
	at.label = fmt.Sprintf("the script's variable %s in %s", p.Param.Value, at.label)
	var words []word
	for _, value := range v.values {
		words = append(words, s.expandWord(value, at)...)
	}
	for i := range words {
		words[i].place = at
	}
	return words, true
}

// expandPart gives the text of a part of a word.
func (s *script) expandPart(part syntax.WordPart, quoted bool) seen {
	switch part := part.(type) {
	case *syntax.Lit:
		return seen{text: unescape(part.Value, quoted)}
	case *syntax.SglQuoted:
		if part.Dollar {
			return ansiQuoted(part)
		}
		return s.kubernetes(strings.ReplaceAll(part.Value, string(mask), "$"))
	case *syntax.DblQuoted:
		return s.join(part.Parts, true)
	}
	p, ok := s.expansion(part, quoted)
	if !ok {
		return seen{open: true, many: !quoted}
	}
	if !quoted && !p.open && strings.ContainsAny(p.text, " \t\n") {
		return seen{open: true, many: true}
	}
	return p
}

// ansiQuoted decodes $'…'.
func ansiQuoted(q *syntax.SglQuoted) seen {
	text, err := shexpand.Literal(nil, &syntax.Word{Parts: []syntax.WordPart{q}})
	if err != nil || strings.ContainsAny(q.Value, "$"+string(mask)) {
		return seen{open: true}
	}
	return seen{text: text}
}

// kubernetes expands $(NAME) in a text that the shell takes literally.
func (s *script) kubernetes(text string) seen {
	for _, p := range references(text) {
		if p.name != "" && s.line.env.unseen(p.name) {
			return seen{text: text[:p.at], open: true}
		}
	}
	return seen{text: expand(text, s.line.env.literal)}
}

// unescape undoes the backslashes of a literal part.
func unescape(text string, quoted bool) string {
	text = strings.ReplaceAll(text, string(mask), "")
	if !strings.Contains(text, `\`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) && (!quoted || strings.IndexByte("$`\"\\\n", text[i+1]) >= 0) {
			i++
			if text[i] == '\n' {
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// expansion gives what a parameter expansion or a command substitution puts
// in; false for other parts.
func (s *script) expansion(part syntax.WordPart, quoted bool) (seen, bool) {
	switch part := part.(type) {
	case *syntax.ParamExp:
		return s.parameter(part, quoted), true
	case *syntax.CmdSubst:
		return s.substitution(part, quoted), true
	case *syntax.ArithmExp:
		return seen{open: true, holds: []string{}}, true
	default:
		return seen{}, false
	}
}

// substitution handles $(NAME), which Kubernetes replaces before the shell
// sees it, and real command substitutions.
func (s *script) substitution(c *syntax.CmdSubst, quoted bool) seen {
	text := s.text[c.Pos().Offset():c.End().Offset()]
	pieces := references(text)
	if len(pieces) != 1 || pieces[0].name == "" || c.Backquotes {
		return seen{open: true, many: !quoted}
	}
	name := pieces[0].name
	value, ok := s.line.env.literal(name)
	if !ok || s.line.env.unseen(name) {
		return seen{open: true, many: !quoted}
	}
	// The shell will read the value itself: only plain words mean what they say.
	fields := strings.Fields(value)
	if slices.ContainsFunc(fields, func(f string) bool { return !plainWord.MatchString(f) }) {
		return seen{open: true, many: !quoted, holds: crudeWords(value)}
	}
	return seen{text: value, variable: name, raw: s.line.env.raw[name] == value}
}

// crudeWords splits a text that may have quotes, to look for flags in it.
func crudeWords(text string) []string {
	words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\n'\"`;&|()", r) })
	return append([]string{}, words...)
}

// parameter handles $NAME and ${NAME…}.
func (s *script) parameter(p *syntax.ParamExp, quoted bool) seen {
	if p.Param == nil || p.Excl || p.Index != nil || p.Slice != nil || p.Repl != nil || p.Names != 0 {
		return seen{open: true, many: !quoted}
	}
	if p.Length || strings.ContainsAny(p.Param.Value, "#?$!-") {
		return seen{open: true, holds: []string{}} // a number or the shell's options
	}
	value, ok := s.value(p.Param.Value, quoted)
	if p.Exp == nil || value.open && ok {
		return value
	}
	empty := !ok || value.text == ""
	switch p.Exp.Op {
	case syntax.DefaultUnset, syntax.DefaultUnsetOrNull:
		if ok && (value.text != "" || p.Exp.Op == syntax.DefaultUnset) {
			return value
		}
		return s.operand(p.Exp.Word, quoted)
	case syntax.AlternateUnset, syntax.AlternateUnsetOrNull:
		if empty && (!ok || p.Exp.Op == syntax.AlternateUnsetOrNull) {
			return seen{}
		}
		return s.operand(p.Exp.Word, quoted)
	default:
		return seen{open: true, many: !quoted}
	}
}

// operand is the text behind the operator of ${NAME:-text}.
func (s *script) operand(w *syntax.Word, quoted bool) seen {
	if w == nil {
		return seen{}
	}
	out := s.join(w.Parts, quoted)
	switch {
	case out.open:
		return seen{open: true, many: !quoted, holds: out.holds}
	case !quoted && strings.ContainsAny(out.text, " \t\n"):
		return seen{open: true, many: true, holds: crudeWords(out.text)}
	default:
		return seen{text: out.text}
	}
}

// value looks a variable up: the script's own first, then the container's. A
// variable that neither sets (false) is taken not to hold flags; the image may
// set it all the same.
func (s *script) value(name string, quoted bool) (seen, bool) {
	hiddenValue := seen{open: true, many: !quoted}
	if v := s.vars[name]; v != nil && !v.busy {
		return s.shellValue(name, v, quoted), true
	}
	if name[0] >= '0' && name[0] <= '9' {
		i := int(name[0] - '0')
		if s.argsOpen || len(name) > 1 || i < len(s.args) && s.args[i].open {
			return hiddenValue, true
		}
		if i >= len(s.args) {
			return seen{open: true, many: !quoted, holds: []string{}}, false
		}
		return seen{text: s.args[i].text}, true
	}
	if s.line.env.unseen(name) {
		return hiddenValue, true
	}
	value, ok := s.line.env.literal(name)
	if !ok {
		if s.sources || name == "@" || name == "*" {
			return hiddenValue, true
		}
		return seen{open: true, many: !quoted, holds: []string{}}, false
	}
	return seen{text: value, variable: name, raw: s.line.env.raw[name] == value}, true
}

// shellValue is the value of a variable that the script sets. Its own name in
// an assigned text means what it was before, which the container's env tells.
func (s *script) shellValue(name string, v *shellVar, quoted bool) seen {
	v.busy = true
	defer func() { v.busy = false }()
	hidden := seen{open: true, many: !quoted}
	out := seen{variable: name, inShell: true}
	holds := []string{}
	for _, w := range v.values {
		p := s.join(w.Parts, true)
		if p.open && p.holds == nil || v.open {
			return hidden
		}
		out.open = out.open || p.open
		holds = append(append(holds, p.holds...), crudeWords(p.text)...)
		out.text = p.text
	}
	if v.open {
		return hidden
	}
	if out.open || len(v.values) != 1 {
		return seen{open: true, many: !quoted, holds: holds}
	}
	return out
}
