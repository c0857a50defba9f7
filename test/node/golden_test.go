// SPDX-License-Identifier: Apache-2.0

//go:build node && linux

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/llmctl/llmctl/experiment"
)

// Exit codes of a run.
const (
	met   = 0
	unmet = 3 // no trial has met the SLA
)

// user is somebody with a state directory and a namespace of the cluster.
type user struct {
	t         *testing.T
	state     string
	namespace string
}

func newUser(t *testing.T) *user {
	u := &user{t: t, namespace: node.Namespace(t), state: t.TempDir()}
	t.Cleanup(func() { assert.Empty(t, u.left(), "pods are left") })
	return u
}

// left lists what is left of trials: labelled objects, and pods of whatever origin.
func (u *user) left() []string {
	left, err := node.Leftovers(context.Background(), u.namespace)
	require.NoError(u.t, err)
	pods, err := node.Core.Pods(u.namespace).List(context.Background(), metav1.ListOptions{})
	require.NoError(u.t, err)
	for _, p := range pods.Items {
		left = append(left, "pod "+p.Name)
	}
	return left
}

func (u *user) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, node.llmctl(), append([]string{"autobench"}, args...)...)
	c.Env = append(os.Environ(), "LLMCTL_STATE_DIR="+u.state, "LLMCTL_CONFIG=/dev/null", "KUBECONFIG="+node.Kubeconfig)
	return c
}

// start starts a run of an experiment.
func (u *user) start(path string) (*exec.Cmd, *bytes.Buffer) {
	var stderr bytes.Buffer
	c := u.command(u.t.Context(), "run", "-f", path, "--name", "demo", "--namespace", u.namespace)
	c.Stderr = &stderr
	require.NoError(u.t, c.Start())
	return c, &stderr
}

// llmctl runs a command to its end and returns what it prints to stdout.
func (u *user) llmctl(args ...string) string {
	u.t.Helper()
	return u.ends(0, args...)
}

// ends runs a command that ends with an exit code.
func (u *user) ends(code int, args ...string) string {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), 2*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	c := u.command(ctx, args...)
	c.Stdout, c.Stderr = &stdout, &stderr
	require.Equal(u.t, code, exitCode(u.t, c.Run()), "%v\n%s", args, &stderr)
	return stdout.String()
}

// run runs an experiment; the exit code says whether a trial has met the SLA.
func (u *user) run(code int, path string) experiment.Result {
	u.t.Helper()
	u.ends(code, "run", "-f", path, "--name", "demo", "--namespace", u.namespace)
	return u.result()
}

func (u *user) result() experiment.Result {
	u.t.Helper()
	var r struct {
		experiment.Result
		Config map[string]any `json:"config"`
	}
	require.NoError(u.t, json.Unmarshal([]byte(u.llmctl("status", "demo", "-o", "json")), &r))
	return r.Result
}

// podLogs are the saved logs of a trial, by file name.
func (u *user) podLogs(trial string) map[string]string {
	u.t.Helper()
	paths, err := filepath.Glob(filepath.Join(u.state, "demo", "trials", trial, "pod-logs", "*.log"))
	require.NoError(u.t, err)
	logs := map[string]string{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		require.NoError(u.t, err)
		logs[filepath.Base(path)] = string(data)
	}
	return logs
}

// trials counts the finished trials.
func (u *user) trials() int {
	data, err := os.ReadFile(filepath.Join(u.state, "demo", "templates", "chat.json"))
	if err != nil {
		return 0
	}
	var state experiment.TemplateState
	if json.Unmarshal(data, &state) != nil {
		return 0
	}
	return len(state.Trials)
}

// write writes the experiment with its template, changed as asked.
func write(t *testing.T, changes ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"experiment.yaml", "chat.yaml"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(strings.NewReplacer(changes...).Replace(string(data))), 0o600))
	}
	return filepath.Join(dir, "experiment.yaml")
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
		return 0
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}

func TestADeploymentIsTunedThroughTheRealPortForward(t *testing.T) {
	for _, evaluator := range []string{"native", "model"} {
		t.Run(evaluator, func(t *testing.T) {
			u := newUser(t)
			r := u.run(met, write(t, "type: native", "type: "+evaluator))
			require.Equal(t, experiment.Completed, r.Status)
			require.Len(t, r.Templates[0].Trials, 3)
			for _, trial := range r.Templates[0].Trials {
				require.Empty(t, trial.Error)
				assert.Equal(t, experiment.Feasible, trial.Outcome())
				assert.Equal(t, 64, trial.Metrics.Requests.OK)
				assert.Positive(t, *trial.Metrics.OutputThroughput)
			}
			require.NotNil(t, r.Best)
			assert.Empty(t, u.left())
			best := u.llmctl("best", "demo", "-o", "yaml")
			node.Kubectl(t, best, "apply", "--dry-run=server", "-n", u.namespace, "-f", "-")
		})
	}
}

func TestAnEngineThatCannotStartLeavesItsLogs(t *testing.T) {
	u := newUser(t)
	r := u.run(met, write(t, "maxNumSeqs: {type: pow2, min: 8, max: 64}", "gpuMemoryUtilization: {type: categorical, values: [0.99]}"))
	trials := r.Templates[0].Trials
	require.Len(t, trials, 2, "the template unchanged, and the one other value")
	assert.Empty(t, trials[0].Error)
	assert.Equal(t, "gpu_oom", trials[1].Reason, trials[1].Error)
	logs := u.podLogs("chat/1")
	require.NotEmpty(t, logs)
	for name, log := range logs {
		assert.Contains(t, log, "memory", name)
	}
	assert.Contains(t, u.llmctl("logs", "demo", "--trial", "chat/1", "--pod"), "memory")
}

func TestTheLogOfAContainerThatRestartedUnderLoadIsSaved(t *testing.T) {
	u := newUser(t)
	r := u.run(unmet, write(t, "--time-scale=2]", "--time-scale=2, --fault-crash-after=20]", "maxTrialsPerTemplate: 3", "maxTrialsPerTemplate: 1"))
	trial := r.Templates[0].Trials[0]
	assert.Equal(t, "server_restarted", trial.Reason, trial.Error)
	assert.Nil(t, trial.Metrics, "what was measured is void")
	before := previous(u.podLogs("chat/0"))
	require.NotEmpty(t, before)
	assert.Contains(t, before, "Application startup complete", "the log begins before the load")
	t.Log(before)
}

// previous is the log from before a restart.
func previous(logs map[string]string) string {
	for name, log := range logs {
		if strings.Contains(name, ".before-restart-1") {
			return log
		}
	}
	return ""
}

// An engine that never collects its garbage reaches any limit under load.
func TestARealOutOfMemoryKillIsTold(t *testing.T) {
	u := newUser(t)
	r := u.run(unmet, write(t, "limits: {memory: 512Mi}", "limits: {memory: 32Mi}\n        env: [{name: GOGC, value: \"off\"}]",
		"maxRequests: 64", "maxRequests: 5000", "maxTrialsPerTemplate: 3", "maxTrialsPerTemplate: 1"))
	trial := r.Templates[0].Trials[0]
	assert.Equal(t, "oom", trial.Reason, trial.Error)
	assert.Contains(t, trial.Error, "OOMKilled")
	assert.Contains(t, trial.Error, "32Mi")
	assert.Contains(t, previous(u.podLogs("chat/0")), "Application startup complete")
	t.Log(trial.Error)
}

func TestAKilledRunGoesOnAndLeavesNothing(t *testing.T) {
	u := newUser(t)
	c, _ := u.start(write(t))
	require.Eventually(t, func() bool { return u.trials() >= 1 && u.runningPod() }, time.Minute, 20*time.Millisecond)
	require.NoError(t, c.Process.Kill())
	require.Equal(t, 137, exitCode(t, c.Wait()))
	require.NotEmpty(t, u.left(), "nobody was there to remove them")
	done := u.trials()

	u.llmctl("resume", "demo", "--namespace", u.namespace)
	r := u.result()
	assert.Equal(t, experiment.Completed, r.Status)
	require.Len(t, r.Templates[0].Trials, 3)
	assert.Less(t, done, 3)
	for _, trial := range r.Templates[0].Trials {
		assert.Empty(t, trial.Error)
	}
}

func TestCtrlCLeavesNothing(t *testing.T) {
	u := newUser(t)
	c, stderr := u.start(write(t))
	require.Eventually(t, u.runningPod, time.Minute, 20*time.Millisecond)
	require.NoError(t, c.Process.Signal(os.Interrupt))
	assert.Equal(t, 130, exitCode(t, c.Wait()))
	assert.Contains(t, stderr.String(), "go on with: llmctl autobench resume demo")
	assert.Empty(t, u.left())
}

// runningPod tells whether an engine runs.
func (u *user) runningPod() bool {
	pods, err := node.Core.Pods(u.namespace).List(context.Background(), metav1.ListOptions{})
	require.NoError(u.t, err)
	for _, p := range pods.Items {
		if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			return true
		}
	}
	return false
}
