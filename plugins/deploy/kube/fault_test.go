// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

// fault makes the pods of a simulated engine fail.
func fault(name string, details ...string) []string {
	list := []string{"bed.llmctl.io/fault: " + name}
	for i := 0; i+1 < len(details); i += 2 {
		list = append(list, "bed.llmctl.io/fault-"+details[i]+": '"+details[i+1]+"'")
	}
	return list
}

// read is a file of a trial's logs, or "".
func read(t *testing.T, in *instance, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(in.plan.Logs, pattern))
	require.NoError(t, err)
	var all strings.Builder
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(data)
	}
	return all.String()
}

func TestAServerThatNeverServesFailsFastWithItsCause(t *testing.T) {
	for _, c := range []struct {
		name    string
		fault   []string
		change  func(*experiment.Execution)
		class   string
		message string
		log     string // in a file of the logs
		file    string
	}{
		{name: "CrashLoop (K1)", fault: fault("crashloop", "log", "no such thing", "exit-code", "3"), class: "server_died", message: "exit code 3, 3 restarts", log: "no such thing", file: "*.before-restart-1.log"},
		{name: "the log says why (K5)", fault: fault("crashloop", "log", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"), class: "gpu_oom", message: "CUDA out of memory. Tried to allocate 2 GiB", log: "torch.OutOfMemoryError", file: "*.log"},
		{name: "memory limit (K5)", fault: fault("oom", "log", "loading weights"), class: "oom", message: "was OOMKilled", log: "loading weights", file: "*.log"},
		{name: "refused arguments (F20)", fault: fault("crashloop", "log", "vllm serve: error: unrecognized arguments: --foo", "exit-code", "2"), class: "config_error", message: "unrecognized arguments: --foo", log: "--foo", file: "*.log"},
		{name: "image (K2)", fault: fault("image-pull"), change: func(e *experiment.Execution) { e.ImagePullTimeout = 2 * time.Second }, class: "image", message: "registry.example/engine:1", log: "phase: Pending", file: "pods.yaml"},
		{name: "image name", fault: fault("invalid-image"), class: "image", message: "InvalidImageName"},
		{name: "missing Secret", fault: fault("config-error", "log", "secret \"hf\" not found"), class: "config_error", message: "secret \"hf\" not found"},
		{name: "eviction", fault: fault("evicted", "log", "The node was low on resource: memory."), class: "infra_transient", message: "The node was low on resource: memory."},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if c.change != nil {
				c.change(&w.Execution)
			}
			in := w.deploy(w.plan(simulated(c.fault...)))
			cause := w.failure(in)
			assert.Equal(t, c.class, cause.Class, cause.Message)
			assert.Contains(t, cause.Message, c.message)
			assert.NotContains(t, cause.Message, "\n")
			if c.file != "" {
				assert.Contains(t, read(t, in, c.file), c.log)
			}
			assert.Contains(t, read(t, in, "events.yaml"), "message:")
			again, err := in.Diagnose(t.Context())
			require.NoError(t, err)
			assert.Equal(t, cause, again, "the first finding stays")
		})
	}
}

func TestAPodWithoutAGPUIsUnschedulable(t *testing.T) {
	w := newWorld(t)
	w.Execution.SchedulingTimeout = time.Second
	in := w.deploy(w.plan(strings.Replace(simulated(), "        ports: [{containerPort: 8000}]", `        ports: [{containerPort: 8000}]
        resources: {limits: {nvidia.com/gpu: "16"}}`, 1)))
	cause := w.failure(in)
	assert.Equal(t, "unschedulable", cause.Class)
	assert.Contains(t, cause.Message, "Insufficient nvidia.com/gpu")
}

func TestAQuotaThatRefusesPodsFailsFast(t *testing.T) {
	w := newWorld(t)
	w.bed.Quota(t, w.Namespace, map[string]string{"pods": "0"})
	cause := w.failure(w.deploy(w.plan(simulated())))
	assert.Equal(t, "quota", cause.Class)
	assert.Contains(t, cause.Message, "exceeded quota")
}

// notReadyIn waits for a server that does not get ready, and asks why.
func notReadyIn(t *testing.T, in experiment.Instance, limit time.Duration) experiment.Cause {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, &experiment.Failure{Cause: experiment.Cause{Class: "not_ready", Message: "time is up"}})
	defer cancel()
	_, err := in.Ready(ctx)
	require.ErrorContains(t, err, "time is up")
	cause, err := in.Diagnose(t.Context())
	require.NoError(t, err)
	return cause
}

func TestAServerThatIsNotReadyInTimeIsExplained(t *testing.T) {
	w := newWorld(t)
	in := w.deploy(w.plan(strings.Replace(simulated(fault("never-ready")...), "--host=0.0.0.0", "--host=127.0.0.1", 1)))
	cause := notReadyIn(t, in, 10*time.Second)
	assert.Equal(t, "not_ready", cause.Class)
	assert.Contains(t, cause.Message, "listens on the loopback address only")
	assert.Contains(t, read(t, in, "*.log"), "Application startup complete")
}

func TestAHealthyEngineThatAnswersNothingIsNotReady(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t)
	in := w.deploy(w.plan(strings.Replace(simulated(), "--port=8000", "--port=8000, --fault-not-serving", 1)))
	cause := notReadyIn(t, in, 10*time.Second)
	assert.Equal(t, "not_ready", cause.Class)
	assert.Contains(t, cause.Message, "every pod is ready, and the engine has not answered a completion")
	assert.Contains(t, cause.Message, "POST /v1/completions: status 503")
}

func TestAnEngineThatHangsAfterAFatalMessageIsHeard(t *testing.T) {
	w := newWorld(t)
	manifest := strings.Replace(simulated(), "command: [llmctl, simulate, --model=m, --startup-time=100ms, --host=0.0.0.0, --port=8000]",
		`command: [sh, -c, 'echo "vllm serve: error: unrecognized arguments: --foo"; sleep 100; exec llmctl simulate --model=m --port=8000']`, 1)
	cause := w.failure(w.deploy(w.plan(manifest)))
	assert.Equal(t, "config_error", cause.Class)
	assert.Contains(t, cause.Message, "unrecognized arguments: --foo")
}

// K15: an engine can be healthy and answer nothing.
func TestAnEngineThatRunsAndAnswersNoMoreHasDied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.deploy(w.plan(strings.Replace(simulated(), "--port=8000", "--port=8000, --fault-hang-after=1", 1))) // the probe is the first request
	_, err := in.Ready(t.Context())
	require.NoError(t, err)
	cause, err := in.Diagnose(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "server_died", cause.Class)
	assert.Contains(t, cause.Message, "the engine no longer answers after the load: ")
}

// K19: the log of before a restart is there for one container and not for another.
func TestOfTwoContainersTheLogsOfBothAreSaved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	manifest := strings.Replace(simulated(fault("crashloop", "log", "no such thing")...), "      - name: engine", `      - {name: proxy, image: "registry.example/proxy:1", command: [sh, -c, "echo proxying; exec sleep 3600"]}
      - name: engine`, 1)
	in := w.deploy(w.plan(manifest))
	cause := w.failure(in)
	assert.Equal(t, "server_died", cause.Class, cause.Message)
	assert.Contains(t, cause.Message, "container engine of pod ")
	assert.Contains(t, read(t, in, "*engine*before-restart-1.log"), "no such thing")
	assert.Contains(t, read(t, in, "*proxy*.log"), "proxying")
	assert.Empty(t, read(t, in, "*proxy*before-restart*.log"))
}

func TestARestartUnderLoadVoidsTheMeasurement(t *testing.T) {
	for name, c := range map[string]struct {
		fault []string
		class string
	}{
		"restart (K6)":       {fault("restart", "after", "1500ms"), "server_restarted"},
		"liveness":           {fault("liveness-killed", "after", "1500ms"), "server_restarted"},
		"out of memory (K7)": {fault("oom", "after", "1500ms"), "oom"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			in := w.deploy(w.plan(simulated(c.fault...)))
			_, err := in.Ready(t.Context())
			require.NoError(t, err)
			var cause experiment.Cause
			require.Eventually(t, func() bool {
				cause, err = in.Diagnose(t.Context())
				return err == nil && cause.Class != ""
			}, 20*time.Second, 100*time.Millisecond)
			assert.Equal(t, c.class, cause.Class, cause.Message)
			assert.NotEmpty(t, read(t, in, "*before-restart-1.log"))
		})
	}
}
