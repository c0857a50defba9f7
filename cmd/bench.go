// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/kubectl/pkg/util/templates"

	"github.com/llmctl/llmctl/cmd/autobench"
	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/printers"
)

// benchOptions are the flags of llmctl bench. Those that say what load there is
// are read like the experiment file's keys of the same names.
type benchOptions struct {
	genericiooptions.IOStreams
	print         printers.Flags
	url, model    string
	seed          uint64
	sla           []string
	conversations string
	records       string
	flags         *pflag.FlagSet
}

func benchCommand(streams genericiooptions.IOStreams) *cobra.Command {
	b := &benchOptions{IOStreams: streams}
	c := &cobra.Command{
		Use:   "bench --url URL --workload SHAPE (--concurrency N | --rate R | --trace FILE)",
		Short: "Put load on a server with an OpenAI-compatible API and measure it",
		Long: templates.LongDesc(`
			Measures a server that is already there, with the load generator that
			autobench uses: streaming requests in a closed loop (--concurrency), at a
			rate (--rate), or as a trace has them (--trace), after a warm-up.

			The exit code is 3 when a bound given with --sla is missed.`),
		Example: templates.Examples(`
			# 32 requests in flight, 320 in all
			llmctl bench --url http://localhost:8000 --workload 'fixed(512,128)' --concurrency 32 --max-requests 320

			# Five requests a second for two minutes, arriving at random, with bounds
			llmctl bench --url http://localhost:8000 --workload 'normal(512,256/128,32)' --rate 5 --arrival poisson --duration 2m \
			  --sla ttftP95MaxMs=500 --sla tpotP95MaxMs=30

			# The largest rate that keeps the bounds
			llmctl bench --url http://localhost:8000 --workload 'fixed(512,128)' --max-load rate:1:64 --sla ttftP95MaxMs=500`),
		Args: autobench.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return b.run(c.Context()) },
	}
	b.flags = c.Flags()
	b.addFlags(b.flags)
	return c
}

func (b *benchOptions) run(ctx context.Context) (err error) {
	if b.url == "" {
		return autobench.Usagef("--url is required: the address of the server, such as http://localhost:8000")
	}
	printer, err := b.print.Printer()
	if err != nil {
		return autobench.Usagef("%v", err)
	}
	spec, plan, err := b.load()
	if err != nil {
		return err
	}
	if !b.flags.Changed("seed") {
		b.seed = rand.Uint64()
	}
	autobench.SpareMemory()
	log, done := b.live()
	defer done()
	target := experiment.Target{BaseURL: strings.TrimSuffix(strings.TrimRight(b.url, "/"), "/v1"), Model: b.model}
	if target.Model == "" {
		if target.Model, err = plan.FirstModel(ctx, target.BaseURL); err != nil {
			return err
		}
	}
	started := time.Now()
	m, err := plan.Evaluator.Evaluate(ctx, target, experiment.Traffic{
		Scenario: spec.Scenario, Objectives: spec.Objectives, Seed: b.seed, Log: log, Requests: b.openRecords(),
	})
	done()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w: nothing was measured", experiment.ErrInterrupted)
	case err != nil:
		return err
	}
	result := experiment.NewMeasurement(target, spec.Scenario, spec.Objectives, started, m)
	for _, w := range m.Warnings {
		fmt.Fprintln(b.ErrOut, "warning:", w)
	}
	if err := printer(b.Out, printers.Measurement(result)); err != nil {
		return err
	}
	if len(result.Violations) > 0 {
		return fmt.Errorf("%w: %s", errMissed, printers.Violations(result.Violations))
	}
	return nil
}

// errMissed means that a measurement does not keep the bounds.
var errMissed = errors.New("the SLA is missed")

// openRecords opens the file of --records: anew for the first level, to append
// for the others.
func (b *benchOptions) openRecords() func() (io.WriteCloser, error) {
	mode := os.O_TRUNC
	return func() (io.WriteCloser, error) {
		file, err := os.OpenFile(b.records, os.O_WRONLY|os.O_CREATE|mode, 0o600)
		mode = os.O_APPEND
		if err != nil {
			return nil, fmt.Errorf("--records: %w", err)
		}
		return file, nil
	}
}

// live is where progress goes: on a terminal one line that changes. done ends it.
func (b *benchOptions) live() (w io.Writer, done func()) {
	file, ok := b.ErrOut.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return b.ErrOut, func() {}
	}
	line := &liveLine{out: file}
	return line, line.clear
}

// liveLine shows the latest line only.
type liveLine struct {
	out   io.Writer
	shown bool
}

func (l *liveLine) Write(p []byte) (int, error) {
	lines := strings.Split(strings.TrimRight(string(p), "\n"), "\n")
	l.shown = true
	if _, err := fmt.Fprint(l.out, "\r\x1b[K", lines[len(lines)-1]); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (l *liveLine) clear() {
	if l.shown {
		l.shown = false
		fmt.Fprint(l.out, "\r\x1b[K")
	}
}
