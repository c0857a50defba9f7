// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"context"
	"errors"
	"fmt"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/loadgen"
)

// native measures with the built-in load generator.
type native struct{ settings }

func (n native) Evaluate(ctx context.Context, t experiment.Target, traffic experiment.Traffic) (*experiment.Metrics, error) {
	warmup := n.warmup
	if traffic.Warm {
		warmup = -1
	}
	result, err := loadgen.Run(ctx, loadgen.Config{
		BaseURL: t.BaseURL, Model: t.Model, APIKey: n.apiKey, API: n.api,
		Workload: n.workload, Concurrency: traffic.Scenario.Concurrency,
		MaxRequests: traffic.Scenario.MaxRequests, Duration: traffic.Scenario.Duration,
		Warmup: warmup, Seed: traffic.Seed, IgnoreEOS: !n.allowShort,
		RequestTimeout: n.requestTimeout, Log: traffic.Log,
	})
	switch {
	case errors.Is(err, loadgen.ErrConfig):
		return nil, &experiment.Failure{Cause: experiment.Cause{Class: experiment.ClassConfig, Message: err.Error()}}
	case errors.Is(err, loadgen.ErrConsecutiveFailures):
		// Data: the failures are in the error rate, and the loop asks the workload why.
	case err != nil:
		return nil, err
	}
	return metrics(result)
}

// metrics gives a level's summary the experiment's form.
func metrics(r *loadgen.Result) (*experiment.Metrics, error) {
	s := loadgen.Summarize(r)
	if s.InvalidLoad {
		return nil, &experiment.Failure{Cause: experiment.Cause{Class: "invalid_load", Message: fmt.Sprintf(
			"%d of %d answers were shorter than asked for although ignore_eos was set, so trials cannot be compared; set evaluator.config.allowShortOutput: true where that is the workload", s.Short, s.OK)}}
	}
	m := &experiment.Metrics{
		TTFT: distribution(s.TTFT), TPOT: distribution(s.TPOT), ITL: distribution(s.ITL), E2E: distribution(s.E2E),
		OutputThroughput: s.OutputTokensPerSecond, InputThroughput: s.InputTokensPerSecond,
		TotalThroughput: s.TotalTokensPerSecond, RequestsPerSecond: s.RequestsPerSecond,
		ErrorRate: s.ErrorRate, Concurrency: r.Concurrency, AchievedConcurrency: s.AchievedConcurrency,
		Requests: experiment.Requests{Sent: s.Sent, OK: s.OK, Failed: s.Failed, Short: s.Short, Incomplete: s.Incomplete},
		Warnings: s.Warnings,
	}
	if s.Window != nil {
		m.Seconds = *s.Window
	}
	for category, n := range s.Categories {
		if m.Requests.Failures == nil {
			m.Requests.Failures = map[string]int{}
		}
		m.Requests.Failures[string(category)] = n
	}
	if r.Stopped != "" {
		m.Warnings = append(m.Warnings, "ended early: "+r.Stopped)
	}
	return m, nil
}

func distribution(d loadgen.Distribution) experiment.Distribution {
	return experiment.Distribution{Mean: d.Mean, P50: d.P50, P90: d.P90, P95: d.P95, P99: d.P99, N: d.N}
}
