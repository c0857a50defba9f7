// SPDX-License-Identifier: Apache-2.0

package search

import (
	"iter"
	"math/rand/v2"
	"slices"

	"github.com/llmctl/llmctl/experiment"
)

// maxDraws is how many points of a stream are looked at in search of a new
// setting; drawsPerSetting is the same relative to the size of a small space.
// A setting that has its fair share of the points is missed by 20 per setting
// once in e^20 times.
const (
	maxDraws        = 100_000
	drawsPerSetting = 20
)

// Second halves of the generators' seeds: algorithms with one strategy.seed
// draw independently.
const (
	randomStream = 1
	haltonStream = 2
)

// random draws evenly over the domains, over their logarithm where they say so.
func random(c *setup) order {
	return draws(c.Space, func() func(point []float64) {
		source := rand.New(rand.NewPCG(c.Strategy.Seed, randomStream))
		return func(point []float64) {
			for i := range point {
				point[i] = source.Float64()
			}
		}
	})
}

// draws yields the settings at the points of a stream over the unit cube, which
// start begins anew. What a stream is slow to reach in a finite space follows in
// the grid's order, so that every setting comes; in an infinite one the end
// means that maxDraws points hold nothing new.
func draws(space experiment.Space, start func() func(point []float64)) order {
	dims := space.Dims()
	return func([]experiment.Trial) iter.Seq[experiment.Params] {
		return func(yield func(experiment.Params) bool) {
			limit := maxDraws
			if size := space.Size(); size > 0 && size < maxDraws/drawsPerSetting {
				limit = size * drawsPerSetting
			}
			point, next := make([]float64, len(dims)), start()
			for range limit {
				next(point)
				if !yield(settings(dims, func(i int) experiment.Value { return dims[i].At(point[i]) })) {
					return
				}
			}
			if !endless(dims) {
				scan(dims, nil)(yield)
			}
		}
	}
}

// endless tells whether a dimension is continuous, so that no scan would do.
func endless(dims []experiment.Dim) bool {
	return slices.ContainsFunc(dims, func(d experiment.Dim) bool { return d.Len() == 0 })
}
