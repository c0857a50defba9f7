// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"context"
	"fmt"
	"time"
)

// watchEvery is how often a phase is looked at beside the ends of requests.
const watchEvery = time.Second

// received is the number of chunks with text since the level began. The lock is held.
func (l *level) received() (n int64) {
	for _, w := range l.workers {
		n += w.stream.chunks.Load()
	}
	return n
}

// watch ends a phase that stands still, and a level whose requests in flight decide it.
func (l *level) watch(p *phase, done <-chan struct{}, cut context.CancelCauseFunc) {
	var chunks int64
	ended, since := 0, l.now()
	pulse := pulse{since, since}
	queue := saturation{bounds: l.Bounds, chunks: l.AllowChunkCount}
	for wait(done, watchEvery) {
		l.mu.Lock()
		now, arrived, records := l.now(), l.received(), *p.records
		steady := pulse.beat(now)
		inFlight := p.sent() - len(records)
		if inFlight == 0 || arrived != chunks || len(records) != ended {
			chunks, ended, since = arrived, len(records), now
		}
		if p.measured {
			l.decide(func(b Bound) int {
				if !steady { // what has arrived may not have been read
					return 0
				}
				return l.late(b, now)
			})
			if l.StopWhenDecided && l.Rate > 0 && now-p.started > l.RampUp && p.over.Load() == 0 {
				if reason := queue.sample(inFlight, records); reason != "" {
					l.cancel(fmt.Errorf("%w: over_saturated: %s", ErrDecided, reason))
				}
			}
		}
		l.mu.Unlock()
		if l.StallTimeout > 0 && now-since >= l.StallTimeout {
			err := fmt.Errorf("%w: nothing arrived for %v with %d requests in flight", ErrStalled, l.StallTimeout, inFlight)
			l.cancel(err)
			cut(err)
		}
	}
}

// pulse notices when this process was held up: stopped, throttled, or without a processor.
type pulse struct{ last, since time.Duration }

// beat is called about every watchEvery. It tells whether the process has run without a pause for that long.
func (p *pulse) beat(now time.Duration) (steady bool) {
	if now-p.last > watchEvery*3/2 {
		p.since = now
	}
	p.last = now
	return now-p.since >= watchEvery
}

// late counts the requests in flight that have no token yet and have been running for longer than the
// bound on a single request allows, and so can only end beyond it or fail. The lock is held.
//
// None is counted where a request could end in another way: without a token, where that is allowed;
// incomplete, where a duration cuts it; or with reasoning and no answer, for the bound on its first one.
// A second more than the bound has to be over, so that no token is on its way through this process.
func (l *level) late(b Bound, now time.Duration) (n int) {
	if b.Metric != "ttft" && b.Metric != "e2e" || !b.perRequest() || l.AllowEmptyOutput || l.Duration > 0 {
		return 0
	}
	for _, w := range l.workers {
		began := time.Duration(w.stream.zero.Load())
		if began > 0 && !w.stream.answering.Load() && millis(now-began-watchEvery) > b.Max {
			n++
		}
	}
	return n
}

// saturation recognises an open loop that asks for more than the server can do: its queue grows for as
// long as the load lasts. It is judged from 30 s after the warm-up and the ramp on, over all the time since
// then in six equal windows. The mean number of requests in flight has to grow by at least 5 % from each
// window to the next and to double from the first to the last; and both the requests that ended in the last
// window and all that have ended must already break a bound on a percentile, so that a level which would keep
// it if it ended now goes on. A burst at the start that is worked off, or a queue that settles, does not grow in
// every window.
//
// This is the one rule that is not arithmetic: a server could in principle become faster again.
type saturation struct {
	bounds  []Bound
	chunks  bool      // Config.AllowChunkCount
	samples []float64 // requests in flight, one for each second
	ended   []int     // requests that had ended by then
}

const (
	saturationWindows = 6
	saturationSamples = 30
)

// sample takes the state after another second, and says why the level is hopeless, or "".
func (s *saturation) sample(inFlight int, records []Record) string {
	s.samples, s.ended = append(s.samples, float64(inFlight)), append(s.ended, len(records))
	n := len(s.samples)
	if n < saturationSamples {
		return ""
	}
	var means [saturationWindows]float64
	for i := range means {
		from, to := i*n/saturationWindows, (i+1)*n/saturationWindows
		for _, v := range s.samples[from:to] {
			means[i] += v / float64(to-from)
		}
		if i > 0 && means[i] < 1.05*means[i-1] {
			return ""
		}
	}
	first, last := means[0], means[saturationWindows-1]
	if last < 2*first {
		return ""
	}
	recent := records[s.ended[n-1-n/saturationWindows]:]
	for _, b := range s.bounds {
		if b.perRequest() && breaks(b, recent, s.chunks) && breaks(b, records, s.chunks) {
			return fmt.Sprintf("the requests in flight grew from %.0f to %.0f over %d s, and those that ended, lately and in all, break %s", first, last, n, b)
		}
	}
	return ""
}

// breaks tells whether a percentile of the requests is beyond its bound.
func breaks(b Bound, records []Record, chunks bool) bool {
	within, beyond := 0, 0
	for i := range records {
		if v, ok := b.value(&records[i], chunks); ok && records[i].OK() {
			if v > b.Max {
				beyond++
			} else {
				within++
			}
		}
	}
	return missed(b.Percentile, within, beyond)
}
