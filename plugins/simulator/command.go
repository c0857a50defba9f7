// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Shares of the start-up time after which a bad start fails: reading the
// settings is quick, loading weights is most of it.
const (
	settingsShare = 0.2
	memoryShare   = 0.7
)

// Main runs "llmctl simulate args…" until ctx is done and returns the exit
// code: 0 after a stop by ctx or for --help, 2 for a command line that vLLM's
// parser refuses, 1 when the engine fails to start or a fault ends it. What
// vLLM would log goes to stderr. getenv is asked for
// VLLM_API_KEY. wrap, unless it is nil, wraps the listener; where its connections
// have a method Age() time.Duration, that is how long ago their data came.
func Main(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer, wrap func(net.Listener) net.Listener) int {
	log := &lockedWriter{w: stderr}
	a, err := parseCommandLine(args)
	if errors.Is(err, errHelp) {
		if err := printHelp(stdout); err != nil {
			fmt.Fprintf(log, "llmctl simulate: error: print help: %v\n", err)
			return 1
		}
		return 0
	}
	if err != nil {
		fmt.Fprintf(log, "%s\nllmctl simulate: error: %v\n", usage, err)
		return 2
	}
	err = serve(ctx, newSettings(a, getenv("VLLM_API_KEY")), a, log, wrap)
	if err == nil || ctx.Err() != nil {
		return 0
	}
	fmt.Fprint(log, traceback(err))
	return 1
}

// serve starts up and serves. Any error ends the process as it would end
// vLLM's.
func serve(ctx context.Context, s settings, a arguments, log io.Writer, wrap func(net.Listener) net.Listener) (err error) {
	if s.requestLog != "" {
		w, openErr := openRequestLog(s.requestLog, log)
		if openErr != nil {
			return openErr
		}
		defer func() { err = errors.Join(err, w.Close()) }()
		s.options.RequestLog = w
	}
	if len(a.duplicates) > 0 {
		fmt.Fprintf(log, "WARNING [argparse_utils.py] Found duplicate keys %s\n", strings.Join(a.duplicates, ", "))
	}
	fmt.Fprintf(log, "INFO [utils.py] non-default args: %s\n", a.nonDefault())
	address := net.JoinHostPort(s.host, strconv.Itoa(s.port))
	// vLLM binds before it loads and listens after; here the port is tried
	// and given back, so that a conflict is found as early.
	probe, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	if err := probe.Close(); err != nil {
		return fmt.Errorf("close the probed port: %w", err)
	}
	server, err := start(ctx, &s, a, log)
	if err != nil {
		return err
	}
	if s.neverReady {
		<-ctx.Done()
		return ctx.Err()
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "INFO [api_server.py] Starting vLLM server on http://%s\nINFO:     Application startup complete.\n", shownAddress(s.host, l))
	if wrap != nil {
		l = wrap(l)
	}
	return server.Serve(ctx, l)
}

// start plays the start-up time and returns the server, or why there is none.
func start(ctx context.Context, s *settings, a arguments, log io.Writer) (*Server, error) {
	share := func(f float64) time.Duration { return time.Duration(f * float64(s.startup)) }
	if err := pause(ctx, share(settingsShare)); err != nil {
		return nil, err
	}
	if err := s.resolve(a); err != nil {
		return nil, err
	}
	if err := pause(ctx, share(memoryShare-settingsShare)); err != nil {
		return nil, err
	}
	server, err := New(s.config, s.options)
	if err != nil {
		return nil, err
	}
	tokens := server.blocks * s.config.BlockSize
	fmt.Fprintf(log, "INFO [gpu_worker.py] Available KV cache memory: %.2f GiB\n", perDeviceGiB(s.config, tokens))
	fmt.Fprintf(log, "INFO [kv_cache_utils.py] GPU KV cache size: %s tokens, Maximum concurrency for %s tokens per request: %.2fx\n",
		thousands(tokens), thousands(s.config.MaxModelLen), float64(tokens)/float64(s.config.MaxModelLen))
	if err := pause(ctx, share(1-memoryShare)); err != nil {
		return nil, err
	}
	fmt.Fprintf(log, "INFO [core.py] init engine (profile, create kv cache, warmup model) took %.2f s\n", s.startup.Seconds())
	return server, nil
}

// openRequestLog opens the file, or takes stderr for "-". Every line is
// written at once, so a crash loses none.
func openRequestLog(path string, stderr io.Writer) (io.WriteCloser, error) {
	if path == "-" {
		return unclosed{stderr}, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--request-log: %w", err)
	}
	return f, nil
}

// unclosed is a writer that somebody else closes.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

// pause waits for d, or for ctx.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// traceback writes err the way a Python process ends.
func traceback(err error) string {
	const head = "Traceback (most recent call last):\n"
	const wrapper = head + "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': 1}\n"
	var refused *StartError
	var dns *net.DNSError
	switch {
	case errors.As(err, &refused) && refused.InEngine:
		return "ERROR [core.py] EngineCore failed to start.\n" + head + refused.Error() + "\n" + wrapper
	case errors.As(err, &refused):
		return head + refused.Error() + "\n"
	case errors.Is(err, syscall.EADDRINUSE):
		return head + "OSError: [Errno 98] Address already in use\n"
	case errors.Is(err, syscall.EACCES):
		return head + "PermissionError: [Errno 13] Permission denied: " + err.Error() + "\n"
	case errors.As(err, &dns):
		return head + "socket.gaierror: [Errno -2] Name or service not known\n"
	case errors.Is(err, ErrOutOfMemory):
		return "ERROR [core.py] EngineCore encountered a fatal error.\n" + head +
			"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 0.94 GiB is free.\n"
	case errors.Is(err, ErrCrashed):
		return "ERROR [core.py] EngineCore encountered a fatal error.\n" + head +
			"RuntimeError: CUDA error: an illegal memory access was encountered\n" +
			"vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
	}
	return head + "RuntimeError: " + err.Error() + "\n"
}

// shownAddress is the address with the port that was really taken.
func shownAddress(host string, l net.Listener) string {
	if host == "" {
		host = "0.0.0.0"
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return l.Addr().String()
	}
	return net.JoinHostPort(host, port)
}

// thousands writes 451312 as 451,312.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// lockedWriter lets several goroutines write whole lines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
