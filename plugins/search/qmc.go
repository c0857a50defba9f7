// SPDX-License-Identifier: Apache-2.0

package search

import (
	"math"
	"math/rand/v2"
)

// qmc walks Halton's low-discrepancy sequence: n points spread over the space
// more evenly than n random ones. algorithmConfig.scramble (true by default)
// permutes the digits by the seed as Owen does in "A randomized Halton
// algorithm" (https://arxiv.org/abs/1706.02808); without it the points are the
// same for every seed, and in correlated lines from about eight dimensions on.
func qmc(c *setup) order {
	permute := identity
	if c.truth("scramble", true) {
		permute = rand.New(rand.NewPCG(c.Strategy.Seed, haltonStream)).Perm
	}
	var axes []axis
	for _, base := range primes(len(c.Space.Dims())) {
		axes = append(axes, newAxis(base, permute))
	}
	return draws(c.Space, func() func(point []float64) {
		k := 0
		return func(point []float64) {
			for i := range point {
				point[i] = axes[i].at(k)
			}
			k++
		}
	})
}

// axis is one coordinate of the sequence: the digits of the point's number in
// the base, permuted, mirrored at the radix point.
type axis struct {
	base         int
	permutations [][]int // of the digits, the lowest first, as many as a float64 can tell apart
}

func newAxis(base int, permute func(n int) []int) axis {
	a := axis{base: base}
	for weight := 1 / float64(base); 1-weight < 1; weight /= float64(base) {
		a.permutations = append(a.permutations, permute(base))
	}
	return a
}

// at is the coordinate of the k-th point, in [0, 1).
func (a axis) at(k int) float64 {
	x, weight := 0.0, 1/float64(a.base)
	for _, permutation := range a.permutations {
		x += float64(permutation[k%a.base]) * weight
		k /= a.base
		weight /= float64(a.base)
	}
	return min(x, math.Nextafter(1, 0)) // the sum of many digits may be rounded up to 1
}

func identity(n int) []int {
	p := make([]int, n)
	for i := range p {
		p[i] = i
	}
	return p
}

// primes are the first n prime numbers.
func primes(n int) []int {
	var found []int
	for candidate := 2; len(found) < n; candidate++ {
		prime := true
		for _, p := range found {
			prime = prime && candidate%p != 0
		}
		if prime {
			found = append(found, candidate)
		}
	}
	return found
}
