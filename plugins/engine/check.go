// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/llmctl/llmctl/experiment"
)

// Check tells whether every one of the settings can be rendered: pass the
// corners of the search space. The warnings are about what the engine will not
// read as its author meant it.
func (e *Engine) Check(manifest []byte, settings []experiment.Params, o Options) (warnings []string, err error) {
	view, roles, err := e.find(manifest, o)
	if err != nil {
		return nil, err
	}
	for _, c := range view.containers {
		for _, w := range e.warnings(c) {
			warnings = append(warnings, c.String()+": "+w)
		}
	}
	var errs []error
	seen := map[string]bool{}
	for _, p := range settings {
		err := checkRoles(p, view.containers, roles, o)
		if err == nil {
			_, err = e.Render(manifest, p, o)
		}
		for _, err := range parts(err) {
			if !seen[err.Error()] {
				seen[err.Error()] = true
				errs = append(errs, err)
			}
		}
		for _, c := range view.containers {
			for _, w := range e.paramWarnings(c, paramsOf(p, c.pod.role, o)) {
				warnings = append(warnings, c.String()+": "+w)
			}
		}
	}
	slices.Sort(warnings)
	return slices.Compact(warnings), errors.Join(errs...)
}

// parts lists the errors of a joined one.
func parts(err error) []error {
	var joined interface{ Unwrap() []error }
	if err == nil {
		return nil
	}
	if !errors.As(err, &joined) {
		return []error{err}
	}
	var all []error
	for _, err := range joined.Unwrap() {
		all = append(all, parts(err)...)
	}
	return all
}

// warnings are about the template as it is.
func (e *Engine) warnings(c *engineContainer) []string {
	g := e.grammar
	s := g.scan(c.words, c.positional)
	out := c.lostArguments()
	for _, i := range s.joined {
		out = append(out, fmt.Sprintf("%s: %q is one word, which the engine does not read as a flag: write flag and value as two words",
			c.words[i].place, redact(c.words[i].text)))
	}
	for _, o := range s.found {
		at := c.words[o.at].place
		name := g.canonical(o.name)
		if !strings.HasPrefix(name, "--") {
			name = o.name
		}
		if hint, gone := g.removed[name]; gone {
			out = append(out, fmt.Sprintf("%s: %s is gone from newer versions of %s: %s", at, o.name, e.Name, hint))
		}
		if len(o.ambiguous) > 0 {
			out = append(out, fmt.Sprintf("%s: %s is ambiguous: it may be %s", at, o.name, strings.Join(o.ambiguous, " or ")))
		}
		out = append(out, e.switchWarnings(c, s, o)...)
		if o.flag != nil && o.flag == g.options[e.desc.Config].flag {
			out = append(out, fmt.Sprintf("%s: the arguments in the file of %s are not seen; parameters override them, but cannot turn a switch off there",
				at, o.name))
		}
	}
	return out
}

// lostArguments warns of flags behind a script that does not read them: the
// shell makes $0, $1, … of them.
func (c *engineContainer) lostArguments() []string {
	if c.script < 0 || strings.Contains(c.line.argv[c.script], "$") {
		return nil
	}
	for i := c.script + 1; i < len(c.line.argv); i++ {
		if text := c.line.argv[i]; len(text) > 2 && text[0] == '-' {
			return []string{fmt.Sprintf("%s: %q does not reach the engine: the shell keeps what follows its script", c.line.label(i), redact(text))}
		}
	}
	return nil
}

// switchWarnings are about switches with a value, as in "--enforce-eager true".
func (e *Engine) switchWarnings(c *engineContainer, s scanned, o occurrence) []string {
	if o.flag == nil || o.flag.takesValue() {
		return nil
	}
	at := c.words[o.at].place
	if o.attached {
		return []string{fmt.Sprintf("%s: %s is a switch and takes no value", at, c.words[o.at].text)}
	}
	next := o.at + 1
	if !slices.Contains(s.positionals, next) {
		return nil
	}
	switch text := c.words[next].text; strings.ToLower(text) {
	case "true", "false", "1", "0", "yes", "no", "on", "off":
		return []string{fmt.Sprintf("%s: %s is a switch: the engine does not read %q as its value", at, o.name, text)}
	}
	return nil
}

// paramWarnings are about parameters that are legal but may not do what they say.
func (e *Engine) paramWarnings(c *engineContainer, params map[string]experiment.Value) []string {
	g := e.grammar
	var out []string
	for _, name := range slices.Sorted(maps.Keys(params)) {
		s, err := g.setting(name, params[name])
		if err != nil || strings.HasPrefix(name, envPrefix) {
			continue
		}
		if hint, gone := g.removed[s.flag.name]; gone && strings.HasPrefix(name, "-") {
			out = append(out, fmt.Sprintf("%s is gone from newer versions of %s: %s", name, e.Name, hint))
		}
		rule := s.flag.rule
		if rule == nil {
			continue
		}
		if text := params[name].String(); rule.Open && !rule.chosen(text) {
			out = append(out, fmt.Sprintf("%s: %q is not among the known values: %s", name, text, strings.Join(rule.Choices, ", ")))
		}
		for _, other := range rule.OverriddenBy {
			if f := g.options[other].flag; f != nil && len(g.occurrences(f, g.scan(c.words, c.positional))) > 0 {
				out = append(out, fmt.Sprintf("%s has no effect: the template has %s, which overrides it", name, other))
			}
		}
	}
	return out
}
