// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/llmctl/llmctl/cmd/autobench"
	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/evaluator"
)

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
	scenarioKeys = map[string]string{
		"workload": "workload", "concurrency": "concurrency", "concurrency-sweep": "concurrencySweep",
		"rate": "rate", "rate-sweep": "rateSweep", "arrival": "arrival", "ramp-up": "rampUp", "trace": "trace",
		"max-requests": "maxRequests", "min-requests": "minRequests", "duration": "duration",
		"stop-when-decided": "stopWhenDecided",
	}
	evaluatorKeys = map[string]string{
		"api-type": "apiType", "api-key": "apiKey", "dataset-path": "datasetPath", "warmup-requests": "warmupRequests",
		"request-timeout": "requestTimeout", "allow-short-output": "allowShortOutput",
		"insecure-skip-tls-verify": "insecureSkipTLSVerify", "certificate-authority": "certificateAuthority",
	}
	// Those that have a form of their own.
	otherKeys = map[string]string{"max-load": "maxLoad", "conversation-replay": "conversationReplay"}
)

// load reads the flags as the load of an experiment, and how to measure it.
func (b *benchOptions) load() (*experiment.Spec, *evaluator.Plan, error) {
	file, err := b.file()
	if err != nil {
		return nil, nil, err
	}
	spec, err := experiment.ReadLoad(file, ".")
	var found []experiment.Problem
	var problems *experiment.Problems
	switch {
	case errors.As(err, &problems):
		found = problems.List
	case err != nil:
		return nil, nil, err
	}
	plan, more := evaluator.Read(spec, autobench.Environment())
	for _, p := range more {
		if !slices.ContainsFunc(found, func(q experiment.Problem) bool { return q.Path == p.Path }) {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return spec, plan, nil
	}
	lines := make([]string, len(found))
	for i, p := range found {
		lines[i] = flagWords(p.String())
	}
	return nil, nil, autobench.Usagef("%s", strings.Join(lines, "\n  "))
}

// file is the flags as an experiment file has them.
func (b *benchOptions) file() ([]byte, error) {
	scenario, err := b.keys(scenarioKeys)
	if err != nil {
		return nil, err
	}
	config, err := b.keys(evaluatorKeys)
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
	return yaml.Marshal(map[string]any{
		"scenario": scenario, "objectives": map[string]any{"sla": bounds}, "evaluator": map[string]any{"type": "native", "config": config},
	})
}

// keys are the flags that were given, under their names in the experiment file.
func (b *benchOptions) keys(names map[string]string) (map[string]any, error) {
	keys := map[string]any{}
	for name, key := range names {
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
		keys[key] = value
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

var (
	keyPath  = regexp.MustCompile(`\b(scenario|evaluator\.config)\.([A-Za-z]+)`)
	boundKey = regexp.MustCompile(`\bobjectives\.sla\.`)
)

// flagWords says in flags what a problem says in keys.
func flagWords(text string) string {
	text = boundKey.ReplaceAllString(text, "--sla ")
	return keyPath.ReplaceAllStringFunc(text, func(path string) string {
		for _, keys := range []map[string]string{scenarioKeys, evaluatorKeys, otherKeys} {
			for flag, key := range keys {
				if strings.HasSuffix(path, "."+key) {
					return "--" + flag
				}
			}
		}
		return path
	})
}
