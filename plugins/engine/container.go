// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/llmctl/llmctl/experiment"
)

// Options say what the manifest does not.
type Options struct {
	// ExcludeDefaultRoles are roles to which the parameters of role "default" do not apply.
	ExcludeDefaultRoles []string
	// PodTemplatePaths lead to pod templates of kinds that are not known, such
	// as spec.workers[].template.
	PodTemplatePaths []string
}

// Container is an engine container of a manifest.
type Container struct {
	Role     string // "default" when the object has no roles
	Document int    // from 1; documents without content are not counted
	Kind     string // of the object
	Object   string // name of the object
	Name     string // of the container
	Image    string

	// Argv is the command as it runs, a shell around it included; for a
	// container without command it starts with the image's entrypoint.
	// $(NAME) is not replaced yet: see Expand.
	Argv       []string
	Env        []EnvVar
	EnvFrom    []string // sources of more variables, such as "secretRef hf"
	WorkingDir string

	Port     int
	PortFrom string   // argument, container port or default
	Model    string   // path or name of the model; "" when only the cluster knows it
	Served   []string // names of the model in the API; the model itself when there are none
}

// EnvVar is an environment variable of a container.
type EnvVar struct {
	Name  string
	Value string // literal, with $(NAME) replaced
	From  string // what holds the value instead, such as "secretKeyRef hf token"
}

// Lookup returns the value of a variable that is written in the manifest.
func (c Container) Lookup(name string) (string, bool) {
	return environment{vars: c.Env}.literal(name)
}

// engineContainer is an engine container with the nodes to edit.
type engineContainer struct {
	Container
	pod  pod
	node *yaml.Node
	line commandLine
	*invocation
}

// String names the container for messages.
func (c *engineContainer) String() string { return containerName(c.pod, c.Name) }

func containerName(p pod, name string) string {
	role := ""
	if p.role != "" {
		role = fmt.Sprintf(" role %q", p.role)
	}
	return fmt.Sprintf("%s%s container %q", p.doc, role, name)
}

// Find returns the engine's containers: at most one of a pod template, and at
// least one in all. Init containers are none.
func (e *Engine) Find(manifest []byte, o Options) ([]Container, error) {
	found, _, err := e.find(manifest, o)
	if err != nil {
		return nil, err
	}
	var out []Container
	for _, c := range found.containers {
		out = append(out, c.Container)
	}
	return out, nil
}

// manifestView is a manifest with its engine containers.
type manifestView struct {
	docs       []*document
	containers []*engineContainer
}

func (e *Engine) find(manifest []byte, o Options) (view manifestView, roles []string, err error) {
	docs, err := parseManifest(manifest)
	if err != nil {
		return manifestView{}, nil, err
	}
	templates, roles := pods(e.kinds, docs, o.PodTemplatePaths)
	view.docs = docs
	var errs []error
	var others []string // containers that do not run the engine
	for _, p := range templates {
		c, seen, err := e.findInPod(p)
		others = append(others, seen...)
		switch {
		case errors.As(err, new(*hidden)) && slices.Contains(o.ExcludeDefaultRoles, p.role):
		case err != nil:
			errs = append(errs, err)
		case c != nil:
			view.containers = append(view.containers, c)
		}
	}
	if len(view.containers) == 0 && len(errs) == 0 {
		errs = append(errs, e.notFound(docs, others))
	}
	if err := checkPatches(templates, view.containers); err != nil {
		errs = append(errs, err)
	}
	return view, roles, errors.Join(errs...)
}

// notFound says what was seen in place of the engine.
func (e *Engine) notFound(docs []*document, others []string) error {
	if len(others) > 0 {
		return fmt.Errorf("no container runs %s; seen: %s", e.Name, strings.Join(others, "; "))
	}
	var objects []string
	for _, d := range docs {
		if d.root != nil {
			objects = append(objects, d.String())
		}
	}
	return fmt.Errorf("no container runs %s: no pod template found in %s; name its path in podTemplatePaths",
		e.Name, strings.Join(objects, ", "))
}

// findInPod finds the engine among the containers of a pod template, and
// describes the others.
func (e *Engine) findInPod(p pod) (*engineContainer, []string, error) {
	var found []*engineContainer
	var others []string
	var secret error
	for _, node := range child(p.spec, "containers").Content {
		c, err := e.inspect(p, node)
		name := containerName(p, scalar(node, "name"))
		switch {
		case err != nil:
			if secret == nil {
				secret = fmt.Errorf("%s: %w", name, err)
			}
		case c.invocation != nil:
			found = append(found, c)
		default:
			others = append(others, name+" "+describeCommand(c))
		}
	}
	if len(found) > 1 {
		return nil, nil, fmt.Errorf("%s: two containers run %s, %q and %q: there must be one", p.doc, e.Name, found[0].Name, found[1].Name)
	}
	if len(found) == 1 {
		return found[0], others, nil
	}
	return nil, others, secret
}

func describeCommand(c *engineContainer) string {
	if len(c.line.argv) == 0 {
		return "runs the image " + c.Image
	}
	words := strings.Fields(redact(strings.Join(c.line.argv, " ")))
	text := strings.Join(words[:min(4, len(words))], " ")
	if len(words) > 4 {
		text += " …"
	}
	if shell, ok := findShell(c.line.words(0)); ok && shell.script < 0 {
		return fmt.Sprintf("runs %q: %v", text, errScriptFile)
	}
	return fmt.Sprintf("runs %q", text)
}

// inspect reads a container; its invocation is nil when it does not run the engine.
func (e *Engine) inspect(p pod, node *yaml.Node) (*engineContainer, error) {
	c := &engineContainer{pod: p, node: node}
	c.Role = cmp.Or(p.role, experiment.DefaultRole)
	c.Document, c.Kind, c.Object = p.doc.number, scalar(p.doc.root, "kind"), p.doc.name()
	c.Name, c.Image, c.WorkingDir = scalar(node, "name"), scalar(node, "image"), scalar(node, "workingDir")
	env := readEnv(node)
	c.Env, c.EnvFrom = env.vars, envFrom(node)
	command, args := texts(child(node, "command")), texts(child(node, "args"))
	c.line = commandLine{argv: slices.Concat(command, args), command: len(command), env: env}
	inv, err := e.locate(c.line)
	if err != nil {
		return nil, err
	}
	if inv == nil && len(command) == 0 {
		if inv, err = e.locateByImage(&c.line, c.Image); err != nil {
			return nil, err
		}
	}
	if inv == nil && e.isImage(c.Image) {
		if shell, ok := findShell(c.line.words(0)); ok && shell.script < 0 {
			return nil, errScriptFile
		}
	}
	if c.invocation = inv; inv != nil {
		c.Argv = c.line.argv
		e.readFacts(c)
	}
	return c, nil
}

func (e *Engine) isImage(name string) bool {
	return slices.ContainsFunc(e.desc.Images, func(img image) bool { return img.Match.MatchString(repository(name)) })
}

// locateByImage tries what the image's entrypoint makes of the arguments.
func (e *Engine) locateByImage(line *commandLine, name string) (*invocation, error) {
	for _, img := range e.desc.Images {
		if !img.Match.MatchString(repository(name)) {
			continue
		}
		for _, entrypoint := range img.Entrypoints {
			full := *line
			full.argv, full.implied = slices.Concat(entrypoint, line.argv), len(entrypoint)
			inv, err := e.locate(full)
			if err != nil {
				return nil, err
			}
			if inv != nil {
				*line = full
				return inv, nil
			}
		}
	}
	return nil, nil
}

var imageVersion = regexp.MustCompile(`(:[^:/]+)?(@.*)?$`)

// repository is an image's name without registry, tag and digest.
func repository(image string) string {
	name := imageVersion.ReplaceAllString(image, "")
	host, rest, ok := strings.Cut(name, "/")
	if ok && (strings.ContainsAny(host, ".:") || host == "localhost") {
		return rest
	}
	return name
}

// texts lists the scalars of a sequence.
func texts(seq *yaml.Node) []string {
	var out []string
	if seq != nil {
		for _, n := range seq.Content {
			out = append(out, n.Value)
		}
	}
	return out
}

// readEnv reads a container's environment.
func readEnv(container *yaml.Node) environment {
	env := environment{open: len(envFrom(container)) > 0}
	if list := child(container, "env"); list != nil {
		for _, n := range list.Content {
			v := EnvVar{Name: scalar(n, "name"), Value: scalar(n, "value")}
			if from := child(n, "valueFrom"); from != nil {
				v.From = describeSource(from)
			}
			env.add(v)
		}
	}
	return env
}

// describeSource names where a variable comes from: "secretKeyRef hf token".
func describeSource(from *yaml.Node) string {
	if from.Kind != yaml.MappingNode || len(from.Content) < 2 {
		return "valueFrom"
	}
	words := []string{from.Content[0].Value}
	for _, key := range []string{"name", "key", "fieldPath", "resource"} {
		if text := scalar(from.Content[1], key); text != "" {
			words = append(words, text)
		}
	}
	return strings.Join(words, " ")
}

// envFrom lists the sources of whole sets of variables.
func envFrom(container *yaml.Node) []string {
	var sources []string
	if list := child(container, "envFrom"); list != nil {
		for _, n := range list.Content {
			sources = append(sources, describeSource(&yaml.Node{Kind: yaml.MappingNode, Content: withoutPrefix(n)}))
		}
	}
	return sources
}

// withoutPrefix is the part of an envFrom entry that names its source.
func withoutPrefix(n *yaml.Node) []*yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value != "prefix" {
			return n.Content[i : i+2]
		}
	}
	return nil
}

// readFacts reads port, model and names off the engine's arguments.
func (e *Engine) readFacts(c *engineContainer) {
	s := e.grammar.scan(c.words, c.positional)
	value := func(flagName string) []string {
		var last []string
		for _, o := range s.found {
			if f := e.grammar.options[flagName].flag; f != nil && o.flag == f {
				last = valuesAt(c.words, o)
			}
		}
		return last
	}
	if model := value(e.desc.Model); len(model) > 0 {
		c.Model = model[0]
	} else if c.positional && len(s.positionals) > 0 {
		c.Model = c.words[s.positionals[0]].seen()
	}
	for _, name := range value(e.desc.ServedModel) {
		if name != "" {
			c.Served = append(c.Served, name)
		}
	}
	if len(c.Served) == 0 && c.Model != "" {
		c.Served = []string{c.Model}
	}
	c.Port, c.PortFrom = e.DefaultPort, "default"
	if port := containerPort(c.node, e.DefaultPort); port > 0 {
		c.Port, c.PortFrom = port, "container port"
	}
	if text := value(e.desc.Port.Flag); len(text) > 0 {
		if port, err := strconv.Atoi(text[0]); err == nil {
			c.Port, c.PortFrom = port, "argument"
		}
	}
}

// seen is a word's text, or "" when it is not known in full.
func (w word) seen() string {
	if w.open {
		return ""
	}
	return w.text
}

// valuesAt lists the values of an option; one that cannot be seen is "".
func valuesAt(words []word, o occurrence) []string {
	if o.attached {
		if words[o.at].open {
			return []string{""}
		}
		return []string{o.value}
	}
	var values []string
	for _, w := range words[o.at+1 : o.at+o.n] {
		values = append(values, w.seen())
	}
	return values
}

// containerPort picks the declared port that serves HTTP: the engine's default
// port, one named http, api or so, or else the first.
func containerPort(container *yaml.Node, preferred int) int {
	list := child(container, "ports")
	if list == nil {
		return 0
	}
	first, named := 0, 0
	for _, n := range list.Content {
		port, err := strconv.Atoi(scalar(n, "containerPort"))
		if err != nil {
			continue
		}
		if port == preferred {
			return port
		}
		if first == 0 {
			first = port
		}
		if named == 0 && slices.Contains([]string{"http", "http1", "api", "openai", "serve", "server", "rest", "web"}, scalar(n, "name")) {
			named = port
		}
	}
	return cmp.Or(named, first)
}

// checkPatches refuses patches that give an engine container new arguments
// without its command: the engine would run with what was not edited.
func checkPatches(templates []pod, found []*engineContainer) error {
	for _, p := range templates {
		if !p.patch {
			continue
		}
		for _, node := range child(p.spec, "containers").Content {
			if child(node, "args") == nil && child(node, "command") == nil {
				continue
			}
			name := scalar(node, "name")
			own := slices.ContainsFunc(found, func(c *engineContainer) bool { return c.node == node })
			base := slices.ContainsFunc(found, func(c *engineContainer) bool {
				return !c.pod.patch && c.pod.doc == p.doc && c.Name == name
			})
			if base && !own {
				return fmt.Errorf("%s: %w", containerName(p, name),
					&hidden{"the patch " + p.path + " replaces a part of the engine's command line"})
			}
		}
	}
	return nil
}
