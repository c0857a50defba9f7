// SPDX-License-Identifier: Apache-2.0

//go:build node && linux

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/llmctl/llmctl/test/bed"
)

const (
	nodeName = "real-0"
	bridge   = "llmctl0"    // the pods' network
	nodeIP   = "10.245.0.1" // of the bridge: a kubelet refuses a loopback address

	nodeLimit = time.Minute // for a node to be ready
)

// machine is a control plane with one node whose pods really run.
type machine struct {
	*bed.Bed
	dir   string
	ended chan string // the name of a program of the node that has ended
}

// node is the machine of all tests.
var node *machine

func runTests(m *testing.M) int {
	ctx := context.Background()
	node = &machine{dir: os.Getenv(scratchEnv), ended: make(chan string, 2)}
	started := time.Now()
	if err := node.start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "start the node:", err)
		return 1
	}
	fmt.Fprintf(os.Stderr, "the node is ready after %s\n", time.Since(started).Round(100*time.Millisecond))
	code := m.Run()
	if code != 0 {
		fmt.Fprintln(os.Stderr, node.lastWords())
	}
	if err := node.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the control plane:", err)
		return 1
	}
	return code
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) tool(name string) string { return filepath.Join(m.path("packages"), name) }

func (m *machine) llmctl() string { return m.path("llmctl") }

// start starts the control plane and the node, and returns when it is ready. The
// end of the namespaces ends them.
func (m *machine) start(ctx context.Context) (err error) {
	if m.Bed, err = bed.Start(ctx, bed.Config{Llmctl: m.llmctl(), Nodes: 1, Log: os.Stderr}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, nodeLimit)
	defer cancel()
	if err := errors.Join(m.writeConfig(), makeCgroups()); err != nil {
		return err
	}
	if err := m.startContainerd(ctx); err != nil {
		return err
	}
	if err := m.run(filepath.Join(m.Bin, "kubebed"), "kubelet", "--kubeconfig="+m.Kubeconfig, "--config="+m.path("kubelet.yaml"),
		"--hostname-override="+nodeName, "--node-ip="+nodeIP, "--root-dir="+m.path("kubelet"), "--cert-dir="+m.path("pki")); err != nil {
		return err
	}
	err = m.poll(ctx, "wait for the node to be ready", m.ready)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, m.lastWords())
	}
	// Pods go to the real node only.
	nodes, err := m.Core.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range nodes.Items {
		if n.Name != nodeName {
			n.Spec.Unschedulable = true
			if _, err := m.Core.Nodes().Update(ctx, &n, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *machine) ready(ctx context.Context) (bool, error) {
	n, err := m.Core.Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return false, nil // not registered yet
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, nil
		}
	}
	return false, nil
}

func (m *machine) writeConfig() error {
	fill := strings.NewReplacer("$DIR", m.dir, "$PACKAGES", m.path("packages"), "$IMAGE", image, "$BRIDGE", bridge, "$IP", nodeIP, "$CGROUP", "/"+cgroupName())
	return errors.Join(
		os.WriteFile(m.path("resolv.conf"), []byte("# nothing is resolved\n"), 0o600),
		os.WriteFile(m.path("containerd.toml"), []byte(fill.Replace(containerdConfig)), 0o600),
		os.WriteFile(m.path("kubelet.yaml"), []byte(fill.Replace(kubeletConfig)), 0o600),
		os.Mkdir(m.path("cni"), 0o700),
		os.WriteFile(m.path("cni/10-bridge.conflist"), []byte(fill.Replace(networkConfig)), 0o600),
	)
}

// The snapshotter copies, which works on every file system.
const containerdConfig = `version = 2
root = "$DIR/containerd/root"
state = "$DIR/containerd/state"
[grpc]
  address = "$DIR/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$DIR/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  # Not every container may lower a process's score.
  restrict_oom_score_adj = true
  sandbox_image = "$IMAGE"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "$DIR/cni"
    bin_dir = "$PACKAGES/usr/lib/cni"
`

// Everybody may ask this kubelet for everything: only the namespaces reach it.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $IP
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: $CGROUP
cgroupsPerQOS: true
containerRuntimeEndpoint: unix://$DIR/containerd.sock
enforceNodeAllocatable: []
evictionHard: {}
failCgroupV1: false
failSwapOn: false
healthzPort: 0
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
podLogsDir: $DIR/pods
readOnlyPort: 0
resolvConf: $DIR/resolv.conf
volumePluginDir: $DIR/volumeplugins
`

const networkConfig = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [{
  "type": "bridge", "bridge": "$BRIDGE", "isGateway": true, "ipMasq": false,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.245.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "$DIR/ipam"}
}]}
`

func (m *machine) startContainerd(ctx context.Context) error {
	if err := m.run(m.tool("usr/bin/containerd"), "containerd", "--config="+m.path("containerd.toml")); err != nil {
		return err
	}
	ctr := func(args ...string) ([]byte, error) {
		return exec.CommandContext(ctx, m.tool("usr/bin/ctr"), append([]string{"--address", m.path("containerd.sock"), "--namespace", "k8s.io"}, args...)...).CombinedOutput()
	}
	err := m.poll(ctx, "wait for containerd", func(context.Context) (bool, error) {
		_, err := ctr("version")
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, m.lastWords())
	}
	if err := writeImage(m.path("image.tar"), m.llmctl()); err != nil {
		return err
	}
	if out, err := ctr("images", "import", "--snapshotter", "native", m.path("image.tar")); err != nil {
		return fmt.Errorf("import the image: %w\n%s", err, out)
	}
	return nil
}

// run starts a program under a name of its own, its output in a file of that name.
func (m *machine) run(program, name string, args ...string) error {
	log, err := os.Create(m.path(name + ".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	command := &exec.Cmd{Path: program, Args: append([]string{name}, args...), Dir: m.dir, Stdout: log, Stderr: log}
	command.Env = append(os.Environ(), "PATH="+m.tool("usr/sbin")+":"+m.tool("usr/bin")+":"+os.Getenv("PATH"))
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = command.Wait() // its log says more
		m.ended <- name
	}()
	return nil
}

// lastWords are the ends of the node's logs.
func (m *machine) lastWords() string {
	var text strings.Builder
	for _, name := range []string{"containerd", "kubelet"} {
		log, err := os.ReadFile(m.path(name + ".log"))
		if err != nil {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(log)), "\n")
		fmt.Fprintf(&text, "--- %s\n%s\n", name, strings.Join(lines[max(0, len(lines)-15):], "\n"))
	}
	return text.String()
}

// poll calls done until it is true, fails, or ctx ends.
func (m *machine) poll(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(ctx); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		case name := <-m.ended:
			return fmt.Errorf("%s: %s has ended", what, name)
		case <-tick.C:
		}
	}
}
