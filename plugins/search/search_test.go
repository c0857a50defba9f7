// SPDX-License-Identifier: Apache-2.0

package search

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

// spec loads an experiment with the strategy and the parameters, and with what
// else is given, as they stand in a file.
func spec(t testing.TB, strategy string, params map[string]string, more ...string) *experiment.Spec {
	t.Helper()
	var space strings.Builder
	for name, domain := range params {
		fmt.Fprintf(&space, "    %s: {%s}\n", name, domain)
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "small.yaml"), []byte("kind: Deployment\n"), 0o600))
	path := filepath.Join(dir, "experiment.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`
name: demo
templates: [{name: small, template: small.yaml}]
backend: vllm
scenario: {workload: "fixed(512,128)", concurrency: 32}
objectives: {sla: {ttftP99MaxMs: 500}}
searchSpace:
  default:
`+space.String()+"strategy: {"+strategy+"}\n"+strings.Join(more, "\n")), 0o600))
	s, err := experiment.Load(path)
	require.NoError(t, err)
	return s
}

// every has a parameter of each discrete type: 3 · 2 · 2 · 2 · 2 = 48 settings.
func every() map[string]string {
	return map[string]string{
		"batch":    "type: pow2, min: 4, max: 16",
		"eager":    "type: bool",
		"policy":   "type: categorical, values: [lpm, random]",
		"replicas": "type: int, min: 1, max: 2, log: true",
		"memory":   "type: float, min: 0.7, max: 0.8, step: 0.1",
	}
}

// search runs a search of at most n trials after the baseline; each proposal
// comes from a searcher that is made anew, as after an interruption.
func search(t testing.TB, s *experiment.Spec, history []experiment.Trial, n int) ([]experiment.Trial, error) {
	t.Helper()
	if history == nil {
		history = []experiment.Trial{{}}
	}
	for range n {
		searcher, err := New(s)
		require.NoError(t, err)
		p, err := searcher.Next(t.Context(), history)
		if err != nil {
			return history, err
		}
		history = append(history, experiment.Trial{Index: len(history), Params: p})
	}
	return history, nil
}

func TestEverySettingOfAFiniteSpaceIsProposedExactlyOnce(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			s := spec(t, "algorithm: "+name, every())
			history, err := search(t, s, nil, 1000)
			assert.Equal(t, experiment.ErrExhausted, err)
			require.Len(t, history, 1+48)
			seen := map[string]bool{}
			for _, trial := range history {
				seen[trial.Params.Key()] = true
			}
			assert.Len(t, seen, 1+48)
			for _, dim := range s.Space.Dims() {
				for i := range dim.Len() {
					count := 0
					for _, trial := range history[1:] {
						if trial.Params[dim.Role][dim.Param] == dim.Nth(i) {
							count++
						}
					}
					assert.Equal(t, 48/dim.Len(), count, "%s=%s", dim.Param, dim.Nth(i))
				}
			}
		})
	}
}

func TestAnInterruptedSearchGoesOnAsIfItHadNotBeen(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, name := range Names() {
		for seed := range 3 {
			t.Run(fmt.Sprint(name, seed), func(t *testing.T) {
				params := every()
				if name != "grid" {
					params["load"] = "type: float, min: 0.01, max: 10, log: true"
				}
				s := spec(t, fmt.Sprintf("algorithm: %s, seed: %d", name, seed), params, `constraints: ["batch != 8 || !eager"]`)
				whole, err := search(t, s, nil, 25)
				require.NoError(t, err)
				for range 3 {
					// The history comes from a checkpoint.
					data, err := json.Marshal(whole[:1+random.IntN(len(whole))])
					require.NoError(t, err)
					var history []experiment.Trial
					require.NoError(t, json.Unmarshal(data, &history))
					resumed, err := search(t, s, history, len(whole)-len(history))
					require.NoError(t, err)
					require.Equal(t, whole, resumed)
				}
			})
		}
	}
}

func TestWhatWasTriedInAnyOrderIsNotProposedAgain(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			s := spec(t, "algorithm: "+name, every())
			all, err := search(t, s, nil, 1000)
			require.ErrorIs(t, err, experiment.ErrExhausted)
			for range 2 {
				some := all[1:]
				random.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
				history := append([]experiment.Trial{{}, {Params: experiment.Params{"default": {"gone": experiment.Int(1)}}}}, some[:random.IntN(48)]...)
				rest, err := search(t, s, history, 1000)
				require.ErrorIs(t, err, experiment.ErrExhausted)
				assert.Len(t, rest, 2+48)
				seen := map[string]bool{}
				for _, trial := range rest {
					assert.False(t, seen[trial.Params.Key()], trial.Params)
					seen[trial.Params.Key()] = true
				}
			}
		})
	}
}

func TestTheSeedDecidesTheProposals(t *testing.T) {
	for _, name := range []string{"qmc", "random"} {
		t.Run(name, func(t *testing.T) {
			params := func(seed int) []experiment.Trial {
				history, err := search(t, spec(t, fmt.Sprintf("algorithm: %s, seed: %d", name, seed), every()), nil, 10)
				require.NoError(t, err)
				return history
			}
			assert.Equal(t, params(1), params(1))
			assert.NotEqual(t, params(1), params(2))
		})
	}
	assert.NotEqual(t, first(t, "qmc", 10), first(t, "random", 10))
}

// first gives the first n settings of an algorithm's order over one continuous parameter.
func first(t *testing.T, name string, n int) []experiment.Params {
	t.Helper()
	o, problems := build(spec(t, "algorithm: "+name, map[string]string{"x": "type: float, min: 0, max: 1"}))
	require.Empty(t, problems)
	return take(o(nil), n)
}

func take(seq iter.Seq[experiment.Params], n int) []experiment.Params {
	var taken []experiment.Params
	for p := range seq {
		if taken = append(taken, p); len(taken) == n {
			break
		}
	}
	return taken
}

func TestConstraintsFilterTheProposals(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			s := spec(t, "algorithm: "+name, every(), `constraints: ["batch * replicas <= 16", "policy == 'lpm'"]`)
			history, err := search(t, s, nil, 1000)
			assert.Equal(t, experiment.ErrExhausted, err)
			assert.Len(t, history, 1+(2+2+1)*2*2) // pairs of batch and replicas · eager · memory
			for _, trial := range history[1:] {
				ok, err := s.Constraints.Allow(trial.Params)
				require.NoError(t, err)
				assert.True(t, ok, trial.Params)
			}
		})
	}
}

func TestConstraintsThatExcludeEverythingEndTheSearch(t *testing.T) {
	for _, name := range Names() {
		_, err := search(t, spec(t, "algorithm: "+name, every(), `constraints: ["batch > 16"]`), nil, 1)
		assert.Equal(t, experiment.ErrExhausted, err, name)
	}
	continuous := map[string]string{"x": "type: float, min: 0, max: 1"}
	_, err := search(t, spec(t, "algorithm: random", continuous, `constraints: ["x > 2.0"]`), nil, 1)
	assert.ErrorIs(t, err, experiment.ErrExhausted)
	assert.EqualError(t, err, "search space exhausted: 100000 points hold nothing new that the constraints allow")
}

// huge has 10^180 settings.
func huge() map[string]string {
	params := map[string]string{}
	for i := range 30 {
		params[fmt.Sprintf("p%02d", i)] = "type: int, min: 1, max: 1000000"
	}
	return params
}

func TestASearchOfAHugeSpaceGivesUpWhenFarTooMuchIsExcluded(t *testing.T) {
	for _, name := range Names() {
		s := spec(t, "algorithm: "+name, huge(), `constraints: ["p00 > 1000000"]`)
		o, problems := build(s)
		require.Empty(t, problems)
		_, err := searcher{o, s.Space, s.Constraints, 100}.Next(t.Context(), nil)
		assert.ErrorIs(t, err, experiment.ErrExhausted)
		assert.EqualError(t, err, "search space exhausted: 100 settings in a row are excluded by the constraints", name)
	}
}

func TestACancelledSearchReturns(t *testing.T) {
	for _, name := range Names() {
		searcher, err := New(spec(t, "algorithm: "+name, huge(), `constraints: ["p00 > 1000000"]`))
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err = searcher.Next(ctx, nil)
		cancel()
		assert.Equal(t, context.DeadlineExceeded, err, name)
	}
}

func TestAConstraintThatCannotBeEvaluatedStopsTheSearch(t *testing.T) {
	for _, name := range Names() {
		_, err := search(t, spec(t, "algorithm: "+name, every(), `constraints: ["roles['none']['x'] > 1"]`), nil, 1)
		assert.ErrorContains(t, err, "constraints[0] with batch=")
		assert.NotErrorIs(t, err, experiment.ErrExhausted)
	}
}

func TestAFileThatTheAlgorithmCannotSearchIsRefused(t *testing.T) {
	discrete := map[string]string{"x": "type: int, min: 1, max: 2"}
	for strategy, want := range map[string]string{
		"algorithm: tpe":       "strategy.algorithm: tpe: not yet; use grid, qmc or random",
		"algorithm: gp":        "strategy.algorithm: gp: not yet; use grid, qmc or random",
		"algorithm: cmaes":     "strategy.algorithm: cmaes: not yet; use grid, qmc or random",
		"algorithm: nsgaii":    "strategy.algorithm: nsgaii: not yet; use grid, qmc or random",
		"algorithm: nsgaiii":   "strategy.algorithm: nsgaiii: not yet; use grid, qmc or random",
		"algorithm: hillclimb": "strategy.algorithm: hillclimb: unknown; use grid, qmc or random",
		"algorithm: Grid":      "strategy.algorithm: Grid: unknown; use grid, qmc or random",
		"algorithm: \"\"":      "strategy.algorithm: : unknown; use grid, qmc or random",
		"algorithm: grid, algorithmConfig: {seed: 1}":                 "strategy.algorithmConfig.seed: unknown key; grid takes none",
		"algorithm: random, algorithmConfig: {n: 1}":                  "strategy.algorithmConfig.n: unknown key; random takes none",
		"algorithm: qmc, algorithmConfig: {qmcType: halton}":          "strategy.algorithmConfig.qmcType: unknown key; qmc takes scramble",
		"algorithm: qmc, algorithmConfig: {scramble: 1}":              "strategy.algorithmConfig.scramble: must be true or false, is 1",
		"algorithm: qmc, algorithmConfig: {scramble: 1, Scramble: 1}": "strategy.algorithmConfig.scramble: must be true or false, is 1\nstrategy.algorithmConfig.Scramble: unknown key; qmc takes scramble",
	} {
		s := spec(t, strategy, discrete)
		searcher, err := New(s)
		assert.EqualError(t, err, want)
		assert.Nil(t, searcher)
		var lines []string
		for _, p := range Check(s) {
			lines = append(lines, p.String())
		}
		assert.Equal(t, want, strings.Join(lines, "\n"))
	}
}

func TestWorkingNamesAreThoseThatNewAccepts(t *testing.T) {
	assert.Equal(t, []string{"grid", "qmc", "random"}, Names())
	for _, name := range Names() {
		assert.Empty(t, Check(spec(t, "algorithm: "+name, map[string]string{"x": "type: bool"})))
	}
	assert.Empty(t, Check(spec(t, "algorithm: qmc, algorithmConfig: {scramble: false}", map[string]string{"x": "type: bool"})))
}

func BenchmarkNextAfter1000(b *testing.B) {
	params := map[string]string{
		"maxNumSeqs": "type: int, min: 1, max: 4096", "chunk": "type: pow2, min: 1, max: 1048576",
		"memory": "type: float, min: 0.5, max: 0.95, step: 0.001", "eager": "type: bool", "policy": "type: categorical, values: [a, b, c]",
	}
	for _, name := range Names() {
		b.Run(name, func(b *testing.B) {
			s := spec(b, "algorithm: "+name, params)
			o, problems := build(s)
			require.Empty(b, problems)
			history := []experiment.Trial{{}}
			for _, p := range take(o(nil), 1000) {
				history = append(history, experiment.Trial{Params: p})
			}
			searcher, err := New(s)
			require.NoError(b, err)
			for b.Loop() {
				_, err := searcher.Next(b.Context(), history)
				require.NoError(b, err)
			}
		})
	}
}
