// SPDX-License-Identifier: Apache-2.0

// Package evaluator measures a serving engine under load.
package evaluator

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/loadgen"
)

// evaluators are the values of evaluator.type.
var evaluators = map[string]func(settings) experiment.Evaluator{
	typeNative:    func(s settings) experiment.Evaluator { return native{s} },
	typeModel:     func(s settings) experiment.Evaluator { return model{s} },
	typeGenAI:     func(s settings) experiment.Evaluator { return genAIBench{s} },
	typeInference: func(s settings) experiment.Evaluator { return inferencePerf{s} },
	typeExec:      func(s settings) experiment.Evaluator { return command{s} },
}

// Workloads that are not a distribution of lengths.
const (
	datasetWorkload      = "dataset"
	conversationWorkload = "conversation_replay"
)

// Environment is what the evaluators take from the process.
type Environment struct {
	Getenv  func(string) string
	Environ []string // of the commands that measure
}

// Names lists the evaluators, sorted.
func Names() []string { return slices.Sorted(maps.Keys(evaluators)) }

// Plan is how an experiment is measured.
type Plan struct {
	// Evaluator is the one that the experiment names; nil where there are problems.
	Evaluator experiment.Evaluator
	// APIKey is the key that evaluator.config.apiKey refers to, or "".
	APIKey string
	// Largest is the largest number of tokens, prompt and answer together, that one
	// request can have; 0 where that is not known in advance.
	Largest int

	settings settings
}

// Read reads the evaluator's settings and the workload, which is the evaluators'
// to read, with the files that they name, and says what is wrong with them.
func Read(s *experiment.Spec, env Environment) (*Plan, []experiment.Problem) {
	settings, problems := read(s, env)
	plan := &Plan{APIKey: settings.apiKey, settings: settings}
	if len(problems) > 0 {
		return plan, problems
	}
	input, output := settings.load(experiment.Traffic{}).Largest()
	plan.Largest = input + output
	plan.Evaluator = evaluators[s.Evaluator.Type](settings)
	switch {
	case s.Scenario.MaxLoad != nil:
		plan.Evaluator = maxLoad{plan.Evaluator}
	case len(s.Scenario.ConcurrencySweep) > 0 || len(s.Scenario.RateSweep) > 0:
		plan.Evaluator = sweep{plan.Evaluator}
	}
	return plan, nil
}

// read checks and types evaluator.config and the scenario's own words.
func read(s *experiment.Spec, env Environment) (settings, []experiment.Problem) {
	out := settings{environ: env.Environ}
	var problems []experiment.Problem
	problem := func(path, format string, args ...any) {
		problems = append(problems, experiment.Problem{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	kind := s.Evaluator.Type
	if _, ok := evaluators[kind]; !ok {
		problem("evaluator.type", "%s: unknown; use %s", kind, strings.Join(Names(), ", "))
		return out, problems
	}
	for _, key := range slices.Sorted(maps.Keys(s.Evaluator.Config)) {
		if err := out.set(kind, key, s.Evaluator.Config[key], env.Getenv); err != nil {
			problem("evaluator.config."+key, "%v", err)
		}
	}
	if len(problems) == 0 {
		for _, need := range out.missing(kind, s.Scenario) {
			problem(need, "is required by evaluator %s", kind)
		}
	}
	out.scenario(kind, s.Scenario, problem)
	return out, problems
}

// missing lists the keys without which an evaluator cannot work.
func (s *settings) missing(kind string, scenario experiment.Scenario) (keys []string) {
	if kind == typeExec && s.command == nil {
		keys = append(keys, "evaluator.config.command")
	}
	if slices.Contains(tools, kind) && s.tokenizer == "" {
		keys = append(keys, "evaluator.config.tokenizerSource")
	}
	if scenario.Workload == datasetWorkload && s.datasetPath == "" && kind != typeExec {
		keys = append(keys, "evaluator.config.datasetPath")
	}
	if scenario.Workload == conversationWorkload && s.replay == nil && kind != typeExec {
		keys = append(keys, "evaluator.config.conversationReplay")
	}
	return keys
}

// scenario reads the words of the scenario that are the evaluators'.
func (s *settings) scenario(kind string, scenario experiment.Scenario, problem func(path, format string, args ...any)) {
	var err error
	switch {
	case kind == typeExec:
		return // the command reads its own scenario
	case scenario.Trace != "":
		if kind != typeNative {
			problem("scenario.trace", "is for evaluator %s", typeNative)
		} else if s.trace, err = loadgen.ReadTrace(scenario.Trace, bytes.NewReader(scenario.TraceSource)); err != nil && scenario.TraceSource != nil {
			problem("scenario.trace", "%v", err)
		}
	case scenario.Workload == datasetWorkload, scenario.Workload == conversationWorkload:
		if kind == typeModel {
			problem("scenario.workload", "%s is not for evaluator %s", scenario.Workload, kind)
		}
	case scenario.Workload != "":
		if s.workload, err = loadgen.ParseWorkload(scenario.Workload); err != nil {
			problem("scenario.workload", "%s", strings.TrimPrefix(err.Error(), "workload "))
		}
	}
	const idle = "has no effect unless scenario.workload is %s"
	if s.dataset != nil && scenario.Workload != datasetWorkload {
		problem("evaluator.config.datasetPath", idle, datasetWorkload)
	}
	if s.conversations != nil && scenario.Workload != conversationWorkload {
		problem("evaluator.config.conversationReplay", idle, conversationWorkload)
	}
	rated := scenario.Rated()
	switch {
	case rated && (kind == typeModel || kind == typeGenAI):
		problem("scenario.rate", "is not for evaluator %s, which knows a concurrency only", kind)
	case rated && s.conversations != nil:
		problem("scenario.rate", "does not go with conversations: give a concurrency of them")
	case scenario.Arrival != "":
		if s.arrival, err = loadgen.ParseArrival(scenario.Arrival); err != nil {
			problem("scenario.arrival", "%s", strings.TrimPrefix(err.Error(), "arrival "))
		}
	}
	switch kind {
	case typeGenAI:
		checkGenAI(s, scenario, problem)
	case typeInference:
		checkInferencePerf(s, scenario, problem)
	}
	if slices.Contains(tools, kind) {
		if _, err := lookPath(kind, s.environ); err != nil {
			problem("evaluator.type", "%v", err)
		}
	}
}
