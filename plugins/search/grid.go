// SPDX-License-Identifier: Apache-2.0

package search

import (
	"iter"
	"math"
	"slices"

	"github.com/llmctl/llmctl/experiment"
)

// grid tries every combination, the last dimension fastest. It goes on after the
// last trial of the history, so a proposal costs the same at the end of a long
// grid as at its start, and comes round to the start for what was left out.
func grid(c *setup) order {
	dims := c.Space.Dims()
	for _, d := range dims {
		if d.Type == experiment.FloatDomain && d.Step == 0 && d.Min != nil && d.Max != nil && *d.Min < *d.Max {
			c.problem("searchSpace."+d.Role+"."+d.Param, "grid needs step for a float")
		}
	}
	return func(history []experiment.Trial) iter.Seq[experiment.Params] {
		var last []int
		if len(history) > 0 {
			last = digits(dims, history[len(history)-1].Params)
		}
		return scan(dims, last)
	}
}

// scan yields every combination of discrete dimensions once, beginning after the
// one at last (nil: at the first). It counts like an odometer with a digit per
// dimension: the number of combinations may be larger than any integer.
func scan(dims []experiment.Dim, last []int) iter.Seq[experiment.Params] {
	sizes := make([]int, len(dims))
	for i, d := range dims {
		sizes[i] = d.Len()
	}
	advance := func(at []int) {
		for i := len(at) - 1; i >= 0; i-- {
			if at[i]++; at[i] < sizes[i] {
				return
			}
			at[i] = 0
		}
	}
	return func(yield func(experiment.Params) bool) {
		at := make([]int, len(dims))
		if last != nil {
			copy(at, last)
			advance(at)
		}
		first := slices.Clone(at)
		for yield(settings(dims, func(i int) experiment.Value { return dims[i].Nth(at[i]) })) {
			if advance(at); slices.Equal(at, first) {
				return
			}
		}
	}
}

// digits is the inverse of a scan's settings, or nil when p is not in the space.
func digits(dims []experiment.Dim, p experiment.Params) []int {
	at := make([]int, len(dims))
	for i, d := range dims {
		// On a logarithmic range Position says where At puts the value, not which it is.
		d.Log = false
		position := d.Position(p[d.Role][d.Param])
		if math.IsNaN(position) {
			return nil
		}
		at[i] = int(position * float64(d.Len()))
	}
	return at
}
