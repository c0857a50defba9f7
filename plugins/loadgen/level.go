// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrConfig means that the server refused the first request, so that no other could succeed: a wrong
// model name, a missing key, a prompt longer than the context.
var ErrConfig = errors.New("the server refuses the request")

// ErrStalled means that nothing arrived for Config.StallTimeout although requests were in flight.
var ErrStalled = errors.New("the server stalled")

// ErrConsecutiveFailures means that Config.MaxConsecutiveFailures requests in a row had failed.
var ErrConsecutiveFailures = errors.New("too many failures in a row")

// Result is everything that was measured in one level.
type Result struct {
	// Records are the measured requests and Warmup the ones before, both in order of Index.
	Records []Record `json:"records"`
	Warmup  []Record `json:"warmup"`
	// Gaps counts the times between tokens of the measured requests that succeeded, shortest first.
	Gaps []Gap `json:"gaps"`
	// Started is the zero of all times in Records; Elapsed is how long the level took, warm-up included.
	Started time.Time     `json:"started"`
	Elapsed time.Duration `json:"elapsedNs"`
	// Concurrency is the wanted number of requests in flight; 0 in an open loop.
	Concurrency int `json:"concurrency,omitzero"`
	// Open: the requests had a schedule, and latencies count from it. Rate is the wanted number per second.
	Open bool    `json:"open,omitzero"`
	Rate float64 `json:"rate,omitzero"`
	// RampUp is the time at the start in which the rate grew.
	RampUp time.Duration `json:"rampUpNs,omitzero"`
	// Bounds are Config.Bounds.
	Bounds []Bound `json:"bounds,omitzero"`
	// AllowChunkCount is Config.AllowChunkCount.
	AllowChunkCount bool `json:"allowChunkCount,omitzero"`
	// Stopped says why the level ended before its time; empty: it did not.
	Stopped string `json:"stopped,omitzero"`
	// Warnings are what should be known about the load that was put on.
	Warnings []string `json:"warnings,omitzero"`
}

// Gap is a time between two tokens, in whole microseconds, and how often it was seen.
type Gap struct {
	Duration time.Duration `json:"ns"`
	Tokens   int           `json:"tokens"`
}

// Run puts one level of load on a server: a warm-up, then the measured requests. It returns when
// all requests have ended. Failed requests are data, not errors. Where the level did not run
// as planned the error is ErrConfig, ErrConsecutiveFailures, ErrStalled, ErrDecided, or the cause of
// ctx; the result then holds what was measured until then. The result is nil only where the config is
// wrong or the prompts could not be calibrated.
func Run(ctx context.Context, c Config) (*Result, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	streams, err := c.streams()
	if err != nil {
		return nil, err
	}
	l, err := newLevel(c, streams)
	if err != nil {
		return nil, err
	}
	if c.Client == nil {
		defer l.client.CloseIdleConnections()
	}
	if c.API == Chat && c.Dataset == nil || c.Conversations != nil {
		if err := l.calibrate(ctx); err != nil {
			return nil, err
		}
	}
	err = l.run(ctx)
	return l.result(err), err
}

// mostReserved bounds the records that room is made for at once.
const mostReserved = 1 << 17

// maxStreams is how many requests an open loop keeps in flight at most. When it is reached, requests wait
// for one to end; a warning says so, and their send delay shows it.
const maxStreams = 8192

// noteBehind tells what an open loop could not send when it was due.
func (l *level) noteBehind(p *phase) {
	if p.crowded > 0 {
		l.notes = append(l.notes, fmt.Sprintf("streams: %d requests had to wait, because %d were in flight, the most at once that there can be", p.crowded, l.streams))
	}
	if millis(p.missed) > delayLimit {
		l.notes = append(l.notes, fmt.Sprintf("schedule: the requests due in the last %v of the duration were not sent", p.missed.Round(time.Millisecond)))
	}
}

// streams is how many connections there can be at once. An open loop makes do with the open files it gets.
func (c Config) streams() (int, error) {
	if !c.open() {
		return c.Concurrency, ensureFiles(c.Concurrency)
	}
	n := maxStreams
	if c.MaxRequests > 0 {
		n = min(n, c.MaxRequests+c.Warmup)
	}
	err := ensureFiles(n)
	for err != nil && n > 1 {
		n /= 2
		err = ensureFiles(n)
	}
	return n, err
}

// level is one run.
type level struct {
	Config
	caller
	url     string
	body    body
	started time.Time
	settled chan struct{} // closed when the first request has settled the dialect
	settle  func()        // closes settled
	cancel  context.CancelCauseFunc
	streams int          // most requests in flight
	next    atomic.Int64 // index of the next request
	base    int          // index of the first measured request
	samples order        // of a dataset

	// These are settled by the first request, before settled is closed.
	dialect dialect
	text    *calibration // nil: token ids
	notes   []string

	mu       sync.Mutex
	workers  []*worker // all that there are
	idle     []*worker // those of an open loop without a request
	warmup   []Record
	records  []Record
	gaps     map[time.Duration]int
	failures int // in a row
	unsent   int // turns of conversations that broke off
	decider  *decider
	progress progress
}

// worker keeps one request in flight.
type worker struct{ stream stream }

func newLevel(c Config, streams int) (*level, error) {
	b, err := newBody(c)
	if err != nil {
		return nil, err
	}
	started := time.Now()
	now := func() time.Duration { return time.Since(started) } // by the monotonic clock
	l := &level{
		Config: c, url: c.endpoint(), body: b, dialect: newDialect(c), started: started,
		caller:  caller{client: c.Client, apiKey: c.APIKey, now: now},
		settled: make(chan struct{}), streams: streams,
		gaps:    map[time.Duration]int{},
		decider: newDecider(c.MaxRequests, c.Bounds, c.AllowChunkCount),
	}
	l.settle = sync.OnceFunc(func() { close(l.settled) })
	l.progress = progress{w: c.Log, now: now}
	if l.client == nil {
		l.client = newClient(streams, c.TLS)
	}
	if c.Dataset != nil {
		l.samples = newOrder(c.Seed, len(c.Dataset.Samples))
	}
	for range c.Concurrency {
		l.newWorker()
	}
	return l, nil
}

func (l *level) newWorker() *worker {
	w := &worker{}
	w.stream.rules = rules{ignoreEOS: l.IgnoreEOS, allowEmpty: l.AllowEmptyOutput, allowChunkCount: l.AllowChunkCount}
	w.stream.keep = l.Conversations != nil
	l.workers = append(l.workers, w)
	return w
}

// run performs the warm-up and the measured phase.
func (l *level) run(ctx context.Context) error {
	ctx, l.cancel = context.WithCancelCause(ctx)
	defer l.cancel(nil)
	if l.Warmup > 0 {
		l.phase(ctx, &phase{name: "warm-up", requests: l.Warmup, records: &l.warmup})
	}
	if ctx.Err() == nil {
		l.failures = 0
		l.base = int(l.next.Load())
		// Growing step by step would hold up to three times as much.
		l.records = make([]Record, 0, min(l.MaxRequests, mostReserved))
		p := &phase{name: "measured", requests: l.MaxRequests, duration: l.Duration, records: &l.records, measured: true}
		l.phase(ctx, p)
		l.noteBehind(p)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (l *level) result(err error) *Result {
	r := &Result{
		Records: l.records, Warmup: l.warmup,
		Started: l.started, Elapsed: l.now(), Concurrency: l.Concurrency, Open: l.open(), Rate: l.Rate, RampUp: l.RampUp,
		Bounds: l.Bounds, AllowChunkCount: l.AllowChunkCount, Warnings: l.notes,
	}
	for d, n := range l.gaps {
		r.Gaps = append(r.Gaps, Gap{Duration: d, Tokens: n})
	}
	slices.SortFunc(r.Gaps, func(a, b Gap) int { return cmp.Compare(a.Duration, b.Duration) })
	byIndex := func(a, b Record) int { return cmp.Compare(a.Index, b.Index) }
	slices.SortFunc(r.Records, byIndex)
	slices.SortFunc(r.Warmup, byIndex)
	if err != nil {
		r.Stopped = err.Error()
	}
	if l.unsent > 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("conversations: %d turns were not sent, because a turn before them had failed", l.unsent))
	}
	if d := l.Dataset; d != nil && len(l.records)+len(l.warmup) > len(d.Samples) {
		r.Warnings = append(r.Warnings, fmt.Sprintf("dataset: %d prompts for %d requests: repeated ones may be found in the server's prefix cache", len(d.Samples), len(l.records)+len(l.warmup)))
	}
	if t := l.Trace; t != nil && t.Skipped > 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("trace: %d rows without output tokens are left out", t.Skipped))
	}
	if d := l.Dataset; d != nil && d.Skipped > 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("dataset: %d conversations without a prompt are left out", d.Skipped))
	}
	if l.progress.err != nil {
		r.Warnings = append(r.Warnings, fmt.Sprintf("log: the progress is incomplete: %v", l.progress.err))
	}
	return r
}
