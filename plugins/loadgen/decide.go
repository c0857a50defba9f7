// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// ErrDecided means that a level was ended because its verdict was certain.
var ErrDecided = errors.New("decided early")

// Bound is an upper limit of a service-level agreement.
type Bound struct {
	// Metric is ttft, firstAnswer, tpot or e2e, with Max in milliseconds, or errorRate, with Max from 0 to 1.
	Metric string
	// Percentile is from 0.5 to 0.99; 0 is the mean. It does not matter for errorRate.
	Percentile float64
	Max        float64
}

func (b Bound) String() string {
	switch {
	case b.Metric == "errorRate":
		return fmt.Sprintf("errorRate ≤ %g", b.Max)
	case b.Percentile == 0:
		return fmt.Sprintf("%s mean ≤ %g ms", b.Metric, b.Max)
	default:
		return fmt.Sprintf("%s p%g ≤ %g ms", b.Metric, b.Percentile*100, b.Max)
	}
}

func (b Bound) validate() error {
	switch {
	case !(b.Max >= 0) || math.IsInf(b.Max, 0):
		return fmt.Errorf("bound of %s: the limit must be a number of at least 0, is %g", b.Metric, b.Max)
	case b.Metric == "errorRate":
		return nil
	case b.Metric != "ttft" && b.Metric != "firstAnswer" && b.Metric != "tpot" && b.Metric != "e2e":
		return fmt.Errorf("bound of %q: must be of ttft, firstAnswer, tpot, e2e or errorRate", b.Metric)
	case b.Percentile != 0 && !(b.Percentile >= 0.5 && b.Percentile < 1):
		return fmt.Errorf("bound of %s: the percentile must be from 0.5 to below 1, or 0 for the mean, is %g", b.Metric, b.Percentile)
	}
	return nil
}

// value is what the bound limits of a request that succeeded, in ms; false: it has none. With chunks, as in
// Config.AllowChunkCount, those count where the server reports no tokens. It has a value exactly where
// Summarize has one: a decision that overlooked some would not be one about the same sample.
func (b Bound) value(rec *Record, chunks bool) (float64, bool) {
	var d time.Duration
	switch b.Metric {
	case "ttft":
		d = rec.TTFT
	case "firstAnswer":
		d = rec.FirstAnswer
	case "e2e":
		d = rec.E2E
	case "tpot":
		d, ok := rec.TPOT()
		return millis(d), ok && rec.knowsTokens(chunks)
	}
	return millis(d), d > 0
}

// perRequest tells whether the bound limits single requests, too: a percentile of a latency does.
func (b Bound) perRequest() bool { return b.Metric != "errorRate" && b.Percentile > 0 }

// keeps tells whether a request that succeeded is within every per-request bound. A value that is missing,
// such as the TPOT of a single token, breaks none.
func keeps(bounds []Bound, rec *Record, chunks bool) bool {
	for _, b := range bounds {
		if v, ok := b.value(rec, chunks); b.perRequest() && ok && v > b.Max {
			return false
		}
	}
	return true
}

// decider knows when no outcome of the requests to come can make a level keep its bounds. planned is the
// largest number of requests that can count; while it is not known, nothing is certain.
type decider struct {
	planned int
	bounds  []Bound
	chunks  bool // Config.AllowChunkCount
	counts  []tallyOf
	ended   int // ok, failed or incomplete
	failed  int
}

// tallyOf counts the successes that have a bound's metric.
type tallyOf struct {
	within, beyond int
	sum            float64
}

func newDecider(planned int, bounds []Bound, chunks bool) *decider {
	return &decider{planned: planned, bounds: bounds, chunks: chunks, counts: make([]tallyOf, len(bounds))}
}

// add takes a request that has ended and counts.
func (d *decider) add(rec *Record) {
	d.ended++
	switch {
	case rec.OK():
	case rec.Category == Incomplete:
		return
	default:
		d.failed++
		return
	}
	for i, b := range d.bounds {
		v, ok := b.value(rec, d.chunks)
		if !ok {
			continue
		}
		c := &d.counts[i]
		c.sum += v
		if v > b.Max {
			c.beyond++
		} else {
			c.within++
		}
	}
}

// late counts the requests in flight that can only end beyond a bound, or fail.
type late func(b Bound) int

// rounding is far more than a sum can be off by when it is added up in another order.
const rounding = 1e-9

// decided names the bound that cannot be kept any more, or "". A mean cannot, once the sum so far is too
// large for the largest sample there can be: what is to come adds nothing below zero, and a request that
// fails only makes the sample smaller. An error rate cannot, once the failures so far are too many of all that
// is planned: what was failed stays so, and no more than is planned is ever sent.
func (d *decider) decided(inFlight late) string {
	if d.planned == 0 {
		return ""
	}
	for i, b := range d.bounds {
		c := d.counts[i]
		switch {
		case b.Metric == "errorRate":
			if d.tooManyFail(b, d.failed) {
				return fmt.Sprintf("%d of %d requests failed, so %s cannot be kept", d.failed, d.planned, b)
			}
		case b.Percentile == 0:
			if c.sum > b.Max*float64(c.within+c.beyond+d.left())*(1+rounding) {
				return fmt.Sprintf("the sum over %d requests is so large that %s cannot be kept with %d", c.within+c.beyond, b, d.planned)
			}
		case missed(b.Percentile, c.within+d.left(), c.beyond):
			return fmt.Sprintf("%d of %d requests broke %s, so it cannot be kept", c.beyond, d.planned, b)
		case d.doomed(b, c, inFlight(b)):
			return fmt.Sprintf("%d of %d requests broke %s and %d more have been running for longer, so it cannot be kept", c.beyond, d.planned, b, inFlight(b))
		}
	}
	return ""
}

// left is how many requests can still succeed.
func (d *decider) left() int { return max(0, d.planned-d.ended) }

func (d *decider) tooManyFail(b Bound, failed int) bool {
	return float64(failed)/float64(d.planned) > b.Max
}

// missed tells whether the percentile p of a sample is beyond the limit for certain when within of its
// values are within it and beyond are not. By linear interpolation it lies between the values number
// ⌊h⌋ and ⌊h⌋+1 in ascending order, counted from 0, with h = (n−1)·p; if not even the lower one is among
// those within, it is beyond.
//
// More values within the limit only help, and fewer than could still come make it worse: the difference
// within − ⌊h⌋ does not shrink when one more comes, because p < 1. So it is enough to look at the case
// that every request to come succeeds within the limit.
func missed(p float64, within, beyond int) bool {
	if beyond == 0 {
		return false
	}
	h := float64(within+beyond-1) * p
	return within <= int(h)
}

// doomed is missed with requests in flight that are late already. Each of them will either be one more
// beyond the limit, or fail; whichever it is for each of them, the bound or that on errors is broken.
func (d *decider) doomed(b Bound, c tallyOf, late int) bool {
	late = min(late, d.left())
	if late == 0 {
		return false
	}
	for succeed := 0; succeed <= late; succeed++ {
		if missed(b.Percentile, c.within+d.left()-late, c.beyond+succeed) {
			continue
		}
		fails := false
		for _, e := range d.bounds {
			fails = fails || e.Metric == "errorRate" && d.tooManyFail(e, d.failed+late-succeed)
		}
		if !fails {
			return false
		}
	}
	return true
}
