// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// childVariable makes the test binary a simulator, so that a benchmark can
// measure the processor time of the server alone.
const childVariable = "LLMCTL_SIMULATOR_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(Main(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr, nil))
}

// BenchmarkServerStreams reads 1,000 streams at once from a server that has
// one processor and whose model is faster than that processor.
func BenchmarkServerStreams(b *testing.B) {
	const streams, tokens = 1000, 300
	server := startChild(b, "bench", "--port", "0", "--host", "127.0.0.1", "--max-num-seqs", "1024", "--startup-time", "0", "--time-scale", "10")
	body := fmt.Sprintf(`{"model":"bench","prompt":[1,2,3,4],"max_tokens":%d,"ignore_eos":true,"stream":true}`, tokens)
	request := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)

	var chunks atomic.Int64
	for b.Loop() {
		var clients sync.WaitGroup
		for range streams {
			clients.Go(func() {
				n, err := readRaw(server.address, request)
				if err != nil {
					b.Error(err)
				}
				chunks.Add(n)
			})
		}
		clients.Wait()
	}
	if want := int64(b.N * streams * tokens); chunks.Load() != want {
		b.Errorf("read %d chunks, want %d", chunks.Load(), want)
	}
	cpu := server.stop(b)
	b.ReportMetric(float64(chunks.Load())/b.Elapsed().Seconds(), "chunks/s")
	b.ReportMetric(float64(chunks.Load())/cpu.Seconds(), "chunks/server-cpu-s")
}

// readRaw sends a request and counts the events with a choice until the server
// closes the connection.
func readRaw(address, request string) (int64, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		return 0, err
	}
	var n int64
	buf, rest := make([]byte, 64<<10), 0
	for {
		k, err := c.Read(buf[rest:])
		data := buf[:rest+k]
		lines := data[:bytes.LastIndexByte(data, '\n')+1]
		n += int64(bytes.Count(lines, []byte(`"index"`)))
		rest = copy(buf, data[len(lines):])
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

type child struct {
	cmd     *exec.Cmd
	address string
}

var listening = regexp.MustCompile(`Starting vLLM server on http://(\S+)`)

func startChild(b *testing.B, args ...string) *child {
	exe, err := os.Executable()
	require.NoError(b, err)
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), childVariable+"=1", "GOMAXPROCS=1")
	stderr, err := cmd.StderrPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			go func() { _, _ = io.Copy(io.Discard, stderr) }()
			return &child{cmd, m[1]}
		}
	}
	b.Fatal("the server did not start")
	return nil
}

// stop ends the server and returns the processor time it has used.
func (c *child) stop(b *testing.B) time.Duration {
	require.NoError(b, c.cmd.Process.Signal(os.Interrupt))
	require.NoError(b, c.cmd.Wait())
	return c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime()
}

// BenchmarkStep is one step with 1,000 running sequences.
func BenchmarkStep(b *testing.B) {
	c := DefaultConfig()
	c.MaxNumSeqs, c.MaxModelLen = 1000, 0
	e, err := NewEngine(c)
	require.NoError(b, err)
	submit := func() {
		_, err := e.Submit(4, 400, nil)
		require.NoError(b, err)
	}
	for range 1000 {
		submit()
	}
	for b.Loop() {
		r, err := e.Step()
		if err != nil {
			b.Fatal(err)
		}
		for _, s := range r.Tokens {
			if s.Done() {
				submit()
			}
		}
	}
}
