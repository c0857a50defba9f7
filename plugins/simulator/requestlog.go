// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// record is one line of the request log. The arrival is when the request reached
// the host, the other times are taken just before the bytes go to the socket. Each
// is given by the wall clock and, from a monotonic clock, since the start of the
// server. What did not happen is null.
type record struct {
	ID            string `json:"id"`
	PromptTokens  int    `json:"prompt_tokens"`
	OutputTokens  int    `json:"output_tokens"` // sent
	ArrivalUnixNS int64  `json:"arrival_unix_ns"`
	FirstUnixNS   *int64 `json:"first_token_unix_ns"`
	LastUnixNS    *int64 `json:"last_token_unix_ns"`
	ArrivalNS     int64  `json:"arrival_ns"`
	FirstNS       *int64 `json:"first_token_ns"`
	LastNS        *int64 `json:"last_token_ns"`
	FinishReason  string `json:"finish_reason"` // length, stop, abort or error
}

// requestLog writes records; a nil one writes nothing.
type requestLog struct {
	mu      sync.Mutex
	w       io.Writer
	started time.Time
}

// outcome is what became of a request.
type outcome struct {
	sent        int // tokens
	first, last time.Time
	finish      string
}

// sending notes that tokens up to n go out now.
func (o *outcome) sending(n int) {
	o.last = time.Now()
	if o.sent == 0 {
		o.first = o.last
	}
	o.sent = n
}

func (l *requestLog) write(j job, arrived time.Time, o outcome) error {
	if l == nil {
		return nil
	}
	r := record{
		ID: j.id, PromptTokens: j.prompt, OutputTokens: o.sent, FinishReason: o.finish,
		ArrivalUnixNS: arrived.UnixNano(), ArrivalNS: arrived.Sub(l.started).Nanoseconds(),
	}
	if o.sent > 0 {
		r.FirstUnixNS, r.FirstNS = l.both(o.first)
		r.LastUnixNS, r.LastNS = l.both(o.last)
	}
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("request log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("request log: %w", err)
	}
	return nil
}

func (l *requestLog) both(t time.Time) (wall, monotonic *int64) {
	w, m := t.UnixNano(), t.Sub(l.started).Nanoseconds()
	return &w, &m
}
