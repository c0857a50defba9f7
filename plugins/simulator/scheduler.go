// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"errors"
	"fmt"
	"slices"
)

// ErrStuck is returned by Engine.Step when no waiting request can ever start:
// without chunked prefill, the first one is longer than a step.
var ErrStuck = errors.New("no waiting request fits in a step")

// Sequence is one request inside an Engine. Its fields are the engine's after
// Submit, except Data.
type Sequence struct {
	Data   any // the caller's own
	Prompt int // tokens
	Output int // tokens at which it is finished

	Generated   int // tokens so far
	Cached      int // prompt tokens found in the prefix cache
	Preemptions int // times it lost its blocks and had to start again

	computed int // tokens with KV entries
	target   int // tokens that need KV entries before the next one: Prompt + Generated
	blocks   int
}

// Done reports whether all output tokens have been generated.
func (s *Sequence) Done() bool { return s.Generated >= s.Output }

// Engine is the scheduler with its KV cache, one step at a time. It has no
// clock; the caller adds up the steps' durations. It must not be used by two
// goroutines at once.
type Engine struct {
	cfg     Config
	blocks  int
	free    int
	running []*Sequence
	waiting queue
	result  StepResult
}

// StepResult says what one step did. The slices are valid until the next step.
type StepResult struct {
	Duration    float64     // seconds
	Admitted    []*Sequence // started, or started again after a pre-emption
	Tokens      []*Sequence // have one token more, in order
	Running     int         // sequences admitted, during the step
	Waiting     int         // sequences not admitted, during the step
	Usage       float64     // share of the KV blocks in use during the step, 0 to 1
	Preemptions int         // sequences that lost their blocks
}

// NewEngine returns an idle engine, or Memory's error.
func NewEngine(c Config) (*Engine, error) {
	blocks, err := Memory(c)
	if err != nil {
		return nil, err
	}
	return &Engine{cfg: c, blocks: blocks, free: blocks}, nil
}

// Blocks returns the size of the KV cache in blocks.
func (e *Engine) Blocks() int { return e.blocks }

// Idle reports whether there is nothing to do.
func (e *Engine) Idle() bool { return len(e.running) == 0 && e.waiting.len() == 0 }

// Usage returns the share of the KV blocks in use between two steps, 0 to 1.
func (e *Engine) Usage() float64 { return 1 - float64(e.free)/float64(e.blocks) }

// Submit puts a request at the end of the waiting queue. Both lengths are
// tokens and at least 1. A request that cannot fit in the KV cache even when
// it is alone is an error: it would be pre-empted for ever.
func (e *Engine) Submit(prompt, output int, data any) (*Sequence, error) {
	if prompt < 1 || output < 1 {
		return nil, fmt.Errorf("request with %d prompt and %d output tokens: both must be at least 1", prompt, output)
	}
	if e.blocksFor(prompt+output) > e.blocks {
		return nil, fmt.Errorf("request with %d prompt and %d output tokens does not fit in a KV cache of %d tokens",
			prompt, output, e.blocks*e.cfg.BlockSize)
	}
	cached := int(float64(prompt)*e.cfg.PrefixHit) / e.cfg.BlockSize * e.cfg.BlockSize
	s := &Sequence{Data: data, Prompt: prompt, Output: output, Cached: cached, computed: cached, target: prompt}
	e.waiting.push(s)
	return s, nil
}

// Abort removes s and frees its blocks. A sequence that is done, or was
// aborted before, is left alone.
func (e *Engine) Abort(s *Sequence) {
	if i := slices.Index(e.running, s); i >= 0 {
		e.running = slices.Delete(e.running, i, i+1)
		e.release(s)
		return
	}
	e.waiting.remove(s)
}

// Step runs one step: first the running sequences in order of admission, then
// new ones first come first served. On an idle engine it does nothing.
func (e *Engine) Step() (StepResult, error) {
	e.result = StepResult{Admitted: e.result.Admitted[:0], Tokens: e.result.Tokens[:0]}
	if e.Idle() {
		return e.result, nil
	}
	p := plan{budget: e.cfg.MaxNumBatchedTokens}
	e.scheduleRunning(&p)
	e.admit(&p)
	if p.Sequences == 0 {
		return StepResult{}, ErrStuck
	}
	r := &e.result
	r.Duration = StepTime(e.cfg, p.Batch) / 1e3
	r.Running, r.Waiting, r.Usage = len(e.running), e.waiting.len(), e.Usage()
	e.commit(p.Sequences, p.lastChunk)
	return *r, nil
}

// plan is a step in the making. The scheduled sequences are always the first
// Batch.Sequences of Engine.running: the loop over them stops only when the
// token budget is used up, and then nothing is admitted behind the gap.
type plan struct {
	Batch
	budget    int
	lastChunk int // tokens of the last scheduled sequence, which alone may get less than it needs
}

func (p *plan) add(s *Sequence, tokens int, prefill bool) {
	p.budget -= tokens
	p.Sequences++
	p.lastChunk = tokens
	if !prefill {
		p.Decodes++
		p.DecodeContext += s.target
		p.Outputs++
		return
	}
	p.PrefillTokens += tokens
	p.PrefillArea += float64(tokens) * (float64(s.computed) + float64(tokens)/2)
	if s.computed+tokens >= s.target {
		p.Outputs++
	}
}

func (e *Engine) scheduleRunning(p *plan) {
	for k := 0; k < len(e.running) && p.budget > 0; k++ {
		s := e.running[k]
		missing := s.target - s.computed
		prefill := missing > 0
		tokens, total := 1, s.target+1
		if prefill {
			tokens = min(missing, p.budget)
			total = s.computed + tokens
		}
		need := e.blocksFor(total) - s.blocks
		for need > e.free && len(e.running) > k {
			e.preemptLast()
		}
		if len(e.running) == k {
			return // s itself was the last one
		}
		if need > 0 {
			e.free -= need
			s.blocks += need
		}
		p.add(s, tokens, prefill)
	}
}

// admit starts waiting sequences while there is room. A sequence must fit in
// the free blocks as a whole, although it gets only what this step computes.
func (e *Engine) admit(p *plan) {
	for e.waiting.len() > 0 && len(e.running) < e.cfg.MaxNumSeqs && p.budget > 0 {
		s := e.waiting.first()
		missing := s.target - s.computed
		tokens := min(missing, p.budget)
		if !e.cfg.ChunkedPrefill && tokens < missing || e.blocksFor(s.target) > e.free {
			return
		}
		e.waiting.pop()
		need := e.blocksFor(s.computed+tokens) - s.blocks
		e.free -= need
		s.blocks += need
		e.running = append(e.running, s)
		p.add(s, tokens, true)
		e.result.Admitted = append(e.result.Admitted, s)
	}
}

// commit applies the step to the first n running sequences and drops those
// that are done.
func (e *Engine) commit(n, lastChunk int) {
	kept := e.running[:0]
	for i, s := range e.running[:n] {
		if missing := s.target - s.computed; missing > 0 {
			if i == n-1 {
				missing = lastChunk
			}
			s.computed += missing
			if s.computed < s.target {
				kept = append(kept, s)
				continue
			}
		}
		s.Generated++
		s.target = s.Prompt + s.Generated
		s.computed = s.target
		e.result.Tokens = append(e.result.Tokens, s)
		if s.Done() {
			e.release(s)
			continue
		}
		kept = append(kept, s)
	}
	end := len(kept) + len(e.running) - n
	kept = append(kept, e.running[n:]...)
	clear(e.running[end:])
	e.running = kept
}

func (e *Engine) preemptLast() {
	last := len(e.running) - 1
	s := e.running[last]
	e.running[last] = nil
	e.running = e.running[:last]
	e.release(s)
	s.target = s.Prompt + s.Generated
	s.computed = 0
	s.Preemptions++
	e.result.Preemptions++
	e.waiting.pushFront(s)
}

func (e *Engine) release(s *Sequence) {
	e.free += s.blocks
	s.blocks = 0
}

func (e *Engine) blocksFor(tokens int) int {
	return (tokens + e.cfg.BlockSize - 1) / e.cfg.BlockSize
}
