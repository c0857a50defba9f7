// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/llmctl/llmctl/experiment"
)

const (
	// maxLog is how much of the end of a log is looked at, in bytes.
	maxLog = 4 << 20
	// maxLine is how much of one line is looked at, in bytes.
	maxLine = 64 << 10
	// maxQuote is how much of a line is quoted, in characters.
	maxQuote = 300
)

// finding is a line of a log that matches a signature.
type finding struct {
	*failure
	rank  int // place of the signature in the descriptor, 0 for the most telling
	line  string
	match []int
}

// Classify looks for the line of a log that tells most about why the engine
// died; of a long log that can be positioned, in the last megabytes only. The
// class is empty when there is none; fatal tells that the engine will not serve
// any more. A read error ends the log.
func (e *Engine) Classify(log io.Reader) (cause experiment.Cause, fatal bool) {
	f := e.diagnose(log)
	if f == nil {
		return experiment.Cause{}, false
	}
	return experiment.Cause{Class: f.Class, Message: f.message(), Limit: f.limit()}, f.Fatal
}

// limit is the limit that the line names, or nil.
func (f *finding) limit() *experiment.Limit {
	if f.Limits == "" {
		return nil
	}
	value, err := strconv.ParseInt(string(f.Match.ExpandString(nil, "${limit}", f.line, f.match)), 10, 64)
	if err != nil {
		return nil
	}
	return &experiment.Limit{Param: f.Limits, Value: value}
}

// diagnose picks the most telling line: a specific fatal one before a generic
// one, both before a line that only wraps another failure, and last of all one
// that is not fatal. Of equals the first counts, as later ones follow from it,
// unless a later one says more about the same class.
func (e *Engine) diagnose(log io.Reader) *finding {
	var specific, generic, wrapper, harmless *finding
	e.eachLine(log, func(line string) {
		f := e.matchLine(line)
		if f == nil {
			return
		}
		slot := &specific
		switch {
		case !f.Fatal:
			slot = &harmless
		case f.Wrapper:
			slot = &wrapper
		case f.Generic:
			slot = &generic
		}
		if old := *slot; old == nil || f.Class == old.Class && f.rank < old.rank {
			*slot = f
		}
	})
	for _, f := range []*finding{specific, generic, wrapper, harmless} {
		if f != nil {
			return f
		}
	}
	return nil
}

// matchLine finds the first signature that a line matches.
func (e *Engine) matchLine(line string) *finding {
	for i := range e.desc.Failures {
		s := &e.desc.Failures[i]
		if m := s.Match.find(line); m != nil {
			return &finding{s, i, line, m}
		}
	}
	return nil
}

var terminalColour = regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`)

func colourless(line string) string {
	if strings.IndexByte(line, '\x1b') < 0 {
		return line
	}
	return terminalColour.ReplaceAllString(line, "")
}

// eachLine visits the lines of the end of a log, without colours.
func (e *Engine) eachLine(log io.Reader, visit func(line string)) {
	r := bufio.NewReaderSize(tail(log), maxLine)
	for {
		line, err := r.ReadSlice('\n')
		text := strings.TrimRight(string(line), "\r\n")
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n') // the rest of a very long line
		}
		if text != "" {
			visit(colourless(text))
		}
		if err != nil {
			return
		}
	}
}

// tail is the last part of a log. A log that can be positioned is not read
// from its start.
func tail(log io.Reader) io.Reader {
	if s, ok := log.(io.Seeker); ok {
		if _, err := s.Seek(-maxLog, io.SeekEnd); err != nil {
			_, err = s.Seek(0, io.SeekStart) // it is shorter
			if err != nil {
				return log
			}
		}
	}
	return log
}

// message says what happened and quotes the line.
func (f *finding) message() string {
	quote := f.quote()
	if f.Summary == "" {
		return fmt.Sprintf("%s: %s", f.Class, quote)
	}
	summary := f.Match.ExpandString(nil, f.Summary, f.line, f.match)
	return fmt.Sprintf("%s: %s: %s", f.Class, summary, quote)
}

// quote is the line, cut to a readable length around the match.
func (f *finding) quote() string {
	line := redact(strings.ToValidUTF8(f.line, "�"))
	if start := f.match[0]; utf8.RuneCountInString(line) > maxQuote && start > maxQuote/2 && start < len(line) {
		line = "…" + strings.ToValidUTF8(line[start:], "")
	}
	line = strings.TrimSpace(line)
	if utf8.RuneCountInString(line) > maxQuote {
		line = string([]rune(line)[:maxQuote-1]) + "…"
	}
	return strconv.Quote(line)
}

// ExitHint says what an exit code or a signal (0 for none) tells about a
// process that should have gone on serving. It is worth less than a line of the log.
func ExitHint(code int, signal syscall.Signal) experiment.Cause {
	if signal == 0 && code > 128 && code < 160 {
		signal = syscall.Signal(code - 128)
	}
	switch {
	case signal == syscall.SIGKILL:
		return experiment.Cause{Class: "oom", Message: "oom: killed (SIGKILL), most often because the memory limit was reached"}
	case signal != 0:
		return experiment.Cause{Class: "server_died", Message: fmt.Sprintf("server_died: killed by signal %d (%s)", int(signal), signal)}
	case code == 2:
		return experiment.Cause{Class: "config_error", Message: "config_error: exit code 2, the command line was not accepted"}
	case code == 126 || code == 127:
		return experiment.Cause{Class: "config_error", Message: fmt.Sprintf("config_error: exit code %d, the command could not be started", code)}
	default:
		return experiment.Cause{Class: "server_died", Message: fmt.Sprintf("server_died: exit code %d", code)}
	}
}
