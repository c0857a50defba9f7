// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/llmctl/llmctl/experiment"
)

// phases are the moments on the way to serving, as this process saw them.
type phases struct {
	began, created, scheduled, pulled, started, ready, served time.Time
}

// note sets the moments that have come.
func (p *phases) note(s snapshot, expected int, allReady bool, now time.Time) {
	pods := 0
	scheduled, pulled, started := true, true, true
	for _, pod := range s.Pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		pods++
		scheduled = scheduled && pod.Spec.NodeName != ""
		running := hasStarted(pod.Pod)
		started = started && running
		pulled = pulled && (running || imagesPulled(pod.Name, s.Events) >= len(pod.Spec.Containers))
	}
	all := pods > 0 && pods >= expected
	for _, m := range []struct {
		at   *time.Time
		come bool
	}{{&p.scheduled, scheduled}, {&p.pulled, pulled}, {&p.started, started}, {&p.ready, allReady}} {
		if all && m.come && m.at.IsZero() {
			*m.at = now
		}
	}
}

func hasStarted(p *corev1.Pod) bool {
	if len(p.Status.ContainerStatuses) == 0 {
		return false
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Waiting != nil || s.State.Running == nil && s.State.Terminated == nil {
			return false
		}
	}
	return true
}

func imagesPulled(pod string, events []seenEvent) int {
	n := 0
	for _, e := range events {
		if e.InvolvedObject.Name == pod && e.Reason == "Pulled" {
			n++
		}
	}
	return n
}

// list is the length of each part, in order. Moments that nobody saw are those
// of the part after.
func (p phases) list() []experiment.Phase {
	moments := []time.Time{p.began, p.created, p.scheduled, p.pulled, p.started, p.ready, p.served}
	for i := len(moments) - 2; i > 0; i-- {
		if moments[i].IsZero() || moments[i].After(moments[i+1]) {
			moments[i] = moments[i+1]
		}
	}
	names := []string{"create", "schedule", "pull", "start", "ready", "first-token"}
	var list []experiment.Phase
	for i, name := range names {
		list = append(list, experiment.Phase{Name: name, Seconds: moments[i+1].Sub(moments[i]).Seconds()})
	}
	return list
}
