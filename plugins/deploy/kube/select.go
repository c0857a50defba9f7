// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// identities are label keys that tell applications apart by convention.
var identities = []string{"app", "k8s-app", "run", "app.kubernetes.io/name", "app.kubernetes.io/instance"}

// isolate gives the labels by which pods are selected new values, so that the
// trial's selectors find only its own pods and no selector of the users finds
// them. foreign are selectors of Services that are in use.
func isolate(objects []*unstructured.Unstructured, n naming, kinds kindTable, renamed map[string]string, foreign []labels.Set) {
	keys := map[string]bool{}
	for _, key := range identities {
		keys[key] = true
	}
	for _, u := range objects {
		eachSelector(u.Object, func(selector map[string]any) {
			for key := range selector {
				keys[key] = true
			}
		})
	}
	var templates []map[string]any // the pods' labels
	for _, u := range objects {
		templates = append(templates, podLabels(u, kinds, false)...)
	}
	for _, selector := range foreign {
		if slices.ContainsFunc(templates, func(t map[string]any) bool { return covers(selector, t) }) {
			for key := range selector {
				keys[key] = true
			}
		}
	}
	used := map[string]bool{} // keys and values that the pods of the template have
	for _, t := range templates {
		for key, value := range t {
			if text, ok := value.(string); ok && keys[key] {
				used[key+"="+text] = true
			}
		}
	}
	change := func(m map[string]any) {
		for key, value := range m {
			if text, ok := value.(string); ok {
				m[key] = newValue(key, text, used, renamed, n)
			}
		}
	}
	for _, t := range templates {
		change(t)
	}
	for _, u := range objects {
		eachSelector(u.Object, change)
		eachExpression(u.Object, func(key string, values []any) {
			for i, value := range values {
				if text, ok := value.(string); ok {
					values[i] = newValue(key, text, used, renamed, n)
				}
			}
		})
	}
}

// newValue is a label's value in the trial. A selector may also name an object
// by the label that a controller gives its pods.
func newValue(key, value string, used map[string]bool, renamed map[string]string, n naming) string {
	if used[key+"="+value] {
		return n.of(value, maxLabel)
	}
	if name, ok := renamed[value]; ok && slices.Contains(ownerLabels, key) {
		return name
	}
	return value
}

// ownerLabels are given to pods by controllers and hold the name of the owner.
var ownerLabels = []string{"leaderworkerset.sigs.k8s.io/name", "rbg.workloads.x-k8s.io/group-name",
	"rolebasedgroup.workloads.x-k8s.io/name", "serving.kserve.io/inferenceservice", "job-name", "batch.kubernetes.io/job-name"}

func covers(selector labels.Set, podLabels map[string]any) bool {
	for key, value := range selector {
		if podLabels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

// podLabels lists the labels of an object's pod templates; make creates those
// that are missing, except in patches.
func podLabels(u *unstructured.Unstructured, kinds kindTable, create bool) []map[string]any {
	k, ok := kinds.of(u)
	if !ok {
		return nil
	}
	var found []map[string]any
	for _, p := range k.Pods {
		if create && p.Patch {
			continue
		}
		for _, template := range find(u.Object, p.Path) {
			owner := template // has metadata.labels
			path := []string{"metadata", "labels"}
			if k.Labels != "" {
				owner, path = u.Object, strings.Split(k.Labels, ".")
			}
			if m := descend(owner, create, path...); m != nil {
				found = append(found, m)
			}
		}
	}
	return found
}

// descend follows keys to a map; create makes what is missing.
func descend(m map[string]any, create bool, path ...string) map[string]any {
	for _, key := range path {
		next, ok := m[key].(map[string]any)
		if !ok {
			if !create {
				return nil
			}
			next = map[string]any{}
			m[key] = next
		}
		m = next
	}
	return m
}

// eachSelector visits the label selectors of an object that are written as a map.
func eachSelector(value any, visit func(map[string]any)) {
	walk(value, func(key string, v any) {
		if m, ok := v.(map[string]any); ok && (key == "matchLabels" || key == "selector" && isFlat(m)) {
			visit(m)
		}
	})
}

// eachExpression visits the values of the expressions in label selectors.
func eachExpression(value any, visit func(key string, values []any)) {
	walk(value, func(key string, v any) {
		list, ok := v.([]any)
		if !ok || key != "matchExpressions" {
			return
		}
		for _, item := range list {
			if m, ok := item.(map[string]any); ok {
				name, _ := m["key"].(string)
				values, _ := m["values"].([]any)
				visit(name, values)
			}
		}
	})
}

func isFlat(m map[string]any) bool {
	for _, v := range m {
		if _, ok := v.(string); !ok {
			return false
		}
	}
	return len(m) > 0
}

// walk visits every key of a tree.
func walk(value any, visit func(key string, value any)) {
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			visit(key, v[key])
			walk(v[key], visit)
		}
	case []any:
		for _, item := range v {
			walk(item, visit)
		}
	}
}
