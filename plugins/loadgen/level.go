// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
// for one to end, and their send delay shows it.
const maxStreams = 8192

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
		decider: newDecider(c.MaxRequests, c.Bounds),
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
		Started: l.started, Elapsed: l.now(), Concurrency: l.Concurrency, Open: l.open(), Rate: l.Rate,
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

	started       time.Duration
	taken         atomic.Int64
	over          atomic.Int64 // when the duration ended, as a time of the level; 0: not yet
	conversations atomic.Int64 // begun
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

// phase runs until it is over and everything in flight has ended.
func (l *level) phase(ctx context.Context, p *phase) {
	p.started = l.now()
	l.mu.Lock()
	l.progress.begin(p, l.received())
	l.mu.Unlock()
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	done := make(chan struct{})
	var helpers sync.WaitGroup
	helpers.Go(func() { l.reportUntil(done) })
	helpers.Go(func() { l.watch(p, done, cut) })
	if p.duration > 0 {
		helpers.Go(func() { l.end(p, done, cut) })
	}
	if l.open() {
		l.openLoop(ctx, p)
	} else {
		l.closedLoop(ctx, p)
	}
	close(done)
	helpers.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress.finish()
}

// closedLoop keeps every worker busy.
func (l *level) closedLoop(ctx context.Context, p *phase) {
	var workers sync.WaitGroup
	for i, w := range l.workers {
		workers.Go(func() {
			if i > 0 {
				select {
				case <-l.settled:
				case <-ctx.Done():
				}
			}
			if l.Conversations != nil {
				l.converse(ctx, p, w)
				return
			}
			for ctx.Err() == nil && p.take() {
				l.request(ctx, p, w, l.job(p, int(l.next.Add(1)-1)))
			}
		})
	}
	workers.Wait()
}

// openLoop sends requests when they are due.
func (l *level) openLoop(ctx context.Context, p *phase) {
	var requests sync.WaitGroup
	defer requests.Wait()
	slots := make(chan struct{}, l.streams)
	schedule := l.schedule(p)
	for p.requests == 0 || p.sent() < p.requests {
		at, ok := schedule.next()
		if !ok || p.duration > 0 && at >= p.duration || !waitUntil(ctx, p.started+at-l.now()) || !p.take() {
			return
		}
		slots <- struct{}{} // every request ends, with ctx at the latest
		w := l.acquire()
		j := l.job(p, int(l.next.Add(1)-1))
		j.due, j.scheduled = p.started+at, true
		requests.Go(func() {
			l.request(ctx, p, w, j)
			l.release(w)
			<-slots
		})
		if j.index == 0 {
			select { // the first request finds out what the server accepts
			case <-l.settled:
			case <-ctx.Done():
			}
		}
	}
}

// schedule is that of a phase. The warm-up of a trace comes at the trace's mean rate.
func (l *level) schedule(p *phase) schedule {
	if l.Trace != nil && p.measured {
		return &replayed{rows: l.Trace.Rows}
	}
	s := &rated{arrival: l.Arrival, rate: l.meanRate(), random: random(mix(l.Seed), -3)}
	if p.measured {
		s.ramp, s.random = l.RampUp.Seconds(), random(mix(l.Seed), -4)
	}
	return s
}

func (l *level) acquire() *worker {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.idle); n > 0 {
		w := l.idle[n-1]
		l.idle = l.idle[:n-1]
		return w
	}
	return l.newWorker()
}

func (l *level) release(w *worker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = append(l.idle, w)
}

// waitUntil waits for d, or returns false when ctx ends before.
func waitUntil(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	return wait(ctx.Done(), d)
}

// converse holds one conversation after the other. Those of the warm-up have other numbers and one turn.
func (l *level) converse(ctx context.Context, p *phase, w *worker) {
	all := l.Conversations
	for ctx.Err() == nil && p.over.Load() == 0 {
		number := int(p.conversations.Add(1) - 1)
		if p.measured && number >= all.NumConversations {
			return
		}
		if !p.measured {
			number += all.NumConversations
		}
		c := all.draw(all.seed(l.Seed), number)
		if !p.measured {
			c.input = c.input[:1]
		}
		if !l.hold(ctx, p, w, &c) {
			return
		}
	}
}

// hold sends the turns of a conversation; false when the phase is over.
func (l *level) hold(ctx context.Context, p *phase, w *worker, c *conversation) bool {
	history := c.begin(l.text)
	for turn := range c.input {
		if turn > 0 && !waitUntil(ctx, c.pause[turn]) || !p.take() {
			return false
		}
		history = append(history, c.ask(l.text, turn))
		rec := l.request(ctx, p, w, job{
			index: int(l.next.Add(1) - 1), input: c.tokens(turn), output: c.output[turn],
			messages: history, conversation: c.number + 1, turn: turn + 1,
		})
		if !rec.OK() {
			l.mu.Lock()
			l.unsent += len(c.input) - turn - 1
			l.mu.Unlock()
			return true
		}
		history = append(history, Message{Role: "assistant", Content: unescape(w.stream.answer)})
	}
	return true
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

// job is one request to make.
type job struct {
	index         int
	input, output int // tokens
	messages      []Message
	blocks        []uint64
	random        *rand.Rand // of the prompt, where it is not given

	conversation, turn int

	due       time.Duration
	scheduled bool
}

// job draws a request. It depends on nothing but the seed and the index.
func (l *level) job(p *phase, index int) job {
	j := job{index: index, random: random(l.Seed, index)}
	switch {
	case l.Trace != nil:
		rows := l.Trace.Rows
		row := rows[(index-l.base)%len(rows)]
		if j.input, j.output = row.Input, row.Output; p.measured {
			j.blocks = row.Blocks
		}
	case l.Dataset != nil:
		s := l.Dataset.Samples[l.samples.at(index)]
		j.messages, j.output = s.Messages, s.Output
	default:
		j.input, j.output = l.Workload.Input.Draw(j.random), l.Workload.Output.Draw(j.random)
	}
	return j
}

// request prepares, sends and records one request. The very first request of the level also
// finds out what the server accepts; the other workers wait for it.
func (l *level) request(ctx context.Context, p *phase, w *worker, j job) Record {
	blank := Record{Index: j.index, PromptTarget: j.input, OutputTarget: j.output, Conversation: j.conversation, Turn: j.turn}
	rec := blank
	for {
		prompt := l.prepare(ctx, j)
		if !j.scheduled {
			j.due = l.now()
		}
		rec.Scheduled = j.due
		status, refusal := l.send(ctx, &w.stream, l.body.stream(l.dialect, prompt, j.output), &rec, l.settle)
		if rec.Index > 0 || !l.renegotiate(ctx, status, refusal) {
			break
		}
		rec = blank
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
	return rec
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

// prepare renders the prompt of a request.
func (l *level) prepare(ctx context.Context, j job) prompt {
	switch {
	case j.messages != nil:
		return l.body.messages(j.messages)
	case l.text != nil:
		return prompt{text: l.text.prompt(ctx, j.random, j.input)}
	case j.blocks != nil:
		return prompt{text: blocksPrompt(j.random, l.Seed, j.blocks, j.input)}
	}
	return prompt{text: tokenIDs(j.random, l.Seed, j.index, j.input)}
}

// add records a finished request, and stops the level where it was one failure too many, or where its
// verdict is certain.
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
	if l.progress.add(&rec) {
		l.progress.line(l.received())
	}
	if p.measured && rec.Category != Cancelled {
		l.decider.add(&rec)
		l.decide(func(Bound) int { return 0 })
	}
}

// decide ends the level when its verdict is certain. The lock is held.
func (l *level) decide(inFlight late) {
	if !l.StopWhenDecided {
		return
	}
	if reason := l.decider.decided(inFlight); reason != "" {
		l.cancel(fmt.Errorf("%w: %s", ErrDecided, reason))
	}
}

// contentFilter is a failure of one answer that says nothing about the server.
const contentFilter Category = "content_filter"

// reportUntil prints a progress line every few seconds, so that a level that stands still says so.
func (l *level) reportUntil(done <-chan struct{}) {
	for wait(done, progressEvery) {
		l.mu.Lock()
		l.progress.line(l.received())
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
