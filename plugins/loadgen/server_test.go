// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// engine is a small engine behind a real HTTP server. It serves over in-memory connections, so that
// tests run in virtual time (testing/synctest) and measure exact numbers.
type engine struct {
	// answer writes the response to the i-th completion request, counted from 0.
	answer func(w *answer, i int, r *request)
	// tokenize counts a prompt's tokens; nil: there is no /tokenize.
	tokenize func(text string) int

	mu       sync.Mutex
	requests []*request
	counted  int // calls of /tokenize
}

// request is what the engine was asked.
type request struct {
	Model         string         `json:"model"`
	Prompt        any            `json:"prompt"`
	Messages      []message      `json:"messages"`
	MaxTokens     int            `json:"max_tokens"`
	MinTokens     int            `json:"min_tokens"`
	IgnoreEOS     bool           `json:"ignore_eos"`
	Stream        bool           `json:"stream"`
	StreamOptions map[string]any `json:"stream_options"`
	Temperature   *float64       `json:"temperature"`
	header        http.Header
	path          string
}

type message struct{ Role, Content string }

// ids are the token ids of the prompt, or nil if it is text.
func (r *request) ids() (ids []int) {
	list, _ := r.Prompt.([]any)
	for _, id := range list {
		ids = append(ids, int(id.(float64)))
	}
	return ids
}

// text is the prompt if it is text.
func (r *request) text() string {
	if len(r.Messages) > 0 {
		return r.Messages[0].Content
	}
	s, _ := r.Prompt.(string)
	return s
}

func (e *engine) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r := &request{header: req.Header, path: req.URL.Path}
	if err := json.NewDecoder(req.Body).Decode(r); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if req.URL.Path == "/tokenize" {
		if e.tokenize == nil {
			http.NotFound(w, req)
			return
		}
		e.mu.Lock()
		e.counted++
		e.mu.Unlock()
		fmt.Fprintf(w, `{"count":%d,"max_model_len":4096,"tokens":[]}`, e.tokenize(r.text()))
		return
	}
	e.mu.Lock()
	i := len(e.requests)
	e.requests = append(e.requests, r)
	e.mu.Unlock()
	e.answer(&answer{ResponseWriter: w, started: time.Now(), gone: req.Context().Done()}, i, r)
}

func (e *engine) seen() []*request {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.requests)
}

// answer writes a response at given times after the request.
type answer struct {
	http.ResponseWriter
	started time.Time
	gone    <-chan struct{} // closed when the client is
}

func (a *answer) at(after time.Duration, s string) {
	select {
	case <-time.After(after - time.Since(a.started)):
	case <-a.gone:
		panic(http.ErrAbortHandler)
	}
	_, _ = io.WriteString(a, s)
	a.Flush()
}

func (a *answer) Flush() { a.ResponseWriter.(http.Flusher).Flush() }

func (a *answer) fail(status int, body string) {
	a.WriteHeader(status)
	_, _ = io.WriteString(a, body)
}

// tokens streams n tokens, the first after ttft and then one every tpot, as vLLM does.
func (a *answer) tokens(r *request, ttft, tpot time.Duration, n int) {
	prompt := len(r.ids())
	if text := r.text(); text != "" {
		prompt = len(strings.Fields(text))
	}
	for i := range n {
		a.at(ttft+time.Duration(i)*tpot, fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"text\":\" t\",\"finish_reason\":null}],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d}}\n\n", prompt, i+1))
	}
	a.at(0, "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n")
}

// start serves the engine in memory and returns a config for it: 2 in flight, 8 measured requests.
func (e *engine) start(t *testing.T) Config {
	t.Helper()
	l := &memory{conns: make(chan net.Conn), closed: make(chan struct{})}
	srv := &http.Server{Handler: e}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = srv.Serve(l)
	}()
	client := &http.Client{Transport: &http.Transport{DialContext: l.dial, MaxIdleConnsPerHost: 1000}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		assert.NoError(t, srv.Close())
		<-stopped
	})
	return Config{
		BaseURL: "http://engine", Model: "m", Client: client,
		Workload:    Workload{Input: FixedLength(16), Output: FixedLength(4)},
		Concurrency: 2, MaxRequests: 8, Seed: 1,
	}
}

// memory is a listener whose connections are pipes in memory.
type memory struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *memory) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memory) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memory) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *memory) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }
