// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/discovery"
)

// Lazy is a bed that starts when a test first asks for it. All tests of a
// process share it; Main stops it.
type Lazy struct {
	Config Config

	once sync.Once
	bed  *Bed
	err  error
}

// Get returns the bed. It skips the test in short mode, and fails it when there
// is no bed.
func (l *Lazy) Get(t testing.TB) *Bed {
	t.Helper()
	if testing.Short() {
		t.Skip("tests on a control plane are left out by -short")
	}
	l.once.Do(func() { l.bed, l.err = Start(context.Background(), l.Config) })
	require.NoError(t, l.err)
	return l.bed
}

// Main runs the tests of a package, stops the bed, and returns the exit code for TestMain.
func (l *Lazy) Main(m *testing.M) int {
	code := m.Run()
	if l.bed == nil {
		return code
	}
	if err := l.bed.Stop(); err != nil {
		fmt.Fprintln(l.bed.log, "stop the test bed:", err)
		return 1
	}
	return code
}

// New starts a bed for one test, which stops at its end: for tests that stop the
// API server. Config.Llmctl of a shared bed's Llmctl saves a build.
func New(t testing.TB, config Config) *Bed {
	t.Helper()
	b, err := Start(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Stop()) })
	return b
}

// How long a namespace may take to be rid of its pods.
const cleanLimit = 30 * time.Second

var unfit = regexp.MustCompile(`[^a-z0-9]+`)

// Namespace makes a namespace for the test. At the end of the test it is removed,
// and the test fails when something in it still bears a label of llmctl's.
func (b *Bed) Namespace(t testing.TB) string {
	t.Helper()
	name := strings.Trim(unfit.ReplaceAllString(strings.ToLower(t.Name()), "-"), "-")
	name = strings.TrimRight("t-"+name[:min(len(name), 40)], "-") + "-" + rand.String(5)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := b.Core.Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanLimit)
		defer cancel()
		left, err := b.Leftovers(ctx, name)
		assert.NoError(t, err)
		assert.Empty(t, left, "these objects of llmctl are left in namespace %s", name)
		assert.NoError(t, b.clean(ctx, name))
	})
	require.NoError(t, b.awaitAccount(t.Context(), name))
	return name
}

// followers are not looked for: nobody can take events back, and the control
// plane makes and removes the endpoints of a Service in its own time.
var followers = map[string]bool{"events": true, "endpoints": true, "endpointslices": true}

// Leftovers lists the objects of a namespace that llmctl has labelled, as
// kind/name.
func (b *Bed) Leftovers(ctx context.Context, namespace string) ([]string, error) {
	kinds, err := discovery.NewDiscoveryClientForConfig(b.REST)
	if err != nil {
		return nil, err
	}
	lists, err := kinds.ServerPreferredNamespacedResources()
	if err != nil {
		return nil, err
	}
	resources, err := discovery.GroupVersionResources(discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists))
	if err != nil {
		return nil, err
	}
	var left []string
	for kind := range resources {
		list, err := b.Dynamic.Resource(kind).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", kind.Resource, err)
		}
		for _, object := range list.Items {
			if !followers[kind.Resource] && labelled(object) {
				left = append(left, object.GetKind()+"/"+object.GetName())
			}
		}
	}
	return left, nil
}

var ourLabel = regexp.MustCompile(`^([a-z0-9.-]+\.)?llmctl\.io/`)

func labelled(object unstructured.Unstructured) bool {
	for key := range object.GetLabels() {
		if ourLabel.MatchString(key) && !strings.HasPrefix(key, "bed.") {
			return true
		}
	}
	return false
}

// clean removes a namespace and waits until its processes are gone. The objects
// go in their own time.
func (b *Bed) clean(ctx context.Context, namespace string) error {
	if err := b.Core.Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
		return err
	}
	now := int64(0)
	// The namespace controller would let pods take their grace period.
	for len(b.kubelet.playing(namespace)) > 0 {
		err := b.Core.Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if !sleep(ctx, 5*pollEvery) {
			return fmt.Errorf("pods of namespace %s do not end: %v", namespace, b.kubelet.playing(namespace))
		}
	}
	return nil
}

// Apply creates the objects of a manifest in a namespace.
func (b *Bed) Apply(t testing.TB, namespace, manifest string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := b.Create(t.Context(), namespace, []byte(manifest))
	require.NoError(t, err)
	return objects
}

// Kubectl runs kubectl as an administrator and returns what it prints to stdout.
// stdin may be empty.
func (b *Bed) Kubectl(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), b.Bin+"/"+kubectl, append([]string{"--kubeconfig=" + b.Kubeconfig}, args...)...)
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(stdin), &stdout, &stderr
	require.NoError(t, command.Run(), "kubectl %v\n%s", args, &stderr)
	return stdout.String()
}

// Pod waits until a pod is as wanted, and returns it.
func (b *Bed) Pod(t testing.TB, namespace, name string, wanted func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cleanLimit)
	defer cancel()
	var last *corev1.Pod
	err := poll(ctx, "wait for pod "+name, func(ctx context.Context) (bool, error) {
		pod, err := b.Core.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, nil // not yet, or the API server is away
		}
		last = pod
		return wanted(pod), nil
	})
	if last != nil {
		require.NoError(t, err, "last status: %s", last.Status.String())
	}
	require.NoError(t, err)
	return last
}

// Quota limits a namespace, such as {"pods": "1"}, and returns when the limit is kept.
func (b *Bed) Quota(t testing.TB, namespace string, hard map[string]string) {
	t.Helper()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "quota"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
	for name, amount := range hard {
		quota.Spec.Hard[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	_, err := b.Core.ResourceQuotas(namespace).Create(t.Context(), quota, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, poll(t.Context(), "wait for the quota", func(ctx context.Context) (bool, error) {
		quota, err := b.Core.ResourceQuotas(namespace).Get(ctx, quota.Name, metav1.GetOptions{})
		return err == nil && len(quota.Status.Hard) == len(hard), err
	}))
}
