// SPDX-License-Identifier: Apache-2.0

//go:build node && linux

// Package node tests llmctl on a real node: kubelet, containerd and runc.
//
// The tests run in mount, network, process and IPC namespaces of their own. That
// is what puts everything back, however they end: the kernel ends each process
// and takes away each mount, interface and rule with the namespaces. Only the
// cgroup and the scratch directory are left for the parent to remove.
package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/llmctl/llmctl/test/bed"
)

// What a process of this test binary is, by the variable stageEnv. One without
// it is the parent, which prepares and cleans up.
const (
	stageEnv   = "LLMCTL_NODE_STAGE"
	scratchEnv = "LLMCTL_NODE_DIR"
	stageInit  = "init"  // the first process of the namespaces
	stageTests = "tests" // runs the tests
)

func TestMain(m *testing.M) {
	switch os.Getenv(stageEnv) {
	case stageTests:
		os.Exit(runTests(m))
	case stageInit:
		code, err := initialise(os.Getenv(scratchEnv))
		if err != nil {
			fmt.Fprintln(os.Stderr, "set up the namespaces of the node:", err)
		}
		os.Exit(code)
	}
	if reason := unfit(); reason != "" {
		fmt.Fprintln(os.Stderr, "the tests on a real node are left out:", reason)
		os.Exit(0)
	}
	code, err := supervise()
	if errors.Is(err, errNoPackages) {
		fmt.Fprintln(os.Stderr, "the tests on a real node are left out:", err)
		os.Exit(0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tests on a real node:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// unfit says why the tests cannot run here, or nothing.
func unfit() string {
	if os.Geteuid() != 0 {
		return "they need root"
	}
	for _, tool := range []string{"apt-get", "dpkg-deb", "ip", "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "there is no " + tool + " (containerd, runc and the network plugins come from Debian packages)"
		}
	}
	probe := exec.Command("true")
	probe.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	if err := probe.Run(); err != nil {
		return "namespaces cannot be made: " + err.Error()
	}
	hierarchies, reason := cgroups()
	if reason != "" {
		return reason
	}
	for _, dir := range hierarchies {
		test := filepath.Join(dir, cgroupName())
		if err := os.Mkdir(test, 0o755); err != nil {
			return "cgroups cannot be made: " + err.Error()
		}
		if err := os.Remove(test); err != nil {
			return "cgroups cannot be removed: " + err.Error()
		}
	}
	return ""
}

const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC

// cgroupName is the cgroup of all pods. The parent and its children agree on it
// by the environment.
func cgroupName() string {
	if dir := os.Getenv(scratchEnv); dir != "" {
		return filepath.Base(dir)
	}
	return fmt.Sprintf("llmctl-node-probe-%d", os.Getpid())
}

// cgroups are the mounted hierarchies that a kubelet needs: one, or one for each
// controller.
func cgroups() (dirs []string, reason string) {
	const root = "/sys/fs/cgroup"
	enabled, err := os.ReadFile(root + "/cgroup.subtree_control")
	if err == nil {
		for _, c := range []string{"cpu", "cpuset", "memory", "pids"} {
			if !slices.Contains(strings.Fields(string(enabled)), c) {
				return nil, "the cgroup controller " + c + " is not enabled in " + root + "/cgroup.subtree_control"
			}
		}
		return []string{root}, ""
	}
	for _, c := range []string{"cpu", "cpuacct", "cpuset", "memory", "pids", "systemd"} {
		dir := filepath.Join(root, c)
		if _, err := os.Stat(dir + "/cgroup.procs"); err != nil {
			return nil, "there is no cgroup hierarchy " + dir
		}
		dirs = append(dirs, dir)
	}
	return dirs, ""
}

// supervise builds what the tests need, runs them in namespaces of their own and
// removes what those leave.
func supervise() (code int, err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	scratch, err := os.MkdirTemp("", "llmctl-node-")
	if err != nil {
		return 1, err
	}
	defer func() {
		err = errors.Join(err, removeCgroups(filepath.Base(scratch)), os.RemoveAll(scratch))
	}()
	if err := prepare(ctx, scratch); err != nil {
		return 1, err
	}
	inner := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...) // killed with ctx, and with it everything inside
	inner.Env = append(os.Environ(), stageEnv+"="+stageInit, scratchEnv+"="+scratch, "TMPDIR="+scratch)
	inner.Stdout, inner.Stderr = os.Stdout, os.Stderr
	inner.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL, Setpgid: true}
	err = inner.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), context.Cause(ctx)
	}
	return 0, err
}

// prepare makes everything that needs the network, which there is none of inside.
func prepare(ctx context.Context, scratch string) error {
	if err := bed.Prepare(ctx, os.Stderr); err != nil {
		return err
	}
	packages, err := packages(ctx)
	if err != nil {
		return err
	}
	if err := os.Symlink(packages, filepath.Join(scratch, "packages")); err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(scratch, "llmctl"), "github.com/llmctl/llmctl/cmd/llmctl")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build llmctl: %w\n%s", err, out)
	}
	return nil
}

// errNoPackages: a machine without a package mirror cannot run the tests.
var errNoPackages = errors.New("the Debian packages cannot be fetched")

// packages returns the directory of containerd, runc and the network plugins.
// They are unpacked in the user's cache directory and not installed: that would
// start a service, and might replace a container runtime that is in use.
func packages(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "llmctl", "node")
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	fmt.Fprintln(os.Stderr, "fetching containerd, runc and containernetworking-plugins (once) …")
	fresh, err := os.MkdirTemp(filepath.Dir(dir), "node-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	const script = `set -e
fetch() { apt-get -q -o APT::Sandbox::User=root download containerd runc containernetworking-plugins; }
fetch || { apt-get -q update; fetch; }
for file in *.deb; do dpkg-deb -x "$file" .; rm "$file"; done`
	fetch := exec.CommandContext(ctx, "sh", "-c", script)
	fetch.Dir = fresh
	if out, err := fetch.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %w\n%s", errNoPackages, err, out)
	}
	return dir, os.Rename(fresh, dir)
}

// makeCgroups makes the cgroup of all pods, which a kubelet does not do itself.
func makeCgroups() error {
	dirs, _ := cgroups()
	for _, dir := range dirs {
		if err := os.Mkdir(filepath.Join(dir, cgroupName()), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// removeCgroups removes a cgroup of every hierarchy. The kernel refuses to remove
// one that still has processes.
func removeCgroups(name string) error {
	dirs, err := filepath.Glob("/sys/fs/cgroup/*/" + name)
	if err != nil {
		return err
	}
	dirs = append(dirs, "/sys/fs/cgroup/"+name)
	for _, dir := range dirs {
		var inner []string
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				inner = append(inner, path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, path := range slices.Backward(inner) {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// initialise is the first process of the namespaces: it makes them fit for a
// node, starts the tests, and reaps what has lost its parent until they end.
func initialise(scratch string) (int, error) {
	if err := isolate(scratch); err != nil {
		return 1, err
	}
	tests := exec.Command("/proc/self/exe", os.Args[1:]...)
	tests.Env = append(os.Environ(), stageEnv+"="+stageTests)
	tests.Stdout, tests.Stderr = os.Stdout, os.Stderr
	if err := tests.Start(); err != nil {
		return 1, err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 1, err
		case pid == tests.Process.Pid && status.Exited():
			return status.ExitStatus(), nil
		case pid == tests.Process.Pid:
			return 1, fmt.Errorf("the tests were ended by %s", status.Signal())
		}
	}
}

// isolate hides from the node what it would change of the machine.
func isolate(scratch string) error {
	// Private first, so that nothing gets out; shared again, as on any node.
	for _, how := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|how, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range []string{"/run", "/var/lib", "/var/log"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount over %s: %w", dir, err)
		}
	}
	if err := decoys(filepath.Join(scratch, "sysctl")); err != nil {
		return err
	}
	for _, line := range []string{
		"link set lo up",
		"link add " + bridge + " type bridge",
		"address add " + nodeIP + "/24 dev " + bridge,
		"link set " + bridge + " up",
		"route add default dev " + bridge, // leads nowhere; the API server finds its address by it
	} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w\n%s", line, err, out)
		}
	}
	return nil
}

// decoys puts files over the kernel's settings that a kubelet changes for the
// whole machine: it finds there what it wants.
func decoys(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	} {
		real := "/proc/sys/" + name
		value, err := os.ReadFile(real)
		if err != nil {
			return err
		}
		decoy := filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(decoy, value, 0o600); err != nil {
			return err
		}
		if err := unix.Mount(decoy, real, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount over %s: %w", real, err)
		}
	}
	return nil
}
