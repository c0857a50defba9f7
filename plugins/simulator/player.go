// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// maxDebt is how far the player may be behind the model and still catch up. A
// short delay of this machine is so not seen in the rate of tokens; a longer
// one is, instead of a burst of steps after it.
const maxDebt = 10 * time.Millisecond

// stream is one request between its handler and the player.
type stream struct {
	prompt, output int    // tokens
	finish         string // the reason to count when all are generated
	interval       int    // tokens between two signals, after the first token

	ready  chan struct{} // capacity 1: tokens has grown, or the handler should look at its context
	tokens atomic.Int64  // that may be sent

	arrived time.Time // at the API
	due     time.Time // at the engine

	// Of the player's goroutine.
	sequence  *Sequence // nil until due
	aborted   bool
	last      time.Time // of the latest token
	signalled int       // tokens at the latest signal
}

func newStream(prompt, output int, finish string, interval int, arrived time.Time) *stream {
	return &stream{prompt: prompt, output: output, finish: finish, interval: interval, arrived: arrived, ready: make(chan struct{}, 1)}
}

// signal wakes the handler. It never blocks.
func (s *stream) signal() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// player runs an Engine in real time: it computes a step, waits until the step
// would be over, and hands out its tokens.
type player struct {
	engine   *Engine
	metrics  *metrics
	scale    float64       // real seconds per second of the model
	overhead time.Duration // from the arrival at the API to the arrival at the engine
	sleep    func(ctx context.Context, until time.Time)

	mu       sync.Mutex
	arrivals []*stream // ordered by due
	aborts   []*stream
	wake     chan struct{} // capacity 1

	pending []*stream // of the player's goroutine: taken from arrivals, not due yet
}

func newPlayer(e *Engine, m *metrics, scale float64, overhead time.Duration) *player {
	return &player{engine: e, metrics: m, scale: scale, overhead: overhead, sleep: sleepUntil, wake: make(chan struct{}, 1)}
}

// submit hands a request over. The API's overhead is played by passing it on
// later, so the answer's rate is the engine's.
func (p *player) submit(s *stream) {
	p.mu.Lock()
	s.due = time.Now().Add(p.overhead)
	p.arrivals = append(p.arrivals, s)
	p.mu.Unlock()
	p.signal()
}

// abort takes a request back. It may be called at any time after submit.
func (p *player) abort(s *stream) {
	p.mu.Lock()
	p.aborts = append(p.aborts, s)
	p.mu.Unlock()
	p.signal()
}

func (p *player) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run plays until ctx is done. Steps are timed against the ideal end of the
// step before and not against the moment it was handed out, so the delays of
// timers do not add up.
func (p *player) run(ctx context.Context) error {
	var start time.Time // of the next step
	for ctx.Err() == nil {
		p.collect()
		if p.engine.Idle() {
			p.metrics.idle(p.engine.Usage())
			if len(p.pending) == 0 {
				select {
				case <-p.wake:
				case <-ctx.Done():
				}
				continue
			}
			if due := p.pending[0].due; due.After(start) {
				p.sleep(ctx, due)
				start = due
				p.collect()
			}
		}
		if err := p.admit(start); err != nil {
			return err
		}
		step, err := p.engine.Step()
		if err != nil {
			return fmt.Errorf("step: %w", err)
		}
		if step.Running == 0 {
			continue // what was due had been aborted
		}
		p.metrics.step(step)
		p.admitted(step, start)
		end := start.Add(time.Duration(step.Duration * p.scale * float64(time.Second)))
		p.sleep(ctx, end)
		now := time.Now()
		p.deliver(step, now)
		start = p.settle(end, now)
	}
	return nil
}

// collect takes over what handlers have submitted and aborted.
func (p *player) collect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending = append(p.pending, p.arrivals...)
	clear(p.arrivals)
	p.arrivals = p.arrivals[:0]
	for _, s := range p.aborts {
		s.aborted = true
		if s.sequence != nil {
			p.engine.Abort(s.sequence)
		}
		if s.sequence == nil || !s.sequence.Done() {
			p.metrics.finished["abort"].Inc()
		}
	}
	clear(p.aborts)
	p.aborts = p.aborts[:0]
}

// admit passes on to the engine what is due when the step starts.
func (p *player) admit(start time.Time) error {
	n := 0
	for ; n < len(p.pending) && !p.pending[n].due.After(start); n++ {
		s := p.pending[n]
		if s.aborted {
			continue
		}
		sequence, err := p.engine.Submit(s.prompt, s.output, s)
		if err != nil {
			return fmt.Errorf("submit: %w", err)
		}
		s.sequence = sequence
	}
	kept := copy(p.pending, p.pending[n:])
	clear(p.pending[kept:])
	p.pending = p.pending[:kept]
	return nil
}

// admitted records the sequences that the step has started.
func (p *player) admitted(step StepResult, start time.Time) {
	for _, sequence := range step.Admitted {
		if sequence.Preemptions > 0 {
			continue
		}
		s := sequence.Data.(*stream)
		p.metrics.queueTime.Observe(start.Sub(s.due).Seconds())
		p.metrics.prefixQueries.Add(float64(sequence.Prompt))
		p.metrics.prefixHits.Add(float64(sequence.Cached))
	}
}

// deliver hands out the tokens of a step.
func (p *player) deliver(step StepResult, now time.Time) {
	for _, sequence := range step.Tokens {
		s := sequence.Data.(*stream)
		n := sequence.Generated
		if n == 1 {
			p.metrics.promptTokens.Add(float64(s.prompt))
			p.metrics.ttft.Observe(now.Sub(s.arrived).Seconds())
		} else {
			p.metrics.itl.Observe(now.Sub(s.last).Seconds())
		}
		s.last = now
		if sequence.Done() {
			p.metrics.e2e.Observe(now.Sub(s.arrived).Seconds())
			p.metrics.finished[s.finish].Inc()
		}
		if n == 1 || n-s.signalled >= s.interval || sequence.Done() {
			s.signalled = n
			s.tokens.Store(int64(n))
			s.signal()
		}
	}
}

// settle returns when the next step starts, after one that should have ended
// at end and was handed out at now.
func (p *player) settle(end, now time.Time) time.Time {
	lag := now.Sub(end)
	if lag <= maxDebt {
		p.metrics.late(lag, 0)
		return end
	}
	p.metrics.late(lag, lag)
	return now
}
