// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/engine"
)

// ClassMismatch is an engine that serves, but not what the trial's manifest says.
const ClassMismatch = "config_mismatch"

// Expected is what a serving engine is compared with, so that no result is
// credited to settings that did not take effect.
type Expected struct {
	Engine    *engine.Engine
	Container engine.Container
	// Log reads the engine's log from its beginning.
	Log func(context.Context) ([]byte, error)
}

// served chooses the model to ask for: one that the manifest names. An engine
// that serves none of these is another one than was deployed.
func (e *Expected) served(models []string) (string, error) {
	if e == nil || len(e.Container.Served) == 0 || slices.ContainsFunc(e.Container.Served, unknown) {
		return models[0], nil
	}
	for _, name := range e.Container.Served {
		if slices.Contains(models, name) {
			return name, nil
		}
	}
	return "", mismatch("the engine serves %s, but the manifest says %s; does the endpoint lead to another engine?",
		strings.Join(models, ", "), strings.Join(e.Container.Served, ", "))
}

// unknown tells a name that only the container itself can complete.
func unknown(name string) bool { return strings.Contains(name, "$") }

// verify compares the engine's arguments with the command line. An engine that
// does not report them is trusted.
func (p Probe) verify(ctx context.Context) error {
	reported, err := p.reported(ctx)
	if err != nil || len(reported) == 0 {
		return nil
	}
	differ, err := p.Expected.Engine.Mismatches(p.Expected.Container, reported)
	if err != nil || len(differ) == 0 {
		return nil // a command that cannot be read was refused before it was deployed
	}
	return mismatch("%s", strings.Join(differ, "; "))
}

func (p Probe) reported(ctx context.Context) (engine.Arguments, error) {
	if path := p.Expected.Engine.ArgumentsPath(); path != "" {
		answer, err := p.get(ctx, path)
		if err != nil {
			return nil, err
		}
		return engine.ArgumentsFromJSON(answer)
	}
	log, err := p.Expected.Log(ctx)
	if err != nil {
		return nil, err
	}
	return p.Expected.Engine.ArgumentsFromLog(log), nil
}

func mismatch(format string, args ...any) error {
	return &experiment.Failure{Cause: experiment.Cause{Class: ClassMismatch, Message: fmt.Sprintf(format, args...)}}
}
