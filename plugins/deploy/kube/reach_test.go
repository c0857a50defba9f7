// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// podsOf are pods that a controller could have made for a trial: a name and
// labels for each, with the containers of the pod template at path.
func podsOf(t *testing.T, built *trial, path string, pods ...map[string]string) []*corev1.Pod {
	t.Helper()
	var list []*corev1.Pod
	for _, labels := range pods {
		template := values(built.workloads()[0].Object, path)[0].(map[string]any)
		spec, ok := podSpec(template)
		require.True(t, ok)
		p := &corev1.Pod{Spec: spec}
		p.Name, p.Labels = built.name+"-"+labels["name"], map[string]string{LabelTrial: built.name}
		made, _, err := unstructured.NestedStringMap(template, "metadata", "labels")
		require.NoError(t, err)
		for _, set := range []map[string]string{made, labels} {
			for key, value := range set {
				p.Labels[key] = value
			}
		}
		list = append(list, p)
	}
	return list
}

func TestTheServingPodsAndTheirPort(t *testing.T) {
	const role, rank = "rbg.workloads.x-k8s.io/role-name", "rbg.workloads.x-k8s.io/component-index"
	const name = "chat-small-01234567-3"
	group := `apiVersion: workloads.x-k8s.io/v1alpha2
kind: RoleBasedGroup
metadata: {name: llm}
spec:
  roles:
  - name: my-router
    standalonePattern: {template: {spec: {containers: [{name: r, command: [route], ports: [{containerPort: 9000}]}]}}}
  - name: prefill
    leaderWorkerPattern: {size: 2, template: {spec: {containers: [{name: e, command: [llmctl, simulate, --model=m, --port=8100]}]}}}
  - name: decode
    standalonePattern: {template: {spec: {containers: [{name: e, command: [llmctl, simulate, --model=m, --port=8200]}]}}}
`
	deployment := strings.Split(simulated(), "---\n")[0]
	service := func(text string) string {
		return deployment + "---\napiVersion: v1\nkind: Service\nmetadata: {name: llm}\nspec: " + text + "\n"
	}
	noPort := func(manifest string) string { return strings.Replace(manifest, ", --port=8000", "", 1) }
	undeclared := func(manifest string) string {
		return strings.Replace(noPort(manifest), "ports: [{containerPort: 8000}]", "", 1)
	}
	for _, c := range []struct {
		name, manifest, path string
		pods                 []map[string]string
		want                 []string
		port                 int
		service              string
	}{
		{"behind a Service", service("{selector: {app: llm}, ports: [{port: 80, targetPort: 8000}]}"), "spec.template", []map[string]string{{"name": "a"}, {"name": "b"}}, []string{"a", "b"}, 8000, name + ".bench.svc:80"},
		{"the argument's port goes first", service("{selector: {app: llm}, ports: [{port: 80, targetPort: 9}]}"), "spec.template", []map[string]string{{"name": "a"}}, []string{"a"}, 8000, name + ".bench.svc:80"},
		{"of several ports that of the engine", service("{selector: {app: llm}, ports: [{name: metrics, port: 9, targetPort: 9}, {name: x, port: 81, targetPort: 8000}]}"), "spec.template", []map[string]string{{"name": "a"}}, []string{"a"}, 8000, name + ".bench.svc:81"},
		{"a container's port", noPort(service("{selector: {app: llm}, ports: [{port: 80, targetPort: 9}]}")), "spec.template", []map[string]string{{"name": "a"}}, []string{"a"}, 8000, name + ".bench.svc:80"},
		{"a Service's port", undeclared(service("{selector: {app: llm}, ports: [{port: 80, targetPort: 7777}]}")), "spec.template", []map[string]string{{"name": "a"}}, []string{"a"}, 7777, name + ".bench.svc:80"},
		{"the engine's own port", undeclared(deployment), "spec.template", []map[string]string{{"name": "a"}}, []string{"a"}, 8000, ""},
		{"pods behind a headless Service, whose port is not theirs", service("{clusterIP: None, selector: {app: llm}, ports: [{port: 80, targetPort: 8000}]}"), "spec.template", []map[string]string{{"name": "a"}, {"name": "b"}}, []string{"a", "b"}, 8000, ""},
		{"a StatefulSet's headless Service", templates["StatefulSet"], "spec.template", []map[string]string{{"name": "0"}, {"name": "1"}}, []string{"0", "1"}, 8000, ""},
		{"a Service with an address before a headless one", templates["StatefulSet"] + "---\napiVersion: v1\nkind: Service\nmetadata: {name: front}\nspec: {selector: {app: llm}, ports: [{port: 80, targetPort: 8000}]}\n", "spec.template", []map[string]string{{"name": "0"}, {"name": "1"}}, []string{"0", "1"}, 8000, name + "-front.bench.svc:80"},
		{"a Pod", templates["Pod"], "", []map[string]string{{"name": "a"}}, []string{"a"}, 8000, ""},
		{"a role that passes requests on", group, "spec.roles[0].standalonePattern.template", []map[string]string{
			{"name": "my-router-0", role: "my-router"}, {"name": "prefill-0-0", role: "prefill", rank: "0"}}, []string{"my-router-0"}, 9000, ""},
		{"the leader of the first role", group, "spec.roles[1].leaderWorkerPattern.template", []map[string]string{
			{"name": "prefill-0-1", role: "prefill", rank: "1"}, {"name": "prefill-0-0", role: "prefill", rank: "0"}, {"name": "decode-0", role: "decode"}}, []string{"prefill-0-0"}, 8100, ""},
		{"leaders behind a Service", templates["LeaderWorkerSet"], "spec.leaderWorkerTemplate.leaderTemplate", []map[string]string{
			{"name": "0", "leaderworkerset.sigs.k8s.io/name": name, "leaderworkerset.sigs.k8s.io/worker-index": "0"},
			{"name": "0-1", "leaderworkerset.sigs.k8s.io/name": name, "leaderworkerset.sigs.k8s.io/worker-index": "1"}}, []string{"0"}, 8000, name + ".bench.svc:8000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			built := build(t, newDeployer(t), c.manifest)
			e, err := built.serving(podsOf(t, built, c.path, c.pods...), "bench")
			require.NoError(t, err)
			var got []string
			for _, p := range e.pods {
				got = append(got, strings.TrimPrefix(p.Name, name+"-"))
			}
			assert.Equal(t, c.want, got)
			assert.Equal(t, c.port, e.port)
			assert.Equal(t, c.service, e.service)
		})
	}
	_, err := build(t, newDeployer(t), group).serving(nil, "bench")
	assert.EqualError(t, err, `no pod of the trial runs the engine's container "e"`)
}

func TestAGivenEndpointIsUsedAsItIs(t *testing.T) {
	w := newWorld(t)
	first := w.deploy(w.plan(simulated()))
	target, err := first.Ready(t.Context())
	require.NoError(t, err)
	w.Execution.Endpoint = target.BaseURL + "/"
	plan := w.plan(templates["Pod"])
	plan.Name = "other-0"
	second := w.deploy(plan)
	got, err := second.Ready(t.Context())
	require.NoError(t, err)
	assert.Equal(t, target.BaseURL, got.BaseURL)
	assert.Equal(t, second.tunnel.url(), got.Direct, "for comparison")
	text, err := get(got.Direct + "/v1/models")
	require.NoError(t, err)
	assert.Contains(t, text, `"object"`)
}

func TestInTheClusterPodsAreReachedDirectly(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "engine") }))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	d := newDeployer(t)
	d.InCluster = true
	manifest := strings.ReplaceAll(simulated(), "8000", port) // whose Service has no address in DNS
	built := build(t, d, manifest)
	pods := podsOf(t, built, "spec.template", map[string]string{"name": "a"})
	pods[0].Status.PodIP = "127.0.0.1"
	in := &instance{deployer: d, trial: built}
	url, tunnel, forwarded, err := in.reach(t.Context(), pods)
	require.NoError(t, err)
	defer tunnel.close()
	assert.False(t, forwarded)
	text, err := get(url)
	require.NoError(t, err)
	assert.Equal(t, "engine", text)
}
