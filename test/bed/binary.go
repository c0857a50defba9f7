// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// The components of the control plane that test/kubebed holds.
const (
	etcd       = "etcd"
	apiserver  = "kube-apiserver"
	controller = "kube-controller-manager"
	scheduler  = "kube-scheduler"
	kwok       = "kwok"
	kubectl    = "kubectl"
)

// kubeVersion is the version of k8s.io/kubernetes in test/kubebed/go.mod. The
// linker writes it into the binary: without it the API server reports a version
// that kubectl cannot read.
const kubeVersion = "v1.36.3"

const progressEvery = 30 * time.Second

// builder builds the control plane's binary.
type builder struct {
	source string   // the module test/kubebed
	cache  string   // holds a directory for each version
	env    []string // added to the inherited environment
	guard  guard
	log    io.Writer
}

// binaries returns the directory of the control plane's commands, kubectl among
// them. It builds them when they are not in the user's cache directory, which
// takes about ten minutes on two cores, and says so on log. Parallel callers wait
// for one of them. llmctl is the binary that ends the build with this process.
func binaries(ctx context.Context, llmctl string, log io.Writer) (dir string, err error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w", err)
	}
	scratch, err := os.MkdirTemp("", "llmctl-kubebed-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	b := builder{
		source: filepath.Join(root, "test", "kubebed"),
		cache:  filepath.Join(cache, "llmctl", "kubebed"),
		guard:  guard{llmctl: llmctl, records: scratch},
		log:    log,
	}
	return b.find(ctx)
}

// moduleRoot is the directory of the main module, in which all tests run.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: go env GOMOD: %w", err)
	}
	file := strings.TrimSpace(string(out))
	if filepath.Base(file) != "go.mod" {
		return "", errors.New("find the module: the working directory is not inside it")
	}
	return filepath.Dir(file), nil
}

func (b *builder) find(ctx context.Context) (string, error) {
	key, err := b.key()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(b.cache, key)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	lock := flock.New(filepath.Join(dir, "lock"))
	if ok, err := lock.TryLock(); err != nil {
		return "", fmt.Errorf("lock %s: %w", dir, err)
	} else if !ok {
		fmt.Fprintln(b.log, "waiting for another process to build the test control plane")
		if _, err := lock.TryLockContext(ctx, 200*time.Millisecond); err != nil {
			return "", fmt.Errorf("wait for the build of the test control plane: %w", err)
		}
	}
	defer lock.Close()
	binary := filepath.Join(dir, "kubebed")
	if _, err := os.Stat(binary); err == nil {
		return dir, nil
	}
	if err := b.build(ctx, binary+".new"); err != nil {
		return "", err
	}
	for _, name := range []string{etcd, apiserver, controller, scheduler, kwok, kubectl} {
		if err := os.Symlink("kubebed", filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return "", err
		}
	}
	return dir, os.Rename(binary+".new", binary)
}

// key names what the binary depends on: its source and the versions of
// everything that it is built from.
func (b *builder) key() (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.GOOS, runtime.GOARCH, linkerFlags())
	for _, name := range []string{"go.sum", "go.mod", "main.go"} {
		data, err := os.ReadFile(filepath.Join(b.source, name))
		if err != nil {
			return "", fmt.Errorf("read the source of the test control plane: %w", err)
		}
		sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

func linkerFlags() string {
	const base = "k8s.io/component-base/version."
	parts := strings.SplitN(strings.TrimPrefix(kubeVersion, "v"), ".", 3)
	set := []string{
		base + "gitVersion=" + kubeVersion, base + "gitMajor=" + parts[0], base + "gitMinor=" + parts[1],
		base + "buildDate=1970-01-01T00:00:00Z",
	}
	return "-s -w -X " + strings.Join(set, " -X ")
}

func (b *builder) build(ctx context.Context, binary string) error {
	started := time.Now()
	fmt.Fprintln(b.log, "building the test control plane (once; about ten minutes on two cores) …")
	argv := []string{"go", "build", "-mod=readonly", "-p", "2", "-ldflags", linkerFlags(), "-o", binary, "."}
	if nice, err := exec.LookPath("nice"); err == nil {
		argv = append([]string{nice}, argv...)
	}
	var stderr bytes.Buffer
	child, err := b.guard.start("build", argv, func(c *exec.Cmd) {
		c.Dir = b.source
		c.Env = append(append(c.Environ(), b.env...), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
		c.Stdout, c.Stderr = &stderr, &stderr
	})
	if err != nil {
		return fmt.Errorf("build the test control plane: %w", err)
	}
	defer child.stop()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("build the test control plane: %w", context.Cause(ctx))
		case <-tick.C:
			fmt.Fprintf(b.log, "still building the test control plane (%s)\n", time.Since(started).Round(time.Second))
		case <-child.exited:
			if child.code != 0 {
				return fmt.Errorf("build the test control plane in %s (its Go modules must be in the module cache or within reach of GOPROXY): go build: exit code %d\n%s",
					b.source, child.code, lastLines(stderr.String(), 20))
			}
			fmt.Fprintf(b.log, "built the test control plane in %s\n", time.Since(started).Round(time.Second))
			return nil
		}
	}
}

// lastLines is the end of a text.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
