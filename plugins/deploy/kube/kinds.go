// SPDX-License-Identifier: Apache-2.0

package kube

import (
	_ "embed"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/llmctl/llmctl/plugins/engine"
)

//go:embed kinds.yaml
var kindsFile []byte

// kind is what a trial knows of a kind that runs pods.
type kind struct {
	Group  string               `json:"group"`
	Kind   string               `json:"kind"`
	Ready  string               `json:"ready"`
	Count  podCount             `json:"count"`
	Labels string               `json:"labels"` // "": in the pod templates
	Pods   []engine.PodTemplate `json:"-"`
}

type podCount struct {
	Each  string   `json:"each"`
	Times []string `json:"times"`
	Sum   string   `json:"sum"`
}

func loadKinds() ([]kind, error) {
	var kinds []kind
	if err := yaml.UnmarshalStrict(kindsFile, &kinds); err != nil {
		return nil, err
	}
	templates, err := engine.PodTemplates()
	if err != nil {
		return nil, err
	}
	for i := range kinds {
		kinds[i].Pods = templates[engine.GroupKind{Group: kinds[i].Group, Kind: kinds[i].Kind}]
	}
	return kinds, nil
}

// kindTable finds kinds; extra are pod template paths that count for every kind.
type kindTable struct {
	kinds []kind
	extra []string
}

func newKindTable(extra []string) (kindTable, error) {
	kinds, err := loadKinds()
	t := kindTable{kinds: kinds}
	for _, path := range extra {
		t.extra = append(t.extra, strings.ReplaceAll(strings.Trim(path, "{}$. "), "[*]", "[]"))
	}
	return t, err
}

// of returns what is known of an object's kind. ok is false for an object
// without pods.
func (t kindTable) of(u *unstructured.Unstructured) (k kind, ok bool) {
	gk := u.GroupVersionKind().GroupKind()
	for _, known := range t.kinds {
		if gk == (schema.GroupKind{Group: known.Group, Kind: known.Kind}) {
			k, ok = known, true
		}
	}
	for _, path := range t.extra {
		if len(find(u.Object, path)) > 0 {
			if !ok {
				k = kind{Group: gk.Group, Kind: gk.Kind, Count: podCount{Times: []string{"spec.replicas"}}}
			}
			k.Pods, ok = append(k.Pods[:len(k.Pods):len(k.Pods)], engine.PodTemplate{Path: path}), true
		}
	}
	return k, ok
}

// find lists the maps at a path such as spec.roles[].template; a step [2] is one item.
func find(object map[string]any, path string) []map[string]any {
	var found []map[string]any
	for _, value := range values(object, path) {
		if m, ok := value.(map[string]any); ok {
			found = append(found, m)
		}
	}
	return found
}

func values(object any, path string) []any {
	if path == "" {
		return []any{object}
	}
	step, rest, _ := strings.Cut(path, ".")
	key, index, isList := strings.Cut(strings.TrimSuffix(step, "]"), "[")
	m, ok := object.(map[string]any)
	if !ok || m[key] == nil {
		return nil
	}
	if !isList {
		return values(m[key], rest)
	}
	items, ok := m[key].([]any)
	if !ok {
		return nil
	}
	var found []any
	for i, item := range items {
		if index == "" || index == "*" || index == itoa(i) {
			found = append(found, values(item, rest)...)
		}
	}
	return found
}

// number is an integer at a path, or 1 when there is none.
func number(object map[string]any, path string) int {
	n := 1
	for _, v := range values(object, path) {
		switch v := v.(type) {
		case int64:
			n = int(v)
		case float64:
			n = int(v)
		}
	}
	return n
}

// expected is how many pods an object should have, by role; the role is "" for
// kinds without roles. -1 stands for a number that only the cluster knows.
func (k kind) expected(u *unstructured.Unstructured) map[string]int {
	if k.Kind == "DaemonSet" {
		return map[string]int{"": -1}
	}
	counts := map[string]int{}
	items := []map[string]any{u.Object}
	if k.Count.Each != "" {
		items = find(u.Object, k.Count.Each)
	}
	for _, item := range items {
		role := ""
		if k.Count.Each != "" {
			role, _ = item["name"].(string)
		}
		counts[role] += k.perItem(item)
	}
	return counts
}

// perItem is the number of pods of one item of each, or of the object.
func (k kind) perItem(item map[string]any) int {
	n := 1
	for _, path := range k.Count.Times {
		n *= number(item, path)
	}
	if sizes := k.Count.Sum; sizes != "" {
		list, size, _ := strings.Cut(sizes, "[].")
		sum := 0
		for _, part := range find(item, list+"[]") {
			sum += number(part, size)
		}
		n *= max(sum, 1)
	}
	return n
}
