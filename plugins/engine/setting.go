// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/llmctl/llmctl/experiment"
)

// setting is a parameter that has become a flag with a value.
type setting struct {
	param string // the user's own word
	flag  *flag
	name  string   // how the flag is written when it is new
	texts []string // values of a value flag
	on    bool     // of a switch
	set   object   // of a JSON flag: what to merge in
	unset []string // of a JSON flag: dotted keys to take out
	drop  bool     // take the flag out: its twin in a JSON flag is set
}

// envPrefix marks parameters that set an environment variable.
const envPrefix = "env:"

// settings turns parameters into one setting per flag, in sorted order of the
// flags, and environment variables. All errors are reported at once.
func (g *grammar) settings(params map[string]experiment.Value) ([]*setting, map[string]string, error) {
	byFlag := map[string]*setting{}
	env := map[string]string{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(params)) {
		v := params[name]
		if variable, ok := strings.CutPrefix(name, envPrefix); ok {
			if !validVariable(variable) {
				errs = append(errs, fmt.Errorf("%s: %q is not a name of an environment variable", name, variable))
			}
			env[variable] = v.String()
			continue
		}
		s, err := g.setting(name, v)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		if old := byFlag[s.flag.name]; old == nil {
			byFlag[s.flag.name] = s
		} else if old.set == nil {
			errs = append(errs, fmt.Errorf("%s: %s sets the same flag %s", name, old.param, s.flag.name))
		} else {
			old.set.merge(s.set)
		}
	}
	if err := g.addTwins(byFlag); err != nil {
		errs = append(errs, err)
	}
	var all []*setting
	for _, name := range slices.Sorted(maps.Keys(byFlag)) {
		all = append(all, byFlag[name])
	}
	return all, env, errors.Join(errs...)
}

func validVariable(name string) bool {
	return name != "" && !strings.ContainsAny(name, "= \t\n$()") && (name[0] < '0' || name[0] > '9')
}

// addTwins makes the settings that keep a flag and the same key of a JSON flag
// from standing side by side.
func (g *grammar) addTwins(byFlag map[string]*setting) error {
	var errs []error
	for _, f := range g.uniqueParams() {
		if f.rule.Twin == nil {
			continue
		}
		jsonFlag := g.options[f.rule.Twin.Flag].flag
		if jsonFlag == nil {
			continue
		}
		own, other := byFlag[f.name], byFlag[jsonFlag.name]
		inOther := false
		if other != nil {
			_, inOther = other.set.lookup(f.rule.Twin.Key)
		}
		switch {
		case own != nil && !own.drop && inOther:
			errs = append(errs, fmt.Errorf("%s: %s sets the same thing", own.param, other.param))
		case own != nil && !own.drop:
			if other == nil {
				other = &setting{param: own.param, flag: jsonFlag, name: jsonFlag.name}
				byFlag[jsonFlag.name] = other
			}
			other.unset = append(other.unset, f.rule.Twin.Key)
		case inOther:
			byFlag[f.name] = &setting{param: other.param, flag: f, name: f.name, drop: true}
		}
	}
	return errors.Join(errs...)
}

// uniqueParams lists the flags of the parameters once each, in sorted order.
func (g *grammar) uniqueParams() []*flag {
	var flags []*flag
	for _, name := range slices.Sorted(maps.Keys(g.params)) {
		if f := g.params[name]; f.param == name {
			flags = append(flags, f)
		}
	}
	return flags
}

// setting turns one parameter into a setting.
func (g *grammar) setting(name string, v experiment.Value) (*setting, error) {
	if strings.HasPrefix(name, "-") {
		return g.rawSetting(name, v)
	}
	base, key, dotted := strings.Cut(name, ".")
	f := g.params[base]
	if f == nil {
		return nil, g.unknown(base)
	}
	s := &setting{param: name, flag: f, name: f.name}
	if dotted && f.kind != jsonStyle {
		return nil, fmt.Errorf("%s is not a JSON flag and has no keys", f.name)
	}
	return s, s.assign(key, v, false)
}

// rawSetting is a parameter named by a flag.
func (g *grammar) rawSetting(name string, v experiment.Value) (*setting, error) {
	if strings.ContainsAny(name, "= \t\n'\"") || strings.Trim(name, "-") == "" {
		return nil, errors.New("is not a flag: write the flag alone, its values go into the list of values")
	}
	exact := *g
	exact.Abbreviations = false
	o, ok := exact.read(name)
	if !ok || o.append {
		return nil, errors.New("is not a flag")
	}
	if o.flag == nil && o.key != "" {
		o.name, o.key = name, ""
	}
	s := &setting{param: name, flag: o.flag, name: o.name}
	if s.flag == nil {
		s.flag = &flag{name: g.canonical(o.name), kind: valueStyle, noDefault: true}
		if _, isSwitch := v.Truth(); isSwitch {
			s.flag.kind = g.boolean
			if long, ok := strings.CutPrefix(s.flag.name, "--no-"); ok && g.boolean == negatable {
				s.flag.name, o.negated = "--"+long, true
			}
		}
	}
	if o.key != "" && s.flag.kind != jsonStyle {
		return nil, fmt.Errorf("%s is not a JSON flag and has no keys", o.name)
	}
	if o.negated {
		s.name = s.flag.name
	}
	return s, s.assign(o.key, v, o.negated)
}

// unknown says that the engine does not have a parameter, and which it has.
func (g *grammar) unknown(name string) error {
	if hint := g.missing[name]; hint != "" {
		return fmt.Errorf("the engine does not have it: %s", hint)
	}
	near := nearNames(name, slices.Sorted(maps.Keys(g.params)))
	if len(near) == 0 {
		return errors.New(`the engine has no such parameter; any flag can be named as it is, such as "--max-num-seqs"`)
	}
	return fmt.Errorf("the engine has no such parameter; did you mean %s?", strings.Join(near, ", "))
}

// assign checks v against the flag's rules and turns it into text. negated
// tells that the parameter names the --no- form of a switch.
func (s *setting) assign(key string, v experiment.Value, negated bool) error {
	if text, ok := v.Text(); ok && text == "" {
		return errors.New("the value is empty")
	}
	switch s.flag.kind {
	case negatable, presentOnly:
		on, ok := v.Truth()
		if !ok {
			return fmt.Errorf("%s is a switch: the value must be true or false, is %s", s.flag.name, describe(v))
		}
		inverted := s.flag.rule != nil && s.flag.rule.Inverted && !strings.HasPrefix(s.param, "-")
		s.on = on != (negated || inverted)
		return nil
	case jsonStyle:
		return s.assignJSON(key, v)
	default:
		return s.assignValue(v)
	}
}

func (s *setting) assignJSON(key string, v experiment.Value) error {
	if key != "" {
		value, err := jsonOf(v)
		s.set = nest(key, value)
		return err
	}
	text, ok := v.Text()
	if !ok {
		return fmt.Errorf("the value must be a JSON object, is %s", describe(v))
	}
	set, err := parseObject(text)
	if err != nil {
		return fmt.Errorf("the value %w", err)
	}
	s.set = set
	return nil
}

func (s *setting) assignValue(v experiment.Value) error {
	s.texts = []string{v.String()}
	if s.flag.list {
		s.texts = strings.FieldsFunc(v.String(), func(r rune) bool { return strings.ContainsRune(" ,\t", r) })
	}
	if s.flag.rule == nil {
		if _, isSwitch := v.Truth(); isSwitch && s.flag.kind == valueStyle {
			return fmt.Errorf("%s takes a value: true or false is none", s.flag.name)
		}
		return nil
	}
	if !s.flag.list {
		return s.flag.rule.accept(v)
	}
	for _, text := range s.texts {
		item := experiment.String(text)
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			item = experiment.Int(n)
		}
		if err := s.flag.rule.accept(item); err != nil {
			return err
		}
	}
	return nil
}

// accept checks a value against the type and range of a parameter.
func (p *parameter) accept(v experiment.Value) error {
	text := v.String()
	if slices.Contains(p.Allowed, text) {
		return nil
	}
	if _, isSwitch := v.Truth(); isSwitch {
		return fmt.Errorf("the value must be %s, is %s", p.wants(), describe(v))
	}
	number, isNumber := v.Number()
	_, isInt := v.Int64()
	if n, ok := suffixed(text); ok && p.Suffixes && !isNumber {
		number, isNumber, isInt = float64(n), true, true
	}
	switch p.Type {
	case "int":
		if !isInt {
			return fmt.Errorf("the value must be %s, is %s", p.wants(), describe(v))
		}
	case "float":
		if !isNumber {
			return fmt.Errorf("the value must be %s, is %s", p.wants(), describe(v))
		}
	default:
		if isNumber {
			return fmt.Errorf("the value must be %s, is %s", p.wants(), describe(v))
		}
		if len(p.Choices) > 0 && !p.Open && !p.chosen(text) {
			return fmt.Errorf("the value must be %s, is %s", p.wants(), describe(v))
		}
		return nil
	}
	if p.Min != nil && number < *p.Min || p.Max != nil && number > *p.Max ||
		p.Above != nil && number <= *p.Above || p.Below != nil && number >= *p.Below {
		return fmt.Errorf("the value must be %s, is %s", p.wants(), text)
	}
	return nil
}

func (p *parameter) chosen(text string) bool {
	return slices.ContainsFunc(p.Choices, func(choice string) bool {
		ok, err := path.Match(choice, text)
		return ok && err == nil
	})
}

// wants describes the values that a parameter takes.
func (p *parameter) wants() string {
	var words []string
	switch p.Type {
	case "int":
		words = append(words, "an integer")
	case "float":
		words = append(words, "a number")
	default:
		if len(p.Choices) > 0 {
			return "one of " + strings.Join(p.Choices, ", ")
		}
		return "text"
	}
	limits := []struct {
		sign  string
		limit *float64
	}{{"≥", p.Min}, {">", p.Above}, {"≤", p.Max}, {"<", p.Below}}
	for _, l := range limits {
		if l.limit != nil {
			words = append(words, l.sign+" "+experiment.Float(*l.limit).String())
		}
	}
	for _, a := range p.Allowed {
		words = append(words, "or "+a)
	}
	return strings.Join(words, " ")
}

// describe names a value with its kind, for errors.
func describe(v experiment.Value) string {
	if text, ok := v.Text(); ok {
		return fmt.Sprintf("the text %q", text)
	}
	return v.String()
}
