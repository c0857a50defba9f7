// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

const ms = time.Millisecond

// event is the data of one server-sent event and when it is sent, in ms after the request.
type event struct {
	at   int
	data string
}

// The chunks of the cases, short.
func content(at int, s string) event {
	return event{at, fmt.Sprintf(`{"choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]}`, s)}
}

func finish(at int, reason string) event {
	return event{at, fmt.Sprintf(`{"choices":[{"index":0,"delta":{},"finish_reason":%q}]}`, reason)}
}

func tokens(at, n int) event {
	return event{at, fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":%d,"total_tokens":%d}}`, n, n+10)}
}

func done(at int) event { return event{at, "[DONE]"} }

// every returns n chunks, the first at from and one more after each step. With perChunk > 0 each carries
// the usage so far.
func every(n, from, step, perChunk int) (events []event) {
	for i := range n {
		usage := "null"
		if perChunk > 0 {
			usage = fmt.Sprintf(`{"prompt_tokens":10,"completion_tokens":%d}`, (i+1)*perChunk)
		}
		events = append(events, event{from + i*step, `{"choices":[{"index":0,"text":" x","finish_reason":null}],"usage":` + usage + `}`})
	}
	return events
}

func join(parts ...any) (events []event) {
	for _, p := range parts {
		switch p := p.(type) {
		case event:
			events = append(events, p)
		case []event:
			events = append(events, p...)
		}
	}
	return events
}

// cases are streams and what must be measured of them. OutputTarget is 1024 unless want says otherwise.
var cases = map[string]struct {
	stream []event
	rules  rules
	want   Record
	tpot   time.Duration // 0: undefined
	gaps   map[time.Duration]int
}{
	"S1 role-only first delta": {
		stream: join(event{5, `{"choices":[{"delta":{"role":"assistant","content":""}}]}`}, content(214, "Hi"), content(234, " there"), finish(234, "stop"), tokens(240, 2), done(240)),
		want:   Record{TTFT: 214 * ms, FirstAnswer: 214 * ms, E2E: 234 * ms, PromptTokens: 10, OutputTokens: 2, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 2, FinishReason: "stop"},
		tpot:   20 * ms, gaps: map[time.Duration]int{20 * ms: 1},
	},
	"S1 role-only first delta with null content": {
		stream: join(event{5, `{"choices":[{"delta":{"role":"assistant","content":null}}]}`}, content(214, "Hi"), content(234, " there"), finish(234, "stop"), tokens(240, 2), done(240)),
		want:   Record{TTFT: 214 * ms, FirstAnswer: 214 * ms, E2E: 234 * ms, PromptTokens: 10, OutputTokens: 2, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 2, FinishReason: "stop"},
		tpot:   20 * ms, gaps: map[time.Duration]int{20 * ms: 1},
	},
	"S1 role-only first delta without content": {
		stream: join(event{5, `{"choices":[{"delta":{"role":"assistant"}}]}`}, content(214, "Hi"), content(234, " there"), finish(234, "stop"), tokens(240, 2), done(240)),
		want:   Record{TTFT: 214 * ms, FirstAnswer: 214 * ms, E2E: 234 * ms, PromptTokens: 10, OutputTokens: 2, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 2, FinishReason: "stop"},
		tpot:   20 * ms, gaps: map[time.Duration]int{20 * ms: 1},
	},
	"S13 the server's count beats any of ours": {
		stream: join(every(3, 100, 20, 0), finish(140, "length"), tokens(140, 1024), done(140)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 140 * ms, PromptTokens: 10, OutputTokens: 1024, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 3, FinishReason: "length"},
		tpot:   40 * ms / 1023, gaps: map[time.Duration]int{39 * time.Microsecond: 2},
	},
	"S2 no token at all": {
		stream: join(event{5, `{"choices":[{"delta":{"role":"assistant","content":""}}]}`}, finish(100, "stop"), done(100)),
		want:   Record{FinishReason: "stop", Category: EmptyOutput, Error: "the answer ended without any token"},
	},
	"S2 no token at all, allowed": {
		stream: join(event{5, `{"choices":[{"delta":{"role":"assistant","content":""}}]}`}, finish(100, "stop"), tokens(100, 0), done(100)),
		rules:  rules{allowEmpty: true},
		want:   Record{PromptTokens: 10, TokensSource: FromUsage, FinishReason: "stop"},
	},
	"S2 nothing but the end": {
		stream: join(done(100)),
		want:   Record{Category: EmptyOutput, Error: "the answer ended without any token"},
	},
	"S3 reasoning_content": {
		stream: join(event{100, `{"choices":[{"delta":{"content":null,"reasoning_content":"Let"}}]}`}, event{120, `{"choices":[{"delta":{"reasoning_content":" me"}}]}`}, content(400, "42"), finish(400, "stop"), tokens(400, 3), done(400)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 400 * ms, E2E: 400 * ms, PromptTokens: 10, OutputTokens: 3, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 3, FinishReason: "stop"},
		tpot:   150 * ms, gaps: map[time.Duration]int{20 * ms: 1, 280 * ms: 1},
	},
	"S4 reasoning": {
		stream: join(event{100, `{"choices":[{"delta":{"content":null,"reasoning":"Let"}}]}`}, event{120, `{"choices":[{"delta":{"reasoning":" me"}}]}`}, content(400, "42"), finish(400, "stop"), tokens(400, 3), done(400)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 400 * ms, E2E: 400 * ms, PromptTokens: 10, OutputTokens: 3, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 3, FinishReason: "stop"},
		tpot:   150 * ms, gaps: map[time.Duration]int{20 * ms: 1, 280 * ms: 1},
	},
	"S4 both reasoning keys count once": {
		stream: join(event{100, `{"choices":[{"delta":{"reasoning":"Let","reasoning_content":"Let"}}]}`}, event{120, `{"choices":[{"delta":{"reasoning":" me","reasoning_content":" me"}}]}`}, content(400, "42"), finish(400, "stop"), tokens(400, 3), done(400)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 400 * ms, E2E: 400 * ms, PromptTokens: 10, OutputTokens: 3, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 3, FinishReason: "stop"},
		tpot:   150 * ms, gaps: map[time.Duration]int{20 * ms: 1, 280 * ms: 1},
	},
	"S7 usage chunk with no choices": {
		stream: join(every(12, 100, 10, 0), finish(210, "length"), tokens(300, 12), done(300)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 210 * ms, PromptTokens: 10, OutputTokens: 12, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 12, FinishReason: "length"},
		tpot:   10 * ms, gaps: map[time.Duration]int{10 * ms: 11},
	},
	"S9 no usage": {
		stream: join(every(10, 100, 10, 0), finish(190, "stop"), done(190)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 190 * ms, OutputTokens: 10, TokensSource: FromChunks, FirstChunkTokens: 1, Chunks: 10, FinishReason: "stop", OutputTarget: 256},
		tpot:   10 * ms,
	},
	"S9 no usage, chunks allowed": {
		stream: join(every(10, 100, 10, 0), finish(190, "stop"), done(190)),
		rules:  rules{allowChunkCount: true},
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 190 * ms, OutputTokens: 10, TokensSource: FromChunks, FirstChunkTokens: 1, Chunks: 10, FinishReason: "stop", OutputTarget: 256},
		tpot:   10 * ms, gaps: map[time.Duration]int{10 * ms: 9},
	},
	"S9 a usage of zero is none": {
		stream: join(every(10, 100, 10, 0), finish(190, "stop"), tokens(190, 0), done(190)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 190 * ms, PromptTokens: 10, OutputTokens: 10, TokensSource: FromChunks, FirstChunkTokens: 1, Chunks: 10, FinishReason: "stop"},
		tpot:   10 * ms,
	},
	"S10 cumulative usage, the last value wins": {
		stream: join(every(3, 100, 10, 1), finish(120, "stop"), done(120)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 120 * ms, PromptTokens: 10, OutputTokens: 3, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 3, FinishReason: "stop"},
		tpot:   10 * ms, gaps: map[time.Duration]int{10 * ms: 2},
	},
	"S11 four tokens a chunk, continuous usage": {
		stream: join(every(10, 100, 80, 4), finish(820, "length"), tokens(820, 40), done(820)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 820 * ms, PromptTokens: 10, OutputTokens: 40, TokensSource: FromUsage, FirstChunkTokens: 4, Chunks: 10, FinishReason: "length"},
		tpot:   20 * ms, gaps: map[time.Duration]int{20 * ms: 36},
	},
	"S11 four tokens a chunk, usage at the end": {
		stream: join(every(10, 100, 80, 0), finish(820, "length"), tokens(820, 40), done(820)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 820 * ms, PromptTokens: 10, OutputTokens: 40, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 10, FinishReason: "length"},
		tpot:   720 * ms / 39, gaps: map[time.Duration]int{18462 * time.Microsecond: 9},
	},
	"S11 a chunk without a new token joins the next": {
		stream: join(every(2, 100, 20, 1), event{130, `{"choices":[{"text":"\ufffd"}],"usage":{"completion_tokens":2}}`}, event{150, `{"choices":[{"text":"x"}],"usage":{"completion_tokens":5}}`}, finish(150, "stop"), done(150)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 150 * ms, PromptTokens: 10, OutputTokens: 5, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 4, FinishReason: "stop"},
		tpot:   50 * ms / 4, gaps: map[time.Duration]int{20 * ms: 1, 10 * ms: 3},
	},
	"one chunk with everything has no TPOT": {
		stream: join(every(1, 900, 0, 0), finish(900, "length"), tokens(900, 8), done(900)),
		want:   Record{TTFT: 900 * ms, FirstAnswer: 900 * ms, E2E: 900 * ms, PromptTokens: 10, OutputTokens: 8, TokensSource: FromUsage, FirstChunkTokens: 8, Chunks: 1, FinishReason: "length"},
	},
	"S31 all chunks at once have no TPOT": {
		stream: join(every(8, 900, 0, 0), finish(900, "length"), tokens(900, 8), done(900)),
		want:   Record{TTFT: 900 * ms, FirstAnswer: 900 * ms, E2E: 900 * ms, PromptTokens: 10, OutputTokens: 8, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 8, FinishReason: "length"},
	},
	"S15 late usage and end": {
		stream: join(every(33, 180, 20, 0), finish(820, "length"), tokens(1500, 33), done(1600)),
		want:   Record{TTFT: 180 * ms, FirstAnswer: 180 * ms, E2E: 820 * ms, PromptTokens: 10, OutputTokens: 33, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 33, FinishReason: "length"},
		tpot:   20 * ms, gaps: map[time.Duration]int{20 * ms: 32},
	},
	"no [DONE]": {
		stream: join(every(3, 100, 10, 1), finish(120, "stop")),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 120 * ms, PromptTokens: 10, OutputTokens: 3, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 3, FinishReason: "stop"},
		tpot:   10 * ms, gaps: map[time.Duration]int{10 * ms: 2},
	},
	"S16 error before any token": {
		stream: join(event{50, `{"error":{"message":"no such thing","type":"BadRequestError","code":400}}`}, done(50)),
		want:   Record{Category: ServerError, Error: "no such thing"},
	},
	"S17 error in mid-stream": {
		stream: join(content(100, "a\n"), event{120, `{"error":{"message":"EngineCore died","type":"InternalServerError","param":null,"code":500}}`}, done(120)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 100 * ms, OutputTokens: 1, TokensSource: FromChunks, FirstChunkTokens: 1, Chunks: 1, Category: ServerError, Error: "EngineCore died", Partial: "a"},
	},
	"S20 abnormal finish": {
		stream: join(content(100, "a"), finish(120, "abort"), tokens(120, 1), done(120)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 100 * ms, PromptTokens: 10, OutputTokens: 1, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 1, FinishReason: "abort", Category: "abort", Error: "the answer ended with finish_reason abort", Partial: "a"},
	},
	"S20 content filter without a token": {
		stream: join(finish(120, "content_filter"), done(120)),
		want:   Record{FinishReason: "content_filter", Category: "content_filter", Error: "the answer ended with finish_reason content_filter"},
	},
	"no finish_reason": {
		stream: join(every(3, 100, 10, 1), done(130)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 120 * ms, PromptTokens: 10, OutputTokens: 3, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 3, Category: TruncatedStream, Error: "the answer ended without a finish_reason", Partial: "x x x"},
		tpot:   10 * ms, gaps: map[time.Duration]int{10 * ms: 2},
	},
	"tool call": {
		stream: join(event{100, `{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":""}}]}}]}`}, event{130, `{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{}"}}]}}]}`}, finish(130, "tool_calls"), tokens(130, 2), done(130)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 130 * ms, PromptTokens: 10, OutputTokens: 2, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 2, FinishReason: "tool_calls"},
		tpot:   30 * ms, gaps: map[time.Duration]int{30 * ms: 1},
	},
	"S21 short although ignore_eos was set": {
		stream: join(every(10, 100, 10, 1), finish(190, "stop"), done(190)),
		rules:  rules{ignoreEOS: true},
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 190 * ms, PromptTokens: 10, OutputTokens: 10, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 10, FinishReason: "stop", Short: true},
		tpot:   10 * ms, gaps: map[time.Duration]int{10 * ms: 9},
	},
	"S30 a first token before the request": {
		stream: join(every(3, -50, 100, 1), finish(150, "stop"), done(150)),
		want:   Record{PromptTokens: 10, OutputTokens: 3, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 3, FinishReason: "stop", Category: InvalidTiming, Error: "first token -50ms, last token 150ms after the request", Partial: "x x x"},
	},
	"S30 a clock that goes back": {
		stream: join(content(100, "a"), content(90, "b"), finish(200, "stop"), tokens(200, 2), done(200)),
		want:   Record{PromptTokens: 10, OutputTokens: 2, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 2, FinishReason: "stop", Category: InvalidTiming, Error: "first token 100ms, last token 90ms after the request", Partial: "ab"},
	},
	"S35 a proxy that holds the stream back": {
		stream: join(every(100, 2895, 0, 0), every(28, 2900, 0, 0), finish(2900, "length"), tokens(2900, 128), done(2900)),
		want:   Record{TTFT: 2895 * ms, FirstAnswer: 2895 * ms, E2E: 2900 * ms, PromptTokens: 10, OutputTokens: 128, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 128, FinishReason: "length", Buffered: true},
		tpot:   5 * ms / 127, gaps: map[time.Duration]int{0: 126, 5 * ms: 1},
	},
	"A14 max_tokens not honoured": {
		stream: join(every(9, 100, 10, 1), finish(990, "stop"), done(990)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 180 * ms, PromptTokens: 10, OutputTokens: 9, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 9, OutputTarget: 8, Category: TooManyTokens, Error: "the server generated 9 tokens, max_tokens is 8", Partial: strings.TrimSpace(strings.Repeat(" x", 9))},
		tpot:   10 * ms, gaps: map[time.Duration]int{10 * ms: 8},
	},
	"A14 max_tokens not honoured, no usage": {
		stream: join(every(20, 100, 10, 0), finish(990, "stop"), done(990)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 260 * ms, OutputTokens: 17, TokensSource: FromChunks, FirstChunkTokens: 1, Chunks: 17, OutputTarget: 8, Category: TooManyTokens, Error: "the server generated 17 tokens, max_tokens is 8", Partial: strings.TrimSpace(strings.Repeat(" x", 17))},
		tpot:   10 * ms,
	},
	"a chunk that is not JSON": {
		stream: join(content(100, "a"), event{120, `{"choices`}, done(120)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 100 * ms, OutputTokens: 1, TokensSource: FromChunks, FirstChunkTokens: 1, Chunks: 1, Category: MalformedChunk, Error: `decode chunk "{\"choices": unexpected end of JSON input`, Partial: "a"},
	},
	"text in several bytes per character": {
		stream: join(content(100, "日本"), content(120, "🙂é"), finish(120, "abort"), done(120)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 120 * ms, OutputTokens: 2, TokensSource: FromChunks, FirstChunkTokens: 1, Chunks: 2, FinishReason: "abort", Category: "abort", Error: "the answer ended with finish_reason abort", Partial: "日本🙂é"},
		tpot:   20 * ms,
	},
	"S28 long lines": {
		stream: join(content(100, strings.Repeat("x", 70_000)), content(120, strings.Repeat("y", 2<<20)), finish(120, "stop"), tokens(120, 2), done(120)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 120 * ms, PromptTokens: 10, OutputTokens: 2, TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 2, FinishReason: "stop"},
		tpot:   20 * ms, gaps: map[time.Duration]int{20 * ms: 1},
	},
	"S28 a line above the cap": {
		stream: join(content(100, "a"), content(120, strings.Repeat("y", maxLine)), finish(120, "stop"), done(120)),
		want:   Record{TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 100 * ms, OutputTokens: 1, TokensSource: FromChunks, FirstChunkTokens: 1, Chunks: 1, Category: LineTooLong, Error: "a line or an event is longer than 16 MiB", Partial: "a"},
	},
}

// encodings write the same events in every way that the rules allow. Each returns what is sent
// when: an event's bytes at its time, except what a variant moves to the next one.
var encodings = map[string]func(events []event) []event{
	"LF":                   framed("data: %s\n\n"),
	"CRLF":                 framed("data: %s\r\n\r\n"),
	"CR":                   framed("data: %s\r\r"),
	"no space":             framed("data:%s\n\n"),
	"comments":             framed(":\n: keep-alive\n\n: ping - 2025-05-19\ndata: %s\n: between\n\n"),
	"other fields":         framed("event: message\nid: 7\nretry: 10\ndata: %s\n\n"),
	"spaces at the end":    framed("data: %s \t\n\n"),
	"empty events between": framed("data:\n\ndata: %s\n\n"),
	"two data lines": func(events []event) []event {
		events = append([]event(nil), events...)
		for i := range events {
			events[i].data = strings.Replace(events[i].data, `":`, "\":\ndata: ", 1)
		}
		return framed("data: %s\n\n")(events)
	},
	"no blank line at the end": func(events []event) []event {
		out := framed("data: %s\n\n")(events)
		last := &out[len(out)-1]
		last.data = strings.TrimSuffix(last.data, "\n\n")
		return out
	},
	"line ends with the next event": func(events []event) []event {
		out := framed("data: %s\r\n\r\n")(events)
		for i := range out {
			out[i].data = strings.TrimSuffix(out[i].data, "\r\n\r\n")
			if i > 0 {
				out[i].data = "\r\n\r\n" + out[i].data
			}
		}
		return out
	},
	"byte order mark": func(events []event) []event {
		out := framed("data: %s\n\n")(events)
		out[0].data = "\uFEFF" + out[0].data
		return out
	},
}

func framed(format string) func([]event) []event {
	return func(events []event) []event {
		var out []event
		for _, e := range events {
			out = append(out, event{e.at, fmt.Sprintf(format, e.data)})
		}
		return out
	}
}

// script is a body whose bytes arrive at given times; reading it moves the clock.
type script struct {
	parts []event
	piece int // the most bytes per read
	clock time.Duration
	err   error // at the end
}

func (s *script) Read(b []byte) (int, error) {
	if len(s.parts) == 0 {
		s.clock += time.Hour // the end of the stream must not count
		return 0, s.err
	}
	p := &s.parts[0]
	s.clock = sentAt + time.Duration(p.at)*ms
	n := copy(b[:min(s.piece, len(b))], p.data)
	if p.data = p.data[n:]; p.data == "" {
		s.parts = s.parts[1:]
	}
	return n, nil
}

const sentAt = 5 * time.Second

func measure(s *stream, body *script, outputTarget int32) Record {
	rec := Record{Sent: sentAt, OutputTarget: outputTarget}
	_, _ = s.measure(body, func() time.Duration { return body.clock }, &rec)
	rec.Sent = 0
	return rec
}

// TestMeasuresAreTheSameInEveryEncoding is S25 for all the other cases.
func TestMeasuresAreTheSameInEveryEncoding(t *testing.T) {
	var s stream // reused, as by a worker
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			want := tt.want
			if want.OutputTarget == 0 {
				want.OutputTarget = 1024
			}
			s.rules = tt.rules
			for encoding, encode := range encodings {
				for _, piece := range []int{1 << 20, 1000, 3, 1} {
					if strings.HasPrefix(name, "S28") && (piece < 1<<20 || len(encoding) > 2) {
						continue // megabytes: line ends are enough
					}
					got := measure(&s, &script{parts: encode(tt.stream), piece: piece, err: io.EOF}, want.OutputTarget)
					assert.Equal(t, want, got, "%s by %d bytes", encoding, piece)
					tpot, _ := got.TPOT()
					assert.Equal(t, tt.tpot, tpot, encoding)
					assert.Equal(t, tt.gaps, gapsOf(&s), encoding)
				}
			}
		})
	}
}

func gapsOf(s *stream) (gaps map[time.Duration]int) {
	s.tokenGaps(func(d time.Duration, tokens int) {
		if gaps == nil {
			gaps = map[time.Duration]int{}
		}
		gaps[d] += tokens
	})
	return gaps
}

// TestTheMeanGapIsTPOT holds for whatever usage a server reports.
func TestTheMeanGapIsTPOT(t *testing.T) {
	for name, tt := range cases {
		if tt.tpot == 0 || tt.gaps == nil || tt.want.Category != "" {
			continue
		}
		sum, n := time.Duration(0), 0
		for d, tokens := range tt.gaps {
			sum, n = sum+d*time.Duration(tokens), n+tokens
		}
		assert.InDelta(t, float64(tt.tpot), float64(sum)/float64(n), float64(time.Microsecond), name)
	}
}

// raw bodies that are no proper stream of events.
func TestBodiesThatAreNoStream(t *testing.T) {
	broken := errors.New("read tcp: connection reset by peer")
	tests := map[string]struct {
		body string
		err  error
		want Record
	}{
		"S19 unframed error": {
			body: `{"error":{"code":400,"message":"request (19185 tokens) exceeds the available context size (16384 tokens)"}}`,
			want: Record{Category: ServerError, Error: "request (19185 tokens) exceeds the available context size (16384 tokens)"},
		},
		"S19 unframed error on several lines after a comment": {
			body: ": ping\n\n{\n  \"error\": {\n    \"message\": \"too long\"\n  }\n}\n",
			want: Record{Category: ServerError, Error: "too long"},
		},
		"a whole answer": {
			body: `{"choices":[{"text":"a","finish_reason":"stop"}]}`,
			want: Record{Category: NotStreamed, Error: `the response is not an event stream: {"choices":[{"text":"a","finish_reason":"stop"}]}`},
		},
		"a web page": {
			body: "<html>\n",
			want: Record{Category: NotStreamed, Error: "the response is not an event stream: <html>"},
		},
		"nothing": {
			want: Record{Category: EmptyOutput, Error: "the response is empty"},
		},
		"comments only": {
			body: ": ping\n\n: ping\n\n",
			want: Record{Category: EmptyOutput, Error: "the response is empty"},
		},
		"closed inside a chunk": {
			body: "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choi",
			want: Record{TTFT: 7 * ms, FirstAnswer: 7 * ms, E2E: 7 * ms, OutputTokens: 1, TokensSource: FromChunks, FirstChunkTokens: 1, Chunks: 1, Category: TruncatedStream, Error: `the answer ended inside a line: {"choi`, Partial: "a"},
		},
		"S23 reset in mid-stream": {
			body: "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choi",
			err:  broken,
			want: Record{TTFT: 7 * ms, FirstAnswer: 7 * ms, E2E: 7 * ms, OutputTokens: 1, TokensSource: FromChunks, FirstChunkTokens: 1, Chunks: 1, Category: ConnectionReset, Error: broken.Error(), Partial: "a"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			body := &script{piece: 10, err: io.EOF}
			if tt.body != "" {
				body.parts = []event{{7, tt.body}}
			}
			if tt.err != nil {
				body.err = tt.err
			}
			tt.want.OutputTarget = 8
			assert.Equal(t, tt.want, measure(new(stream), body, 8))
		})
	}
}

func TestAStreamIsBufferedOnlyWhenNearlyAllOfItComesLate(t *testing.T) {
	tests := map[string]struct {
		stream []event
		want   bool
	}{
		"91 of 100 in the last 5 %": {join(every(9, 100, 1, 0), every(91, 1000, 0, 0)), true},
		"90 of 100 in the last 5 %": {join(every(10, 100, 1, 0), every(90, 1000, 0, 0)), false},
		"evenly":                    {every(100, 100, 10, 0), false},
		"few tokens":                {every(15, 1000, 0, 0), false},
		"one chunk of many tokens":  {every(1, 1000, 0, 100), true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			events := framed("data: %s\n\n")(join(tt.stream, finish(1000, "stop"), done(1000)))
			got := measure(new(stream), &script{parts: events, piece: 1 << 20, err: io.EOF}, 1024)
			assert.Equal(t, tt.want, got.Buffered)
		})
	}
}
