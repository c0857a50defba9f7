// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// readEvents returns the data of all events of a stream, and what ended it.
func readEvents(r io.Reader, limit int) (events []string, err error) {
	var e eventReader
	e.reset(r, func() time.Duration { return 0 })
	e.limit = limit
	for {
		data, _, err := e.next()
		if err != nil {
			return events, err
		}
		events = append(events, string(data))
	}
}

func TestEventsAreSplitByTheRulesOfServerSentEvents(t *testing.T) {
	tests := map[string]struct {
		in   string
		want []string
	}{
		"two events":                      {"data: a\n\ndata: b\n\n", []string{"a", "b"}},
		"CRLF":                            {"data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}},
		"CR alone":                        {"data: a\r\rdata: b\r\r", []string{"a", "b"}},
		"mixed line ends":                 {"data: a\r\n\ndata: b\r\r\ndata: c\n\r\n", []string{"a", "b", "c"}},
		"no space after the colon":        {"data:a\n\ndata:  b\n\n", []string{"a", " b"}},
		"several data lines are one":      {"data: a\ndata: b\ndata:c\n\n", []string{"a\nb\nc"}},
		"empty data lines count":          {"data\n\ndata:\ndata\n\n", []string{"", "\n"}},
		"trailing spaces are kept":        {"data: [DONE] \n\n", []string{"[DONE] "}},
		"comments":                        {":\n\n: ping\n: pong\n\ndata: a\n: between\ndata: b\n\n", []string{"a\nb"}},
		"other fields":                    {"event: x\nid: 1\nretry: 5\ndata: a\ndatax: no\nda: no\n\n", []string{"a"}},
		"no blank line at the end":        {"data: a\n\ndata: b\n", []string{"a", "b"}},
		"no line end at the end":          {"data: a\n\ndata: b", []string{"a", "b"}},
		"byte order mark":                 {"\uFEFFdata: a\n\ndata: \uFEFFb\n\n", []string{"a", "\uFEFFb"}},
		"blank lines only":                {"\n\r\n\r\n\n", nil},
		"nothing":                         {"", nil},
		"a JSON body":                     {`{"error":"data: x"}`, nil},
		"colon in the value":              {"data: a: b\n\n", []string{"a: b"}},
		"text in several bytes per glyph": {"data: 日本語🙂\n\n", []string{"日本語🙂"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, r := range []io.Reader{
				strings.NewReader(tt.in),
				iotest.OneByteReader(strings.NewReader(tt.in)),
				iotest.DataErrReader(strings.NewReader(tt.in)),
			} {
				got, err := readEvents(r, maxLine)
				assert.Equal(t, io.EOF, err)
				assert.Equal(t, tt.want, got)
			}
		})
	}
}

func TestLongLinesAreReadUpToTheLimit(t *testing.T) {
	for _, size := range []int{70_000, 2 << 20, maxLine - len("data: ")} {
		long := strings.Repeat("x", size)
		got, err := readEvents(strings.NewReader("data: "+long+"\n\ndata: b\n\n"), maxLine)
		assert.Equal(t, io.EOF, err)
		require.Len(t, got, 2)
		assert.True(t, got[0] == long, "%d bytes are returned whole", size)
	}
	for _, in := range []string{
		"data: " + strings.Repeat("x", maxLine) + "\n\n",
		": " + strings.Repeat("x", maxLine),
		"data: " + strings.Repeat("x", maxLine/2) + "\ndata: " + strings.Repeat("x", maxLine/2) + "\n\n",
	} {
		_, err := readEvents(strings.NewReader("data: a\n\n"+in), maxLine)
		assert.Equal(t, errLineTooLong, err)
	}
}

func TestABrokenStreamGivesWhatWasCompleteBefore(t *testing.T) {
	broken := errors.New("broken")
	r := io.MultiReader(strings.NewReader("data: a\n\ndata: b\ndata: c"), iotest.ErrReader(broken))
	got, err := readEvents(r, maxLine)
	assert.Equal(t, broken, err)
	assert.Equal(t, []string{"a", "b"}, got)
}

func TestAReaderThatNeverReadsIsAnError(t *testing.T) {
	_, err := readEvents(silent{}, maxLine)
	assert.Equal(t, io.ErrNoProgress, err)
}

type silent struct{}

func (silent) Read([]byte) (int, error) { return 0, nil }

func TestALargeBufferIsNotKeptForTheNextStream(t *testing.T) {
	var e eventReader
	e.reset(strings.NewReader("data: "+strings.Repeat("x", 1<<20)+"\n\n"), func() time.Duration { return 0 })
	_, _, err := e.next()
	require.NoError(t, err)
	require.Greater(t, len(e.buf), 1<<20)
	e.reset(strings.NewReader(""), e.now)
	assert.Len(t, e.buf, firstBuffer)
}

// reference is a plain implementation of the same rules on the whole text.
func reference(in string) (events []string) {
	in = strings.TrimPrefix(in, "\uFEFF")
	in = strings.ReplaceAll(strings.ReplaceAll(in, "\r\n", "\n"), "\r", "\n")
	var data []string
	flush := func() {
		if data != nil {
			events = append(events, strings.Join(data, "\n"))
		}
		data = nil
	}
	for line := range strings.SplitSeq(in, "\n") {
		if line == "" {
			flush()
		}
		if name, value, _ := strings.Cut(line, ":"); name == "data" {
			data = append(data, strings.TrimPrefix(value, " "))
		}
	}
	flush()
	return events
}

// streams are answers as servers frame them, for the fuzzers.
var streams = []string{
	// S25: line ends, and events that are cut anywhere
	"data:{\"choices\":[{\"text\":\"日🙂\"}]}\r\n\r\ndata: {\"choices\":[{\"text\":\"b\",\"finish_reason\":\"stop\"}]}\r\rdata: [DONE] \n\n",
	"data: {\"choices\":\ndata: [{\"text\":\"a\",\"finish_reason\":\"length\"}]}\n\ndata: {\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}",
	// S26: comments
	":\n\n: keep-alive\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n: ping - 2025-05-19\n\n: ping\n\ndata: [DONE]\n\n",
	// S28: a long line
	"data: {\"choices\":[{\"text\":\"" + strings.Repeat("x", 70_000) + "\"}]}\n\ndata: {\"choices\":[{\"text\":\"b\",\"finish_reason\":\"stop\"}]}\n\n",
	// S16: an error before any token
	"data: {\"error\":{\"message\":\"bad\",\"type\":\"BadRequestError\",\"code\":400}}\n\ndata: [DONE]\n\n",
	// S19: an error without a frame
	"{\"error\":{\"code\":400,\"message\":\"request (19185 tokens) exceeds the available context size (16384 tokens)\"}}",
}

// An answer is the same however the network cuts it.
func FuzzMeasure(f *testing.F) {
	for _, in := range streams {
		f.Add([]byte(in), uint16(0))
	}
	f.Fuzz(func(t *testing.T, in []byte, splits uint16) {
		measure := func(r io.Reader) (rec Record, answer string, gaps []gap) {
			rec.OutputTarget = 4
			s := stream{keep: true}
			_, err := s.measure(r, func() time.Duration { return ms }, &rec)
			require.NoError(t, err)
			return rec, string(s.answer), s.gaps
		}
		rec, answer, gaps := measure(bytes.NewReader(in))
		cut, cutAnswer, cutGaps := measure(&pieces{in, splits})
		require.Equal(t, rec, cut)
		require.Equal(t, answer, cutAnswer)
		require.ElementsMatch(t, gaps, cutGaps)
		require.Equal(t, rec.Category == "", rec.Error == "")
	})
}

func FuzzEvents(f *testing.F) {
	for _, in := range streams {
		f.Add([]byte(in), uint16(0)) // byte by byte
	}
	for _, in := range []string{
		"data: a\n\ndata: b\r\n\r\ndata:c\r\r", "\uFEFFdata: é\n\n", ": ping\n\ndata: [DONE] \n\n",
		"data: a\ndata: b\n", "data\r\n\rdata:\n", "data: {\"x\":\"日\"}",
	} {
		f.Add([]byte(in), uint16(0x5a3))
	}
	f.Fuzz(func(t *testing.T, in []byte, splits uint16) {
		whole, err := readEvents(bytes.NewReader(in), maxLine)
		require.Equal(t, io.EOF, err)
		require.Equal(t, reference(string(in)), whole)
		split, err := readEvents(&pieces{in, splits}, maxLine)
		require.Equal(t, io.EOF, err)
		require.Equal(t, whole, split)

		limited, err := readEvents(bytes.NewReader(in), 10)
		limitedSplit, errSplit := readEvents(&pieces{in, splits}, 10)
		require.Equal(t, limited, limitedSplit)
		require.Equal(t, err, errSplit)
	})
}

// pieces reads in pieces of 1 to 8 bytes; the bits of splits say how long each is.
type pieces struct {
	rest   []byte
	splits uint16
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.rest[:min(len(p.rest), int(p.splits&7)+1)])
	p.rest, p.splits = p.rest[n:], p.splits>>3|p.splits<<13
	return n, nil
}
