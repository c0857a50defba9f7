// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed kinds.yaml
var kindsFile []byte

// kindPods tells where the pod templates of a kind are.
type kindPods struct {
	Group string    `yaml:"group"`
	Kind  string    `yaml:"kind"`
	Pods  []podPath `yaml:"pods"`
}

type podPath struct {
	Path  string `yaml:"path"`
	Role  string `yaml:"role"`
	Patch bool   `yaml:"patch"`
}

// pod is one pod template of a manifest.
type pod struct {
	doc   *document
	path  string
	spec  *yaml.Node // mapping with the key containers
	role  string     // "" for a pod without a role
	patch bool
}

// PodTemplate is where a kind has pods.
type PodTemplate struct {
	Path  string // [] stands for every item of a list; a pod template or a pod spec is there
	Patch bool   // it overrides parts of a template
}

// GroupKind names a kind of objects.
type GroupKind struct{ Group, Kind string }

// PodTemplates tells where objects have their pod templates, for every kind that
// is known to have pods.
func PodTemplates() (map[GroupKind][]PodTemplate, error) {
	kinds, err := loadKinds()
	if err != nil {
		return nil, err
	}
	templates := map[GroupKind][]PodTemplate{}
	for _, k := range kinds {
		for _, p := range k.Pods {
			key := GroupKind{k.Group, k.Kind}
			templates[key] = append(templates[key], PodTemplate{Path: p.Path, Patch: p.Patch})
		}
	}
	return templates, nil
}

func loadKinds() ([]kindPods, error) {
	var kinds []kindPods
	if err := decodeStrict(kindsFile, &kinds); err != nil {
		return nil, fmt.Errorf("kinds.yaml: %w", err)
	}
	return kinds, nil
}

// pods lists the pod templates of a manifest in order, and all names of roles.
func pods(kinds []kindPods, docs []*document, extra []string) (found []pod, roles []string) {
	for _, d := range docs {
		if d.root == nil {
			continue
		}
		var paths []podPath
		for _, k := range kinds {
			if k.Kind == scalar(d.root, "kind") && k.Group == d.group() {
				paths = append(paths, k.Pods...)
			}
		}
		for _, p := range extra {
			paths = append(paths, podPath{Path: strings.Trim(p, "{}$. ")})
		}
		for _, p := range paths {
			for _, name := range roleNames(d.root, p.Path) {
				if name != "" && !slices.Contains(roles, name) {
					roles = append(roles, name)
				}
			}
			for _, hit := range resolve(d.root, strings.Split(p.Path, "."), "") {
				role := cmp.Or(p.Role, hit.name)
				if role != "" && !slices.Contains(roles, role) {
					roles = append(roles, role)
				}
				spec := podSpec(hit.node)
				if spec == nil || slices.ContainsFunc(found, func(old pod) bool { return old.spec == spec }) {
					continue
				}
				found = append(found, pod{d, p.Path, spec, role, p.Patch})
			}
		}
	}
	return found, roles
}

// podSpec is the node that holds the containers: the spec of a pod template, or
// the node itself.
func podSpec(n *yaml.Node) *yaml.Node {
	for _, spec := range []*yaml.Node{child(n, "spec"), n} {
		if list := child(spec, "containers"); list != nil && list.Kind == yaml.SequenceNode {
			return spec
		}
	}
	return nil
}

// roleNames lists the names of the items of the first list on a path, whether
// or not the path goes on from them.
func roleNames(root *yaml.Node, path string) []string {
	i := strings.Index(path, "]")
	if i < 0 {
		return nil
	}
	var names []string
	for _, h := range resolve(root, strings.Split(path[:i+1], "."), "") {
		names = append(names, h.name)
	}
	return names
}

type hit struct {
	node *yaml.Node
	name string // of the outermost list item on the way
}

// resolve follows a path such as spec.roles[].template; a step may also be
// roles[*] or roles[0].
func resolve(n *yaml.Node, steps []string, name string) []hit {
	if n == nil {
		return nil
	}
	if len(steps) == 0 || len(steps) == 1 && steps[0] == "" {
		return []hit{{n, name}}
	}
	key, index, isList := strings.Cut(strings.TrimSuffix(steps[0], "]"), "[")
	next := child(n, key)
	if !isList || next == nil || next.Kind != yaml.SequenceNode {
		if isList {
			return nil
		}
		return resolve(next, steps[1:], name)
	}
	var hits []hit
	for i, item := range next.Content {
		if index != "" && index != "*" && index != strconv.Itoa(i) {
			continue
		}
		itemName := name
		if itemName == "" {
			itemName = scalar(item, "name")
		}
		hits = append(hits, resolve(item, steps[1:], itemName)...)
	}
	return hits
}
