// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// kubelet plays the pods of the bed's nodes.
type kubelet struct {
	core    corev1client.CoreV1Interface
	dynamic dynamic.Interface
	guard   guard
	ports   *ports
	nodes   map[string]bool
	kwok    string // its base URL
	dir     string // of the bed
	log     io.Writer
	events  *recorder
	watcher func(pod *corev1.Pod, gone bool) // hears of every pod, on whatever node

	client  *http.Client // for probes
	working sync.WaitGroup

	mu     sync.Mutex
	pods   map[types.UID]*pod
	last   map[types.UID]*corev1.Pod
	failed map[string]int // pods given a fault, by namespace and fault
	given  int            // pod addresses
}

// start plays pods until ctx ends; wait returns when all their processes are gone.
func (k *kubelet) start(ctx context.Context) {
	k.client = probeClient()
	k.pods, k.last, k.failed = map[types.UID]*pod{}, map[types.UID]*corev1.Pod{}, map[string]int{}
	all := k.core.Pods(metav1.NamespaceAll)
	pods := source{
		what:  "pods",
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return all.List(ctx, o) },
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return all.Watch(ctx, o) },
	}
	k.working.Go(func() {
		follow(ctx, pods, k.log, func(o runtime.Object) { k.seen(ctx, o.(*corev1.Pod)) }, k.gone)
	})
}

func (k *kubelet) wait() { k.working.Wait() }

// seen starts a pod that is new on one of the nodes, and ends one that is being deleted.
func (k *kubelet) seen(ctx context.Context, object *corev1.Pod) {
	k.watcher(object, false)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last[object.UID] = object
	if !k.nodes[object.Spec.NodeName] {
		return
	}
	p := k.pods[object.UID]
	if p == nil {
		p = k.newPod(ctx, object)
		k.pods[object.UID] = p
		k.working.Go(func() { p.live(ctx) })
	}
	if object.DeletionTimestamp != nil {
		p.leave()
	}
}

func (k *kubelet) gone(id types.UID) {
	k.mu.Lock()
	object, p := k.last[id], k.pods[id]
	delete(k.last, id)
	k.mu.Unlock()
	if p != nil {
		close(p.gone)
		p.leave()
	}
	k.watcher(object, true)
}

// newPod is called with the lock held.
func (k *kubelet) newPod(ctx context.Context, object *corev1.Pod) *pod {
	k.given++
	p := &pod{
		kubelet: k, object: object, status: *object.Status.DeepCopy(), gone: make(chan struct{}),
		dir:     filepath.Join(k.dir, "pods", string(object.UID)),
		address: fmt.Sprintf("10.244.%d.%d", k.given/250%250, k.given%250+2),
	}
	p.leaving, p.leave = context.WithCancel(ctx)
	p.fault, p.faultError = k.newFault(object)
	return p
}

// forget is the end of a pod.
func (k *kubelet) forget(p *pod) {
	k.mu.Lock()
	delete(k.pods, p.object.UID)
	k.mu.Unlock()
	k.events.forget(p.object.UID)
}

// playing lists the pods of a namespace whose processes are not gone yet.
func (k *kubelet) playing(namespace string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for _, p := range k.pods {
		if p.object.Namespace == namespace {
			names = append(names, p.object.Name)
		}
	}
	return names
}
