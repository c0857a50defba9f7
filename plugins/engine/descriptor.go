// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
)

// descriptor is the YAML file that describes an engine.
type descriptor struct {
	Extends string `yaml:"extends"` // engine whose descriptor fills in what this one leaves out

	Commands []command `yaml:"commands"` // how to recognise the engine's own command
	Images   []image   `yaml:"images"`   // images whose entrypoint is the engine

	Model       string `yaml:"model"`       // flag of the model
	ServedModel string `yaml:"servedModel"` // flag of the model's name in the API
	Host        string `yaml:"host"`        // flag of the address to listen on
	Port        port   `yaml:"port"`
	Config      string `yaml:"config"`  // flag that names a file with more arguments
	Health      string `yaml:"health"`  // URL path that answers 200 when the engine serves
	Metrics     string `yaml:"metrics"` // URL path of the Prometheus metrics

	// Effective tells where the engine reports what it runs with.
	Effective effective `yaml:"effective"`

	Parser  parser `yaml:"parser"`
	Boolean style  `yaml:"boolean"` // style of switches that the descriptor does not know

	Parameters map[string]*parameter `yaml:"parameters"`
	// Missing says for abstract parameters that the engine lacks what to use instead.
	Missing map[string]string `yaml:"missing"`
	// Flags are the engine's other flags: they decide which abbreviations are
	// unique and which words are values.
	Flags flagNames `yaml:"flags"`
	// Removed are flags that the engine no longer has, with a hint.
	Removed map[string]string `yaml:"removed"`

	Failures []failure `yaml:"failures"` // log lines that tell why the engine died, most telling first
}

// command is one form of the engine's command: a program with the words that
// must follow it, or a Python module run with -m.
type command struct {
	Program string   `yaml:"program"`
	Words   []string `yaml:"words"`
	Module  string   `yaml:"module"`
	// Positional tells that the first positional argument is the model.
	Positional bool `yaml:"positional"`
}

// image tells what a container without a command of its own runs.
type image struct {
	Match       pattern    `yaml:"match"`       // of the image's name without registry, tag and digest
	Entrypoints [][]string `yaml:"entrypoints"` // the first that makes the arguments a command of the engine counts
}

type port struct {
	Flag    string `yaml:"flag"`
	Default int    `yaml:"default"`
}

// parser describes habits of the engine's argument parser.
type parser struct {
	Underscores   bool `yaml:"underscores"`   // --a_b is --a-b
	Abbreviations bool `yaml:"abbreviations"` // a unique prefix of a long flag is that flag
	Dotted        bool `yaml:"dotted"`        // --json-flag.key value
}

// style is how a flag takes its value.
type style string

const (
	valueStyle   style = "value"        // --x value
	negatable    style = "negatable"    // --x or --no-x
	presentOnly  style = "present-only" // --x or nothing
	jsonStyle    style = "json"         // --x '{…}'
	unknownStyle style = ""             // a flag the descriptor does not know
)

// parameter maps an abstract parameter to a flag.
type parameter struct {
	Flag     string   `yaml:"flag"`
	Aliases  []string `yaml:"aliases"` // other spellings of the flag
	Names    []string `yaml:"names"`   // other names of the parameter
	Kind     style    `yaml:"kind"`    // default: value
	Type     string   `yaml:"type"`    // of a value: int, float or string (default)
	List     bool     `yaml:"list"`    // several values: --x a b
	Min      *float64 `yaml:"min"`     // inclusive limits
	Max      *float64 `yaml:"max"`
	Above    *float64 `yaml:"above"` // exclusive limits
	Below    *float64 `yaml:"below"`
	Allowed  []string `yaml:"allowed"`  // values besides those of the range, such as auto or -1
	Suffixes bool     `yaml:"suffixes"` // an integer may have a suffix: 8k, 1.5M
	Choices  []string `yaml:"choices"`  // the values of a string; may hold * patterns
	Open     bool     `yaml:"open"`     // other values than the choices get a warning only
	Default  bool     `yaml:"default"`  // of a negatable switch
	Inverted bool     `yaml:"inverted"` // the flag turns the parameter off
	// Twin is the same setting inside a JSON flag; the engine refuses both together.
	Twin *twin `yaml:"twin"`
	// OverriddenBy are flags that make this one ineffective.
	OverriddenBy []string `yaml:"overriddenBy"`
}

type twin struct {
	Flag string `yaml:"flag"`
	Key  string `yaml:"key"`
}

// flagNames lists flags by what follows them, without the leading dashes.
type flagNames struct {
	Negatable []string `yaml:"negatable"`
	Switches  []string `yaml:"switches"`
	Values    []string `yaml:"values"`
	Lists     []string `yaml:"lists"`
	Optional  []string `yaml:"optional"` // a value may follow
	JSON      []string `yaml:"json"`
}

// failure is a log line that says why the engine died, or that it is in trouble.
type failure struct {
	Match pattern `yaml:"match"`
	Class string  `yaml:"class"`
	// Fatal tells that the engine will not serve after this line.
	Fatal bool `yaml:"fatal"`
	// Wrapper tells that the line only reports that something else failed.
	Wrapper bool `yaml:"wrapper"`
	// Generic tells that a more specific line is worth more, wherever it stands.
	Generic bool `yaml:"generic"`
	// Summary explains the line; ${name} is a named group of the pattern.
	Summary string `yaml:"summary"`
	// Limits is a parameter that the engine limits to the group "limit".
	Limits string `yaml:"limits"`
}

// decodeStrict reads one YAML document into v and refuses keys that v does not have.
func decodeStrict(data []byte, v any) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return err
	}
	if doc.Kind != yaml.DocumentNode {
		return nil // an empty file
	}
	if err := knownKeys(&doc, v); err != nil {
		return err
	}
	return doc.Decode(v)
}

// extend fills in from base what d leaves out. Entries of maps replace the
// base's entries of the same name; failures and flags are added to the base's.
func (d *descriptor) extend(base *descriptor) {
	fill(&d.Model, base.Model)
	fill(&d.ServedModel, base.ServedModel)
	fill(&d.Host, base.Host)
	fill(&d.Port.Flag, base.Port.Flag)
	fill(&d.Port.Default, base.Port.Default)
	fill(&d.Config, base.Config)
	fill(&d.Health, base.Health)
	fill(&d.Metrics, base.Metrics)
	fill(&d.Boolean, base.Boolean)
	if d.Effective.Log == "" && d.Effective.Path == "" {
		d.Effective = base.Effective
	}
	fill(&d.Parser, base.Parser)
	if d.Commands == nil {
		d.Commands = base.Commands
	}
	if d.Images == nil {
		d.Images = base.Images
	}
	d.Parameters = under(d.Parameters, base.Parameters)
	d.Missing = under(d.Missing, base.Missing)
	d.Removed = under(d.Removed, base.Removed)
	for name := range d.Parameters {
		delete(d.Missing, name)
	}
	d.Flags = flagNames{
		Negatable: slices.Concat(base.Flags.Negatable, d.Flags.Negatable),
		Switches:  slices.Concat(base.Flags.Switches, d.Flags.Switches),
		Values:    slices.Concat(base.Flags.Values, d.Flags.Values),
		Lists:     slices.Concat(base.Flags.Lists, d.Flags.Lists),
		Optional:  slices.Concat(base.Flags.Optional, d.Flags.Optional),
		JSON:      slices.Concat(base.Flags.JSON, d.Flags.JSON),
	}
	d.Failures = slices.Concat(d.Failures, base.Failures)
}

func fill[T comparable](field *T, base T) {
	var zero T
	if *field == zero {
		*field = base
	}
}

func under[V any](over, base map[string]V) map[string]V {
	merged := maps.Clone(base)
	if merged == nil {
		merged = map[string]V{}
	}
	maps.Copy(merged, over)
	return merged
}

// check reports what the schema cannot express, all at once.
func (d *descriptor) check() error {
	var errs []error
	report := func(path, format string, args ...any) {
		errs = append(errs, fmt.Errorf(path+": "+format, args...))
	}
	if len(d.Commands) == 0 {
		report("commands", "an engine needs at least one command")
	}
	for i, c := range d.Commands {
		if (c.Program == "") == (c.Module == "") {
			report(fmt.Sprintf("commands[%d]", i), "needs either program or module")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Parameters)) {
		path := "parameters." + name
		p := d.Parameters[name]
		if p == nil {
			report(path, "is empty")
			continue
		}
		if len(p.Flag) < 2 || p.Flag[0] != '-' {
			report(path+".flag", "must be a flag, is %q", p.Flag)
		}
		switch p.Kind {
		case unknownStyle, valueStyle, negatable, presentOnly, jsonStyle:
		default:
			report(path+".kind", "must be value, negatable, present-only or json, is %q", p.Kind)
		}
		switch p.Type {
		case "", "int", "float", "string":
		default:
			report(path+".type", "must be int, float or string, is %q", p.Type)
		}
	}
	switch d.Boolean {
	case negatable, presentOnly:
	default:
		report("boolean", "must be negatable or present-only, is %q", d.Boolean)
	}
	return errors.Join(errs...)
}
