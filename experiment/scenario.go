// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

func (r *reader) scenario(s *Scenario) fields {
	return fields{
		"name":        r.text(&s.Name),
		"workload":    r.text(&s.Workload),
		"concurrency": r.count(&s.Concurrency, 1),
		"concurrencySweep": r.list(func(path string, n *yaml.Node) {
			var level int
			r.count(&level, 1)(path, n)
			if slices.Contains(s.ConcurrencySweep, level) {
				r.problem(path, "%d is given twice", level)
			}
			s.ConcurrencySweep = append(s.ConcurrencySweep, level)
		}),
		"rate": r.above0(&s.Rate),
		"rateSweep": r.list(func(path string, n *yaml.Node) {
			var level float64
			r.above0(&level)(path, n)
			if slices.Contains(s.RateSweep, level) {
				r.problem(path, "%s is given twice", Float(level))
			}
			s.RateSweep = append(s.RateSweep, level)
		}),
		"arrival":         r.text(&s.Arrival),
		"rampUp":          r.duration(&s.RampUp),
		"trace":           r.text(&s.Trace),
		"maxLoad":         r.maxLoad(&s.MaxLoad),
		"duration":        r.duration(&s.Duration),
		"maxRequests":     r.count(&s.MaxRequests, 0),
		"minRequests":     r.count(&s.MinRequests, 0),
		"stopWhenDecided": r.truth(&s.StopWhenDecided),
	}
}

// maxLoad reads the range of a search for the largest load.
func (r *reader) maxLoad(into **MaxLoad) field {
	return func(path string, n *yaml.Node) {
		m := &MaxLoad{Of: LoadConcurrency, Min: 1}
		before := len(r.problems)
		r.object(fields{"of": oneOf(r, &m.Of, LoadConcurrency, LoadRate), "min": r.above0(&m.Min), "max": r.above0(&m.Max)})(path, n)
		whole := m.Min == math.Trunc(m.Min) && m.Max == math.Trunc(m.Max)
		switch {
		case len(r.problems) > before:
		case m.Max == 0:
			r.problem(path+".max", "is required: where the search ends at the latest")
		case m.Max < m.Min:
			r.problem(path, "min %s is above max %s", Float(m.Min), Float(m.Max))
		case m.Of == LoadConcurrency && !whole:
			r.problem(path, "of concurrency needs whole numbers, has min %s, max %s", Float(m.Min), Float(m.Max))
		}
		*into = m
	}
}

// files reads what the scenario refers to, and makes the paths good for any
// working directory.
func (r *reader) files(s *Spec, folder string) {
	within := func(path string) string {
		if filepath.IsAbs(path) {
			return path
		}
		if abs, err := filepath.Abs(filepath.Join(folder, path)); err == nil {
			return abs
		}
		return filepath.Join(folder, path)
	}
	if s.Scenario.Trace != "" {
		var err error
		s.Scenario.Trace = within(s.Scenario.Trace)
		if s.Scenario.TraceSource, err = os.ReadFile(s.Scenario.Trace); err != nil {
			r.problem("scenario.trace", "%v", err)
		}
	}
	// The one path among the settings of evaluators.
	if path, ok := s.Evaluator.Config["datasetPath"].(string); ok && path != "" {
		s.Evaluator.Config["datasetPath"] = within(path)
	}
}

// load checks and completes the scenario as a whole.
func (r *reader) load(s *Scenario) {
	slices.Sort(s.ConcurrencySweep)
	slices.Sort(s.RateSweep)
	if s.Workload == "" && s.Trace == "" {
		r.missing("scenario.workload", "such as \"fixed(512,256)\"")
	}
	var given []string
	for _, load := range []struct {
		key string
		set bool
	}{
		{"concurrency", s.Concurrency > 0 && len(s.ConcurrencySweep) == 0}, {"concurrencySweep", len(s.ConcurrencySweep) > 0},
		{"rate", s.Rate > 0}, {"rateSweep", len(s.RateSweep) > 0}, {"trace", s.Trace != ""}, {"maxLoad", s.MaxLoad != nil},
	} {
		if load.set {
			given = append(given, "scenario."+load.key)
		}
	}
	switch rated := s.Rated(); {
	case len(given) == 0:
		r.missing("scenario.concurrency", "the number of requests in flight (or a rate, rateSweep, concurrencySweep, maxLoad or trace)")
	case len(given) > 1:
		r.problem("scenario", "%s exclude each other: each says how much load there is", strings.Join(given, " and "))
	case s.Arrival != "" && !rated:
		r.problem("scenario.arrival", "goes with scenario.rate, rateSweep or maxLoad of rate")
	case s.RampUp > 0 && !rated:
		r.problem("scenario.rampUp", "goes with scenario.rate, rateSweep or maxLoad of rate")
	}
	if s.Duration == 0 && s.MaxRequests == 0 && s.Trace == "" {
		s.MaxRequests = s.defaultRequests()
	}
}

// Rated tells whether requests are sent at a rate, whatever the server does.
func (s *Scenario) Rated() bool {
	return s.Rate > 0 || len(s.RateSweep) > 0 || s.MaxLoad != nil && s.MaxLoad.Of == LoadRate
}

// defaultRequests are ten waves of the largest level, or a minute of the highest rate.
func (s *Scenario) defaultRequests() int {
	n := max(s.MinRequests, 10*s.Concurrency, int(60*s.Rate))
	for _, level := range s.ConcurrencySweep {
		n = max(n, 10*level)
	}
	for _, rate := range s.RateSweep {
		n = max(n, int(60*rate))
	}
	if m := s.MaxLoad; m != nil && m.Of == LoadConcurrency {
		n = max(n, 10*int(m.Max))
	} else if m != nil {
		n = max(n, int(60*m.Max))
	}
	return n
}
