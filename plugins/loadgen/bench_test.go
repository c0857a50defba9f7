// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const benchTokens = 200

// BenchmarkRun holds 1,000 and 2,000 streams against a server in another process that sends each of them a chunk
// per step, as an engine does. chunks/cpu-s is what one core of this client could take.
func BenchmarkRun(b *testing.B) {
	for _, c := range []struct {
		streams int
		step    time.Duration
	}{{1000, 20 * time.Millisecond}, {1000, 10 * time.Millisecond}, {2000, 30 * time.Millisecond}} {
		b.Run(fmt.Sprintf("streams=%d/step=%s", c.streams, c.step), func(b *testing.B) {
			url := startRaw(b, c.step)
			chunks := 0
			started, cpu := time.Now(), cpuTime(b)
			var tpot, itl float64
			for b.Loop() {
				r, err := Run(b.Context(), Config{
					BaseURL: url, Model: "m", Workload: Workload{FixedLength(512), FixedLength(benchTokens)},
					Concurrency: c.streams, MaxRequests: c.streams, Warmup: -1, Seed: 1, IgnoreEOS: true,
				})
				require.NoError(b, err)
				s := Summarize(r)
				require.Equal(b, c.streams, s.OK, "%v", s.Categories)
				tpot, itl = *s.TPOT.P50, *s.ITL.P99
				for i := range r.Records {
					chunks += int(r.Records[i].Chunks)
				}
			}
			used := cpuTime(b) - cpu
			b.ReportMetric(float64(chunks)/time.Since(started).Seconds(), "chunks/s")
			b.ReportMetric(float64(chunks)/used.Seconds(), "chunks/cpu-s")
			b.ReportMetric(tpot, "tpot-p50-ms")
			b.ReportMetric(itl, "itl-p99-ms")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, name := range []string{"completion", "chat", "usage only", "tool call"} {
		data := []byte(chunks[name].in)
		b.Run(name, func(b *testing.B) {
			var c chunk
			b.ReportAllocs()
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if err := c.decode(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkMeasure is everything but the network: parser, decoder and bookkeeping, per chunk.
func BenchmarkMeasure(b *testing.B) {
	var body bytes.Buffer
	for i := range benchTokens {
		body.WriteString(rawChunk(i))
	}
	body.WriteString("data: [DONE]\n\n")
	var s stream
	b.ReportAllocs()
	for b.Loop() {
		rec := Record{OutputTarget: benchTokens}
		now := time.Duration(0)
		_, err := s.measure(bytes.NewReader(body.Bytes()), func() time.Duration { now += ms; return now }, &rec)
		if err != nil || !rec.OK() {
			b.Fatal(err, rec.Error)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*benchTokens), "ns/chunk")
}

// cpuTime is what this process has used, user and system.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func rawChunk(i int) string {
	finish := "null"
	if i == benchTokens-1 {
		finish = `"length"`
	}
	return fmt.Sprintf(`data: {"id":"cmpl-6a3c1b7d9e0f4c5a8b2d1e3f5a7c9b0d","object":"text_completion","created":1733000000,"model":"m","choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":%s,"stop_reason":null}],"usage":{"prompt_tokens":512,"total_tokens":%d,"completion_tokens":%d}}`+"\n\n", finish, 513+i, i+1)
}

// startRaw runs serveRaw in a process of its own and returns its address.
func startRaw(b *testing.B, step time.Duration) string {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LOADGEN_TEST_ROLE=server", "LOADGEN_TEST_STEP="+step.String())
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // its end is the server's end
	require.NoError(b, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		require.NoError(b, stdin.Close())
		require.NoError(b, cmd.Wait())
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(b, err)
	return "http://" + line[:len(line)-1]
}

// serveRaw answers requests with as little work as possible, until stdin ends. At each step, every stream gets
// one chunk, with one write.
func serveRaw() {
	step, err := time.ParseDuration(os.Getenv("LOADGEN_TEST_STEP"))
	if err != nil {
		panic(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	s := &rawServer{}
	for i := range benchTokens {
		s.chunks = append(s.chunks, httpChunk(rawChunk(i)))
	}
	last := &s.chunks[benchTokens-1]
	*last = append(*last, httpChunk("data: [DONE]\n\n")...)
	*last = append(*last, "0\r\n\r\n"...)
	go s.steps(step)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(c)
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func httpChunk(s string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(s), s) }

type rawServer struct {
	chunks [][]byte
	mu     sync.Mutex
	new    []*rawStream
}

type rawStream struct {
	conn net.Conn
	next int
}

func (s *rawServer) serve(c net.Conn) {
	r := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil {
			return
		}
		s.mu.Lock()
		s.new = append(s.new, &rawStream{conn: c})
		s.mu.Unlock()
	}
}

func (s *rawServer) steps(step time.Duration) {
	var active []*rawStream
	for range time.Tick(step) {
		s.mu.Lock()
		active, s.new = append(active, s.new...), nil
		s.mu.Unlock()
		kept := active[:0]
		for _, a := range active {
			_, err := a.conn.Write(s.chunks[a.next])
			if a.next++; err == nil && a.next < len(s.chunks) {
				kept = append(kept, a)
			}
		}
		active = kept
	}
}
