// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// errHelp is returned when the flag "help" is given.
var errHelp = errors.New("help requested")

// kind is the type of an option's value, with the Go type it is parsed to.
type kind int

const (
	negatable   kind = iota // bool: --x and --no-x
	presentOnly             // bool: --x
	integer                 // int
	sizeInteger             // int: also 2k, 2K, 1.5m
	modelLength             // int: as sizeInteger, or "auto" = -1
	number                  // float64
	text                    // string
	texts                   // []string: one or more arguments
	integers                // []int: one or more arguments
	jsonObject              // map[string]any
	duration                // time.Duration: 1.5s, 200ms; a plain number is seconds
)

// option is one flag of the command line.
type option struct {
	long    string // without dashes
	short   string // without dash; "" = none
	kind    kind
	choices []string // nil = any
	check   func(v any) error
	help    string // "" = accepted, without effect
}

// names returns the spellings in the order in which argparse lists them.
func (o option) names() []string {
	names := []string{"--" + o.long}
	if o.kind == negatable {
		names = append(names, "--no-"+o.long)
	}
	if o.short != "" {
		names = append(names, "-"+o.short)
	}
	return names
}

func (o option) flag() bool { return o.kind == negatable || o.kind == presentOnly }
func (o option) list() bool { return o.kind == texts || o.kind == integers }

// errorf is argparse's error about one option.
func (o option) errorf(format string, args ...any) error {
	return fmt.Errorf("argument %s: %s", strings.Join(o.names(), "/"), fmt.Sprintf(format, args...))
}

// arguments is a parsed command line.
type arguments struct {
	model      string // "" = none given
	values     map[string]any
	duplicates []string // flags given twice; the last one counts
}

// argument returns the value of a flag, or unset when it was not given.
func argument[T any](a arguments, long string, unset T) T {
	if v, ok := a.values[long]; ok {
		return v.(T)
	}
	return unset
}

func (a arguments) has(long string) bool { _, ok := a.values[long]; return ok }

// parseArguments parses a command line the way vLLM's argument parser does:
// Python's argparse, with underscores in flag names taken as hyphens, -O2, and
// dotted keys for JSON flags. Errors carry argparse's text.
func parseArguments(options []option, args []string) (arguments, error) {
	args, err := mergeDotted(normalise(args))
	if err != nil {
		return arguments{}, err
	}
	p := parser{options: options, out: arguments{values: map[string]any{}}, seen: map[string]bool{}}
	if err := p.classify(args); err != nil {
		return arguments{}, err
	}
	for len(p.items) > 0 {
		if err := p.next(); err != nil {
			return arguments{}, err
		}
	}
	if len(p.unrecognised) > 0 {
		return arguments{}, fmt.Errorf("unrecognized arguments: %s", strings.Join(p.unrecognised, " "))
	}
	if m := argument(p.out, "model", ""); m != "" {
		p.out.model = m
	}
	return p.out, nil
}

// normalise spells flag names with hyphens and optimisation levels in full.
func normalise(args []string) []string {
	var out []string
	for i, arg := range args {
		level, isLevel := strings.CutPrefix(arg, "-O")
		switch {
		case arg == "--":
			return append(out, args[i:]...)
		case strings.HasPrefix(arg, "--"):
			end := len(arg)
			if at := strings.IndexAny(arg, ".="); at >= 0 {
				end = at
			}
			out = append(out, strings.ReplaceAll(arg[:end], "_", "-")+arg[end:])
		case arg == "-O":
			out = append(out, "--optimization-level")
		case isLevel:
			out = append(out, "--optimization-level", strings.TrimPrefix(level, "="))
		default:
			out = append(out, arg)
		}
	}
	return out
}

var dotted = regexp.MustCompile(`^(--?[a-zA-Z][^.=]*)\.([^=]+)(?:=(?s:(.*)))?$`)

// mergeDotted turns --flag.key value and --flag.list+ a,b into one JSON
// argument for each spelling of the flag, at the end of the line.
func mergeDotted(args []string) ([]string, error) {
	var out, spellings []string
	objects := map[string]map[string]any{}
	for i := 0; i < len(args); i++ {
		m := dotted.FindStringSubmatch(args[i])
		if m == nil {
			if args[i] == "--" {
				out = append(out, args[i:]...)
				break
			}
			out = append(out, args[i])
			continue
		}
		flag, path, value := m[1], m[2], m[3]
		if !strings.Contains(args[i], "=") {
			i++
			if i == len(args) {
				return nil, fmt.Errorf("argument %s.%s: expected one argument", flag, path)
			}
			value = args[i]
		}
		if objects[flag] == nil {
			objects[flag] = map[string]any{}
			spellings = append(spellings, flag)
		}
		setDotted(objects[flag], path, value)
	}
	end := slices.Index(out, "--")
	if end < 0 {
		end = len(out)
	}
	for _, flag := range spellings {
		data, err := json.Marshal(objects[flag])
		if err != nil {
			return nil, fmt.Errorf("argument %s: %w", flag, err)
		}
		out = slices.Insert(out, end, flag, string(data))
		end += 2
	}
	return out, nil
}

func setDotted(object map[string]any, path, value string) {
	path, isList := strings.CutSuffix(path, "+")
	keys := strings.Split(path, ".")
	for _, key := range keys[:len(keys)-1] {
		child, ok := object[key].(map[string]any)
		if !ok {
			child = map[string]any{}
			object[key] = child
		}
		object = child
	}
	last := keys[len(keys)-1]
	if !isList {
		object[last] = jsonOrText(value)
		return
	}
	list, _ := object[last].([]any) // not a list: start one
	for item := range strings.SplitSeq(value, ",") {
		list = append(list, jsonOrText(item))
	}
	object[last] = list
}

func jsonOrText(s string) any {
	var v any
	if json.Unmarshal([]byte(s), &v) == nil {
		return v
	}
	return s
}

// item is one argument after argparse's first pass.
type item struct {
	text     string
	isOption bool    // looks like a flag
	option   *option // nil = not known
	name     string  // the spelling that matched
	value    *string // after =
}

type parser struct {
	options      []option
	items        []item
	out          arguments
	seen         map[string]bool
	unrecognised []string
}

// classify tells flags from values. As argparse does, it looks at every
// argument before any value is taken.
func (p *parser) classify(args []string) error {
	for i, arg := range args {
		if arg == "--" {
			for _, rest := range args[i+1:] {
				p.items = append(p.items, item{text: rest})
			}
			break
		}
		w, err := p.item(arg)
		if err != nil {
			return err
		}
		if w.option != nil && strings.HasPrefix(w.name, "--") {
			if p.seen[w.name] && !slices.Contains(p.out.duplicates, w.name) {
				p.out.duplicates = append(p.out.duplicates, w.name)
			}
			p.seen[w.name] = true
		}
		p.items = append(p.items, w)
	}
	return nil
}

var negativeNumber = regexp.MustCompile(`^-\d+$|^-\d*\.\d+$`)

func (p *parser) item(arg string) (item, error) {
	if len(arg) < 2 || arg[0] != '-' {
		return item{text: arg}, nil
	}
	name, value, hasValue := strings.Cut(arg, "=")
	w := item{text: arg, isOption: true}
	if hasValue {
		w.value = &value
	}
	var prefixed []string
	for i := range p.options {
		for _, n := range p.options[i].names() {
			if n == name {
				w.option, w.name = &p.options[i], n
				return w, nil
			}
			if strings.HasPrefix(n, name) {
				prefixed = append(prefixed, n)
				w.option, w.name = &p.options[i], n
			}
		}
	}
	switch {
	case len(prefixed) > 1:
		return item{}, fmt.Errorf("ambiguous option: %s could match %s", arg, strings.Join(prefixed, ", "))
	case len(prefixed) == 1:
		return w, nil
	case negativeNumber.MatchString(arg), strings.Contains(arg, " "):
		return item{text: arg}, nil
	}
	return item{text: arg, isOption: true}, nil
}

// next consumes one flag with its values, or one positional argument.
func (p *parser) next() error {
	w := p.items[0]
	p.items = p.items[1:]
	switch {
	case w.option != nil && w.option.long == "help":
		return errHelp
	case w.option == nil && !w.isOption && p.out.model == "" && !p.modelByFlag():
		p.out.model = w.text
		return nil
	case w.option == nil:
		p.unrecognised = append(p.unrecognised, w.text)
		return nil
	}
	values, err := p.take(w)
	if err != nil {
		return err
	}
	v, err := w.option.parse(w.name, values)
	if err != nil {
		return err
	}
	p.out.values[w.option.long] = v
	return nil
}

// modelByFlag reports whether --model is on the line. vLLM then puts its value
// in the place of the positional argument.
func (p *parser) modelByFlag() bool { return p.seen["--model"] }

// take returns the value arguments of a flag.
func (p *parser) take(w item) ([]string, error) {
	n := 0
	for n < len(p.items) && !p.items[n].isOption {
		n++
	}
	o := w.option
	switch {
	case o.flag() && w.value != nil:
		return nil, o.errorf("ignored explicit argument %s", quote(*w.value))
	case o.flag():
		return nil, nil
	case w.value != nil:
		return []string{*w.value}, nil
	case n == 0 && o.list():
		return nil, o.errorf("expected at least one argument")
	case n == 0:
		return nil, o.errorf("expected one argument")
	case !o.list():
		n = 1
	}
	var values []string
	for _, v := range p.items[:n] {
		values = append(values, v.text)
	}
	p.items = p.items[n:]
	return values, nil
}

// parse converts a flag's arguments to its Go type.
func (o option) parse(name string, values []string) (any, error) {
	if o.flag() {
		return name != "--no-"+o.long, nil
	}
	if o.list() {
		return o.parseList(values)
	}
	v, err := o.parseOne(values[0])
	if err != nil {
		return nil, err
	}
	if o.choices != nil && !slices.Contains(o.choices, fmt.Sprint(v)) {
		return nil, o.errorf("invalid choice: %s (choose from %s)", o.quoteChoice(values[0]), o.quotedChoices())
	}
	if o.check != nil {
		if err := o.check(v); err != nil {
			return nil, o.errorf("%v", err)
		}
	}
	return v, nil
}

func (o option) parseList(values []string) (any, error) {
	if o.kind == texts {
		return values, nil
	}
	var out []int
	for _, s := range values {
		n, err := strconv.Atoi(s)
		if err != nil {
			return nil, o.errorf("invalid int value: %s", quote(s))
		}
		out = append(out, n)
	}
	return out, nil
}

func (o option) parseOne(s string) (any, error) {
	switch o.kind {
	case integer:
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil {
			return nil, o.errorf("invalid int value: %s", quote(s))
		}
		return n, nil
	case sizeInteger, modelLength:
		if o.kind == modelLength && strings.EqualFold(s, "auto") {
			return -1, nil
		}
		return o.parseSize(s)
	case number:
		f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil {
			return nil, o.errorf("invalid float value: %s", quote(s))
		}
		return f, nil
	case jsonObject:
		var v map[string]any
		if json.Unmarshal([]byte(s), &v) != nil {
			return nil, o.errorf("Value %s cannot be converted to <function loads>.", s)
		}
		return v, nil
	case duration:
		return o.parseDuration(s)
	default:
		return s, nil
	}
}

var sizePattern = regexp.MustCompile(`^(\d+)(\.\d+)?([kKmMgGtT])$`)

// parseSize reads 8192, 8k (8000), 8K (8192) and 2.5m.
func (o option) parseSize(s string) (any, error) {
	s = strings.TrimSpace(s)
	m := sizePattern.FindStringSubmatch(s)
	if m == nil {
		n, err := strconv.Atoi(s)
		if err != nil {
			return nil, o.errorf("invalid human_readable_int value: %s", quote(s))
		}
		return n, nil
	}
	exponent := strings.Index("kmgt", strings.ToLower(m[3])) + 1
	base := 1000.0
	if m[3] != strings.ToLower(m[3]) {
		base = 1024
		if m[2] != "" {
			return nil, o.errorf("Decimals are not allowed with binary suffixes like %s. Did you mean to use %s%s%s instead?",
				m[3], m[1], m[2], strings.ToLower(m[3]))
		}
	}
	f, err := strconv.ParseFloat(m[1]+m[2], 64)
	if err != nil {
		return nil, o.errorf("invalid human_readable_int value: %s", quote(s))
	}
	for range exponent {
		f *= base
	}
	return int(f), nil
}

func (o option) parseDuration(s string) (any, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		seconds, floatErr := strconv.ParseFloat(s, 64)
		if floatErr != nil {
			return nil, o.errorf("invalid duration value: %s", quote(s))
		}
		d = time.Duration(seconds * float64(time.Second))
	}
	return d, nil
}

func (o option) quoteChoice(s string) string {
	if o.kind == integer {
		return s
	}
	return quote(s)
}

func (o option) quotedChoices() string {
	var out []string
	for _, c := range o.choices {
		out = append(out, o.quoteChoice(c))
	}
	return strings.Join(out, ", ")
}

// quote is Python's repr of a string.
func quote(s string) string {
	s = strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), "\n", `\n`)
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		return `"` + s + `"`
	}
	return "'" + strings.ReplaceAll(s, "'", `\'`) + "'"
}

// nonDefault writes the given flags as vLLM logs them: a Python dictionary.
// Keys are secrets and are not shown.
func (a arguments) nonDefault() string {
	items := []string{"'model_tag': " + quote(a.model)}
	for _, long := range slices.Sorted(maps.Keys(a.values)) {
		var value string
		switch v := a.values[long].(type) {
		case bool:
			value = map[bool]string{true: "True", false: "False"}[v]
		case string:
			value = quote(v)
		case time.Duration:
			value = quote(v.String())
		case int, float64:
			value = fmt.Sprint(v)
		default:
			data, err := json.Marshal(v)
			if err != nil {
				data = []byte("...")
			}
			value = string(data)
		}
		if long == "api-key" {
			value = "'***'"
		}
		items = append(items, quote(strings.ReplaceAll(long, "-", "_"))+": "+value)
	}
	return "{" + strings.Join(items, ", ") + "}"
}
