// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/llmctl/llmctl/experiment"
)

func TestAnObjectIsReadyWhenItsControllerSaysSo(t *testing.T) {
	table, err := newKindTable([]string{"spec.workers[].template"})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		object string
		want   bool
	}{
		"a Deployment that is up":                 {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {generation: 2}\nspec: {replicas: 1}\nstatus: {observedGeneration: 2, replicas: 1, updatedReplicas: 1, readyReplicas: 1, availableReplicas: 1, conditions: [{type: Available, status: 'True'}, {type: Progressing, status: 'True', reason: NewReplicaSetAvailable}]}", true},
		"K11 a Deployment of another generation":  {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {generation: 3}\nspec: {replicas: 1}\nstatus: {observedGeneration: 2, replicas: 1, updatedReplicas: 1, readyReplicas: 1, availableReplicas: 1, conditions: [{type: Available, status: 'True'}, {type: Progressing, status: 'True', reason: NewReplicaSetAvailable}]}", false},
		"a Deployment that was just made":         {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {generation: 1}\nspec: {replicas: 1}", false},
		"a StatefulSet that is up":                {"apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {generation: 1}\nspec: {replicas: 2}\nstatus: {observedGeneration: 1, replicas: 2, readyReplicas: 2, currentReplicas: 2, updatedReplicas: 2, currentRevision: a, updateRevision: a}", true},
		"a RoleBasedGroup without a status":       {"apiVersion: workloads.x-k8s.io/v1alpha2\nkind: RoleBasedGroup\nmetadata: {generation: 1}\nspec: {roles: []}", false},
		"a RoleBasedGroup that is up":             {"apiVersion: workloads.x-k8s.io/v1alpha2\nkind: RoleBasedGroup\nmetadata: {generation: 1}\nspec: {roles: []}\nstatus: {observedGeneration: 1, conditions: [{type: Ready, status: 'True'}]}", true},
		"a RoleBasedGroup that is not":            {"apiVersion: workloads.x-k8s.io/v1alpha2\nkind: RoleBasedGroup\nmetadata: {generation: 1}\nspec: {roles: []}\nstatus: {observedGeneration: 1, conditions: [{type: Ready, status: 'False', reason: RoleNotReady}]}", false},
		"K11 a RoleBasedGroup of another time":    {"apiVersion: workloads.x-k8s.io/v1alpha2\nkind: RoleBasedGroup\nmetadata: {generation: 3}\nspec: {roles: []}\nstatus: {observedGeneration: 2, conditions: [{type: Ready, status: 'True'}]}", false},
		"K11 a condition of another generation":   {"apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {generation: 3}\nstatus: {conditions: [{type: Available, status: 'True', observedGeneration: 2}]}", false},
		"a LeaderWorkerSet that is up":            {"apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {generation: 3}\nstatus: {conditions: [{type: Progressing, status: 'False'}, {type: Available, status: 'True'}]}", true},
		"an unknown kind that is not ready":       {"apiVersion: x.example/v1\nkind: Farm\nmetadata: {generation: 1}\nspec: {workers: [{template: {}}]}\nstatus: {conditions: [{type: Available, status: 'False'}]}", false},
		"an unknown kind without such conditions": {"apiVersion: x.example/v1\nkind: Farm\nmetadata: {generation: 1}\nspec: {workers: [{template: {}}]}\nstatus: {phase: Up}", true},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := parse([]byte(strings.Replace(c.object, "metadata: {", "metadata: {name: a, ", 1)))
			require.NoError(t, err)
			u := objects[0]
			// parse drops what only a server writes.
			require.NoError(t, unmarshal([]byte(strings.Replace(c.object, "metadata: {", "metadata: {name: a, ", 1)), &u.Object))
			k, ok := table.of(u)
			require.True(t, ok)
			assert.Equal(t, c.want, isCurrent(u, k.Ready))
		})
	}
}

func TestEveryExpectedPodMustBeReadyInEachRole(t *testing.T) {
	pod := func(role, ready string) podState {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}
		if role != "" {
			p.Labels["rbg.workloads.x-k8s.io/role-name"] = role
		}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionStatus(ready)}}
		return podState{Pod: p}
	}
	for name, c := range map[string]struct {
		count map[string]int
		pods  []podState
		want  bool
	}{
		"all":                       {map[string]int{"a": 1, "b": 1}, []podState{pod("a", "True"), pod("b", "True")}, true},
		"too many of one role":      {map[string]int{"a": 1, "b": 1}, []podState{pod("a", "True"), pod("a", "True")}, false},
		"one is not ready":          {map[string]int{"a": 2}, []podState{pod("a", "True"), pod("a", "False")}, false},
		"roles that pods lack":      {map[string]int{"a": 1, "b": 1}, []podState{pod("", "True"), pod("", "True")}, true},
		"no roles":                  {map[string]int{"": 2}, []podState{pod("", "True")}, false},
		"an unknown number":         {map[string]int{"": -1}, []podState{pod("", "True")}, true},
		"an unknown number of none": {map[string]int{"": -1}, nil, false},
	} {
		_, enough := (&trial{count: c.count}).readyPods(snapshot{Pods: c.pods})
		assert.Equal(t, c.want, enough, name)
	}
}

func TestAGroupThatIsMadeAnewAgainAndAgainFails(t *testing.T) {
	w := newWorld(t)
	w.Execution.MaxRestarts = 1
	manifest := strings.Replace(templates["LeaderWorkerSet"], "metadata: {labels: {role: leader}}",
		"metadata: {labels: {role: leader}, annotations: {"+strings.Join(fault("crashloop", "exit-code", "3"), ", ")+"}}", 1)
	in := w.deploy(w.plan(manifest))
	cause := w.failure(in)
	assert.Equal(t, "server_died", cause.Class, cause.Message)
	assert.Contains(t, cause.Message, "exit code 3, 2 restarts")
}

func TestALateStatusDoesNotMakeATrialReady(t *testing.T) {
	w := newWorld(t)
	manifest := strings.Replace(templates["RoleBasedGroup of v1alpha1"], "metadata: {name: llm}", "metadata: {name: llm, annotations: {bed.llmctl.io/unmanaged: 'true'}}", 1)
	in := w.deploy(w.plan(manifest))
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, &experiment.Failure{Cause: experiment.Cause{Class: "not_ready", Message: "time is up"}})
	defer cancel()
	_, err := in.Ready(ctx)
	require.ErrorContains(t, err, "time is up")
	cause, err := in.Diagnose(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "not_ready: no pods have been created", cause.Message)
}
