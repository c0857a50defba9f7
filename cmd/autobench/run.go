// SPDX-License-Identifier: Apache-2.0

package autobench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/kubectl/pkg/util/templates"
	"sigs.k8s.io/yaml"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/printers"
	"github.com/llmctl/llmctl/state"
)

type runOptions struct {
	*options
	print  printers.Flags
	file   string
	name   string
	dryRun bool

	keepFailed int
}

func runCommand(o *options) *cobra.Command {
	r := &runOptions{options: o}
	c := &cobra.Command{
		Use:   "run -f FILE",
		Short: "Run an experiment",
		Long: templates.LongDesc(`
			Runs every template of the experiment file: first unchanged, as the
			baseline, then with proposed parameters, until the budget, the space or
			the patience for it is used up. Progress goes to stderr, the result to
			stdout.

			Ctrl-C removes the trial's workload and ends with code 130; resume goes
			on. A second Ctrl-C ends at once. Exit codes: 0 done, 1 error, 2 invalid
			file, 3 nothing met the SLA, 4 strategy.timeout reached, 5 locked by
			another run.`),
		Example: templates.Examples(`
			# Run an experiment under a name of your own
			llmctl autobench run -f experiment.yaml --name chat

			# Show which trials would run, without running any
			llmctl autobench run -f experiment.yaml --dry-run`),
		Args: NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c.Context()) },
	}
	c.Flags().StringVarP(&r.file, "filename", "f", "", "Experiment file")
	c.Flags().StringVar(&r.name, "name", "", "Name of the experiment; default: the file's name, else exp- and the time")
	c.Flags().BoolVar(&r.dryRun, "dry-run", false, "Check everything and print the trials that would run")
	addKeepFailed(c.Flags(), &r.keepFailed)
	r.print.AddFlags(c.Flags())
	return c
}

func addKeepFailed(flags *pflag.FlagSet, n *int) {
	flags.IntVar(n, "keep-failed", *n, "Leave the workloads of this many failed trials in the cluster, for debugging")
}

func (r *runOptions) run(ctx context.Context) (err error) {
	if r.file == "" {
		return Usagef("-f is required: the experiment file")
	}
	printer, err := r.print.Printer()
	if err != nil {
		return Usagef("%v", err)
	}
	s, err := r.load(r.file)
	if err != nil {
		return err
	}
	switch {
	case r.name != "":
		s.spec.Name = r.name
	case s.spec.Name == "":
		s.spec.Name = "exp-" + r.now().UTC().Format("20060102-150405")
	}
	if err := experiment.ValidName(s.spec.Name); err != nil {
		return Usagef("--name: %v", err)
	}
	for _, w := range s.warnings {
		r.warn(w)
	}
	if r.dryRun {
		return r.plan(ctx, s, printer)
	}
	if err := r.preflight(ctx, s); err != nil {
		return err
	}
	dir, err := r.root().Create(s.spec.Name)
	if err != nil {
		return err
	}
	defer unlock(dir, &err)
	if err := begin(dir, s.spec); err != nil {
		return err
	}
	return r.execute(ctx, s, dir, printer, func(run *experiment.Runner) {
		run.Source, run.KeepFailed = absolute(r.file), r.keepFailed
	})
}

// begin writes what is being run.
func begin(dir *state.Dir, spec *experiment.Spec) error {
	manifests := map[string][]byte{}
	for i := range spec.Templates {
		t := &spec.Templates[i]
		manifests[t.Name] = t.Source
		t.Path = dir.ManifestFile(t.Name)
		if rel, err := filepath.Rel(dir.Path(), t.Path); err == nil {
			t.Path = rel
		}
	}
	file, err := yaml.Marshal(spec)
	if err != nil {
		return fmt.Errorf("store experiment: %w", err)
	}
	return dir.WriteExperiment(file, manifests)
}

func unlock(dir *state.Dir, err *error) { *err = errors.Join(*err, dir.Unlock()) }

// execute runs the loop to its end and shows the result.
func (o *options) execute(ctx context.Context, s *setup, dir *state.Dir, printer printers.Printer, prepare func(*experiment.Runner)) error {
	log, err := dir.OpenLog()
	if err != nil {
		return err
	}
	view := &progress{out: io.MultiWriter(o.ErrOut, log), now: o.now, spec: s.spec}
	dir.Warn = func(text string) { view.line("warning: %s", text) }
	runner, err := o.runner(s, dir, view.event)
	if err != nil {
		return errors.Join(err, log.Close())
	}
	prepare(runner)
	view.begin(dir, runner)
	result, err := runner.Run(ctx)
	view.end(result, err)
	if closeErr := log.Close(); closeErr != nil {
		err = errors.Join(err, closeErr)
	}
	if printErr := printer(o.Out, printers.Experiment(result)); printErr != nil {
		err = errors.Join(err, printErr)
	}
	switch {
	case errors.Is(err, experiment.ErrInterrupted), errors.Is(err, experiment.ErrTimedOut):
		return fmt.Errorf("%w; go on with: llmctl autobench resume %s", err, s.spec.Name)
	case err == nil && result.Best == nil:
		return infeasible(result)
	}
	return err
}

// infeasible says that nothing met the SLA, and what came closest.
func infeasible(r *experiment.Result) error {
	miss := experiment.NearestMiss(r.Templates)
	if miss == nil {
		return fmt.Errorf("%w: no trial was measured", ErrNothingFeasible)
	}
	return fmt.Errorf("%w; nearest miss: trial %s/%d (%s): %s", ErrNothingFeasible,
		miss.Template, miss.Index, printers.Params(miss.Params), printers.Why(miss))
}

// plan prints the trials that a run would make, as far as they are known before
// any result: the algorithms that learn propose others once they have results.
func (r *runOptions) plan(ctx context.Context, s *setup, printer printers.Printer) error {
	result := experiment.NewResult(s.spec)
	for _, t := range s.spec.Templates {
		trials := []experiment.Trial{{Template: t.Name}}
		for len(trials) < s.spec.Strategy.MaxTrialsPerTemplate {
			p, err := s.searcher.Next(ctx, trials)
			if errors.Is(err, experiment.ErrExhausted) {
				break
			} else if err != nil {
				return err
			}
			trials = append(trials, experiment.Trial{Template: t.Name, Index: len(trials), Params: p})
		}
		result.Templates = append(result.Templates, experiment.TemplateState{Name: t.Name, Trials: trials})
	}
	return printer(r.Out, printers.Plan(result))
}
