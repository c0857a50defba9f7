// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Classes of failures that the loop itself decides.
const (
	ClassConfig = "config_error" // the settings cannot work
	ClassInfra  = "infra_error"  // creating or reaching the workload
	// ClassTransient is a failure that has nothing to do with the trial; it is
	// made again, up to execution.infraRetries times.
	ClassTransient = "infra_transient"
	// ClassRefused is a workload that will never be accepted, whatever its
	// parameters: a forbidden or unknown kind. The template stops at once.
	ClassRefused  = "refused"
	ClassNotReady = "not_ready" // execution.rbgReadyTimeout
	ClassEvaluate = "evaluation_error"
	ClassTimeout  = "trial_timeout" // execution.trialTimeout
)

// attempt is one trial on its way to a verdict.
type attempt struct {
	*Runner
	trial    *Trial
	folder   Folder
	instance Instance
}

// localError is trouble with our own files: not the workload's fault, no trial.
type localError struct{ error }

// phase times f as a named part of the trial.
func (a *attempt) phase(name string, f func() error) error {
	a.Report(Event{Kind: PhaseStarted, Template: a.trial.Template, Index: a.trial.Index, Text: name})
	start := a.Now()
	err := f()
	a.trial.Phases = append(a.trial.Phases, Phase{name, a.Now().Sub(start).Seconds()})
	return err
}

// measure deploys the workload, waits until it serves and puts the load on it.
func (a *attempt) measure(ctx context.Context, t Template) error {
	manifest, err := a.Render(t, a.trial.Params)
	if err != nil {
		return &Failure{Cause{Class: ClassConfig, Message: err.Error()}}
	}
	if err := a.folder.WriteManifest(manifest); err != nil {
		return &localError{err}
	}
	plan := Plan{
		Template: t.Name, Index: a.trial.Index, Manifest: manifest, Logs: a.folder.LogDir(),
		Name: WorkloadName(a.Spec.Name, t.Name, a.trial.Index),
	}
	if err := a.phase("deploy", func() (err error) {
		a.instance, err = a.Deployer.Deploy(ctx, plan)
		return err
	}); err != nil {
		return err
	}
	var target Target
	if err := a.phase("ready", func() (err error) {
		target, err = a.ready(ctx)
		return err
	}); err != nil {
		return err
	}
	a.trial.Phases = append(a.trial.Phases, target.Phases...)
	return a.phase("load", func() error { return a.load(ctx, target) })
}

func (a *attempt) ready(ctx context.Context) (Target, error) {
	limit := a.Spec.Execution.ReadyTimeout
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, &Failure{Cause{Class: ClassNotReady,
			Message: fmt.Sprintf("not serving after execution.rbgReadyTimeout %s", limit)}})
		defer cancel()
	}
	target, err := a.instance.Ready(ctx)
	if err != nil && ctx.Err() != nil {
		return target, context.Cause(ctx)
	}
	return target, err
}

// load measures, and voids the measurement when the workload died under it.
func (a *attempt) load(ctx context.Context, target Target) (err error) {
	log, err := a.folder.BenchmarkLog()
	if err != nil {
		return &localError{err}
	}
	defer func() {
		if closed := log.Close(); closed != nil {
			err = errors.Join(err, &localError{fmt.Errorf("close benchmark.log: %w", closed)})
		}
	}()
	known := false
	m, err := a.Evaluator.Evaluate(ctx, target, Traffic{
		Diagnose: func(ctx context.Context) (Cause, error) {
			cause, err := a.diagnose(ctx)
			known = known || cause.Class != ""
			return cause, err
		},
		Scenario: a.Spec.Scenario, Objectives: a.Spec.Objectives,
		Seed: promptSeed(a.Spec.Strategy.Seed, a.trial.Index), Log: log, Requests: a.folder.Requests,
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("measure: %w", err)
	case m == nil:
		return errors.New("measure: the evaluator gave no metrics")
	}
	m.clean()
	// A server can restart under load and answer every request all the same, more
	// slowly: asking it costs little.
	if known {
		a.trial.Metrics = m
		return nil
	}
	if cause, err := a.diagnose(ctx); err == nil && cause.Class != "" {
		return &Failure{cause}
	}
	a.trial.Metrics = m
	return nil
}

// diagnose saves the workload's logs, also after the trial's time is up.
func (a *attempt) diagnose(ctx context.Context) (Cause, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	cause, err := a.instance.Diagnose(ctx)
	if err != nil {
		a.Report(Event{Kind: Warned, Template: a.trial.Template, Index: a.trial.Index, Text: fmt.Sprintf("collecting logs: %v", err)})
	}
	return cause, err
}

// blame records why the trial failed: what the workload's own state says goes
// before what was seen from outside.
func (a *attempt) blame(ctx context.Context, err error) {
	a.trial.Metrics = nil
	a.trial.Error, a.trial.Reason = err.Error(), ClassInfra
	var failure *Failure
	if errors.As(err, &failure) {
		a.trial.Reason, a.trial.Limit = failure.Class, failure.Limit
	} else if a.instance != nil {
		a.trial.Reason = ClassEvaluate
	}
	if a.instance == nil {
		return
	}
	cause, failed := a.diagnose(ctx)
	outside := a.trial.Reason == ClassNotReady || a.trial.Reason == ClassEvaluate || a.trial.Reason == ClassTimeout
	if failed == nil && cause.Class != "" && outside {
		a.trial.Error, a.trial.Reason, a.trial.Limit = cause.Message+" ("+err.Error()+")", cause.Class, cause.Limit
	}
}
