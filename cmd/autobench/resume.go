// SPDX-License-Identifier: Apache-2.0

package autobench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/util/templates"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/printers"
	"github.com/llmctl/llmctl/state"
)

type resumeOptions struct {
	*options
	print        printers.Flags
	file         string
	retryErrored bool
	keepFailed   int
}

func resumeCommand(o *options) *cobra.Command {
	r := &resumeOptions{options: o}
	c := &cobra.Command{
		Use:   "resume NAME",
		Short: "Go on with an experiment that was interrupted",
		Long: templates.LongDesc(`
			Goes on where an experiment stopped: finished trials stay, templates that
			are not completed get their remaining trials.

			When the experiment file has changed since, larger budgets
			(strategy.maxTrialsPerTemplate, strategy.timeout,
			strategy.earlyTermination, execution timeouts) and other bounds
			(objectives.sla) are taken up, and stored metrics are judged again. Any
			other change is refused, since the finished trials would answer another
			question.`),
		Example: templates.Examples(`
			# Go on
			llmctl autobench resume chat

			# Also run the trials again that failed for reasons outside the engine
			llmctl autobench resume chat --retry-errored`),
		Args:              oneName,
		ValidArgsFunction: o.completeNames,
		RunE:              func(c *cobra.Command, args []string) error { return r.run(c.Context(), args[0]) },
	}
	c.Flags().StringVarP(&r.file, "filename", "f", "", "Experiment file; default: the one that run was given, if it is still there")
	c.Flags().BoolVar(&r.retryErrored, "retry-errored", false, "Run the trials that ended in an execution error again")
	addKeepFailed(c.Flags(), &r.keepFailed)
	r.print.AddFlags(c.Flags())
	return c
}

func (r *resumeOptions) run(ctx context.Context, name string) (err error) {
	printer, err := r.print.Printer()
	if err != nil {
		return Usagef("%v", err)
	}
	dir, err := r.open(name)
	if err != nil {
		return err
	}
	if err := dir.Lock(); err != nil {
		return err
	}
	defer unlock(dir, &err)
	was := r.previous(dir)
	s, err := r.load(dir.ExperimentFile())
	if err != nil {
		return err
	}
	s.spec.Name = name
	source := was.Source
	if r.file != "" {
		source = absolute(r.file)
	}
	if err := r.takeUp(s, dir, source); err != nil {
		return err
	}
	if err := r.preflight(ctx, s); err != nil {
		return err
	}
	return r.execute(ctx, s, dir, printer, func(run *experiment.Runner) {
		run.Source, run.Started = source, was.Started
		run.RetryErrored, run.KeepFailed = r.retryErrored, r.keepFailed
	})
}

// origin is what is kept of a run beside its trials.
type origin struct {
	Source  string    `json:"source"`
	Started time.Time `json:"started"`
}

// previous reads where the experiment came from. The file is derived and may be
// missing or damaged; nothing that matters is lost with it.
func (r *resumeOptions) previous(dir *state.Dir) origin {
	var o origin
	data, err := dir.Result()
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.warn(fmt.Sprintf("result.json is damaged (%v); it will be written anew", err))
	}
	return o
}

// takeUp compares the stored experiment with its file as it is now, and either
// adopts the changes or refuses them.
func (r *resumeOptions) takeUp(s *setup, dir *state.Dir, source string) error {
	if source == "" {
		return nil
	}
	if _, err := os.Stat(source); errors.Is(err, fs.ErrNotExist) && r.file == "" {
		return nil // the stored form is all that is needed
	}
	now, err := r.load(source)
	if err != nil {
		return fmt.Errorf("the experiment file has changed: %w", err)
	}
	changes, err := experiment.Changed(s.spec, now.spec)
	if err != nil || len(changes) == 0 {
		return err
	}
	var refused []string
	for _, c := range changes {
		if !c.Adjustable() {
			refused = append(refused, c.String())
		}
	}
	if len(refused) > 0 {
		return Usagef("%s differs from what experiment %q began with:\n  %s\nrun it under a new --name, or undo the change", source, s.spec.Name, strings.Join(refused, "\n  "))
	}
	for _, c := range changes {
		fmt.Fprintf(r.ErrOut, "taking up %s\n", c)
	}
	now.spec.Name = s.spec.Name
	s.spec.Strategy, s.spec.Objectives, s.spec.Execution = now.spec.Strategy, now.spec.Objectives, now.spec.Execution
	return begin(dir, s.spec)
}
