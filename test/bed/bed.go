// SPDX-License-Identifier: Apache-2.0

// Package bed is a real Kubernetes control plane for tests: etcd, API server,
// controller manager and scheduler as processes on the loopback interface, with
// nodes that exist only in the API. It needs no root and no container runtime.
//
// Pods do not run on such nodes, but the engines in them do: the bed starts a
// container's own command as a local process when that command is "llmctl
// simulate …", "vllm serve …" (by the simulated engine) or a shell, and then does for the pod what a kubelet would do:
// its status, events, restarts, logs, port-forwards and end. The annotation
// bed.llmctl.io/fault makes a pod fail; see fault.
package bed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// startLimit is how long a start may take on a busy machine. The build of the
// binaries does not count.
const startLimit = 3 * time.Minute

// Config says what a bed has. The zero value of a field is its default.
type Config struct {
	Llmctl string    // the binary that the word llmctl means in pods; built when empty
	Nodes  int       // 2
	GPUs   int       // nvidia.com/gpu of each node; 8
	Log    io.Writer // hears of what takes long and what goes wrong; discarded when nil
}

// Bed is a running cluster. Its exported fields are read only.
type Bed struct {
	REST       *rest.Config // an administrator's
	Kubeconfig string       // path of the administrator's file; its context is "bed"
	Bin        string       // directory of the control plane's commands, kubectl among them
	Llmctl     string       // path of the llmctl binary
	Core       corev1client.CoreV1Interface
	Dynamic    dynamic.Interface

	mapper  meta.ResettableRESTMapper
	dir     string
	log     io.Writer
	plane   *controlPlane
	kubelet *kubelet
	groups  *groups
	cancel  context.CancelFunc
}

// Start builds what is missing in the user's cache directory and starts a bed,
// which takes about ten seconds. The caller stops it.
func Start(ctx context.Context, config Config) (b *Bed, err error) {
	b = &Bed{log: config.Log, Llmctl: config.Llmctl}
	if b.log == nil {
		b.log = io.Discard
	}
	if b.dir, err = os.MkdirTemp("", "llmctl-bed-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start the test bed: %w", err), b.Stop())
			b = nil
		}
	}()
	if b.Llmctl == "" {
		b.Llmctl = filepath.Join(b.dir, "llmctl")
		if err := build(ctx, b.Llmctl); err != nil {
			return b, err
		}
	}
	if b.Bin, err = binaries(ctx, b.Llmctl, b.log); err != nil {
		return b, err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return b, b.start(ctx, config)
}

// Prepare builds what is missing in the user's cache directory.
func Prepare(ctx context.Context, log io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "llmctl-bed-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	llmctl := filepath.Join(dir, "llmctl")
	if err := build(ctx, llmctl); err != nil {
		return err
	}
	_, err = binaries(ctx, llmctl, log)
	return err
}

// build makes the llmctl binary.
func build(ctx context.Context, binary string) error {
	command := exec.CommandContext(ctx, "go", "build", "-o", binary, "github.com/llmctl/llmctl/cmd/llmctl")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build llmctl: %w\n%s", err, out)
	}
	return nil
}

func (b *Bed) start(ctx context.Context, config Config) error {
	records := filepath.Join(b.dir, "processes")
	if err := os.Mkdir(records, 0o700); err != nil {
		return err
	}
	shared := &ports{}
	b.plane = &controlPlane{bin: b.Bin, dir: b.dir, guard: guard{b.Llmctl, records}, ports: shared, running: map[string]*child{}, log: b.log}
	b.Kubeconfig = b.plane.path("kubeconfig")
	if err := b.plane.startStore(ctx); err != nil {
		return err
	}
	if err := b.connect(); err != nil {
		return err
	}
	// Before the controllers: the garbage collector looks for new kinds only now and then.
	if err := b.installKinds(ctx); err != nil {
		return err
	}
	if err := b.plane.startControllers(); err != nil {
		return err
	}
	nodes, err := b.startNodes(ctx, config)
	if err != nil {
		return err
	}
	b.play(shared, nodes)
	return b.awaitAccount(ctx, "default")
}

// connect makes the clients.
func (b *Bed) connect() (err error) {
	b.REST = b.plane.rest()
	if b.Core, err = corev1client.NewForConfig(b.REST); err != nil {
		return err
	}
	if b.Dynamic, err = dynamic.NewForConfig(b.REST); err != nil {
		return err
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(b.REST)
	if err != nil {
		return err
	}
	b.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds))
	return nil
}

// play starts what makes pods of custom objects, and what runs pods.
func (b *Bed) play(shared *ports, nodes map[string]bool) {
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	b.groups = newGroups(b)
	b.kubelet = &kubelet{
		core: b.Core, dynamic: b.Dynamic, guard: b.plane.guard, ports: shared, nodes: nodes,
		kwok: b.plane.kwokURL(), dir: b.dir, log: b.log, events: newRecorder(b.Core, b.log), watcher: b.groups.pod,
	}
	b.kubelet.start(ctx)
	b.groups.start(ctx)
}

// Stop ends everything that the bed has started and removes its files.
func (b *Bed) Stop() error {
	if b.cancel != nil {
		b.cancel()
		b.kubelet.wait()
		b.groups.wait()
	}
	if b.plane != nil {
		b.plane.stop(kwok, scheduler, controller, apiserver, etcd)
	}
	return os.RemoveAll(b.dir)
}

// StopAPIServer makes the API server go away: connections are refused until
// StartAPIServer. Engines go on. The components that work through the API server
// end with it, since they would take up to a minute to notice that it is back.
// Every user of the bed is hit, so tests that do this have a bed of their own or
// run when no others do.
func (b *Bed) StopAPIServer() { b.plane.stop(apiserver, controller, scheduler, kwok) }

// StartAPIServer brings it back, with its data, and returns when it is ready.
func (b *Bed) StartAPIServer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := b.plane.startAPIServer(ctx); err != nil {
		return err
	}
	if err := b.plane.startControllers(); err != nil {
		return err
	}
	return b.plane.startKwok(ctx)
}
