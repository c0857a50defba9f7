// SPDX-License-Identifier: Apache-2.0

package search

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

func texts(trials []experiment.Trial) []string {
	var all []string
	for _, trial := range trials {
		all = append(all, trial.Params.String())
	}
	return all
}

func TestGridTriesCombinationsTheLastParameterFastest(t *testing.T) {
	s := spec(t, "algorithm: grid", map[string]string{
		"a": "type: bool",
		"b": "type: float, min: 0.7, max: 0.85, step: 0.05",
		"c": "type: int, min: 1, max: 4, step: 3",
	})
	history, err := search(t, s, nil, 100)
	assert.Equal(t, experiment.ErrExhausted, err)
	assert.Equal(t, []string{
		"",
		"a=false b=0.7 c=1", "a=false b=0.7 c=4", "a=false b=0.75 c=1", "a=false b=0.75 c=4",
		"a=false b=0.8 c=1", "a=false b=0.8 c=4", "a=false b=0.85 c=1", "a=false b=0.85 c=4",
		"a=true b=0.7 c=1", "a=true b=0.7 c=4", "a=true b=0.75 c=1", "a=true b=0.75 c=4",
		"a=true b=0.8 c=1", "a=true b=0.8 c=4", "a=true b=0.85 c=1", "a=true b=0.85 c=4",
	}, texts(history))
}

func TestGridOfFourKilledAfterTwoTriesTheOtherTwo(t *testing.T) {
	s := spec(t, "algorithm: grid", map[string]string{"a": "type: pow2, min: 1, max: 8"})
	two, err := search(t, s, nil, 2)
	require.NoError(t, err)
	four, err := search(t, s, two, 100)
	assert.Equal(t, experiment.ErrExhausted, err)
	assert.Equal(t, []string{"", "a=1", "a=2", "a=4", "a=8"}, texts(four))
}

func TestGridEnumeratesALogarithmicRangeOfIntegers(t *testing.T) {
	history, err := search(t, spec(t, "algorithm: grid", map[string]string{"a": "type: int, min: 1, max: 6, log: true"}), nil, 100)
	assert.Equal(t, experiment.ErrExhausted, err)
	assert.Equal(t, []string{"", "a=1", "a=2", "a=3", "a=4", "a=5", "a=6"}, texts(history))
}

func TestGridNeedsAStepForEveryFloat(t *testing.T) {
	_, err := New(spec(t, "algorithm: grid", map[string]string{
		"x": "type: float, min: 0, max: 1", "w": "type: float, min: 1, max: 2, log: true", "z": "type: float, min: 1, max: 1",
	}))
	assert.EqualError(t, err, "searchSpace.default.w: grid needs step for a float\nsearchSpace.default.x: grid needs step for a float")
}

func TestGridComesRoundToWhatWasLeftOut(t *testing.T) {
	s := spec(t, "algorithm: grid", map[string]string{"a": "type: int, min: 1, max: 5"})
	tried := func(a int64) experiment.Trial {
		return experiment.Trial{Params: experiment.Params{"default": {"a": experiment.Int(a)}}}
	}
	history, err := search(t, s, []experiment.Trial{{}, tried(2), tried(4)}, 100)
	assert.Equal(t, experiment.ErrExhausted, err)
	assert.Equal(t, []string{"", "a=2", "a=4", "a=5", "a=1", "a=3"}, texts(history))
}

func TestGridWalksSpacesLargerThanAnyInteger(t *testing.T) {
	s := spec(t, "algorithm: grid", huge())
	history, err := search(t, s, nil, 3)
	require.NoError(t, err)
	for i, trial := range history[1:] {
		want := experiment.Int(int64(i + 1))
		assert.Equal(t, want, trial.Params["default"]["p29"])
		assert.Equal(t, experiment.Int(1), trial.Params["default"]["p28"])
	}
	end := experiment.Params{"default": {}}
	for _, dim := range s.Space.Dims() {
		end["default"][dim.Param] = experiment.Int(1_000_000)
	}
	round, err := search(t, s, append(history[:1:1], experiment.Trial{Params: end}), 1)
	require.NoError(t, err)
	assert.Equal(t, history[1].Params, round[2].Params, "after the last comes the first")
}
