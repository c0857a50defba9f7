// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/llmctl/llmctl/experiment"
)

// refusal deploys what the cluster does not accept.
func (w *world) refusal(plan experiment.Plan) experiment.Cause {
	w.t.Helper()
	in, err := w.Deploy(w.t.Context(), plan)
	require.Nil(w.t, in)
	var failed *experiment.Failure
	require.ErrorAs(w.t, err, &failed)
	return failed.Cause
}

// left are the labelled objects of the namespace.
func (w *world) left() []string {
	w.t.Helper()
	left, err := w.bed.Leftovers(w.t.Context(), w.Namespace)
	require.NoError(w.t, err)
	return left
}

func TestWhatTheClusterDoesNotAcceptLeavesNothing(t *testing.T) {
	for _, c := range []struct{ name, manifest, class, message string }{
		{"a kind that is not served", simulated() + "---\napiVersion: farm.example/v1\nkind: Farm\nmetadata: {name: a}\n", "refused", "farm/chat-small-89e0bdaa-0-a: the cluster does not serve kind Farm of farm.example/v1"},
		{"a kind of the whole cluster", simulated() + "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n", "refused", "belongs to the whole cluster"},
		{"an invalid object", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n" + strings.Replace(simulated(), "replicas: 1", "replicas: -1", 1), "refused", "spec.replicas"},
		{"an object without the right to create it", "apiVersion: v1\nkind: LimitRange\nmetadata: {name: a}\nspec: {limits: []}\n---\n" + simulated(), "refused", `cannot create resource "limitranges"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cause := w.refusal(w.plan(c.manifest))
			assert.Equal(t, c.class, cause.Class, cause.Message)
			assert.Contains(t, cause.Message, c.message)
			assert.Empty(t, w.left())
		})
	}
}

// The baseline has shown that the template itself is accepted, so what a later
// trial is refused for may be one of its values.
func TestWhatALaterTrialIsRefusedForIsItsOwn(t *testing.T) {
	w := newWorld(t)
	plan := w.plan(strings.Replace(simulated(), "replicas: 1", "replicas: -1", 1))
	plan.Index = 3
	assert.Equal(t, "config_error", w.refusal(plan).Class)
	plan = w.plan("apiVersion: v1\nkind: LimitRange\nmetadata: {name: a}\nspec: {limits: []}\n---\n" + simulated())
	plan.Index = 3
	assert.Equal(t, "refused", w.refusal(plan).Class, "no value gives a right")
}

func TestAForeignObjectInTheWayIsNotTouched(t *testing.T) {
	w := newWorld(t)
	plan := w.plan(simulated())
	foreign := w.bed.Apply(t, w.Namespace, "apiVersion: v1\nkind: Service\nmetadata: {name: "+plan.Name+"}\nspec: {ports: [{port: 1}]}\n")[0]
	cause := w.refusal(plan)
	assert.Equal(t, "config_error", cause.Class)
	assert.Contains(t, cause.Message, "does not belong to this experiment")
	assert.Empty(t, w.left())
	stored, err := w.bed.Core.Services(w.Namespace).Get(t.Context(), plan.Name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, foreign.GetResourceVersion(), stored.ResourceVersion)

	other := &Deployer{}
	*other = *w.Deployer
	other.ID = "another-experiment"
	w.bed.Kubectl(t, "", "-n", w.Namespace, "label", "service", plan.Name, LabelExperimentID+"=third")
	other.Templates = map[string][]byte{"small": plan.Manifest}
	require.NoError(t, other.Sweep(t.Context()))
	assert.Equal(t, []string{"Service/" + plan.Name}, w.left())
	w.bed.Kubectl(t, "", "-n", w.Namespace, "label", "service", plan.Name, LabelExperimentID+"-")
}

func TestAKilledRunsLeftoversAreSwept(t *testing.T) {
	w := newWorld(t)
	plan := w.plan(simulated())
	w.Templates = map[string][]byte{"small": plan.Manifest}
	in := w.deploy(plan)
	in.release() // as if the process had died
	require.NotEmpty(t, w.left())
	require.NoError(t, w.Sweep(t.Context()))
	assert.Empty(t, w.left())
	require.NoError(t, w.Sweep(t.Context()), "with nothing left")
}

func TestALeftoverOfTheSameTrialMakesWay(t *testing.T) {
	w := newWorld(t)
	plan := w.plan(simulated())
	w.deploy(plan).release()
	in := w.deploy(plan)
	_, err := in.Ready(t.Context())
	require.NoError(t, err)
	pods, err := w.bed.Core.Pods(w.Namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Len(t, pods.Items, 1)
}

func TestAKeptWorkloadStaysUntilItIsPurged(t *testing.T) {
	w := newWorld(t)
	plan := w.plan(simulated(fault("crashloop", "exit-code", "2")...))
	w.Execution.MaxRestarts = 0
	w.Templates = map[string][]byte{"small": plan.Manifest}
	in := w.deploy(plan)
	w.failure(in)
	how, err := in.Keep(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "kubectl delete services,deployments.apps -n "+w.Namespace+" -l "+LabelExperimentID+"="+w.ID+","+LabelTrial+"="+plan.Name, how)
	require.NoError(t, w.Sweep(t.Context()))
	pods, err := w.bed.Core.Pods(w.Namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Len(t, pods.Items, 1, "kept")
	require.NoError(t, w.Purge(t.Context()))
	assert.Empty(t, w.left())
}

// A run with a kept workload is killed in another trial, and resumed.
func TestSweepTellsKeptTrialsFromKilledOnes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	plan := w.plan(simulated())
	w.Templates = map[string][]byte{"small": plan.Manifest}
	_, err := w.deploy(plan).Keep(t.Context())
	require.NoError(t, err)
	killed := plan
	killed.Name, killed.Index = experiment.WorkloadName(w.Experiment, "small", 1), 1
	w.deploy(killed).release()
	require.NoError(t, w.Sweep(t.Context()))
	pods, err := w.bed.Core.Pods(w.Namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, pods.Items, 1)
	assert.Equal(t, plan.Name, pods.Items[0].Labels[LabelTrial])
	require.NoError(t, w.Purge(t.Context()))
	assert.Empty(t, w.left())
}

// K16: what the user's names may be, and what a controller makes of them, differ.
func TestTheLongestNamesAndNamesThatBeginWithADigitServe(t *testing.T) {
	long := strings.Repeat("x", maxLabel)
	for name, manifest := range map[string]string{
		"long":  strings.NewReplacer("llm-pods", long, "name: llm}", "name: y"+long[1:]+"}").Replace(templates["StatefulSet"]),
		"digit": strings.NewReplacer("llm-pods", "70b-pods", "name: llm}", "name: 70b-llm}").Replace(templates["StatefulSet"]),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Experiment = "70b-" + long[4:]
			plan := w.plan(strings.Replace(manifest, "replicas: 2", "replicas: 1", 1))
			plan.Name = experiment.WorkloadName(w.Experiment, long, 123)
			in := w.deploy(plan)
			_, err := in.Ready(t.Context())
			require.NoError(t, err)
			require.NoError(t, in.Delete(t.Context()))
			assert.Empty(t, w.left())
		})
	}
}

func TestInterruptedAnywhereNothingStays(t *testing.T) {
	stop := errors.New("interrupted")
	t.Run("while it is created", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			_, _ = w.bed.Core.Services(w.Namespace).Watch(ctx, metav1.ListOptions{}) // only to take some time
			cancel(stop)
		}()
		in, err := w.Deploy(ctx, w.plan(simulated()))
		if err == nil { // it was quicker
			require.NoError(t, in.Delete(t.Context()))
		}
		assert.Empty(t, w.left())
	})
	t.Run("while it becomes ready", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		in := w.deploy(w.plan(simulated(fault("slow-ready", "after", "20s")...)))
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(stop) })
		_, err := in.Ready(ctx)
		require.ErrorIs(t, err, stop)
		require.NoError(t, in.Delete(t.Context()))
		assert.Empty(t, w.left())
	})
	t.Run("while it is deleted", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		in := w.deploy(w.plan(simulated(fault("stuck", "after", "3s")...)))
		_, err := in.Ready(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, stop)
		defer cancel()
		err = in.Delete(ctx)
		require.ErrorIs(t, err, stop)
		assert.Regexp(t, `still there: pod chat-small-89e0bdaa-0-\S+ \(grace period 1s, until [0-9:]+ UTC\)`, err.Error())
		require.NoError(t, in.Delete(t.Context()), "K18: again, until the pod is gone")
		assert.Empty(t, w.left())
	})
}

func TestFinalizersThatHoldAPodAreNamed(t *testing.T) {
	w := newWorld(t)
	in := w.deploy(w.plan(strings.Replace(simulated(), "annotations: {}", "annotations: {}, finalizers: [example.com/hold]", 1)))
	_, err := in.Ready(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	require.ErrorContains(t, in.Delete(ctx), "(finalizers example.com/hold)")
	pods, err := w.bed.Core.Pods(w.Namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	w.bed.Kubectl(t, "", "-n", w.Namespace, "patch", "pod", pods.Items[0].Name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	require.NoError(t, in.Delete(t.Context()))
}

func TestWithoutTheRightToLogsTheFileSaysSo(t *testing.T) {
	rules := slices.DeleteFunc(Rules(), func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "pods/log") })
	w := limitedWorld(t, rules)
	w.Execution.MaxRestarts = 0
	in := w.deploy(w.plan(simulated(fault("crashloop", "exit-code", "3")...)))
	cause := w.failure(in)
	assert.Equal(t, "server_died", cause.Class)
	files, err := filepath.Glob(filepath.Join(in.plan.Logs, "*before-restart-1.log"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	text, err := os.ReadFile(files[0])
	require.NoError(t, err)
	assert.Contains(t, string(text), "(no log: the right to get pods/log is missing: ")
}

func TestExpiredCredentialsAreToldApart(t *testing.T) {
	b := shared.Get(t)
	namespace := b.Namespace(t)
	config, err := clientcmd.BuildConfigFromFlags("", b.ExpiredKubeconfig(t, namespace))
	require.NoError(t, err)
	w := worldOf(t, b, config, namespace)
	cause := w.refusal(w.plan(simulated()))
	assert.Equal(t, "infra_error", cause.Class)
	assert.Contains(t, cause.Message, "the API server does not accept the credentials; log in again")
	_, err = w.Preflight(t.Context(), map[string][]byte{"small": []byte(simulated())})
	require.ErrorContains(t, err, "log in again")
}

func TestANamespaceThatIsDeletedEndsTheTrialClearly(t *testing.T) {
	for phase, under := range map[string]bool{"before it serves": false, "under load": true} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			b := shared.Get(t)
			namespace := b.Namespace(t)
			w := worldOf(t, b, b.REST, namespace)
			annotations := fault("never-ready")
			if under {
				annotations = nil
			}
			in := w.deploy(w.plan(simulated(annotations...)))
			t.Cleanup(func() { // the bed wants to remove it itself
				assert.Eventually(t, func() bool {
					again := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
					_, err := b.Core.Namespaces().Create(context.Background(), again, metav1.CreateOptions{})
					return err == nil
				}, 30*time.Second, 100*time.Millisecond)
			})
			remove := func() {
				assert.NoError(t, b.Core.Namespaces().Delete(context.Background(), namespace, metav1.DeleteOptions{}))
			}
			if !under {
				time.AfterFunc(time.Second, remove)
				cause := w.failure(in)
				assert.Equal(t, "infra_error", cause.Class)
				assert.Contains(t, cause.Message, "namespace "+namespace+" is being deleted")
				return
			}
			_, err := in.Ready(t.Context())
			require.NoError(t, err)
			remove()
			require.Eventually(t, func() bool {
				cause, err := in.Diagnose(t.Context())
				return err == nil && cause.Class == "infra_error" && strings.Contains(cause.Message, "namespace "+namespace+" is ")
			}, 20*time.Second, 100*time.Millisecond)
			in.deleted = false
			require.NoError(t, in.Delete(t.Context()), "what is gone is deleted")
		})
	}
}
