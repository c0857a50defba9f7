// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// isCurrent tells whether a controller has seen the object as it is and says
// that it is up. A kind without a status of its own is judged by its pods.
func isCurrent(u *unstructured.Unstructured, condition string) bool {
	generation, observed := u.GetGeneration(), int64(0)
	if value, ok, err := unstructured.NestedInt64(u.Object, "status", "observedGeneration"); ok && err == nil {
		if observed = value; observed < generation {
			return false
		}
	}
	result, err := status.Compute(u)
	if err != nil || result.Status != status.CurrentStatus {
		return false
	}
	for _, c := range find(u.Object, "status.conditions[]") {
		name, value := c["type"], c["status"]
		if seen, ok := c["observedGeneration"].(int64); ok && seen < generation {
			value = "Unknown"
		}
		if name == condition {
			return value == "True"
		}
		if condition == "" && (name == "Ready" || name == "Available") && value != "True" {
			return false
		}
	}
	return condition == ""
}

func isReady(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// readyPods are the pods that serve, and whether they are as many as expected.
func (t *trial) readyPods(s snapshot) (pods []*corev1.Pod, enough bool) {
	byRole, roles := map[string]int{}, false
	for _, p := range s.Pods {
		if isReady(p.Pod) {
			pods = append(pods, p.Pod)
			byRole[roleOf(p.Pod)]++
			roles = roles || roleOf(p.Pod) != ""
		}
	}
	total := 0
	for role, expected := range t.count {
		expected = wanted(expected)
		if total += expected; roles && byRole[role] < expected {
			return pods, false
		}
	}
	return pods, len(pods) >= total
}

// wanted is at least one pod where the number is not known.
func wanted(expected int) int {
	if expected < 0 {
		return 1
	}
	return expected
}

// pods is how many pods there should be, or -1.
func (t *trial) pods() int {
	total := 0
	for _, n := range t.count {
		if n < 0 {
			return -1
		}
		total += n
	}
	return total
}

// objectsReady tells whether every workload is up, as its controller sees it.
// The name of one that is gone is returned.
func (t *trial) objectsReady(s snapshot) (ready bool, gone string) {
	ready = true
	for _, u := range t.workloads() {
		if isKind(u, "", "Pod") {
			continue
		}
		stored, seen := s.Objects[reference(u)]
		if seen && stored == nil {
			return false, reference(u)
		}
		k, _ := t.kinds.of(u)
		ready = ready && seen && isCurrent(stored, k.Ready)
	}
	return ready, ""
}
