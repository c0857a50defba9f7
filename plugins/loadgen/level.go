// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ErrConfig means that the server refused the first request, so that no other could succeed: a wrong
// model name, a missing key, a prompt longer than the context.
var ErrConfig = errors.New("the server refuses the request")

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
	// Concurrency is the wanted number of requests in flight.
	Concurrency int `json:"concurrency"`
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
// as planned the error is ErrConfig, ErrConsecutiveFailures, or the cause of ctx; the result then holds
// what was measured until then. The result is nil only where the config is wrong or the prompts could
// not be calibrated.
func Run(ctx context.Context, c Config) (*Result, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := ensureFiles(c.Concurrency); err != nil {
		return nil, err
	}
	l, err := newLevel(c)
	if err != nil {
		return nil, err
	}
	if c.Client == nil {
		defer l.client.CloseIdleConnections()
	}
	if c.API == Chat {
		if err := l.calibrate(ctx); err != nil {
			return nil, err
		}
	}
	err = l.run(ctx)
	return l.result(err), err
}

// level is one run.
type level struct {
	Config
	caller
	url     string
	body    body
	started time.Time
	workers []*worker
	open    chan struct{} // closed when the first request has settled the dialect
	settle  func()        // closes open
	cancel  context.CancelCauseFunc
	next    atomic.Int64 // index of the next request

	// These are settled by the first request, before open is closed.
	dialect dialect
	text    *calibration // nil: token ids
	notes   []string

	mu       sync.Mutex
	warmup   []Record
	records  []Record
	gaps     map[time.Duration]int
	failures int // in a row
	progress progress
}

// worker keeps one request in flight.
type worker struct{ stream stream }

func newLevel(c Config) (*level, error) {
	b, err := newBody(c)
	if err != nil {
		return nil, err
	}
	started := time.Now()
	now := func() time.Duration { return time.Since(started) } // by the monotonic clock
	l := &level{
		Config: c, url: c.endpoint(), body: b, dialect: newDialect(c), started: started,
		caller: caller{client: c.Client, apiKey: c.APIKey, now: now},
		open:   make(chan struct{}),
		gaps:   map[time.Duration]int{},
	}
	l.settle = sync.OnceFunc(func() { close(l.open) })
	l.progress = progress{w: c.Log, now: now}
	if l.client == nil {
		l.client = newClient(c.Concurrency)
	}
	for range c.Concurrency {
		w := &worker{}
		w.stream.rules = rules{ignoreEOS: c.IgnoreEOS, allowEmpty: c.AllowEmptyOutput, allowChunkCount: c.AllowChunkCount}
		l.workers = append(l.workers, w)
	}
	return l, nil
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
		l.phase(ctx, &phase{name: "measured", requests: l.MaxRequests, duration: l.Duration, records: &l.records, measured: true})
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (l *level) result(err error) *Result {
	r := &Result{
		Records: l.records, Warmup: l.warmup,
		Started: l.started, Elapsed: l.now(), Concurrency: l.Concurrency, AllowChunkCount: l.AllowChunkCount,
		Warnings: l.notes,
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
	if l.progress.err != nil {
		r.Warnings = append(r.Warnings, fmt.Sprintf("log: the progress is incomplete: %v", l.progress.err))
	}
	return r
}

// phase is a part of the level: a number of requests, a time, or whichever is over first.
type phase struct {
	name     string
	requests int           // 0: no limit
	duration time.Duration // 0: no limit
	measured bool
	records  *[]Record

	started time.Duration
	taken   atomic.Int64
	over    atomic.Int64 // when the duration ended, as a time of the level; 0: not yet
}

// take reports whether another request may be sent, and counts it.
func (p *phase) take() bool {
	if p.over.Load() != 0 {
		return false
	}
	n := p.taken.Add(1)
	return p.requests == 0 || n <= int64(p.requests)
}

// sent is the number of requests that take has let through.
func (p *phase) sent() int {
	n := int(p.taken.Load())
	if p.requests > 0 {
		n = min(n, p.requests)
	}
	return n
}

// phase runs all workers until the phase is over and everything in flight has ended.
func (l *level) phase(ctx context.Context, p *phase) {
	p.started = l.now()
	l.progress.begin(p, l.workers)
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	done := make(chan struct{})
	var helpers, workers sync.WaitGroup
	helpers.Go(func() { l.reportUntil(done) })
	if p.duration > 0 {
		helpers.Go(func() { l.end(p, done, cut) })
	}
	for i, w := range l.workers {
		workers.Go(func() {
			if i > 0 {
				select {
				case <-l.open:
				case <-ctx.Done():
				}
			}
			for ctx.Err() == nil && p.take() {
				l.request(ctx, p, w)
			}
		})
	}
	workers.Wait()
	close(done)
	helpers.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress.finish()
}

// end stops the phase when its duration is over, and cuts what is still in flight after the grace.
func (l *level) end(p *phase, done <-chan struct{}, cut context.CancelCauseFunc) {
	if !wait(done, p.duration) {
		return
	}
	p.over.Store(int64(l.now()))
	if grace := l.grace(); wait(done, grace) {
		cut(fmt.Errorf("%w: still running %v after its duration", errGrace, grace))
	}
}

// wait waits for d, or returns false when done is closed before.
func wait(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-done:
		return false
	}
}

// grace is how long requests may take to finish after the duration: the larger of 30 s and twice
// the longest successful request, so that long answers are not the ones that are left out.
func (l *level) grace() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	longest := 15 * time.Second
	for _, records := range [...][]Record{l.warmup, l.records} {
		for i := range records {
			if records[i].OK() {
				longest = max(longest, records[i].E2E)
			}
		}
	}
	return 2 * longest
}

// request prepares, sends and records one request. The very first request of the level also
// finds out what the server accepts; the other workers wait for it.
func (l *level) request(ctx context.Context, p *phase, w *worker) {
	rec := Record{Index: int(l.next.Add(1) - 1)}
	for {
		body := l.prepare(ctx, &rec)
		status, refusal := l.send(ctx, &w.stream, body, &rec, l.settle)
		if rec.Index > 0 || !l.renegotiate(ctx, status, refusal) {
			break
		}
		rec = Record{Index: rec.Index}
	}
	if rec.Category == Incomplete && int64(w.stream.events.readAt) < p.over.Load() {
		rec.Category, rec.Error = Stalled, rec.Error+"; nothing arrived in that time"
	}
	rec.Error, rec.Partial = excerpt([]byte(l.redact(rec.Error))), l.redact(rec.Partial)
	l.add(p, w, rec)
	if rec.Index == 0 {
		if refused(rec.Category) {
			l.cancel(fmt.Errorf("%w: %s", ErrConfig, rec.Error))
		}
		l.settle()
	}
}

// refused recognises the answers after which no other request can succeed either.
func refused(c Category) bool {
	code, ok := strings.CutPrefix(string(c), "http_")
	status, err := strconv.Atoi(code)
	return ok && err == nil && status < 500 && status != http.StatusRequestTimeout && status != http.StatusTooManyRequests
}

// renegotiate changes the dialect after a refusal of the first request; false: there is nothing to change.
func (l *level) renegotiate(ctx context.Context, status int, refusal []byte) bool {
	if status != http.StatusBadRequest && status != http.StatusUnprocessableEntity {
		return false
	}
	hadIDs := l.dialect.tokenIDs
	note := l.dialect.drop(refusedField(refusal))
	if note == "" {
		return false
	}
	if hadIDs && !l.dialect.tokenIDs {
		if err := l.calibrate(ctx); err != nil {
			l.cancel(err)
			return false
		}
	}
	l.notes = append(l.notes, note)
	return true
}

// prepare draws the lengths of a request and renders it. Both depend on nothing but the seed and the index.
func (l *level) prepare(ctx context.Context, rec *Record) []byte {
	r := random(l.Seed, rec.Index)
	rec.PromptTarget = l.Workload.Input.Draw(r)
	rec.OutputTarget = l.Workload.Output.Draw(r)
	var prompt []byte
	if l.text != nil {
		prompt = l.text.prompt(ctx, r, rec.PromptTarget)
	} else {
		prompt = tokenIDs(r, l.Seed, rec.Index, rec.PromptTarget)
	}
	return l.body.stream(l.dialect, prompt, rec.OutputTarget)
}

// add records a finished request, and stops the level where it was one failure too many.
func (l *level) add(p *phase, w *worker, rec Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*p.records = append(*p.records, rec)
	switch rec.Category {
	case "":
		l.failures = 0
		if p.measured {
			w.stream.tokenGaps(func(d time.Duration, tokens int) { l.gaps[d] += tokens })
		}
	case Cancelled, Incomplete, contentFilter:
	default:
		l.failures++
		if l.failures == l.MaxConsecutiveFailures {
			l.cancel(fmt.Errorf("%w: %d, the last one: %s: %s", ErrConsecutiveFailures, l.failures, rec.Category, rec.Error))
		}
	}
	l.progress.add(&rec)
}

// contentFilter is a failure of one answer that says nothing about the server.
const contentFilter Category = "content_filter"

// reportUntil prints a progress line every few seconds, so that a level that stands still says so.
func (l *level) reportUntil(done <-chan struct{}) {
	for wait(done, progressEvery) {
		l.mu.Lock()
		l.progress.line()
		l.mu.Unlock()
	}
}

// calibrate prepares text prompts: with /tokenize where the server has it, else with the usage of two
// small requests.
func (l *level) calibrate(ctx context.Context) (err error) {
	l.text, err = calibrate(ctx, l.Seed, l.tokenize, true)
	if err == nil || ctx.Err() != nil {
		return err
	}
	l.text, err = calibrate(ctx, l.Seed, l.promptUsage, false)
	if err != nil {
		return fmt.Errorf("calibrate prompts: %w", err)
	}
	return nil
}

// tokenize counts a prompt's tokens with the server's own tokenizer.
func (l *level) tokenize(ctx context.Context, prompt []byte) (int, error) {
	status, answer, err := l.ask(ctx, l.root()+"/tokenize", l.body.tokenize(prompt))
	if err != nil {
		return 0, err
	}
	top := object(answer)
	if n := count(top["count"]); status == http.StatusOK && n > 0 {
		return n, nil
	}
	return 0, fmt.Errorf("tokenize: http %d without a count", status)
}

// promptUsage counts a prompt's tokens by having one token generated.
func (l *level) promptUsage(ctx context.Context, prompt []byte) (int, error) {
	status, answer, err := l.ask(ctx, l.url, l.body.single(prompt))
	if err != nil {
		return 0, err
	}
	if status != http.StatusOK {
		category, message := statusError(status, answer)
		if refused(category) {
			return 0, fmt.Errorf("%w: %s", ErrConfig, l.redact(message))
		}
		return 0, errors.New(l.redact(message))
	}
	if n := count(object(object(answer)["usage"])["prompt_tokens"]); n > 0 {
		return n, nil
	}
	return 0, fmt.Errorf("the answer has no usage.prompt_tokens: %s", l.redact(excerpt(answer)))
}
