// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/loadgen"
)

// native measures with the built-in load generator.
type native struct{ settings }

func (n native) Evaluate(ctx context.Context, t experiment.Target, traffic experiment.Traffic) (*experiment.Metrics, error) {
	load := n.load(traffic)
	load.BaseURL, load.Model = t.BaseURL, t.Model
	if err := n.before(ctx, t, traffic, load); err != nil {
		return nil, err
	}
	stop := n.scraper(t).watch(ctx, scrapeInterval)
	result, err := loadgen.Run(ctx, load)
	engine := stop()
	switch {
	case errors.Is(err, loadgen.ErrConfig):
		return nil, configError(err)
	case errors.Is(err, loadgen.ErrConsecutiveFailures), errors.Is(err, loadgen.ErrStalled), errors.Is(err, loadgen.ErrDecided):
		// Data: the failures are in the error rate, and the loop asks the workload why.
	case err != nil:
		return nil, err
	}
	if err := n.keepRecords(traffic, result); err != nil {
		return nil, err
	}
	summary := loadgen.Summarize(result)
	m, err := metrics(result, summary)
	if err != nil {
		return nil, err
	}
	m.Engine = engine
	if summary.HeldBack() && t.Direct != "" {
		m.Warnings = append(m.Warnings, "buffered_stream: "+straight(ctx, t, load))
	}
	return m, nil
}

// straight tells, after a load whose answers were held back, whether the engine
// does that or what is in front of it: by one request that goes past the latter.
func straight(ctx context.Context, t experiment.Target, load loadgen.Config) string {
	const enough = 64 // tokens, to tell a stream from an answer in one piece
	load.BaseURL = t.Direct
	rec, err := loadgen.Once(ctx, load, enough)
	switch {
	case err == nil && max(rec.Chunks, rec.OutputTokens) < loadgen.BufferedFrom:
		return "whether the engine streams could not be told: its answer was too short"
	case err != nil:
		return fmt.Sprintf("whether the engine streams could not be told: a request straight to it failed: %v", err)
	case rec.Buffered:
		return "an answer straight from the engine came at once, too: it is not " + t.BaseURL + " that holds it back"
	}
	return fmt.Sprintf("an answer straight from the engine was streamed, with its first token after %s: %s holds answers back, so that the times to first token and between tokens are not the engine's",
		rec.TTFT.Round(100*time.Microsecond), t.BaseURL)
}

// load is the load generator's form of the traffic.
func (s *settings) load(traffic experiment.Traffic) loadgen.Config {
	scenario := traffic.Scenario
	c := loadgen.Config{
		APIKey: s.apiKey, API: s.api, TLS: s.tls,
		Workload: s.workload, Trace: s.trace, Concurrency: scenario.Concurrency,
		Rate: scenario.Rate, Arrival: s.arrival, RampUp: scenario.RampUp,
		MaxRequests: scenario.MaxRequests, Duration: scenario.Duration,
		Warmup: s.warmup, WarmupRatio: s.warmupRatio, Seed: traffic.Seed + s.baseSeed, IgnoreEOS: !s.allowShort,
		RequestTimeout: s.requestTimeout, Bounds: bounds(traffic.Objectives), StopWhenDecided: scenario.StopWhenDecided,
		Log: traffic.Log,
	}
	switch {
	case s.trace != nil:
		c.Concurrency = 0
	case s.conversations != nil:
		c.Conversations = s.conversations
	case s.dataset != nil:
		c.Dataset = s.dataset
	}
	if traffic.Warm {
		c.Warmup, c.WarmupRatio = -1, 0
	}
	return c
}

// latencyPoints are the percentiles that metrics of a latency are named by; 0 is the mean.
var latencyPoints = map[string]float64{"Mean": 0, "P50": 0.5, "P90": 0.9, "P95": 0.95, "P99": 0.99}

// bounds are the upper limits that the load generator can judge while it runs.
func bounds(o experiment.Objectives) []loadgen.Bound {
	var list []loadgen.Bound
	for _, b := range o.Bounds {
		switch {
		case !b.Max:
		case b.Metric == "errorRate":
			list = append(list, loadgen.Bound{Metric: "errorRate", Max: min(b.Limit, experiment.MaxErrorRate)})
		default:
			for point, p := range latencyPoints {
				switch name, ok := strings.CutSuffix(b.Metric, point); {
				case !ok:
				case name == "ttft", name == "firstAnswer", name == "tpot", name == "e2e":
					list = append(list, loadgen.Bound{Metric: name, Percentile: p, Max: b.Limit})
				}
			}
		}
	}
	return list
}

// before finds what cannot work before the load is put on: a model that is not
// served, and a largest request that the engine refuses.
func (n native) before(ctx context.Context, t experiment.Target, traffic experiment.Traffic, load loadgen.Config) error {
	if traffic.Warm {
		return nil // it was asked before
	}
	if err := n.checkModel(ctx, t); err != nil {
		return err
	}
	err := loadgen.Probe(ctx, load)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, loadgen.ErrConfig):
		return configError(err)
	case err != nil:
		fmt.Fprintf(traffic.Log, "the probe with the largest request failed; the load will tell: %v\n", err)
	}
	return nil
}

func configError(err error) error {
	return &experiment.Failure{Cause: experiment.Cause{Class: experiment.ClassConfig, Message: err.Error()}}
}

func (n native) scraper(t experiment.Target) scraper {
	return scraper{client: n.client(), url: t.BaseURL + "/metrics", apiKey: n.apiKey}
}

// keepRecords writes the raw records where that is wanted.
func (n native) keepRecords(traffic experiment.Traffic, r *loadgen.Result) (err error) {
	if !n.rawRecords || traffic.Requests == nil {
		return nil
	}
	file, err := traffic.Requests()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return loadgen.WriteRecords(file, r)
}

// metrics gives a level's summary the experiment's form.
func metrics(r *loadgen.Result, s loadgen.Summary) (*experiment.Metrics, error) {
	if s.InvalidLoad {
		return nil, &experiment.Failure{Cause: experiment.Cause{Class: "invalid_load", Message: fmt.Sprintf(
			"%d of %d answers were shorter than asked for although ignore_eos was set, so trials cannot be compared; set evaluator.config.allowShortOutput: true where that is the workload", s.Short, s.OK)}}
	}
	m := &experiment.Metrics{
		TTFT: distribution(s.TTFT), TPOT: distribution(s.TPOT), ITL: distribution(s.ITL), E2E: distribution(s.E2E),
		FirstAnswer: distribution(s.FirstAnswer), SendDelay: distribution(s.SendDelay),
		OutputThroughput: s.OutputTokensPerSecond, InputThroughput: s.InputTokensPerSecond,
		TotalThroughput: s.TotalTokensPerSecond, RequestsPerSecond: s.RequestsPerSecond,
		ErrorRate: s.ErrorRate, Goodput: s.Goodput, GoodRequestsPerSecond: s.GoodRequestsPerSecond,
		Concurrency: r.Concurrency, Rate: r.Rate, AchievedConcurrency: s.AchievedConcurrency,
		Requests: experiment.Requests{Sent: s.Sent, OK: s.OK, Failed: s.Failed, Short: s.Short, Incomplete: s.Incomplete},
		Partial:  r.Stopped, Warnings: s.Warnings,
	}
	if s.Window != nil {
		m.Seconds = *s.Window
	}
	m.Margins = margins(s)
	for category, n := range s.Categories {
		if m.Requests.Failures == nil {
			m.Requests.Failures = map[string]int{}
		}
		m.Requests.Failures[string(category)] = n
	}
	return m, nil
}

// margins gives those of a summary the names of the metrics: they are the metrics
// of a Metrics that holds margins.
func margins(s loadgen.Summary) map[string]float64 {
	m := s.Margins
	of := func(rate *float64, relative float64) *float64 {
		if rate == nil {
			return nil
		}
		return new(*rate * relative)
	}
	held := &experiment.Metrics{
		TTFT: distribution(m.TTFT), FirstAnswer: distribution(m.FirstAnswer), TPOT: distribution(m.TPOT), E2E: distribution(m.E2E),
		OutputThroughput: of(s.OutputTokensPerSecond, m.Output), InputThroughput: of(s.InputTokensPerSecond, m.Input),
		TotalThroughput: of(s.TotalTokensPerSecond, m.Total), RequestsPerSecond: of(s.RequestsPerSecond, m.Requests),
		GoodRequestsPerSecond: of(s.GoodRequestsPerSecond, m.GoodRequests), Goodput: &m.Goodput, ErrorRate: &m.ErrorRate,
	}
	list := map[string]float64{}
	for _, name := range experiment.MetricNames() {
		if v := held.Value(name); v != nil && *v > 0 {
			list[name] = *v
		}
	}
	return list
}

func distribution(d loadgen.Distribution) experiment.Distribution {
	return experiment.Distribution{Mean: d.Mean, P50: d.P50, P90: d.P90, P95: d.P95, P99: d.P99, N: d.N}
}
