// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/kubectl/pkg/util/templates"

	"github.com/llmctl/llmctl/cmd/autobench"
	"github.com/llmctl/llmctl/plugins/deploy/local"
	"github.com/llmctl/llmctl/plugins/loadgen/rxtime"
	"github.com/llmctl/llmctl/plugins/simulator"
)

// simulateCommand is the simulated engine. It reads its arguments as vLLM does,
// not as this command line does.
func simulateCommand(streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:   "simulate [MODEL] [FLAGS]",
		Short: "Serve a simulated LLM engine with vLLM's API and flags",
		Long: templates.LongDesc(`
			Serves a model of a continuous-batching engine (Llama-3.1-8B on one H100)
			under vLLM's OpenAI-compatible API. It takes vLLM's flags, refuses what
			vLLM would refuse, and needs no GPU: use it to try experiments out.`),
		Example: templates.Examples(`
			# Serve ten times faster than the real engine would
			llmctl simulate --model sim --port 8000 --time-scale 10

			# List all flags
			llmctl simulate --help`),
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			if code := simulator.Main(c.Context(), args, os.Getenv, streams.Out, streams.ErrOut, rxtime.Listen); code != 0 {
				return exitError(code)
			}
			return nil
		},
	}
}

// guardCommand stands between a local run and its engine; see local.Guard.
func guardCommand(streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:                autobench.GuardCommand,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if code := local.Guard(args, streams.In, streams.ErrOut); code != 0 {
				return exitError(code)
			}
			return nil
		},
	}
}
