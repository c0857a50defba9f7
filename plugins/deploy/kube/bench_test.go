// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/llmctl/llmctl/experiment"
)

// benchWorld is a world for a benchmark.
func benchWorld(b *testing.B) *world {
	cluster := shared.Get(b)
	namespace := cluster.Namespace(b)
	config, err := clientcmd.BuildConfigFromFlags("", cluster.KubeconfigFor(b, namespace, Rules()))
	require.NoError(b, err)
	return worldOf(b, cluster, config, namespace)
}

// witness watches the pods of a namespace for itself and tells when one is as wanted.
func (w *world) witness(ctx context.Context, wanted func(watch.Event) bool) <-chan time.Time {
	seen := make(chan time.Time, 1)
	watching, err := w.bed.Core.Pods(w.Namespace).Watch(ctx, metav1.ListOptions{})
	require.NoError(w.t, err)
	go func() {
		defer watching.Stop()
		for event := range watching.ResultChan() {
			if wanted(event) {
				seen <- time.Now()
				return
			}
		}
	}()
	return seen
}

// From a pod's Ready to the engine's first answer to the probe's first token, and
// from the pods' end to the end of Delete.
func BenchmarkTrial(b *testing.B) {
	w := benchWorld(b)
	var answer, deletion time.Duration
	for b.Loop() {
		in := w.deploy(w.plan(simulated()))
		ready := w.witness(b.Context(), func(e watch.Event) bool { p, ok := e.Object.(*corev1.Pod); return ok && isReady(p) })
		_, err := in.Ready(b.Context())
		require.NoError(b, err)
		answer += in.phases.served.Sub(<-ready)
		gone := w.witness(b.Context(), func(e watch.Event) bool { return e.Type == watch.Deleted })
		require.NoError(b, in.Delete(b.Context()))
		deletion += time.Since(<-gone)
	}
	b.ReportMetric(float64(answer.Milliseconds())/float64(b.N), "ms-ready-to-first-token")
	b.ReportMetric(float64(deletion.Milliseconds())/float64(b.N), "ms-pods-gone-to-return")
}

// From the restart beyond maxRestarts to the failure.
func BenchmarkCrashLoop(b *testing.B) {
	w := benchWorld(b)
	var failure time.Duration
	for b.Loop() {
		w.Execution = experiment.Execution{SchedulingTimeout: time.Minute, ImagePullTimeout: time.Minute, MaxRestarts: 1}
		in := w.deploy(w.plan(simulated(fault("crashloop", "exit-code", "3")...)))
		beyond := w.witness(b.Context(), func(e watch.Event) bool {
			p, ok := e.Object.(*corev1.Pod)
			return ok && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount > 1
		})
		w.failure(in)
		failure += time.Since(<-beyond)
		require.NoError(b, in.Delete(b.Context()))
	}
	b.ReportMetric(float64(failure.Milliseconds())/float64(b.N), "ms-crashloop-to-failure")
}
