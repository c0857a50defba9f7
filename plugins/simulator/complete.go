// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"
)

// complete answers a completion or a chat completion.
func (s *Server) complete(w http.ResponseWriter, r *http.Request, chat bool) {
	arrived := arrival(r)
	number := int(s.arrivals.Add(1))
	// The body is read first: net/http notices that a client has gone only
	// when the request has been read.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		writeError(w, badRequest("read body: %v", err))
		return
	}
	if s.fail(w, r, number) {
		return
	}
	j, err := s.newJob(body, chat)
	if err != nil {
		writeError(w, err)
		return
	}
	kind := "cmpl"
	if chat {
		kind = "chatcmpl"
	}
	j.id = kind + "-" + s.requestID(r, number)

	interval := s.options.StreamInterval
	if !j.stream {
		interval = j.output // only the first and the last token are of interest
	}
	st := newStream(j.prompt, j.output, j.finish, interval, arrived)
	a := answer{w: w, ctx: r.Context(), job: j, stream: st, breakAt: j.output + 1}
	if s.options.Faults.midstream(number) {
		a.breakAt = j.output / 2
		st.output, st.finish = max(1, a.breakAt), "error"
	}
	stop := context.AfterFunc(r.Context(), st.signal)
	defer stop()
	s.player.submit(st)

	if j.stream {
		err = a.sendStream(s.options)
	} else {
		err = a.sendWhole(s.options)
	}
	if a.finish == "abort" {
		s.player.abort(st)
	}
	if logErr := s.log.write(j, arrived, a.outcome); logErr != nil {
		s.die(logErr)
	}
	if err != nil {
		// The status is out, or the client has gone: all that is left is to
		// break the connection, so that a cut stream does not look complete.
		panic(http.ErrAbortHandler)
	}
}

// fail plays the faults of a request and reports whether that was all.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, number int) bool {
	f := s.options.Faults
	switch {
	case f.fatal(number) != nil:
		s.die(f.fatal(number))
		panic(http.ErrAbortHandler)
	case f.NotServing:
		writeError(w, &apiError{Message: "The engine is not serving.", Type: "ServiceUnavailableError", Code: http.StatusServiceUnavailable})
	case f.hangs(number):
		<-r.Context().Done()
	case f.http500(number):
		writeError(w, engineFailed())
	default:
		return false
	}
	return true
}

// answer sends the tokens of one request to its client.
type answer struct {
	w       http.ResponseWriter
	ctx     context.Context
	job     job
	stream  *stream
	breakAt int // tokens after which it ends in an error; more than there are = never
	outcome
}

// next waits for tokens beyond those sent and returns how many there are. It
// returns an error when the client has gone.
func (a *answer) next() (int, error) {
	for {
		<-a.stream.ready
		if err := a.ctx.Err(); err != nil {
			return 0, err
		}
		if n := int(a.stream.tokens.Load()); n > a.sent {
			return n, nil
		}
	}
}

// sendStream sends events as tokens come. All that have come since the last
// time go out in one write.
func (a *answer) sendStream(o Options) error {
	a.finish = "abort"
	c, err := newChunks(a.job, o.ServedModelNames[0], time.Now().Unix(), o.StreamInterval)
	if err != nil {
		return err
	}
	a.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	flusher := http.NewResponseController(a.w)
	if err := flusher.Flush(); err != nil {
		return err
	}
	var buf []byte
	for a.sent < a.job.output {
		n, err := a.next()
		if err != nil {
			return err
		}
		n = min(n, a.breakAt)
		buf = c.append(buf[:0], a.sent, n)
		if n == a.breakAt {
			if buf, err = appendError(buf, engineFailed()); err != nil {
				return err
			}
		}
		a.sending(n)
		if _, err := a.w.Write(buf); err != nil {
			return err
		}
		if err := flusher.Flush(); err != nil {
			return err
		}
		if n == a.breakAt {
			a.finish = "error"
			return nil
		}
	}
	a.finish = a.job.finish
	return nil
}

// sendWhole sends everything at the end.
func (a *answer) sendWhole(o Options) error {
	a.finish = "abort"
	for a.sent < a.job.output {
		n, err := a.next()
		if err != nil {
			return err
		}
		a.sending(n)
		if n >= a.breakAt {
			a.finish = "error"
			writeError(a.w, engineFailed())
			return nil
		}
	}
	a.finish = a.job.finish
	writeJSON(a.w, http.StatusOK, newCompletion(a.job, o.ServedModelNames[0], time.Now().Unix()))
	return nil
}

// plainID is what may stand in an answer as it is.
var plainID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// requestID is the client's X-Request-Id, as in vLLM, or one by the order of arrival.
func (s *Server) requestID(r *http.Request, number int) string {
	if id := r.Header.Get("X-Request-Id"); plainID.MatchString(id) {
		return id
	}
	return fmt.Sprintf("%08x%024x", uint32(s.options.Seed), number)
}
