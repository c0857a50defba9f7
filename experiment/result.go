// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"hash/crc32"
	"slices"
	"time"
)

func checksum(data []byte) uint32 { return crc32.ChecksumIEEE(data) }

// Status is where an experiment stands.
type Status string

// The statuses of an experiment.
const (
	Running     Status = "running"
	Completed   Status = "completed"
	Interrupted Status = "interrupted" // Ctrl-C or a crash; resume goes on
	TimedOut    Status = "timed_out"   // strategy.timeout; resume goes on
	Failed      Status = "failed"      // stopped by an error such as a full disk; resume goes on
)

// Head is the apiVersion and kind of a file.
type Head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// The heads of result.json and report.json.
var (
	resultHead  = Head{APIVersion, Kind + "Result"}
	summaryHead = Head{APIVersion, Kind + "Summary"}

	measurementHead = Head{APIVersion, "Measurement"}
)

// Measurement is one load outside an experiment: the shape of llmctl bench -o json.
type Measurement struct {
	Head
	URL        string      `json:"url"`
	Model      string      `json:"model"`
	Started    time.Time   `json:"started"`
	Scenario   Scenario    `json:"scenario"`
	Objectives Objectives  `json:"objectives"`
	Metrics    *Metrics    `json:"metrics"`
	Violations []Violation `json:"violations,omitempty"`
}

// NewMeasurement judges the metrics of a target by the objectives. Metrics that
// are no numbers are left out of them.
func NewMeasurement(t Target, s Scenario, o Objectives, started time.Time, m *Metrics) *Measurement {
	m.clean()
	return &Measurement{
		Head: measurementHead, URL: t.BaseURL, Model: t.Model, Started: started,
		Scenario: s, Objectives: o, Metrics: m, Violations: o.Violations(m),
	}
}

// NewResult is the result of an experiment that has not begun.
func NewResult(s *Spec) *Result { return &Result{Head: resultHead, Name: s.Name, Config: s} }

// Result is everything about an experiment: the shape of result.json and of
// status -o json.
type Result struct {
	Head
	Name      string          `json:"name"`
	Status    Status          `json:"status"`
	Error     string          `json:"error,omitempty"`  // what stopped a failed run
	Source    string          `json:"source,omitempty"` // the file that run was given
	Started   time.Time       `json:"started"`
	Updated   time.Time       `json:"updated"`
	Config    *Spec           `json:"config"`
	Best      *Best           `json:"best"` // nil when nothing is feasible
	Templates []TemplateState `json:"templates"`
}

// Best is the winner and what it is better than.
type Best struct {
	Template string  `json:"template"`
	Index    int     `json:"index"`
	Params   Params  `json:"params,omitempty"`
	Metric   string  `json:"metric"`
	Score    float64 `json:"score"`
	// Margin is how far off Score may be; see Metrics.Margins. Nil: it is not known.
	Margin *float64 `json:"margin,omitempty"`
	// Baseline is the score of the same template unchanged; nil when trial 0 has none.
	Baseline         *float64 `json:"baseline"`
	BaselineFeasible bool     `json:"baselineFeasible"`
	// Gain is the improvement over Baseline in the metric's good direction,
	// relative to it: 0.2 is 20 %.
	Gain *float64 `json:"gain"`
	// Ties are the other feasible trials of which it cannot be said that they are
	// worse: their difference is inside the margins of the two measurements.
	Ties []Tie `json:"ties,omitempty"`
}

// Tied tells whether a trial is one of the ties.
func (b *Best) Tied(template string, index int) bool {
	return slices.ContainsFunc(b.Ties, func(t Tie) bool { return t.Template == template && t.Index == index })
}

// NoGain tells whether the template unchanged is one of the ties: then nothing is
// known to be better than it.
func (b *Best) NoGain() bool { return b.Tied(b.Template, 0) }

// Tie is a trial that may be as good as the best.
type Tie struct {
	Template string  `json:"template"`
	Index    int     `json:"index"`
	Params   Params  `json:"params,omitempty"`
	Score    float64 `json:"score"`
}

// FindBest derives the winner over all templates: the best score among the
// feasible trials, the earlier one where scores are equal. Nil when there is none.
func FindBest(o Objectives, templates []TemplateState) *Best {
	var best *Trial
	var feasible []*Trial
	for i := range templates {
		for j := range templates[i].Trials {
			t := &templates[i].Trials[j]
			if t.Outcome() != Feasible {
				continue
			}
			feasible = append(feasible, t)
			if best == nil || o.Better(*t.Score, *best.Score) {
				best = t
			}
		}
	}
	if best == nil {
		return nil
	}
	b := &Best{Template: best.Template, Index: best.Index, Params: best.Params, Metric: o.Optimize, Score: *best.Score, Margin: best.Metrics.Margin(o.Optimize)}
	for _, t := range feasible {
		if t != best && o.tied(best, t) {
			b.Ties = append(b.Ties, Tie{t.Template, t.Index, t.Params, *t.Score})
		}
	}
	for _, state := range templates {
		if state.Name == best.Template && len(state.Trials) > 0 {
			b.compare(o, state.Trials[0])
		}
	}
	return b
}

func (b *Best) compare(o Objectives, baseline Trial) {
	if baseline.Score == nil {
		return
	}
	b.Baseline, b.BaselineFeasible = baseline.Score, baseline.Outcome() == Feasible
	if *b.Baseline > 0 {
		gain := b.Score / *b.Baseline - 1
		if !metrics[o.Optimize].Higher {
			gain = -gain
		}
		b.Gain = &gain
	}
}

// NearestMiss derives the measured trial that came closest to the SLA: fewest
// missing metrics, then smallest sum of excesses, the earlier one where equal.
// Nil when no trial was measured or one is feasible.
func NearestMiss(templates []TemplateState) *Trial {
	var nearest *Trial
	var least [2]float64
	for i := range templates {
		for j := range templates[i].Trials {
			t := &templates[i].Trials[j]
			switch t.Outcome() {
			case Feasible:
				return nil
			case Errored:
				continue
			}
			var distance [2]float64
			for _, v := range t.Violations {
				if v.Bound == partialLoad {
					continue
				}
				if v.Excess == nil {
					distance[0]++
				} else {
					distance[1] += *v.Excess
				}
			}
			if nearest == nil || distance[0] < least[0] || (distance[0] == least[0] && distance[1] < least[1]) {
				nearest, least = t, distance
			}
		}
	}
	return nearest
}

// Summary is the short form of a Result: the shape of report.json, small enough
// that a thousand of them can be listed at once.
type Summary struct {
	Head
	Name      string            `json:"name"`
	Status    Status            `json:"status"`
	Error     string            `json:"error,omitempty"`
	Started   time.Time         `json:"started"`
	Updated   time.Time         `json:"updated"`
	Templates []TemplateSummary `json:"templates"`
	Best      *Best             `json:"best"`
}

// TemplateSummary counts the trials of one template by outcome.
type TemplateSummary struct {
	Name              string `json:"name"`
	Completed         bool   `json:"completed"`
	TerminationReason string `json:"terminationReason,omitempty"`
	Trials            int    `json:"trials"`
	Feasible          int    `json:"feasible"`
	Violated          int    `json:"violated"`
	Errors            int    `json:"errors"`
}

// Summary derives the short form.
func (r *Result) Summary() Summary {
	s := Summary{Head: summaryHead, Name: r.Name, Status: r.Status, Error: r.Error, Started: r.Started, Updated: r.Updated, Best: r.Best}
	for _, t := range r.Templates {
		s.Templates = append(s.Templates, t.summary())
	}
	return s
}

func (t TemplateState) summary() TemplateSummary {
	s := TemplateSummary{Name: t.Name, Completed: t.Completed, TerminationReason: t.TerminationReason, Trials: len(t.Trials)}
	for _, trial := range t.Trials {
		switch trial.Outcome() {
		case Feasible:
			s.Feasible++
		case Violated:
			s.Violated++
		case Errored:
			s.Errors++
		}
	}
	return s
}
