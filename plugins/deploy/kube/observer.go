// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/llmctl/llmctl/experiment"
)

// podState is a pod with what can be known only by having watched it.
type podState struct {
	*corev1.Pod
	Seen time.Time // when it was first seen
	// Stuck is when each container was first seen to need help from outside, as
	// when its image cannot be pulled, whatever its state since; it is forgotten
	// when the container starts.
	Stuck map[string]time.Time
	// Recreated counts the earlier pods of the same name, Died is why the last one
	// ended: some controllers replace a pod where others restart a container.
	Recreated int
	Died      *corev1.ContainerStateTerminated
	// Logs are what the containers' logs say, by container.
	Logs map[string]logFinding
}

// seenEvent is an event and when this process first saw it: the clocks of the
// cluster may be others.
type seenEvent struct {
	*corev1.Event
	Seen time.Time
}

// logFinding is the deciding line of a log.
type logFinding struct {
	experiment.Cause
	Fatal bool
}

// observer watches the pods, workloads and events of one trial.
type observer struct {
	deployer *Deployer
	selector labels.Set
	names    []string // of the trial's objects
	changed  chan struct{}

	mu      sync.Mutex
	ended   func(pod string) // called when a container of a pod has ended; may be nil
	pods    map[types.UID]*podState
	gone    map[string]*podState // the last pod of each name that is no more
	events  map[types.UID]seenEvent
	objects map[string]*unstructured.Unstructured // by reference; nil after deletion
	err     error
	done    sync.WaitGroup
}

func (d *Deployer) newObserver(t *trial) *observer {
	o := &observer{
		deployer: d, selector: ofTrial(d.ID, t.name), changed: make(chan struct{}, 1),
		pods: map[types.UID]*podState{}, gone: map[string]*podState{}, events: map[types.UID]seenEvent{},
		objects: map[string]*unstructured.Unstructured{},
	}
	for _, u := range t.objects {
		o.names = append(o.names, u.GetName())
	}
	return o
}

// start watches until ctx ends. Events are watched from now on: those of a
// namespace cannot be selected by label.
func (o *observer) start(ctx context.Context, workloads []*unstructured.Unstructured) {
	o.follow(ctx, o.podStream())
	seen := map[string]bool{}
	for _, u := range workloads {
		kind := u.GetKind()
		mapping, resource, err := o.deployer.resource(u)
		if err != nil || seen[mapping.Resource.String()] || isKind(u, "", "Pod") {
			continue // creating it gives the error
		}
		seen[mapping.Resource.String()] = true
		o.follow(ctx, stream{
			list: func(ctx context.Context, l metav1.ListOptions) (runtime.Object, error) {
				return resource.List(ctx, l)
			},
			watch: resource.Watch, options: metav1.ListOptions{LabelSelector: o.selector.String()},
			reset: func(items []runtime.Object) {
				o.setObjects(kind, items)
			},
			change: o.changeObject,
		})
	}
	if version, ok := o.eventVersion(ctx); ok {
		events := o.deployer.Core.Events(o.deployer.Namespace)
		o.follow(ctx, stream{
			list:  func(ctx context.Context, l metav1.ListOptions) (runtime.Object, error) { return events.List(ctx, l) },
			watch: events.Watch, from: version,
			reset:  func(items []runtime.Object) { o.setEvents(items) },
			change: func(_ watch.EventType, item runtime.Object) { o.setEvents([]runtime.Object{item}) },
		})
	}
}

// podStream are the trial's pods.
func (o *observer) podStream() stream {
	pods := o.deployer.Core.Pods(o.deployer.Namespace)
	return stream{
		list:    func(ctx context.Context, l metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, l) },
		watch:   pods.Watch,
		options: metav1.ListOptions{LabelSelector: o.selector.String()}, reset: o.setPods, change: o.changePod,
	}
}

// eventVersion is where the events of this trial begin; without the right to
// see events there are none.
func (o *observer) eventVersion(ctx context.Context) (string, bool) {
	var list *corev1.EventList
	err := o.deployer.retry(ctx, func(ctx context.Context) (err error) {
		list, err = o.deployer.Core.Events(o.deployer.Namespace).List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
	if err != nil {
		return "", false
	}
	return list.ResourceVersion, true
}

func (o *observer) follow(ctx context.Context, s stream) {
	o.done.Go(func() {
		if err := o.deployer.follow(ctx, s); err != nil {
			o.mu.Lock()
			o.err = err
			o.mu.Unlock()
			o.notify()
		}
	})
}

func (o *observer) notify() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

func (o *observer) setPods(items []runtime.Object) {
	defer o.notify()
	o.mu.Lock()
	defer o.mu.Unlock()
	left := maps.Clone(o.pods)
	for _, item := range items {
		if pod, ok := item.(*corev1.Pod); ok {
			delete(left, pod.UID)
			o.setPod(pod)
		}
	}
	for uid, old := range left {
		o.removePod(uid, old.Pod)
	}
}

func (o *observer) changePod(kind watch.EventType, item runtime.Object) {
	pod, ok := item.(*corev1.Pod)
	if !ok {
		return
	}
	defer o.notify()
	o.mu.Lock()
	defer o.mu.Unlock()
	if kind == watch.Deleted {
		o.removePod(pod.UID, pod)
	} else {
		o.setPod(pod)
	}
}

func (o *observer) setPod(pod *corev1.Pod) {
	state := o.pods[pod.UID]
	if state == nil {
		state = &podState{Seen: o.deployer.now(), Stuck: map[string]time.Time{}, Logs: map[string]logFinding{}}
		if old := o.gone[pod.Name]; old != nil {
			state.Recreated, state.Died = old.Recreated+1, old.lastEnd()
		}
		o.pods[pod.UID] = state
	}
	pod.ManagedFields = nil
	if state.Pod != nil && o.ended != nil && hasEnded(state.Pod, pod) {
		o.ended(pod.Name)
	}
	state.Pod = pod
	for _, status := range statuses(pod) {
		switch waiting := status.State.Waiting; {
		case waiting != nil && isStuck(waiting.Reason):
			if state.Stuck[status.Name].IsZero() {
				state.Stuck[status.Name] = o.deployer.now()
			}
		case status.State.Running != nil || status.State.Terminated != nil:
			delete(state.Stuck, status.Name)
		}
	}
}

func (o *observer) removePod(uid types.UID, pod *corev1.Pod) {
	if state := o.pods[uid]; state != nil {
		state.Pod = pod
		o.gone[pod.Name] = state
		if o.ended != nil {
			o.ended(pod.Name)
		}
		delete(o.pods, uid)
	}
}

// hasEnded tells whether a container has ended between two looks at a pod.
func hasEnded(before, now *corev1.Pod) bool {
	was := map[string]corev1.ContainerStatus{}
	for _, s := range before.Status.ContainerStatuses {
		was[s.Name] = s
	}
	return slices.ContainsFunc(now.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.RestartCount > was[s.Name].RestartCount || s.State.Running == nil && was[s.Name].State.Running != nil
	})
}

// onEnd sets what is called when a container has ended.
func (o *observer) onEnd(ended func(pod string)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = ended
}

// lastEnd is why a container of the pod ended last.
func (p *podState) lastEnd() *corev1.ContainerStateTerminated {
	var last *corev1.ContainerStateTerminated
	for _, s := range statuses(p.Pod) {
		for _, end := range []*corev1.ContainerStateTerminated{s.LastTerminationState.Terminated, s.State.Terminated} {
			if end != nil && (end.ExitCode != 0 || last == nil) {
				last = end
			}
		}
	}
	return last
}

func statuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

func (o *observer) changeObject(kind watch.EventType, item runtime.Object) {
	u, ok := item.(*unstructured.Unstructured)
	if !ok {
		return
	}
	defer o.notify()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.objects[reference(u)] = u; kind == watch.Deleted {
		o.objects[reference(u)] = nil
	}
}

// setObjects notes all workloads of a kind; one that was known and is not among
// them is gone.
func (o *observer) setObjects(kind string, items []runtime.Object) {
	o.mu.Lock()
	for name, old := range o.objects {
		if old != nil && old.GetKind() == kind {
			o.objects[name] = nil
		}
	}
	o.mu.Unlock()
	for _, item := range items {
		o.changeObject(watch.Modified, item)
	}
	o.notify()
}

func (o *observer) setEvents(items []runtime.Object) {
	changed := false
	o.mu.Lock()
	for _, item := range items {
		if e, ok := item.(*corev1.Event); ok && o.concerns(e.InvolvedObject.Name) {
			e.ManagedFields = nil
			seen := o.events[e.UID].Seen
			if seen.IsZero() {
				seen = o.deployer.now()
			}
			o.events[e.UID] = seenEvent{e, seen}
			changed = true
		}
	}
	o.mu.Unlock()
	if changed {
		o.notify()
	}
}

// concerns tells whether an object of the given name is the trial's, or was
// made for one of its objects.
func (o *observer) concerns(name string) bool {
	return slices.ContainsFunc(o.names, func(own string) bool {
		rest, ok := strings.CutPrefix(name, own)
		return ok && (rest == "" || rest[0] == '-' || rest[0] == '.')
	})
}

// snapshot is what has been observed so far; the objects in it are not changed any more.
type snapshot struct {
	Pods    []podState  // by name
	Events  []seenEvent // oldest first
	Objects map[string]*unstructured.Unstructured
	Gone    map[types.UID]podState // pods that are no more
}

func (o *observer) snapshot() (snapshot, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := snapshot{Objects: maps.Clone(o.objects), Gone: map[types.UID]podState{}}
	for _, state := range o.pods {
		copied := *state
		copied.Stuck, copied.Logs = maps.Clone(state.Stuck), maps.Clone(state.Logs)
		s.Pods = append(s.Pods, copied)
	}
	slices.SortFunc(s.Pods, func(a, b podState) int { return strings.Compare(a.Name, b.Name) })
	for _, state := range o.gone {
		s.Gone[state.UID] = *state
	}
	for _, e := range o.events {
		s.Events = append(s.Events, e)
	}
	slices.SortFunc(s.Events, func(a, b seenEvent) int { return eventTime(a.Event).Compare(eventTime(b.Event)) })
	return s, o.err
}

// eventTime is when an event happened last.
func eventTime(e *corev1.Event) time.Time {
	last := e.LastTimestamp.Time
	if e.EventTime.After(last) {
		last = e.EventTime.Time
	}
	if e.Series != nil && e.Series.LastObservedTime.After(last) {
		last = e.Series.LastObservedTime.Time
	}
	if last.IsZero() {
		last = e.CreationTimestamp.Time
	}
	return last
}

// learn notes what the log of a container said; a whole log says more than what
// was heard of one.
func (o *observer) learn(pod types.UID, container string, f logFinding, whole bool) {
	o.mu.Lock()
	if state := o.pods[pod]; state != nil && f.Class != "" && (whole || !state.Logs[container].Fatal) {
		state.Logs[container] = f
	}
	o.mu.Unlock()
	o.notify()
}
