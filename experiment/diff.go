// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Changed lists the fields in which two experiments differ, sorted, each with
// both values; templates are compared by their text.
func Changed(was, is *Spec) ([]Change, error) {
	a, err := was.flat()
	if err != nil {
		return nil, err
	}
	b, err := is.flat()
	if err != nil {
		return nil, err
	}
	var changes []Change
	keys := slices.Concat(slices.Collect(maps.Keys(a)), slices.Collect(maps.Keys(b)))
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		if a[key] != b[key] {
			changes = append(changes, Change{key, a[key], b[key]})
		}
	}
	return changes, nil
}

// Change is one field that differs; "" is a field that is not given.
type Change struct{ Path, Was, Is string }

func (c Change) String() string {
	unset := func(s string) string {
		if s == "" {
			return "unset"
		}
		return s
	}
	return fmt.Sprintf("%s: was %s, is %s", c.Path, unset(c.Was), unset(c.Is))
}

// Adjustable tells whether the field may change between run and resume: budgets
// and bounds only decide how stored metrics are judged and when to stop, while
// anything else would make the finished trials answers to another question.
func (c Change) Adjustable() bool {
	for _, prefix := range []string{
		"objectives.sla.", "objectives.allowNoSLA",
		"strategy.maxTrialsPerTemplate", "strategy.timeout", "strategy.earlyTermination.",
		"execution.rbgReadyTimeout", "execution.trialTimeout", "execution.infraRetries",
		"execution.schedulingTimeout", "execution.imagePullTimeout", "execution.maxRestarts",
	} {
		if strings.HasPrefix(c.Path, prefix) {
			return true
		}
	}
	return false
}

// flat maps every leaf of the spec's JSON to its text.
func (s *Spec) flat() (map[string]string, error) {
	data, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("compare experiments: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber() // seeds beyond 2^53 keep their digits
	var tree map[string]any
	if err := dec.Decode(&tree); err != nil {
		return nil, fmt.Errorf("compare experiments: %w", err)
	}
	delete(tree, "name")
	delete(tree, "templates")
	leaves := map[string]string{}
	flatten("", tree, leaves)
	if trace := s.Scenario.TraceSource; trace != nil {
		leaves["scenario.trace"] = content(trace) // the path may change
	}
	for i, t := range s.Templates {
		leaves[fmt.Sprintf("templates[%d].name", i)] = t.Name
		leaves[fmt.Sprintf("templates[%d] (text of %s)", i, t.Name)] = content(t.Source)
	}
	return leaves, nil
}

// content stands for a file's text.
func content(data []byte) string {
	return fmt.Sprintf("%d bytes, checksum %08x", len(data), checksum(data))
}

func flatten(path string, v any, into map[string]string) {
	switch x := v.(type) {
	case map[string]any:
		for k, child := range x {
			flatten(join(path, k), child, into)
		}
	case []any:
		for i, child := range x {
			flatten(fmt.Sprintf("%s[%d]", path, i), child, into)
		}
	default:
		into[path] = fmt.Sprint(x)
	}
}
