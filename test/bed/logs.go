// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// containerLog is a file in the format of container runtimes, which kwok reads:
// a time, the stream's name, F and the line.
type containerLog struct {
	mu      sync.Mutex
	file    *os.File
	streams []*logStream
}

// logStream is one of the streams of a containerLog.
type logStream struct {
	log     *containerLog
	name    string
	shown   *strings.Replacer
	partial []byte
}

func currentLog(dir string) string  { return filepath.Join(dir, "current.log") }
func previousLog(dir string) string { return filepath.Join(dir, "previous.log") }

// openLog begins a new log of the container.
func (c *container) openLog() (*containerLog, error) {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, err
	}
	// A new file, since the old one is the previous log by now.
	if err := os.Remove(currentLog(c.dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	file, err := os.OpenFile(currentLog(c.dir), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	return &containerLog{file: file}, err
}

// keepLog makes the log of a container that has ended the previous one too: a
// kubelet gives it as both until the container starts again.
func keepLog(dir string) error {
	if err := os.Remove(previousLog(dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Link(currentLog(dir), previousLog(dir))
}

// stream returns a writer of lines, in which replacements are made.
func (l *containerLog) stream(name string, shown *strings.Replacer) io.Writer {
	s := &logStream{log: l, name: name, shown: shown}
	l.streams = append(l.streams, s)
	return s
}

func (s *logStream) Write(p []byte) (int, error) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.partial = append(s.partial, p...)
	for {
		line, rest, found := bytes.Cut(s.partial, []byte("\n"))
		if !found {
			return len(p), nil
		}
		if err := s.writeLine(line); err != nil {
			return 0, err
		}
		s.partial = rest
	}
}

func (s *logStream) writeLine(line []byte) error {
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000000Z")
	_, err := fmt.Fprintf(s.log.file, "%s %s F %s\n", now, s.name, s.shown.Replace(string(line)))
	return err
}

// Close writes what has no end of line yet. Closing twice is fine.
func (l *containerLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	var errs []error
	for _, s := range l.streams {
		if len(s.partial) > 0 {
			errs = append(errs, s.writeLine(s.partial))
		}
	}
	errs = append(errs, l.file.Close())
	l.file = nil
	return errors.Join(errs...)
}
