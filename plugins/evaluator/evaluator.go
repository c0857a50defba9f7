// SPDX-License-Identifier: Apache-2.0

// Package evaluator measures a serving engine under load.
package evaluator

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/loadgen"
)

// evaluators are the values of evaluator.type.
var evaluators = map[string]func(settings) experiment.Evaluator{
	"native": func(s settings) experiment.Evaluator { return native{s} },
	"model":  func(s settings) experiment.Evaluator { return model{s} },
}

// planned are evaluators that existing experiment files name.
var planned = []string{"genai-bench", "inference-perf", "exec"}

// Names lists the evaluators, sorted.
func Names() []string { return slices.Sorted(maps.Keys(evaluators)) }

// New makes the evaluator that the experiment names. Its error is the first
// thing that Check finds.
func New(s *experiment.Spec, getenv func(string) string) (experiment.Evaluator, error) {
	settings, problems := read(s, getenv)
	if len(problems) > 0 {
		return nil, errors.New(problems[0].String())
	}
	e := evaluators[s.Evaluator.Type](settings)
	if len(s.Scenario.ConcurrencySweep) > 0 {
		e = sweep{e}
	}
	return e, nil
}

// Check says what is wrong with the evaluator's settings and with the workload,
// which is the evaluators' to read.
func Check(s *experiment.Spec, getenv func(string) string) []experiment.Problem {
	_, problems := read(s, getenv)
	return problems
}

// APIKey is the key that evaluator.config.apiKey refers to, or "".
func APIKey(s *experiment.Spec, getenv func(string) string) string {
	settings, _ := read(s, getenv)
	return settings.apiKey
}

// settings are what the evaluators need beside the traffic.
type settings struct {
	workload       loadgen.Workload
	api            loadgen.API
	apiKey         string
	warmup         int
	requestTimeout time.Duration
	allowShort     bool
}

// read checks and types evaluator.config and scenario.workload.
func read(s *experiment.Spec, getenv func(string) string) (settings, []experiment.Problem) {
	var problems []experiment.Problem
	problem := func(path, format string, args ...any) {
		problems = append(problems, experiment.Problem{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	var out settings
	if _, ok := evaluators[s.Evaluator.Type]; !ok {
		why := "unknown"
		if slices.Contains(planned, s.Evaluator.Type) {
			why = "not yet"
		}
		problem("evaluator.type", "%s: %s; use %s", s.Evaluator.Type, why, strings.Join(Names(), " or "))
	} else {
		for _, key := range slices.Sorted(maps.Keys(s.Evaluator.Config)) {
			if err := out.set(key, s.Evaluator.Config[key], getenv); err != nil {
				problem("evaluator.config."+key, "%v", err)
			}
		}
	}
	if s.Scenario.Workload != "" {
		var err error
		if out.workload, err = loadgen.ParseWorkload(s.Scenario.Workload); err != nil {
			problem("scenario.workload", "%s", strings.TrimPrefix(err.Error(), "workload "))
		}
	}
	return out, problems
}

// set takes one entry of evaluator.config.
func (s *settings) set(key string, value any, getenv func(string) string) error {
	text, isText := value.(string)
	switch key {
	case "apiType":
		switch s.api = loadgen.API(text); s.api {
		case loadgen.Completions, loadgen.Chat:
			return nil
		}
		return fmt.Errorf("must be completions or chat, is %v", value)
	case "apiKey":
		name, ok := strings.CutPrefix(text, "env:")
		if !isText || !ok {
			return errors.New("must be env:NAME, the environment variable that holds the key; a key in the file would be stored with the experiment")
		}
		if s.apiKey = getenv(name); s.apiKey == "" {
			return fmt.Errorf("environment variable %s is not set", name)
		}
		return nil
	case "warmupRequests":
		n, ok := value.(int)
		if !ok || n < 0 {
			return fmt.Errorf("must be a whole number of at least 0, is %v", value)
		}
		s.warmup = n
		return nil
	case "requestTimeout":
		d, err := time.ParseDuration(text)
		if !isText || err != nil || d < 0 {
			return fmt.Errorf("must be a duration such as 90s, is %v", value)
		}
		s.requestTimeout = d
		return nil
	case "allowShortOutput":
		allow, ok := value.(bool)
		if !ok {
			return fmt.Errorf("must be true or false, is %v", value)
		}
		s.allowShort = allow
		return nil
	}
	return errors.New("unknown key; known: allowShortOutput, apiKey, apiType, requestTimeout, warmupRequests")
}
