// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/kubectl/pkg/util/templates"
	"sigs.k8s.io/yaml"

	"github.com/llmctl/llmctl/cmd/autobench"
	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/evaluator"
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

// environment is what the evaluator takes from this process.
func environment() evaluator.Environment {
	return evaluator.Environment{Getenv: os.Getenv, Environ: os.Environ()}
}

func (b *benchOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&b.url, "url", "", "Address of the server, such as http://localhost:8000")
	f.StringVar(&b.model, "model", "", "Model to ask for; default: the first that the server names")
	f.Uint64Var(&b.seed, "seed", 0, "Seed of lengths and prompts; default: another one each time, so that no prompt is in the server's cache")
	f.StringArrayVar(&b.sla, "sla", nil, "Bound to keep, such as ttftP95MaxMs=500; can be repeated")
	f.StringVar(&b.conversations, "conversation-replay", "", "File with the keys of evaluator.config.conversationReplay; goes with --workload conversation_replay")
	f.StringVar(&b.records, "records", "", "File for the raw records of all requests, gzipped JSON lines")

	f.String("workload", "", "Token lengths: fixed(in,out), normal(mean,sd/mean,sd), lognormal(mean,sd/mean,sd), uniform(min,max/min,max), dataset or conversation_replay")
	f.Int("concurrency", 0, "Requests, or conversations, in flight")
	f.IntSlice("concurrency-sweep", nil, "Levels of concurrency; the last one that keeps the bounds counts")
	f.Float64("rate", 0, "Requests per second, whatever the server does")
	f.Float64Slice("rate-sweep", nil, "Rates; the last one that keeps the bounds counts")
	f.String("arrival", "", "How requests of a rate arrive: constant, poisson or gamma(burstiness)")
	f.Duration("ramp-up", 0, "Time in which the rate grows from 0")
	f.String("trace", "", "File of arrival times and token lengths to replay: CSV (Azure LLM) or JSON lines (Mooncake)")
	f.String("max-load", "", "Search the largest load that keeps the bounds: concurrency:MIN:MAX or rate:MIN:MAX")
	f.Int("max-requests", 0, "Requests to measure; default: ten per unit of concurrency, or a minute of the rate")
	f.Int("min-requests", 0, "Least requests of a level of a sweep; default: 50")
	f.Duration("duration", 0, "Time to measure; requests that are still running may end")
	f.Bool("stop-when-decided", true, "End a level when no outcome of its remaining requests could keep the bounds")

	f.String("api-type", "", "completions or chat; default: completions")
	f.String("api-key", "", "env:NAME, the environment variable with the API key")
	f.String("dataset-path", "", "File of prompts: JSON lines or ShareGPT; goes with --workload dataset")
	f.Int("warmup-requests", 0, "Requests before the measurement; at least one wave")
	f.Duration("request-timeout", 0, "Limit of one request")
	f.Bool("allow-short-output", false, "Let the server end answers early")
	f.Bool("insecure-skip-tls-verify", false, "Do not check the server's certificate")
	f.String("certificate-authority", "", "File with the certificate authority of the server")
	b.print.AddFlags(f)
}

// Flags that are keys of the experiment file, by the section they stand in.
var (
	scenarioFlags = []string{"workload", "concurrency", "concurrency-sweep", "rate", "rate-sweep", "arrival", "ramp-up", "trace",
		"max-requests", "min-requests", "duration", "stop-when-decided"}
	evaluatorFlags = []string{"api-type", "api-key", "dataset-path", "warmup-requests", "request-timeout", "allow-short-output",
		"insecure-skip-tls-verify", "certificate-authority"}
)

// spec reads the flags as the load of an experiment.
func (b *benchOptions) spec() (*experiment.Spec, error) {
	scenario, err := b.keys(scenarioFlags)
	if err != nil {
		return nil, err
	}
	config, err := b.keys(evaluatorFlags)
	if err != nil {
		return nil, err
	}
	if text := b.flags.Lookup("max-load").Value.String(); text != "" {
		if scenario["maxLoad"], err = parseMaxLoad(text); err != nil {
			return nil, err
		}
	}
	if b.conversations != "" {
		data, err := os.ReadFile(b.conversations)
		if err != nil {
			return nil, fmt.Errorf("--conversation-replay: %w", err)
		}
		var replay map[string]any
		if err := yaml.Unmarshal(data, &replay); err != nil {
			return nil, autobench.Usagef("--conversation-replay %s: %v", b.conversations, err)
		}
		config["conversationReplay"] = replay
	}
	if b.records != "" {
		config["rawRecords"] = true
	}
	bounds := map[string]any{}
	for _, bound := range b.sla {
		key, value, ok := strings.Cut(bound, "=")
		limit, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			return nil, autobench.Usagef("--sla %s: must be a bound and its limit, such as ttftP95MaxMs=500", bound)
		}
		bounds[key] = limit
	}
	file, err := yaml.Marshal(map[string]any{
		"scenario": scenario, "objectives": map[string]any{"sla": bounds}, "evaluator": map[string]any{"type": "native", "config": config},
	})
	if err != nil {
		return nil, err
	}
	spec, err := experiment.ReadLoad(file, ".")
	var found []experiment.Problem
	var problems *experiment.Problems
	switch {
	case errors.As(err, &problems):
		found = problems.List
	case err != nil:
		return nil, err
	}
	for _, p := range evaluator.Check(spec, environment()) {
		if !slices.ContainsFunc(found, func(q experiment.Problem) bool { return q.Path == p.Path }) {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return spec, nil
	}
	lines := make([]string, len(found))
	for i, p := range found {
		lines[i] = flagWords(p.String())
	}
	return nil, autobench.Usagef("%s", strings.Join(lines, "\n  "))
}

// keys are the flags that were given, under the names of the experiment file.
func (b *benchOptions) keys(names []string) (map[string]any, error) {
	keys := map[string]any{}
	for _, name := range names {
		flag := b.flags.Lookup(name)
		if !flag.Changed {
			continue
		}
		var value any = flag.Value.String()
		var err error
		switch flag.Value.Type() {
		case "int":
			value, err = b.flags.GetInt(name)
		case "intSlice":
			value, err = b.flags.GetIntSlice(name)
		case "float64":
			value, err = b.flags.GetFloat64(name)
		case "float64Slice":
			value, err = b.flags.GetFloat64Slice(name)
		case "bool":
			value, err = b.flags.GetBool(name)
		}
		if err != nil {
			return nil, err
		}
		keys[camel(name)] = value
	}
	return keys, nil
}

func parseMaxLoad(text string) (map[string]any, error) {
	parts := strings.Split(text, ":")
	if len(parts) == 3 {
		low, lowErr := strconv.ParseFloat(parts[1], 64)
		high, highErr := strconv.ParseFloat(parts[2], 64)
		if lowErr == nil && highErr == nil {
			return map[string]any{"of": parts[0], "min": low, "max": high}, nil
		}
	}
	return nil, autobench.Usagef("--max-load %s: must be concurrency:MIN:MAX or rate:MIN:MAX", text)
}

var dashed = regexp.MustCompile(`-[a-z]`)

// camel turns a flag's name into that of a key. An abbreviation stays one: TLS.
func camel(flag string) string {
	flag = strings.ReplaceAll(flag, "-tls-", "-TLS-")
	return dashed.ReplaceAllStringFunc(strings.ReplaceAll(flag, "-TLS-", "TLS-"), func(s string) string { return strings.ToUpper(s[1:]) })
}

var (
	keyPath  = regexp.MustCompile(`\b(scenario|evaluator\.config)\.([A-Za-z]+)`)
	boundKey = regexp.MustCompile(`\bobjectives\.sla\.`)
	humps    = regexp.MustCompile(`([a-z])([A-Z]+)`)
)

// flagWords says in flags what a problem says in keys.
func flagWords(text string) string {
	text = boundKey.ReplaceAllString(text, "--sla ")
	return keyPath.ReplaceAllStringFunc(text, func(path string) string {
		key := path[strings.LastIndex(path, ".")+1:]
		return "--" + strings.ToLower(humps.ReplaceAllString(strings.ReplaceAll(key, "TLS", "Tls"), "$1-$2"))
	})
}

func (b *benchOptions) run(ctx context.Context) (err error) {
	if b.url == "" {
		return autobench.Usagef("--url is required: the address of the server, such as http://localhost:8000")
	}
	printer, err := b.print.Printer()
	if err != nil {
		return autobench.Usagef("%v", err)
	}
	spec, err := b.spec()
	if err != nil {
		return err
	}
	measure, err := evaluator.New(spec, environment())
	if err != nil {
		return err
	}
	if !b.flags.Changed("seed") {
		b.seed = rand.Uint64()
	}
	log, done := b.live()
	defer done()
	target := experiment.Target{BaseURL: strings.TrimSuffix(strings.TrimRight(b.url, "/"), "/v1"), Model: b.model}
	if target.Model == "" {
		if target.Model, err = evaluator.FirstModel(ctx, spec, environment(), target.BaseURL); err != nil {
			return err
		}
	}
	started := time.Now()
	m, err := measure.Evaluate(ctx, target, experiment.Traffic{
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
		reasons := make([]string, len(result.Violations))
		for i, v := range result.Violations {
			reasons[i] = v.String()
		}
		return fmt.Errorf("%w: %s", errMissed, strings.Join(reasons, "; "))
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
