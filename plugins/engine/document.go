// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document is one YAML document of a manifest. Its text is kept, so that what
// is not edited stays as it was.
type document struct {
	number int // from 1; documents without content are not counted and are 0
	text   string
	root   *yaml.Node // nil without content
	node   *yaml.Node // the document around root, with its comments
	// placed tells that the positions of the nodes can be trusted: nothing was
	// written by anchor and alias.
	placed bool
	crlf   bool
}

// split cuts a manifest at the lines --- and ...; the parts joined are the manifest.
func split(manifest string) []string {
	var parts []string
	start, at := 0, 0
	for at < len(manifest) {
		end := len(manifest)
		if i := strings.IndexByte(manifest[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		switch line := manifest[at:end]; {
		case isMarker(line, "---") && at > start && !isPreamble(manifest[start:at]):
			parts = append(parts, manifest[start:at])
			start = at
		case isMarker(line, "..."):
			parts = append(parts, manifest[start:end])
			start = end
		}
		at = end
	}
	if start < len(manifest) {
		parts = append(parts, manifest[start:])
	}
	return parts
}

// isPreamble tells whether a text belongs to the marker line after it: it is
// blank, or has directives such as %YAML.
func isPreamble(text string) bool {
	directives := false
	for line := range strings.Lines(text) {
		directives = directives || line[0] == '%'
		if isMarker(line, "---") {
			return false
		}
	}
	return directives || strings.TrimSpace(text) == ""
}

func isMarker(line, marker string) bool {
	rest, ok := strings.CutPrefix(line, marker)
	return ok && (rest == "" || strings.ContainsRune(" \t\r\n", rune(rest[0])))
}

// parseManifest reads every document and makes sure that each is a Kubernetes
// object.
func parseManifest(manifest []byte) ([]*document, error) {
	var docs []*document
	var errs []error
	number, line := 0, 0
	for _, text := range split(string(manifest)) {
		first := line
		line += strings.Count(text, "\n")
		d := &document{text: text, crlf: strings.Contains(text, "\r\n")}
		docs = append(docs, d)
		var node yaml.Node
		if err := yaml.Unmarshal([]byte(text), &node); err != nil {
			number++
			errs = append(errs, fmt.Errorf("document %d: %w", number, shiftLine(err, first)))
			continue
		}
		if node.Kind != yaml.DocumentNode || isNull(node.Content[0]) {
			continue
		}
		number++
		d.number = number
		if err := d.load(&node); err != nil {
			errs = append(errs, fmt.Errorf("document %d: %w", number, err))
		}
	}
	if number == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("the manifest is empty"))
	}
	return docs, errors.Join(errs...)
}

var lineOfError = regexp.MustCompile(`^yaml: line (\d+)`)

// shiftLine counts the line of a syntax error from the start of the manifest.
func shiftLine(err error, lines int) error {
	m := lineOfError.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	n, convErr := strconv.Atoi(m[1])
	if convErr != nil {
		return err
	}
	return fmt.Errorf("line %d%s", n+lines, strings.TrimPrefix(err.Error(), m[0]))
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func (d *document) load(doc *yaml.Node) error {
	root := doc.Content[0]
	d.placed = true
	if hasAliases(root) {
		d.placed = false
		budget := maxNodes
		expanded, err := expandAliases(root, &budget)
		if err != nil {
			return err
		}
		root = expanded
	}
	if root.Kind != yaml.MappingNode {
		return errors.New("is not a Kubernetes object: it is no mapping")
	}
	d.root, d.node = root, doc
	doc.Content[0] = root
	kind, api := scalar(root, "kind"), scalar(root, "apiVersion")
	switch {
	case kind == "" || api == "":
		return errors.New("is not a Kubernetes object: it needs apiVersion and kind")
	case strings.HasSuffix(kind, "List") && child(root, "items") != nil:
		return fmt.Errorf("%s holds several objects: write each as a document of its own", kind)
	case d.name() == "":
		return fmt.Errorf("%s: is not a Kubernetes object: it needs metadata.name", strings.ToLower(kind))
	}
	return nil
}

// name is the object's name, or the start of it when the server makes the rest.
func (d *document) name() string {
	meta := child(d.root, "metadata")
	if name := scalar(meta, "name"); name != "" {
		return name
	}
	return scalar(meta, "generateName")
}

// String names the object as kubectl does: deployment/llm.
func (d *document) String() string {
	return strings.ToLower(scalar(d.root, "kind")) + "/" + d.name()
}

// group is the API group, "" for the core one.
func (d *document) group() string {
	group, _, ok := strings.Cut(scalar(d.root, "apiVersion"), "/")
	if !ok {
		return ""
	}
	return group
}

// child is the value of a key, or nil.
func child(m *yaml.Node, key string) *yaml.Node {
	if m == nil || m.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			return m.Content[i+1]
		}
	}
	return nil
}

// scalar is the text of a key, or "".
func scalar(m *yaml.Node, key string) string {
	n := child(m, key)
	if n == nil || n.Kind != yaml.ScalarNode || isNull(n) {
		return ""
	}
	return n.Value
}

func hasAliases(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return true
	}
	for _, c := range n.Content {
		if hasAliases(c) {
			return true
		}
	}
	return false
}

// maxNodes limits what aliases may expand to: far above any real manifest.
const maxNodes = 200_000

// expandAliases copies a tree with every alias and merge key written out, so
// that a change in one place is no change in another.
func expandAliases(n *yaml.Node, budget *int) (*yaml.Node, error) {
	if *budget--; *budget < 0 {
		return nil, errors.New("aliases expand to too much")
	}
	if n.Kind == yaml.AliasNode {
		return expandAliases(n.Alias, budget)
	}
	c := *n
	c.Anchor, c.Content = "", nil
	for i, item := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 1 && n.Content[i-1].ShortTag() == "!!merge" {
			continue
		}
		if n.Kind == yaml.MappingNode && i%2 == 0 && item.ShortTag() == "!!merge" {
			continue
		}
		e, err := expandAliases(item, budget)
		if err != nil {
			return nil, err
		}
		c.Content = append(c.Content, e)
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].ShortTag() != "!!merge" {
			continue
		}
		if err := mergeInto(&c, n.Content[i+1], budget); err != nil {
			return nil, err
		}
	}
	return &c, nil
}

// mergeInto adds the keys of a merged mapping that m does not have; of several
// mappings the earlier ones count first.
func mergeInto(m, source *yaml.Node, budget *int) error {
	e, err := expandAliases(source, budget)
	if err != nil {
		return err
	}
	sources := []*yaml.Node{e}
	if e.Kind == yaml.SequenceNode {
		sources = e.Content
	}
	for _, s := range sources {
		for i := 0; i+1 < len(s.Content); i += 2 {
			if child(m, s.Content[i].Value) == nil {
				m.Content = append(m.Content, s.Content[i], s.Content[i+1])
			}
		}
	}
	return nil
}

// head is the document's marker line with the directives before it; comments
// are written with the tree.
func (d *document) head() string {
	directives := ""
	for line := range strings.Lines(d.text) {
		if isMarker(line, "---") {
			return directives + "---\n"
		}
		if line[0] == '%' {
			directives += strings.TrimRight(line, "\r\n") + "\n"
		}
	}
	return ""
}

func encode(n *yaml.Node) (string, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err := enc.Encode(n)
	return b.String(), err
}

// encode writes the edited tree anew, below the document's own marker line.
func (d *document) encode() (string, error) {
	text, err := encode(d.node)
	if err != nil {
		return "", fmt.Errorf("document %d: %w", d.number, err)
	}
	text = d.head() + text
	if lines := strings.Split(strings.TrimRight(d.text, "\r\n"), "\n"); isMarker(lines[len(lines)-1], "...") {
		text += "...\n"
	}
	if d.crlf {
		text = strings.ReplaceAll(text, "\n", "\r\n")
	}
	return text, nil
}
