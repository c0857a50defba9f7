// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/plugins/loadgen/rxtime"
)

// onSockets is a config for a server on a real socket: one request at a time, no warm-up, own client.
func onSockets(url string) Config {
	return Config{
		BaseURL: url, Model: "m", Workload: Workload{Input: FixedLength(16), Output: FixedLength(4)},
		Concurrency: 1, MaxRequests: 1, Warmup: -1,
	}
}

// TestAResetInMidStreamKeepsWhatCame is S23.
func TestAResetInMidStreamKeepsWhatCame(t *testing.T) {
	three := strings.Repeat("data: {\"choices\":[{\"text\":\" x\"}]}\n\n", 3)
	received := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		fmt.Fprint(rw, "HTTP/1.1 200 OK\r\n\r\n"+three)
		assert.NoError(t, rw.Flush())
		<-received                                          // a reset discards what the client has not read
		assert.NoError(t, conn.(*net.TCPConn).SetLinger(0)) // close with a reset
		assert.NoError(t, conn.Close())
	}))
	defer srv.Close()
	c := onSockets(srv.URL)
	c.Client = &http.Client{Transport: &counting{RoundTripper: newClient(1, nil).Transport, want: len(three), reached: received}}
	r, err := Run(t.Context(), c)
	require.NoError(t, err)
	rec := r.Records[0]
	assert.Equal(t, ConnectionReset, rec.Category)
	assert.Contains(t, rec.Error, "connection reset by peer")
	assert.Equal(t, "x x x", rec.Partial)
	assert.EqualValues(t, 3, rec.Chunks)
}

// A client that is slow to read still measures when the answer came.
func TestAChunkHasTheTimeAtWhichItReachedThisHost(t *testing.T) {
	began := time.Now()
	now := func() time.Duration { return time.Since(began) }
	next, wrote := make(chan struct{}), make(chan [2]time.Duration)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range next {
			before := now()
			_, _ = io.WriteString(w, "abc")
			assert.NoError(t, http.NewResponseController(w).Flush())
			wrote <- [2]time.Duration{before, now()}
		}
	}))
	defer srv.Close()
	defer close(next)
	c := caller{client: newClient(1, nil), now: now}
	go func() { next <- struct{}{} }()
	written := make(chan [2]time.Duration, 1)
	go func() { written <- <-wrote }()
	resp, err := c.post(t.Context(), srv.URL, "", nil, func(time.Duration) {})
	require.NoError(t, err)
	defer resp.Body.Close()
	if resp.conn == nil {
		t.Skip("the times of packets are not known on this system")
	}
	clock := c.arrival(resp)
	known := 0
	times := <-written
	for tries := 0; known < 3 && tries < 100; tries++ {
		<-time.After(20 * time.Millisecond)
		_, err = io.ReadFull(resp.Body, make([]byte, 3))
		require.NoError(t, err)
		if at := clock(); resp.conn.Age() > 0 {
			known++
			const drift = time.Millisecond // between the wall clock, which the kernel uses, and the other
			assert.GreaterOrEqual(t, at, times[0]-drift)
			assert.LessOrEqual(t, at, times[1]+drift)
		}
		next <- struct{}{}
		times = <-wrote
	}
	if known == 0 {
		t.Skip("the kernel takes no times of packets")
	}
}

// Without the kernel's time it is the time now.
func TestWithoutTheKernelsTimeAChunkHasThatOfTheRead(t *testing.T) {
	c := caller{now: func() time.Duration { return 7 * ms }}
	assert.Equal(t, 7*ms, c.arrival(reply{})())
	assert.Equal(t, 7*ms, c.arrival(reply{sent: 5 * ms, conn: &rxtime.Conn{}})())
}

// counting closes reached when so many bytes of a response have been read.
type counting struct {
	http.RoundTripper
	io.ReadCloser
	want    int
	reached chan struct{}
}

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.RoundTripper.RoundTrip(r)
	if err == nil {
		c.ReadCloser, resp.Body = resp.Body, c
	}
	return resp, err
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	if c.want -= n; c.want <= 0 && n > 0 {
		close(c.reached)
	}
	return n, err
}

func TestARefusedConnectionSaysSo(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	r, err := Run(t.Context(), onSockets("http://"+l.Addr().String()))
	require.NoError(t, err)
	assert.Equal(t, ConnectionRefused, r.Records[0].Category)
	assert.Contains(t, r.Records[0].Error, "connection refused")
	assert.Equal(t, new(1.0), Summarize(r).ErrorRate)
}

func TestATLSFailureIsATransportError(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains of the client
	srv.StartTLS()
	defer srv.Close()
	r, err := Run(t.Context(), onSockets(srv.URL))
	require.NoError(t, err)
	assert.Equal(t, TransportError, r.Records[0].Category)
	assert.Contains(t, r.Records[0].Error, "certificate")
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	srv := httptest.NewServer(http.RedirectHandler("/elsewhere", http.StatusTemporaryRedirect))
	defer srv.Close()
	_, err := Run(t.Context(), onSockets(srv.URL))
	assert.ErrorIs(t, err, ErrConfig)
	assert.ErrorContains(t, err, "http 307")
	assert.ErrorContains(t, err, "this one leads to /elsewhere")
}

// A certificate of one's own is trusted when it is given, or when that is not asked for; and a
// server with HTTP/2 is asked over HTTP/1.1, where every request has its own connection.
func TestHTTPSWithACertificateOfOnesOwn(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, 1, r.ProtoMajor)
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}],\"usage\":{\"completion_tokens\":1}}\n\n")
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	for name, config := range map[string]*tls.Config{"authority": {RootCAs: roots}, "unchecked": {InsecureSkipVerify: true}} {
		c := onSockets(srv.URL)
		c.TLS = config
		r, err := Run(t.Context(), c)
		require.NoError(t, err, name)
		assert.True(t, r.Records[0].OK(), "%s: %s", name, r.Records[0].Error)
	}
}

// A server with HTTP/2 only takes the request for a bad preface.
func TestAServerWithHTTP2OnlyIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, "\x00\x00\x00\x04\x00\x00\x00\x00\x00") // SETTINGS
			_ = conn.Close()
		}
	}()
	r, err := Run(t.Context(), onSockets("http://"+l.Addr().String()))
	require.NoError(t, err)
	assert.Equal(t, TransportError, r.Records[0].Category)
	assert.Contains(t, r.Records[0].Error, "the server speaks HTTP/2 only, and this client HTTP/1.1: ")
}

// TestLongLinesOverHTTP is S28.
func TestLongLinesOverHTTP(t *testing.T) {
	chunk := func(n int) string {
		return "data: {\"choices\":[{\"text\":\"" + strings.Repeat("x", n) + "\"}]}\n\n"
	}
	end := "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	for body, want := range map[string]Record{
		chunk(70_000) + chunk(2<<20) + end: {Chunks: 2},
		chunk(1) + chunk(maxLine) + end:    {Chunks: 1, Category: LineTooLong, Error: "a line or an event is longer than 16 MiB"},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, body) }))
		r, err := Run(t.Context(), onSockets(srv.URL))
		srv.Close()
		require.NoError(t, err)
		got := r.Records[0]
		assert.Equal(t, want, Record{Chunks: got.Chunks, Category: got.Category, Error: got.Error})
	}
}

// sendOnly is a RoundTripper that plays what happens to a request on a connection.
type sendOnly struct {
	attempts []attempt
	bodies   []string
}

type attempt struct {
	reused, wrote bool
	err           error
}

func (s *sendOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	a := s.attempts[0]
	s.attempts = s.attempts[1:]
	trace := httptrace.ContextClientTrace(r.Context())
	trace.GotConn(httptrace.GotConnInfo{Reused: a.reused})
	if a.wrote {
		trace.WroteHeaders()
	}
	b, err := io.ReadAll(r.Body)
	s.bodies = append(s.bodies, string(b))
	if a.err != nil || err != nil {
		return nil, errors.Join(a.err, err)
	}
	return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\n")), Request: r}, nil
}

// TestOnlyUnsentRequestsOnReusedConnectionsAreSentAgain is S24.
func TestOnlyUnsentRequestsOnReusedConnectionsAreSentAgain(t *testing.T) {
	idle := errors.New("http: server closed idle connection")
	tests := map[string]struct {
		first attempt
		want  Category
	}{
		"reused, nothing sent":   {attempt{reused: true, err: idle}, ""},
		"reused, something sent": {attempt{reused: true, wrote: true, err: idle}, ConnectionReset},
		"new, nothing sent":      {attempt{err: idle}, ConnectionReset},
		"an error without text":  {attempt{err: blank{}}, TransportError},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := &sendOnly{attempts: []attempt{tt.first, {wrote: true}}}
			c := onSockets("http://h")
			c.Client = &http.Client{Transport: s}
			r, err := Run(t.Context(), c)
			require.NoError(t, err)
			assert.Equal(t, tt.want, r.Records[0].Category)
			assert.Equal(t, tt.want != "", r.Records[0].Error != "", "a failure has a text")
			if tt.want == "" {
				require.Len(t, s.bodies, 2)
				assert.Equal(t, s.bodies[0], s.bodies[1])
			}
		})
	}
}

type blank struct{}

func (blank) Error() string { return "" }

func TestConnectionsAreReused(t *testing.T) {
	var mu sync.Mutex
	conns := map[string]bool{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		conns[r.RemoteAddr] = true
		mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	}))
	defer srv.Close()
	c := onSockets(srv.URL)
	c.MaxRequests = 20
	r, err := Run(t.Context(), c)
	require.NoError(t, err)
	assert.Equal(t, 20, Summarize(r).OK)
	mu.Lock()
	defer mu.Unlock()
	assert.Len(t, conns, 1)
}

// TestMain lets the test binary run itself: with fewer files, and as a server for the benchmarks.
func TestMain(m *testing.M) {
	switch os.Getenv("LOADGEN_TEST_ROLE") {
	case "files":
		showFileLimits()
	case "server":
		serveRaw()
	default:
		os.Exit(m.Run())
	}
}

func showFileLimits() {
	limit := syscall.Rlimit{Cur: 256, Max: 400}
	fmt.Println(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	fmt.Println(ensureFiles(400))
	fmt.Println(ensureFiles(300))
	fmt.Println(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit), limit.Cur)
}

// TestTheFileLimitIsCheckedAndRaised is A16. A process of its own lowers its limits to 256 and 400.
func TestTheFileLimitIsCheckedAndRaised(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LOADGEN_TEST_ROLE=files")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Equal(t, "<nil>\nconcurrency 400 needs 464 open files, but the limit is 400 (ulimit -n)\n<nil>\n<nil> 364\n", string(out))
}
