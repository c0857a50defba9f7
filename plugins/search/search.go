// SPDX-License-Identifier: Apache-2.0

// Package search proposes what to try next. Every algorithm is an order in which
// to try the settings of a space, derived from the seed and the history alone:
// a run that is interrupted anywhere and resumed makes the same trials.
package search

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/llmctl/llmctl/experiment"
)

// algorithms are the values of strategy.algorithm.
var algorithms = map[string]func(*setup) order{
	"grid":   grid,
	"qmc":    qmc,
	"random": random,
}

// planned are algorithms that existing experiment files name.
var planned = []string{"tpe", "gp", "cmaes", "nsgaii", "nsgaiii"}

// patience is how many settings in a row may be excluded by the constraints
// before a search gives up: minutes of work, in spaces far too large to finish.
const patience = 10_000_000

// order yields settings in the order in which to try them. Settings that were
// tried or are not allowed may be among them, and some may come twice.
type order func(history []experiment.Trial) iter.Seq[experiment.Params]

type searcher struct {
	order
	space       experiment.Space
	constraints experiment.Constraints
	patience    int
}

// Names lists the algorithms, sorted.
func Names() []string { return slices.Sorted(maps.Keys(algorithms)) }

// New makes the searcher that strategy.algorithm names. Its error joins all that
// Check finds.
func New(s *experiment.Spec) (experiment.Searcher, error) {
	order, problems := build(s)
	if len(problems) > 0 {
		var all []error
		for _, p := range problems {
			all = append(all, errors.New(p.String()))
		}
		return nil, errors.Join(all...)
	}
	return searcher{order, s.Space, s.Constraints, patience}, nil
}

// Check says what keeps the algorithm from searching the space of s, which may
// have other problems.
func Check(s *experiment.Spec) []experiment.Problem {
	_, problems := build(s)
	return problems
}

// Next is the first of the order's settings that is allowed and not in the history.
func (s searcher) Next(ctx context.Context, history []experiment.Trial) (experiment.Params, error) {
	tried := map[string]bool{experiment.Params{}.Key(): true} // the baseline
	for _, t := range history {
		tried[t.Params.Key()] = true
	}
	excluded := 0
	for p := range s.order(history) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if tried[p.Key()] {
			continue
		}
		ok, err := s.constraints.Allow(p)
		if err != nil {
			return nil, err
		}
		if ok {
			return p, nil
		}
		if excluded++; excluded == s.patience {
			return nil, fmt.Errorf("%w: %d settings in a row are excluded by the constraints", experiment.ErrExhausted, excluded)
		}
	}
	if endless(s.space.Dims()) {
		return nil, fmt.Errorf("%w: %d points hold nothing new that the constraints allow", experiment.ErrExhausted, maxDraws)
	}
	return nil, experiment.ErrExhausted
}

// setup is what an algorithm is made from.
type setup struct {
	*experiment.Spec
	keys     []string // of algorithmConfig that the algorithm asked for
	problems []experiment.Problem
}

func build(s *experiment.Spec) (order, []experiment.Problem) {
	name := s.Strategy.Algorithm
	algorithm, ok := algorithms[name]
	if !ok {
		why := "unknown"
		if slices.Contains(planned, name) {
			why = "not yet"
		}
		return nil, []experiment.Problem{{Path: "strategy.algorithm", Message: fmt.Sprintf("%s: %s; use %s", name, why, choice(Names()))}}
	}
	c := &setup{Spec: s}
	order := algorithm(c)
	for _, key := range slices.Sorted(maps.Keys(s.Strategy.AlgorithmConfig)) {
		if !slices.Contains(c.keys, key) {
			c.problem("strategy.algorithmConfig."+key, "unknown key; %s takes %s", name, choice(c.keys))
		}
	}
	return order, c.problems
}

func (c *setup) problem(path, format string, args ...any) {
	c.problems = append(c.problems, experiment.Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

// truth reads a switch of algorithmConfig.
func (c *setup) truth(key string, fallback bool) bool {
	c.keys = append(c.keys, key)
	v, given := c.Strategy.AlgorithmConfig[key]
	if !given {
		return fallback
	}
	b, ok := v.(bool)
	if !ok {
		c.problem("strategy.algorithmConfig."+key, "must be true or false, is %v", v)
	}
	return b
}

// choice puts words as people do: "a, b or c".
func choice(words []string) string {
	switch n := len(words); n {
	case 0:
		return "none"
	case 1:
		return words[0]
	default:
		return strings.Join(words[:n-1], ", ") + " or " + words[n-1]
	}
}

// settings gives every dimension a value.
func settings(dims []experiment.Dim, value func(i int) experiment.Value) experiment.Params {
	p := experiment.Params{}
	for i, d := range dims {
		if p[d.Role] == nil {
			p[d.Role] = map[string]experiment.Value{}
		}
		p[d.Role][d.Param] = value(i)
	}
	return p
}
