// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"bytes"
	"errors"
	"io"
	"time"
)

// maxLine is the longest line, and the longest event, that is read; real chunks are a few hundred bytes.
const maxLine = 16 << 20

// maxHead is how much of a response is kept for diagnosis as long as no event came.
const maxHead = 64 << 10

// firstBuffer holds a few chunks; there is one for every stream, and it grows where chunks are larger.
const firstBuffer = 2 << 10

// keptBuffer is the largest buffer that is kept for the next request.
const keptBuffer = 64 << 10

var errLineTooLong = errors.New("a line or an event is longer than 16 MiB")

// eventReader splits a stream of server-sent events into the values of their data fields.
// It follows the WHATWG parsing rules, with one difference: an event at the end of the stream counts
// although no blank line follows. Fields other than data, and comments, are ignored.
type eventReader struct {
	r     io.Reader
	now   func() time.Duration
	limit int // maxLine, lower in tests

	buf      []byte
	pos, end int // buf[pos:end] is not consumed yet
	scanned  int // so many bytes after pos hold no line end
	skipLF   bool
	inside   bool // past the place of a byte order mark

	fresh          int // where in buf the latest read begins
	readAt, prevAt time.Duration
	err            error // what ended the reading
	cut            bool  // the stream ended inside a line

	held   bool   // value points into buf
	value  []byte // data of the current event
	joined []byte // backs value when it is not in buf
	head   []byte // the first bytes, as long as no event came
	events int
}

// reset prepares for another stream and keeps the buffers, unless they are large.
func (e *eventReader) reset(r io.Reader, now func() time.Duration) {
	buf, joined := e.buf, e.joined[:0]
	if len(buf) == 0 || len(buf) > keptBuffer {
		buf = make([]byte, firstBuffer)
	}
	if cap(joined) > keptBuffer {
		joined = nil
	}
	*e = eventReader{r: r, now: now, limit: maxLine, buf: buf, joined: joined, head: e.head[:0]}
}

// next returns the data of the next event and the time at which its last byte was read. The data is
// valid until the following call. At the end of the stream the error is io.EOF; a stream that broke
// returns what was complete before, then the error.
func (e *eventReader) next() (data []byte, at time.Duration, err error) {
	some := false
	e.value, e.held = nil, false
	for {
		line, lineAt, err := e.line()
		if err != nil {
			if some && !errors.Is(err, errLineTooLong) {
				e.events++
				return e.value, at, nil
			}
			return nil, 0, err
		}
		if len(line) == 0 {
			if some {
				e.events++
				return e.value, at, nil
			}
			continue
		}
		v, ok := dataField(line)
		if !ok {
			continue
		}
		at = lineAt
		if !some {
			some, e.value, e.held = true, v, true
			continue
		}
		e.detach()
		e.joined = append(append(e.joined, '\n'), v...)
		e.value = e.joined
		if len(e.joined) > e.limit {
			return nil, 0, errLineTooLong
		}
	}
}

// dataField returns the value of a data line.
func dataField(line []byte) ([]byte, bool) {
	v, ok := bytes.CutPrefix(line, []byte("data"))
	if !ok || len(v) == 0 {
		return v, ok
	}
	if v[0] != ':' {
		return nil, false
	}
	v = v[1:]
	if len(v) > 0 && v[0] == ' ' {
		v = v[1:]
	}
	return v, true
}

// detach copies the current event's data out of buf, which is about to change.
func (e *eventReader) detach() {
	if e.held {
		e.joined = append(e.joined[:0], e.value...)
		e.value, e.held = e.joined, false
	}
}

// line returns the next line without its end, and when its last byte was read.
func (e *eventReader) line() ([]byte, time.Duration, error) {
	for {
		if e.skipLF && e.pos < e.end {
			if e.buf[e.pos] == '\n' {
				e.pos++
			}
			e.skipLF = false
		}
		if n := lineEnd(e.buf[e.pos+e.scanned : e.end]); n >= 0 {
			return e.take(e.scanned + n)
		}
		e.scanned = e.end - e.pos
		if e.scanned > e.limit {
			return nil, 0, errLineTooLong
		}
		if e.err != nil {
			if e.scanned == 0 || !errors.Is(e.err, io.EOF) {
				return nil, 0, e.err
			}
			e.cut = true
			return e.take(e.scanned)
		}
		e.fill()
	}
}

// take consumes a line of n bytes and its end.
func (e *eventReader) take(n int) ([]byte, time.Duration, error) {
	if n > e.limit {
		return nil, 0, errLineTooLong
	}
	stop := e.pos + n
	line, at := e.buf[e.pos:stop], e.readAt
	if stop <= e.fresh && n > 0 { // only the line end came with the latest read
		at = e.prevAt
	}
	e.skipLF = stop < e.end && e.buf[stop] == '\r' // its LF may be still to come
	e.pos, e.scanned = min(stop+1, e.end), 0
	if !e.inside {
		line = bytes.TrimPrefix(line, []byte("\uFEFF"))
		e.inside = true
	}
	return line, at, nil
}

// lineEnd is the index of the first CR or LF, or -1.
func lineEnd(b []byte) int {
	n := bytes.IndexByte(b, '\n')
	if n < 0 {
		return bytes.IndexByte(b, '\r')
	}
	if cr := bytes.IndexByte(b[:n], '\r'); cr >= 0 {
		return cr
	}
	return n
}

// fill reads once more into buf, moving or growing it first.
func (e *eventReader) fill() {
	if e.pos > 0 {
		e.detach()
		copy(e.buf, e.buf[e.pos:e.end])
		e.end -= e.pos
		e.fresh -= e.pos
		e.pos = 0
	}
	if e.end == len(e.buf) {
		e.buf = append(e.buf, make([]byte, len(e.buf))...)
	}
	for range 100 {
		n, err := e.r.Read(e.buf[e.end:])
		if n > 0 {
			e.prevAt, e.readAt, e.fresh = e.readAt, e.now(), e.end
			if e.events == 0 && len(e.head) < maxHead {
				e.head = append(e.head, e.buf[e.end:e.end+n]...)
			}
			e.end += n
		}
		e.err = err
		if n > 0 || err != nil {
			return
		}
	}
	e.err = io.ErrNoProgress
}
