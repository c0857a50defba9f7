// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func goals(bounds ...Bound) Objectives {
	return Objectives{Bounds: bounds, Optimize: "outputThroughput"}
}

// measured is a trial's metrics with one latency.
func measured(throughput, ttft float64) *Metrics {
	return &Metrics{OutputThroughput: &throughput, TTFT: Distribution{P99: &ttft, N: 100}, ErrorRate: f64(0)}
}

func TestAnUnusableMetricMeetsNoBound(t *testing.T) {
	upper, lower := Bound{"tpotP99", true, 50}, Bound{"outputThroughput", false, 1}
	for name, v := range map[string]*float64{
		"missing": nil, "NaN": f64(math.NaN()), "infinite": f64(math.Inf(1)), "negative": f64(-1.7e12),
	} {
		t.Run(name, func(t *testing.T) {
			m := &Metrics{TPOT: Distribution{P99: v}, OutputThroughput: v}
			want := []Violation{{Bound: "tpotP99MaxMs", Limit: 50, Why: "metric_unavailable"}, {Bound: "outputThroughputMin", Limit: 1, Why: "metric_unavailable"}}
			assert.Equal(t, want, goals(upper, lower).Violations(m))
		})
	}
	assert.Len(t, goals(upper).Violations(&Metrics{TPOT: Distribution{P99: f64(0)}}), 1, "a latency of 0 was never filled in")
	assert.Len(t, goals(upper).Violations(nil), 1, "no metrics at all")
}

func TestBoundsIncludeTheirLimit(t *testing.T) {
	for name, c := range map[string]struct {
		bound  Bound
		value  float64
		missed bool
	}{
		"upper met":      {Bound{"ttftP99", true, 100}, 100, false},
		"upper missed":   {Bound{"ttftP99", true, 100}, 100.1, true},
		"lower met":      {Bound{"outputThroughput", false, 100}, 100, false},
		"lower missed":   {Bound{"outputThroughput", false, 100}, 99.9, true},
		"no errors":      {Bound{"errorRate", true, 0}, 0, false},
		"some errors":    {Bound{"errorRate", true, 0}, 0.01, true},
		"survivors":      {Bound{"errorRate", true, 1}, 0.99, true},
		"tolerable rate": {Bound{"errorRate", true, 1}, 0.5, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := &Metrics{TTFT: Distribution{P99: &c.value}, OutputThroughput: &c.value, ErrorRate: &c.value}
			assert.Equal(t, c.missed, len(goals(c.bound).Violations(m)) > 0)
		})
	}
}

func TestViolationsSayByHowMuch(t *testing.T) {
	v := goals(Bound{"ttftP99", true, 100}).Violations(measured(1, 150))
	require.Len(t, v, 1)
	assert.Equal(t, "ttftP99MaxMs 100: measured 150 (50.0 % beyond)", v[0].String())
	v = goals(Bound{"ttftP99", true, 100}).Violations(&Metrics{})
	assert.Equal(t, "ttftP99MaxMs 100: metric_unavailable", v[0].String())
}

func TestCleanKeepsTheRecordOfABadFigure(t *testing.T) {
	m := measured(math.NaN(), -3)
	m.clean()
	assert.Nil(t, m.OutputThroughput)
	assert.Nil(t, m.TTFT.P99)
	assert.Equal(t, []string{
		"outputThroughput was not a usable number (NaN) and is treated as not measured",
		"ttftP99 was not a usable number (-3) and is treated as not measured",
	}, m.Warnings)
	_, err := json.Marshal(m)
	require.NoError(t, err)
}

func judged(template string, index int, m *Metrics, o Objectives) Trial {
	t := Trial{Template: template, Index: index, Metrics: m}
	t.judge(o)
	return t
}

func TestBestIsTheBestFeasibleTrial(t *testing.T) {
	o := goals(Bound{"ttftP99", true, 100})
	states := []TemplateState{{Name: "a", Trials: []Trial{
		judged("a", 0, measured(500, 50), o),
		judged("a", 1, measured(900, 150), o), // fastest, but violates
		judged("a", 2, measured(700, 90), o),
		{Template: "a", Index: 3, Error: "crash"},
		judged("a", 4, measured(700, 90), o), // equal: the earlier one stays
	}}}
	best := FindBest(o, states)
	require.NotNil(t, best)
	assert.Equal(t, 2, best.Index)
	assert.Equal(t, 700.0, best.Score)
	assert.InDelta(t, 0.4, *best.Gain, 1e-12)
	assert.True(t, best.BaselineFeasible)
	assert.Nil(t, NearestMiss(states))
}

// A4: a difference inside the noise is a tie.
func TestADifferenceInsideTheNoiseIsATie(t *testing.T) {
	o := goals(Bound{"ttftP99", true, 100})
	trial := func(template string, index int, score, margin float64) Trial {
		m := measured(score, 50)
		m.Margins = map[string]float64{o.Optimize: margin}
		return judged(template, index, m, o)
	}
	a := TemplateState{Name: "a", Trials: []Trial{trial("a", 0, 500, 30), trial("a", 1, 700, 30), trial("a", 2, 660, 40), trial("a", 3, 640, 40), judged("a", 4, measured(699, 150), o)}}
	b := TemplateState{Name: "b", Trials: []Trial{trial("b", 0, 680, 30)}}

	best := FindBest(o, []TemplateState{a, b})
	assert.Equal(t, 1, best.Index)
	assert.Equal(t, f64(30), best.Margin)
	assert.Equal(t, []Tie{{"a", 2, nil, 660}, {"b", 0, nil, 680}}, best.Ties, "60 is more than √(30² + 40²), what violates does not count")

	assert.False(t, best.NoGain(), "another template's is not meant")

	a.Trials[0] = trial("a", 0, 660, 40)
	best = FindBest(o, []TemplateState{a, b})
	assert.Equal(t, 1, best.Index)
	assert.True(t, best.NoGain())
	assert.Equal(t, []Tie{{"a", 0, nil, 660}, {"a", 2, nil, 660}, {"b", 0, nil, 680}}, best.Ties)

	exact := FindBest(o, []TemplateState{{Name: "a", Trials: []Trial{judged("a", 0, measured(500, 50), o), judged("a", 1, measured(500.1, 50), o)}}})
	assert.Equal(t, 1, exact.Index)
	assert.Empty(t, exact.Ties, "where no margin is known, numbers are taken as they are")
	assert.Nil(t, exact.Margin)
}

func TestBestOfALatencyIsTheLowest(t *testing.T) {
	o := Objectives{Bounds: []Bound{{"ttftP99", true, 100}}, Optimize: "ttftP99"}
	best := FindBest(o, []TemplateState{{Name: "a", Trials: []Trial{judged("a", 0, measured(1, 80), o), judged("a", 1, measured(1, 60), o)}}})
	assert.Equal(t, 1, best.Index)
	assert.InDelta(t, 0.25, *best.Gain, 1e-12)
}

func TestNothingFeasibleGivesNoBestButANearestMiss(t *testing.T) {
	o := goals(Bound{"ttftP99", true, 100}, Bound{"tpotP99", true, 10})
	far, near, blind := measured(900, 300), measured(100, 110), measured(999, 101)
	far.TPOT.P99, near.TPOT.P99 = f64(5), f64(10.5)
	states := []TemplateState{{Name: "a", Trials: []Trial{judged("a", 0, far, o), judged("a", 1, near, o), judged("a", 2, blind, o)}}}
	assert.Nil(t, FindBest(o, states))
	assert.Equal(t, 1, NearestMiss(states).Index, "a missing metric is further away than any excess")
}

func TestATrialWithoutTheMetricToOptimiseIsNotFeasible(t *testing.T) {
	trial := judged("a", 0, &Metrics{TTFT: Distribution{P99: f64(1)}}, goals(Bound{"ttftP99", true, 100}))
	assert.Equal(t, Violated, trial.Outcome())
}

func TestRejudgingFollowsTheNewObjectives(t *testing.T) {
	state := TemplateState{Trials: []Trial{judged("a", 0, measured(500, 400), goals(Bound{"ttftP99", true, 500}))}}
	require.Equal(t, Feasible, state.Trials[0].Outcome())
	state.Rejudge(goals(Bound{"ttftP99", true, 300}))
	assert.Equal(t, Violated, state.Trials[0].Outcome())
}

func TestStop(t *testing.T) {
	o := goals(Bound{"ttftP99", true, 100})
	sequence := func(outcomes string) []Trial {
		var trials []Trial
		for i, c := range outcomes {
			switch c {
			case 'f':
				trials = append(trials, judged("a", i, measured(1, 50), o))
			case 'v':
				trials = append(trials, judged("a", i, measured(1, 200), o))
			default:
				trials = append(trials, Trial{Error: "crash"})
			}
		}
		return trials
	}
	for name, c := range map[string]struct {
		rules  EarlyTermination
		trials string
		want   string
	}{
		"no rules":                     {EarlyTermination{}, "eeeevvvv", ""},
		"two errors":                   {EarlyTermination{MaxConsecutiveErrors: 3}, "fee", ""},
		"three errors":                 {EarlyTermination{MaxConsecutiveErrors: 3}, "feee", "3 consecutive execution errors reached maxConsecutiveErrors 3"},
		"errors before minTrials":      {EarlyTermination{MaxConsecutiveErrors: 3, MinTrials: 10}, "eee", "3 consecutive execution errors reached maxConsecutiveErrors 3"},
		"a success resets errors":      {EarlyTermination{MaxConsecutiveErrors: 3}, "eefe", ""},
		"a miss is no error":           {EarlyTermination{MaxConsecutiveErrors: 3}, "vvv", ""},
		"misses":                       {EarlyTermination{MaxConsecutiveSLAFailures: 3}, "fvvv", "3 consecutive SLA failures reached maxConsecutiveSLAFailures 3"},
		"an error between misses":      {EarlyTermination{MaxConsecutiveSLAFailures: 3}, "vevev", "3 consecutive SLA failures reached maxConsecutiveSLAFailures 3"},
		"errors are no misses":         {EarlyTermination{MaxConsecutiveSLAFailures: 3}, "veee", ""},
		"a pass resets misses":         {EarlyTermination{MaxConsecutiveSLAFailures: 2}, "vfv", ""},
		"misses wait for minTrials":    {EarlyTermination{MaxConsecutiveSLAFailures: 2, MinTrials: 4}, "vvv", ""},
		"minTrials counts errors":      {EarlyTermination{MaxConsecutiveSLAFailures: 2, MinTrials: 4}, "vvev", "3 consecutive SLA failures reached maxConsecutiveSLAFailures 2"},
		"rate reached":                 {EarlyTermination{MaxSLAFailureRate: 0.5}, "fv", "SLA failure rate 0.50 (1 of 2 measured trials) reached maxSLAFailureRate 0.5"},
		"rate of one":                  {EarlyTermination{MaxSLAFailureRate: 1}, "vv", "SLA failure rate 1.00 (2 of 2 measured trials) reached maxSLAFailureRate 1"},
		"rate not reached":             {EarlyTermination{MaxSLAFailureRate: 0.5}, "ffv", ""},
		"errors are not in the rate":   {EarlyTermination{MaxSLAFailureRate: 0.5}, "ffeev", ""},
		"errors alone have no rate":    {EarlyTermination{MaxSLAFailureRate: 0.1}, "ee", ""},
		"the first rule wins":          {EarlyTermination{MaxConsecutiveErrors: 1, MaxSLAFailureRate: 0.1}, "ve", "1 consecutive execution errors reached maxConsecutiveErrors 1"},
		"no trials":                    {EarlyTermination{MaxConsecutiveErrors: 1, MaxConsecutiveSLAFailures: 1, MaxSLAFailureRate: 1}, "", ""},
		"baseline counts as any trial": {EarlyTermination{MaxConsecutiveSLAFailures: 1}, "v", "1 consecutive SLA failures reached maxConsecutiveSLAFailures 1"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, Strategy{EarlyTermination: c.rules}.Stop(sequence(c.trials)))
		})
	}
}

func TestWorkloadNamesFitEveryKind(t *testing.T) {
	long := "70b-" + "abcdefghijklmnopqrstuvwxyz-abcdefghijklmnopqrstuvwxyz"
	names := map[string]bool{}
	for _, experiment := range []string{long, long + "2", "x", "a_b.c", "1.2.3"} {
		for _, index := range []int{0, 7, 123, 100000} {
			name := WorkloadName(experiment, "tmpl", index)
			assert.Regexp(t, `^[a-z][a-z0-9-]*-[0-9a-f]{8}-\d+$`, name)
			assert.LessOrEqual(t, len(name), MaxWorkloadName)
			assert.False(t, names[name])
			names[name] = true
		}
	}
}

func TestAPartialLoadMeetsNoSLAHoweverGoodItsFigures(t *testing.T) {
	o := Objectives{Optimize: "outputThroughput", Bounds: []Bound{{"ttftP99", true, 500}}}
	m := measured(100, 50)
	require.Empty(t, o.Violations(m))
	m.Partial = "20 failures in a row"
	missed := o.Violations(m)
	require.Len(t, missed, 1)
	assert.Equal(t, "20 failures in a row", missed[0].String())
}
