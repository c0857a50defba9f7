// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"

	"github.com/llmctl/llmctl/experiment"
)

// line is the container's command with the environment that it refers to.
func (c Container) line() commandLine {
	line := commandLine{argv: c.Argv, command: len(c.Argv), env: environment{open: len(c.EnvFrom) > 0}}
	for _, v := range c.Env {
		line.env.add(v)
	}
	return line
}

// WithAddress returns the container's command with the address to listen on in
// place of its own, to run it elsewhere than in its pod. References $(NAME) are
// still to be replaced: see Expand.
func (e *Engine) WithAddress(c Container, host string, port int) ([]string, error) {
	inv, err := e.locate(c.line())
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", c.Name, err)
	}
	if inv == nil {
		return nil, fmt.Errorf("container %q: its command is not %s's", c.Name, e.Name)
	}
	settings, _, err := e.grammar.settings(map[string]experiment.Value{
		e.desc.Host:      experiment.String(host),
		e.desc.Port.Flag: experiment.Int(int64(port)),
	})
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", c.Name, err)
	}
	changes, err := e.grammar.edit(inv.words, inv.positional, settings)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", c.Name, err)
	}
	// Only the command is returned, so nothing in the environment may change.
	plan, err := inv.plan(changes, nil)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", c.Name, err)
	}
	_, argv := plan.list(c.Argv, inv.script)
	return argv, nil
}
