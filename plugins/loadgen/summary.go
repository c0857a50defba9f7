// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"
)

// Summary is what a level's measured requests come to. A number that could not be measured is nil.
// Latencies come from the requests that succeeded, and from no others.
type Summary struct {
	// Sent = OK + Failed + Incomplete. Cancelled requests are in none of them.
	Sent       int `json:"sent"`
	OK         int `json:"ok"`
	Failed     int `json:"failed"`
	Incomplete int `json:"incomplete"`
	Cancelled  int `json:"cancelled"`
	// Short counts the successes that ended early although Config.IgnoreEOS was set.
	Short int `json:"short"`
	// Buffered counts the successes that came almost at once at their end.
	Buffered int `json:"buffered,omitzero"`
	// Categories counts the failed and incomplete requests.
	Categories map[Category]int `json:"categories,omitzero"`
	// ErrorRate is Failed/Sent.
	ErrorRate *float64 `json:"errorRate"`

	// TTFT, FirstAnswer, TPOT, ITL and E2E are in milliseconds.
	TTFT        Distribution `json:"ttftMs"`
	FirstAnswer Distribution `json:"firstAnswerMs"`
	TPOT        Distribution `json:"tpotMs"`
	// ITL is the time between tokens, one value for each token: a gap between two chunks divided by the
	// tokens of the later one. Where the server does not tell these, every chunk of an answer after the
	// first is taken to hold equally many.
	ITL Distribution `json:"itlMs"`
	E2E Distribution `json:"e2eMs"`
	// SendDelay is Sent − Scheduled of all requests that were sent, of an open loop only.
	SendDelay Distribution `json:"sendDelayMs,omitzero"`

	// Window is the time in seconds from the first request to the last token of a success. The rates
	// are what succeeded in it, divided by it.
	Window                *float64 `json:"windowSeconds"`
	RequestsPerSecond     *float64 `json:"requestsPerSecond"`
	OutputTokensPerSecond *float64 `json:"outputTokensPerSecond"`
	InputTokensPerSecond  *float64 `json:"inputTokensPerSecond"`
	TotalTokensPerSecond  *float64 `json:"totalTokensPerSecond"`

	// Goodput is the share, from 0 to 1, of the requests sent that succeeded and kept every bound on a
	// percentile of a latency as a bound on their own; GoodRequestsPerSecond is their rate. Nil where there is
	// no such bound.
	Goodput               *float64 `json:"goodput"`
	GoodRequestsPerSecond *float64 `json:"goodRequestsPerSecond"`

	// Margins say how exact the numbers above are.
	Margins Margins `json:"-"`

	// AchievedConcurrency is the mean number of requests in flight from the first request to the end of
	// the last one; PeakConcurrency the largest.
	AchievedConcurrency *float64 `json:"achievedConcurrency"`
	PeakConcurrency     int      `json:"peakConcurrency"`
	// InvalidLoad: more than 1 % of the successes are Short, so levels cannot be compared.
	InvalidLoad bool `json:"invalidLoad,omitzero"`
	// Partial: the level ended before all of the load was put on.
	Partial  bool     `json:"partial,omitzero"`
	Warnings []string `json:"warnings,omitzero"`
}

// Distribution describes N values. Percentiles are by linear interpolation between the two nearest
// values (Hyndman and Fan, type 7). All are nil where N is 0.
type Distribution struct {
	N    int      `json:"n"`
	Mean *float64 `json:"mean"`
	P50  *float64 `json:"p50"`
	P90  *float64 `json:"p90"`
	P95  *float64 `json:"p95"`
	P99  *float64 `json:"p99"`
}

// Summarize computes the summary of a level.
func Summarize(r *Result) Summary {
	s := Summary{Warnings: slices.Clone(r.Warnings), Partial: r.Stopped != ""}
	s.countRequests(r.Records)
	s.latencies(r)
	s.rates(r)
	s.goodput(r)
	s.Margins.rates(r)
	s.Margins.shares(&s)
	s.concurrency(r.Records)
	s.warn(r)
	return s
}

// HeldBack: most answers did not come as a stream.
func (s *Summary) HeldBack() bool { return s.Buffered*2 > s.OK }

func (s *Summary) countRequests(records []Record) {
	for i := range records {
		rec := &records[i]
		switch rec.Category {
		case "":
			s.OK++
			if rec.Short {
				s.Short++
			}
			if rec.Buffered {
				s.Buffered++
			}
			continue
		case Cancelled:
			s.Cancelled++
			continue
		case Incomplete:
			s.Incomplete++
		default:
			s.Failed++
		}
		if s.Categories == nil {
			s.Categories = map[Category]int{}
		}
		s.Categories[rec.Category]++
	}
	s.Sent = s.OK + s.Failed + s.Incomplete
	s.ErrorRate = ratio(float64(s.Failed), float64(s.Sent))
	s.InvalidLoad = s.Short*100 > s.OK
}

func (s *Summary) latencies(r *Result) {
	var ttft, first, tpot, e2e, delay []float64
	for i := range r.Records {
		rec := &r.Records[i]
		if r.Open && rec.Category != Cancelled {
			delay = append(delay, millis(rec.Sent-rec.Scheduled))
		}
		if !rec.OK() {
			continue
		}
		ttft = appendMillis(ttft, rec.TTFT)
		first = appendMillis(first, rec.FirstAnswer)
		e2e = appendMillis(e2e, rec.E2E)
		if d, ok := rec.TPOT(); ok && r.knows(rec) {
			tpot = append(tpot, millis(d))
		}
	}
	m := &s.Margins
	s.TTFT, m.TTFT = estimate(ttft)
	s.FirstAnswer, m.FirstAnswer = estimate(first)
	s.TPOT, m.TPOT = estimate(tpot)
	s.E2E, m.E2E = estimate(e2e)
	s.SendDelay = describe(delay)
	s.ITL = describeGaps(r.Gaps)
}

// knows reports whether the request's number of output tokens may be used.
func (r *Result) knows(rec *Record) bool { return rec.knowsTokens(r.AllowChunkCount) }

func (s *Summary) rates(r *Result) {
	first, last := time.Duration(math.MaxInt64), time.Duration(math.MinInt64)
	var done work
	for i := range r.Records {
		rec := &r.Records[i]
		zero := rec.Sent
		if r.Open {
			zero = rec.Scheduled
		}
		if rec.Category != Cancelled {
			first = min(first, zero)
		}
		if !rec.OK() {
			continue
		}
		last = max(last, zero+rec.E2E)
		done.add(r, rec)
	}
	if last <= first {
		return
	}
	window := (last - first).Seconds()
	s.Window = &window
	s.RequestsPerSecond = ratio(done.requests, window)
	if done.output > 0 {
		s.OutputTokensPerSecond = ratio(done.output, window)
	}
	if done.input > 0 {
		s.InputTokensPerSecond = ratio(done.input, window)
	}
	if done.input > 0 && done.output > 0 {
		s.TotalTokensPerSecond = ratio(done.input+done.output, window)
	}
}

func (s *Summary) goodput(r *Result) {
	if !slices.ContainsFunc(r.Bounds, Bound.perRequest) {
		return
	}
	n := 0
	for i := range r.Records {
		if rec := &r.Records[i]; rec.OK() && keeps(r.Bounds, rec, r.AllowChunkCount) {
			n++
		}
	}
	s.Goodput = ratio(float64(n), float64(s.Sent))
	if s.Window != nil {
		s.GoodRequestsPerSecond = ratio(float64(n), *s.Window)
	}
}

func (s *Summary) concurrency(records []Record) {
	type change struct {
		at time.Duration
		by int
	}
	var changes []change
	var busy time.Duration
	for i := range records {
		rec := &records[i]
		changes = append(changes, change{rec.Sent, 1}, change{rec.Done, -1})
		busy += rec.Done - rec.Sent
	}
	if len(changes) == 0 {
		return
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	inFlight := 0
	for _, c := range changes {
		inFlight += c.by
		s.PeakConcurrency = max(s.PeakConcurrency, inFlight)
	}
	s.AchievedConcurrency = ratio(busy.Seconds(), (changes[len(changes)-1].at - changes[0].at).Seconds())
}

// ratio is a/b, or nil where that is not a number.
func ratio(a, b float64) *float64 {
	if b <= 0 {
		return nil
	}
	return new(a / b)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// appendMillis leaves out what was not measured.
func appendMillis(to []float64, d time.Duration) []float64 {
	if d <= 0 {
		return to
	}
	return append(to, millis(d))
}

func describe(values []float64) Distribution {
	slices.Sort(values)
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return distribution(len(values), sum, func(i int) float64 { return values[i] })
}

func describeGaps(gaps []Gap) Distribution {
	n, sum := 0, 0.0
	upTo := make([]int, len(gaps)) // tokens in gaps[:i+1]
	for i, g := range gaps {
		n += g.Tokens
		sum += float64(g.Tokens) * millis(g.Duration)
		upTo[i] = n
	}
	return distribution(n, sum, func(i int) float64 {
		return millis(gaps[sort.SearchInts(upTo, i+1)].Duration)
	})
}

// distribution describes n values in ascending order.
func distribution(n int, sum float64, at func(int) float64) Distribution {
	if n == 0 {
		return Distribution{}
	}
	quantile := func(p float64) *float64 {
		h := float64(n-1) * p
		low := int(h)
		v := at(low)
		if low+1 < n {
			v += (h - float64(low)) * (at(low+1) - v)
		}
		return &v
	}
	return Distribution{
		N: n, Mean: new(sum / float64(n)),
		P50: quantile(0.50), P90: quantile(0.90), P95: quantile(0.95), P99: quantile(0.99),
	}
}
