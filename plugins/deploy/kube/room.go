// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// demand is a number of equal pods.
type demand struct {
	spec corev1.PodSpec
	pods int
}

// demands are the pods that an object asks for, as far as the manifest tells.
func (k kind) demands(u *unstructured.Unstructured) []demand {
	items := []*unstructured.Unstructured{u}
	inner := ""
	if k.Count.Each != "" {
		items, inner = nil, k.Count.Each+"."
		for _, item := range find(u.Object, k.Count.Each) {
			items = append(items, &unstructured.Unstructured{Object: item})
		}
	}
	var list []demand
	for _, item := range items {
		counts := k.perItem(item.Object)
		first := len(list)
		for _, p := range k.Pods {
			path, ok := strings.CutPrefix(p.Path, inner)
			if p.Patch || !ok {
				continue
			}
			for _, template := range find(item.Object, path) {
				if spec, ok := podSpec(template); ok {
					list = append(list, demand{spec: spec})
				}
			}
		}
		share(list[first:], counts, number(item.Object, strings.Join(k.Count.Times[:min(1, len(k.Count.Times))], "")))
	}
	return list
}

// share spreads pods over templates: of a leader's and a worker's, one pod of
// each group is the leader.
func share(list []demand, pods, groups int) {
	switch len(list) {
	case 0:
	case 1:
		list[0].pods = pods
	case 2:
		list[0].pods, list[1].pods = min(groups, pods), max(pods-groups, 0)
	default:
		for i := range list {
			list[i].pods = max(pods/len(list), 1)
		}
	}
}

func podSpec(template map[string]any) (corev1.PodSpec, bool) {
	var spec corev1.PodSpec
	source, ok := template["spec"].(map[string]any)
	if !ok {
		source = template
	}
	if source["containers"] == nil {
		return spec, false
	}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(source, &spec)
	return spec, err == nil
}

// requests is what one pod asks for: its containers together, or the largest
// init container.
func requests(spec corev1.PodSpec) corev1.ResourceList {
	total := corev1.ResourceList{}
	for _, c := range spec.Containers {
		for name, amount := range asked(c) {
			sum := total[name]
			sum.Add(amount)
			total[name] = sum
		}
	}
	for _, c := range spec.InitContainers {
		for name, amount := range asked(c) {
			if old := total[name]; amount.Cmp(old) > 0 {
				total[name] = amount
			}
		}
	}
	return total
}

// asked are a container's requests; what has only a limit is requested as well.
func asked(c corev1.Container) corev1.ResourceList {
	list := maps.Clone(c.Resources.Limits)
	if list == nil {
		list = corev1.ResourceList{}
	}
	maps.Copy(list, c.Resources.Requests)
	return list
}

// room compares what a trial asks for with quotas and nodes.
func (p *preflight) room(ctx context.Context, name string, t *trial) {
	var list []demand
	for _, u := range t.workloads() {
		k, _ := t.kinds.of(u)
		list = append(list, k.demands(u)...)
	}
	if !p.denied["list/resourcequotas"] {
		p.quotas(ctx, name, list)
	}
	if !p.denied["list/nodes"] {
		p.nodes(ctx, name, list)
	}
}

// total is what all pods ask for, under the names that quotas use.
func total(list []demand) corev1.ResourceList {
	sum := corev1.ResourceList{}
	add := func(name string, amount resource.Quantity) {
		old := sum[corev1.ResourceName(name)]
		old.Add(amount)
		sum[corev1.ResourceName(name)] = old
	}
	for _, d := range list {
		for range d.pods {
			add("pods", resource.MustParse("1"))
			for name, amount := range requests(d.spec) {
				add(string(name), amount)
				add("requests."+string(name), amount)
			}
		}
	}
	return sum
}

func (p *preflight) quotas(ctx context.Context, name string, list []demand) {
	quotas, err := p.Core.ResourceQuotas(p.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		p.warn("read the quotas of namespace %s: %v", p.Namespace, err)
		return
	}
	need := total(list)
	for _, q := range quotas.Items {
		if len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil {
			continue // it may not be meant
		}
		for _, resource := range slices.Sorted(maps.Keys(q.Spec.Hard)) {
			wanted, ok := need[resource]
			if !ok {
				continue
			}
			hard, free := q.Spec.Hard[resource], q.Spec.Hard[resource].DeepCopy()
			free.Sub(q.Status.Used[resource])
			if wanted.Cmp(hard) > 0 {
				p.problem("template %s: a trial needs %s of %s, quota %s of namespace %s allows %s", name, &wanted, resource, q.Name, p.Namespace, &hard)
			} else if wanted.Cmp(free) > 0 {
				p.warn("template %s: a trial needs %s of %s, quota %s of namespace %s has %s of %s left", name, &wanted, resource, q.Name, p.Namespace, &free, &hard)
			}
		}
	}
}

// nodes looks for nodes that have the devices which pods ask for. What no node
// has may come with new nodes, so that is only a warning.
func (p *preflight) nodes(ctx context.Context, name string, list []demand) {
	nodes, err := p.Core.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		p.warn("read the nodes: %v", err)
		return
	}
	all := total(list)
	for _, d := range list {
		one := requests(d.spec)
		for _, device := range slices.Sorted(maps.Keys(one)) {
			if !strings.Contains(string(device), "/") {
				continue
			}
			most, sum := allocatable(nodes.Items, d.spec.NodeSelector, device)
			each, need := one[device], all[device]
			switch {
			case most.IsZero():
				p.warn("template %s: no node offers %s now", name, device)
			case each.Cmp(most) > 0:
				p.problem("template %s: a pod asks for %s %s, and the largest node has %s", name, &each, device, &most)
			case need.Cmp(sum) > 0:
				p.warn("template %s: a trial asks for %s %s, and all nodes together have %s", name, &need, device, &sum)
			}
		}
	}
}

// allocatable is how much of a device the largest node has, and all together.
func allocatable(nodes []corev1.Node, selector map[string]string, device corev1.ResourceName) (most, sum resource.Quantity) {
	fits := labels.SelectorFromSet(selector)
	for _, n := range nodes {
		if n.Spec.Unschedulable || !fits.Matches(labels.Set(n.Labels)) {
			continue
		}
		has := n.Status.Allocatable[device]
		sum.Add(has)
		if has.Cmp(most) > 0 {
			most = has
		}
	}
	return most, sum
}
