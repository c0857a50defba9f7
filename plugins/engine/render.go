// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/llmctl/llmctl/experiment"
)

// Render returns the manifest with the parameters in the engine's command
// lines. Everything else stays as it is: other documents byte for byte, and in
// an edited document all but the changed words as far as its layout allows.
// Equal input gives equal bytes, and rendering twice changes nothing more.
//
// Parameters of role "default" apply to every role that is not excluded; those
// of a role of its own come on top. A parameter is an abstract name, a flag
// such as "--max-num-seqs", either with a key of a JSON flag behind a dot, or
// "env:NAME". Without parameters the manifest comes back as it is.
func (e *Engine) Render(manifest []byte, p experiment.Params, o Options) ([]byte, error) {
	if isEmpty(p) {
		return manifest, nil
	}
	view, roles, err := e.find(manifest, o)
	if err != nil {
		return nil, err
	}
	if err := checkRoles(p, view.containers, roles, o); err != nil {
		return nil, err
	}
	editors := map[*document]*docEditor{}
	var errs []error
	for _, c := range view.containers {
		params := paramsOf(p, c.pod.role, o)
		if len(params) == 0 {
			continue
		}
		d := c.pod.doc
		if editors[d] == nil {
			editors[d] = newDocEditor(d)
		}
		if err := e.renderContainer(editors[d], c, params); err != nil {
			errs = append(errs, prefix(c.String(), err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var out strings.Builder
	for _, d := range view.docs {
		text := d.text
		if editor := editors[d]; editor != nil && (len(editor.spans) > 0 || !editor.exact) {
			if text, err = editor.result(); err != nil {
				return nil, err
			}
		}
		out.WriteString(text)
	}
	return []byte(out.String()), nil
}

func isEmpty(p experiment.Params) bool {
	for _, params := range p {
		if len(params) > 0 {
			return false
		}
	}
	return true
}

// prefix puts a place before every error of a joined one.
func prefix(place string, err error) error {
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return fmt.Errorf("%s: %w", place, err)
	}
	var errs []error
	for _, err := range joined.Unwrap() {
		errs = append(errs, prefix(place, err))
	}
	return errors.Join(errs...)
}

// checkRoles refuses parameters for roles that the manifest does not have: they
// would change nothing, and a trial would be taken for what it is not.
func checkRoles(p experiment.Params, found []*engineContainer, roles []string, o Options) error {
	var errs []error
	excluded := func(c *engineContainer) bool { return slices.Contains(o.ExcludeDefaultRoles, c.pod.role) }
	if len(p[experiment.DefaultRole]) > 0 && !slices.ContainsFunc(found, func(c *engineContainer) bool { return !excluded(c) }) {
		errs = append(errs, fmt.Errorf("role %q: excludeDefaultRoles leaves no role that runs the engine", experiment.DefaultRole))
	}
	for _, role := range slices.Sorted(maps.Keys(p)) {
		has := func(c *engineContainer) bool { return c.pod.role == role }
		switch {
		case role == experiment.DefaultRole || slices.ContainsFunc(found, has):
		case slices.Contains(roles, role):
			errs = append(errs, fmt.Errorf("role %q: has no container of its own that runs the engine", role))
		case len(roles) == 0:
			errs = append(errs, fmt.Errorf("role %q: the manifest has no roles; use %q", role, experiment.DefaultRole))
		default:
			errs = append(errs, fmt.Errorf("role %q: the manifest has only %s", role, strings.Join(roles, ", ")))
		}
	}
	return errors.Join(errs...)
}

// paramsOf are the parameters of one role.
func paramsOf(p experiment.Params, role string, o Options) map[string]experiment.Value {
	params := map[string]experiment.Value{}
	if role == "" || !slices.Contains(o.ExcludeDefaultRoles, role) {
		maps.Copy(params, p[experiment.DefaultRole])
	}
	if role != "" && role != experiment.DefaultRole {
		maps.Copy(params, p[role])
	}
	return params
}

func (e *Engine) renderContainer(editor *docEditor, c *engineContainer, params map[string]experiment.Value) error {
	settings, env, err := e.grammar.settings(params)
	if err != nil {
		return err
	}
	changes, err := e.grammar.edit(c.words, c.positional, settings)
	if err != nil {
		return err
	}
	plan, err := c.plan(changes, func(name string) int { return countUses(c.node, name) })
	if err != nil {
		return err
	}
	values := map[string]newValue{}
	for name, value := range env {
		if plan.env[name] != nil {
			return fmt.Errorf("%s%s: the variable holds flags that other parameters change", envPrefix, name)
		}
		values[name] = newValue{text: escape(value), param: envPrefix + name}
	}
	for name, edits := range plan.env {
		values[name] = newValue{text: apply(c.line.env.raw[name], edits), edits: edits, param: "variable " + name}
	}
	if err := setVariables(editor, c.node, values); err != nil {
		return err
	}
	return c.writeLists(editor, plan)
}

// listEdit is what becomes of one list of scalars: see setList.
type listEdit struct {
	from  []int
	texts []string
	edits map[int][]span
}

// writeLists writes the elements of command and args.
func (c *engineContainer) writeLists(editor *docEditor, p *plan) error {
	for i, l := range c.splitLists(p) {
		key := []string{"command", "args"}[i]
		seq := child(c.node, key)
		switch {
		case slices.Equal(texts(seq), l.texts):
		case seq == nil || seq.Kind != yaml.SequenceNode:
			if err := editor.addKey(c.node, "image", key, sequence(l.texts)); err != nil {
				return err
			}
		default:
			if err := editor.setList(seq, l.from, l.texts, l.edits); err != nil {
				return err
			}
		}
	}
	return nil
}

// splitLists says which elements of the command line belong to command and
// which to args; a new one belongs to the list of the one before it.
func (c *engineContainer) splitLists(p *plan) [2]listEdit {
	lists := [2]listEdit{{edits: map[int][]span{}}, {edits: map[int][]span{}}}
	starts := [2]int{c.line.implied, c.line.implied + c.line.command}
	l := &lists[1]
	from, texts := p.list(c.line.argv, c.script)
	for i, at := range from {
		if at >= 0 && at < c.line.implied {
			continue
		}
		if at >= 0 {
			which := 0
			if at >= starts[1] {
				which = 1
			}
			l = &lists[which]
			if at == c.script && len(p.script) > 0 {
				l.edits[at-starts[which]] = p.script
			}
			at -= starts[which]
		}
		l.from, l.texts = append(l.from, at), append(l.texts, texts[i])
	}
	return lists
}

func sequence(texts []string) *yaml.Node {
	seq := &yaml.Node{Kind: yaml.SequenceNode}
	for _, text := range texts {
		seq.Content = append(seq.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text})
	}
	return seq
}

// newValue is what an environment variable becomes.
type newValue struct {
	text  string
	edits []span // what changes in the old value, when it is a part
	param string // for messages
}

// setVariables sets environment variables of a container, in sorted order.
func setVariables(editor *docEditor, container *yaml.Node, values map[string]newValue) error {
	list := child(container, "env")
	added := &yaml.Node{Kind: yaml.SequenceNode}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		v := values[name]
		entry := envEntry(list, name)
		value := child(entry, "value")
		var err error
		switch {
		case entry == nil:
			added.Content = append(added.Content, &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{
				text("name"), text(name), text("value"), text(v.text),
			}})
		case child(entry, "valueFrom") != nil:
			err = errors.New("the manifest takes its value from a reference, which a parameter cannot replace")
		case value == nil:
			err = editor.addKey(entry, "name", "value", text(v.text))
		case value.Value != v.text || value.ShortTag() != "!!str":
			err = editor.setScalar(value, v.text, v.edits, (entry.Style|list.Style)&yaml.FlowStyle != 0)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", v.param, err)
		}
	}
	switch {
	case len(added.Content) == 0:
		return nil
	case list == nil:
		return editor.addKey(container, "image", "env", added)
	default:
		return editor.addItems(list, added)
	}
}

// envEntry finds a variable in a container's env; of one name the last counts.
func envEntry(list *yaml.Node, name string) *yaml.Node {
	var entry *yaml.Node
	if list != nil {
		for _, n := range list.Content {
			if scalar(n, "name") == name {
				entry = n
			}
		}
	}
	return entry
}

func text(value string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}
}

// countUses counts the references to a variable in everything that a container
// says: $(NAME), $NAME and ${NAME…}.
func countUses(n *yaml.Node, name string) int {
	quoted := regexp.QuoteMeta(name)
	return countMatches(n, regexp.MustCompile(`\$(\(`+quoted+`\)|`+quoted+`\b|\{`+quoted+`\b)`))
}

func countMatches(n *yaml.Node, re *regexp.Regexp) int {
	count := 0
	if n.Kind == yaml.ScalarNode {
		count = len(re.FindAllString(n.Value, -1))
	}
	for _, c := range n.Content {
		count += countMatches(c, re)
	}
	return count
}
