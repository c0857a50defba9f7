// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"
)

// Errors that end a run early but leave it resumable.
var (
	ErrInterrupted = errors.New("interrupted")
	ErrTimedOut    = errors.New("strategy.timeout reached")
)

// Clean-up of a workload: the attempts have a deadline of their own, so that it
// also happens after Ctrl-C.
const (
	deleteRetries = 3
	deleteBackoff = time.Second // doubles after each attempt
	deleteLimit   = 5 * time.Minute
)

// Runner is the loop: for each template it tries proposals until stopping is
// right, and keeps every finished trial. All fields are required unless stated.
type Runner struct {
	Spec      *Spec
	Source    string // the file that run was given; may be empty
	Searcher  Searcher
	Deployer  Deployer
	Evaluator Evaluator
	Store     Store
	// Render puts a trial's parameters into a template.
	Render func(Template, Params) ([]byte, error)
	Folder func(template string, index int) Folder
	// Publish is called with the whole result after every change; its error stops the run.
	Publish func(*Result) error
	// Report receives what happens, in order; it must return soon.
	Report func(Event)
	Now    func() time.Time
	// Started is when the experiment first ran; zero means now.
	Started time.Time
	// RetryErrored runs the trials that ended in an execution error again.
	RetryErrored bool
	// KeepFailed is how many workloads of failed trials stay for debugging.
	KeepFailed int

	result *Result
	kept   int
}

// Run goes on from the stored state until every template is completed. The
// result is returned with every error. ErrInterrupted and ErrTimedOut leave the
// run resumable: the trial that was cut short is not recorded, and its workload
// is removed.
func (r *Runner) Run(ctx context.Context) (*Result, error) {
	if r.Started.IsZero() {
		r.Started = r.Now()
	}
	r.result = NewResult(r.Spec)
	r.result.Source, r.result.Status, r.result.Started = r.Source, Running, r.Started
	if err := r.open(); err != nil {
		return r.result, err
	}
	if r.Spec.Strategy.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.Spec.Strategy.Timeout, ErrTimedOut)
		defer cancel()
	}
	err := r.templates(ctx)
	switch {
	case err == nil:
		r.result.Status = Completed
	case errors.Is(err, ErrTimedOut):
		r.result.Status = TimedOut
	case errors.Is(err, ErrInterrupted):
		r.result.Status = Interrupted
	default:
		r.result.Status, r.result.Error = Failed, err.Error()
	}
	return r.result, errors.Join(err, r.publish())
}

// open loads the templates' states and judges their trials by today's objectives.
func (r *Runner) open() error {
	for _, t := range r.Spec.Templates {
		state, err := r.Store.Load(t.Name)
		if err != nil {
			return fmt.Errorf("load checkpoint of template %s: %w", t.Name, err)
		}
		before := state
		before.Trials = append([]Trial(nil), state.Trials...)
		state.Name = t.Name
		state.dropRefused()
		state.Rejudge(r.Spec.Objectives)
		r.result.Templates = append(r.result.Templates, state)
		if len(before.Trials) > 0 && !reflect.DeepEqual(before.Trials, state.Trials) {
			if err := r.Store.Save(state); err != nil {
				return fmt.Errorf("save checkpoint of template %s: %w", t.Name, err)
			}
		}
	}
	return r.publish()
}

// dropRefused forgets a trial that was refused at the end: it tells nothing
// about its parameters, and what refused it may have been mended since.
func (s *TemplateState) dropRefused() {
	if n := len(s.Trials); n > 0 && s.Trials[n-1].Reason == ClassRefused {
		s.Trials, s.Completed, s.TerminationReason = s.Trials[:n-1:n-1], false, ""
	}
}

// Rejudge decides violations and scores of the stored metrics anew.
func (s *TemplateState) Rejudge(o Objectives) {
	for i := range s.Trials {
		s.Trials[i].judge(o)
	}
}

func (r *Runner) publish() error {
	r.result.Updated = r.Now()
	r.result.Best = FindBest(r.Spec.Objectives, r.result.Templates)
	if err := r.Publish(r.result); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

func (r *Runner) templates(ctx context.Context) error {
	if err := r.Deployer.Sweep(ctx); err != nil && ended(ctx) != nil {
		return ended(ctx)
	} else if err != nil {
		return fmt.Errorf("remove leftovers of an earlier run: %w", err)
	}
	for i := range r.Spec.Templates {
		if err := r.template(ctx, r.Spec.Templates[i], &r.result.Templates[i]); err != nil {
			return err
		}
	}
	return nil
}

// template tries one template until there is a reason to stop.
func (r *Runner) template(ctx context.Context, t Template, state *TemplateState) error {
	r.Report(Event{Kind: TemplateStarted, Template: t.Name, Index: len(state.Trials)})
	if r.RetryErrored {
		for i := range state.Trials {
			if state.Trials[i].Outcome() == Errored {
				if err := r.attempt(ctx, t, state, i, state.Trials[i].Params); err != nil {
					return err
				}
			}
		}
	}
	for {
		params, reason, err := r.next(ctx, state.Trials)
		if err != nil {
			return err
		}
		if reason != "" {
			return r.complete(state, reason)
		}
		if err := r.attempt(ctx, t, state, len(state.Trials), params); err != nil {
			return err
		}
	}
}

// next proposes the settings of the next trial, or gives the reason to stop.
func (r *Runner) next(ctx context.Context, trials []Trial) (Params, string, error) {
	strategy := r.Spec.Strategy
	if reason := strategy.Stop(trials); reason != "" {
		return nil, reason, nil
	}
	if len(trials) >= strategy.MaxTrialsPerTemplate {
		return nil, fmt.Sprintf("maxTrialsPerTemplate %d reached", strategy.MaxTrialsPerTemplate), nil
	}
	if len(trials) == 0 {
		return nil, "", nil // the baseline
	}
	history := trials
	for {
		params, err := r.Searcher.Next(ctx, history)
		switch {
		case errors.Is(err, ErrExhausted):
			return nil, err.Error(), nil
		case err != nil && ended(ctx) != nil:
			return nil, "", ended(ctx)
		case err != nil:
			return nil, "", fmt.Errorf("propose trial %d: %w", len(trials), err)
		}
		beyond := params.beyond(trials)
		if beyond == nil {
			return params, "", nil
		}
		r.Report(Event{Kind: Warned, Text: fmt.Sprintf("skipping %s: the engine's limit for %s is %d (trial %s/%d)",
			params, beyond.Limit.Param, beyond.Limit.Value, beyond.Template, beyond.Index)})
		// The searcher, which keeps no state, hears of it as of a failed trial.
		history = append(slices.Clip(history), Trial{Params: params, Error: "beyond the engine's limit", Reason: ClassConfig})
	}
}

// beyond finds the trial whose engine named a limit that p reaches, or nil.
func (p Params) beyond(trials []Trial) *Trial {
	for i, t := range trials {
		if t.Limit == nil {
			continue
		}
		for _, params := range p {
			if x, ok := params[t.Limit.Param].Number(); ok && x >= float64(t.Limit.Value) {
				return &trials[i]
			}
		}
	}
	return nil
}

func (r *Runner) complete(state *TemplateState, reason string) error {
	r.Report(Event{Kind: TemplateFinished, Template: state.Name, Text: reason})
	if state.Completed && state.TerminationReason == reason {
		return nil
	}
	state.Completed, state.TerminationReason = true, reason
	return r.save(state)
}

func (r *Runner) save(state *TemplateState) error {
	if err := r.Store.Save(*state); err != nil {
		return fmt.Errorf("save checkpoint of template %s: %w", state.Name, err)
	}
	return r.publish()
}

// attempt makes one trial, records it at index and removes its workload. The
// trial is saved before the workload is removed: removing may take long, and a
// crash meanwhile must not cost the measurement.
func (r *Runner) attempt(ctx context.Context, t Template, state *TemplateState, index int, params Params) error {
	if err := ended(ctx); err != nil {
		return err
	}
	r.Report(Event{Kind: TrialStarted, Template: t.Name, Index: index, Params: params})
	trial, instance, err := r.try(ctx, t, index, params)
	for retry := 1; err == nil && trial.Reason == ClassTransient && retry <= r.Spec.Execution.InfraRetries; retry++ {
		r.Report(Event{Kind: Warned, Template: t.Name, Index: index,
			Text: fmt.Sprintf("trial %s/%d: %s; trying again (%d of %d)", t.Name, index, trial.Error, retry, r.Spec.Execution.InfraRetries)})
		if err := r.remove(ctx, instance, t.Name, index); err != nil {
			return err
		}
		trial, instance, err = r.try(ctx, t, index, params)
	}
	if err == nil {
		if index == len(state.Trials) {
			state.Trials = append(state.Trials, trial)
		} else {
			state.Trials[index] = trial
		}
		state.Completed, state.TerminationReason = false, ""
		err = r.save(state)
		r.Report(Event{Kind: TrialFinished, Template: t.Name, Index: index, Trial: &trial})
	} else if errors.Is(err, ErrInterrupted) || errors.Is(err, ErrTimedOut) {
		r.Report(Event{Kind: TrialInterrupted, Template: t.Name, Index: index})
	}
	if err == nil && trial.Error != "" && r.keep(ctx, instance, t.Name, index) {
		return nil
	}
	return errors.Join(err, r.remove(ctx, instance, t.Name, index))
}

// keep leaves a failed workload in place when that is wanted and possible.
func (r *Runner) keep(ctx context.Context, instance Instance, template string, index int) bool {
	keeper, ok := instance.(Keeper)
	if !ok || r.kept >= r.KeepFailed {
		return false
	}
	how, err := keeper.Keep(ctx)
	if err != nil {
		r.Report(Event{Kind: Warned, Template: template, Index: index, Text: fmt.Sprintf("keeping the workload of trial %s/%d: %v", template, index, err)})
		return false
	}
	r.kept++
	r.Report(Event{Kind: Warned, Template: template, Index: index, Text: fmt.Sprintf("the workload of trial %s/%d is kept; remove it with: %s", template, index, how)})
	return true
}

// try runs one trial up to its verdict. An error means that there is no trial to
// record; the instance, when not nil, is to be removed either way.
func (r *Runner) try(ctx context.Context, t Template, index int, params Params) (Trial, Instance, error) {
	trial := Trial{Template: t.Name, Index: index, Params: params, Started: r.Now()}
	folder := r.Folder(t.Name, index)
	if err := folder.Reset(); err != nil {
		return trial, nil, fmt.Errorf("prepare folder of trial %s/%d: %w", t.Name, index, err)
	}
	limited := ctx
	if limit := r.Spec.Execution.TrialTimeout; limit > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeoutCause(ctx, limit, &Failure{Cause{Class: ClassTimeout, Message: fmt.Sprintf("execution.trialTimeout %s reached", limit)}})
		defer cancel()
	}
	run := attempt{Runner: r, trial: &trial, folder: folder}
	err := run.measure(limited, t)
	if stop := ended(ctx); stop != nil && err != nil {
		return trial, run.instance, stop
	}
	if err != nil {
		var local *localError
		if errors.As(err, &local) {
			return trial, run.instance, local.error
		}
		run.blame(limited, err)
	}
	trial.Seconds = r.Now().Sub(trial.Started).Seconds()
	trial.judge(r.Spec.Objectives)
	return trial, run.instance, nil
}

// ended says why the run must stop, or nil.
func ended(ctx context.Context) error {
	switch {
	case ctx.Err() == nil:
		return nil
	case errors.Is(context.Cause(ctx), ErrTimedOut):
		return ErrTimedOut
	default:
		return ErrInterrupted
	}
}

// remove deletes the workload with true exponential back-off, on a context that
// outlives the run's. A workload that stays holds its GPUs, so that is an error.
func (r *Runner) remove(ctx context.Context, instance Instance, template string, index int) error {
	if instance == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteLimit)
	defer cancel()
	wait := deleteBackoff
	for retry := 0; ; retry++ {
		err := instance.Delete(ctx)
		if err == nil {
			return nil
		}
		if retry == deleteRetries || ctx.Err() != nil {
			return fmt.Errorf("remove workload of trial %s/%d: %w", template, index, err)
		}
		r.Report(Event{Kind: Warned, Template: template, Index: index, Text: fmt.Sprintf("removing the workload: %v; trying again in %s", err, wait)})
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait *= 2
	}
}

// promptSeed gives every trial prompts of its own, so that no cache that
// outlives a workload can serve a later trial.
func promptSeed(seed uint64, index int) uint64 {
	return rand.NewPCG(seed, uint64(index)).Uint64()
}
