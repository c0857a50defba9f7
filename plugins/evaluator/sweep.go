// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/llmctl/llmctl/experiment"
)

// sweep measures one level of concurrency after the other, upwards, and reports
// the last one that keeps the SLA; when the first level misses it, that level.
type sweep struct{ experiment.Evaluator }

func (s sweep) Evaluate(ctx context.Context, t experiment.Target, traffic experiment.Traffic) (*experiment.Metrics, error) {
	levels := traffic.Scenario.ConcurrencySweep
	var passed *experiment.Metrics
	for i, level := range levels {
		at := traffic
		at.Scenario.Concurrency = level
		at.Scenario.MaxRequests = requests(traffic.Scenario, level, levels[len(levels)-1])
		at.Seed = rand.NewPCG(traffic.Seed, uint64(level)).Uint64() // no two levels share prompts, so none finds the other's cached
		at.Warm = traffic.Warm || i > 0
		fmt.Fprintf(traffic.Log, "concurrency %d\n", level)
		m, err := s.Evaluator.Evaluate(ctx, t, at)
		switch {
		case err != nil && (passed == nil || ctx.Err() != nil):
			return nil, err
		case err != nil:
			// A server that only breaks above a level that it serves well has found its limit.
			passed.Warnings = append(passed.Warnings, fmt.Sprintf("capacity limit: concurrency %d ended with: %v", level, err))
			return passed, nil
		case len(traffic.Objectives.Violations(m)) == 0:
			passed = m
		case passed == nil:
			return m, nil
		default:
			return passed, nil
		}
	}
	return passed, nil
}

// requests scales the number of requests with the level, so that all levels take
// about as long.
func requests(s experiment.Scenario, level, highest int) int {
	if s.MaxRequests == 0 {
		return 0
	}
	return max(s.MinRequests, s.MaxRequests*level/highest)
}
