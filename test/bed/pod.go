// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// retryEvery is the pause before something that did not work is tried again: a
// request to the API server, or a reference to an object that does not exist.
const retryEvery = 200 * time.Millisecond

// pod is a pod on one of the bed's nodes.
type pod struct {
	kubelet    *kubelet
	object     *corev1.Pod // as it was first seen
	fault      fault
	faultError error
	dir        string
	address    string
	leaving    context.Context // ends when the pod is being deleted
	leave      context.CancelFunc
	gone       chan struct{} // closed when the API has it no more

	mu     sync.Mutex
	status corev1.PodStatus
}

// live plays the pod until it does not exist any more.
func (p *pod) live(ctx context.Context) {
	defer p.kubelet.forget(p)
	defer os.RemoveAll(p.dir)
	if p.object.Annotations[UnmanagedAnnotation] != "true" {
		p.run(p.leaving)
	}
	<-p.leaving.Done()
	if ctx.Err() != nil {
		return
	}
	if p.fault.name == "stuck" {
		limited, cancel := context.WithTimeout(ctx, p.fault.after)
		defer cancel()
		select {
		case <-p.gone:
		case <-limited.Done():
		}
	}
	p.remove(ctx)
}

// run plays the pod's containers and returns when they have ended for good.
func (p *pod) run(ctx context.Context) {
	initial, main := p.containers()
	if !p.begin(ctx, append(slices.Clone(initial), main...)) {
		return
	}
	staying, end := context.WithCancel(ctx)
	var all, sidecars sync.WaitGroup
	defer sidecars.Wait()
	defer end()
	for _, c := range initial {
		if c.sidecar() {
			sidecars.Go(func() { c.run(staying) })
		} else if !c.run(ctx) {
			return
		}
	}
	p.update(ctx, func(s *corev1.PodStatus) { setCondition(s, corev1.PodInitialized, true, "", "") })
	for _, c := range main {
		all.Go(func() { c.run(staying) })
	}
	if p.fault.name == "evicted" {
		all.Go(func() { p.evict(ctx, end) })
	}
	all.Wait()
}

// begin makes the pod known to kwok, shows it as starting and waits for what its
// containers need.
func (p *pod) begin(ctx context.Context, all []*container) bool {
	if slices.ContainsFunc(all, func(c *container) bool { return c.real || c.doomed() }) {
		if err := p.announce(ctx, all); err != nil {
			p.complain(ctx, "announce", err)
			return false
		}
	}
	now := metav1.Now()
	p.update(ctx, func(s *corev1.PodStatus) {
		s.Phase, s.StartTime, s.HostIP, s.PodIP = corev1.PodPending, &now, loopback, p.address
		s.HostIPs, s.PodIPs = []corev1.HostIP{{IP: loopback}}, []corev1.PodIP{{IP: p.address}}
		setCondition(s, corev1.PodReadyToStartContainers, true, "", "")
		setCondition(s, corev1.PodInitialized, len(p.object.Spec.InitContainers) == 0, "", "")
		for _, c := range all {
			reason := "ContainerCreating"
			if !c.init && len(p.object.Spec.InitContainers) > 0 {
				reason = "PodInitializing"
			}
			c.put(s, corev1.ContainerStatus{Name: c.spec.Name, Image: c.spec.Image, Started: new(bool), State: waiting(reason, "")})
		}
	})
	if p.faultError != nil {
		p.complain(ctx, "start", p.faultError)
		p.hold(ctx, all, "CreateContainerConfigError", p.faultError.Error())
		return false
	}
	return p.mounts(ctx) && p.pull(ctx, all)
}

// complain tells the tester of something that no fault explains.
func (p *pod) complain(ctx context.Context, what string, err error) {
	if ctx.Err() != nil || ending(err) {
		return
	}
	fmt.Fprintf(p.kubelet.log, "bed: %s pod %s/%s: %v\n", what, p.object.Namespace, p.object.Name, err)
}

// mounts waits until the objects that volumes come from exist.
func (p *pod) mounts(ctx context.Context) bool {
	for _, v := range p.object.Spec.Volumes {
		for {
			var err error
			switch {
			case v.ConfigMap != nil:
				_, err = p.configMap(ctx, v.ConfigMap.Name, v.ConfigMap.Optional)
			case v.Secret != nil:
				_, err = p.secret(ctx, v.Secret.SecretName, v.Secret.Optional)
			}
			if err == nil {
				break
			}
			p.event(ctx, "", corev1.EventTypeWarning, "FailedMount", fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", v.Name, err))
			if !sleep(ctx, retryEvery) {
				return false
			}
		}
	}
	return true
}

// evict ends the pod as a node under pressure does.
func (p *pod) evict(ctx context.Context, end context.CancelFunc) {
	defer end()
	if !sleep(ctx, p.fault.after) {
		return
	}
	message := p.fault.message("The node was low on resource: memory. Threshold quantity: 100Mi, available: 42Mi. ")
	p.event(ctx, "", corev1.EventTypeWarning, "Evicted", message)
	p.update(ctx, func(s *corev1.PodStatus) {
		s.Phase, s.Reason, s.Message = corev1.PodFailed, "Evicted", message
		for i := range s.ContainerStatuses {
			c := &s.ContainerStatuses[i]
			c.Ready, c.Started = false, new(bool)
			c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error", FinishedAt: metav1.Now()}}
		}
	})
}

// remove ends the pod in the API once its processes are gone, as kubelets do.
func (p *pod) remove(ctx context.Context) {
	p.retract(ctx)
	options := *metav1.NewDeleteOptions(0)
	options.Preconditions = metav1.NewUIDPreconditions(string(p.object.UID))
	for {
		err := p.kubelet.core.Pods(p.object.Namespace).Delete(ctx, p.object.Name, options)
		if err == nil || final(err) || !sleep(ctx, retryEvery) {
			return
		}
	}
}

// final says that trying again is of no use.
func final(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err)
}

func (p *pod) event(ctx context.Context, path, kind, reason, message string) {
	o := p.object
	about := corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: o.Namespace, Name: o.Name, UID: o.UID, FieldPath: path}
	p.kubelet.events.record(ctx, about, corev1.EventSource{Component: "kubelet", Host: o.Spec.NodeName}, kind, reason, message)
}

// update changes the pod's status, derives what follows from its containers, and
// writes it, however long the API server is away.
func (p *pod) update(ctx context.Context, change func(*corev1.PodStatus)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.status)
	p.derive()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.object.UID}, "status": p.status})
	for err == nil {
		_, err := p.kubelet.core.Pods(p.object.Namespace).Patch(ctx, p.object.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		if apierrors.IsInvalid(err) {
			p.complain(ctx, "status of", err)
		}
		if err == nil || final(err) || !sleep(ctx, retryEvery) {
			return
		}
	}
	p.complain(ctx, "status of", err)
}

// derive sets the phase and the conditions that sum up the containers.
func (p *pod) derive() {
	s := &p.status
	if s.Phase != corev1.PodFailed && s.Phase != corev1.PodSucceeded {
		s.Phase = phase(p.object.Spec, *s)
	}
	var unready []string
	for _, c := range s.ContainerStatuses {
		if !c.Ready || s.Phase == corev1.PodFailed {
			unready = append(unready, c.Name)
		}
	}
	reason, message := "", ""
	switch {
	case s.Phase == corev1.PodSucceeded:
		reason = "PodCompleted"
	case s.Phase == corev1.PodFailed:
		reason = "PodFailed"
	case len(unready) > 0:
		reason, message = "ContainersNotReady", fmt.Sprintf("containers with unready status: [%s]", strings.Join(unready, " "))
	}
	ready := reason == "" && len(s.ContainerStatuses) > 0
	setCondition(s, corev1.ContainersReady, ready, reason, message)
	setCondition(s, corev1.PodReady, ready, reason, message)
}

// phase is that of a pod with such containers.
func phase(spec corev1.PodSpec, s corev1.PodStatus) corev1.PodPhase {
	for i, c := range s.InitContainerStatuses {
		switch t := c.State.Terminated; {
		case sidecar(spec.InitContainers[i]):
		case t == nil:
			return corev1.PodPending
		case t.ExitCode != 0 && spec.RestartPolicy == corev1.RestartPolicyNever:
			return corev1.PodFailed
		case t.ExitCode != 0:
			return corev1.PodPending
		}
	}
	ended, failed := 0, 0
	for _, c := range s.ContainerStatuses {
		switch t := c.State.Terminated; {
		case c.State.Waiting != nil && c.LastTerminationState.Terminated == nil:
			return corev1.PodPending
		case t != nil && !restarts(spec.RestartPolicy, t.ExitCode):
			ended++
			failed += min(1, int(t.ExitCode))
		}
	}
	switch {
	case ended < len(s.ContainerStatuses) || ended == 0:
		return corev1.PodRunning
	case failed > 0:
		return corev1.PodFailed
	}
	return corev1.PodSucceeded
}

// sidecar says that an init container stays beside the main ones.
func sidecar(c corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// restarts says whether a container that has ended is started again.
func restarts(policy corev1.RestartPolicy, exitCode int32) bool {
	return policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && exitCode != 0
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func setCondition(s *corev1.PodStatus, kind corev1.PodConditionType, ok bool, reason, message string) {
	value := corev1.ConditionFalse
	if ok {
		value = corev1.ConditionTrue
	}
	i := slices.IndexFunc(s.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: kind})
		i = len(s.Conditions) - 1
	}
	c := &s.Conditions[i]
	if c.Status != value {
		c.LastTransitionTime = metav1.Now()
	}
	c.Status, c.Reason, c.Message = value, reason, message
}
