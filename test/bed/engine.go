// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/llmctl/llmctl/plugins/engine"
)

// shim is what the words llmctl and vllm mean in a container: the binary, with
// the engine's address replaced, since all containers share one network here. It
// leaves the engine's process id in a file.
const shim = `#!/bin/sh
case $1 in
simulate | serve) shift ;;
*) exec '%[1]s' "$@" ;;
esac
n=$#
while [ "$n" -gt 0 ]; do
	word=$1
	shift
	n=$((n - 1))
	case $word in
	--port | --host) if [ "$n" -gt 0 ]; then shift; n=$((n - 1)); fi ;;
	--port=* | --host=*) ;;
	*) set -- "$@" "$word" ;;
	esac
done
echo $$ >'%[2]s'
exec '%[1]s' simulate "$@" --host %[3]s --port %[4]d
`

// simulated are the commands that the simulated engine stands for.
var simulated = map[string]bool{"llmctl": true, "vllm": true}

var engineCommand = regexp.MustCompile(`\b(llmctl simulate|vllm serve)\b`)

// launch starts the container's command.
func (c *container) launch(env []corev1.EnvVar, log *containerLog, restart int32) (*child, error) {
	if c.port == 0 {
		var err error
		if c.port, err = c.pod.kubelet.ports.free(); err != nil {
			return nil, err
		}
	}
	bin := filepath.Join(c.dir, "bin")
	if err := os.MkdirAll(bin, 0o700); err != nil {
		return nil, err
	}
	script := fmt.Sprintf(shim, c.pod.kubelet.guard.llmctl, c.pidFile(), loopback, c.port)
	for name := range simulated {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700); err != nil {
			return nil, err
		}
	}
	argv := engine.Expand(append(append([]string{}, c.spec.Command...), c.spec.Args...), lookup(env))
	if name := filepath.Base(argv[0]); simulated[name] {
		argv[0] = filepath.Join(bin, name)
	}
	if c.doomed() {
		argv = c.pod.fault.command()
	}
	name := fmt.Sprintf("%s-%s-%d", c.pod.object.UID, c.spec.Name, restart)
	// The engine's own address in its log would tell of the bed.
	shown := strings.NewReplacer(address(c.port), net.JoinHostPort(c.host, strconv.Itoa(c.listed)))
	return c.pod.kubelet.guard.start(name, argv, func(command *exec.Cmd) {
		command.Dir = c.dir
		command.Stdout, command.Stderr = log.stream("stdout", shown), log.stream("stderr", shown)
		command.Env = []string{"HOME=" + c.dir, "HOSTNAME=" + c.pod.object.Name}
		for _, v := range env {
			if v.Name != "PATH" {
				command.Env = append(command.Env, v.Name+"="+v.Value)
			}
		}
		command.Env = append(command.Env, "PATH="+bin+":/usr/local/bin:/usr/bin:/bin")
	})
}

func lookup(env []corev1.EnvVar) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, v := range env {
			if v.Name == name {
				return v.Value, true
			}
		}
		return "", false
	}
}

func (c *container) pidFile() string { return filepath.Join(c.dir, "pid") }

// signal sends to the engine itself, past shells and guards.
func (c *container) signal(s os.Signal) error {
	data, err := os.ReadFile(c.pidFile())
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return err
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return process.Signal(s)
}

const probeLimit = time.Second

func probeClient() *http.Client {
	return &http.Client{Timeout: probeLimit, Transport: &http.Transport{DisableKeepAlives: true}}
}

// refused is what a kubelet says of an engine that it cannot reach.
func (c *container) refused() string {
	pod := net.JoinHostPort(c.pod.address, strconv.Itoa(c.listed))
	return fmt.Sprintf("Get %q: dial tcp %s: connect: connection refused", "http://"+pod+c.health(), pod)
}

func (c *container) health() string {
	if p := c.spec.ReadinessProbe; p != nil && p.HTTPGet != nil && p.HTTPGet.Path != "" {
		return p.HTTPGet.Path
	}
	return "/health"
}

// probe says what is wrong with the engine's health, or "".
func (c *container) probe(ctx context.Context) string {
	if ip := net.ParseIP(c.host); c.host == "localhost" || ip != nil && ip.IsLoopback() {
		return c.refused() // in a real pod, nobody else could reach it
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address(c.port)+c.health(), nil)
	if err != nil {
		return err.Error()
	}
	res, err := c.pod.kubelet.client.Do(req)
	if err != nil {
		return c.refused()
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err.Error()
	}
	if res.StatusCode >= http.StatusBadRequest {
		return fmt.Sprintf("HTTP probe failed with statuscode: %d", res.StatusCode)
	}
	return ""
}
