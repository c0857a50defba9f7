// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/engine"
)

// trial is a template made into the objects of one trial.
type trial struct {
	name       string
	objects    []*unstructured.Unstructured // in the order of creation
	containers []engine.Container           // the engine's, as the template names them
	names      map[string]string            // template's name → trial's name
	leftOut    []string                     // documents that have no place in a trial
	count      map[string]int               // expected pods by role; -1 is not known
	kinds      kindTable
}

// build makes the objects of a trial. It needs no cluster: foreign are the
// selectors of the Services that the namespace has.
func (d *Deployer) build(plan experiment.Plan, foreign []labels.Set) (*trial, error) {
	containers, err := d.Engine.Find(plan.Manifest, d.Options)
	if err != nil {
		return nil, err
	}
	kinds, err := newKindTable(d.Options.PodTemplatePaths)
	if err != nil {
		return nil, err
	}
	all, err := parse(plan.Manifest)
	if err != nil {
		return nil, err
	}
	t := &trial{name: plan.Name, containers: containers, kinds: kinds, count: map[string]int{}, names: map[string]string{}}
	var objects []*unstructured.Unstructured
	for _, u := range all {
		if isLeftOut(u) {
			t.leftOut = append(t.leftOut, reference(u))
		} else {
			objects = append(objects, u)
		}
	}
	n := newNaming(containers[0].Object, plan.Name, objects, kinds)
	renamed, err := rename(objects, n, d.Namespace, kinds)
	if err != nil {
		return nil, err
	}
	h := hosts{services: map[string]bool{}, names: t.names, namespace: d.Namespace}
	for i, u := range renamed {
		t.names[objects[i].GetName()] = u.GetName()
		h.services[objects[i].GetName()] = h.services[objects[i].GetName()] || isKind(u, "", "Service")
	}
	renameHosts(renamed, h, kinds)
	isolate(renamed, n, kinds, t.names, foreign)
	for i, u := range renamed {
		d.mark(u, plan, kinds, objects[i].GetName())
		if k, ok := kinds.of(u); ok {
			for role, pods := range k.expected(u) {
				t.add(role, pods)
			}
		}
	}
	t.sortContainers(objects)
	t.objects = renamed
	slices.SortStableFunc(t.objects, func(a, b *unstructured.Unstructured) int { return cmp.Compare(t.rank(a), t.rank(b)) })
	return t, nil
}

// sortContainers puts the engine's containers in the order of the roles, whatever
// their patterns.
func (t *trial) sortContainers(objects []*unstructured.Unstructured) {
	var roles []string
	for _, u := range objects {
		if k, ok := t.kinds.of(u); ok && k.Count.Each != "" {
			for _, item := range find(u.Object, k.Count.Each) {
				name, _ := item["name"].(string)
				roles = append(roles, name)
			}
		}
	}
	slices.SortStableFunc(t.containers, func(a, b engine.Container) int {
		return cmp.Compare(slices.Index(roles, a.Role), slices.Index(roles, b.Role))
	})
}

// add counts expected pods; what is not known stays unknown.
func (t *trial) add(role string, pods int) {
	if t.count[role] < 0 || pods < 0 {
		t.count[role] = -1
		return
	}
	t.count[role] += pods
}

// rank puts what pods need before the pods.
func (t *trial) rank(u *unstructured.Unstructured) int {
	if _, ok := t.kinds.of(u); ok {
		return 1
	}
	return 0
}

// workloads are the objects that have pods.
func (t *trial) workloads() []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, u := range t.objects {
		if t.rank(u) == 1 {
			out = append(out, u)
		}
	}
	return out
}

// mark puts the trial's labels on an object, its pods and its claims.
func (d *Deployer) mark(u *unstructured.Unstructured, plan experiment.Plan, kinds kindTable, templateName string) {
	marks := ofTrial(d.ID, plan.Name)
	marks[LabelTemplate] = labelValue(plan.Template)
	u.SetLabels(labels.Merge(u.GetLabels(), marks))
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotationExperiment] = d.Experiment
	annotations[annotationTemplate] = plan.Template
	annotations[annotationIndex] = strconv.Itoa(plan.Index)
	annotations[annotationObject] = templateName
	u.SetAnnotations(annotations)
	for _, m := range podLabels(u, kinds, true) {
		for key, value := range marks {
			m[key] = value
		}
	}
	if selector := descend(u.Object, false, "spec", "selector"); isKind(u, "", "Service") && len(selector) > 0 {
		selector[LabelTrial] = plan.Name
	}
	if isKind(u, "apps", "StatefulSet") {
		ownClaims(u, marks)
	}
}

// ownClaims lets the volumes that a StatefulSet makes for its pods go with it.
func ownClaims(u *unstructured.Unstructured, marks labels.Set) {
	claims := find(u.Object, "spec.volumeClaimTemplates[]")
	if len(claims) == 0 {
		return
	}
	for _, claim := range claims {
		m := descend(claim, true, "metadata", "labels")
		for key, value := range marks {
			m[key] = value
		}
	}
	descend(u.Object, true, "spec", "persistentVolumeClaimRetentionPolicy")["whenDeleted"] = "Delete"
}
