// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
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
	inputColumns  = []string{"contexttokens", "input_tokens", "input_length", "num_prefill_tokens", "request tokens"}
	outputColumns = []string{"generatedtokens", "output_tokens", "output_length", "num_decode_tokens", "response tokens"}
)

// ReadTrace reads a trace: CSV with a header (TIMESTAMP,ContextTokens,GeneratedTokens as the Azure LLM
// inference traces have, or timestamp,input_tokens,output_tokens with seconds), or JSON lines with
// timestamp (ms), input_length, output_length and hash_ids as Mooncake's. Rows are put in order of time, and
// those that ask for no output, as requests that failed when the trace was recorded, are skipped and counted.
// Any other row that cannot be sent is an error. name is the file's, for errors; these name the line, too.
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
	slices.SortStableFunc(t.Rows, func(a, b TraceRow) int { return cmp.Compare(a.At, b.At) })
	start := t.Rows[0].At
	for i := range t.Rows {
		t.Rows[i].At -= start
	}
	return t, nil
}

// begin passes over a byte order mark and returns the first byte that is no blank, left unread.
func begin(b *bufio.Reader) (byte, error) {
	if head, err := b.Peek(3); err == nil && string(head) == "\uFEFF" {
		_, _ = b.Discard(3) // it has just been seen
	}
	for n := 1; ; n++ {
		switch head, err := b.Peek(n); {
		case errors.Is(err, io.EOF):
			return 0, errors.New("is empty")
		case errors.Is(err, bufio.ErrBufferFull):
			return 0, fmt.Errorf("begins with %d blanks", n-1)
		case err != nil:
			return 0, err
		case !strings.ContainsRune(" \t\r\n", rune(head[n-1])):
			return head[n-1], nil
		}
	}
}

// add takes one row, whose lengths are still text: first the name, then the value.
func (t *Trace) add(at time.Duration, input, output [2]string, blocks []uint64) (err error) {
	row := TraceRow{At: at, Blocks: blocks}
	if row.Input, err = tokenText(input, 1); err != nil {
		return err
	}
	if row.Output, err = tokenText(output, 0); err != nil {
		return err
	}
	if row.Output == 0 {
		t.Skipped++
		return nil
	}
	t.Rows = append(t.Rows, row)
	return nil
}

// tokenText reads a number of tokens. Tools that know no missing integers write 12 as 12.0.
func tokenText(value [2]string, least float64) (int, error) {
	n, err := strconv.ParseFloat(strings.TrimSpace(value[1]), 64)
	if err != nil || !isWhole(n, least) {
		return 0, fmt.Errorf("%s %q is not a whole number from %g to %g", value[0], value[1], least, maxTokens)
	}
	return int(n), nil
}

// isWhole tells whether a number read from a file can be a number of tokens.
func isWhole(n, least float64) bool { return n >= least && n <= maxTokens && n == math.Trunc(n) }

func (t *Trace) readCSV(r io.Reader) error {
	in := csv.NewReader(r)
	in.TrimLeadingSpace = true
	header, err := in.Read()
	if err != nil {
		return csvError(err)
	}
	at, input, output := column(header, timeColumns), column(header, inputColumns), column(header, outputColumns)
	if at < 0 || input < 0 || output < 0 {
		line, _ := in.FieldPos(0)
		return lineError(line, fmt.Errorf("needs the columns timestamp, input_tokens and output_tokens (or TIMESTAMP, ContextTokens, GeneratedTokens), has %s", excerpt([]byte(strings.Join(header, ",")))))
	}
	for {
		cells, err := in.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return csvError(err)
		}
		line, _ := in.FieldPos(0)
		since, err := moment(cells[at])
		if err != nil {
			return lineError(line, fmt.Errorf("%s %w", header[at], err))
		}
		if err := t.add(since, [2]string{header[input], cells[input]}, [2]string{header[output], cells[output]}, nil); err != nil {
			return lineError(line, err)
		}
	}
}

// csvError names the line of an error, unless it is one of reading the file.
func csvError(err error) error {
	var parse *csv.ParseError
	if errors.As(err, &parse) {
		return lineError(parse.Line, parse.Err)
	}
	return fmt.Errorf(" %w", err)
}

func lineError(line int, err error) error { return fmt.Errorf("%d: %w", line, err) }

func column(header, names []string) int {
	return slices.IndexFunc(header, func(h string) bool { return slices.Contains(names, strings.ToLower(strings.TrimSpace(h))) })
}

// moments are the forms of time stamps, beside seconds as a number.
var moments = []string{"2006-01-02 15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00", time.RFC3339Nano, "2006-01-02T15:04:05.999999999"}

// longestOffset is how far a time stamp may be from the zero of its kind, in seconds: 140 years, half of
// what a duration can hold, so that the distance of any two is one. Milliseconds since 1970, taken for
// seconds, are far above it.
const longestOffset = 140 * 365 * 24 * 3600

// moment reads a time stamp as a time since some fixed moment.
func moment(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		return offset(seconds)
	}
	for _, layout := range moments {
		if at, err := time.Parse(layout, text); err == nil {
			since := at.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
			if since.Abs() > longestOffset*time.Second {
				return 0, fmt.Errorf("%q is too far from the year 2000", text)
			}
			return since, nil
		}
	}
	return 0, fmt.Errorf("%q is neither a time such as 2023-11-16 18:17:03.97 nor a number of seconds", text)
}

func offset(seconds float64) (time.Duration, error) {
	if !(math.Abs(seconds) <= longestOffset) { // NaN too
		return 0, fmt.Errorf("%g is not a time in seconds", seconds)
	}
	return time.Duration(math.Round(seconds * float64(time.Second))), nil
}

func (t *Trace) readLines(r io.Reader) error {
	return jsonLines(r, func(data []byte) error {
		var row struct {
			Timestamp *float64        `json:"timestamp"`
			Input     json.RawMessage `json:"input_length"`
			Output    json.RawMessage `json:"output_length"`
			Blocks    []uint64        `json:"hash_ids"`
		}
		if err := json.Unmarshal(data, &row); err != nil {
			return plainly(err)
		}
		if row.Timestamp == nil || row.Input == nil || row.Output == nil {
			return errors.New("needs timestamp, input_length and output_length")
		}
		at, err := offset(*row.Timestamp / 1000)
		if err != nil {
			return fmt.Errorf("timestamp %w", err)
		}
		value := func(name string, raw json.RawMessage) [2]string {
			return [2]string{name, strings.Trim(string(raw), `"`)}
		}
		return t.add(at, value("input_length", row.Input), value("output_length", row.Output), row.Blocks)
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

// plainly says in the words of the file what a JSON decoder says in those of Go.
func plainly(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err
	}
	want := "a number"
	switch wrong.Type.Kind() {
	case reflect.String:
		want = "text"
	case reflect.Slice:
		want = "a list"
	case reflect.Struct:
		want = "an object"
	case reflect.Uint64:
		want = "a whole number"
	}
	if wrong.Field == "" {
		return fmt.Errorf("must be %s, is %s", want, wrong.Value)
	}
	return fmt.Errorf("%s must be %s, is %s", wrong.Field, want, wrong.Value)
}

// blocksPrompt renders a prompt of n token ids in which equal blocks have equal ids. What goes beyond the
// named blocks is the request's own.
func blocksPrompt(own *rand.Rand, seed uint64, blocks []uint64, n int) []byte {
	out := append(make([]byte, 0, 6*n+2), '[')
	for i := 0; i < n; i += TraceBlock {
		r := own
		if i/TraceBlock < len(blocks) {
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

// blockWords is the same for prompts of text, in which every block has the given number of words.
func (c *calibration) blockWords(own *rand.Rand, seed uint64, blocks []uint64, perBlock int) words {
	return func(i int) string {
		block := i / perBlock
		if block >= len(blocks) {
			return c.vocabulary[own.IntN(len(c.vocabulary))]
		}
		return c.vocabulary[mix(seed^mix(blocks[block])+uint64(i%perBlock))%uint64(len(c.vocabulary))]
	}
}
