// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// slowDeletion is when a user is told why pods are still there.
	slowDeletion = 15 * time.Second
	// settleLimit is how long the objects may stay after their pods, which hold
	// the resources, have gone.
	settleLimit = 5 * time.Second
	settlePause = 20 * time.Millisecond
)

// deleteAll deletes objects, dependents first, and returns when the selected
// pods are gone. Objects that are no longer there, or that are of another
// experiment by now, are done.
func (d *Deployer) deleteAll(ctx context.Context, objects []*unstructured.Unstructured, pods labels.Set) error {
	var errs []error
	for _, u := range slices.Backward(objects) {
		if err := d.delete(ctx, u); err != nil {
			errs = append(errs, failure(ctx, "delete "+reference(u), err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := d.podsGone(ctx, pods); err != nil {
		return err
	}
	d.settle(ctx, objects)
	return nil
}

func (d *Deployer) delete(ctx context.Context, u *unstructured.Unstructured) error {
	_, resource, err := d.mapped(ctx, u)
	if isNotServed(err) {
		return nil // what the cluster does not serve was never created
	}
	if err != nil {
		return err
	}
	return d.retry(ctx, func(ctx context.Context) error {
		stored, err := resource.Get(ctx, u.GetName(), metav1.GetOptions{})
		if err == nil && stored.GetLabels()[LabelExperimentID] == d.ID {
			err = resource.Delete(ctx, u.GetName(), metav1.DeleteOptions{PropagationPolicy: &foreground, Preconditions: uidOf(stored)})
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// podsGone returns when no selected pod is left. After a while it tells what
// the wait is for.
func (d *Deployer) podsGone(ctx context.Context, selector labels.Set) error {
	waiting, gone := context.WithCancel(ctx)
	defer gone()
	left := leftPods{gone: gone, pods: map[types.UID]*corev1.Pod{}}
	slow := time.AfterFunc(slowDeletion, func() { d.Warn("still waiting for deleted pods: " + left.String()) })
	defer slow.Stop()
	client := d.Core.Pods(d.Namespace)
	err := d.follow(waiting, stream{
		list:    func(ctx context.Context, l metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, l) },
		watch:   client.Watch,
		options: metav1.ListOptions{LabelSelector: selector.String()},
		reset:   left.reset, change: left.change,
	})
	switch {
	case err != nil:
		return failure(ctx, "wait until the pods are gone", err)
	case left.String() == "" && waiting.Err() != nil && ctx.Err() == nil:
		return nil
	default:
		return fmt.Errorf("wait until the pods are gone: %w; still there: %s", context.Cause(ctx), &left)
	}
}

// leftPods are pods that are waited for to go.
type leftPods struct {
	gone func()

	mu   sync.Mutex
	pods map[types.UID]*corev1.Pod
}

func (l *leftPods) reset(items []runtime.Object) {
	l.mu.Lock()
	clear(l.pods)
	l.mu.Unlock()
	for _, item := range items {
		l.change(watch.Modified, item)
	}
	l.check()
}

func (l *leftPods) change(kind watch.EventType, item runtime.Object) {
	if pod, ok := item.(*corev1.Pod); ok {
		l.mu.Lock()
		if l.pods[pod.UID] = pod; kind == watch.Deleted {
			delete(l.pods, pod.UID)
		}
		l.mu.Unlock()
	}
	if kind == watch.Deleted {
		l.check()
	}
}

func (l *leftPods) check() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pods) == 0 {
		l.gone()
	}
}

// String says which pods are left and what holds them.
func (l *leftPods) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var texts []string
	for _, pod := range l.pods {
		text := "pod " + pod.Name
		if pod.DeletionTimestamp == nil {
			text += " (not being deleted)"
		} else if pod.DeletionGracePeriodSeconds != nil {
			text += fmt.Sprintf(" (grace period %ds, until %s UTC)", *pod.DeletionGracePeriodSeconds, pod.DeletionTimestamp.UTC().Format(time.TimeOnly))
		}
		texts = append(texts, text+finalizers(pod.Finalizers))
	}
	slices.Sort(texts)
	return strings.Join(texts, "; ")
}

func finalizers(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " (finalizers " + strings.Join(names, ", ") + ")"
}

// settle waits a moment for the objects to follow their pods, which hold the
// resources, and reports those that are held up.
func (d *Deployer) settle(ctx context.Context, objects []*unstructured.Unstructured) {
	limited, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for _, u := range objects {
		for pause := settlePause; ; pause *= 2 {
			_, resource, err := d.resource(u)
			if err != nil {
				break
			}
			stored, err := resource.Get(limited, u.GetName(), metav1.GetOptions{})
			if err != nil && limited.Err() == nil || err == nil && stored.GetLabels()[LabelExperimentID] != d.ID {
				break
			}
			select {
			case <-time.After(pause):
				continue
			case <-limited.Done():
			}
			if err == nil {
				d.Warn(fmt.Sprintf("%s is deleted but still there%s", reference(u), finalizers(stored.GetFinalizers())))
			}
			return
		}
	}
}
