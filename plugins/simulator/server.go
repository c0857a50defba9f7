// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Options are the server's settings outside of the model. The zero value of
// each field but the names is usable.
type Options struct {
	ServedModelNames  []string  // at least one; the first is used in answers and metrics
	Root              string    // the model's own name, in /v1/models
	APIKeys           []string  // that /v1 asks for; none = open
	Seed              int64     // of noise, answer lengths and faults
	Noise             float64   // sigma of the log-normal factor on the step times of this server
	TimeScale         float64   // times faster than the model; 0 = 1
	StreamInterval    int       // tokens in a chunk, after the first; 0 = 1
	ForceIncludeUsage bool      // usage in every chunk, asked for or not
	Faults            Faults    // failures to play
	RequestLog        io.Writer // one JSON line per request; nil = none
}

// Server is a simulated engine behind the OpenAI API.
type Server struct {
	cfg     Config
	options Options
	blocks  int
	started time.Time
	metrics *metrics
	player  *player
	log     *requestLog

	arrivals atomic.Int64 // completions so far
	fatal    chan error   // capacity 1: ends Serve
	handlers sync.RWMutex // read-locked by each request; see wait
}

// New returns a server for an engine with settings c, or the *StartError with
// which that engine refuses to start.
func New(c Config, o Options) (*Server, error) {
	if len(o.ServedModelNames) == 0 {
		return nil, errors.New("served model name: none given")
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	engine, err := NewEngine(c)
	if err != nil {
		return nil, err
	}
	if c.MaxModelLen == 0 {
		c.MaxModelLen = engine.Blocks() * c.BlockSize
		if !c.ChunkedPrefill {
			c.MaxModelLen = min(c.MaxModelLen, c.MaxNumBatchedTokens)
		}
	}
	if o.TimeScale == 0 {
		o.TimeScale = 1
	}
	o.StreamInterval = max(o.StreamInterval, 1)
	o.Faults.seed = o.Seed
	s := &Server{
		cfg: c, options: o, blocks: engine.Blocks(), started: time.Now(),
		metrics: newMetrics(o.ServedModelNames[0]), fatal: make(chan error, 1),
	}
	overhead := time.Duration(APIOverhead*float64(time.Second)) + o.Faults.SlowFirstToken
	s.player = newPlayer(engine, s.metrics, NoiseFactor(c, o.Noise, o.Seed)/o.TimeScale,
		time.Duration(float64(overhead)/o.TimeScale))
	if o.RequestLog != nil {
		s.log = &requestLog{w: o.RequestLog, started: s.started}
	}
	return s, nil
}

// Serve answers requests on l, which it closes, until ctx is done or a fault
// ends the engine (ErrCrashed, ErrOutOfMemory). Streams that are open then
// break off. After ctx it returns nil. A Server serves once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	web := &http.Server{
		Handler:           s.routes(),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connection{}, c) },
		ReadHeaderTimeout: time.Minute,
		// net/http only reports clients that misbehave, and its own panics.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	ended := make(chan error, 2)
	go func() { ended <- web.Serve(l) }()
	var playing sync.WaitGroup
	playing.Go(func() {
		if err := s.player.run(ctx); err != nil {
			s.die(err)
		}
	})

	var err error
	select {
	case <-ctx.Done():
	case err = <-s.fatal:
	case err = <-ended:
	}
	cancel()
	closeErr := web.Close()
	playing.Wait()
	s.wait()
	if err == nil && closeErr != nil {
		return fmt.Errorf("close server: %w", closeErr)
	}
	return err
}

// connection is the key of a request's net.Conn in its context.
type connection struct{}

// aged is a connection that knows how long ago the data of its latest Read had
// reached this host.
type aged interface{ Age() time.Duration }

// arrival is when the request that a handler begins with reached this host, as far
// as the connection knows.
func arrival(r *http.Request) time.Time {
	age := time.Duration(0)
	if c, ok := r.Context().Value(connection{}).(aged); ok {
		age = c.Age()
	}
	return time.Now().Add(-age)
}

// die ends Serve with err. Only the first call counts.
func (s *Server) die(err error) {
	select {
	case s.fatal <- err:
	default:
	}
}

// wait returns when no handler is running any more. They end by themselves
// once their context is done and their connection closed.
func (s *Server) wait() {
	s.handlers.Lock()
	defer s.handlers.Unlock()
}

func (s *Server) routes() http.Handler {
	healthy := func(http.ResponseWriter, *http.Request) {}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", healthy)
	mux.HandleFunc("/ping", healthy)
	mux.HandleFunc("GET /version", s.version)
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { s.complete(w, r, false) })
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { s.complete(w, r, true) })
	mux.HandleFunc("POST /tokenize", s.tokenize)
	mux.HandleFunc("POST /detokenize", s.detokenize)
	mux.HandleFunc("POST /simulate", s.simulate)
	mux.Handle("GET /metrics", s.metrics.handler())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.handlers.RLock()
		defer s.handlers.RUnlock()
		if !s.authorized(r) {
			writeJSON(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
			return
		}
		mux.ServeHTTP(w, r)
	})
}
