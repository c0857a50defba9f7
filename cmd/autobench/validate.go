// SPDX-License-Identifier: Apache-2.0

package autobench

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/util/templates"
)

func validateCommand(o *options) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "validate -f FILE",
		Short: "Check an experiment file and its templates",
		Long: templates.LongDesc(`
			Checks the file, the plugins' settings, and that the parameters can be put
			into the templates, and reports every problem at once with its path. Exit
			code 2 when there is one.`),
		Example: templates.Examples(`
			# Check a file before running it
			llmctl autobench validate -f experiment.yaml`),
		Args: NoArgs,
		RunE: func(*cobra.Command, []string) error {
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
			fmt.Fprintf(o.Out, "%s is valid\n", file)
			return nil
		},
	}
	c.Flags().StringVarP(&file, "filename", "f", "", "Experiment file")
	return c
}
