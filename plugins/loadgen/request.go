// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// job is one request to make.
type job struct {
	index         int
	input, output int // tokens
	messages      []Message
	blocks        []uint64
	random        *rand.Rand // of the prompt, where it is not given

	conversation, turn int

	due       time.Duration
	scheduled bool
}

// job draws a request. It depends on nothing but the seed and the index.
func (l *level) job(p *phase, index int) job {
	j := job{index: index, random: random(l.Seed, index)}
	switch {
	case l.Trace != nil:
		rows := l.Trace.Rows
		row := rows[(index-l.base)%len(rows)]
		if j.input, j.output = row.Input, row.Output; p.measured {
			j.blocks = row.Blocks
		}
	case l.Dataset != nil:
		s := l.Dataset.Samples[l.samples.at(index)]
		j.messages, j.output = s.Messages, s.Output
	default:
		j.input, j.output = l.Workload.Input.Draw(j.random), l.Workload.Output.Draw(j.random)
	}
	return j
}

// request prepares, sends and records one request. The very first request of the level also
// finds out what the server accepts; the other workers wait for it.
func (l *level) request(ctx context.Context, p *phase, w *worker, j job) Record {
	blank := Record{
		Index: int32(j.index), PromptTarget: int32(j.input), OutputTarget: int32(j.output),
		Conversation: int32(j.conversation), Turn: int32(j.turn),
	}
	rec := blank
	for {
		prompt := l.prepare(ctx, j)
		if !j.scheduled {
			j.due = l.now()
		}
		rec.Scheduled = j.due
		status, refusal := l.send(ctx, &w.stream, l.body.stream(l.dialect, prompt, j.output), &rec, l.settle)
		if rec.Index > 0 || !l.renegotiate(ctx, status, refusal) {
			break
		}
		rec = blank
	}
	if rec.Category == Incomplete && int64(w.stream.events.readAt) < p.over.Load() {
		rec.Category, rec.Error = Stalled, rec.Error+"; nothing arrived in that time"
	}
	rec.Error, rec.Partial = excerpt([]byte(l.redact(rec.Error))), l.redact(rec.Partial)
	l.add(p, w, rec)
	if rec.Index == 0 {
		if refused(rec.Category) {
			l.cancel(fmt.Errorf("%w: %s", ErrConfig, rec.Error))
		}
		l.settle()
	}
	return rec
}

// refused recognises the answers after which no other request can succeed either.
func refused(c Category) bool {
	code, ok := strings.CutPrefix(string(c), "http_")
	status, err := strconv.Atoi(code)
	return ok && err == nil && status < 500 && status != http.StatusRequestTimeout && status != http.StatusTooManyRequests
}

// renegotiate changes the dialect after a refusal of the first request; false: there is nothing to change.
func (l *level) renegotiate(ctx context.Context, status int, refusal []byte) bool {
	if status != http.StatusBadRequest && status != http.StatusUnprocessableEntity {
		return false
	}
	hadIDs := l.dialect.tokenIDs
	note := l.dialect.drop(refusedField(refusal))
	if note == "" {
		return false
	}
	if hadIDs && !l.dialect.tokenIDs {
		if err := l.calibrate(ctx); err != nil {
			l.cancel(err)
			return false
		}
	}
	l.notes = append(l.notes, note)
	return true
}

// prepare renders the prompt of a request.
func (l *level) prepare(ctx context.Context, j job) prompt {
	switch {
	case j.messages != nil:
		return l.body.messages(j.messages)
	case l.text != nil && j.blocks != nil:
		return prompt{text: l.text.prompt(ctx, l.text.blockWords(j.random, l.Seed, j.blocks, l.text.words(TraceBlock)), j.input)}
	case l.text != nil:
		return prompt{text: l.text.prompt(ctx, l.text.from(j.random), j.input)}
	case j.blocks != nil:
		return prompt{text: blocksPrompt(j.random, l.Seed, j.blocks, j.input)}
	}
	return prompt{text: tokenIDs(j.random, l.Seed, j.index, j.input)}
}

// add records a finished request, and stops the level where it was one failure too many, or where its
// verdict is certain.
func (l *level) add(p *phase, w *worker, rec Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*p.records = append(*p.records, rec)
	switch rec.Category {
	case "":
		l.failures = 0
		if p.measured {
			w.stream.tokenGaps(func(d time.Duration, tokens int) { l.gaps[d] += tokens })
		}
	case Cancelled, Incomplete, contentFilter:
	default:
		l.failures++
		if l.failures == l.MaxConsecutiveFailures {
			l.cancel(fmt.Errorf("%w: %d, the last one: %s: %s", ErrConsecutiveFailures, l.failures, rec.Category, rec.Error))
		}
	}
	if l.progress.add(&rec) {
		l.progress.line(l.received())
	}
	if p.measured && rec.Category != Cancelled {
		l.decider.add(&rec)
		l.decide(func(Bound) int { return 0 })
	}
}

// decide ends the level when its verdict is certain. The lock is held.
func (l *level) decide(inFlight late) {
	if !l.StopWhenDecided {
		return
	}
	if reason := l.decider.decided(inFlight); reason != "" {
		l.cancel(fmt.Errorf("%w: %s", ErrDecided, reason))
	}
}

// contentFilter is a failure of one answer that says nothing about the server.
const contentFilter Category = "content_filter"

// calibrate prepares text prompts: with /tokenize where the server has it, else with the usage of two
// small requests.
func (l *level) calibrate(ctx context.Context) (err error) {
	l.text, err = calibrate(ctx, l.Seed, l.tokenize, true)
	if err == nil || ctx.Err() != nil {
		return err
	}
	l.text, err = calibrate(ctx, l.Seed, l.promptUsage, false)
	if err != nil {
		return fmt.Errorf("calibrate prompts: %w", err)
	}
	return nil
}

// tokenize counts a prompt's tokens with the server's own tokenizer.
func (l *level) tokenize(ctx context.Context, prompt []byte) (int, error) {
	status, answer, err := l.ask(ctx, l.root()+"/tokenize", l.body.tokenize(prompt))
	if err != nil {
		return 0, err
	}
	top := object(answer)
	if n := count(top["count"]); status == http.StatusOK && n > 0 {
		return n, nil
	}
	return 0, fmt.Errorf("tokenize: http %d without a count", status)
}

// promptUsage counts a prompt's tokens by having one token generated.
func (l *level) promptUsage(ctx context.Context, prompt []byte) (int, error) {
	status, answer, err := l.ask(ctx, l.url, l.body.single(prompt))
	if err != nil {
		return 0, err
	}
	if status != http.StatusOK {
		category, message := statusError(status, answer)
		if refused(category) {
			return 0, fmt.Errorf("%w: %s", ErrConfig, l.redact(message))
		}
		return 0, errors.New(l.redact(message))
	}
	if n := count(object(object(answer)["usage"])["prompt_tokens"]); n > 0 {
		return n, nil
	}
	return 0, fmt.Errorf("the answer has no usage.prompt_tokens: %s", l.redact(excerpt(answer)))
}
