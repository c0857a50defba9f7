// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// What is done with the objects of a template, and with those that have pods.
var (
	objectVerbs   = []string{"create", "delete", "get", "list", "patch"}
	workloadVerbs = append(slices.Clone(objectVerbs), "watch")
)

// right is a permission in the namespace.
type right struct {
	group, resource, subresource string
	verbs                        []string
	without                      string // what is lost without it; "" when nothing works
}

func (r right) name() string {
	name := r.resource
	if r.group != "" {
		name += "." + r.group
	}
	if r.subresource != "" {
		name += "/" + r.subresource
	}
	return name
}

// baseRights are needed whatever the templates hold.
var baseRights = []right{
	{resource: "pods", verbs: []string{"list", "watch"}},
	{resource: "pods", subresource: "portforward", verbs: []string{"create", "get"}},
	{resource: "pods", subresource: "log", verbs: []string{"get"}, without: "failed trials have no logs and a less exact cause"},
	{resource: "events", verbs: []string{"list", "watch"}, without: "the causes of failed trials are less exact"},
	{resource: "services", verbs: []string{"list"}, without: "a Service that selects pods by unusual labels could pick those of a trial"},
	{resource: "resourcequotas", verbs: []string{"list"}, without: "a quota that is too small is found only when a trial starts"},
}

// nodeRight is one for the whole cluster.
var nodeRight = right{resource: "nodes", verbs: []string{"list"}, without: "it is not known whether a node has the GPUs that are asked for"}

// companions are kinds that often go with an engine in a template.
var companions = []schema.GroupResource{
	{Resource: "services"}, {Resource: "configmaps"}, {Resource: "secrets"}, {Resource: "serviceaccounts"}, {Resource: "persistentvolumeclaims"},
}

// Rules are the rights in a namespace that trials need: those of doc/rbac.yaml.
// A template of fewer kinds needs fewer; Preflight asks for exactly what the
// templates at hand need.
func Rules() []rbacv1.PolicyRule {
	kinds, err := loadKinds()
	if err != nil {
		panic("kube: kinds.yaml: " + err.Error()) // the embedded file is tested
	}
	rights := slices.Clone(baseRights)
	for _, k := range kinds {
		plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Group: k.Group, Kind: k.Kind})
		rights = append(rights, right{group: k.Group, resource: plural.Resource, verbs: workloadVerbs})
	}
	for _, c := range companions {
		rights = append(rights, right{group: c.Group, resource: c.Resource, verbs: objectVerbs})
	}
	var rules []rbacv1.PolicyRule
	for _, r := range merge(rights) {
		resource := r.resource
		if r.subresource != "" {
			resource += "/" + r.subresource
		}
		last := len(rules) - 1
		if last >= 0 && rules[last].APIGroups[0] == r.group && slices.Equal(rules[last].Verbs, r.verbs) {
			rules[last].Resources = append(rules[last].Resources, resource)
			continue
		}
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{r.group}, Resources: []string{resource}, Verbs: r.verbs})
	}
	return rules
}

// merge joins the rights to the same resource; a verb that something needs is
// needed. The order is fixed.
func merge(rights []right) []right {
	var list []right
	for _, r := range rights {
		i := slices.IndexFunc(list, func(old right) bool {
			return old.group == r.group && old.resource == r.resource && old.subresource == r.subresource
		})
		if i < 0 {
			r.verbs = slices.Sorted(slices.Values(r.verbs))
			list = append(list, r)
			continue
		}
		verbs := slices.Concat(list[i].verbs, r.verbs)
		slices.Sort(verbs)
		list[i].verbs = slices.Compact(verbs)
		if r.without == "" {
			list[i].without = ""
		}
	}
	slices.SortStableFunc(list, func(a, b right) int {
		return cmp.Or(cmp.Compare(a.group, b.group), slices.Compare(a.verbs, b.verbs), cmp.Compare(a.resource, b.resource), cmp.Compare(a.subresource, b.subresource))
	})
	return list
}
