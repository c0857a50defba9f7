// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// flag is one flag of the engine's command line.
type flag struct {
	name    string // canonical spelling, with dashes
	aliases []string
	kind    style // unknownStyle for a flag that only a parameter names
	list    bool  // several values may follow
	maybe   bool  // a value may follow

	param     string     // the abstract parameter, or ""
	rule      *parameter // its rules, or nil
	noDefault bool       // a negatable flag whose default is not known
}

// takesValue tells whether a word follows the flag.
func (f *flag) takesValue() bool { return f.kind == valueStyle || f.kind == jsonStyle }

// grammar reads words as the engine's argument parser does.
type grammar struct {
	parser
	boolean style
	options map[string]optionName // every spelling, negations included
	sorted  []string              // the keys of options
	params  map[string]*flag      // abstract parameters, all their names
	missing map[string]string
	removed map[string]string
}

type optionName struct {
	flag    *flag
	negated bool
}

func newGrammar(d *descriptor) (*grammar, error) {
	g := &grammar{
		parser: d.Parser, boolean: d.Boolean, options: map[string]optionName{}, params: map[string]*flag{},
		missing: d.Missing, removed: d.Removed,
	}
	for _, name := range slices.Sorted(maps.Keys(d.Parameters)) {
		if err := g.addParameter(name, d.Parameters[name]); err != nil {
			return nil, err
		}
	}
	lists := []struct {
		names []string
		flag  flag
	}{
		{d.Flags.Negatable, flag{kind: negatable, noDefault: true}},
		{d.Flags.Switches, flag{kind: presentOnly}},
		{d.Flags.Values, flag{kind: valueStyle}},
		{d.Flags.Lists, flag{kind: valueStyle, list: true}},
		{d.Flags.Optional, flag{kind: valueStyle, maybe: true}},
		{d.Flags.JSON, flag{kind: jsonStyle}},
		{[]string{d.Host, d.Port.Flag, d.Model, d.Config}, flag{kind: valueStyle}},
		{[]string{d.ServedModel}, flag{kind: valueStyle}},
	}
	for _, l := range lists {
		for _, name := range l.names {
			g.addFlag(name, l.flag)
		}
	}
	g.sorted = slices.Sorted(maps.Keys(g.options))
	return g, nil
}

func (g *grammar) addParameter(name string, p *parameter) error {
	f := &flag{name: p.Flag, aliases: p.Aliases, kind: p.Kind, list: p.List, param: name, rule: p}
	if f.kind == unknownStyle {
		f.kind = valueStyle
	}
	for _, spelling := range slices.Concat([]string{p.Flag}, p.Aliases) {
		if _, taken := g.options[spelling]; taken {
			return fmt.Errorf("parameters.%s: another parameter has the flag %s", name, spelling)
		}
		g.addSpelling(spelling, f)
	}
	for _, other := range slices.Concat([]string{name}, p.Names) {
		if _, taken := g.params[other]; taken {
			return fmt.Errorf("parameters.%s: another parameter has the name %s", name, other)
		}
		g.params[other] = f
	}
	return nil
}

// addFlag adds a flag that is no parameter; what is known already stays.
func (g *grammar) addFlag(name string, f flag) {
	if name == "" {
		return
	}
	if !strings.HasPrefix(name, "-") {
		name = "--" + name
	}
	if _, known := g.options[name]; known {
		return
	}
	f.name = name
	g.addSpelling(name, &f)
}

func (g *grammar) addSpelling(name string, f *flag) {
	g.options[name] = optionName{flag: f}
	if long, ok := strings.CutPrefix(name, "--"); ok && f.kind == negatable {
		g.options["--no-"+long] = optionName{flag: f, negated: true}
	}
}

// option is a word read as an option.
type option struct {
	flag      *flag    // nil: not known
	name      string   // the flag as it was written, without value and dotted key
	key       string   // dotted key inside a JSON flag
	append    bool     // a dotted key with +: the value adds to a list
	negated   bool     // --no-x
	value     string   // after = or directly behind a short flag
	attached  bool     // there is such a value
	sep       string   // what stands between name and attached value: "=" or ""
	ambiguous []string // flags of which the word is an abbreviation, when there are several
}

// negativeNumber is what argparse takes for a value although it starts with a dash.
var negativeNumber = regexp.MustCompile(`^-\d+$|^-\d*\.\d+$`)

// read tells how the parser reads one word: as an option, or (false) as a
// positional argument or value.
func (g *grammar) read(word string) (option, bool) {
	if len(word) < 2 || word[0] != '-' || word == "--" {
		return option{}, false
	}
	if strings.HasPrefix(word, "--") {
		return g.readLong(word)
	}
	return g.readShort(word)
}

func (g *grammar) readLong(word string) (option, bool) {
	o := option{}
	o.name, o.value, o.attached = strings.Cut(word, "=")
	if o.attached {
		o.sep = "="
	}
	g.cutKey(&o)
	known, candidates := g.lookup(g.canonical(o.name))
	if known.flag == nil && candidates == nil && strings.Contains(word, " ") {
		return option{}, false // argparse takes it for a positional argument
	}
	o.flag, o.negated, o.ambiguous = known.flag, known.negated, candidates
	return o, true
}

func (g *grammar) readShort(word string) (option, bool) {
	o := option{name: word}
	if known, ok := g.options[word]; ok {
		o.flag = known.flag
		return o, true
	}
	if name, value, ok := strings.Cut(word, "="); ok {
		cut := option{name: name, value: value, attached: true, sep: "="}
		g.cutKey(&cut)
		if known, ok := g.options[cut.name]; ok {
			cut.flag = known.flag
			return cut, true
		}
	}
	g.cutKey(&o)
	if known, ok := g.options[o.name]; ok && o.key != "" {
		o.flag = known.flag
		return o, true
	}
	o.name, o.key = word, ""
	// A flag of one letter may have its value directly behind it.
	if known, ok := g.options[word[:2]]; ok && known.flag.takesValue() {
		return option{flag: known.flag, name: word[:2], value: strings.TrimPrefix(word[2:], "="), attached: true}, true
	}
	if known, candidates := g.lookup(word); known.flag != nil || candidates != nil {
		o.flag, o.ambiguous = known.flag, candidates
		return o, true
	}
	if negativeNumber.MatchString(word) || strings.Contains(word, " ") {
		return option{}, false
	}
	return o, true
}

// cutKey splits a dotted key off the name, when the parser knows dotted keys.
func (g *grammar) cutKey(o *option) {
	if !g.Dotted {
		return
	}
	base, key, ok := strings.Cut(o.name, ".")
	if !ok {
		return
	}
	o.name = base
	o.key, o.append = strings.CutSuffix(key, "+")
}

// canonical turns a long flag as written into the form of the table.
func (g *grammar) canonical(name string) string {
	if g.Underscores {
		return "--" + strings.ReplaceAll(strings.TrimPrefix(name, "--"), "_", "-")
	}
	return name
}

// lookup finds a flag by its spelling or a unique abbreviation; candidates are
// the flags when there are several.
func (g *grammar) lookup(name string) (known optionName, candidates []string) {
	if known, ok := g.options[name]; ok {
		return known, nil
	}
	if !g.Abbreviations {
		return optionName{}, nil
	}
	i, _ := slices.BinarySearch(g.sorted, name)
	for _, spelling := range g.sorted[i:] {
		if !strings.HasPrefix(spelling, name) {
			break
		}
		candidates = append(candidates, spelling)
		known = g.options[spelling]
	}
	switch len(candidates) {
	case 0:
		return optionName{}, nil
	case 1:
		return known, nil
	default:
		return optionName{}, candidates
	}
}

// isValue tells whether the parser takes a word as the value of the flag before it.
func (g *grammar) isValue(word string) bool {
	if word == "--" {
		return false
	}
	_, isOption := g.read(word)
	return !isOption
}
