// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// word is one argument of the engine's command line as the editor sees it.
type word struct {
	text string // what the engine will read; of an open word only the literal start
	// open tells that an expansion hides the rest of the word until it runs.
	open bool
	many bool // an open word may become several words, or none
	// holds are the words of an open word whose content is known, but whose
	// splitting is not; nil means that it may hold anything.
	holds []string
	place place
}

// occurrence is an option on the command line with its values: words[at : at+n].
type occurrence struct {
	option
	at, n int
}

// scanned is a command line as the engine's parser reads it.
type scanned struct {
	found       []occurrence
	positionals []int
	joined      []int // words such as "--max-num-seqs 64": flag and value in one element
	unseen      []int // open words that may hold flags
	end         int   // where options end: a word -- or the end
}

// scan reads a command line. positional tells that the first positional
// argument is the model, so that a first word that cannot be seen is no riddle.
func (g *grammar) scan(words []word, positional bool) scanned {
	s := scanned{end: len(words)}
	for i := 0; i < len(words); {
		w := words[i]
		if w.text == "--" && !w.open {
			s.end = i
			break
		}
		if w.open && mayBeFlag(w.text) {
			if i == 0 && positional && w.text == "" {
				s.positionals = append(s.positionals, i)
			} else {
				s.unseen = append(s.unseen, i)
			}
			i++
			continue
		}
		o, ok := g.read(w.text)
		if !ok {
			if joinedWord(w.text) {
				s.joined = append(s.joined, i)
			} else {
				s.positionals = append(s.positionals, i)
			}
			i++
			continue
		}
		n := 1 + g.valuesOf(o, words[i+1:])
		s.found = append(s.found, occurrence{o, i, n})
		i += n
	}
	return s
}

// mayBeFlag tells whether an open word with this literal start may be any flag.
func mayBeFlag(start string) bool {
	return start == "" || start[0] == '-' && !strings.Contains(start, "=")
}

// joinedWord tells whether an element holds a flag and its value, separated by
// a blank, which no parser splits.
func joinedWord(text string) bool {
	first, _, ok := strings.Cut(strings.TrimSpace(text), " ")
	return ok && len(first) > 1 && first[0] == '-' && !negativeNumber.MatchString(first)
}

// valuesOf counts the words that o takes as its values.
func (g *grammar) valuesOf(o option, rest []word) int {
	if o.attached || len(rest) == 0 {
		return 0
	}
	if o.key != "" {
		return 1
	}
	if o.flag != nil && !o.flag.takesValue() {
		return 0
	}
	first := rest[0]
	if !g.valueWord(first) || o.flag == nil && first.open && first.many {
		return 0
	}
	if o.flag == nil || !o.flag.list {
		return 1
	}
	n := 1
	for n < len(rest) && g.furtherValue(rest[n]) {
		n++
	}
	return n
}

// furtherValue tells whether a list goes on with a word. Flags may hide in a
// word that becomes several, and a flag with its value in one word is none of
// the list's, whatever the engine makes of it.
func (g *grammar) furtherValue(w word) bool {
	return g.valueWord(w) && !joinedWord(w.text) && (!w.open || !w.many)
}

func (g *grammar) valueWord(w word) bool {
	if w.open {
		return w.text == "" || w.text[0] != '-'
	}
	return g.isValue(w.text)
}

// change replaces words[at : at+n] by texts; with n 0 it inserts them before
// words[at].
type change struct {
	at, n int
	texts []string
	param string
}

// edit computes what makes a command line say the settings: every spelling of
// a flag is found, the first is rewritten where it stands, later ones go, and
// new flags follow the engine's own arguments in sorted order.
func (g *grammar) edit(words []word, positional bool, settings []*setting) ([]change, error) {
	s := g.scan(words, positional)
	var changes, added []change
	var errs []error
	for _, set := range settings {
		if err := g.visible(set, words, s); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", set.param, err))
			continue
		}
		found := g.occurrences(set.flag, s)
		keep, texts, err := g.rewrite(set, words, found)
		if errors.Is(err, errUntouched) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", set.param, err))
			continue
		}
		if len(found) == 0 && len(texts) > 0 {
			added = append(added, change{at: s.end, texts: texts, param: set.param})
		}
		for i, o := range found {
			c := change{at: o.at, n: o.n, param: set.param}
			if i == keep {
				c.texts = texts
			}
			if !c.same(words) {
				changes = append(changes, c)
			}
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return a.at - b.at })
	return append(changes, added...), errors.Join(errs...)
}

func (c change) same(words []word) bool {
	return slices.EqualFunc(words[c.at:c.at+c.n], c.texts, func(w word, text string) bool { return !w.open && w.text == text })
}

// occurrences lists where a flag stands, in any spelling.
func (g *grammar) occurrences(f *flag, s scanned) []occurrence {
	var found []occurrence
	for _, o := range s.found {
		if g.means(o.option, f) {
			found = append(found, o)
		}
	}
	return found
}

// means tells whether an option is the flag f, which the table may not know.
func (g *grammar) means(o option, f *flag) bool {
	if o.flag != nil {
		return o.flag == f
	}
	name := g.canonical(o.name)
	if f.kind == negatable && name == "--no-"+strings.TrimPrefix(f.name, "--") {
		return true
	}
	return name == f.name
}

// visible makes sure that no occurrence of the flag can be overlooked.
func (g *grammar) visible(set *setting, words []word, s scanned) error {
	for _, i := range s.joined {
		for field := range strings.FieldsSeq(words[i].text) {
			if o, ok := g.read(field); ok && g.means(o, set.flag) {
				return fmt.Errorf("%s: %q is one word, which the engine does not read as a flag: write flag and value as two words",
					words[i].place, words[i].text)
			}
		}
	}
	for _, i := range s.unseen {
		w := words[i]
		hidden := w.holds == nil
		for _, text := range w.holds {
			if o, ok := g.read(text); ok && g.means(o, set.flag) {
				hidden = true
			}
		}
		if hidden {
			return fmt.Errorf("%s may hold %s, and what it holds cannot be seen: write the engine's flags out",
				w.place, set.flag.name)
		}
	}
	for _, o := range s.found {
		if o.key != "" && !o.attached && o.n == 1 {
			return fmt.Errorf("%s: %s has no value, and would take the next flag for it", words[o.at].place, words[o.at].text)
		}
		for _, candidate := range o.ambiguous {
			if g.options[candidate].flag == set.flag {
				return fmt.Errorf("%s: %s is ambiguous: it may be %s", words[o.at].place, o.name, strings.Join(o.ambiguous, " or "))
			}
		}
	}
	return nil
}

// errUntouched tells that a flag stays as it is, in all its spellings.
var errUntouched = errors.New("untouched")

// rewrite gives the words that the setting's flag becomes, and the occurrence
// that they replace; the other occurrences go.
func (g *grammar) rewrite(set *setting, words []word, found []occurrence) (keep int, texts []string, err error) {
	if set.drop {
		return -1, nil, nil
	}
	switch set.flag.kind {
	case negatable, presentOnly:
		keep, texts = set.rewriteSwitch(found)
		return keep, texts, nil
	case jsonStyle:
		return rewriteJSON(set, words, found)
	default:
		return g.rewriteValue(set, words, found)
	}
}

func (set *setting) rewriteSwitch(found []occurrence) (keep int, texts []string) {
	positive := func(o occurrence) bool { return !set.negates(o.option) }
	first := slices.IndexFunc(found, positive)
	if set.on {
		if first >= 0 {
			return first, []string{found[first].name}
		}
		return 0, []string{set.name}
	}
	if set.flag.kind == presentOnly {
		return -1, nil
	}
	// What is off by default is off without a word, but a --no-x that the user
	// wrote stays.
	negative := slices.IndexFunc(found, func(o occurrence) bool { return !positive(o) })
	if negative >= 0 {
		return negative, []string{found[negative].name}
	}
	offByDefault := !set.flag.noDefault && (set.flag.rule == nil || !set.flag.rule.Default)
	if offByDefault {
		return -1, nil
	}
	return 0, []string{"--no-" + strings.TrimPrefix(set.flag.name, "--")}
}

func (set *setting) negates(o option) bool {
	return o.negated || o.flag == nil && set.flag.kind == negatable && strings.HasPrefix(o.name, "--no")
}

func (g *grammar) rewriteValue(set *setting, words []word, found []occurrence) (keep int, texts []string, err error) {
	name, attached, sep := set.name, false, ""
	if len(found) > 0 {
		o := found[0]
		name, attached, sep = o.name, o.attached, o.sep
		if err := set.oneValue(words, o); err != nil {
			return 0, nil, err
		}
	}
	if len(set.texts) != 1 {
		return 0, append([]string{name}, set.texts...), nil
	}
	value := set.texts[0]
	if !attached && !g.isValue(value) {
		// A value that looks like a flag must hang on its own flag.
		name, attached, sep = set.flag.name, true, "="
	}
	if attached {
		return 0, []string{name + sep + value}, nil
	}
	return 0, []string{name, value}, nil
}

// oneValue refuses a number that has swallowed more words of its element.
func (set *setting) oneValue(words []word, o occurrence) error {
	rule := set.flag.rule
	if rule == nil || rule.Type != "int" && rule.Type != "float" {
		return nil
	}
	value := o.value
	if !o.attached && o.n > 1 && !words[o.at+1].open {
		value = words[o.at+1].text
	}
	if strings.ContainsAny(strings.TrimSpace(value), " \t\n") {
		return fmt.Errorf("%s: %q is one word and no number: write each flag and value as a word of its own",
			words[o.at+o.n-1].place, words[o.at+o.n-1].text)
	}
	return nil
}

// rewriteJSON merges every spelling of a JSON flag and the setting into one.
func rewriteJSON(set *setting, words []word, found []occurrence) (keep int, texts []string, err error) {
	merged := object{}
	for _, o := range found {
		part, err := objectAt(words, o)
		if err != nil && set.set == nil && !words[o.at+o.n-1].open {
			return 0, nil, errUntouched // what is no object has no keys to take out
		}
		if err != nil {
			return 0, nil, err
		}
		merged.merge(part)
	}
	touched := set.set != nil
	for _, key := range set.unset {
		if _, ok := merged.lookup(key); ok {
			merged.remove(key)
			touched = true
		}
	}
	if !touched {
		return 0, nil, errUntouched
	}
	merged.merge(set.set)
	if len(merged) == 0 && set.set == nil {
		return -1, nil, nil
	}
	if len(found) == 0 {
		return 0, []string{set.name, merged.String()}, nil
	}
	if o := found[0]; o.attached {
		return 0, []string{o.name + "=" + merged.String()}, nil
	}
	return 0, []string{found[0].name, merged.String()}, nil
}

// objectAt reads what one occurrence of a JSON flag says.
func objectAt(words []word, o occurrence) (object, error) {
	last := words[o.at+o.n-1]
	value := o.value
	if !o.attached {
		if o.n == 1 {
			return nil, fmt.Errorf("%s: %s has no value", last.place, o.name)
		}
		value = last.text
	}
	if last.open {
		return nil, fmt.Errorf("%s: the value of %s is known only when it runs, so nothing can be merged into it", last.place, o.name)
	}
	if o.key != "" {
		return nest(o.key, dottedValue(value, o.append)), nil
	}
	part, err := parseObject(value)
	if err != nil {
		return nil, fmt.Errorf("%s: the value of %s %w", last.place, o.name, err)
	}
	return part, nil
}
