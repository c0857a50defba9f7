// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"fmt"
	"io"
	"time"
)

// progressEvery is the longest time without a progress line.
const progressEvery = 5 * time.Second

// progress prints what a phase is doing: a line for every tenth of it and every few seconds, and
// one at its end. The level's lock guards it.
type progress struct {
	w   io.Writer
	now func() time.Duration
	err error // of the first write that failed

	phase  *phase
	tenths int
	chunks int64 // at the latest line
	at     time.Duration

	sum tally
}

// tally adds up the requests of a phase.
type tally struct{ ended, ok, failed, tokens int }

// begin starts a phase; received is the number of chunks with text since the level began.
func (p *progress) begin(ph *phase, received int64) {
	p.phase = ph
	p.tenths, p.at, p.sum = 0, ph.started, tally{}
	p.chunks = received
}

// add counts a request, and tells whether that completes another tenth of the phase, which is worth a line.
func (p *progress) add(rec *Record) bool {
	if p.w == nil {
		return false
	}
	p.sum.ended++
	switch rec.Category {
	case "":
		p.sum.ok++
		p.sum.tokens += int(rec.OutputTokens)
	case Cancelled, Incomplete:
	default:
		p.sum.failed++
	}
	t := p.done()
	if t <= p.tenths || t >= 10 {
		return false
	}
	p.tenths = t
	return true
}

// done is the part of the phase that is over, in tenths.
func (p *progress) done() int {
	t := 0
	if p.phase.requests > 0 {
		t = p.sum.ended * 10 / p.phase.requests
	}
	if d := p.phase.duration; d > 0 {
		t = max(t, int((p.now()-p.phase.started)*10/d))
	}
	return t
}

// line prints the present state.
func (p *progress) line(received int64) {
	if p.w == nil {
		return
	}
	of := ""
	if p.phase.requests > 0 {
		of = fmt.Sprintf("/%d", p.phase.requests)
	}
	now := p.now()
	p.print("%d%s requests, %d failed, %d in flight, %s, %d chunks in the last %s",
		p.sum.ended, of, p.sum.failed, p.phase.sent()-p.sum.ended, p.rates(), received-p.chunks, seconds(now-p.at))
	p.chunks, p.at = received, now
}

// finish prints the last line of the phase.
func (p *progress) finish() {
	if p.w == nil {
		return
	}
	p.print("finished, %d requests, %d failed, %s", p.sum.ended, p.sum.failed, p.rates())
}

// rates is the mean throughput of what has ended.
func (p *progress) rates() string {
	took := p.now() - p.phase.started
	if took <= 0 {
		return "0s"
	}
	s := took.Seconds()
	return fmt.Sprintf("%s, %.1f requests/s, %.1f output tokens/s", seconds(took), float64(p.sum.ok)/s, float64(p.sum.tokens)/s)
}

func seconds(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }

func (p *progress) print(format string, args ...any) {
	if _, err := fmt.Fprintf(p.w, p.phase.name+": "+format+"\n", args...); err != nil && p.err == nil {
		p.err = err
	}
}
