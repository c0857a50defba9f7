// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// playTimes runs requests through a player in virtual time and returns when
// each of their tokens came, in seconds. late is how much too long it sleeps.
func playTimes(t *testing.T, c Config, scale float64, late time.Duration, requests []Request) (times [][]float64, m *metrics) {
	synctest.Test(t, func(t *testing.T) {
		e, err := NewEngine(c)
		require.NoError(t, err)
		m = newMetrics("m")
		p := newPlayer(e, m, scale, time.Duration(scale*APIOverhead*float64(time.Second)))
		p.sleep = func(ctx context.Context, until time.Time) { _ = pause(ctx, time.Until(until)+late) }
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { assert.NoError(t, p.run(ctx)) })

		start := time.Now()
		times = make([][]float64, len(requests))
		var clients sync.WaitGroup
		for i, r := range requests {
			clients.Go(func() {
				_ = pause(ctx, time.Duration(r.Arrival*scale*float64(time.Second)))
				s := newStream(r.Prompt, r.Output, "length", 1, time.Now())
				p.submit(s)
				for len(times[i]) < r.Output {
					<-s.ready
					for int64(len(times[i])) < s.tokens.Load() {
						times[i] = append(times[i], time.Since(start).Seconds())
					}
				}
			})
		}
		clients.Wait()
		cancel()
		all.Wait()
	})
	return times, m
}

var someRequests = []Request{
	{Arrival: 0.003, Prompt: 1000, Output: 20},
	{Arrival: 0.005, Prompt: 40, Output: 50},
	{Arrival: 0.2011, Prompt: 3000, Output: 10},
	{Arrival: 2.5, Prompt: 10, Output: 3}, // after a pause
}

func TestPlayerKeepsTheModelsTimes(t *testing.T) {
	c := DefaultConfig()
	want, err := Simulate(c, someRequests, 0)
	require.NoError(t, err)
	for _, scale := range []float64{1, 0.1} {
		times, _ := playTimes(t, c, scale, 0, someRequests)
		for i, w := range want.Requests {
			// Every step and every wait is cut to whole nanoseconds.
			assert.InDelta(t, w.FirstToken+APIOverhead, times[i][0]/scale, 1e-6, "first token of %d", i)
			assert.InDelta(t, w.Done+APIOverhead, times[i][w.Output-1]/scale, 1e-6, "last token of %d", i)
		}
	}
}

func TestLateTimersDoNotAddUp(t *testing.T) {
	c := DefaultConfig()
	alone := []Request{{Prompt: 10, Output: 500}}
	want, err := Simulate(c, alone, 0)
	require.NoError(t, err)
	const late = 3 * time.Millisecond
	times, m := playTimes(t, c, 1, late, alone)
	assert.InDelta(t, want.Requests[0].E2E()+late.Seconds(), times[0][499], 1e-5)
	assert.InDelta(t, late.Seconds(), sample(t, m, "simulator:step_lag_seconds"), 1e-9)
	assert.Zero(t, sample(t, m, "simulator:step_lag_dropped_seconds_total"))
}

func TestALongDelayIsNotMadeUpFor(t *testing.T) {
	c := DefaultConfig()
	alone := []Request{{Prompt: 10, Output: 20}}
	const late = 50 * time.Millisecond
	times, m := playTimes(t, c, 1, late, alone)
	for i, now := range times[0][1:] {
		assert.Greater(t, now-times[0][i], late.Seconds(), "no burst after a delay")
	}
	assert.InDelta(t, 20*late.Seconds(), sample(t, m, "simulator:step_lag_dropped_seconds_total"), 1e-9)
}

func TestPlayerSkipsWhatIsAbortedBeforeItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := NewEngine(DefaultConfig())
		require.NoError(t, err)
		m := newMetrics("m")
		p := newPlayer(e, m, 1, time.Second)
		p.sleep = func(ctx context.Context, until time.Time) { _ = pause(ctx, time.Until(until)) }
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { assert.NoError(t, p.run(ctx)) }()

		gone := newStream(10, 10, "length", 1, time.Now())
		p.submit(gone)
		synctest.Wait()
		p.abort(gone)
		_ = pause(ctx, 5*time.Second)
		assert.Zero(t, gone.tokens.Load())
		assert.Equal(t, 1.0, sample(t, m, `vllm:request_success_total{finished_reason="abort"}`))

		stays := newStream(10, 10, "length", 1, time.Now())
		p.submit(stays)
		_ = pause(ctx, 5*time.Second)
		assert.EqualValues(t, 10, stays.tokens.Load())
		p.abort(stays) // it is over: nothing to count
		synctest.Wait()
		assert.Equal(t, 1.0, sample(t, m, `vllm:request_success_total{finished_reason="abort"}`))
		assert.Zero(t, e.Usage())
	})
}

// sample returns the value of a gauge or counter, by name and at most one label.
func sample(t *testing.T, m *metrics, name string) float64 {
	t.Helper()
	name, label, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
	families, err := m.registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, one := range f.GetMetric() {
			for _, l := range one.GetLabel() {
				if label == "" || label == l.GetName()+`="`+l.GetValue()+`"` {
					return one.GetGauge().GetValue() + one.GetCounter().GetValue()
				}
			}
		}
	}
	require.Fail(t, "no such metric", name)
	return 0
}
