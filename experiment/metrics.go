// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"maps"
	"math"
	"slices"
)

// Metrics are what one load measured. A number that could not be measured is
// nil, never 0.
type Metrics struct {
	// Latencies in milliseconds over the successful requests of the measured window.
	TTFT Distribution `json:"ttft"` // time to first token
	TPOT Distribution `json:"tpot"` // time per output token after the first: (E2E − TTFT) / (tokens − tokens of the first chunk)
	ITL  Distribution `json:"itl"`  // inter-token latency: gaps between token-bearing chunks, over all requests
	E2E  Distribution `json:"e2e"`  // send to last token
	// FirstAnswer is the time to the first token that is no reasoning.
	FirstAnswer Distribution `json:"firstAnswer"`
	// SendDelay is how late requests were sent, against their schedule, in an open
	// loop: a large one means that the client could not keep up.
	SendDelay Distribution `json:"sendDelay,omitzero"`

	OutputThroughput  *float64 `json:"outputThroughput"`  // output tokens/s
	InputThroughput   *float64 `json:"inputThroughput"`   // prompt tokens/s
	TotalThroughput   *float64 `json:"totalThroughput"`   // both
	RequestsPerSecond *float64 `json:"requestsPerSecond"` // successful requests/s
	ErrorRate         *float64 `json:"errorRate"`         // failed / sent, 0 to 1

	// Goodput is the share, 0 to 1, of the requests sent that succeeded and kept
	// every latency bound of the SLA; GoodRequestsPerSecond is their rate.
	Goodput               *float64 `json:"goodput,omitempty"`
	GoodRequestsPerSecond *float64 `json:"goodRequestsPerSecond,omitempty"`

	Concurrency         int      `json:"concurrency,omitempty"` // requests in flight that were asked for
	Rate                float64  `json:"rate,omitempty"`        // requests/s that were asked for, in an open loop
	AchievedConcurrency *float64 `json:"achievedConcurrency,omitempty"`
	Seconds             float64  `json:"seconds"` // length of the measured window
	Requests            Requests `json:"requests"`
	// Partial says why the load ended before all of it was put on; empty: it did
	// not. What is partial never meets an SLA.
	Partial string `json:"partial,omitempty"`
	// Engine is what the engine said of itself; nil when it does not.
	Engine *EngineMetrics `json:"engine,omitempty"`
	// Margins say, by the name of a metric, how far off its value may be because only
	// so many requests were measured: half the width of a 95 % confidence interval,
	// in the metric's unit. A metric without one may be exact or not: it is not known.
	Margins map[string]float64 `json:"margins,omitempty"`
	// Warnings say why a number deserves less trust, one sentence each.
	Warnings []string `json:"warnings,omitempty"`
}

// Requests counts the requests of the measured window.
type Requests struct {
	Sent       int            `json:"sent"`
	OK         int            `json:"ok"`
	Failed     int            `json:"failed"`
	Short      int            `json:"short,omitempty"`      // ok, but fewer tokens than asked for
	Incomplete int            `json:"incomplete,omitempty"` // cut at the end of the window, not counted as failed
	Failures   map[string]int `json:"failures,omitempty"`   // failed, by category
}

// EngineMetrics are read from the engine's own /metrics before, during and
// after the load. A number that the engine does not report is nil.
type EngineMetrics struct {
	Samples int `json:"samples"` // during the load
	// Of the samples: the share of the KV cache in use, 0 to 1, and the requests
	// that run and that wait.
	KVCacheUse Range `json:"kvCacheUse"`
	Running    Range `json:"running"`
	Waiting    Range `json:"waiting"`
	// Preemptions is how many requests were preempted under the load.
	Preemptions *float64 `json:"preemptions"`
	// PrefixCacheHitRate is the share of prompt tokens found in the prefix cache
	// under the load, 0 to 1.
	PrefixCacheHitRate *float64 `json:"prefixCacheHitRate"`
	// QueueTime is the mean time a request waited in the engine, in milliseconds.
	QueueTime *float64 `json:"queueTimeMs"`
}

// Range is the mean and the largest of some samples.
type Range struct {
	Mean *float64 `json:"mean"`
	Max  *float64 `json:"max"`
}

// Distribution summarises a sample: percentiles by linear interpolation
// (Hyndman and Fan's type 7, numpy's default).
type Distribution struct {
	Mean *float64 `json:"mean"`
	P50  *float64 `json:"p50"`
	P90  *float64 `json:"p90"`
	P95  *float64 `json:"p95"`
	P99  *float64 `json:"p99"`
	N    int      `json:"n"` // sample size
}

// Metric is one named number of Metrics.
type Metric struct {
	Unit   string // "ms", "tokens/s", "requests/s" or "" for a ratio
	Higher bool   // more is better
	Get    func(*Metrics) *float64
}

// metrics is every metric by the name used in files, tables and messages.
var metrics = metricTable()

func metricTable() map[string]Metric {
	t := map[string]Metric{
		"outputThroughput":  {"tokens/s", true, func(m *Metrics) *float64 { return m.OutputThroughput }},
		"inputThroughput":   {"tokens/s", true, func(m *Metrics) *float64 { return m.InputThroughput }},
		"totalThroughput":   {"tokens/s", true, func(m *Metrics) *float64 { return m.TotalThroughput }},
		"requestsPerSecond": {"requests/s", true, func(m *Metrics) *float64 { return m.RequestsPerSecond }},
		"errorRate":         {"", false, func(m *Metrics) *float64 { return m.ErrorRate }},

		"goodput":               {"", true, func(m *Metrics) *float64 { return m.Goodput }},
		"goodRequestsPerSecond": {"requests/s", true, func(m *Metrics) *float64 { return m.GoodRequestsPerSecond }},
		"rate":                  {"requests/s", true, func(m *Metrics) *float64 { return positive(m.Rate) }},
		"concurrency":           {"", true, func(m *Metrics) *float64 { return positive(float64(m.Concurrency)) }},
	}
	latencies := map[string]func(*Metrics) Distribution{
		"ttft": func(m *Metrics) Distribution { return m.TTFT },
		"tpot": func(m *Metrics) Distribution { return m.TPOT },
		"itl":  func(m *Metrics) Distribution { return m.ITL },
		"e2e":  func(m *Metrics) Distribution { return m.E2E },

		"firstAnswer": func(m *Metrics) Distribution { return m.FirstAnswer },
		"sendDelay":   func(m *Metrics) Distribution { return m.SendDelay },
	}
	points := map[string]func(Distribution) *float64{
		"Mean": func(d Distribution) *float64 { return d.Mean },
		"P50":  func(d Distribution) *float64 { return d.P50 },
		"P90":  func(d Distribution) *float64 { return d.P90 },
		"P95":  func(d Distribution) *float64 { return d.P95 },
		"P99":  func(d Distribution) *float64 { return d.P99 },
	}
	for latency, of := range latencies {
		for point, pick := range points {
			t[latency+point] = Metric{"ms", false, func(m *Metrics) *float64 { return pick(of(m)) }}
		}
	}
	return t
}

func positive(f float64) *float64 {
	if f <= 0 {
		return nil
	}
	return &f
}

// MetricNames lists the names of all metrics, sorted.
func MetricNames() []string { return slices.Sorted(maps.Keys(metrics)) }

// LookupMetric finds a metric by name.
func LookupMetric(name string) (Metric, bool) {
	m, ok := metrics[name]
	return m, ok
}

// Value reads a metric by name; nil when it was not measured, is not a usable
// number (NaN, infinite, negative) or m itself is nil.
func (m *Metrics) Value(name string) *float64 {
	metric, ok := metrics[name]
	if m == nil || !ok {
		return nil
	}
	v := metric.Get(m)
	if v == nil || !usable(*v) {
		return nil
	}
	return v
}

// Margin is that of a metric; nil when it is not known.
func (m *Metrics) Margin(name string) *float64 {
	if m == nil {
		return nil
	}
	return positive(m.Margins[name])
}

func usable(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) && v >= 0 }

// Number is f as a metric, or nil when f is NaN, infinite or negative.
func Number(f float64) *float64 {
	if !usable(f) {
		return nil
	}
	return &f
}

// clean replaces every number that JSON cannot hold or that no measurement can
// give by nil and says so in Warnings, so that one bad figure never costs the record.
func (m *Metrics) clean() {
	for _, name := range MetricNames() {
		if v := metrics[name].Get(m); v != nil && !usable(*v) {
			m.Warnings = append(m.Warnings, name+" was not a usable number ("+Float(*v).String()+") and is treated as not measured")
		}
	}
	for _, p := range m.numbers() {
		if *p != nil && !usable(**p) {
			*p = nil
		}
	}
	if !usable(m.Seconds) {
		m.Seconds = 0
	}
	maps.DeleteFunc(m.Margins, func(_ string, v float64) bool { return !usable(v) })
}

func (m *Metrics) numbers() []**float64 {
	all := []**float64{&m.OutputThroughput, &m.InputThroughput, &m.TotalThroughput, &m.RequestsPerSecond, &m.ErrorRate,
		&m.Goodput, &m.GoodRequestsPerSecond, &m.AchievedConcurrency}
	if e := m.Engine; e != nil {
		all = append(all, &e.Preemptions, &e.PrefixCacheHitRate, &e.QueueTime)
		for _, r := range []*Range{&e.KVCacheUse, &e.Running, &e.Waiting} {
			all = append(all, &r.Mean, &r.Max)
		}
	}
	for _, d := range []*Distribution{&m.TTFT, &m.TPOT, &m.ITL, &m.E2E, &m.FirstAnswer, &m.SendDelay} {
		all = append(all, &d.Mean, &d.P50, &d.P90, &d.P95, &d.P99)
	}
	return all
}
