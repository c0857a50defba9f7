// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/llmctl/llmctl/plugins/loadgen/rxtime"
)

// drainLimit is how long the end of a body is waited for after [DONE] or an error, so that the
// connection can be used again. A server that takes longer loses the connection.
const drainLimit = 250 * time.Millisecond

// newClient returns a client with room for n requests in flight. It speaks HTTP/1.1 also where the server has
// HTTP/2: there every request has a connection of its own, while HTTP/2 would put all streams on one
// connection and let those above the server's limit, often 100, wait unseen. No proxy stands between
// it and the server. Idle connections are dropped before common servers do so (uvicorn: after 5 s), and
// redirects are answers.
func newClient(n int, t *tls.Config) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:     t,
			DialContext:         dial,
			ReadBufferSize:      firstBuffer,
			TLSHandshakeTimeout: 30 * time.Second,
			MaxIdleConnsPerHost: n,
			IdleConnTimeout:     4 * time.Second,
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// dial connects, so that the times at which answers arrive are known.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: 30 * time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return rxtime.Wrap(c), nil
}

// caller sends requests to one server.
type caller struct {
	client *http.Client
	apiKey string
	now    func() time.Duration
}

// reply is the answer to a request.
type reply struct {
	*http.Response
	// sent is the time at which the request was handed to the socket: when its header is written and its
	// body follows. It is 0 if that never happened. Waiting for a connection is not part of it, nor is
	// rendering the body.
	sent time.Duration
	conn *rxtime.Conn // nil where it cannot tell when data has arrived
}

// post sends a request and returns its answer. With an error, that has only the time of sending.
//
// onSent is called with that time, too, since the answer may be long in coming.
//
// A reused connection may have been closed by the server in the meantime. The request is sent again if
// not one byte of it had been sent; otherwise the server may have seen it, and it has failed.
func (c *caller) post(ctx context.Context, url, id string, body []byte, onSent func(time.Duration)) (reply, error) {
	for {
		var sent atomic.Int64
		var reused atomic.Bool
		var conn atomic.Pointer[rxtime.Conn]
		trace := &httptrace.ClientTrace{
			GotConn: func(i httptrace.GotConnInfo) {
				reused.Store(i.Reused)
				conn.Store(rxtime.From(i.Conn))
			},
			WroteHeaders: func() {
				at := c.now()
				sent.Store(int64(at))
				onSent(at)
			},
		}
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return reply{}, err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "text/event-stream, application/json")
		req.Header.Set("Accept-Encoding", "identity") // a compressor would hold chunks back
		if c.apiKey != "" {
			req.Header.Set("Authorization", "Bearer "+c.apiKey)
		}
		if id != "" {
			req.Header.Set("X-Request-Id", id)
		}
		resp, err := c.client.Do(req)
		if err != nil && reused.Load() && sent.Load() == 0 && ctx.Err() == nil {
			continue
		}
		return reply{resp, time.Duration(sent.Load()), conn.Load()}, err
	}
}

// arrival returns the clock for the data that is read from a reply: the time at which the latest of it had
// reached this host. Where that is not known, or contradicts what was known before (a clock was
// set), it is the time now.
func (c *caller) arrival(r reply) func() time.Duration {
	if r.conn == nil {
		return c.now
	}
	latest := r.sent
	return func() time.Duration {
		age := r.conn.Age() // first: a pause in between must not make the answer early
		now := c.now()
		if at := now - age; at >= latest {
			latest = at
			return at
		}
		latest = now
		return now
	}
}

// ask posts a request whose answer is a small JSON document.
func (c *caller) ask(ctx context.Context, url string, body []byte) (status int, answer []byte, err error) {
	resp, err := c.post(ctx, url, "", body, func(time.Duration) {})
	if err != nil {
		return 0, nil, withoutURL(err)
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxLine))
	return resp.StatusCode, answer, err
}

// redact removes the API key, which some servers repeat in their errors.
func (c *caller) redact(s string) string {
	if c.apiKey == "" {
		return s
	}
	return strings.ReplaceAll(s, c.apiKey, "[redacted]")
}

// send performs one request of the level and completes rec. It returns the status and body of a
// response that is not 200, and calls accepted as soon as there is one that is.
func (l *level) send(ctx context.Context, s *stream, body []byte, rec *Record, accepted func()) (status int, refusal []byte) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if l.RequestTimeout > 0 {
		cause := fmt.Errorf("%w: no complete answer within %v", errTimeout, l.RequestTimeout)
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, l.RequestTimeout, cause)
		defer stop()
	}
	s.events.readAt = 0
	s.answering.Store(false)
	defer s.zero.Store(0)
	resp, err := l.post(ctx, l.url, l.requestID(int(rec.Index)), body, func(at time.Duration) {
		if l.open() {
			at = rec.Scheduled
		}
		s.zero.Store(int64(max(at, 1)))
	})
	if rec.Sent = resp.sent; resp.sent == 0 {
		rec.Sent = rec.Scheduled
	}
	if err != nil {
		rec.fail(categorize(ctx, err))
		rec.Done = l.now()
		return 0, nil
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		refusal, _ = io.ReadAll(io.LimitReader(resp.Body, maxHead)) // an unreadable reason does not change the status
		refusal = []byte(l.redact(string(refusal)))
		rec.fail(statusError(resp.StatusCode, refusal))
		if to := resp.Header.Get("Location"); to != "" && resp.StatusCode < 400 {
			rec.Error += ": redirects are not followed; this one leads to " + to
		}
		rec.Done = l.now()
		return resp.StatusCode, refusal
	}
	accepted()
	complete := l.receive(ctx, s, resp, rec)
	rec.Done = l.now()
	if l.open() && rec.TTFT > 0 {
		late := rec.Sent - rec.Scheduled
		rec.TTFT, rec.E2E = rec.TTFT+late, rec.E2E+late
		if rec.FirstAnswer > 0 {
			rec.FirstAnswer += late
		}
	}
	if complete {
		defer time.AfterFunc(drainLimit, cancel).Stop()
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxHead)) // only frees the connection
	}
	return http.StatusOK, nil
}

// requestID names a request for the server's log.
func (l *level) requestID(index int) string { return fmt.Sprintf("llmctl-%x-%d", l.Seed, index) }

// receive measures the answer.
func (l *level) receive(ctx context.Context, s *stream, resp reply, rec *Record) (complete bool) {
	if e := resp.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		rec.fail(NotStreamed, fmt.Sprintf("the answer has Content-Encoding %s although identity was asked for", e))
		return false
	}
	complete, err := s.measure(resp.Body, l.arrival(resp), rec)
	if err != nil {
		rec.fail(categorize(ctx, err))
	}
	return complete
}

var (
	errTimeout = errors.New("timeout")
	errGrace   = errors.New("cut at the end of the level")
)

// categorize says what a transport error means.
func categorize(ctx context.Context, err error) (Category, string) {
	if ctx.Err() != nil {
		cause := context.Cause(ctx)
		switch {
		case errors.Is(cause, errTimeout):
			return Timeout, cause.Error()
		case errors.Is(cause, ErrStalled):
			return Stalled, cause.Error()
		case errors.Is(cause, errGrace):
			return Incomplete, cause.Error()
		default:
			return Cancelled, errorText(cause)
		}
	}
	err = withoutURL(err)
	var timeout net.Error
	switch message := errorText(err); {
	case errors.As(err, &timeout) && timeout.Timeout():
		return Timeout, message
	case errors.Is(err, syscall.ECONNREFUSED):
		return ConnectionRefused, message
	case errors.Is(err, io.ErrUnexpectedEOF):
		return TruncatedStream, "the connection was closed inside the answer: " + message
	case errors.Is(err, io.EOF):
		return ConnectionReset, "the server closed the connection without an answer: " + message
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), strings.Contains(message, "server closed idle connection"):
		return ConnectionReset, message
	case strings.Contains(message, `malformed HTTP response "\x00\x00`): // a frame of HTTP/2
		return TransportError, "the server speaks HTTP/2 only, and this client HTTP/1.1: " + message
	default:
		return TransportError, message
	}
}

// withoutURL strips what http.Client puts around an error: the level has only one URL.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// errorText is never empty.
func errorText(err error) string {
	if s := err.Error(); s != "" {
		return s
	}
	return fmt.Sprintf("%T", err)
}

// statusError is the category and message of a response that is not 200.
func statusError(status int, body []byte) (Category, string) {
	return Category("http_" + strconv.Itoa(status)), fmt.Sprintf("http %d: %s", status, statusMessage(status, body))
}

// statusMessage is the server's own message, or as much of the body as there is, or the status in words.
func statusMessage(status int, body []byte) string {
	top := object(body)
	message, ok := errorMessage(top)
	for _, key := range [...]string{"message", "detail"} {
		if !ok {
			message = text(top[key])
			ok = message != ""
		}
	}
	if !ok {
		message = string(body)
	}
	if message = excerpt([]byte(message)); message != "" {
		return message
	}
	if s := http.StatusText(status); s != "" {
		return s
	}
	return "no message"
}

// refusedField is the part of a refusal that names the field it is about: the "param" of an OpenAI
// error, the "loc" of a validation error, or else all of it.
func refusedField(refusal []byte) string {
	top := object(refusal)
	if param := text(object(top["error"])["param"]); param != "" {
		return param
	}
	var details []struct {
		Loc json.RawMessage `json:"loc"`
	}
	if json.Unmarshal(top["detail"], &details) == nil && len(details) > 0 && len(details[0].Loc) > 0 {
		return string(details[0].Loc)
	}
	return string(refusal)
}
