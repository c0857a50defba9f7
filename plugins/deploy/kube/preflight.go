// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/llmctl/llmctl/experiment"
)

// preflight gathers what is wrong, and what could be.
type preflight struct {
	*Deployer
	warnings []string
	problems []error
	denied   map[string]bool // resources that must not be created
}

func (p *preflight) warn(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(p.warnings, text) {
		p.warnings = append(p.warnings, text)
	}
}

func (p *preflight) problem(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	same := func(old error) bool { return old.Error() == err.Error() }
	if !slices.ContainsFunc(p.problems, same) {
		p.problems = append(p.problems, err)
	}
}

// Preflight finds what would keep trials from running, and creates nothing:
// kinds that are not served, missing rights, quotas and GPUs that are too few,
// and objects that the server refuses. templates are by name, without
// parameters. All problems are in one error.
func (d *Deployer) Preflight(ctx context.Context, templates map[string][]byte) (warnings []string, err error) {
	p := &preflight{Deployer: d, denied: map[string]bool{}}
	trials, foreign := map[string]*trial{}, d.foreignSelectors(ctx)
	var objects []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(templates)) {
		t, err := d.build(p.plan(name, templates[name]), foreign)
		if err != nil {
			p.problem("template %s: %w", name, err)
			continue
		}
		trials[name] = t
		objects = append(objects, t.objects...)
		p.notes(name, templates[name], t)
	}
	served := p.kinds(ctx, objects)
	p.rights(ctx, served)
	for _, name := range slices.Sorted(maps.Keys(trials)) {
		p.room(ctx, name, trials[name])
		p.dryRun(ctx, name, trials[name])
	}
	if ctx.Err() != nil {
		return p.warnings, context.Cause(ctx)
	}
	return p.warnings, errors.Join(p.problems...)
}

func (p *preflight) plan(name string, manifest []byte) experiment.Plan {
	return experiment.Plan{Template: name, Name: experiment.WorkloadName(p.Experiment, name, 0), Manifest: manifest}
}

// notes are about a template that works otherwise than its author may think.
func (p *preflight) notes(name string, manifest []byte, t *trial) {
	for _, object := range t.leftOut {
		p.warn("template %s: %s is left out of trials: it would reach beyond them", name, object)
	}
	original, err := parse(manifest)
	if err != nil {
		return // build has said so
	}
	for _, u := range original {
		if namespace := u.GetNamespace(); namespace != "" && namespace != p.Namespace {
			p.warn("template %s: %s has namespace %s; trials run in %s", name, reference(u), namespace, p.Namespace)
		}
		if isKind(u, "", "PersistentVolumeClaim") {
			p.warn("template %s: %s is made anew, and empty, for every trial; to share what it holds, create it once and take it out of the template", name, reference(u))
		}
	}
}

// kinds finds kinds that are not served, and returns an object of each that is.
func (p *preflight) kinds(ctx context.Context, objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	var served []*unstructured.Unstructured
	for _, u := range objects {
		same := func(old *unstructured.Unstructured) bool { return old.GroupVersionKind() == u.GroupVersionKind() }
		if slices.ContainsFunc(served, same) {
			continue
		}
		if _, _, err := p.mapped(ctx, u); err != nil {
			p.problem("%w", err)
			continue
		}
		served = append(served, u)
	}
	return served
}

// rights asks for each right that trials of these kinds need.
func (p *preflight) rights(ctx context.Context, kinds []*unstructured.Unstructured) {
	rights := slices.Clone(baseRights)
	if p.InCluster || p.Execution.Endpoint != "" {
		rights = slices.DeleteFunc(rights, func(r right) bool { return r.subresource == "portforward" })
	}
	table, err := newKindTable(p.Options.PodTemplatePaths)
	if err != nil {
		p.problem("%w", err)
		return
	}
	for _, u := range kinds {
		mapping, _, err := p.mapped(ctx, u)
		if err != nil {
			continue
		}
		verbs := objectVerbs
		if _, ok := table.of(u); ok {
			verbs = workloadVerbs
		}
		rights = append(rights, right{group: mapping.Resource.Group, resource: mapping.Resource.Resource, verbs: verbs})
	}
	for _, r := range merge(rights) {
		p.right(ctx, r, p.Namespace)
	}
	p.right(ctx, nodeRight, "")
}

// right reports the verbs that are denied.
func (p *preflight) right(ctx context.Context, r right, namespace string) {
	var mu sync.Mutex
	var denied []string
	var failed error
	var asking sync.WaitGroup
	for _, verb := range r.verbs {
		asking.Go(func() {
			allowed, err := p.allowed(ctx, r, verb, namespace)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
			} else if !allowed {
				denied = append(denied, verb)
			}
		})
	}
	asking.Wait()
	slices.Sort(denied)
	where := "in namespace " + namespace
	if namespace == "" {
		where = "in the cluster"
	}
	switch {
	case failed != nil:
		p.problem("ask for the right to use %s: %s", r.name(), explain(failed))
	case len(denied) == 0:
	case r.without != "":
		p.warn("no right to %s %s %s: %s", strings.Join(denied, ", "), r.name(), where, r.without)
	default:
		p.problem("no right to %s %s %s", strings.Join(denied, ", "), r.name(), where)
	}
	if slices.Contains(denied, "create") && r.subresource == "" {
		p.denied[r.group+"/"+r.resource] = true
	}
	if slices.Contains(denied, "list") {
		p.denied["list/"+r.resource] = true
	}
}

func (d *Deployer) allowed(ctx context.Context, r right, verb, namespace string) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: verb, Group: r.group, Resource: r.resource, Subresource: r.subresource,
		},
	}}
	var answer *authorizationv1.SelfSubjectAccessReview
	err := d.retry(ctx, func(ctx context.Context) (err error) {
		answer, err = d.Authorization.SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}

// dryRun lets the server judge the objects of the template's first trial.
func (p *preflight) dryRun(ctx context.Context, name string, t *trial) {
	for _, u := range t.objects {
		mapping, resource, err := p.mapped(ctx, u)
		if err != nil || p.denied[mapping.Resource.Group+"/"+mapping.Resource.Resource] {
			continue // it has been said
		}
		err = p.retry(ctx, func(ctx context.Context) error {
			_, err := resource.Create(ctx, u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: "llmctl"})
			return err
		})
		if apierrors.IsAlreadyExists(err) {
			err = p.inTheWay(ctx, u)
		}
		if err != nil {
			p.problem("template %s: %s: %s", name, reference(u), oneLine(explain(err)))
		}
	}
}

// inTheWay judges an object that has the name of a trial's.
func (p *preflight) inTheWay(ctx context.Context, u *unstructured.Unstructured) error {
	old, err := p.get(ctx, u)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case old.GetLabels()[LabelExperimentID] == p.ID || old.GetAnnotations()[annotationExperiment] == p.Experiment && old.GetLabels()[LabelExperimentID] != "":
		p.warn("%s is left of an earlier run of experiment %s", reference(u), p.Experiment)
		return nil
	}
	return errors.New("an object of this name exists that does not belong to this experiment; it is not touched")
}
