// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// UnmanagedAnnotation on a pod, RoleBasedGroup or LeaderWorkerSet ("true") leaves
// its status to the test.
const UnmanagedAnnotation = "bed.llmctl.io/unmanaged"

// templateAnnotation of a pod says which template it was made from.
const templateAnnotation = "bed.llmctl.io/template"

// groups is the controller of RoleBasedGroups and LeaderWorkerSets: it makes
// their pods and sums them up in their status. The controllers that it stands
// for have objects in between; here the pods belong to the group directly.
type groups struct {
	core    corev1client.CoreV1Interface
	dynamic dynamic.Interface
	log     io.Writer
	events  *recorder

	working sync.WaitGroup
	wake    chan struct{}

	mu     sync.Mutex
	owners map[types.UID]*unstructured.Unstructured
	pods   map[types.UID]map[string]*corev1.Pod // by owner and name
	dirty  map[types.UID]bool
}

func newGroups(b *Bed) *groups {
	return &groups{
		core: b.Core, dynamic: b.Dynamic, log: b.log, events: newRecorder(b.Core, b.log), wake: make(chan struct{}, 1),
		owners: map[types.UID]*unstructured.Unstructured{}, pods: map[types.UID]map[string]*corev1.Pod{}, dirty: map[types.UID]bool{},
	}
}

func (g *groups) start(ctx context.Context) {
	for _, kind := range []schema.GroupVersionResource{roleGroups, leaderWorkers} {
		client := g.dynamic.Resource(kind)
		s := source{
			what:  kind.Resource,
			list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
			watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return client.Watch(ctx, o) },
		}
		g.working.Go(func() {
			follow(ctx, s, g.log, func(o runtime.Object) { g.seen(o.(*unstructured.Unstructured)) }, g.gone)
		})
	}
	g.working.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-g.wake:
				g.reconcileAll(ctx)
			}
		}
	})
}

func (g *groups) wait() { g.working.Wait() }

func (g *groups) seen(owner *unstructured.Unstructured) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.owners[owner.GetUID()] = owner
	g.touch(owner.GetUID())
}

func (g *groups) gone(id types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.owners, id)
}

// pod hears of every pod.
func (g *groups) pod(pod *corev1.Pod, gone bool) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "RoleBasedGroup" && owner.Kind != "LeaderWorkerSet" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pods[owner.UID] == nil {
		g.pods[owner.UID] = map[string]*corev1.Pod{}
	}
	if gone {
		delete(g.pods[owner.UID], pod.Name)
	} else {
		g.pods[owner.UID][pod.Name] = pod
	}
	g.touch(owner.UID)
}

// touch is called with the lock held.
func (g *groups) touch(id types.UID) {
	g.dirty[id] = true
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *groups) reconcileAll(ctx context.Context) {
	g.mu.Lock()
	dirty := g.dirty
	g.dirty = map[types.UID]bool{}
	g.mu.Unlock()
	for id := range dirty {
		g.mu.Lock()
		owner, have := g.owners[id], map[string]*corev1.Pod{}
		for name, pod := range g.pods[id] {
			have[name] = pod
		}
		g.mu.Unlock()
		if owner == nil || owner.GetDeletionTimestamp() != nil || owner.GetAnnotations()[UnmanagedAnnotation] == "true" {
			continue
		}
		err := g.reconcile(ctx, owner, have)
		if err == nil || ending(err) || ctx.Err() != nil {
			continue
		}
		if !final(err) && !apierrors.IsForbidden(err) {
			fmt.Fprintf(g.log, "bed: %s %s/%s: %v\n", owner.GetKind(), owner.GetNamespace(), owner.GetName(), err)
		}
		time.AfterFunc(retryEvery, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.touch(id)
		})
	}
}

// reconcile makes the pods be as the owner wants them, then writes its status.
func (g *groups) reconcile(ctx context.Context, owner *unstructured.Unstructured, have map[string]*corev1.Pod) error {
	sets, err := setsOf(owner)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, s := range sets {
		for _, pod := range s.pods() {
			wanted[pod.Name] = true
			if err := g.want(ctx, owner, s, pod, have[pod.Name]); err != nil {
				return err
			}
		}
		for _, name := range s.broken(have) {
			wanted[name] = false
		}
	}
	for name, pod := range have {
		if !wanted[name] && pod.DeletionTimestamp == nil {
			if err := g.remove(ctx, pod); err != nil {
				return err
			}
		}
	}
	return g.report(ctx, owner, sets, have)
}

// want creates a pod, or deletes it when it was made from another template.
func (g *groups) want(ctx context.Context, owner *unstructured.Unstructured, s *set, pod, have *corev1.Pod) error {
	yes := true
	pod.Namespace = owner.GetNamespace()
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID(),
		Controller: &yes, BlockOwnerDeletion: &yes,
	}}
	text, err := json.Marshal(pod)
	if err != nil {
		return err
	}
	sum := fnv.New64a()
	sum.Write(text)
	template := fmt.Sprintf("%x", sum.Sum64())
	if have != nil {
		if have.Annotations[templateAnnotation] != template && have.DeletionTimestamp == nil {
			return g.remove(ctx, have)
		}
		return nil
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, templateAnnotation, template)
	_, err = g.core.Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // the watch has yet to tell
	}
	if (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) && !ending(err) {
		g.refused(ctx, owner, err)
	}
	return err
}

func (g *groups) remove(ctx context.Context, pod *corev1.Pod) error {
	err := g.core.Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if err == nil || final(err) {
		return nil
	}
	return fmt.Errorf("delete pod %s: %w", pod.Name, err)
}

// refused tells of a pod that was not let in, by quota for example.
func (g *groups) refused(ctx context.Context, o *unstructured.Unstructured, cause error) {
	about := corev1.ObjectReference{Kind: o.GetKind(), APIVersion: o.GetAPIVersion(), Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}
	g.events.record(ctx, about, corev1.EventSource{Component: "bed", Host: "bed"}, corev1.EventTypeWarning, "FailedCreate", "Error creating: "+cause.Error())
}

// report writes the owner's status when it has changed.
func (g *groups) report(ctx context.Context, owner *unstructured.Unstructured, sets []*set, have map[string]*corev1.Pod) error {
	old, _, err := unstructured.NestedMap(owner.Object, "status")
	if err != nil {
		return err
	}
	status := statusOf(owner, sets, have)
	if reflect.DeepEqual(old, status) {
		return nil
	}
	kind := roleGroups
	if owner.GetKind() == "LeaderWorkerSet" {
		kind = leaderWorkers
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": owner.GetUID()}, "status": status})
	if err != nil {
		return err
	}
	_, err = g.dynamic.Resource(kind).Namespace(owner.GetNamespace()).Patch(ctx, owner.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
