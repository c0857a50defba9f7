// SPDX-License-Identifier: Apache-2.0

package autobench

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/util/templates"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/deploy/local"
	"github.com/llmctl/llmctl/state"
)

func deleteCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME...",
		Short: "Delete experiments with all their files and leftover workloads",
		Long: templates.LongDesc(`
			Removes what a killed run may have left running, and then the experiment's
			directory. An experiment that is running is not deleted.`),
		Example: templates.Examples(`
			# Delete an experiment
			llmctl autobench delete chat`),
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return Usagef("%s takes the name of an experiment; see '%s --help'", c.CommandPath(), c.CommandPath())
			}
			return nil
		},
		ValidArgsFunction: o.completeNames,
		RunE: func(c *cobra.Command, args []string) error {
			var errs []error
			for _, name := range args {
				if err := o.delete(c.Context(), name); err != nil {
					errs = append(errs, err)
					continue
				}
				fmt.Fprintf(o.Out, "autobench/%s deleted\n", name)
			}
			return errors.Join(errs...)
		},
	}
}

func (o *options) delete(ctx context.Context, name string) error {
	dir, err := o.open(name)
	if err != nil {
		return err
	}
	if err := dir.Lock(); err != nil {
		return err
	}
	if err := o.sweep(ctx, dir); err != nil {
		return errors.Join(err, dir.Unlock())
	}
	return errors.Join(dir.Unlock(), dir.Delete())
}

// sweep removes what a killed run left running, kept workloads included.
func (o *options) sweep(ctx context.Context, dir *state.Dir) error {
	processes := local.Deployer{Records: dir.ProcessDir()}
	if err := processes.Sweep(ctx); err != nil {
		return err
	}
	spec, err := experiment.Load(dir.ExperimentFile())
	if err != nil || spec.Execution.Target != experiment.TargetKubernetes {
		return nil // what cannot be read cannot have run, or was never in a cluster
	}
	id, err := dir.ID()
	if err != nil {
		return err
	}
	d, err := o.cluster(&setup{spec: spec, options: renderOptions(spec)}, id)
	if err != nil {
		return err
	}
	return d.Purge(ctx)
}
