// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"math"
	"slices"
)

// Margins say how far off the numbers of a Summary may be because only so many requests were measured: half
// the width of a 95 % confidence interval. What differs from one run to the next, such as the node or its
// clock rate, is not in them. What cannot be told from so few requests is nil, or 0 for a rate.
type Margins struct {
	// TTFT, FirstAnswer, TPOT and E2E are in milliseconds.
	TTFT, FirstAnswer, TPOT, E2E Distribution
	// Output, Input, Total, Requests and GoodRequests are relative to the rates of these names: 0.01 is 1 %.
	Output, Input, Total, Requests, GoodRequests float64
	// Goodput and ErrorRate are shares, 0 to 1.
	Goodput, ErrorRate float64
}

// batches is the number of parts that a level is divided into: requests that follow each other depend on
// each other, batches of them hardly do, so the spread of their means tells how exact the mean of all is
// (method of batch means; see Law, Simulation Modeling and Analysis, chapter 9).
const batches = 10

const (
	studentT = 2.262 // 97.5 % quantile of Student's t with batches−1 degrees of freedom
	normalZ  = 1.960 // the same of the normal distribution
)

// shares are the margins of what is counted.
func (m *Margins) shares(s *Summary) {
	share := func(p *float64) float64 {
		if p == nil {
			return 0
		}
		return normalZ * math.Sqrt(*p*(1-*p)/float64(s.Sent))
	}
	m.Goodput, m.ErrorRate = share(s.Goodput), share(s.ErrorRate)
	if m.Requests > 0 && s.Goodput != nil && *s.Goodput > 0 {
		m.GoodRequests = math.Hypot(m.Requests, m.Goodput / *s.Goodput)
	}
}

// estimate describes a latency, of values in the order of sending, which it sorts, and says how exact that is.
// The margin of the mean is by batch means. That of a percentile is the distance to the values whose ranks bound it
// with 95 % (binomial distribution, normal approximation), which lie further apart by the square root of how much
// more the means of batches spread than independent values would. Where the upper rank is beyond the sample,
// nothing in it bounds the percentile, and the whole range is taken.
func estimate(values []float64) (d, margin Distribution) {
	n := len(values)
	if n < 2*batches {
		return describe(values), Distribution{}
	}
	means := make([]float64, batches)
	for i := range means {
		means[i], _ = meanAndDeviation(values[i*n/batches : (i+1)*n/batches])
	}
	_, spread := meanAndDeviation(means)
	_, single := meanAndDeviation(values)
	dependence := 1.0
	if single > 0 {
		dependence = max(1, spread*math.Sqrt(float64(n)/batches)/single)
	}
	d = describe(values)
	percentile := func(p float64, at *float64) *float64 {
		h := float64(n-1) * p
		reach := normalZ * math.Sqrt(float64(n)*p*(1-p)) * dependence
		if h+reach > float64(n-1) {
			return new(values[n-1] - values[0])
		}
		return new(max(values[int(math.Ceil(h+reach))]-*at, *at-values[int(max(h-reach, 0))]))
	}
	return d, Distribution{
		N: n, Mean: new(studentT * spread / math.Sqrt(batches)),
		P50: percentile(0.50, d.P50), P90: percentile(0.90, d.P90), P95: percentile(0.95, d.P95), P99: percentile(0.99, d.P99),
	}
}

// meanAndDeviation are the mean and the standard deviation of a sample.
func meanAndDeviation(values []float64) (mean, deviation float64) {
	n := float64(len(values))
	for _, v := range values {
		mean += v / n
	}
	for _, v := range values {
		deviation += (v - mean) * (v - mean) / (n - 1)
	}
	return mean, math.Sqrt(deviation)
}

// work is what was done in a batch, and what it took.
type work struct{ requests, output, input, seconds float64 }

// rates are the margins of throughputs. In a closed loop the same number is always in flight, so that what
// is done per second follows from what is done in the requests' own time (Little's law); that is compared
// between batches of requests. At a rate, it is compared between equal parts of the schedule. The rates of
// a trace are the trace's own.
func (m *Margins) rates(r *Result) {
	var parts []work
	switch {
	case r.Open && r.Rate > 0:
		parts = scheduled(r)
	case !r.Open:
		parts = sequential(r)
	}
	relative := func(done func(work) float64) float64 {
		values := make([]float64, 0, batches)
		for _, p := range parts {
			if p.seconds > 0 {
				values = append(values, done(p)/p.seconds)
			}
		}
		if mean, spread := meanAndDeviation(values); len(values) == batches && mean > 0 {
			if share := studentT * spread / math.Sqrt(batches) / mean; share > rounding {
				return share
			}
		}
		return 0 // also where all are equal, as of a schedule without chance
	}
	m.Requests = relative(func(w work) float64 { return w.requests })
	m.Output = relative(func(w work) float64 { return w.output })
	m.Input = relative(func(w work) float64 { return w.input })
	m.Total = relative(func(w work) float64 { return w.output + w.input })
}

func (w *work) add(r *Result, rec *Record) {
	w.requests++
	w.input += float64(rec.PromptTokens)
	if r.knows(rec) {
		w.output += float64(rec.OutputTokens)
	}
}

// sequential divides the requests that succeeded into batches in the order of sending.
func sequential(r *Result) []work {
	var ok []*Record
	for i := range r.Records {
		if rec := &r.Records[i]; rec.OK() {
			ok = append(ok, rec)
		}
	}
	if len(ok) < 2*batches {
		return nil
	}
	parts := make([]work, batches)
	for i := range parts {
		for _, rec := range ok[i*len(ok)/batches : (i+1)*len(ok)/batches] {
			parts[i].add(r, rec)
			parts[i].seconds += rec.E2E.Seconds()
		}
	}
	return parts
}

// scheduled divides the time in which requests were due, after the ramp, into equal parts.
func scheduled(r *Result) []work {
	if len(r.Records) == 0 {
		return nil
	}
	first, last := r.Records[0].Scheduled+r.RampUp, r.Records[len(r.Records)-1].Scheduled
	steady := slices.IndexFunc(r.Records, func(rec Record) bool { return rec.Scheduled >= first })
	if steady < 0 || len(r.Records)-steady < 2*batches || last <= first {
		return nil
	}
	parts := make([]work, batches)
	for i := range parts {
		parts[i].seconds = (last - first).Seconds() / batches
	}
	for i := steady; i < len(r.Records); i++ {
		if rec := &r.Records[i]; rec.OK() {
			place := float64(rec.Scheduled-first) / float64(last-first) * batches
			parts[max(0, min(int(place), batches-1))].add(r, rec)
		}
	}
	return parts
}
