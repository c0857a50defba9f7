// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/plugins/loadgen"
)

// simulated starts an engine in a process of its own and returns its address and
// the log of its requests.
func simulated(b *testing.B, flags ...string) (url, log string) {
	b.Helper()
	log = filepath.Join(b.TempDir(), "requests.log")
	port := freePort(b)
	c := exec.Command(binary, append([]string{"simulate", "--model=sim", "--startup-time=0s", "--host=127.0.0.1", "--port=" + strconv.Itoa(port), "--request-log=" + log}, flags...)...)
	c.Stderr = os.Stderr
	if !testing.Verbose() {
		c.Stderr = nil
	}
	require.NoError(b, c.Start())
	b.Cleanup(func() {
		require.NoError(b, c.Process.Signal(os.Interrupt))
		_ = c.Wait() // it was told to end
	})
	url = "http://127.0.0.1:" + strconv.Itoa(port)
	require.Eventually(b, func() bool {
		res, err := http.Get(url + "/health")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK
	}, 30*time.Second, 20*time.Millisecond)
	return url, log
}

// client is what llmctl bench left.
type client struct {
	result  *loadgen.Result
	summary loadgen.Summary
	cpu     float64 // seconds
	took    float64 // seconds
	peak    float64 // MB
}

func runClient(b *testing.B, url string, args ...string) client {
	b.Helper()
	records := filepath.Join(b.TempDir(), "records.jsonl.gz")
	c := exec.Command(binary, append([]string{"bench", "--url", url, "--records", records, "-o", "json"}, args...)...)
	c.Env = append(os.Environ(), "LLMCTL_CONFIG=/dev/null")
	out, err := os.CreateTemp(b.TempDir(), "out")
	require.NoError(b, err)
	defer out.Close()
	c.Stdout, c.Stderr = out, out
	begin := time.Now()
	err = c.Run()
	text, readErr := os.ReadFile(out.Name())
	require.NoError(b, readErr)
	require.NoError(b, err, "%s", text)
	usage := c.ProcessState.SysUsage().(*syscall.Rusage)
	peak := float64(usage.Maxrss) / 1024
	if runtime.GOOS == "darwin" {
		peak /= 1024 // bytes there
	}
	file, err := os.Open(records)
	require.NoError(b, err)
	defer file.Close()
	results, err := loadgen.ReadRecords(file)
	require.NoError(b, err)
	require.Len(b, results, 1)
	return client{
		result: results[0], summary: loadgen.Summarize(results[0]), took: time.Since(begin).Seconds(), peak: peak,
		cpu: (c.ProcessState.UserTime() + c.ProcessState.SystemTime()).Seconds(),
	}
}

// serverTimes reads the engine's own TTFT and E2E in ms, by request id.
func serverTimes(b *testing.B, log string) map[string][2]float64 {
	b.Helper()
	file, err := os.Open(log)
	require.NoError(b, err)
	defer file.Close()
	times := map[string][2]float64{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var r struct {
			ID      string `json:"id"`
			Arrival int64  `json:"arrival_ns"`
			First   *int64 `json:"first_token_ns"`
			Last    *int64 `json:"last_token_ns"`
		}
		require.NoError(b, json.Unmarshal(lines.Bytes(), &r))
		if r.First != nil && r.Last != nil {
			times[strings.TrimPrefix(r.ID, "cmpl-")] = [2]float64{float64(*r.First-r.Arrival) / 1e6, float64(*r.Last-r.Arrival) / 1e6}
		}
	}
	require.NoError(b, lines.Err())
	return times
}

func quantile(values []float64, p float64) float64 {
	slices.Sort(values)
	return values[int(math.Ceil(p*float64(len(values))))-1]
}

// BenchmarkLoadgenAccuracy compares what the client measures with the engine's own
// clock, at about 1,000 streams, from the moment that each request is sent. Where
// every token is a chunk, 1,000 chunks come at once with every step; with
// --stream-interval they are spread out.
func BenchmarkLoadgenAccuracy(b *testing.B) {
	for _, m := range []struct {
		name   string
		engine []string
		load   []string
	}{
		{"every-token", nil, []string{"--concurrency", "1000"}},
		{"every-16-tokens", []string{"--stream-interval=16"}, []string{"--rate", "300", "--arrival", "poisson"}},
	} {
		b.Run(m.name, func(b *testing.B) {
			for b.Loop() {
				url, log := simulated(b, append(m.engine, "--max-num-seqs=1024")...)
				c := runClient(b, url, append(m.load, "--workload", "fixed(64,128)", "--max-requests", "3000", "--seed", "1")...)
				require.Equal(b, 3000, c.summary.OK, "%v", c.summary.Categories)
				compare(b, c, serverTimes(b, log))
			}
		})
	}
}

// compare prints both sides and reports how far they are apart.
func compare(b *testing.B, c client, server map[string][2]float64) {
	b.Helper()
	var clientTTFT, serverTTFT, ttft, e2e []float64
	chunks := 0
	for _, r := range c.result.Records {
		s, ok := server[fmt.Sprintf("llmctl-%x-%d", 1, r.Index)]
		require.True(b, ok, r.Index)
		late := time.Duration(0) // of an open loop, which counts from the schedule
		if c.result.Open {
			late = r.Sent - r.Scheduled
		}
		mine := (r.TTFT - late).Seconds() * 1000
		clientTTFT, serverTTFT = append(clientTTFT, mine), append(serverTTFT, s[0])
		ttft = append(ttft, math.Abs(mine-s[0]))
		e2e = append(e2e, math.Abs((r.E2E-late).Seconds()*1000-s[1]))
		chunks += int(r.Chunks)
	}
	fmt.Printf("%-28s %10s %10s\n%-28s %10.2f %10.2f\n%-28s %10.2f %10.2f\n", "ms", "client", "server",
		"ttft p50", quantile(clientTTFT, 0.5), quantile(serverTTFT, 0.5), "ttft p99", quantile(clientTTFT, 0.99), quantile(serverTTFT, 0.99))
	b.ReportMetric(quantile(ttft, 0.5), "ttft-error-p50-ms")
	b.ReportMetric(quantile(ttft, 0.99), "ttft-error-p99-ms")
	b.ReportMetric(quantile(e2e, 0.99), "e2e-error-p99-ms")
	if delay := c.summary.SendDelay.P50; delay != nil {
		b.ReportMetric(*delay, "send-delay-p50-ms")
	}
	b.ReportMetric(100*c.cpu/c.took/float64(runtime.NumCPU()), "client-cpu-%")
	b.ReportMetric(float64(chunks)/c.took, "chunks/s")
	b.ReportMetric(float64(chunks)/c.cpu, "chunks/client-cpu-s")
	b.ReportMetric(c.peak, "client-MB-peak")
}

// BenchmarkLoadgenMemory holds 1,000 streams until 100,000 requests are done.
func BenchmarkLoadgenMemory(b *testing.B) {
	for b.Loop() {
		url, _ := simulated(b, "--max-num-seqs=1024", "--time-scale=1000")
		c := runClient(b, url, "--workload", "fixed(16,4)", "--concurrency", "1000", "--max-requests", "100000")
		require.Equal(b, 100_000, c.summary.OK, "%v", c.summary.Categories)
		b.ReportMetric(c.peak, "client-MB-peak")
		b.ReportMetric(*c.summary.RequestsPerSecond, "requests/s")
	}
}

// freePort asks the system for a port that nobody uses now.
func freePort(b *testing.B) int {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
