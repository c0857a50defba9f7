// SPDX-License-Identifier: Apache-2.0

package autobench

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/util/templates"
)

func validateCommand(o *options) *cobra.Command {
	var file string
	var cluster bool
	c := &cobra.Command{
		Use:   "validate -f FILE",
		Short: "Check an experiment file and its templates",
		Long: templates.LongDesc(`
			Checks the file, the plugins' settings, and that the parameters can be put
			into the templates, and reports every problem at once with its path. Exit
			code 2 when there is one.`),
		Example: templates.Examples(`
			# Check a file before running it
			llmctl autobench validate -f experiment.yaml

			# Also ask the cluster
			llmctl autobench validate -f experiment.yaml --cluster`),
		Args: NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if file == "" {
				return Usagef("-f is required: the experiment file")
			}
			s, err := o.load(file)
			if s != nil {
				for _, w := range s.warnings {
					o.warn(w)
				}
			}
			if err != nil {
				return err
			}
			if cluster {
				if err := o.preflight(c.Context(), s); err != nil {
					return err
				}
			}
			fmt.Fprintf(o.Out, "%s is valid\n", file)
			return nil
		},
	}
	c.Flags().StringVarP(&file, "filename", "f", "", "Experiment file")
	c.Flags().BoolVar(&cluster, "cluster", false, "Also check against the cluster: kinds, rights, quota, GPUs, and a dry run of the first trial")
	return c
}
