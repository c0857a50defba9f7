// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/llmctl/llmctl/experiment"
)

// undoLimit is for removing what a failed Deploy created, or found.
const undoLimit = 2 * time.Minute

// Deploy creates the objects of a trial. A *experiment.Failure says what the
// cluster does not accept; whatever the error, nothing stays behind.
func (d *Deployer) Deploy(ctx context.Context, plan experiment.Plan) (experiment.Instance, error) {
	start := d.now()
	t, err := d.build(plan, d.foreignSelectors(ctx))
	if err != nil {
		return nil, fail(experiment.ClassConfig, "%v", err)
	}
	for _, name := range t.leftOut {
		d.Warn(fmt.Sprintf("%s is left out of trials: it would reach beyond them", name))
	}
	attempt := string(uuid.NewUUID())
	for _, u := range t.objects {
		annotations := u.GetAnnotations()
		annotations[annotationAttempt] = attempt
		u.SetAnnotations(annotations)
	}
	in := &instance{deployer: d, trial: t, plan: plan, phases: phases{began: start}}
	in.watch(ctx)
	err = d.createAll(ctx, t)
	if errors.Is(err, errLeftover) {
		// A run that was killed made this trial before, or it was kept.
		in.release()
		if err = d.remove(ctx, t); err == nil {
			in.watch(ctx) // anew: what was seen until now is another workload
			err = d.createAll(ctx, t)
		}
	}
	if err != nil {
		in.release()
		if left := d.remove(context.WithoutCancel(ctx), t); left != nil {
			err = errors.Join(err, fmt.Errorf("remove what was created: %w", left))
		}
		return nil, forGood(plan.Index, err)
	}
	in.phases.created = d.now()
	return in, nil
}

// forGood makes the failure of a trial one of its template, where no parameters
// could help: what is forbidden stays so, and a kind that is not served. What the
// baseline's objects are refused for is the template's own; a later trial's
// may be the fault of its values.
func forGood(index int, err error) error {
	var failed *experiment.Failure
	if !errors.As(err, &failed) {
		return err
	}
	var refused *permanentError
	if errors.As(err, &refused) && (refused.always || index == 0) {
		return &experiment.Failure{Cause: experiment.Cause{Class: experiment.ClassRefused, Message: failed.Message}}
	}
	return err
}

// watch begins to observe the trial, until release.
func (in *instance) watch(ctx context.Context) {
	ctx, in.stop = context.WithCancel(context.WithoutCancel(ctx))
	in.observer = in.deployer.newObserver(in.trial)
	in.observer.start(ctx, in.trial.workloads())
}

// remove deletes a trial's objects within a limit of its own.
func (d *Deployer) remove(ctx context.Context, t *trial) error {
	ctx, cancel := context.WithTimeout(ctx, undoLimit)
	defer cancel()
	return d.deleteAll(ctx, t.objects, ofTrial(d.ID, t.name))
}

// errLeftover tells of an object of this experiment that is in the way.
var errLeftover = errors.New("left by an earlier run")

func (d *Deployer) createAll(ctx context.Context, t *trial) error {
	for _, u := range t.objects {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := d.create(ctx, u); err != nil {
			return err
		}
	}
	return nil
}

// create makes one object. One that is in the way is errLeftover if it is this
// experiment's; any other is not touched.
func (d *Deployer) create(ctx context.Context, u *unstructured.Unstructured) error {
	_, resource, err := d.mapped(ctx, u)
	if err != nil {
		return err
	}
	what, start := "create "+reference(u), d.now()
	again := backoff{}
	for {
		err = d.retry(ctx, func(context.Context) error {
			// A request that was cut off could still be carried out after the clean-up.
			whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
			defer cancel()
			_, err := resource.Create(whole, u, metav1.CreateOptions{FieldManager: "llmctl"})
			return err
		})
		if err == nil || classify(err) != classQuota || d.now().Sub(start) > createGrace || again.sleep(ctx, err) != nil {
			break
		}
	}
	if !apierrors.IsAlreadyExists(err) {
		return failure(ctx, what, err)
	}
	old, err := d.get(ctx, u)
	switch {
	case apierrors.IsNotFound(err): // it went meanwhile
		return fmt.Errorf("%s: %w", what, errLeftover)
	case err != nil:
		return failure(ctx, what, err)
	case d.created(old, u):
		return nil // the answer to an earlier request was lost
	case old.GetLabels()[LabelExperimentID] != d.ID:
		return fail(experiment.ClassConfig, "%s: an object of this name exists that does not belong to this experiment; it is not touched", what)
	}
	return fmt.Errorf("%s: %w", what, errLeftover)
}

// created tells whether a stored object was made by the same call of Deploy.
func (d *Deployer) created(stored, u *unstructured.Unstructured) bool {
	return stored.GetLabels()[LabelExperimentID] == d.ID && stored.GetDeletionTimestamp() == nil &&
		stored.GetAnnotations()[annotationAttempt] == u.GetAnnotations()[annotationAttempt]
}

func (d *Deployer) get(ctx context.Context, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	_, resource, err := d.mapped(ctx, u)
	if err != nil {
		return nil, err
	}
	var stored *unstructured.Unstructured
	err = d.retry(ctx, func(ctx context.Context) (err error) {
		stored, err = resource.Get(ctx, u.GetName(), metav1.GetOptions{})
		return err
	})
	return stored, err
}

// foreignSelectors are the label selectors of the namespace's Services; without
// the right to see them there are none.
func (d *Deployer) foreignSelectors(ctx context.Context) []labels.Set {
	var list *corev1.ServiceList
	err := d.retry(ctx, func(ctx context.Context) (err error) {
		list, err = d.Core.Services(d.Namespace).List(ctx, metav1.ListOptions{})
		return err
	})
	if err != nil {
		return nil
	}
	var selectors []labels.Set
	for _, s := range list.Items {
		selectors = append(selectors, s.Spec.Selector)
	}
	return selectors
}

// uidOf is the precondition that no other object of the same name is deleted.
func uidOf(u *unstructured.Unstructured) *metav1.Preconditions {
	uid := u.GetUID()
	return &metav1.Preconditions{UID: &uid}
}
