// SPDX-License-Identifier: Apache-2.0

package kube

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

//go:embed references.yaml
var referencesFile []byte

// maxName is the longest name of an object: a workload's is a part of its pods'
// names and labels, and objects of one name must stay of one name.
const (
	maxName   = 40
	maxSuffix = 10 // of a name that must be cut
)

// naming gives the objects of a template their names in a trial.
type naming struct {
	main  string          // name of the engine's object in the template
	trial string          // its name in the trial
	taken map[string]bool // what begins with the main name in the template
}

// newNaming looks at the names and label values of a template.
func newNaming(main, trial string, objects []*unstructured.Unstructured, kinds kindTable) naming {
	n := naming{main: main, trial: trial, taken: map[string]bool{}}
	note := func(name string) { n.taken[name] = n.taken[name] || strings.HasPrefix(name, main+"-") }
	for _, u := range objects {
		note(u.GetName())
		for _, m := range podLabels(u, kinds, false) {
			for _, value := range m {
				if text, ok := value.(string); ok {
					note(text)
				}
			}
		}
	}
	return n
}

// of is the name of a template's object in the trial: the trial's own name for
// the main one and its namesakes, otherwise a name that begins with it. Names
// that differ stay different.
func (n naming) of(name string, longest int) string {
	if name == n.main {
		return n.trial
	}
	plain, ok := strings.CutPrefix(name, n.main+"-")
	suffix := objectName(plain)
	same := suffix == plain && (ok || !n.taken[n.main+"-"+name])
	if full := n.trial + "-" + suffix; same && len(full) <= longest {
		return full
	}
	short := strings.Trim(suffix[:min(len(suffix), maxSuffix)], "-") + "-" + digest(name, 6)
	room := longest - len(short) - 1
	if len(n.trial) <= room {
		return n.trial + "-" + short
	}
	// The end of a trial's name tells it from others.
	return "t" + strings.TrimLeft(n.trial[len(n.trial)-room+1:], "-") + "-" + short
}

// objectName makes a text fit for the end of a Service's name.
func objectName(text string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, text), "-")
}

// rename gives every object its name in the trial and its namespace, and keeps
// the references among them right. kustomize does it: it knows where each kind
// names others.
func rename(objects []*unstructured.Unstructured, n naming, namespace string, kinds kindTable) ([]*unstructured.Unstructured, error) {
	var patches []any
	var resources strings.Builder
	for _, u := range objects {
		gvk := u.GroupVersionKind()
		patch := []any{map[string]any{"op": "replace", "path": "/metadata/name", "value": n.of(u.GetName(), maxName)}}
		text, err := yaml.Marshal(patch)
		if err != nil {
			return nil, err
		}
		patches = append(patches, map[string]any{
			"target":  map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind, "name": "^" + u.GetName() + "$"},
			"patch":   string(text),
			"options": map[string]any{"allowNameChange": true},
		})
		u.SetNamespace("") // objects of one trial live together
		data, err := yaml.Marshal(u.Object)
		if err != nil {
			return nil, err
		}
		resources.WriteString("---\n" + string(data))
	}
	references, err := nameReferences(objects, kinds)
	if err != nil {
		return nil, err
	}
	return kustomize(map[string]any{
		"resources": []any{"objects.yaml"}, "configurations": []any{"references.yaml"},
		"patches": patches, "namespace": namespace,
	}, resources.String(), map[string]any{"nameReference": references})
}

// kustomize builds objects in memory, in their order.
func kustomize(kustomization map[string]any, objects string, references map[string]any) ([]*unstructured.Unstructured, error) {
	files := filesys.MakeFsInMemory()
	for name, content := range map[string]any{"kustomization.yaml": kustomization, "references.yaml": references} {
		data, err := yaml.Marshal(content)
		if err != nil {
			return nil, err
		}
		if err := files.WriteFile("/"+name, data); err != nil {
			return nil, err
		}
	}
	if err := files.WriteFile("/objects.yaml", []byte(objects)); err != nil {
		return nil, err
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "/")
	if err != nil {
		return nil, fmt.Errorf("rename the objects of the template: %w", err)
	}
	var out []*unstructured.Unstructured
	for _, resource := range built.Resources() {
		text, err := resource.AsYAML()
		if err != nil {
			return nil, err
		}
		u := &unstructured.Unstructured{}
		if err := unmarshal(text, &u.Object); err != nil {
			return nil, err
		}
		out = append(out, u)
	}
	return out, nil
}

// nameReferences tells kustomize where the pod specs of the objects' kinds name
// other objects.
func nameReferences(objects []*unstructured.Unstructured, kinds kindTable) ([]any, error) {
	var places map[string][]string
	if err := yaml.UnmarshalStrict(referencesFile, &places); err != nil {
		return nil, err
	}
	specs := map[string][]string{} // kind → paths of its pod specs
	for _, u := range objects {
		k, _ := kinds.of(u)
		for _, p := range k.Pods {
			path := strings.NewReplacer("[]", "", ".", "/").Replace(p.Path)
			for _, spec := range []string{path, strings.TrimPrefix(path+"/spec", "/")} {
				if spec != "" && !slices.Contains(specs[u.GetKind()], spec) {
					specs[u.GetKind()] = append(specs[u.GetKind()], spec)
				}
			}
		}
	}
	var references []any
	for _, target := range slices.Sorted(maps.Keys(places)) {
		var fields []any
		for _, kind := range slices.Sorted(maps.Keys(specs)) {
			for _, spec := range specs[kind] {
				for _, place := range places[target] {
					fields = append(fields, map[string]any{"kind": kind, "path": spec + "/" + place})
				}
			}
		}
		if len(fields) > 0 {
			references = append(references, map[string]any{"kind": target, "fieldSpecs": fields})
		}
	}
	return references, nil
}
