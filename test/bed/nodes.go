// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"context"
	_ "embed"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GPU is the resource that the bed's nodes have.
const GPU = "nvidia.com/gpu"

const (
	defaultNodes = 2
	defaultGPUs  = 8
)

// kwokConfig makes kwok keep nodes ready, and serve logs and port-forwards from
// objects of its own kinds. Pods are left to the bed. With a configuration file
// kwok takes missing values for zero, so that all are here.
const kwokConfig = `apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  manageNodesWithAnnotationSelector: bed.llmctl.io/node=fake
  nodeLeaseDurationSeconds: 40
  nodeLeaseParallelism: 1
  nodePlayStageParallelism: 1
  podPlayStageParallelism: 1
  podsOnNodeSyncParallelism: 1
  enablePodsOnNodeSyncStreamWatch: true
  enablePodsOnNodeSyncListPager: false
  nodeIP: 127.0.0.1
  nodePort: %[1]d
  serverAddress: 127.0.0.1:%[1]d
  cidr: 10.244.0.0/16
  enableCRDs: [Logs, PortForward]
  enableDebuggingHandlers: true
  enableProfilingHandler: false
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select( .type == "Ready" ) | .status', operator: NotIn, values: ["True"]}
  next:
    statusTemplate: |
      {{ $now := Now }}
      conditions:
      {{ range NodeConditions }}
      - {type: {{ .type | Quote }}, status: {{ .status | Quote }}, reason: {{ .reason | Quote }}, message: {{ .message | Quote }}, lastHeartbeatTime: {{ $now | Quote }}, lastTransitionTime: {{ $now | Quote }}}
      {{ end }}
      addresses:
      - {type: InternalIP, address: {{ NodeIP | Quote }}}
      - {type: Hostname, address: {{ NodeName | Quote }}}
      daemonEndpoints: {kubeletEndpoint: {Port: {{ NodePort }}}}
`

func (c *controlPlane) kwokURL() string { return "https://" + address(c.kwok) }

// startKwok runs kwok, which serves as the kubelet of all nodes.
func (c *controlPlane) startKwok(ctx context.Context) error {
	if err := os.WriteFile(c.path("kwok.yaml"), fmt.Appendf(nil, kwokConfig, c.kwok), 0o600); err != nil {
		return err
	}
	if err := c.start(kwok, "--kubeconfig="+c.path("kubeconfig"), "--config="+c.path("kwok.yaml")); err != nil {
		return err
	}
	return c.await(ctx, kwok, c.kwokURL()+"/healthz")
}

// startNodes returns the names of the nodes once they are ready.
func (b *Bed) startNodes(ctx context.Context, config Config) (map[string]bool, error) {
	if config.Nodes == 0 {
		config.Nodes = defaultNodes
	}
	if config.GPUs == 0 {
		config.GPUs = defaultGPUs
	}
	names := map[string]bool{}
	for i := range config.Nodes {
		n := node(fmt.Sprintf("bed-%d", i), config.GPUs)
		if _, err := b.Core.Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("create node: %w", err)
		}
		names[n.Name] = true
	}
	if err := b.plane.startKwok(ctx); err != nil {
		return nil, err
	}
	return names, poll(ctx, "wait for nodes", func(ctx context.Context) (bool, error) {
		list, err := b.Core.Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, n := range list.Items {
			if !ready(n) {
				return false, nil
			}
		}
		return true, nil
	})
}

func ready(n corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func node(name string, gpus int) *corev1.Node {
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("512Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("250"),
		GPU: *resource.NewQuantity(int64(gpus), resource.DecimalSI),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Annotations: map[string]string{"bed.llmctl.io/node": "fake"},
			Labels: map[string]string{
				corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
				"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": fmt.Sprint(gpus),
			},
		},
		Status: corev1.NodeStatus{Capacity: resources, Allocatable: resources},
	}
}
