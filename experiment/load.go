// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Defaults of the experiment file.
const (
	DefaultAlgorithm            = "qmc"
	DefaultMaxTrials            = 20
	DefaultMaxConsecutiveErrors = 3
	DefaultMinRequests          = 50 // of each level of a sweep
	DefaultErrorRateMax         = 0.01
	DefaultOptimize             = "outputThroughput"
	DefaultEvaluator            = "native"
	DefaultReadyTimeout         = 15 * time.Minute
	DefaultTrialTimeout         = time.Hour
	DefaultSchedulingTimeout    = 5 * time.Minute
	DefaultImagePullTimeout     = 2 * time.Minute
	DefaultMaxRestarts          = 2
	DefaultInfraRetries         = 2
)

// Load reads an experiment file and the templates it names. Decoding is strict.
// When anything is wrong the error is a *Problems with all of it, and the Spec
// is still returned as far as it could be read, so that a caller can add
// findings of its own; only a file that cannot be read or parsed gives nil.
func Load(path string) (*Spec, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read experiment file: %w", err)
	}
	root, err := document(data)
	if err != nil {
		return nil, &Problems{File: path, List: []Problem{{Message: err.Error()}}}
	}
	r := &reader{}
	s := r.spec(root)
	r.templates(s, filepath.Dir(path))
	r.files(s, filepath.Dir(path))
	if len(r.problems) > 0 {
		sortProblems(r.problems)
		return s, &Problems{File: path, List: r.problems}
	}
	return s, nil
}

// ReadLoad reads the part of an experiment that says what load there is and what
// it is judged by: the keys scenario, objectives and evaluator, in YAML. Relative
// paths start at folder. Objectives without a latency bound are fine here.
func ReadLoad(data []byte, folder string) (*Spec, error) {
	root, err := document(data)
	if err != nil {
		return nil, err
	}
	r := &reader{}
	s := defaults()
	s.Objectives.AllowNoSLA = true
	r.object(fields{
		"scenario":   r.object(r.scenario(&s.Scenario)),
		"objectives": r.object(r.objectives(&s.Objectives)),
		"evaluator":  r.object(r.evaluator(&s.Evaluator)),
	})("", root)
	r.load(&s.Scenario)
	r.bounds(&s.Objectives)
	r.files(s, folder)
	if len(r.problems) > 0 {
		sortProblems(r.problems)
		return s, &Problems{List: r.problems}
	}
	return s, nil
}

// document parses exactly one YAML document.
func document(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	var n, more yaml.Node
	if err := dec.Decode(&n); errors.Is(err, io.EOF) {
		return nil, errors.New("is empty")
	} else if err != nil {
		return nil, fmt.Errorf("is not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("holds more than one YAML document; an experiment is one")
	}
	// Decoding into plain values finds alias cycles before the reader walks them.
	var plain any
	if err := n.Decode(&plain); err != nil && strings.Contains(err.Error(), "anchor") {
		return nil, fmt.Errorf("is not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	return n.Content[0], nil
}

// defaults is a spec before anything was read.
func defaults() *Spec {
	return &Spec{
		Space:      Space{},
		Objectives: Objectives{Optimize: DefaultOptimize},
		Strategy: Strategy{
			Algorithm: DefaultAlgorithm, MaxTrialsPerTemplate: DefaultMaxTrials,
			EarlyTermination: EarlyTermination{MaxConsecutiveErrors: DefaultMaxConsecutiveErrors},
		},
		Scenario:  Scenario{MinRequests: DefaultMinRequests, StopWhenDecided: true},
		Evaluator: Plugin{Type: DefaultEvaluator},
		Execution: Execution{
			Target: TargetKubernetes, ReadyTimeout: DefaultReadyTimeout, TrialTimeout: DefaultTrialTimeout,
			SchedulingTimeout: DefaultSchedulingTimeout, ImagePullTimeout: DefaultImagePullTimeout,
			MaxRestarts: DefaultMaxRestarts, InfraRetries: DefaultInfraRetries,
		},
	}
}

// spec reads the whole file, fills in defaults and checks what one field alone cannot.
func (r *reader) spec(n *yaml.Node) *Spec {
	s := defaults()
	var apiVersion, kind string
	var constraints []string
	r.object(fields{
		"apiVersion": r.text(&apiVersion),
		"kind":       r.text(&kind),
		"name":       r.name(&s.Name),
		"templates": r.list(func(path string, n *yaml.Node) {
			var t Template
			r.object(fields{"name": r.name(&t.Name), "template": r.text(&t.Path)})(path, n)
			s.Templates = append(s.Templates, t)
		}),
		"backend":             r.text(&s.Backend),
		"searchSpace":         r.space(s.Space),
		"excludeDefaultRoles": r.texts(&s.ExcludeDefaultRoles),
		"constraints":         r.texts(&constraints),
		"scenario":            r.object(r.scenario(&s.Scenario)),
		"objectives":          r.object(r.objectives(&s.Objectives)),
		"strategy":            r.object(r.strategy(&s.Strategy)),
		"evaluator":           r.object(r.evaluator(&s.Evaluator)),
		"results":             r.object(fields{"pvc": r.text(&s.Results.PVC), "subPath": r.text(&s.Results.SubPath)}),
		"execution":           r.object(r.execution(&s.Execution)),
	})("", n)
	r.head(apiVersion, kind)
	r.required(s)
	r.load(&s.Scenario)
	r.bounds(&s.Objectives)
	s.Constraints = r.constraints(constraints, s.Space)
	return s
}

func (r *reader) head(apiVersion, kind string) {
	ours := (apiVersion == "" || apiVersion == APIVersion) && (kind == "" || kind == Kind)
	// Files written for the rbg command line keep their own head.
	theirs := strings.HasPrefix(apiVersion, "rbg") && kind == "AutoBenchmarkConfig"
	if !ours && !theirs {
		r.problem("apiVersion", "must be %s with kind %s, is %q with kind %q", APIVersion, Kind, apiVersion, kind)
	}
}

func (r *reader) required(s *Spec) {
	if s.Backend == "" {
		r.missing("backend", "the name of the engine")
	}
	if len(s.Templates) == 0 {
		r.missing("templates", "at least one")
	}
	if len(s.Space.Dims()) == 0 {
		r.missing("searchSpace", "at least one parameter")
	}
}

// missing reports a required field, unless what stands there was reported already.
func (r *reader) missing(path, what string) {
	if !slices.ContainsFunc(r.problems, func(p Problem) bool { return strings.HasPrefix(p.Path, path) }) {
		r.problem(path, "is required: %s", what)
	}
}

// validName is what names of experiments and templates look like: they become
// folder, file and (shortened) object names.
var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$`)

// MaxNameLength is the longest name of an experiment or template, in bytes.
const MaxNameLength = 63

// ValidName says what is wrong with the name of an experiment or template, or nil.
func ValidName(name string) error {
	switch {
	case name == "":
		return errors.New("must not be empty")
	case len(name) > MaxNameLength:
		return fmt.Errorf("must have at most %d characters, %q has %d", MaxNameLength, name, len(name))
	case !validName.MatchString(name) || strings.Contains(name, ".."):
		return fmt.Errorf("must be lower-case letters, digits, '-', '_' and '.', beginning and ending with a letter or digit, is %q", name)
	}
	return nil
}

func (r *reader) name(into *string) field {
	return func(path string, n *yaml.Node) {
		var s string
		before := len(r.problems)
		r.text(&s)(path, n)
		if len(r.problems) > before {
			return
		}
		if err := ValidName(s); err != nil {
			r.problem(path, "%v", err)
		}
		*into = s
	}
}

// templates reads the manifests and checks their names.
func (r *reader) templates(s *Spec, folder string) {
	seen := map[string]int{}
	for i := range s.Templates {
		t, path := &s.Templates[i], fmt.Sprintf("templates[%d]", i)
		if t.Path == "" {
			r.problem(path+".template", "is required: the file of the manifest")
			continue
		}
		if t.Name == "" {
			base := filepath.Base(t.Path)
			t.Name = strings.ToLower(strings.TrimSuffix(base, filepath.Ext(base)))
			if err := ValidName(t.Name); err != nil {
				r.problem(path+".name", "is missing, and the file name does not serve as one: it %v", err)
			}
		}
		if first, ok := seen[t.Name]; ok {
			r.problem(path+".name", "%q is also the name of templates[%d]", t.Name, first)
		}
		seen[t.Name] = i
		file := t.Path
		if !filepath.IsAbs(file) {
			file = filepath.Join(folder, file)
		}
		source, err := os.ReadFile(file)
		if err != nil {
			r.problem(path+".template", "%v", err)
			continue
		}
		t.Source = source
	}
}

func (r *reader) objectives(o *Objectives) fields {
	return fields{"sla": r.sla(o), "optimize": r.metric(&o.Optimize), "allowNoSLA": r.truth(&o.AllowNoSLA)}
}

func (r *reader) evaluator(p *Plugin) fields {
	return fields{"type": r.text(&p.Type), "config": r.free(&p.Config)}
}

func (r *reader) strategy(s *Strategy) fields {
	e := &s.EarlyTermination
	return fields{
		"algorithm":            r.text(&s.Algorithm),
		"maxTrialsPerTemplate": r.count(&s.MaxTrialsPerTemplate, 1),
		"timeout":              r.duration(&s.Timeout),
		"seed":                 r.seed(&s.Seed),
		"earlyTermination": r.object(fields{
			"minTrials":                 r.count(&e.MinTrials, 0),
			"maxConsecutiveErrors":      r.count(&e.MaxConsecutiveErrors, 0),
			"maxConsecutiveSLAFailures": r.count(&e.MaxConsecutiveSLAFailures, 0),
			"maxSLAFailureRate": func(path string, n *yaml.Node) {
				if f, ok := r.float(path, n); ok && (f <= 0 || f > 1) {
					r.problem(path, "must be in (0, 1], is %s", resolve(n).Value)
				} else if ok {
					e.MaxSLAFailureRate = f
				}
			},
		}),
		"algorithmConfig": r.free(&s.AlgorithmConfig),
		"storagePath":     r.text(&s.StoragePath),
	}
}

func (r *reader) execution(e *Execution) fields {
	return fields{
		"target":            oneOf(r, &e.Target, TargetKubernetes, TargetLocal),
		"rbgReadyTimeout":   r.duration(&e.ReadyTimeout),
		"readyTimeout":      r.duration(&e.ReadyTimeout),
		"trialTimeout":      r.duration(&e.TrialTimeout),
		"infraRetries":      r.count(&e.InfraRetries, 0),
		"schedulingTimeout": r.duration(&e.SchedulingTimeout),
		"imagePullTimeout":  r.duration(&e.ImagePullTimeout),
		"maxRestarts":       r.count(&e.MaxRestarts, 0),
		"podTemplatePaths":  r.texts(&e.PodTemplatePaths),
		"endpoint": func(path string, n *yaml.Node) {
			r.text(&e.Endpoint)(path, n)
			if u, err := url.Parse(e.Endpoint); e.Endpoint != "" && (err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https")) {
				r.problem(path, "must be http://host:port or https://host:port, is %q", e.Endpoint)
			}
		},
	}
}

func (r *reader) metric(into *string) field {
	return func(path string, n *yaml.Node) {
		var s string
		r.text(&s)(path, n)
		if _, ok := metrics[s]; s != "" && !ok {
			r.problem(path, "%q is not a metric%s", s, suggest(s, MetricNames()))
			return
		}
		*into = s
	}
}

func (r *reader) sla(o *Objectives) field {
	return func(path string, n *yaml.Node) {
		known := map[string]Bound{}
		for _, name := range MetricNames() {
			for _, upper := range []bool{true, false} {
				b := Bound{Metric: name, Max: upper}
				known[b.Key()] = b
			}
		}
		r.each(path, n, func(at, key string, n *yaml.Node) {
			b, ok := known[key]
			switch {
			case !ok:
				r.problem(at, "unknown bound%s", suggestBound(key, known))
				return
			case r.null(n):
				return
			}
			limit, ok := r.float(at, n)
			switch {
			case !ok:
				return
			case limit < 0:
				r.problem(at, "must not be negative, is %s", resolve(n).Value)
			case (b.Metric == "errorRate" || b.Metric == "goodput") && limit > 1:
				r.problem(at, "must be in [0, 1], is %s", resolve(n).Value)
			case b.Latency() && limit == 0:
				r.problem(at, "must be above 0: no request takes no time")
			}
			b.Limit = limit
			o.Bounds = append(o.Bounds, b)
		})
	}
}

func suggestBound(key string, known map[string]Bound) string {
	var keys []string
	for k := range known {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	if near := Nearest(key, keys); near != "" {
		return "; did you mean " + near + "?"
	}
	return "; a bound is a metric's name with MaxMs, Max or Min, such as ttftP99MaxMs, errorRateMax, outputThroughputMin"
}

// bounds completes the objectives and refuses to search without a latency bound:
// throughput alone is highest where users wait longest.
func (r *reader) bounds(o *Objectives) {
	if !slices.ContainsFunc(o.Bounds, func(b Bound) bool { return b.Metric == "errorRate" && b.Max }) {
		o.Bounds = append(o.Bounds, Bound{Metric: "errorRate", Max: true, Limit: DefaultErrorRateMax})
	}
	slices.SortFunc(o.Bounds, func(a, b Bound) int { return strings.Compare(a.Key(), b.Key()) })
	if !o.AllowNoSLA && !slices.ContainsFunc(o.Bounds, Bound.Latency) {
		r.problem("objectives.sla", "has no latency bound, so the slowest answers could win; add one such as ttftP99MaxMs or tpotP99MaxMs, or set objectives.allowNoSLA: true")
	}
}

// paramName is an abstract parameter (with a dotted key for JSON flags), a raw
// flag or an environment variable.
var paramName = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*|--[A-Za-z0-9][A-Za-z0-9._-]*|env:[A-Za-z_][A-Za-z0-9_]*)$`)

func (r *reader) space(s Space) field {
	return func(path string, n *yaml.Node) {
		r.each(path, n, func(at, role string, n *yaml.Node) {
			s[role] = map[string]Domain{}
			r.each(at, n, func(at, param string, n *yaml.Node) {
				if !paramName.MatchString(param) {
					r.problem(at, "must be a parameter's name, a flag such as \"--max-num-seqs\", or \"env:NAME\"")
					return
				}
				s[role][param] = r.domain(at, n)
			})
		})
	}
}

func (r *reader) domain(path string, n *yaml.Node) Domain {
	var d Domain
	var lo, hi, step *float64
	optional := func(into **float64) field {
		return func(path string, n *yaml.Node) {
			var f float64
			r.number(&f)(path, n)
			*into = &f
		}
	}
	before := len(r.problems)
	r.object(fields{
		"type":   oneOf(r, &d.Type, FloatDomain, IntDomain, Pow2Domain, CategoricalDomain, BoolDomain),
		"min":    optional(&lo),
		"max":    optional(&hi),
		"step":   optional(&step),
		"log":    r.truth(&d.Log),
		"values": r.list(r.value(&d.Values)),
	})(path, n)
	if len(r.problems) > before {
		return d
	}
	d.Min, d.Max = lo, hi
	if step != nil {
		d.Step = *step
	}
	ranged := d.Type == FloatDomain || d.Type == IntDomain || d.Type == Pow2Domain
	switch {
	case d.Type == "":
		r.problem(path+".type", "is required: float, int, pow2, categorical or bool")
	case ranged && (lo == nil || hi == nil):
		r.problem(path, "type %s needs min and max", d.Type)
	case ranged && len(d.Values) > 0, !ranged && (lo != nil || hi != nil):
		r.problem(path, "values go with type categorical, min and max with float, int and pow2; this is %s", d.Type)
	case d.Type == BoolDomain && len(d.Values) > 0:
		r.problem(path+".values", "does not go with type bool")
	case d.Type == CategoricalDomain && len(d.Values) == 0:
		r.problem(path+".values", "needs at least one value")
	case step != nil && (!ranged || d.Type == Pow2Domain):
		r.problem(path+".step", "does not go with type %s", d.Type)
	case step != nil && *step <= 0:
		r.problem(path+".step", "must be above 0, is %s", Float(*step))
	case d.Log && (d.Type != FloatDomain && d.Type != IntDomain || step != nil):
		r.problem(path+".log", "goes with type float or int without step")
	case ranged:
		r.interval(path, d)
	}
	return d
}

// interval checks the range of a domain that has one.
func (r *reader) interval(path string, d Domain) {
	lo, hi := *d.Min, *d.Max
	whole := func(f float64) bool { return f == math.Trunc(f) && math.Abs(f) <= 1<<53 }
	switch {
	case lo > hi:
		r.problem(path, "min %s is above max %s", Float(lo), Float(hi))
	case d.Type != FloatDomain && (!whole(lo) || !whole(hi) || !whole(d.Step)):
		r.problem(path, "type %s needs whole numbers, has min %s, max %s, step %s", d.Type, Float(lo), Float(hi), Float(d.Step))
	case d.Log && lo <= 0, d.Type == Pow2Domain && lo < 1:
		r.problem(path+".min", "must be above 0 for powers and logarithms, is %s", Float(lo))
	case d.Type == Pow2Domain && d.Len() < 1:
		r.problem(path, "there is no power of two from %s to %s", Float(lo), Float(hi))
	case d.Len() > 1<<31:
		r.problem(path, "has more than 2^31 values; use a larger step, pow2 or log")
	}
}
