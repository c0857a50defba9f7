// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/deploy/kube"
	"github.com/llmctl/llmctl/state"
)

// BenchmarkTurnaround reports the time from the end of one trial's load to the
// start of the next trial: verdict, checkpoint, the engine's own exit, its port.
func BenchmarkTurnaround(b *testing.B) {
	path := file(b)
	var gap, startup time.Duration
	gaps := 0
	for b.Loop() {
		h := newHome(b)
		h.must("autobench", "run", "-f", path, "--name", "demo")
		trials := h.result("demo").Templates[0].Trials
		for i := range trials[1:] {
			end := trials[i].Started.Add(time.Duration(trials[i].Seconds * float64(time.Second)))
			gap += trials[i+1].Started.Sub(end)
			startup += time.Duration(trials[i].Phases[1].Seconds * float64(time.Second))
			gaps++
		}
	}
	b.ReportMetric(float64(gap.Microseconds())/1e3/float64(gaps), "ms/turnaround")
	b.ReportMetric(float64(startup.Microseconds())/1e3/float64(gaps), "ms/start-to-serving")
}

// BenchmarkStatus1000 lists a thousand experiments with the built binary.
func BenchmarkStatus1000(b *testing.B) {
	h := newHome(b)
	best := &experiment.Best{Template: "small", Index: 3, Metric: "outputThroughput", Score: 1000}
	for i := range 1000 {
		d, err := state.Root(h.dir).Create(fmt.Sprintf("experiment-%04d", i))
		require.NoError(b, err)
		require.NoError(b, d.WriteExperiment([]byte("name: x\n"), nil))
		require.NoError(b, d.WriteReport(experiment.Summary{
			Status: experiment.Completed, Started: time.Now(), Templates: []experiment.TemplateSummary{{Name: "small", Trials: 20}}, Best: best,
		}))
		require.NoError(b, d.Unlock())
	}
	for b.Loop() {
		require.Equal(b, 1001, bytes.Count([]byte(h.must("autobench", "status").stdout), []byte("\n")))
	}
}

// BenchmarkDemo runs what make demo runs, after the build.
func BenchmarkDemo(b *testing.B) {
	for b.Loop() {
		h := newHome(b)
		path, err := filepath.Abs("../../examples/quickstart/experiment.yaml")
		require.NoError(b, err)
		h.must("autobench", "run", "-f", path, "--name", "demo")
	}
}

// BenchmarkCluster runs trials beside 200 pods of others in the namespace, and
// reports the memory that llmctl takes and what it asks the API server for.
func BenchmarkCluster(b *testing.B) {
	const others = 200
	for b.Loop() {
		plane := cluster.Get(b)
		namespace := plane.Namespace(b)
		for i := range others {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("other-%d", i), Labels: map[string]string{"app": "other"}},
				Spec:       corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "main", Image: "example/other:1"}}},
			}
			_, err := plane.Core.Pods(namespace).Create(b.Context(), pod, metav1.CreateOptions{})
			require.NoError(b, err)
		}
		h := newHome(b)
		h.onCluster = true
		c := h.command(b.Context(), "autobench", "run", "-f", clusterFile(b, "deployment"), "--name", "demo",
			"--kubeconfig", plane.KubeconfigFor(b, namespace, kube.Rules()), "--namespace", namespace)
		out, err := c.CombinedOutput()
		require.NoError(b, err, "%s", out)
		trials := 0
		for _, t := range h.result("demo").Templates {
			trials += len(t.Trials)
		}
		b.ReportMetric(float64(c.ProcessState.SysUsage().(*syscall.Rusage).Maxrss)/1024, "MB-peak")
		b.ReportMetric(float64(len(plane.Requests(b, namespace)))/float64(trials), "API-requests/trial")
	}
}
