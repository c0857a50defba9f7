// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"bytes"
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

// server keeps a TTFT of 50 ms up to its capacity.
type server struct {
	capacity float64 // requests/s, or requests in flight
	breaks   float64 // load under which it is gone; 0: never
	breaksAt int     // measurement at which it is gone, from 1; 0: none
	flaky    int     // measurement that misses whatever the load, from 1; 0: none
	seen     []float64
	seeds    map[uint64]bool
}

func (s *server) Evaluate(_ context.Context, _ experiment.Target, traffic experiment.Traffic) (*experiment.Metrics, error) {
	load := traffic.Scenario.Rate + float64(traffic.Scenario.Concurrency)
	s.seen = append(s.seen, load)
	if s.seeds == nil {
		s.seeds = map[uint64]bool{}
	}
	s.seeds[traffic.Seed] = true
	if s.breaks > 0 && load >= s.breaks || len(s.seen) == s.breaksAt {
		return nil, errors.New("connection refused")
	}
	ttft := 50.0
	if load > s.capacity || len(s.seen) == s.flaky {
		ttft = 500
	}
	return &experiment.Metrics{
		Rate: traffic.Scenario.Rate, Concurrency: traffic.Scenario.Concurrency, TTFT: experiment.Distribution{P99: &ttft},
	}, nil
}

func TestTheLargestLoadIsBracketedHalvedAndConfirmed(t *testing.T) {
	for name, c := range map[string]struct {
		server   server
		of       string
		min, max float64
		want     []float64 // levels in the order of their measurement
		passes   bool
		warning  string
	}{
		"concurrency":              {server{capacity: 11}, "concurrency", 1, 64, []float64{1, 2, 4, 8, 16, 12, 10, 11, 11}, true, ""},
		"rate":                     {server{capacity: 5.3}, "rate", 1, 64, []float64{1, 2, 4, 8, 6, 5, 5.5, 5.25, 5.25}, true, ""},
		"the smallest misses":      {server{capacity: 0.5}, "concurrency", 1, 64, []float64{1}, false, ""},
		"the largest passes":       {server{capacity: 100}, "concurrency", 1, 6, []float64{1, 2, 4, 6, 6}, true, "max_load: concurrency 6, where the search ends, keeps the SLA"},
		"luck is not confirmed":    {server{capacity: 4, flaky: 7}, "concurrency", 1, 64, []float64{1, 2, 4, 8, 6, 5, 4, 3, 3}, true, ""},
		"nothing can be confirmed": {server{capacity: 1, flaky: 3}, "concurrency", 1, 64, []float64{1, 2, 1}, false, ""},
		"it breaks above a pass":   {server{capacity: 100, breaks: 8}, "concurrency", 1, 64, []float64{1, 2, 4, 8}, true, "capacity limit: concurrency 8 ended with: connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			objectives := experiment.Objectives{Bounds: []experiment.Bound{{Metric: "ttftP99", Max: true, Limit: 100}}}
			m, err := maxLoad{&c.server}.Evaluate(t.Context(), experiment.Target{}, experiment.Traffic{
				Scenario:   experiment.Scenario{MaxLoad: &experiment.MaxLoad{Of: c.of, Min: c.min, Max: c.max}, MaxRequests: 640, MinRequests: 50},
				Objectives: objectives, Log: &bytes.Buffer{},
			})
			require.NoError(t, err)
			assert.Equal(t, c.want, c.server.seen)
			assert.Len(t, c.server.seeds, len(c.server.seen), "no measurement shares its prompts")
			assert.Equal(t, c.passes, len(objectives.Violations(m)) == 0)
			if c.warning == "" {
				assert.Empty(t, m.Warnings)
			} else {
				require.Len(t, m.Warnings, 1)
				assert.Contains(t, m.Warnings[0], c.warning)
			}
		})
	}
}

func TestAnEngineThatDiesBeforeAnythingIsConfirmedIsAnError(t *testing.T) {
	s := &server{capacity: 1, breaksAt: 3}
	_, err := maxLoad{s}.Evaluate(t.Context(), experiment.Target{}, experiment.Traffic{
		Scenario:   experiment.Scenario{MaxLoad: &experiment.MaxLoad{Of: "concurrency", Min: 1, Max: 64}, MaxRequests: 640, MinRequests: 50},
		Objectives: experiment.Objectives{Bounds: []experiment.Bound{{Metric: "ttftP99", Max: true, Limit: 100}}}, Log: &bytes.Buffer{},
	})
	require.ErrorContains(t, err, "connection refused")
	assert.Equal(t, []float64{1, 2, 1}, s.seen)
}

// Whatever the capacity, the answer is at most 5 % (or one) below it, and the
// search ends.
func TestTheLargestLoadIsFoundWithinFivePercent(t *testing.T) {
	for capacity := 1.0; capacity < 500; capacity *= 1.037 {
		for _, of := range []string{"concurrency", "rate"} {
			s := &server{capacity: capacity}
			m, err := maxLoad{s}.Evaluate(t.Context(), experiment.Target{}, experiment.Traffic{
				Scenario:   experiment.Scenario{MaxLoad: &experiment.MaxLoad{Of: of, Min: 1, Max: 1000}},
				Objectives: experiment.Objectives{Bounds: []experiment.Bound{{Metric: "ttftP99", Max: true, Limit: 100}}}, Log: &bytes.Buffer{},
			})
			require.NoError(t, err)
			have := m.Rate + float64(m.Concurrency)
			assert.LessOrEqual(t, have, capacity)
			assert.GreaterOrEqual(t, have*1.05, min(capacity, math.Floor(capacity)))
			if of == "rate" {
				assert.Greater(t, have+m.Margins[of], capacity)
			} else {
				assert.GreaterOrEqual(t, have+m.Margins[of], math.Floor(capacity))
			}
			assert.LessOrEqual(t, len(s.seen), 20)
		}
	}
}

func TestALevelUnderWhichTheEngineRestartedIsVoid(t *testing.T) {
	asked := 0
	s := &server{capacity: 100}
	m, err := sweep{s}.Evaluate(t.Context(), experiment.Target{}, experiment.Traffic{
		Scenario: experiment.Scenario{ConcurrencySweep: []int{1, 2, 4}}, Log: &bytes.Buffer{},
		Objectives: experiment.Objectives{Bounds: []experiment.Bound{{Metric: "ttftP99", Max: true, Limit: 100}}},
		Diagnose: func(context.Context) (experiment.Cause, error) {
			if asked++; asked == 2 {
				return experiment.Cause{Class: "server_restarted", Message: "restarted under load"}, nil
			}
			return experiment.Cause{}, nil
		},
	})
	require.NoError(t, err)
	assert.Equal(t, 1, m.Concurrency)
	assert.Equal(t, []string{"capacity limit: concurrency 2 ended with: restarted under load"}, m.Warnings)
	assert.Equal(t, []float64{1, 2}, s.seen)
}
