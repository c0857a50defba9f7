// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

var shared = Lazy{Config: Config{Log: os.Stderr}}

// heldVariable makes the test binary start a bed and hold it until it is killed.
const heldVariable = "BED_TEST_HOLD"

func TestMain(m *testing.M) {
	if os.Getenv(heldVariable) != "" {
		b, err := Start(context.Background(), Config{Log: os.Stderr, Llmctl: os.Getenv(heldVariable)})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(b.dir)
		select {}
	}
	os.Exit(shared.Main(m))
}

// simPod is a pod with one simulated engine, and annotations for its fault.
func simPod(name string, annotations ...string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, annotations: {%s}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: engine
    image: registry.example/engine:1
    command: [llmctl, simulate, --model=m, --startup-time=0s, --port=8000]
`, name, strings.Join(annotations, ", "))
}

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: engine
        image: registry.example/engine:1
        command: [sh, -c, "echo starting $POD_NAME; exec llmctl simulate --model $MODEL --startup-time 300ms --host 0.0.0.0 --port 8123"]
        env:
        - {name: MODEL, value: m}
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        ports: [{containerPort: 8123}]
        resources: {limits: {nvidia.com/gpu: "2"}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8123}]}
`

// onlyPod waits for the one pod of a namespace.
func onlyPod(t *testing.T, b *Bed, namespace string) string {
	t.Helper()
	var name string
	require.Eventually(t, func() bool {
		list, err := b.Core.Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) == 1 {
			name = list.Items[0].Name
		}
		return name != ""
	}, cleanLimit, pollEvery)
	return name
}

func logs(t *testing.T, b *Bed, namespace, pod string, options corev1.PodLogOptions) string {
	t.Helper()
	data, err := b.Core.Pods(namespace).GetLogs(pod, &options).DoRaw(t.Context())
	require.NoError(t, err, string(data))
	return string(data)
}

// forward opens a port-forward to a pod, by SPDY or by WebSocket, and returns its
// local base URL.
func forward(t *testing.T, b *Bed, namespace, pod string, port int, webSocket bool) string {
	t.Helper()
	url := b.Core.RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("portforward").URL()
	dialer, err := portforward.NewSPDYOverWebsocketDialer(url, b.REST)
	require.NoError(t, err)
	if !webSocket {
		rt, upgrader, err := spdy.RoundTripperFor(b.REST)
		require.NoError(t, err)
		dialer = spdy.NewDialer(upgrader, &http.Client{Transport: rt}, http.MethodPost, url)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	f, err := portforward.New(dialer, []string{fmt.Sprintf("0:%d", port)}, stop, ready, io.Discard, io.Discard)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- f.ForwardPorts() }()
	t.Cleanup(func() {
		close(stop)
		assert.NoError(t, <-done)
	})
	select {
	case <-ready:
	case err := <-done:
		require.NoError(t, err)
	}
	ports, err := f.GetPorts()
	require.NoError(t, err)
	return "http://" + net.JoinHostPort(loopback, fmt.Sprint(ports[0].Local))
}

// complete asks an engine for one token.
func complete(t *testing.T, base string) {
	t.Helper()
	res, err := http.Post(base+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"a","max_tokens":1}`))
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	assert.Equal(t, http.StatusOK, res.StatusCode, string(body))
	assert.Contains(t, string(body), `"text_completion"`)
}

func TestADeploymentServesAndIsGoneAfterDelete(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	namespace := b.Namespace(t)
	b.Apply(t, namespace, deployment)
	name := onlyPod(t, b, namespace)
	pod := b.Pod(t, namespace, name, podReady)
	assert.Equal(t, corev1.PodRunning, pod.Status.Phase)
	assert.Zero(t, pod.Status.ContainerStatuses[0].RestartCount)
	assert.True(t, strings.HasPrefix(pod.Spec.NodeName, "bed-"))

	for _, webSocket := range []bool{false, true} {
		complete(t, forward(t, b, namespace, name, 8123, webSocket))
	}
	text := logs(t, b, namespace, name, corev1.PodLogOptions{})
	assert.Contains(t, text, "starting "+name+"\n")
	assert.Contains(t, text, "Starting vLLM server on http://0.0.0.0:8123\n", "the log tells of the pod's own port")
	assert.Contains(t, b.Kubectl(t, "", "-n", namespace, "logs", "deploy/web", "--tail=1"), "startup complete", "kubectl reads them too")

	port := enginePort(t, b, namespace, name)
	require.NoError(t, b.Dynamic.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}).Namespace(namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := b.Core.Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, cleanLimit, pollEvery)
	_, err := net.Dial("tcp", address(port))
	require.Error(t, err, "the engine has gone before its pod")
}

// enginePort is the port that a pod's engine really listens on.
func enginePort(t *testing.T, b *Bed, namespace, pod string) int {
	t.Helper()
	object, err := b.Dynamic.Resource(kwokForwards).Namespace(namespace).Get(t.Context(), pod, metav1.GetOptions{})
	require.NoError(t, err)
	return int(number(field(items(field(object.Object, "spec"), "forwards")[0], "target"), "port", 0))
}

func TestLogsStream(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	namespace := b.Namespace(t)
	b.Apply(t, namespace, `apiVersion: v1
kind: Pod
metadata: {name: talk}
spec:
  containers:
  - {name: main, image: x, command: [sh, -c, "for i in 1 2 3; do echo line $i; sleep 0.3; done; echo to stderr >&2; sleep 1000"]}
`)
	b.Pod(t, namespace, "talk", podReady)
	stream, err := b.Core.Pods(namespace).GetLogs("talk", &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	require.NoError(t, err)
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	for _, want := range []string{"line 1", "line 2", "line 3", "to stderr"} {
		require.True(t, lines.Scan(), lines.Err())
		assert.Equal(t, want, lines.Text())
	}
	first, _, _ := strings.Cut(logs(t, b, namespace, "talk", corev1.PodLogOptions{Timestamps: true}), " ")
	_, err = time.Parse(time.RFC3339Nano, first)
	assert.NoError(t, err)
}

// only is the status of a pod's only container.
func only(pod *corev1.Pod) corev1.ContainerStatus {
	if len(pod.Status.ContainerStatuses) == 0 {
		return corev1.ContainerStatus{}
	}
	return pod.Status.ContainerStatuses[0]
}

func waits(reason string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		w := only(p).State.Waiting
		return w != nil && w.Reason == reason
	}
}

// reasons are those of a pod's events, with their types.
func reasons(t *testing.T, b *Bed, namespace, pod string) []string {
	t.Helper()
	list, err := b.Core.Events(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
	require.NoError(t, err)
	var found []string
	for _, e := range list.Items {
		found = append(found, e.Type+" "+e.Reason)
	}
	return found
}

func TestFaultsLookAsInARealCluster(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	after := func(d string) string { return FaultAfterAnnotation + `: "` + d + `"` }
	for fault, c := range map[string]struct {
		more   string
		until  func(*corev1.Pod) bool
		check  func(*testing.T, *corev1.Pod)
		events []string
	}{
		"crashloop": {
			more:  FaultExitCodeAnnotation + `: "3", ` + FaultLogAnnotation + `: "boom"`,
			until: func(p *corev1.Pod) bool { return waits("CrashLoopBackOff")(p) && only(p).RestartCount >= 2 },
			check: func(t *testing.T, p *corev1.Pod) {
				assert.Equal(t, int32(3), only(p).LastTerminationState.Terminated.ExitCode)
				assert.Equal(t, "Error", only(p).LastTerminationState.Terminated.Reason)
				assert.Equal(t, corev1.PodRunning, p.Status.Phase)
				assert.Equal(t, "boom\n", logs(t, b, p.Namespace, p.Name, corev1.PodLogOptions{Previous: true}))
			},
			events: []string{"Normal Started", "Warning BackOff"},
		},
		"oom": {
			until: waits("CrashLoopBackOff"),
			check: func(t *testing.T, p *corev1.Pod) {
				assert.Equal(t, int32(137), only(p).LastTerminationState.Terminated.ExitCode)
				assert.Equal(t, "OOMKilled", only(p).LastTerminationState.Terminated.Reason)
			},
			events: []string{"Warning BackOff"},
		},
		"image-pull": {
			until: waits("ImagePullBackOff"),
			check: func(t *testing.T, p *corev1.Pod) {
				assert.Equal(t, corev1.PodPending, p.Status.Phase)
				b.Pod(t, p.Namespace, p.Name, waits("ErrImagePull"))
				b.Pod(t, p.Namespace, p.Name, waits("ImagePullBackOff"))
			},
			events: []string{"Normal Pulling", "Warning Failed", "Normal BackOff"},
		},
		"invalid-image": {until: waits("InvalidImageName"), events: []string{"Warning InspectFailed", "Warning Failed"}},
		"config-error":  {until: waits("CreateContainerConfigError"), events: []string{"Warning Failed"}},
		"slow-pull": {
			more: after("1s"), until: waits("ContainerCreating"),
			check: func(t *testing.T, p *corev1.Pod) { b.Pod(t, p.Namespace, p.Name, podReady) },
		},
		"slow-ready": {
			more:  after("1s"),
			until: func(p *corev1.Pod) bool { return only(p).State.Running != nil && !only(p).Ready },
			check: func(t *testing.T, p *corev1.Pod) { b.Pod(t, p.Namespace, p.Name, podReady) },
		},
		"never-ready": {
			until: func(p *corev1.Pod) bool { return only(p).State.Running != nil },
			check: func(t *testing.T, p *corev1.Pod) {
				require.Eventually(t, func() bool {
					return contains(reasons(t, b, p.Namespace, p.Name), "Warning Unhealthy")
				}, cleanLimit, pollEvery)
				pod, err := b.Core.Pods(p.Namespace).Get(t.Context(), p.Name, metav1.GetOptions{})
				require.NoError(t, err)
				assert.False(t, podReady(pod))
			},
		},
		"evicted": {
			until: func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed },
			check: func(t *testing.T, p *corev1.Pod) {
				assert.Equal(t, "Evicted", p.Status.Reason)
				assert.Contains(t, p.Status.Message, "low on resource")
			},
			events: []string{"Warning Evicted"},
		},
		"liveness-killed": {
			more:   after("200ms"),
			until:  func(p *corev1.Pod) bool { return only(p).RestartCount >= 1 },
			events: []string{"Warning Unhealthy", "Normal Killing"},
		},
		"restart": {
			more:  after("200ms"),
			until: func(p *corev1.Pod) bool { return only(p).RestartCount == 1 && podReady(p) },
			check: func(t *testing.T, p *corev1.Pod) {
				assert.Equal(t, int32(137), only(p).LastTerminationState.Terminated.ExitCode)
				assert.Equal(t, "Error", only(p).LastTerminationState.Terminated.Reason)
				assert.Contains(t, logs(t, b, p.Namespace, p.Name, corev1.PodLogOptions{Previous: true}), "startup complete")
			},
		},
		"stuck": {
			more: after("1s"), until: podReady,
			check: func(t *testing.T, p *corev1.Pod) {
				require.NoError(t, b.Core.Pods(p.Namespace).Delete(t.Context(), p.Name, metav1.DeleteOptions{}))
				b.Pod(t, p.Namespace, p.Name, func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
				require.Eventually(t, func() bool {
					_, err := b.Core.Pods(p.Namespace).Get(t.Context(), p.Name, metav1.GetOptions{})
					return apierrors.IsNotFound(err)
				}, cleanLimit, pollEvery)
			},
		},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			namespace := b.Namespace(t)
			annotations := []string{FaultAnnotation + ": " + fault}
			if c.more != "" {
				annotations = append(annotations, c.more)
			}
			b.Apply(t, namespace, simPod("sim", annotations...))
			pod := b.Pod(t, namespace, "sim", c.until)
			if c.check != nil {
				c.check(t, pod)
			}
			for _, event := range c.events {
				assert.Contains(t, reasons(t, b, namespace, "sim"), event)
			}
		})
	}
}

func contains(list []string, wanted string) bool {
	for _, s := range list {
		if s == wanted {
			return true
		}
	}
	return false
}

func TestOnlySoManyPodsOfANamespaceFail(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	namespace := b.Namespace(t)
	once := []string{FaultAnnotation + ": image-pull", FaultPodsAnnotation + `: "1"`}
	b.Apply(t, namespace, simPod("first", once...))
	b.Pod(t, namespace, "first", waits("ImagePullBackOff"))
	b.Apply(t, namespace, simPod("second", once...))
	b.Pod(t, namespace, "second", podReady)
}

func TestTooManyGPUsAreUnschedulable(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	namespace := b.Namespace(t)
	b.Apply(t, namespace, simPod("big")+`    resources: {limits: {nvidia.com/gpu: "9"}}`)
	b.Pod(t, namespace, "big", func(p *corev1.Pod) bool {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return strings.Contains(c.Message, "Insufficient nvidia.com/gpu")
			}
		}
		return false
	})
}

func TestAnEngineBoundToLoopbackIsNeverReady(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	namespace := b.Namespace(t)
	b.Apply(t, namespace, strings.Replace(simPod("sim"), "--port=8000", "--host=127.0.0.1", 1)+"    readinessProbe: {httpGet: {path: /health, port: 8000}}")
	require.Eventually(t, func() bool { return contains(reasons(t, b, namespace, "sim"), "Warning Unhealthy") }, cleanLimit, pollEvery)
	pod := b.Pod(t, namespace, "sim", func(p *corev1.Pod) bool { return only(p).State.Running != nil })
	assert.False(t, podReady(pod))
}

func TestAContainerWaitsForTheObjectsItRefersTo(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	namespace := b.Namespace(t)
	b.Apply(t, namespace, `apiVersion: v1
kind: Pod
metadata: {name: refers}
spec:
  initContainers:
  - {name: proxy, image: x, restartPolicy: Always}
  - {name: prepare, image: x, command: [sh, -c, "echo prepared"]}
  containers:
  - name: main
    image: x
    command: [sh, -c, "echo $0 $KEY; sleep 1000", "$(NAME)"]
    env:
    - {name: NAME, valueFrom: {configMapKeyRef: {name: settings, key: name}}}
    envFrom: [{secretRef: {name: keys}}]
`)
	waiting := b.Pod(t, namespace, "refers", waits("CreateContainerConfigError"))
	assert.Equal(t, `secret "keys" not found`, only(waiting).State.Waiting.Message)
	b.Apply(t, namespace, `{apiVersion: v1, kind: Secret, metadata: {name: keys}, stringData: {KEY: k}}`)
	b.Apply(t, namespace, `{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {name: value}}`)
	pod := b.Pod(t, namespace, "refers", podReady)
	assert.Zero(t, pod.Status.InitContainerStatuses[1].State.Terminated.ExitCode)
	require.Eventually(t, func() bool {
		return logs(t, b, namespace, "refers", corev1.PodLogOptions{Container: "main"}) == "value k\n"
	}, cleanLimit, pollEvery)
	assert.Equal(t, "prepared\n", logs(t, b, namespace, "refers", corev1.PodLogOptions{Container: "prepare"}))
}

func TestTheSimulatedEngineStandsForVLLM(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	namespace := b.Namespace(t)
	b.Apply(t, namespace, `{apiVersion: v1, kind: Pod, metadata: {name: vllm}, spec: {containers: [
		{name: router, image: x}, {name: engine, image: x, command: [vllm, serve, m], args: [--max-num-seqs, "64"]}]}}`)
	b.Pod(t, namespace, "vllm", podReady)
	complete(t, forward(t, b, namespace, "vllm", 8000, false))
}

func TestAPodWithoutRestartsEndsWithItsContainers(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	namespace := b.Namespace(t)
	for name, phase := range map[string]corev1.PodPhase{"true": corev1.PodSucceeded, "false": corev1.PodFailed} {
		b.Apply(t, namespace, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %q}, spec: {restartPolicy: Never, containers: [{name: c, image: x, command: [sh, -c, %q]}]}}`, name, name))
		b.Pod(t, namespace, name, func(p *corev1.Pod) bool { return p.Status.Phase == phase })
	}
}

const simulatedPod = `{containers: [{name: engine, image: x, command: [llmctl, simulate, --model=m, --startup-time=0s]}]}`

func TestGroupsHaveThePodsAndTheStatusOfTheirControllers(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	for name, c := range map[string]struct {
		manifest string
		kind     schema.GroupVersionResource
		pods     []string
		labels   map[string]string // of the last pod
		ready    string            // condition
	}{
		"v1alpha2, standalone": {
			`{apiVersion: workloads.x-k8s.io/v1alpha2, kind: RoleBasedGroup, metadata: {name: demo}, spec: {roles: [
				{name: server, replicas: 2, standalonePattern: {template: {metadata: {labels: {mine: kept}}, spec: ` + simulatedPod + `}}}]}}`,
			roleGroups, []string{"demo-server-0", "demo-server-1"},
			map[string]string{"mine": "kept", rbgPrefix + "group-name": "demo", rbgPrefix + "role-name": "server", rbgPrefix + "role-instance-name": "demo-server-1", rbgPrefix + "role-instance-index": "1", rbgPrefix + "component-name": "server", rbgPrefix + "component-id": "0", rbgPrefix + "component-size": "1"},
			"Ready",
		},
		"v1alpha2, leader and worker": {
			`{apiVersion: workloads.x-k8s.io/v1alpha2, kind: RoleBasedGroup, metadata: {name: demo}, spec: {
				roleTemplates: [{name: base, template: {spec: ` + simulatedPod + `}}],
				roles: [{name: server, leaderWorkerPattern: {size: 2, templateRef: {name: base},
					workerTemplatePatch: {spec: {containers: [{name: engine, command: [sh, -c, sleep 1000]}]}}}}]}}`,
			roleGroups, []string{"demo-server-0-0", "demo-server-0-1"},
			map[string]string{rbgPrefix + "group-name": "demo", rbgPrefix + "role-name": "server", rbgPrefix + "role-instance-name": "demo-server-0", rbgPrefix + "role-instance-index": "0", rbgPrefix + "component-name": "worker", rbgPrefix + "component-id": "1", rbgPrefix + "component-size": "2", rbgPrefix + "component-index": "1"},
			"Ready",
		},
		"v1alpha1": {
			`{apiVersion: workloads.x-k8s.io/v1alpha1, kind: RoleBasedGroup, metadata: {name: demo}, spec: {roles: [
				{name: router, template: {spec: {containers: [{name: router, image: x}]}}}, {name: server, template: {spec: ` + simulatedPod + `}}]}}`,
			roleGroups, []string{"demo-router-0", "demo-server-0"},
			map[string]string{rbgV1Prefix + "name": "demo", rbgV1Prefix + "role": "server", "component." + rbgV1Prefix + "index": "0", "component." + rbgV1Prefix + "size": "1"},
			"Ready",
		},
		"leader worker set": {
			`{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, metadata: {name: demo}, spec: {replicas: 2, leaderWorkerTemplate: {size: 2,
				leaderTemplate: {spec: ` + simulatedPod + `}, workerTemplate: {spec: {containers: [{name: worker, image: x, command: [sh, -c, sleep 1000]}]}}}}}`,
			leaderWorkers, []string{"demo-0", "demo-0-1", "demo-1", "demo-1-1"},
			map[string]string{lwsPrefix + "name": "demo", lwsPrefix + "group-index": "1", lwsPrefix + "worker-index": "1", lwsPrefix + "group-key": "demo-1"},
			"Available",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := b.Namespace(t)
			b.Apply(t, namespace, c.manifest)
			require.Eventually(t, func() bool {
				owner, err := b.Dynamic.Resource(c.kind).Namespace(namespace).Get(t.Context(), "demo", metav1.GetOptions{})
				require.NoError(t, err)
				status := field(owner.Object, "status")
				for _, condition := range items(status, "conditions") {
					if text(condition, "type") == c.ready && text(condition, "status") == "True" {
						return number(status, "observedGeneration", 0) == owner.GetGeneration()
					}
				}
				return false
			}, cleanLimit, pollEvery)
			list, err := b.Core.Pods(namespace).List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			var names []string
			for _, pod := range list.Items {
				names = append(names, pod.Name)
				assert.True(t, podReady(&pod))
			}
			assert.ElementsMatch(t, c.pods, names)
			assert.Equal(t, c.labels, list.Items[len(list.Items)-1].Labels)

			require.NoError(t, b.Dynamic.Resource(c.kind).Namespace(namespace).Delete(t.Context(), "demo", metav1.DeleteOptions{}))
			require.Eventually(t, func() bool {
				list, err := b.Core.Pods(namespace).List(t.Context(), metav1.ListOptions{})
				return err == nil && len(list.Items) == 0
			}, cleanLimit, pollEvery, "the garbage collector removes the pods of a group")
		})
	}
}

func TestALeaderWorkerSetStartsABrokenGroupAnew(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	namespace := b.Namespace(t)
	b.Apply(t, namespace, `{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, metadata: {name: demo}, spec: {leaderWorkerTemplate: {size: 2,
		leaderTemplate: {metadata: {annotations: {bed.llmctl.io/fault: restart, bed.llmctl.io/fault-after: 100ms, bed.llmctl.io/fault-pods: "1"}}, spec: `+simulatedPod+`},
		workerTemplate: {spec: {containers: [{name: worker, image: x}]}}}}}`)
	worker := b.Pod(t, namespace, "demo-0-1", podReady)
	again := b.Pod(t, namespace, "demo-0-1", func(p *corev1.Pod) bool { return p.UID != worker.UID && podReady(p) })
	assert.Zero(t, only(again).RestartCount)
	b.Pod(t, namespace, "demo-0", podReady)
}

func TestQuotaRefusesPodsAndTheOwnerTells(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	namespace := b.Namespace(t)
	b.Quota(t, namespace, map[string]string{"pods": "0"})
	b.Apply(t, namespace, `{apiVersion: workloads.x-k8s.io/v1alpha2, kind: RoleBasedGroup, metadata: {name: demo}, spec: {roles: [{name: server, standalonePattern: {template: {spec: `+simulatedPod+`}}}]}}`)
	b.Apply(t, namespace, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: `+simulatedPod+`}}}`)
	require.Eventually(t, func() bool {
		list, err := b.Core.Events(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=FailedCreate"})
		require.NoError(t, err)
		kinds := map[string]bool{}
		for _, e := range list.Items {
			if strings.Contains(e.Message, "exceeded quota: quota") {
				kinds[e.InvolvedObject.Kind] = true
			}
		}
		return kinds["ReplicaSet"] && kinds["RoleBasedGroup"]
	}, cleanLimit, pollEvery)
}

func TestKubeconfigsGiveNoMoreThanTheirRights(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	namespace := b.Namespace(t)
	list := func(path, namespace string) error {
		config, err := clientcmd.BuildConfigFromFlags("", path)
		require.NoError(t, err)
		core, err := corev1client.NewForConfig(config)
		require.NoError(t, err)
		_, err = core.Pods(namespace).List(t.Context(), metav1.ListOptions{})
		return err
	}
	limited := b.KubeconfigFor(t, namespace, []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}})
	assert.NoError(t, list(limited, namespace))
	assert.True(t, apierrors.IsForbidden(list(limited, "default")))
	assert.True(t, apierrors.IsUnauthorized(list(b.ExpiredKubeconfig(t, namespace), namespace)))
	assert.NoError(t, list(b.Kubeconfig, namespace))
	var asked []Request
	for _, r := range b.Requests(t, namespace) {
		if r.Resource == "pods" {
			asked = append(asked, r)
		}
	}
	assert.Equal(t, []Request{
		{"list", "pods", "", "/api/v1/namespaces/" + namespace + "/pods", 200},
		{"list", "pods", "", "/api/v1/namespaces/default/pods", 403},
	}, asked)
	raw, err := clientcmd.LoadFromFile(limited)
	require.NoError(t, err)
	assert.Equal(t, "bed", raw.CurrentContext)
	assert.Equal(t, namespace, raw.Contexts["bed"].Namespace)
}

func TestLeftoversAreWhatLlmctlHasLabelled(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	namespace := b.Namespace(t)
	b.Apply(t, namespace, `{apiVersion: v1, kind: ConfigMap, metadata: {name: ours, labels: {autobench.llmctl.io/experiment: e}}}`)
	b.Apply(t, namespace, `{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs, labels: {app: x}}}`)
	left, err := b.Leftovers(t.Context(), namespace)
	require.NoError(t, err)
	assert.Equal(t, []string{"ConfigMap/ours"}, left)
	require.NoError(t, b.Core.ConfigMaps(namespace).Delete(t.Context(), "ours", metav1.DeleteOptions{}))
}

// Not parallel: everybody else would notice.
func TestTheAPIServerComesBackWithItsData(t *testing.T) {
	b := shared.Get(t)
	namespace := b.Namespace(t)
	b.Apply(t, namespace, simPod("sim"))
	pod := b.Pod(t, namespace, "sim", podReady)
	b.StopAPIServer()
	_, err := b.Core.Pods(namespace).Get(t.Context(), "sim", metav1.GetOptions{})
	require.Error(t, err)
	assert.ErrorContains(t, err, "connection refused")
	require.NoError(t, b.StartAPIServer(t.Context()))
	again := b.Pod(t, namespace, "sim", podReady)
	assert.Equal(t, pod.UID, again.UID)
	b.Apply(t, namespace, simPod("next"))
	b.Pod(t, namespace, "next", podReady)
}

// processes counts the processes of a bed by its directory.
func processes(t *testing.T, dir string) int {
	t.Helper()
	out, err := exec.Command("ps", "-eo", "args").Output()
	require.NoError(t, err)
	return bytes.Count(out, []byte(dir))
}

func TestABedEndsWithTheProcessThatStartedIt(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	self, err := os.Executable()
	require.NoError(t, err)
	holder := exec.Command(self)
	holder.Env = append(os.Environ(), heldVariable+"="+b.Llmctl)
	holder.Stderr = os.Stderr
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	dir, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	dir = strings.TrimSpace(dir)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	require.Positive(t, processes(t, dir))
	require.NoError(t, holder.Process.Kill())
	require.Error(t, holder.Wait())
	require.Eventually(t, func() bool { return processes(t, dir) == 0 }, cleanLimit, 5*pollEvery)
}

func TestABuildWithoutModulesSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	b := shared.Get(t)
	source := t.TempDir()
	for name, content := range map[string]string{
		"main.go": "package main\n\nimport _ \"example.com/absent\"\n\nfunc main() {}\n",
		"go.mod":  "module m\n\ngo 1.26.0\n\nrequire example.com/absent v1.0.0\n",
		"go.sum":  "example.com/absent v1.0.0 h1:1/WtZae0yGtPq+TI6+Tv1WTxkukpXeMlviSxvL7SRgk=\nexample.com/absent v1.0.0/go.mod h1:1/WtZae0yGtPq+TI6+Tv1WTxkukpXeMlviSxvL7SRgk=\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(source, name), []byte(content), 0o600))
	}
	var log bytes.Buffer
	build := builder{
		source: source, cache: t.TempDir(), guard: guard{b.Llmctl, t.TempDir()}, log: &log,
		env: []string{"GOPROXY=off", "GOMODCACHE=" + t.TempDir()},
	}
	_, err := build.find(t.Context())
	require.Error(t, err)
	assert.ErrorContains(t, err, "its Go modules must be in the module cache or within reach of GOPROXY")
	assert.ErrorContains(t, err, "example.com/absent")
	assert.Contains(t, log.String(), "building the test control plane (once; about ten minutes on two cores)")
}
