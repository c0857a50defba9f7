// SPDX-License-Identifier: Apache-2.0

package search

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

// chiSquare is Pearson's statistic of counts that should all be equal.
func chiSquare(counts []int) float64 {
	total, sum := 0, 0.0
	for _, n := range counts {
		total += n
	}
	expected := float64(total) / float64(len(counts))
	for _, n := range counts {
		sum += (float64(n) - expected) * (float64(n) - expected) / expected
	}
	return sum
}

func TestRandomDrawsAreEvenOverEveryDomainAndIndependent(t *testing.T) {
	s := spec(t, "algorithm: random, seed: 42", map[string]string{
		"a": "type: float, min: 0.5, max: 0.95",
		"b": "type: float, min: 0.001, max: 1000, log: true",
		"c": "type: int, min: 1, max: 1000000, log: true",
		"d": "type: int, min: 0, max: 99999",
		"e": "type: categorical, values: [v, w, x, u, z]",
	})
	o, problems := build(s)
	require.Empty(t, problems)
	draws := take(o(nil), 5000)
	// The 99.9 % points of the chi-square distribution (NIST/SEMATECH e-Handbook, 1.3.6.7.4).
	const with4, with24 = 18.467, 51.179
	cell := func(d experiment.Dim, p experiment.Params) int { return int(d.Position(p[d.Role][d.Param]) * 5) }
	dims := s.Space.Dims()
	for i, d := range dims {
		counts := make([]int, 5)
		pairs := make([]int, 25)
		other := dims[(i+1)%len(dims)]
		for _, p := range draws {
			counts[cell(d, p)]++
			pairs[5*cell(d, p)+cell(other, p)]++
		}
		assert.Less(t, chiSquare(counts), with4, d.Param)
		assert.Less(t, chiSquare(pairs), with24, "%s and %s", d.Param, other.Param)
	}
}

func TestBothEndsOfALogarithmicRangeAreReached(t *testing.T) {
	for _, name := range []string{"qmc", "random"} {
		o, problems := build(spec(t, "algorithm: "+name, map[string]string{"a": "type: int, min: 1, max: 64, log: true"}))
		require.Empty(t, problems)
		seen := map[experiment.Value]int{}
		for _, p := range take(o(nil), 64*drawsPerSetting) { // before the scan of what is left
			seen[p["default"]["a"]]++
		}
		assert.Len(t, seen, 64, name)
		assert.Greater(t, seen[experiment.Int(1)], 10*seen[experiment.Int(64)], name)
	}
}
