// SPDX-License-Identifier: Apache-2.0

package search

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/stat/distmv"
	"gonum.org/v1/gonum/stat/samplemv"

	"github.com/llmctl/llmctl/experiment"
)

func TestThePlainSequenceIsHaltons(t *testing.T) {
	two, three := newAxis(2, identity), newAxis(3, identity)
	// van der Corput's sequences in bases 2 and 3, as printed in any textbook.
	for k, want := range [][2]float64{
		{0, 0}, {1. / 2, 1. / 3}, {1. / 4, 2. / 3}, {3. / 4, 1. / 9}, {1. / 8, 4. / 9},
		{5. / 8, 7. / 9}, {3. / 8, 2. / 9}, {7. / 8, 5. / 9}, {1. / 16, 8. / 9}, {9. / 16, 1. / 27},
	} {
		assert.InDelta(t, want[0], two.at(k), 1e-15)
		assert.InDelta(t, want[1], three.at(k), 1e-15)
	}
	params := map[string]string{"x": "type: float, min: 0, max: 1", "z": "type: float, min: 0, max: 1"}
	history, err := search(t, spec(t, "algorithm: qmc, algorithmConfig: {scramble: false}", params), nil, 4)
	require.NoError(t, err)
	assert.Equal(t, []string{"", "x=0 z=0", "x=0.5 z=0.33333", "x=0.25 z=0.66667", "x=0.75 z=0.11111"}, texts(history))
}

func TestTheScrambledSequenceIsThatOfGonum(t *testing.T) {
	const points, dims = 1000, 12
	want := mat.NewDense(points, dims, nil)
	samplemv.Halton{Kind: samplemv.Owen, Q: distmv.NewUnitUniform(dims, nil), Src: rand.NewPCG(7, 8)}.Sample(want)
	permute := rand.New(rand.NewPCG(7, 8)).Perm
	for i, base := range primes(dims) {
		a := newAxis(base, permute)
		for k := range points {
			require.Equal(t, want.At(k, i), a.at(k), "point %d, coordinate %d", k, i)
		}
	}
}

func TestEveryIntervalOfAPowerOfTheBaseHoldsOnePoint(t *testing.T) {
	for seed := range uint64(10) {
		permute := rand.New(rand.NewPCG(seed, haltonStream)).Perm
		for _, base := range []int{2, 3, 5} {
			n := base * base * base
			counts := make([]int, n)
			a := newAxis(base, permute)
			for k := range n {
				counts[int(a.at(k)*float64(n))]++
			}
			for _, count := range counts {
				assert.Equal(t, 1, count)
			}
		}
	}
}

func TestAPointIsNeverAtTheOpenEnd(t *testing.T) {
	reversed := func(n int) []int {
		p := identity(n)
		for i := range p {
			p[i] = n - 1 - i
		}
		return p
	}
	for _, base := range primes(100) {
		assert.Less(t, newAxis(base, reversed).at(0), 1.0, "base %d", base)
		assert.InDelta(t, 1, newAxis(base, reversed).at(0), 1e-12)
	}
	assert.Zero(t, newAxis(2, identity).at(0))
	assert.Less(t, newAxis(3, identity).at(math.MaxInt), 1.0)
}

func TestQMCSpreadsAFewTrialsOverEveryParameter(t *testing.T) {
	params := map[string]string{"a": "type: pow2, min: 1, max: 8", "b": "type: categorical, values: [x, w, z]"}
	for _, config := range []string{"", ", algorithmConfig: {scramble: false}"} {
		history, err := search(t, spec(t, "algorithm: qmc, seed: 3"+config, params), nil, 4)
		require.NoError(t, err)
		seen := map[experiment.Value]bool{}
		for _, trial := range history[1:] {
			seen[trial.Params["default"]["a"]] = true
		}
		assert.Len(t, seen, 4, "each of four values in four trials")
	}
}
