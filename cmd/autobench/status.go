// SPDX-License-Identifier: Apache-2.0

package autobench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/util/templates"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/printers"
	"github.com/llmctl/llmctl/state"
)

type statusOptions struct {
	*options
	print printers.Flags
	watch bool
}

func statusCommand(o *options) *cobra.Command {
	s := &statusOptions{options: o}
	c := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show an experiment's templates and trials, or all experiments",
		Long: templates.LongDesc(`
			Shows where an experiment stands: each template, each finished trial with
			its figures, a star at the best one and an exclamation mark at the figures
			that break the SLA. Without a name it lists all experiments. Reading never
			disturbs a run.`),
		Example: templates.Examples(`
			# Follow a run
			llmctl autobench status chat --watch

			# The output throughput of all trials
			llmctl autobench status chat -o jsonpath='{.templates[*].trials[*].metrics.outputThroughput}'`),
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return Usagef("%s takes at most one name; see '%s --help'", c.CommandPath(), c.CommandPath())
			}
			return nil
		},
		ValidArgsFunction: o.completeNames,
		RunE:              func(c *cobra.Command, args []string) error { return s.run(c.Context(), args) },
	}
	c.Flags().BoolVarP(&s.watch, "watch", "w", false, "Print again whenever something changes, until the run ends")
	s.print.AddFlags(c.Flags())
	return c
}

func listCommand(o *options) *cobra.Command {
	s := &statusOptions{options: o}
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all experiments",
		Example: templates.Examples(`
			# The names alone
			llmctl autobench list -o name`),
		Args: NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return s.run(c.Context(), nil) },
	}
	s.print.AddFlags(c.Flags())
	return c
}

func (s *statusOptions) run(ctx context.Context, args []string) error {
	printer, err := s.print.Printer()
	if err != nil {
		return Usagef("%v", err)
	}
	show := s.all
	if len(args) == 1 {
		dir, err := s.open(args[0])
		if err != nil {
			return err
		}
		show = func() (printers.View, bool, error) { return s.one(dir) }
	}
	return s.loop(ctx, printer, show)
}

// watchInterval is how often a watch looks at the files.
const watchInterval = 500 * time.Millisecond

// loop prints once or, when watching, on every change until nothing runs any more.
func (s *statusOptions) loop(ctx context.Context, printer printers.Printer, show func() (printers.View, bool, error)) error {
	var last []byte
	for {
		view, running, err := show()
		if err != nil {
			return err
		}
		var text bytes.Buffer
		if err := printer(&text, view); err != nil {
			return err
		}
		if !bytes.Equal(text.Bytes(), last) {
			if last != nil {
				fmt.Fprintln(s.Out)
			}
			last = text.Bytes()
			if _, err := s.Out.Write(last); err != nil {
				return err
			}
		}
		if !s.watch || !running {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchInterval):
		}
	}
}

func (s *statusOptions) one(dir *state.Dir) (printers.View, bool, error) {
	r, err := s.result(dir)
	if err != nil {
		return printers.View{}, false, err
	}
	return printers.Experiment(r), r.Status == experiment.Running, nil
}

func (s *statusOptions) all() (printers.View, bool, error) {
	names, err := s.root().List()
	if err != nil {
		return printers.View{}, false, err
	}
	if len(names) == 0 && s.print.Output == "" {
		fmt.Fprintf(s.ErrOut, "No experiments found in %s.\n", s.stateDir)
		return printers.View{}, false, nil
	}
	summaries, running := []experiment.Summary{}, false
	for _, name := range names {
		dir, err := s.open(name)
		if err != nil {
			s.warn(err.Error())
			continue
		}
		summary := s.summary(dir)
		running = running || summary.Status == experiment.Running
		summaries = append(summaries, summary)
	}
	return printers.List(summaries, s.now()), running, nil
}

// summary reads the one small file that tells of an experiment.
func (o *options) summary(dir *state.Dir) experiment.Summary {
	var s experiment.Summary
	data, err := dir.Report()
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.warn(fmt.Sprintf("experiment %s: report.json: %v", dir.Name(), err))
	}
	s.Name = dir.Name()
	s.Status = current(dir, s.Status)
	return s
}

// current corrects the status that a killed run left behind: who runs holds the lock.
func current(dir *state.Dir, stored experiment.Status) experiment.Status {
	switch {
	case dir.Locked():
		return experiment.Running
	case stored == experiment.Running || stored == "":
		return experiment.Interrupted
	}
	return stored
}

// result puts an experiment's result together from its checkpoints, which are
// what counts; result.json is derived from them.
func (o *options) result(dir *state.Dir) (*experiment.Result, error) {
	spec, err := experiment.Load(dir.ExperimentFile())
	if err != nil {
		return nil, err
	}
	summary := o.summary(dir)
	r := experiment.NewResult(spec)
	r.Status, r.Error, r.Started, r.Updated = summary.Status, summary.Error, summary.Started, summary.Updated
	for _, t := range spec.Templates {
		ts, err := dir.Load(t.Name)
		if err != nil {
			return nil, err
		}
		ts.Rejudge(spec.Objectives)
		r.Templates = append(r.Templates, ts)
	}
	r.Best = experiment.FindBest(spec.Objectives, r.Templates)
	return r, nil
}
