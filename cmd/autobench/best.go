// SPDX-License-Identifier: Apache-2.0

package autobench

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubectl/pkg/util/templates"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/engine"
	"github.com/llmctl/llmctl/printers"
)

type bestOptions struct {
	*options
	print printers.Flags
}

func bestCommand(o *options) *cobra.Command {
	b := &bestOptions{options: o}
	c := &cobra.Command{
		Use:   "best NAME",
		Short: "Show the best trial, or its manifest",
		Long: templates.LongDesc(`
			Without -o, shows the best feasible trial beside the unchanged template.
			With -o yaml, prints the template itself with the winning parameters, and
			nothing else; the other formats print the same objects.

			When no trial met the SLA, nothing goes to stdout, the nearest miss goes
			to stderr, and the exit code is 3.`),
		Example: templates.Examples(`
			# Apply the winner
			llmctl autobench best chat -o yaml | kubectl apply -f -`),
		Args:              oneName,
		ValidArgsFunction: o.completeNames,
		RunE:              func(_ *cobra.Command, args []string) error { return b.run(args[0]) },
	}
	b.print.AddFlags(c.Flags())
	return c
}

func (b *bestOptions) run(name string) error {
	printer, err := b.print.Printer()
	if err != nil {
		return Usagef("%v", err)
	}
	dir, err := b.open(name)
	if err != nil {
		return err
	}
	r, err := b.result(dir)
	if err != nil {
		return err
	}
	if r.Best == nil {
		return infeasible(r)
	}
	if r.Status != experiment.Completed {
		fmt.Fprintf(b.ErrOut, "note: the experiment is %s; this is the best so far\n", r.Status)
	}
	if text := printers.Ties(r.Best); text != "" {
		fmt.Fprintln(b.ErrOut, "note:", text)
	}
	// Rendering anew, rather than printing best_trial.yaml, follows the checkpoints.
	// It needs the engine only, not what a run needs.
	s := &setup{spec: r.Config, options: renderOptions(r.Config)}
	if s.engine, err = engine.Load(r.Config.Backend, b.engineDirs...); err != nil {
		return err
	}
	manifest, err := s.winner(r.Best)
	if err != nil {
		return err
	}
	if b.print.Output == "yaml" {
		_, err = b.Out.Write(manifest)
		return err
	}
	objects, err := decode(manifest)
	if err != nil {
		return err
	}
	return printer(b.Out, printers.Winner(r, objects))
}

// decode gives the objects of a manifest.
func decode(manifest []byte) ([]any, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	var objects []any
	for {
		var object map[string]any
		switch err := decoder.Decode(&object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("decode manifest: %w", err)
		case object != nil:
			objects = append(objects, object)
		}
	}
}
