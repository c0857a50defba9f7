// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Sweep removes what an earlier run of this experiment left behind, and returns
// when its pods are gone. What Keep has marked stays.
func (d *Deployer) Sweep(ctx context.Context) error { return d.sweep(ctx, false) }

// Purge is Sweep that also removes what was kept.
func (d *Deployer) Purge(ctx context.Context) error { return d.sweep(ctx, true) }

func (d *Deployer) sweep(ctx context.Context, all bool) error {
	kinds, err := d.templateKinds()
	if err != nil {
		return err
	}
	var left []*unstructured.Unstructured
	for _, u := range kinds {
		found, err := d.marked(ctx, u)
		if isNotServed(err) {
			continue // a kind that the cluster does not serve has no objects
		} else if err != nil {
			return fmt.Errorf("list what is left of the experiment: %w", err)
		}
		left = append(left, found...)
	}
	trials := map[string]bool{}
	kept := map[string]bool{}
	for _, u := range left {
		trials[u.GetLabels()[LabelTrial]] = true
		if u.GetLabels()[LabelKeep] != "" && !all {
			kept[u.GetLabels()[LabelTrial]] = true
		}
	}
	left = slices.DeleteFunc(left, func(u *unstructured.Unstructured) bool { return kept[u.GetLabels()[LabelTrial]] })
	for trial := range kept {
		delete(trials, trial)
	}
	for _, trial := range slices.Sorted(maps.Keys(trials)) {
		own := slices.DeleteFunc(slices.Clone(left), func(u *unstructured.Unstructured) bool { return u.GetLabels()[LabelTrial] != trial })
		if err := d.deleteAll(ctx, own, ofTrial(d.ID, trial)); err != nil {
			return fmt.Errorf("remove what is left of trial %s: %w", trial, err)
		}
	}
	if len(kept) > 0 {
		return nil // their pods stay
	}
	return d.podsGone(ctx, ofExperiment(d.ID))
}

// templateKinds is one object of each kind in the templates.
func (d *Deployer) templateKinds() ([]*unstructured.Unstructured, error) {
	var list []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(d.Templates)) {
		objects, err := parse(d.Templates[name])
		if err != nil {
			return nil, fmt.Errorf("template %s: %w", name, err)
		}
		for _, u := range objects {
			same := func(old *unstructured.Unstructured) bool { return old.GroupVersionKind() == u.GroupVersionKind() }
			if !isLeftOut(u) && !slices.ContainsFunc(list, same) {
				list = append(list, u)
			}
		}
	}
	return list, nil
}

// marked lists the experiment's objects of one kind.
func (d *Deployer) marked(ctx context.Context, like *unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	_, resource, err := d.mapped(ctx, like)
	if err != nil {
		return nil, err
	}
	var list *unstructured.UnstructuredList
	err = d.retry(ctx, func(ctx context.Context) (err error) {
		list, err = resource.List(ctx, metav1.ListOptions{LabelSelector: ofExperiment(d.ID).String()})
		return err
	})
	if err != nil {
		return nil, failure(ctx, "list "+like.GetKind()+" objects", err)
	}
	var found []*unstructured.Unstructured
	for i := range list.Items {
		u := &list.Items[i]
		if metav1.GetControllerOf(u) == nil { // those of a controller go with it
			found = append(found, u)
		}
	}
	return found, nil
}
