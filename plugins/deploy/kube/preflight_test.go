// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func lines(err error) []string {
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

const noNodes = "no right to list nodes in the cluster: it is not known whether a node has the GPUs that are asked for"

func TestPreflightPassesWithTheRightsOfTheRules(t *testing.T) {
	w := newWorld(t)
	all := map[string][]byte{}
	for kind, manifest := range templates {
		all[kind] = []byte(manifest)
	}
	warnings, err := w.Preflight(t.Context(), all)
	require.NoError(t, err)
	assert.Equal(t, []string{noNodes}, warnings)
	pods, err := w.bed.Core.Pods(w.Namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, pods.Items)
	assert.Empty(t, w.left(), "nothing is created")
}

func TestPreflightReportsEverythingAtOnce(t *testing.T) {
	w := newWorld(t)
	w.bed.Quota(t, w.Namespace, map[string]string{"requests.nvidia.com/gpu": "2"})
	admin := worldOf(t, w.bed, w.bed.REST, w.Namespace)
	gpus := strings.Replace(simulated(), "        ports: [{containerPort: 8000}]", "        resources: {limits: {nvidia.com/gpu: 16}}", 1)
	warnings, err := admin.Preflight(t.Context(), map[string][]byte{
		"kinds":   []byte(simulated() + "---\napiVersion: farm.example/v1\nkind: Farm\nmetadata: {name: a}\n"),
		"gpus":    []byte(gpus),
		"invalid": []byte(strings.Replace(simulated(), "replicas: 1", "replicas: -1", 1)),
		"none":    []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"),
		"notes": []byte(strings.Replace(simulated(), "metadata: {name: llm}", "metadata: {name: llm, namespace: production}", 1) +
			"---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: cache}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n" +
			"---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: llm}\n"),
	})
	assert.Equal(t, []string{
		"template notes: horizontalpodautoscaler/llm is left out of trials: it would reach beyond them",
		"template notes: deployment/llm has namespace production; trials run in " + w.Namespace,
		"template notes: persistentvolumeclaim/cache is made anew, and empty, for every trial; to share what it holds, create it once and take it out of the template",
	}, warnings)
	got := lines(err)
	require.Len(t, got, 5, "%v", err)
	assert.Contains(t, got[0], "template none: no container runs simulator")
	assert.Contains(t, got[1], "the cluster does not serve kind Farm of farm.example/v1")
	assert.Equal(t, "template gpus: a trial needs 16 of requests.nvidia.com/gpu, quota quota of namespace "+w.Namespace+" allows 2", got[2])
	assert.Equal(t, "template gpus: a pod asks for 16 nvidia.com/gpu, and the largest node has 8", got[3])
	assert.Regexp(t, `^template invalid: deployment/chat-invalid-[0-9a-f]{8}-0: .* spec.replicas: Invalid value: -1`, got[4])
}

func TestPreflightNamesMissingRights(t *testing.T) {
	rules := slices.DeleteFunc(Rules(), func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Resources, "pods/log") || slices.Contains(r.Resources, "pods/portforward") || slices.Contains(r.Resources, "deployments")
	})
	w := limitedWorld(t, rules)
	warnings, err := w.Preflight(t.Context(), map[string][]byte{"small": []byte(simulated())})
	assert.Equal(t, []string{
		"no right to get pods/log in namespace " + w.Namespace + ": failed trials have no logs and a less exact cause", noNodes,
	}, warnings)
	assert.Equal(t, []string{
		"no right to create, get pods/portforward in namespace " + w.Namespace,
		"no right to create, delete, get, list, patch, watch deployments.apps in namespace " + w.Namespace,
	}, lines(err))
	w.Execution.Endpoint = "http://engine:8000"
	_, err = w.Preflight(t.Context(), map[string][]byte{"small": []byte(simulated())})
	assert.NotContains(t, err.Error(), "portforward", "the endpoint is given")
}

func TestAnObjectInTheWayIsFoundBeforeTheRun(t *testing.T) {
	w := newWorld(t)
	plan := w.plan(simulated())
	w.bed.Apply(t, w.Namespace, "apiVersion: v1\nkind: Service\nmetadata: {name: "+plan.Name+"}\nspec: {ports: [{port: 1}]}\n")
	_, err := w.Preflight(t.Context(), map[string][]byte{"small": plan.Manifest})
	assert.EqualError(t, err, "template small: service/"+plan.Name+": an object of this name exists that does not belong to this experiment; it is not touched")
	w.bed.Kubectl(t, "", "-n", w.Namespace, "delete", "service", plan.Name)
	in := w.deploy(plan)
	run := w.ID
	w.ID = "preflight"
	warnings, err := w.Preflight(t.Context(), map[string][]byte{"small": plan.Manifest})
	require.NoError(t, err)
	assert.Contains(t, warnings, "service/"+plan.Name+" is left of an earlier run of experiment chat")
	w.ID = run
	require.NoError(t, in.Delete(t.Context()))
}
