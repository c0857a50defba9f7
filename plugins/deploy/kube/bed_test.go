// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/engine"
	"github.com/llmctl/llmctl/test/bed"
)

var shared = bed.Lazy{Config: bed.Config{Log: os.Stderr}}

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

// world is a deployer in a namespace of its own.
type world struct {
	*Deployer
	bed *bed.Bed
	t   testing.TB

	mu       sync.Mutex
	warnings []string
}

// newDeployer is valid for tests that need no cluster.
func newDeployer(t testing.TB) *Deployer {
	t.Helper()
	e, err := engine.Load("simulator")
	require.NoError(t, err)
	return &Deployer{
		Namespace: "bench", Engine: e, Experiment: "chat", ID: "id-1",
		Execution: experiment.Execution{SchedulingTimeout: 5 * time.Minute, ImagePullTimeout: 2 * time.Minute, MaxRestarts: 2},
		Warn:      func(text string) { t.Log("warning:", text) },
	}
}

// newWorld has the rights of Rules and no others.
func newWorld(t *testing.T) *world { return limitedWorld(t, Rules()) }

func limitedWorld(t *testing.T, rules []rbacv1.PolicyRule) *world {
	t.Helper()
	b := shared.Get(t)
	namespace := b.Namespace(t)
	config, err := clientcmd.BuildConfigFromFlags("", b.KubeconfigFor(t, namespace, rules))
	require.NoError(t, err)
	return worldOf(t, b, config, namespace)
}

func worldOf(t testing.TB, b *bed.Bed, config *rest.Config, namespace string) *world {
	t.Helper()
	w := &world{bed: b, t: t}
	kinds, err := discovery.NewDiscoveryClientForConfig(b.REST)
	require.NoError(t, err)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds))
	w.Deployer, err = New(config, mapper, namespace)
	require.NoError(t, err)
	base := newDeployer(t)
	w.Engine, w.Experiment, w.ID, w.Execution = base.Engine, base.Experiment, "id-"+namespace, base.Execution
	w.Warn = func(text string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.warnings = append(w.warnings, text)
	}
	return w
}

// plan is trial 0 of a template.
func (w *world) plan(manifest string) experiment.Plan {
	return experiment.Plan{
		Template: "small", Name: experiment.WorkloadName(w.Experiment, "small", 0),
		Manifest: []byte(manifest), Logs: w.t.TempDir(),
	}
}

// deploy starts a trial that is gone by the end of the test.
func (w *world) deploy(plan experiment.Plan) *instance {
	w.t.Helper()
	in, err := w.Deploy(w.t.Context(), plan)
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		assert.NoError(w.t, in.Delete(ctx))
	})
	return in.(*instance)
}

// failure waits for a workload that never serves.
func (w *world) failure(in *instance) experiment.Cause {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	_, err := in.Ready(ctx)
	var failed *experiment.Failure
	require.ErrorAs(w.t, err, &failed)
	return failed.Cause
}

// simulated is a Deployment with a Service; annotations are those of its pods.
func simulated(annotations ...string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  replicas: 1
  selector: {matchLabels: {app: llm}}
  template:
    metadata: {labels: {app: llm}, annotations: {%s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: engine
        image: registry.example/engine:1
        command: [llmctl, simulate, --model=m, --startup-time=100ms, --host=0.0.0.0, --port=8000]
        ports: [{containerPort: 8000}]
---
apiVersion: v1
kind: Service
metadata: {name: llm}
spec: {selector: {app: llm}, ports: [{port: 80, targetPort: 8000}]}
`, strings.Join(annotations, ", "))
}
