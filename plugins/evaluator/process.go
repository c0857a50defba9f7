// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/llmctl/llmctl/experiment"
)

// stopGrace is how long a process that measures may take to end when it is told to.
const stopGrace = 10 * time.Second

// process is a command that measures, with what it started. Its output goes to
// the log, without secrets.
type process struct {
	argv    []string
	dir     string
	environ []string
	log     io.Writer
	secrets []string // removed from the output
}

// run returns when the command has ended. The error says how, with its last
// words; it is the cause of ctx when that ended it. Nothing that the command
// started in its process group outlives it.
func (p process) run(ctx context.Context) error {
	tail := &lastLines{}
	out := newRedactor(io.MultiWriter(p.log, tail), p.secrets)
	c := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...)
	c.Dir, c.Env, c.Stdout, c.Stderr = p.dir, p.environ, out, out
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }
	c.WaitDelay = stopGrace
	if err := c.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.argv[0], err)
	}
	err := c.Wait()
	// What is left of the group, such as workers of a tool that was killed.
	_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	flushed := out.flush()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("%s: %w; its last words: %s", p.argv[0], err, tail)
	case flushed != nil:
		return fmt.Errorf("log of %s: %w", p.argv[0], flushed)
	}
	return nil
}

// measure runs the command and reads its result. The files decide: a command that
// ended badly after it wrote them has measured, which gets a warning that begins
// with result, and one that ended well without has not.
func (p process) measure(ctx context.Context, result string, read func() (*experiment.Metrics, error)) (*experiment.Metrics, error) {
	failed := p.run(ctx)
	if ctx.Err() != nil {
		return nil, failed
	}
	m, err := read()
	if err != nil {
		return nil, errors.Join(err, failed)
	}
	if failed != nil {
		m.Warnings = append(m.Warnings, result+", but "+failed.Error())
	}
	return m, nil
}

// redactor removes secrets, line by line. A line ends with \n or, as those of a
// progress bar, with \r.
type redactor struct {
	w       io.Writer
	secrets []string
	mu      sync.Mutex
	rest    []byte
}

// shortestPiece is how long a line of a secret of several lines has to be to be
// removed: less is no secret.
const shortestPiece = 6

// newRedactor removes every line of a secret, since the output is seen by lines. It
// begins with the longest: another one may be a part of it.
func newRedactor(w io.Writer, secrets []string) *redactor {
	var pieces []string
	for _, secret := range secrets {
		lines := strings.FieldsFunc(secret, lineEnd)
		for _, line := range lines {
			if line = strings.TrimSpace(line); line != "" && (len(lines) == 1 || len(line) >= shortestPiece) {
				pieces = append(pieces, line)
			}
		}
	}
	slices.SortFunc(pieces, func(a, b string) int { return len(b) - len(a) })
	return &redactor{w: w, secrets: pieces}
}

func lineEnd(r rune) bool { return r == '\n' || r == '\r' }

func (r *redactor) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rest = append(r.rest, p...)
	end := bytes.LastIndexAny(r.rest, "\r\n") + 1
	if err := r.put(r.rest[:end]); err != nil {
		return 0, err
	}
	r.rest = r.rest[end:]
	return len(p), nil
}

func (r *redactor) flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.put(r.rest)
}

func (r *redactor) put(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	for _, secret := range r.secrets {
		p = bytes.ReplaceAll(p, []byte(secret), []byte("[redacted]"))
	}
	_, err := r.w.Write(p)
	return err
}

// lastLines keeps the end of an output.
type lastLines struct{ text []byte }

const keptOutput = 2000

func (l *lastLines) Write(p []byte) (int, error) {
	l.text = append(l.text, p...)
	if n := len(l.text); n > 2*keptOutput {
		l.text = append([]byte(nil), l.text[n-keptOutput:]...)
	}
	return len(p), nil
}

// String is the last three lines, on one.
func (l *lastLines) String() string {
	lines := strings.FieldsFunc(strings.TrimSpace(string(l.text)), lineEnd)
	return strings.Join(lines[max(0, len(lines)-3):], " | ")
}

// withoutNaN replaces the words that are no JSON and that Python writes all the
// same, NaN, Infinity and -Infinity, by null.
func withoutNaN(data []byte) (clean []byte, replaced int) {
	words := [...]string{"NaN", "-Infinity", "Infinity"}
	inside := false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case inside && c == '\\' && i+1 < len(data):
			clean = append(clean, c, data[i+1])
			i++
			continue
		case c == '"':
			inside = !inside
		case !inside && (c == 'N' || c == 'I' || c == '-'):
			found := false
			for _, word := range words {
				if bytes.HasPrefix(data[i:], []byte(word)) {
					clean = append(clean, "null"...)
					i += len(word) - 1
					replaced++
					found = true
					break
				}
			}
			if found {
				continue
			}
		}
		clean = append(clean, data[i])
	}
	return clean, replaced
}

// errNoResult means that a measurement left no result.
var errNoResult = errors.New("no result")

// worst is the largest of the values that there are, nil when there is none:
// of several files, the worst latency counts.
func worst(values []*float64) *float64 {
	var w *float64
	for _, v := range values {
		if v != nil && (w == nil || *v > *w) {
			w = v
		}
	}
	return w
}

// mean is that of the values that there are, nil when there is none.
func mean(values []*float64) *float64 {
	n, sum := 0.0, 0.0
	for _, v := range values {
		if v != nil {
			n, sum = n+1, sum+*v
		}
	}
	if n == 0 {
		return nil
	}
	return new(sum / n)
}
