// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"sync/atomic"
	"time"
)

const (
	finishStop   = "stop"
	finishLength = "length"
)

// normalFinish tells whether a finish_reason is a proper end.
func normalFinish(reason string) bool {
	switch reason {
	case finishStop, finishLength, "tool_calls", "function_call":
		return true
	}
	return false
}

// maxPartial is how much of an answer is kept to explain its failure.
const maxPartial = 512

// rules are the parts of a Config that decide what a good answer is.
type rules struct{ ignoreEOS, allowEmpty, allowChunkCount bool }

// stream measures one answer after another; it belongs to one worker, which reuses its buffers.
type stream struct {
	rules
	events eventReader
	chunk  chunk
	chunks atomic.Int64 // of all answers; read by the progress lines
	// zero is the moment that the latencies of the request in flight count from, since the level began;
	// 0: there is none. answering: its first token has come.
	zero      atomic.Int64
	answering atomic.Bool

	first  func() // called with the first token, if there is one
	keep   bool   // the text of the answer is wanted
	answer []byte // still escaped

	rec        *Record
	usage      usage
	gaps       []gap
	continuous bool          // every chunk with text has carried usage so far
	counted    int           // tokens up to the latest gap, when continuous
	last       time.Duration // end of the latest gap, as E2E
	backwards  bool          // the clock went back
	partial    []byte
}

// gap is the time between two chunks with text, and the tokens of the later one (0: unknown).
// Eight bytes, because there is one for each chunk in flight.
type gap struct{ micros, tokens uint32 }

// measure reads body to the end of the answer and completes rec, whose Sent, PromptTarget and
// OutputTarget are set. The times of chunks are what now returned after the read that
// brought their last byte. A transport error is returned for the caller to classify; the answer is
// failed already. complete is false where the server may have more to say than was read.
func (s *stream) measure(body io.Reader, now func() time.Duration, rec *Record) (complete bool, err error) {
	s.begin(body, now, rec)
	for {
		data, at, err := s.events.next()
		switch {
		case errors.Is(err, io.EOF):
			s.finish(true)
			return true, nil
		case errors.Is(err, errLineTooLong):
			s.fail(LineTooLong, err.Error())
			return false, nil
		case err != nil:
			s.fail(ConnectionReset, errorText(err))
			return false, err
		}
		data = bytes.TrimSpace(data)
		if len(data) == 0 {
			continue
		}
		if string(data) == "[DONE]" {
			s.finish(false)
			return true, nil
		}
		if !s.event(data, at-rec.Sent) {
			return rec.Category == ServerError, nil
		}
	}
}

func (s *stream) begin(body io.Reader, now func() time.Duration, rec *Record) {
	s.events.reset(body, now)
	s.rec, s.usage = rec, usage{-1, -1}
	s.gaps, s.partial = s.gaps[:0], s.partial[:0]
	s.answer = s.answer[:0]
	s.continuous, s.counted, s.last, s.backwards = true, 0, 0, false
}

// event accounts for one chunk that came at the given time after the request; false ends the answer.
func (s *stream) event(data []byte, at time.Duration) bool {
	c := &s.chunk
	if err := c.decode(data); err != nil {
		if s.events.cut {
			s.fail(TruncatedStream, "the answer ended inside a line: "+excerpt(data))
		} else {
			s.fail(MalformedChunk, err.Error())
		}
		return false
	}
	if c.failed {
		s.fail(ServerError, c.message)
		return false
	}
	if c.usage.prompt >= 0 {
		s.usage.prompt = c.usage.prompt
	}
	if c.usage.completion >= 0 {
		s.usage.completion = c.usage.completion
	}
	if c.finish != "" {
		s.rec.FinishReason = c.finish
	}
	if len(c.answer) > 0 || len(c.thought) > 0 {
		s.token(at)
	}
	return !s.tooMany()
}

// token accounts for a chunk with text.
func (s *stream) token(at time.Duration) {
	s.chunks.Add(1)
	r, c := s.rec, &s.chunk
	if len(s.partial) < maxPartial {
		s.partial = append(s.partial, c.thought[:min(len(c.thought), maxPartial)]...)
		s.partial = append(s.partial, c.answer[:min(len(c.answer), maxPartial)]...)
	}
	if s.keep {
		s.answer = append(s.answer, c.answer...)
	}
	if r.FirstAnswer == 0 && len(c.answer) > 0 {
		r.FirstAnswer = at
	}
	r.Chunks++
	tokens := c.usage.completion
	if r.Chunks == 1 {
		s.answering.Store(true)
		if s.first != nil {
			s.first()
		}
		r.TTFT, r.E2E, s.last = at, at, at
		s.continuous = tokens > 0
		r.FirstChunkTokens = max(clamped(tokens), 1)
		s.counted = tokens
		return
	}
	s.backwards = s.backwards || at < r.E2E
	r.E2E = at
	s.gap(at, tokens)
}

// gap adds the time since the latest gap. A chunk that brings no new token, such as half of a
// character, is merged with the next one.
func (s *stream) gap(at time.Duration, tokens int) {
	s.continuous = s.continuous && tokens >= s.counted
	if s.continuous && tokens == s.counted {
		return
	}
	g := gap{micros: micros(at - s.last)}
	if s.continuous {
		g.tokens = uint32(min(tokens-s.counted, math.MaxUint32))
		s.counted = tokens
	}
	s.gaps = append(s.gaps, g)
	s.last = at
}

// micros rounds to whole microseconds; more than 71 minutes count as that.
func micros(d time.Duration) uint32 {
	return uint32(min(max(d.Round(time.Microsecond).Microseconds(), 0), math.MaxUint32))
}

// tooMany fails an answer that is longer than max_tokens. Without usage the chunks are counted; since
// some servers cut a token's text in two, only twice as many are too many.
func (s *stream) tooMany() bool {
	n, limit := s.usage.completion, int(s.rec.OutputTarget)
	if n < 0 {
		n, limit = int(s.rec.Chunks), 2*limit
	}
	if n <= limit {
		return false
	}
	s.fail(TooManyTokens, fmt.Sprintf("the server generated %d tokens, max_tokens is %d", n, s.rec.OutputTarget))
	return true
}

// fail marks the answer as failed and keeps what came before.
func (s *stream) fail(c Category, message string) {
	s.count()
	s.rec.fail(c, message)
	s.rec.Partial = excerpt([]byte(unescape(s.partial)))
}

// finish judges an answer that ended without an error: at the end of the body, or with [DONE].
func (s *stream) finish(eof bool) {
	r := s.rec
	s.count()
	switch {
	case eof && s.events.events == 0:
		s.unframed()
	case r.FinishReason != "" && !normalFinish(r.FinishReason):
		s.fail(Category(r.FinishReason), "the answer ended with finish_reason "+r.FinishReason)
	case r.Chunks == 0 && (!s.allowEmpty || r.FinishReason == ""):
		s.fail(EmptyOutput, "the answer ended without any token")
	case r.FinishReason == "":
		s.fail(TruncatedStream, "the answer ended without a finish_reason")
	case r.Chunks > 0 && (s.backwards || r.TTFT <= 0):
		s.fail(InvalidTiming, fmt.Sprintf("first token %v, last token %v after the request", r.TTFT, r.E2E))
		r.TTFT, r.FirstAnswer, r.E2E = 0, 0, 0
	default:
		r.Short = s.short()
		r.Buffered = s.buffered()
	}
}

// count settles the number of tokens. The server's usage wins over any count of ours, except that
// no tokens at all contradicts the text that came.
func (s *stream) count() {
	r := s.rec
	r.PromptTokens = max(clamped(s.usage.prompt), 0)
	switch {
	case s.usage.completion > 0 || s.usage.completion == 0 && r.Chunks == 0:
		r.OutputTokens, r.TokensSource = clamped(s.usage.completion), FromUsage
	case r.Chunks > 0:
		r.OutputTokens, r.TokensSource = r.Chunks, FromChunks
	}
	if r.Chunks == 1 {
		r.FirstChunkTokens = r.OutputTokens
	}
}

// clamped is a server's count as far as a Record can hold it.
func clamped(n int) int32 { return int32(min(n, math.MaxInt32)) }

// short recognises an answer that stopped early although it was asked not to.
func (s *stream) short() bool {
	r := s.rec
	return s.ignoreEOS && r.OutputTokens < r.OutputTarget && (r.TokensSource == FromUsage || r.FinishReason == finishStop)
}

// buffered recognises a stream that was held back and came all at once.
func (s *stream) buffered() bool {
	if max(s.rec.Chunks, s.rec.OutputTokens) < BufferedFrom {
		return false
	}
	late, fromEnd := 1, time.Duration(0)
	for i := len(s.gaps) - 1; i >= 0; i-- {
		fromEnd += time.Duration(s.gaps[i].micros) * time.Microsecond
		if fromEnd*20 > s.rec.E2E {
			break
		}
		late++
	}
	return late*10 > (len(s.gaps)+1)*9
}

// unframed explains a body without any event: often an error as plain JSON.
func (s *stream) unframed() {
	var head []byte
	for line := range bytes.Lines(s.events.head) {
		if line[0] != ':' {
			head = append(head, line...)
		}
	}
	head = bytes.TrimSpace(head)
	if len(head) == 0 {
		s.fail(EmptyOutput, "the response is empty")
		return
	}
	var top map[string]json.RawMessage
	if json.Unmarshal(head, &top) == nil {
		if message, failed := errorMessage(top); failed {
			s.fail(ServerError, message)
			return
		}
	}
	s.fail(NotStreamed, fmt.Sprintf("the response is not an event stream: %s", excerpt(head)))
}

// tokenGaps calls yield with the times between tokens, rounded to microseconds, and how many tokens
// each stands for. With usage on every chunk, a gap is divided by the tokens of the later chunk.
// Otherwise all chunks after the first are taken to hold equally many tokens, so that the mean is TPOT.
func (s *stream) tokenGaps(yield func(d time.Duration, tokens int)) {
	r := s.rec
	if _, ok := r.TPOT(); !ok || r.TokensSource == FromChunks && !s.allowChunkCount {
		return
	}
	each := float64(r.OutputTokens-r.FirstChunkTokens) / float64(len(s.gaps))
	for _, g := range s.gaps {
		per, weight := each, 1
		if s.continuous {
			per, weight = float64(g.tokens), int(g.tokens)
		}
		yield(time.Duration(math.Round(float64(g.micros)/per))*time.Microsecond, weight)
	}
}
