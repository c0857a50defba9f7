// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// span is a replacement of bytes.
type span struct {
	start, end int
	text       string
}

// inOrder sorts spans as they stand in the text; of several insertions at one
// place the first stays first.
func inOrder(spans []span) []span {
	sorted := slices.Clone(spans)
	slices.SortStableFunc(sorted, func(a, b span) int { return cmp.Or(a.start-b.start, a.end-b.end) })
	return sorted
}

func overlap(spans []span) bool {
	at := 0
	for _, s := range inOrder(spans) {
		if s.start < at || s.end < s.start {
			return true
		}
		at = s.end
	}
	return false
}

// apply replaces spans of a text; they must not overlap.
func apply(text string, spans []span) string {
	spans = inOrder(spans)
	var b strings.Builder
	at := 0
	for _, s := range spans {
		b.WriteString(text[at:s.start])
		b.WriteString(s.text)
		at = s.end
	}
	b.WriteString(text[at:])
	return b.String()
}

// plan is what must change in a container so that its command line changes.
type plan struct {
	replace map[int]string    // element → its new text
	remove  map[int]bool      // elements to take out
	insert  map[int][]string  // elements to put behind an element
	script  []span            // edits of the script, if there is one
	env     map[string][]span // variable → edits of its value as written
}

// planner turns changes of words into changes of what the words are written in.
type planner struct {
	*invocation
	plan plan
	// uses counts the references to a variable in the container; without it
	// variables cannot be changed.
	uses func(variable string) int
}

// plan works out where the changes of the engine's words have to be made.
func (inv *invocation) plan(changes []change, uses func(string) int) (*plan, error) {
	p := &planner{invocation: inv, uses: uses, plan: plan{
		replace: map[int]string{}, remove: map[int]bool{}, insert: map[int][]string{}, env: map[string][]span{},
	}}
	var errs []error
	for _, c := range changes {
		if err := p.change(c); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.param, err))
		}
	}
	return &p.plan, errors.Join(errs...)
}

func (p *planner) change(c change) error {
	for i := range max(c.n, len(c.texts)) {
		var err error
		switch {
		case i >= c.n && c.n == 0:
			err = p.append(c.at, c.texts[i])
		case i >= c.n:
			err = p.insertBehind(p.words[c.at+c.n-1].place, c.texts[i])
		case i >= len(c.texts):
			err = p.removeWord(p.words[c.at+i])
		default:
			err = p.replaceWord(p.words[c.at+i], c.texts[i], i == 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inElement tells whether a place is a whole element of the list, or a word of
// the script.
func (p *planner) inElement(at place) bool { return p.script < 0 || at.listed }

func (p *planner) replaceWord(w word, text string, isFlag bool) error {
	if !w.open && w.text == text {
		return nil
	}
	at := w.place
	// A flag inside a variable is changed there; a value that is a variable
	// gives way to the new value.
	givesWay := at.alone && (!isFlag || p.uses == nil)
	if (at.kind == inShellVar || at.kind == inEnv) && !givesWay {
		return p.editVariable(at, span{at.from, at.to, text}, text)
	}
	if p.inElement(at) {
		p.plan.replace[at.element] = escape(text)
	} else {
		p.plan.script = append(p.plan.script, span{at.start, at.end, p.shellWord(text, at.end)})
	}
	return nil
}

// shellWord writes a word for the script, to stand before the given byte of it.
func (p *planner) shellWord(text string, before int) string {
	word := quote(escape(text))
	rest := p.line.argv[p.script][before:]
	if strings.Trim(word, "0123456789") == "" && strings.IndexAny(rest, "<>") == 0 {
		word += " " // 256>log would be a redirection of number 256
	}
	return word
}

func (p *planner) removeWord(w word) error {
	at := w.place
	if (at.kind == inEnv || at.kind == inShellVar) && !at.alone {
		raw := p.line.env.raw[at.variable]
		from := at.from
		for from > 0 && from <= len(raw) && strings.ContainsRune(" \t\n", rune(raw[from-1])) {
			from--
		}
		return p.editVariable(at, span{from, at.to, ""}, "")
	}
	if p.inElement(at) {
		p.plan.remove[at.element] = true
	} else {
		p.plan.script = append(p.plan.script, span{at.gap, at.end, ""})
	}
	return nil
}

// append puts a new word behind the engine's arguments: before words[at].
func (p *planner) append(at int, text string) error {
	if at < len(p.words) && p.words[at].place.kind != inList && p.words[at].place.kind != inScript {
		return fmt.Errorf("%s holds a --, before which new flags must stand: write it on the engine's own command line", p.words[at].place)
	}
	if at == 0 {
		p.insert(p.last, text)
		return nil
	}
	last := p.words[at-1].place.element
	if p.script >= 0 {
		last = p.words[at-1].place.behind
	}
	p.insert(last, text)
	return nil
}

// insertBehind puts a further value behind a word of the same flag.
func (p *planner) insertBehind(at place, text string) error {
	switch {
	case (at.kind == inEnv || at.kind == inShellVar) && !at.alone:
		return p.editVariable(at, span{at.to, at.to, " " + text}, text)
	case p.script >= 0 && !at.listed:
		p.insert(at.end, text)
	case p.script >= 0:
		p.plan.insert[at.element] = append(p.plan.insert[at.element], escape(text))
	default:
		p.insert(at.element, text)
	}
	return nil
}

// insert puts a word behind an element or a byte of the script. Several words
// at one place keep their order.
func (p *planner) insert(last int, text string) {
	if p.script < 0 {
		p.plan.insert[last] = append(p.plan.insert[last], escape(text))
		return
	}
	gap := " "
	before := p.line.argv[p.script][:last]
	if n := len(before) - len(strings.TrimRight(before, `\`)); n%2 == 1 && !p.inserted(last) {
		gap = `\ ` // a script that ends in a backslash: it must not escape the blank
	}
	p.plan.script = append(p.plan.script, span{last, last, gap + p.shellWord(text, last)})
}

// inserted tells whether something has been put at a byte of the script already.
func (p *planner) inserted(at int) bool {
	return slices.ContainsFunc(p.plan.script, func(s span) bool { return s.start == at && s.end == at })
}

// editVariable changes a variable's value, when that cannot change anything else.
func (p *planner) editVariable(at place, edit span, text string) error {
	switch {
	case at.kind == inShellVar || p.uses == nil:
		return fmt.Errorf("%s holds the flag: write it on the engine's own command line", at)
	case edit.end < edit.start:
		return fmt.Errorf("%s holds the flag by way of another variable: write it on the engine's own command line", at)
	case p.uses(at.variable) != 1:
		return fmt.Errorf("%s holds the flag, and the variable is used elsewhere too: write the flag on the engine's own command line", at)
	case p.script >= 0 && text != "" && !plainWord.MatchString(text):
		return fmt.Errorf("%s holds the flag, but %q cannot be put there as one word: write the flag on the engine's own command line", at, text)
	}
	edit.text = escape(edit.text)
	p.plan.env[at.variable] = append(p.plan.env[at.variable], edit)
	return nil
}

// list gives the elements after the plan: what each was, or -1 when it is new.
func (p *plan) list(argv []string, script int) (from []int, texts []string) {
	for i, text := range argv {
		if !p.remove[i] {
			if replaced, ok := p.replace[i]; ok {
				text = replaced
			}
			if i == script {
				text = apply(text, p.script)
			}
			from, texts = append(from, i), append(texts, text)
		}
		for _, added := range p.insert[i] {
			from, texts = append(from, -1), append(texts, added)
		}
	}
	return from, texts
}
