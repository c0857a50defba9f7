// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// small returns an engine whose KV cache holds 40 blocks.
func small(t *testing.T, change func(*Config)) *Engine {
	c := DefaultConfig()
	c.MaxModelLen, c.BlocksOverride = 0, 40
	if change != nil {
		change(&c)
	}
	e, err := NewEngine(c)
	require.NoError(t, err)
	return e
}

func TestRandomSubmitsAndAbortsKeepTheBooks(t *testing.T) {
	for _, chunked := range []bool{true, false} {
		rnd := rand.New(rand.NewPCG(3, 4))
		e := small(t, func(c *Config) {
			c.MaxNumSeqs, c.MaxNumBatchedTokens, c.ChunkedPrefill = 12, 700, chunked
		})
		var open []*Sequence
		done, aborted, preempted := 0, 0, 0
		for range 6000 {
			if rnd.IntN(3) == 0 && len(open) < 40 {
				s, err := e.Submit(1+rnd.IntN(200), 1+rnd.IntN(100), nil)
				require.NoError(t, err)
				open = append(open, s)
			}
			if rnd.IntN(20) == 0 && len(open) > 0 {
				i := rnd.IntN(len(open))
				e.Abort(open[i])
				e.Abort(open[i]) // twice is fine
				open = append(open[:i], open[i+1:]...)
				aborted++
			}
			r, err := e.Step()
			require.NoError(t, err)
			preempted += r.Preemptions
			done += forget(&open, r.Tokens)

			used := 0
			for _, s := range e.running {
				used += s.blocks
			}
			require.Equal(t, e.blocks, e.free+used, "blocks are free or belong to a running sequence")
			require.GreaterOrEqual(t, e.free, 0)
			require.LessOrEqual(t, len(e.running), 12)
			require.Equal(t, len(open), len(e.running)+e.waiting.len())
		}
		assert.Greater(t, done, 100)
		assert.Greater(t, aborted, 50)
		assert.Greater(t, preempted, 50)
	}
}

// forget removes the sequences that are done and returns how many they were.
func forget(open *[]*Sequence, tokens []*Sequence) int {
	done := map[*Sequence]bool{}
	for _, s := range tokens {
		done[s] = s.Done()
	}
	kept, n := (*open)[:0], 0
	for _, s := range *open {
		if done[s] {
			n++
			continue
		}
		kept = append(kept, s)
	}
	*open = kept
	return n
}

func TestStepOnAnIdleEngineDoesNothing(t *testing.T) {
	r, err := small(t, nil).Step()
	require.NoError(t, err)
	assert.Zero(t, r.Duration)
	assert.Empty(t, r.Tokens)
}

func TestAPreemptedSequenceStartsAgainBeforeNewOnes(t *testing.T) {
	e := small(t, nil)
	first, err := e.Submit(300, 100, nil) // 19 blocks, and 1 more for token 5
	require.NoError(t, err)
	second, err := e.Submit(330, 100, nil) // 21 blocks, and 1 more for token 7
	require.NoError(t, err)
	third, err := e.Submit(10, 1, nil)
	require.NoError(t, err)

	for second.Preemptions == 0 {
		_, err := e.Step()
		require.NoError(t, err)
	}
	assert.Equal(t, 4, second.Generated)
	assert.Zero(t, third.Generated, "it does not overtake")
	for !first.Done() {
		_, err := e.Step()
		require.NoError(t, err)
	}
	assert.Equal(t, 4, second.Generated, "what was generated is kept")
	r, err := e.Step()
	require.NoError(t, err)
	assert.Equal(t, []*Sequence{second, third}, r.Admitted)
	assert.Equal(t, []*Sequence{second, third}, r.Tokens)
	assert.Equal(t, 5, second.Generated)
}

func TestStepReportsWhatHappenedDuringIt(t *testing.T) {
	e := small(t, func(c *Config) { c.MaxNumSeqs = 1 })
	a, err := e.Submit(160, 1, "a")
	require.NoError(t, err)
	_, err = e.Submit(16, 1, "b")
	require.NoError(t, err)
	r, err := e.Step()
	require.NoError(t, err)
	assert.Equal(t, StepResult{
		Duration: StepTime(e.cfg, Batch{PrefillTokens: 160, PrefillArea: 160 * 80, Sequences: 1, Outputs: 1}) / 1e3,
		Admitted: []*Sequence{a}, Tokens: []*Sequence{a}, Running: 1, Waiting: 1, Usage: 0.25,
	}, r)
	assert.Zero(t, e.Usage())
	assert.False(t, e.Idle())
}
