// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// simulatedPod is a pod spec, indented for a template.
func simulatedPod(indent int) string {
	text := `terminationGracePeriodSeconds: 1
containers:
- name: engine
  image: registry.example/engine:1
  command: [llmctl, simulate, --model=m, --startup-time=100ms, --host=0.0.0.0, --port=8000]
`
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+strings.Repeat(" ", indent))
}

// templates by kind: each serves model m.
var templates = map[string]string{
	"StatefulSet": `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: llm}
spec:
  replicas: 2
  serviceName: llm-pods
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: llm}}
  template:
    metadata: {labels: {app: llm}}
    spec:
      ` + simulatedPod(6) + `
---
apiVersion: v1
kind: Service
metadata: {name: llm-pods}
spec: {clusterIP: None, selector: {app: llm}, ports: [{port: 8000}]}
`,
	"Pod": `apiVersion: v1
kind: Pod
metadata: {name: 70b-llm, labels: {app: llm}}
spec:
  ` + simulatedPod(2) + "\n",
	"Job": `apiVersion: batch/v1
kind: Job
metadata: {name: llm}
spec:
  template:
    spec:
      restartPolicy: Never
      ` + simulatedPod(6) + "\n",
	"LeaderWorkerSet": `apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: llm}
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      metadata: {labels: {role: leader}}
      spec:
        ` + simulatedPod(8) + `
    workerTemplate:
      spec:
        terminationGracePeriodSeconds: 1
        containers:
        - {name: worker, image: "registry.example/engine:1", command: [sh, -c, "exec sleep 3600"]}
---
apiVersion: v1
kind: Service
metadata: {name: llm}
spec: {selector: {leaderworkerset.sigs.k8s.io/name: llm, role: leader}, ports: [{port: 8000}]}
`,
	"RoleBasedGroup": `apiVersion: workloads.x-k8s.io/v1alpha2
kind: RoleBasedGroup
metadata: {name: llm}
spec:
  roles:
  - name: server
    replicas: 2
    standalonePattern:
      template:
        metadata: {labels: {app: llm}}
        spec:
          ` + simulatedPod(10) + `
  - name: group
    replicas: 1
    leaderWorkerPattern:
      size: 2
      template:
        spec:
          terminationGracePeriodSeconds: 1
          containers:
          - {name: worker, image: "registry.example/engine:1", command: [sh, -c, "exec sleep 3600"]}
`,
	"RoleBasedGroup of v1alpha1": `apiVersion: workloads.x-k8s.io/v1alpha1
kind: RoleBasedGroup
metadata: {name: llm}
spec:
  roles:
  - name: server
    replicas: 1
    template:
      metadata: {labels: {app: llm}}
      spec:
        ` + simulatedPod(8) + "\n",
}

func TestEveryKindServesAndIsGoneAfterwards(t *testing.T) {
	for kind, want := range map[string]struct{ pods, serving int }{
		"StatefulSet": {2, 2}, "Pod": {1, 1}, "Job": {1, 1}, "LeaderWorkerSet": {4, 2}, "RoleBasedGroup": {4, 2},
		"RoleBasedGroup of v1alpha1": {1, 1},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			in := w.deploy(w.plan(templates[kind]))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			target, err := in.Ready(ctx)
			require.NoError(t, err)
			assert.Equal(t, "m", target.Model)
			pods, err := w.bed.Core.Pods(w.Namespace).List(ctx, metav1.ListOptions{LabelSelector: ofTrial(w.ID, in.trial.name).String()})
			require.NoError(t, err)
			assert.Len(t, pods.Items, want.pods)
			assert.Len(t, in.tunnel.ways, want.serving)
			for range 2 * want.serving { // each one answers
				complete(t, target.BaseURL)
			}
			cause, err := in.Diagnose(ctx)
			require.NoError(t, err)
			assert.Empty(t, cause)
			require.NoError(t, in.Delete(ctx))
			left, err := w.bed.Leftovers(ctx, w.Namespace)
			require.NoError(t, err)
			assert.Empty(t, left)
		})
	}
}

// complete asks for one token on a connection of its own.
func complete(t *testing.T, url string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"a","max_tokens":1}`))
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode, string(body))
}

func TestExpectedPodsAreReplicasTimesSize(t *testing.T) {
	table, err := newKindTable([]string{"spec.workers[*].template"})
	require.NoError(t, err)
	for manifest, want := range map[string]map[string]int{
		templates["StatefulSet"]:     {"": 2},
		templates["Pod"]:             {"": 1},
		templates["LeaderWorkerSet"]: {"": 4},
		templates["RoleBasedGroup"]:  {"server": 2, "group": 2},
		"apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: a}\n":                                                                                                                                  {"": -1},
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n":                                                                                                                                 {"": 1},
		"apiVersion: x.example/v1\nkind: Farm\nmetadata: {name: a}\nspec: {replicas: 3, workers: [{template: {spec: {containers: []}}}]}\n":                                                            {"": 3},
		"apiVersion: workloads.x-k8s.io/v1alpha2\nkind: RoleBasedGroup\nmetadata: {name: a}\nspec: {roles: [{name: r, replicas: 2, customComponentsPattern: {components: [{size: 1}, {size: 3}]}}]}\n": {"r": 8},
	} {
		objects, err := parse([]byte(manifest))
		require.NoError(t, err)
		k, ok := table.of(objects[0])
		require.True(t, ok, manifest)
		assert.Equal(t, want, k.expected(objects[0]), fmt.Sprint(manifest))
	}
}
