// SPDX-License-Identifier: Apache-2.0

package simulator

import "fmt"

// Request is one request to Simulate. Lengths are tokens; Arrival is in
// seconds and is not used in a closed loop.
type Request struct {
	Arrival        float64
	Prompt, Output int
}

// Timing is what happened to one request, in seconds of virtual time.
type Timing struct {
	Request
	FirstToken  float64 // when the engine had the first token
	Done        float64 // when the engine had the last one
	Preemptions int
}

// TTFT is the time to first token as a client sees it, in seconds.
func (t Timing) TTFT() float64 { return t.FirstToken - t.Arrival + APIOverhead }

// E2E is the time to the last token as a client sees it, in seconds.
func (t Timing) E2E() float64 { return t.Done - t.Arrival + APIOverhead }

// Result is the outcome of Simulate.
type Result struct {
	Requests    []Timing // in the order of the list given
	Blocks      int      // size of the KV cache
	Steps       int
	Preemptions int
	MaxUsage    float64 // largest share of the KV blocks in use, 0 to 1
	Duration    float64 // seconds until the last request was done
}

// Simulate runs the requests through an idle engine, without noise and
// without delay between a response and the next request.
//
// With concurrency 0 they arrive at their Arrival times, which must not
// decrease. Otherwise that many are in flight: each one that is done makes
// room for the next of the list, and Arrival is when that happened.
func Simulate(c Config, requests []Request, concurrency int) (Result, error) {
	e, err := NewEngine(c)
	if err != nil {
		return Result{}, err
	}
	r := run{engine: e, source: requests, closed: concurrency > 0}
	r.result = Result{Blocks: e.Blocks(), Requests: make([]Timing, len(requests))}
	for range min(concurrency, len(requests)) {
		if err := r.submitNext(); err != nil {
			return Result{}, err
		}
	}
	for r.done < len(requests) {
		if err := r.step(); err != nil {
			return Result{}, err
		}
	}
	return r.result, nil
}

type run struct {
	engine *Engine
	source []Request
	closed bool
	now    float64
	next   int // of source
	done   int
	result Result
}

func (r *run) submitNext() error {
	req := r.source[r.next]
	if r.closed {
		req.Arrival = r.now
	}
	t := &r.result.Requests[r.next]
	t.Request = req
	if _, err := r.engine.Submit(req.Prompt, req.Output, t); err != nil {
		return fmt.Errorf("request %d: %w", r.next, err)
	}
	r.next++
	return nil
}

func (r *run) step() error {
	if !r.closed {
		if r.engine.Idle() {
			r.now = max(r.now, r.source[r.next].Arrival)
		}
		for r.next < len(r.source) && r.source[r.next].Arrival <= r.now {
			if err := r.submitNext(); err != nil {
				return err
			}
		}
	}
	s, err := r.engine.Step()
	if err != nil {
		return err
	}
	r.now += s.Duration
	r.result.Duration = r.now
	r.result.Steps++
	r.result.Preemptions += s.Preemptions
	r.result.MaxUsage = max(r.result.MaxUsage, s.Usage)
	for _, seq := range s.Tokens {
		t := seq.Data.(*Timing)
		if seq.Generated == 1 {
			t.FirstToken = r.now
		}
		if !seq.Done() {
			continue
		}
		t.Done, t.Preemptions = r.now, seq.Preemptions
		r.done++
		if r.closed && r.next < len(r.source) {
			if err := r.submitNext(); err != nil {
				return err
			}
		}
	}
	return nil
}
