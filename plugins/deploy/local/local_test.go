// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/engine"
	"github.com/llmctl/llmctl/plugins/simulator"
)

// TestMain lets the test binary stand for llmctl: its guard and its simulated engine.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "guard":
			os.Exit(Guard(os.Args[2:], os.Stdin, os.Stderr))
		case "simulate":
			ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer cancel()
			os.Exit(simulator.Main(ctx, os.Args[2:], os.Getenv, os.Stdout, os.Stderr, nil))
		}
	}
	os.Exit(m.Run())
}

func newDeployer(t *testing.T) *Deployer {
	t.Helper()
	e, err := engine.Load("simulator")
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	d := &Deployer{Engine: e, Guard: []string{self, "guard"}, Self: self, Records: filepath.Join(t.TempDir(), "processes"), Environ: append(os.Environ(), "GORACE=atexit_sleep_ms=0")}
	require.NoError(t, d.Sweep(t.Context()))
	return d
}

// manifest is a pod with one container of the given command and further fields.
func manifest(command string, more ...string) []byte {
	return []byte(`apiVersion: v1
kind: Pod
metadata: {name: sim}
spec:
  containers:
  - name: engine
    image: x
    command: ` + command + "\n" + strings.Join(more, "\n"))
}

func simulate(flags ...string) []byte {
	argv := append([]string{"llmctl", "simulate", "--model=m", "--startup-time=0s", "--time-scale=20"}, flags...)
	return manifest("[" + strings.Join(argv, ", ") + "]")
}

func launch(t *testing.T, d *Deployer, manifest []byte) *process {
	t.Helper()
	instance, err := d.Deploy(t.Context(), experiment.Plan{Name: "sim-0", Manifest: manifest, Logs: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, instance.Delete(context.Background())) })
	return instance.(*process)
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestAnEngineServesAndIsGoneAfterDelete(t *testing.T) {
	for name, command := range map[string]string{
		"argv":  "[llmctl, simulate, m, --startup-time=0s]",
		"shell": `[sh, -c, "echo begin; exec llmctl simulate m --startup-time 0s"]`,
		"child": `[sh, -c, "sleep 1000 & llmctl simulate m --startup-time 0s; echo after"]`,
	} {
		t.Run(name, func(t *testing.T) {
			d := newDeployer(t)
			p := launch(t, d, manifest(command))
			target, err := p.Ready(t.Context())
			require.NoError(t, err)
			assert.Equal(t, "m", target.Model)
			res, err := http.Get(target.BaseURL + "/health")
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			assert.Equal(t, 200, res.StatusCode)
			cause, err := p.Diagnose(t.Context())
			require.NoError(t, err)
			assert.Empty(t, cause, "an engine that runs is not at fault")

			require.NoError(t, p.Delete(t.Context()))
			require.NoError(t, p.Delete(t.Context()), "deleting twice is fine")
			l, err := net.Listen("tcp", strings.TrimPrefix(target.BaseURL, "http://"))
			require.NoError(t, err)
			require.NoError(t, l.Close())
			records, err := filepath.Glob(filepath.Join(d.Records, "sim*"))
			require.NoError(t, err)
			assert.Empty(t, records)
			log, err := os.ReadFile(p.log)
			require.NoError(t, err)
			assert.Contains(t, string(log), "Application startup complete")
		})
	}
}

func TestADeadEngineFailsFastWithItsCause(t *testing.T) {
	for name, c := range map[string]struct {
		manifest []byte
		class    string
		message  string
	}{
		"refused flag":   {simulate("--max-num-seqs=many"), "config_error", "invalid int value"},
		"no memory":      {simulate("--gpu-memory-utilization=0.99"), "gpu_oom", "exit code 1"},
		"no such file":   {manifest(`[sh, -c, "exec llmctl-none simulate m; llmctl simulate m"]`), "config_error", "127"},
		"ends by itself": {manifest(`[sh, -c, "echo one; echo two; exit 3; llmctl simulate m"]`), "server_died", "exit code 3; its last words: one | two"},
	} {
		t.Run(name, func(t *testing.T) {
			p := launch(t, newDeployer(t), c.manifest)
			_, err := p.Ready(t.Context())
			var failure *experiment.Failure
			require.ErrorAs(t, err, &failure)
			assert.Equal(t, c.class, failure.Class, failure.Message)
			assert.Contains(t, failure.Message, c.message)
			cause, err := p.Diagnose(t.Context())
			require.NoError(t, err)
			assert.Equal(t, failure.Cause, cause)
		})
	}
}

func TestHealthyIsNotYetServing(t *testing.T) {
	for flag, want := range map[string]string{"--fault-not-serving": "POST /v1/completions: status 503", "--fault-never-ready": "connection refused"} {
		t.Run(flag, func(t *testing.T) {
			p := launch(t, newDeployer(t), simulate(flag))
			reason := errors.New("waited long enough")
			ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, reason)
			defer cancel()
			_, err := p.Ready(ctx)
			require.ErrorIs(t, err, reason)
			assert.Contains(t, err.Error(), want)
		})
	}
}

func TestAnEngineThatDiesUnderLoadSaysWhy(t *testing.T) {
	p := launch(t, newDeployer(t), simulate("--fault-oom-after=3"))
	target, err := p.Ready(t.Context())
	require.NoError(t, err)
	for range 5 {
		res, err := http.Post(target.BaseURL+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x","max_tokens":1}`))
		if err != nil {
			break
		}
		require.NoError(t, res.Body.Close())
	}
	<-p.exited
	cause, err := p.Diagnose(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "gpu_oom", cause.Class)
	assert.Contains(t, cause.Message, "OutOfMemoryError")
}

func TestWhatCannotRunHereIsRefused(t *testing.T) {
	d := newDeployer(t)
	for want, m := range map[string][]byte{
		"environment variable TOKEN_OF_TEST comes from": manifest("[llmctl, simulate, m]", "    env:", "    - name: TOKEN_OF_TEST", "      valueFrom: {secretKeyRef: {name: s, key: k}}"),
		"container": manifest("[other, command]"),
	} {
		require.ErrorContains(t, d.Check(m), want)
		_, err := d.Deploy(t.Context(), experiment.Plan{Name: "sim-0", Manifest: m, Logs: t.TempDir()})
		var failure *experiment.Failure
		require.ErrorAs(t, err, &failure)
		assert.Equal(t, experiment.ClassConfig, failure.Class)
	}
	d.Environ = append(d.Environ, "TOKEN_OF_TEST=x")
	require.NoError(t, d.Check(manifest("[llmctl, simulate, m]", "    env:", "    - name: TOKEN_OF_TEST", "      valueFrom: {secretKeyRef: {name: s, key: k}}")))
}

func TestTheContainersEnvironmentReachesTheEngine(t *testing.T) {
	p := launch(t, newDeployer(t), manifest(`[sh, -c, "echo value=$GREETING-$(GREETING); exec llmctl simulate m --startup-time 0s"]`, "    env: [{name: GREETING, value: hello}]"))
	_, err := p.Ready(t.Context())
	require.NoError(t, err)
	log, err := os.ReadFile(p.log)
	require.NoError(t, err)
	assert.Contains(t, string(log), "value=hello-hello")
}

// guarded starts a guard over a shell that reports the pid of its child, and
// returns the guard's command, its hold and both pids.
func guarded(t *testing.T, record, script string) (guard *exec.Cmd, hold func(), child int) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	out := filepath.Join(t.TempDir(), "pid")
	guard = exec.Command(self, "guard", record, "sh", "-c", fmt.Sprintf(script, out))
	guard.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	pipe, err := guard.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, guard.Start())
	require.Eventually(t, func() bool {
		data, err := os.ReadFile(out)
		child, _ = strconv.Atoi(strings.TrimSpace(string(data)))
		return err == nil && child > 0
	}, 10*time.Second, 5*time.Millisecond)
	return guard, func() { require.NoError(t, pipe.Close()) }, child
}

func TestAGuardEndsTheWholeGroupWhenItsParentIsGone(t *testing.T) {
	record := filepath.Join(t.TempDir(), "record")
	guard, release, child := guarded(t, record, `sleep 1000 & echo $! > %s; wait`)
	assert.True(t, alive(child))
	release()
	require.Error(t, guard.Wait(), "the command was ended by a signal")
	assert.Equal(t, 128+int(syscall.SIGTERM), guard.ProcessState.ExitCode())
	assert.False(t, alive(child))
	assert.NoFileExists(t, record)
}

func TestTheKernelEndsTheCommandOfAKilledGuard(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has a signal for the death of a parent")
	}
	guard, _, child := guarded(t, filepath.Join(t.TempDir(), "record"), `echo $$ > %s; exec sleep 1000`)
	require.NoError(t, guard.Process.Kill())
	require.Error(t, guard.Wait())
	require.Eventually(t, func() bool { return !alive(child) }, 10*time.Second, 5*time.Millisecond)
}

func TestSweepEndsWhatAnEarlierRunLeft(t *testing.T) {
	d := newDeployer(t)
	stale := filepath.Join(d.Records, "stale")
	require.NoError(t, os.WriteFile(stale, []byte(strconv.Itoa(os.Getpid())), 0o600))
	record := filepath.Join(d.Records, "left")
	guard, release, child := guarded(t, record, `echo $$ > %s; exec sleep 1000`)
	done := make(chan error, 1)
	go func() { done <- guard.Wait() }()
	release()
	require.NoError(t, d.Sweep(t.Context()))
	assert.NoFileExists(t, record)
	assert.NoFileExists(t, stale, "a record that nobody locks is nobody's: our own pid in it is not killed")
	require.Error(t, <-done)
	assert.False(t, alive(child))
}

func TestExitCodesFollowTheShellsHabit(t *testing.T) {
	assert.Equal(t, 0, exitCode(exec.Command("true").Run()))
	assert.Equal(t, 5, exitCode(exec.Command("sh", "-c", "exit 5").Run()))
	assert.Equal(t, 137, exitCode(exec.Command("sh", "-c", "kill -9 $$").Run()))
	assert.Equal(t, 126, exitCode(errors.New("x")))
}

// K15: an engine can be healthy and answer nothing.
func TestAnEngineThatRunsAndAnswersNoMoreHasDied(t *testing.T) {
	d := newDeployer(t)
	p := launch(t, d, simulate("--fault-hang-after=1")) // the probe is the first request
	_, err := p.Ready(t.Context())
	require.NoError(t, err)
	cause, err := p.Diagnose(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "server_died", cause.Class)
	assert.Contains(t, cause.Message, "the engine runs but does not answer any more: ")
}
