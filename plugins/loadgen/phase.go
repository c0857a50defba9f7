// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

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

	// Of an open loop: the requests that waited because too many were in flight, and how much of the
	// schedule was still to be sent when the duration was over.
	crowded int
	missed  time.Duration
}

// take reports whether another request may be sent, and counts it.
func (p *phase) take() bool {
	if p.over.Load() != 0 {
		return false
	}
	n := p.taken.Add(1)
	return p.requests == 0 || n <= int64(p.requests)
}

// endsWithin tells whether the duration is over before a time from now has passed.
func (p *phase) endsWithin(now, d time.Duration) bool {
	return p.duration > 0 && now+d >= p.started+p.duration
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

// openLoop sends requests when they are due. What it could not send when it was due is told: late or never.
func (l *level) openLoop(ctx context.Context, p *phase) {
	var requests sync.WaitGroup
	defer requests.Wait()
	slots := make(chan struct{}, l.streams)
	schedule := l.schedule(p)
	for p.requests == 0 || p.sent() < p.requests {
		at, ok := schedule.next()
		if !ok || p.duration > 0 && at >= p.duration || !waitUntil(ctx, p.started+at-l.now()) {
			return
		}
		select {
		case slots <- struct{}{}:
		default:
			p.crowded++
			slots <- struct{}{} // every request ends, with ctx at the latest
		}
		if !p.take() {
			p.missed = p.duration - at
			return
		}
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
		c.words = l.Seed
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
		if turn > 0 && (p.endsWithin(l.now(), c.pause[turn]) || !waitUntil(ctx, c.pause[turn])) || !p.take() {
			return false
		}
		history = append(history, c.ask(l.text, turn))
		rec := l.request(ctx, p, w, job{
			index: int(l.next.Add(1) - 1), input: c.tokens(turn), output: c.output[turn],
			messages: history, conversation: c.number + 1, turn: turn + 1,
		})
		switch {
		case rec.Category == Cancelled || rec.Category == Incomplete:
			return false // the level is over
		case !rec.OK():
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

// reportUntil prints a progress line every few seconds, so that a level that stands still says so.
func (l *level) reportUntil(done <-chan struct{}) {
	for wait(done, progressEvery) {
		l.mu.Lock()
		l.progress.line(l.received())
		l.mu.Unlock()
	}
}
