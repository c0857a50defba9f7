// SPDX-License-Identifier: Apache-2.0

package experiment

import "time"

// Trial is one finished attempt: a template with parameter values, and either
// metrics or an error. Interrupted attempts are no trials and are not recorded.
type Trial struct {
	Template string    `json:"template"`
	Index    int       `json:"index"` // 0 is the baseline: the template unchanged
	Params   Params    `json:"params,omitempty"`
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds"` // from the start of the deployment to the end of the clean-up
	Phases   []Phase   `json:"phases,omitempty"`
	Metrics  *Metrics  `json:"metrics,omitempty"`
	// Violations and Score are judgements of Metrics under the experiment's
	// objectives; they are made again when the objectives change.
	Violations []Violation `json:"violations,omitempty"`
	Score      *float64    `json:"score,omitempty"`
	Error      string      `json:"error,omitempty"`
	Reason     string      `json:"reason,omitempty"` // class of the error, such as gpu_oom
	Limit      *Limit      `json:"limit,omitempty"`  // what the engine said it can serve with
}

// Phase is a part of a trial and its length.
type Phase struct {
	Name    string  `json:"name"` // deploy, ready, load, delete
	Seconds float64 `json:"seconds"`
}

// Outcome is what became of a trial.
type Outcome string

// The outcomes of a trial.
const (
	Feasible Outcome = "feasible" // no error, every bound met
	Violated Outcome = "violated" // measured, but a bound is missed
	Errored  Outcome = "error"    // execution error: build, create, start-up or run-time failure
)

// Outcome derives what became of the trial.
func (t Trial) Outcome() Outcome {
	switch {
	case t.Error != "" || t.Metrics == nil:
		return Errored
	case len(t.Violations) > 0 || t.Score == nil:
		return Violated
	default:
		return Feasible
	}
}

// judge sets the judgements of the trial's metrics under o.
func (t *Trial) judge(o Objectives) {
	t.Violations, t.Score = nil, nil
	if t.Error != "" || t.Metrics == nil {
		return
	}
	t.Violations = o.Violations(t.Metrics)
	t.Score = t.Metrics.Value(o.Optimize)
	if t.Score == nil {
		t.Violations = append(t.Violations, Violation{Bound: o.Optimize, Why: metricUnavailable})
	}
}

// TemplateState is the checkpoint of one template.
type TemplateState struct {
	Name string `json:"name"`
	// Completed and TerminationReason are derived from Trials and the strategy;
	// they are stored because people read them.
	Completed         bool    `json:"completed"`
	TerminationReason string  `json:"terminationReason,omitempty"`
	Trials            []Trial `json:"trials"`
}
