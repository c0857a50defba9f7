// SPDX-License-Identifier: Apache-2.0

// Package cmd is the command line: the root command, exit codes, signals and
// the user's configuration.
package cmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // every way to log in that kubectl has
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/util/templates"

	"github.com/llmctl/llmctl/cmd/autobench"
)

// Main runs the command line of this process and returns its exit code. The
// first Ctrl-C lets the command clean up, the second ends the process at once.
func Main() int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-signals
		cancel()
		<-signals
		os.Exit(exitInterrupted)
	}()
	// client-go logs on its own what it also returns as an error.
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	root := New(streams, os.Args[0])
	return exit(root.ExecuteContext(ctx), streams.ErrOut)
}

// New builds the root command. argv0 is the name that the binary was called by:
// kubectl-… makes the help speak of kubectl.
func New(streams genericiooptions.IOStreams, argv0 string) *cobra.Command {
	kube := genericclioptions.NewConfigFlags(true)
	root := &cobra.Command{
		Use:   "llmctl",
		Short: "Tune LLM serving on Kubernetes or on one machine",
		Long: templates.LongDesc(`
			llmctl works on LLM serving workloads. Its autobench commands find the
			fastest configuration of an engine that keeps a service-level agreement.`),
		Version:           version(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		Args:              autobench.NoArgs,
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { return settle(c) },
	}
	if base := filepath.Base(argv0); strings.HasPrefix(base, "kubectl-") {
		root.Annotations = map[string]string{
			cobra.CommandDisplayNameAnnotation: "kubectl " + strings.ReplaceAll(strings.TrimPrefix(base, "kubectl-"), "_", "-"),
		}
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return autobench.Usagef("%v; see '%s --help'", err, c.CommandPath())
	})
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	root.AddCommand(autobench.NewCommand(streams, kube, settle), benchCommand(streams), simulateCommand(streams), guardCommand(streams))
	return root
}

// settle fills in the flags that the environment or the configuration gives.
func settle(c *cobra.Command) error { return configure(c.Flags(), os.Getenv, os.UserConfigDir) }

// version is that of the release, or of the commit that was built.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(unknown)"
	}
	return info.Main.Version
}

// exitError is an exit code that a wrapped program chose; it has said why itself.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }
