// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/llmctl/llmctl/experiment"
)

// sweep measures one level of load after the other, upwards, and reports the
// last one that keeps the SLA; when the first level misses it, that level.
type sweep struct{ experiment.Evaluator }

func (s sweep) Evaluate(ctx context.Context, t experiment.Target, traffic experiment.Traffic) (*experiment.Metrics, error) {
	levels := sweepLevels(traffic.Scenario)
	step := stepper{s.Evaluator, t, traffic, levels[len(levels)-1], 0}
	var passed *experiment.Metrics
	for _, l := range levels {
		m, err := step.measure(ctx, l)
		switch {
		case err != nil && (passed == nil || ctx.Err() != nil):
			return nil, err
		case err != nil:
			return limited(passed, l, err), nil
		case step.passes(m):
			passed = m
		case passed == nil:
			return m, nil
		default:
			return passed, nil
		}
	}
	return passed, nil
}

func sweepLevels(s experiment.Scenario) []level {
	var levels []level
	for _, n := range s.ConcurrencySweep {
		levels = append(levels, level{experiment.LoadConcurrency, float64(n)})
	}
	for _, r := range s.RateSweep {
		levels = append(levels, level{experiment.LoadRate, r})
	}
	return levels
}

// maxLoad searches the largest load that keeps the SLA: it doubles until a miss,
// halves the interval until it is within 5 %, and confirms the answer with one
// more measurement.
type maxLoad struct{ experiment.Evaluator }

const (
	searchPrecision = 0.05
	// searchSteps bounds the search: 2^20 times the first level is out of reach of
	// any server, and 20 halvings are far below the precision.
	searchSteps = 40
)

func (s maxLoad) Evaluate(ctx context.Context, t experiment.Target, traffic experiment.Traffic) (*experiment.Metrics, error) {
	m := traffic.Scenario.MaxLoad
	search := search{
		stepper: stepper{s.Evaluator, t, traffic, level{m.Of, m.Max}, 0},
		passed:  []measured{{level: level{m.Of, 0}}},
	}
	err := search.run(ctx, level{m.Of, m.Min})
	if err != nil {
		return nil, err
	}
	return search.answer(), nil
}

// search is the state of a search: the levels that passed, in ascending order
// after a zero level, and the smallest one that did not.
type search struct {
	stepper
	passed    []measured
	missed    *measured
	confirmed bool
}

type measured struct {
	level
	metrics *experiment.Metrics
	err     error
}

func (s *search) run(ctx context.Context, next level) error {
	for range searchSteps {
		m, err := s.measure(ctx, next)
		best := &s.passed[len(s.passed)-1]
		switch {
		case err != nil && (ctx.Err() != nil || len(s.passed) == 1):
			return err
		case err == nil && s.passes(m):
			s.confirmed = next == best.level
			if s.confirmed {
				best.metrics = m
			} else {
				s.passed = append(s.passed, measured{next, m, nil})
			}
		default:
			if next == best.level { // a pass that was not confirmed is none
				s.passed = s.passed[:len(s.passed)-1]
			}
			s.missed = &measured{next, m, err}
			switch {
			case err != nil && len(s.passed) == 1:
				return err
			case err != nil: // the engine may be gone: what passed before is the answer
				return nil
			}
		}
		if s.confirmed || len(s.passed) == 1 { // the latter: the first level is a miss
			return nil
		}
		next = s.next()
	}
	return errors.New("the search for the largest load did not settle: the same level passes and misses by turns")
}

// next is the level to measure when at least one has passed; the best one again
// when it is close enough to the smallest miss.
func (s *search) next() level {
	best := s.passed[len(s.passed)-1].level
	m := s.traffic.Scenario.MaxLoad
	if s.missed == nil {
		return level{m.Of, min(m.Max, 2*best.value)}
	}
	middle := (best.value + s.missed.value) / 2
	if m.Of == experiment.LoadConcurrency {
		middle = math.Floor(middle)
	}
	if middle <= best.value || s.missed.value <= best.value*(1+searchPrecision) {
		return best
	}
	return level{m.Of, middle}
}

// answer is the largest level that passed, or the miss at the smallest level.
func (s *search) answer() *experiment.Metrics {
	best := s.passed[len(s.passed)-1]
	if best.metrics == nil {
		return s.missed.metrics
	}
	switch {
	case s.missed == nil:
		best.metrics.Warnings = append(best.metrics.Warnings, fmt.Sprintf("max_load: %s, where the search ends, keeps the SLA; more may be possible", best.level))
	case s.missed.err != nil:
		best.metrics = limited(best.metrics, s.missed.level, s.missed.err)
	}
	if s.missed != nil { // the largest load is somewhere below that
		margin := s.missed.value - best.value
		if best.of == experiment.LoadConcurrency {
			margin-- // there is none between two whole numbers
		}
		if best.metrics.Margins == nil {
			best.metrics.Margins = map[string]float64{}
		}
		best.metrics.Margins[best.of] = margin
	}
	return best.metrics
}

// limited notes that a server broke above a level that it serves well: it has
// found its limit.
func limited(m *experiment.Metrics, l level, err error) *experiment.Metrics {
	m.Warnings = append(m.Warnings, fmt.Sprintf("capacity limit: %s ended with: %v", l, err))
	return m
}

// level is an amount of load.
type level struct {
	of    string // concurrency or rate
	value float64
}

func (l level) String() string {
	if l.of == experiment.LoadRate {
		return fmt.Sprintf("rate %s/s", experiment.Float(l.value))
	}
	return fmt.Sprintf("concurrency %s", experiment.Float(l.value))
}

// stepper measures levels one after the other on the same server.
type stepper struct {
	experiment.Evaluator
	target  experiment.Target
	traffic experiment.Traffic
	highest level
	steps   int
}

// measure puts one level of load on. Requests are scaled with the level, so that
// all levels take about as long. No two levels share prompts, so none finds the
// other's cached. A level under which the workload broke is void.
func (s *stepper) measure(ctx context.Context, l level) (*experiment.Metrics, error) {
	at := s.traffic
	scenario := &at.Scenario
	scenario.ConcurrencySweep, scenario.RateSweep, scenario.MaxLoad = nil, nil, nil
	switch l.of {
	case experiment.LoadRate:
		scenario.Rate = l.value
	default:
		scenario.Concurrency = int(l.value)
	}
	if scenario.MaxRequests > 0 {
		scenario.MaxRequests = max(scenario.MinRequests, int(float64(scenario.MaxRequests)*l.value/s.highest.value))
	}
	at.Seed = rand.NewPCG(s.traffic.Seed, uint64(s.steps)).Uint64()
	at.Warm = s.traffic.Warm || s.steps > 0
	s.steps++
	fmt.Fprintln(at.Log, l)
	m, err := s.Evaluate(ctx, s.target, at)
	if s.traffic.Diagnose == nil || ctx.Err() != nil {
		return m, err
	}
	if cause, failed := s.traffic.Diagnose(ctx); failed == nil && cause.Class != "" {
		return nil, errors.Join(&experiment.Failure{Cause: cause}, err)
	}
	return m, err
}

func (s *stepper) passes(m *experiment.Metrics) bool {
	return len(s.traffic.Objectives.Violations(m)) == 0
}
