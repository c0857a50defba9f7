// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Trace is a recorded load to replay.
type Trace struct {
	Rows []TraceRow // in order of At
	// Skipped counts the rows that asked for no output: nothing can be measured of them.
	Skipped int
}

// TraceRow is one request of a trace.
type TraceRow struct {
	At     time.Duration // since the first row
	Input  int           // tokens
	Output int           // tokens, at least 1
	// Blocks name the prompt's blocks of TraceBlock tokens: equal numbers are equal text, which a prefix
	// cache finds. Nil: the prompt shares nothing.
	Blocks []uint64
}

// TraceBlock is the number of tokens in a block of a trace, as in Mooncake's.
const TraceBlock = 512

// columns of a trace, by the names that public traces have; case does not matter.
var (
	timeColumns   = []string{"timestamp", "arrived_at", "time"}
	inputColumns  = []string{"contexttokens", "input_tokens", "input_length", "num_prefill_tokens"}
	outputColumns = []string{"generatedtokens", "output_tokens", "output_length", "num_decode_tokens"}
)

// ReadTrace reads a trace: CSV with a header (TIMESTAMP,ContextTokens,GeneratedTokens as the Azure LLM
// inference traces have, or timestamp,input_tokens,output_tokens with seconds), or JSON lines with
// timestamp (ms), input_length, output_length and hash_ids as Mooncake's. Rows are put in order of time.
// name is the file's, for errors; these name the line.
func ReadTrace(name string, r io.Reader) (*Trace, error) {
	b := bufio.NewReader(r)
	first, err := begin(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	t := &Trace{}
	if first == '{' {
		err = t.readLines(b)
	} else {
		err = t.readCSV(b)
	}
	if err != nil {
		return nil, fmt.Errorf("%s:%w", name, err)
	}
	if len(t.Rows) == 0 {
		return nil, fmt.Errorf("%s: has no requests", name)
	}
	slices.SortStableFunc(t.Rows, func(a, b TraceRow) int { return int(min(max(a.At-b.At, -1), 1)) })
	start := t.Rows[0].At
	for i := range t.Rows {
		t.Rows[i].At -= start
	}
	return t, nil
}

// begin passes over a byte order mark and blanks; it returns the first byte after
// them, left unread.
func begin(b *bufio.Reader) (byte, error) {
	if head, err := b.Peek(3); err == nil && bytes.Equal(head, []byte("\xef\xbb\xbf")) {
		_, _ = b.Discard(3) // it has just been seen
	}
	for {
		c, err := b.ReadByte()
		switch {
		case errors.Is(err, io.EOF):
			return 0, errors.New("is empty")
		case err != nil:
			return 0, err
		case c != ' ' && c != '\t' && c != '\r' && c != '\n':
			return c, b.UnreadByte()
		}
	}
}

// add checks and takes one row.
func (t *Trace) add(row TraceRow) error {
	switch {
	case row.Input < 1 || float64(row.Input) > maxTokens:
		return fmt.Errorf("the input tokens must be a whole number from 1 to %g, are %d", maxTokens, row.Input)
	case row.Output < 0 || float64(row.Output) > maxTokens:
		return fmt.Errorf("the output tokens must be a whole number from 0 to %g, are %d", maxTokens, row.Output)
	case row.Output == 0:
		t.Skipped++
		return nil
	}
	t.Rows = append(t.Rows, row)
	return nil
}

func (t *Trace) readCSV(r io.Reader) error {
	in := csv.NewReader(r)
	in.TrimLeadingSpace = true
	header, err := in.Read()
	if err != nil {
		return lineError(1, err)
	}
	at, input, output := column(header, timeColumns), column(header, inputColumns), column(header, outputColumns)
	if at < 0 || input < 0 || output < 0 {
		return lineError(1, fmt.Errorf("needs the columns timestamp, input_tokens and output_tokens (or TIMESTAMP, ContextTokens, GeneratedTokens), has %s", strings.Join(header, ",")))
	}
	for {
		cells, err := in.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			var parse *csv.ParseError
			if errors.As(err, &parse) {
				return lineError(parse.Line, parse.Err)
			}
			return lineError(1, err)
		}
		line, _ := in.FieldPos(0)
		var row TraceRow
		if row.At, err = moment(cells[at]); err != nil {
			return lineError(line, fmt.Errorf("%s: %w", header[at], err))
		}
		if row.Input, err = strconv.Atoi(strings.TrimSpace(cells[input])); err != nil {
			return lineError(line, fmt.Errorf("%s: %q is not a whole number", header[input], cells[input]))
		}
		if row.Output, err = strconv.Atoi(strings.TrimSpace(cells[output])); err != nil {
			return lineError(line, fmt.Errorf("%s: %q is not a whole number", header[output], cells[output]))
		}
		if err := t.add(row); err != nil {
			return lineError(line, err)
		}
	}
}

func lineError(line int, err error) error { return fmt.Errorf("%d: %w", line, err) }

func column(header, names []string) int {
	return slices.IndexFunc(header, func(h string) bool { return slices.Contains(names, strings.ToLower(strings.TrimSpace(h))) })
}

// moments are the forms of time stamps, beside seconds as a number.
var moments = []string{"2006-01-02 15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00", time.RFC3339Nano, "2006-01-02T15:04:05.999999999"}

// moment reads a time stamp as a time since some fixed moment.
func moment(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		return offset(seconds)
	}
	for _, layout := range moments {
		if at, err := time.Parse(layout, text); err == nil {
			return at.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)), nil
		}
	}
	return 0, fmt.Errorf("%q is neither a time such as 2023-11-16 18:17:03.97 nor a number of seconds", text)
}

func offset(seconds float64) (time.Duration, error) {
	if !(math.Abs(seconds) < 9e9) { // NaN too
		return 0, fmt.Errorf("%g is not a time in seconds", seconds)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

func (t *Trace) readLines(r io.Reader) error {
	return jsonLines(r, func(data []byte) error {
		var entry struct {
			Timestamp *float64 `json:"timestamp"`
			Input     *int     `json:"input_length"`
			Output    *int     `json:"output_length"`
			Blocks    []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(data, &entry); err != nil {
			return err
		}
		if entry.Timestamp == nil || entry.Input == nil || entry.Output == nil {
			return errors.New("needs timestamp, input_length and output_length")
		}
		at, err := offset(*entry.Timestamp / 1000)
		if err != nil {
			return err
		}
		return t.add(TraceRow{At: at, Input: *entry.Input, Output: *entry.Output, Blocks: entry.Blocks})
	})
}

// jsonLines calls take for every line that is not blank; its error gets the line's number.
func jsonLines(r io.Reader, take func([]byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	n := 0
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if err := take(line); err != nil {
			return lineError(n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return lineError(n+1, err)
	}
	return nil
}

// blocksPrompt renders a prompt of n token ids in which equal blocks have equal ids. What goes beyond the
// named blocks is the request's own.
func blocksPrompt(r *rand.Rand, seed uint64, blocks []uint64, n int) []byte {
	out := append(make([]byte, 0, 6*n+2), '[')
	own := r
	for i := 0; i < n; i += TraceBlock {
		if r = own; i/TraceBlock < len(blocks) {
			r = random(seed^mix(blocks[i/TraceBlock]), 0)
		}
		for range min(TraceBlock, n-i) {
			out = strconv.AppendUint(out, lowestID+r.Uint64N(idSpan), 10)
			out = append(out, ',')
		}
	}
	out[len(out)-1] = ']'
	return out
}
