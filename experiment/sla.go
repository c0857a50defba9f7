// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"fmt"
	"math"
)

// Bound is one line of a service-level agreement: a limit on a named metric.
type Bound struct {
	Metric string
	Max    bool // Limit is an upper bound; otherwise a lower one
	Limit  float64
}

// Key is the bound's name in the experiment file, such as ttftP99MaxMs.
func (b Bound) Key() string {
	side, unit := "Min", ""
	if b.Max {
		side = "Max"
	}
	if metrics[b.Metric].Unit == "ms" {
		unit = "Ms"
	}
	return b.Metric + side + unit
}

// Latency tells whether the bound limits a latency from above.
func (b Bound) Latency() bool { return b.Max && metrics[b.Metric].Unit == "ms" }

// Violation is a bound that a trial did not meet.
type Violation struct {
	Bound string   `json:"bound"` // the key in the file
	Limit float64  `json:"limit"`
	Value *float64 `json:"value"`            // nil: the metric is missing
	Why   string   `json:"reason,omitempty"` // metric_unavailable when there is no usable value
	// Excess is how far the value is beyond the limit, relative to it (0.1 is
	// 10 %); nil when the metric is missing.
	Excess *float64 `json:"excess"`
}

// String says which bound was missed and by how much.
func (v Violation) String() string {
	if v.Bound == partialLoad {
		return v.Why
	}
	if v.Value == nil {
		return fmt.Sprintf("%s %s: %s", v.Bound, Float(v.Limit), v.Why)
	}
	return fmt.Sprintf("%s %s: measured %s (%.1f %% beyond)", v.Bound, Float(v.Limit), Float(round(*v.Value, 4)), *v.Excess*100)
}

// MaxErrorRate is the error rate above which no trial is feasible, whatever the
// SLA allows: figures of the few requests that survived say nothing.
const MaxErrorRate = 0.5

// partialLoad is the bound, unwritten, that the load was put on in full.
const partialLoad = "partial"

// metricUnavailable is the reason of a violation without a usable value.
const metricUnavailable = "metric_unavailable"

// check returns the violation of the bound by m, or nil when it is met. A metric
// that is missing, NaN, infinite or negative does not meet a bound, nor does a
// latency of exactly 0: no request takes no time, so a 0 is a metric that was
// never filled in.
func (b Bound) check(m *Metrics) *Violation {
	v := m.Value(b.Metric)
	if v == nil || (b.Latency() && *v == 0) {
		return &Violation{Bound: b.Key(), Limit: b.Limit, Why: metricUnavailable}
	}
	if b.Metric == "errorRate" && b.Max {
		b.Limit = min(b.Limit, MaxErrorRate)
	}
	over := *v - b.Limit
	if !b.Max {
		over = -over
	}
	if over <= 0 {
		return nil
	}
	excess := over
	if b.Limit != 0 {
		excess = over / math.Abs(b.Limit)
	}
	return &Violation{Bound: b.Key(), Limit: b.Limit, Value: v, Excess: &excess}
}

// Violations lists the bounds that m does not meet, in the order of o.Bounds,
// after the fact that the load was not put on in full, where that is so.
// Metrics that are nil meet none.
func (o Objectives) Violations(m *Metrics) []Violation {
	var missed []Violation
	if m != nil && m.Partial != "" {
		missed = append(missed, Violation{Bound: partialLoad, Why: m.Partial})
	}
	for _, b := range o.Bounds {
		if v := b.check(m); v != nil {
			missed = append(missed, *v)
		}
	}
	return missed
}

// tied tells whether the difference of two scores is inside the noise: not larger
// than the margin of a difference of two independent measurements.
func (o Objectives) tied(a, b *Trial) bool {
	margin := math.Hypot(a.Metrics.Margins[o.Optimize], b.Metrics.Margins[o.Optimize])
	return math.Abs(*a.Score-*b.Score) <= margin
}

// Better tells whether score a beats score b for the metric to optimise.
func (o Objectives) Better(a, b float64) bool {
	if metrics[o.Optimize].Higher {
		return a > b
	}
	return a < b
}
