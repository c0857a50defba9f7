// SPDX-License-Identifier: Apache-2.0

// Package autobench holds the verbs of llmctl autobench, one file each, and the
// wiring from an experiment file to a running loop.
package autobench

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/kubectl/pkg/util/templates"

	"github.com/llmctl/llmctl/state"
)

// GuardCommand is the hidden command of this binary behind which local.Guard is.
const GuardCommand = "guard"

// ErrNothingFeasible means that an experiment finished, but no trial met the SLA.
var ErrNothingFeasible = errors.New("nothing met the SLA")

// UsageError is a command that was called in a wrong way.
type UsageError struct{ message string }

func (e *UsageError) Error() string { return e.message }

// Usagef makes a UsageError.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// NoArgs refuses positional arguments; of a group of commands, the first is an unknown command.
func NoArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if c.HasSubCommands() {
		hint := ""
		c.SuggestionsMinimumDistance = 2
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			hint = fmt.Sprintf("; did you mean %q?", near[0])
		}
		return Usagef("unknown command %q for %q%s", args[0], c.CommandPath(), hint)
	}
	return Usagef("%s takes no arguments, got %q; see '%s --help'", c.CommandPath(), args[0], c.CommandPath())
}

// oneName takes exactly one experiment name.
func oneName(c *cobra.Command, args []string) error {
	if len(args) != 1 {
		return Usagef("%s takes the name of one experiment; see '%s --help'", c.CommandPath(), c.CommandPath())
	}
	return nil
}

// options are what all verbs share.
type options struct {
	genericiooptions.IOStreams
	kube       *genericclioptions.ConfigFlags
	stateDir   string
	engineDirs []string
	now        func() time.Time
	// settle fills in flags from the environment and the configuration. Commands
	// find that done; the shell's completion does not run them.
	settle func(*cobra.Command) error
}

func (o *options) root() state.Root { return state.Root(o.stateDir) }

// open finds an experiment for reading; damage found on the way is told on stderr.
func (o *options) open(name string) (*state.Dir, error) {
	d, err := o.root().Open(name)
	if err != nil {
		return nil, err
	}
	d.Warn = func(s string) { o.warn(s) }
	return d, nil
}

func (o *options) warn(text string) { fmt.Fprintln(o.ErrOut, "warning:", text) }

// NewCommand builds the group of commands.
func NewCommand(streams genericiooptions.IOStreams, kube *genericclioptions.ConfigFlags, settle func(*cobra.Command) error) *cobra.Command {
	home, _ := os.UserHomeDir() // without one the default below is relative, and --state-dir is there
	o := &options{
		IOStreams: streams, kube: kube, now: time.Now, settle: settle,
		stateDir: string(state.DefaultRoot(func(string) string { return "" }, home)),
	}
	c := &cobra.Command{
		Use:     "autobench",
		Aliases: []string{"auto-benchmark"},
		Short:   "Find the fastest serving configuration that keeps an SLA",
		Long: templates.LongDesc(`
			For each template of an experiment file, autobench deploys trial workloads
			with different engine flags, waits until they really serve, puts load on
			them and checks the service-level agreement. Everything is kept in plain
			files, so a run can be interrupted anywhere and resumed. The winner is
			the template itself with better flags.`),
		Example: templates.Examples(`
			# Run an experiment, then apply the winner
			llmctl autobench run -f experiment.yaml --name chat
			llmctl autobench best chat -o yaml | kubectl apply -f -`),
		Args: NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	flags := c.PersistentFlags()
	flags.StringVar(&o.stateDir, "state-dir", o.stateDir, "Directory of the experiments' files (also LLMCTL_STATE_DIR)")
	flags.StringSliceVar(&o.engineDirs, "engine-dir", nil, "Directory with further engine descriptors, *.yaml; can be repeated (also LLMCTL_ENGINE_DIR)")
	kube.AddFlags(flags)
	c.AddCommand(
		runCommand(o), resumeCommand(o), statusCommand(o), logsCommand(o), bestCommand(o),
		listCommand(o), validateCommand(o), deleteCommand(o),
	)
	return c
}

// completeNames completes the names of experiments.
func (o *options) completeNames(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if err := o.settle(c); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names, err := o.root().List()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
