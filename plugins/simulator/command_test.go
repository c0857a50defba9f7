// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// output collects what a running Main writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// runMain runs Main to its end; it must end by itself.
func runMain(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err output
	code = Main(t.Context(), args, os.Getenv, &out, &err, nil)
	return code, out.String(), err.String()
}

// process is a Main that serves.
type process struct {
	url    string
	stderr *output
	stop   context.CancelFunc
	code   chan int
}

func startMain(t *testing.T, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	p := &process{stderr: &output{}, stop: cancel, code: make(chan int, 1)}
	args = append([]string{"m", "--host", "127.0.0.1", "--port", "0", "--startup-time", "0"}, args...)
	go func() { p.code <- Main(ctx, args, os.Getenv, &output{}, p.stderr, nil) }()
	require.Eventually(t, func() bool {
		m := listening.FindStringSubmatch(p.stderr.String())
		if m != nil {
			p.url = "http://" + m[1]
		}
		return m != nil
	}, 10*time.Second, time.Millisecond)
	return p
}

func TestMainServesUntilItIsStopped(t *testing.T) {
	p := startMain(t, "--max-num-seqs", "64", "--max-num-seqs=32", "--time-scale", "100")
	resp, err := http.Get(p.url + "/health")
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	p.stop()
	assert.Equal(t, 0, <-p.code)
	assert.Equal(t, `WARNING [argparse_utils.py] Found duplicate keys --max-num-seqs
INFO [utils.py] non-default args: {'model_tag': 'm', 'host': '127.0.0.1', 'max_num_seqs': 32, 'port': 0, 'startup_time': '0s', 'time_scale': 100}
INFO [gpu_worker.py] Available KV cache memory: 55.42 GiB
INFO [kv_cache_utils.py] GPU KV cache size: 454,000 tokens, Maximum concurrency for 8,192 tokens per request: 55.42x
INFO [core.py] init engine (profile, create kv cache, warmup model) took 0.00 s
INFO [api_server.py] Starting vLLM server on `+p.url+`
INFO:     Application startup complete.
`, p.stderr.String())
	_, err = http.Get(p.url + "/health")
	require.Error(t, err)
}

func TestMainRefusesABadCommandLineWithCode2(t *testing.T) {
	code, stdout, stderr := runMain(t, "m", "--swap-space", "4")
	assert.Equal(t, 2, code)
	assert.Empty(t, stdout)
	assert.Equal(t, "usage: llmctl simulate [serve] [model_tag] [options]\nllmctl simulate: error: unrecognized arguments: --swap-space 4\n", stderr)
}

func TestMainPrintsHelpOnStdout(t *testing.T) {
	code, stdout, stderr := runMain(t, "serve", "--help")
	assert.Equal(t, 0, code)
	assert.Empty(t, stderr)
	for _, o := range options() {
		assert.Contains(t, stdout, "  "+o.display())
	}
	assert.True(t, strings.HasPrefix(stdout, "usage: llmctl simulate "), stdout)
}

func TestMainFailsToStartWithCode1(t *testing.T) {
	const engine = "ERROR [core.py] EngineCore failed to start.\nTraceback (most recent call last):\n"
	const wrapper = "\nTraceback (most recent call last):\nRuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': 1}\n"
	for name, tt := range map[string]struct {
		args []string
		want string // end of stderr
	}{
		"combination": {[]string{"--max-num-batched-tokens", "64", "--max-num-seqs", "65"},
			"Traceback (most recent call last):\npydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig\n" +
				"  Value error, max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (65). [type=value_error]\n"},
		"no memory": {[]string{"--gpu-memory-utilization", "0.2"},
			engine + "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine." + wrapper},
		"out of memory": {[]string{"--gpu-memory-utilization", "0.99"},
			engine + "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. " +
				"Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine." + wrapper},
		"request log": {[]string{"--request-log", "/nowhere/log"},
			"Traceback (most recent call last):\nRuntimeError: --request-log: open /nowhere/log: no such file or directory\n"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := runMain(t, append([]string{"m", "--host", "127.0.0.1", "--port", "0", "--startup-time", "20ms"}, tt.args...)...)
			assert.Equal(t, 1, code)
			assert.Empty(t, stdout)
			assert.True(t, strings.HasSuffix("\n"+stderr, "\n"+tt.want), stderr)
		})
	}
}

func TestMainFailsAtOnceWhenThePortIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	code, _, stderr := runMain(t, "m", "--host", "127.0.0.1", "--port", port, "--startup-time", "1h")
	assert.Equal(t, 1, code)
	assert.True(t, strings.HasSuffix(stderr, "Traceback (most recent call last):\nOSError: [Errno 98] Address already in use\n"), stderr)
}

func TestMainEndsWithCode1WhenAFaultEndsTheEngine(t *testing.T) {
	for flag, want := range map[string]string{
		"--fault-crash-after": "RuntimeError: CUDA error: an illegal memory access was encountered",
		"--fault-oom-after":   "torch.OutOfMemoryError: CUDA out of memory.",
	} {
		p := startMain(t, flag, "1")
		_, err := http.Post(p.url+"/v1/completions", "", strings.NewReader(askShort))
		require.Error(t, err)
		assert.Equal(t, 1, <-p.code)
		assert.Contains(t, p.stderr.String(), "EngineCore encountered a fatal error.\nTraceback (most recent call last):\n"+want)
	}
}

func TestMainDoesNotListenBeforeItIsReady(t *testing.T) {
	for _, args := range [][]string{{"--startup-time", "1h"}, {"--startup-time", "0", "--fault-never-ready"}} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		address := l.Addr().String()
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		require.NoError(t, l.Close())

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stderr, code := &output{}, make(chan int, 1)
		go func() {
			code <- Main(ctx, append([]string{"m", "--host", "127.0.0.1", "--port", port}, args...), os.Getenv, &output{}, stderr, nil)
		}()
		require.Eventually(t, func() bool { return strings.Contains(stderr.String(), "non-default args") }, 10*time.Second, time.Millisecond)
		// The probe of the port may still be open for an instant.
		require.Eventually(t, func() bool {
			c, err := net.Dial("tcp", address)
			if err == nil {
				c.Close()
			}
			return err != nil
		}, 10*time.Second, 5*time.Millisecond)
		assert.NotContains(t, stderr.String(), "Application startup complete")
		cancel()
		assert.Equal(t, 0, <-code)
	}
}

func TestMainTakesTheKeyFromTheEnvironment(t *testing.T) {
	t.Setenv("VLLM_API_KEY", "sesame")
	p := startMain(t)
	resp, err := http.Get(p.url + "/v1/models")
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, http.StatusUnauthorized, resp.StatusCode)
	assert.NotContains(t, p.stderr.String(), "sesame")
}

func TestMainWritesTheRequestLog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "requests.jsonl")
	p := startMain(t, "--request-log", file, "--time-scale", "1000")
	for range 2 {
		resp, err := http.Post(p.url+"/v1/completions", "", strings.NewReader(askShort))
		require.NoError(t, err)
		resp.Body.Close()
	}
	p.stop()
	require.Equal(t, 0, <-p.code)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, 2, strings.Count(string(data), `"output_tokens":6,`))

	p = startMain(t, "--request-log", "-", "--time-scale", "1000")
	resp, err := http.Post(p.url+"/v1/completions", "", strings.NewReader(askShort))
	require.NoError(t, err)
	resp.Body.Close()
	p.stop()
	require.Equal(t, 0, <-p.code)
	assert.Contains(t, p.stderr.String(), `"finish_reason":"length"}`)
}
