// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// steady answers every request in the same time: 100 ms to the first token, then one each 20 ms.
func steady(w *answer, _ int, r *request) { w.tokens(r, 100*ms, 20*ms, r.MaxTokens) }

func TestALevelMeasuresExactlyWhatTheServerDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: steady}
		r, err := Run(t.Context(), e.start(t))
		require.NoError(t, err)

		require.Len(t, r.Warmup, 2)
		require.Len(t, r.Records, 8)
		// The warm-up's first request has the line to itself until its answer begins, after 100 ms.
		assert.Equal(t, Record{
			Index: 2, Scheduled: 260 * ms, Sent: 260 * ms, Done: 420 * ms, TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 160 * ms,
			PromptTarget: 16, PromptTokens: 16, OutputTarget: 4, OutputTokens: 4, TokensSource: FromUsage,
			FirstChunkTokens: 1, Chunks: 4, FinishReason: "length",
		}, r.Records[0])
		assert.Equal(t, []Gap{{20 * ms, 24}}, r.Gaps)
		assert.Equal(t, 260*ms+4*160*ms, r.Elapsed)
		assert.Empty(t, r.Stopped)
		assert.Empty(t, r.Warnings)

		s := Summarize(r)
		ttft, tpot, e2e := new(100.0), new(20.0), new(160.0)
		assert.Equal(t, Summary{
			Sent: 8, OK: 8, ErrorRate: new(0.0),
			TTFT:        Distribution{8, ttft, ttft, ttft, ttft, ttft},
			FirstAnswer: Distribution{8, ttft, ttft, ttft, ttft, ttft},
			TPOT:        Distribution{8, tpot, tpot, tpot, tpot, tpot},
			ITL:         Distribution{24, tpot, tpot, tpot, tpot, tpot},
			E2E:         Distribution{8, e2e, e2e, e2e, e2e, e2e},
			Window:      new(0.64), RequestsPerSecond: new(12.5), OutputTokensPerSecond: new(50.0),
			InputTokensPerSecond: new(200.0), TotalTokensPerSecond: new(250.0),
			AchievedConcurrency: new(2.0), PeakConcurrency: 2,
			Warnings: []string{"small_sample: p50, p90, p95, p99 from 8 requests; at least 20, 100, 200, 1000 are needed"},
		}, s)
	})
}

func TestStreamsAreMeasuredTheSameOverHTTP(t *testing.T) {
	for name, tt := range cases {
		if strings.HasPrefix(name, "S28") || strings.HasPrefix(name, "S30") {
			continue // too much data for pipes in memory; no server can answer before it is asked
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{answer: func(w *answer, i int, _ *request) {
					for _, part := range framed("data: %s\n\n")(tt.stream) {
						w.at(time.Duration(part.at)*ms, part.data)
					}
				}}
				c := e.start(t)
				c.Concurrency, c.MaxRequests, c.MaxConsecutiveFailures = 1, 1, 100
				c.IgnoreEOS, c.AllowEmptyOutput, c.AllowChunkCount = tt.rules.ignoreEOS, tt.rules.allowEmpty, tt.rules.allowChunkCount
				want := tt.want
				if want.OutputTarget == 0 {
					want.OutputTarget = 1024
				}
				c.Workload.Output = FixedLength(int(want.OutputTarget))
				r, err := Run(t.Context(), c)
				require.NoError(t, err)
				got := r.Records[0]
				got.Index, got.Scheduled, got.Sent, got.Done, got.PromptTarget = 0, 0, 0, 0, 0
				assert.Equal(t, want, got)
			})
		})
	}
}

// S25 and S26: the same bytes in every encoding, whole and byte by byte.
func TestEncodingsAreMeasuredTheSameOverHTTP(t *testing.T) {
	for name, encode := range encodings {
		for _, piece := range []int{1 << 20, 1} {
			t.Run(fmt.Sprintf("%s by %d bytes", name, piece), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := &engine{answer: func(w *answer, _ int, _ *request) {
						for _, part := range encode(join(content(100, "日本"), content(120, "é"), finish(120, "stop"), tokens(150, 3), done(150))) {
							for b := range slices.Chunk([]byte(part.data), piece) {
								w.at(time.Duration(part.at)*ms, string(b))
							}
						}
					}}
					c := e.start(t)
					c.Concurrency, c.MaxRequests, c.Warmup = 1, 1, -1
					r, err := Run(t.Context(), c)
					require.NoError(t, err)
					got := r.Records[0]
					got.Scheduled, got.Sent, got.Done = 0, 0, 0
					assert.Equal(t, Record{
						TTFT: 100 * ms, FirstAnswer: 100 * ms, E2E: 120 * ms, PromptTarget: 16, PromptTokens: 10, OutputTarget: 4, OutputTokens: 3,
						TokensSource: FromUsage, FirstChunkTokens: 1, Chunks: 2, FinishReason: "stop",
					}, got)
				})
			})
		}
	}
}

func TestRequestsAskForWhatTheMeasurementNeeds(t *testing.T) {
	tests := map[API]struct {
		path, usage string
	}{
		Completions: {path: "/v1/completions"},
		Chat:        {path: "/v1/chat/completions"},
	}
	for api, tt := range tests {
		t.Run(string(api), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{answer: steady, tokenize: func(s string) int { return len(strings.Fields(s)) }}
				c := e.start(t)
				c.API, c.APIKey, c.IgnoreEOS, c.BaseURL = api, "sk-1", true, c.BaseURL+"/v1/"
				_, err := Run(t.Context(), c)
				require.NoError(t, err)
				for _, r := range e.seen() {
					assert.Equal(t, tt.path, r.path)
					assert.Equal(t, "m", r.Model)
					assert.True(t, r.Stream)
					assert.Equal(t, map[string]any{"include_usage": true, "continuous_usage_stats": true}, r.StreamOptions)
					assert.Equal(t, 4, r.MaxTokens)
					assert.Equal(t, 4, r.MinTokens)
					assert.True(t, r.IgnoreEOS)
					assert.Equal(t, new(0.0), r.Temperature)
					assert.Equal(t, "identity", r.header.Get("Accept-Encoding"))
					assert.Equal(t, "Bearer sk-1", r.header.Get("Authorization"))
				}
			})
		})
	}
}

func TestPromptsHaveTheirExactLengthAndShareNothing(t *testing.T) { // A6
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: steady}
		c := e.start(t)
		c.Workload.Input = UniformLength(256, 300)
		first := map[int]bool{}
		prefixes := map[string]bool{}
		for c.Seed = range 2 {
			_, err := Run(t.Context(), c)
			require.NoError(t, err)
		}
		for i, r := range e.seen() {
			ids := r.ids()
			require.GreaterOrEqual(t, slices.Min(ids), lowestID)
			require.Less(t, slices.Max(ids), lowestID+idSpan)
			prefixes[fmt.Sprint(ids[:256])] = true
			if i < 10 { // one level
				first[ids[0]] = true
			}
		}
		assert.Len(t, first, 10, "first tokens differ inside a level")
		assert.Len(t, prefixes, 20, "levels share no first 256 tokens")
	})
}

func TestTheSeedDecidesThePrompts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var prompts [2]map[string]int
		for i := range prompts {
			prompts[i] = map[string]int{}
			e := &engine{answer: steady}
			c := e.start(t)
			c.Workload, _ = ParseWorkload("normal(100,50/20,10)")
			_, err := Run(t.Context(), c)
			require.NoError(t, err)
			for _, r := range e.seen() {
				prompts[i][fmt.Sprint(r.Prompt)] = r.MaxTokens
			}
		}
		assert.Equal(t, prompts[0], prompts[1])
	})
}

func TestWarmupIsAtLeastOneWaveAndApart(t *testing.T) { // A7
	tests := map[string]struct{ warmup, want int }{
		"default":            {0, 16},
		"less than a wave":   {1, 16},
		"more than one wave": {20, 20},
		"none":               {-1, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{answer: steady}
				c := e.start(t)
				c.Concurrency, c.MaxRequests, c.Warmup = 16, 32, tt.warmup
				r, err := Run(t.Context(), c)
				require.NoError(t, err)
				assert.Len(t, r.Warmup, tt.want)
				assert.Len(t, r.Records, 32)
				assert.Len(t, e.seen(), tt.want+32)
				if tt.want > 0 {
					drained := slices.MaxFunc(r.Warmup, func(a, b Record) int { return int(a.Done - b.Done) }).Done
					started := slices.MinFunc(r.Records, func(a, b Record) int { return int(a.Sent - b.Sent) }).Sent
					assert.GreaterOrEqual(t, started, drained, "the warm-up is over before the measurement begins")
				}
			})
		})
	}
}

func TestFailuresAreCounted(t *testing.T) { // A2
	tests := map[string]struct {
		answer func(w *answer, r *request)
		want   Category
		err    string
	}{
		"status with a message": {
			func(w *answer, _ *request) { w.fail(503, `{"error":{"message":"The request queue is full."}}`) },
			"http_503", "http 503: The request queue is full.",
		},
		"status with a detail":  {func(w *answer, _ *request) { w.fail(500, `{"detail":"oops"}`) }, "http_500", "http 500: oops"},
		"status with text":      {func(w *answer, _ *request) { w.fail(502, "Bad gateway!\n") }, "http_502", "http 502: Bad gateway!"},
		"status without a body": {func(w *answer, _ *request) { w.fail(500, "") }, "http_500", "http 500: Internal Server Error"},
		"unknown status":        {func(w *answer, _ *request) { w.fail(599, "") }, "http_599", "http 599: no message"},
		"the key is not cut in half": {
			func(w *answer, _ *request) { w.fail(500, strings.Repeat("x", 495)+"sk-secret") },
			"http_500", "http 500: " + strings.Repeat("x", 490) + "…",
		},
		"the key is not repeated":  {func(w *answer, _ *request) { w.fail(500, "bad key sk-secret") }, "http_500", "http 500: bad key [redacted]"},
		"compressed all the same":  {func(w *answer, _ *request) { w.Header().Set("Content-Encoding", "gzip"); w.at(0, "x") }, NotStreamed, "the answer has Content-Encoding gzip although identity was asked for"},
		"closed without an answer": {func(*answer, *request) { panic(http.ErrAbortHandler) }, ConnectionReset, "the server closed the connection without an answer: EOF"},
		"closed inside the answer": {func(w *answer, _ *request) { w.at(0, "data: {}\n\n"); panic(http.ErrAbortHandler) }, TruncatedStream, "the connection was closed inside the answer: unexpected EOF"},
		"unframed error": { // S19
			func(w *answer, _ *request) {
				w.at(0, `{"error":{"code":400,"message":"request (19185 tokens) exceeds the available context size (16384 tokens)"}}`)
			},
			ServerError, "request (19185 tokens) exceeds the available context size (16384 tokens)",
		},
		"a web page": {func(w *answer, _ *request) { w.Header().Set("Content-Type", "text/html"); w.at(0, "<html>\n") }, NotStreamed, "the response is not an event stream: <html>"},
		"a header that drips": {func(w *answer, _ *request) {
			conn, _, err := w.ResponseWriter.(http.Hijacker).Hijack()
			for i := 0; err == nil; i++ {
				time.Sleep(100 * ms)
				_, err = conn.Write([]byte("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 100))[i : i+1])
			}
			_ = conn.Close() // the client has
		}, Timeout, "timeout: no complete answer within 2s"},
		"longer than the time allowed": {func(w *answer, r *request) { w.tokens(r, 100*ms, time.Second, 4) }, Timeout, "timeout: no complete answer within 2s"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{answer: func(w *answer, i int, r *request) {
					if i%10 == 5 { // one in ten
						tt.answer(w, r)
						return
					}
					steady(w, i, r)
				}}
				c := e.start(t)
				c.Concurrency, c.MaxRequests, c.RequestTimeout, c.APIKey = 1, 99, 2*time.Second, "sk-secret"
				r, err := Run(t.Context(), c)
				require.NoError(t, err)
				i := slices.IndexFunc(r.Records, func(r Record) bool { return !r.OK() })
				assert.Equal(t, tt.want, r.Records[i].Category)
				assert.Equal(t, tt.err, r.Records[i].Error)
				s := Summarize(r)
				assert.Equal(t, map[Category]int{tt.want: 10}, s.Categories)
				assert.Equal(t, 99, s.Sent)
				assert.Equal(t, 10, s.Failed)
				assert.Equal(t, new(10.0/99), s.ErrorRate, "the requests are the denominator")
				assert.Equal(t, 89, s.TTFT.N)
				assert.Equal(t, new(100.0), s.TTFT.P99)
			})
		})
	}
}

func TestARefusedFirstRequestEndsTheLevel(t *testing.T) { // S33
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: func(w *answer, _ int, _ *request) {
			w.fail(404, `{"error":{"message":"The model m does not exist."}}`)
		}}
		c := e.start(t)
		c.Concurrency = 100
		r, err := Run(t.Context(), c)
		require.ErrorIs(t, err, ErrConfig)
		assert.EqualError(t, err, "the server refuses the request: http 404: The model m does not exist.")
		assert.Len(t, e.seen(), 1, "after one request, not after the whole load")
		assert.Equal(t, err.Error(), r.Stopped)
		assert.Empty(t, r.Records)
	})
}

func TestFailuresInARowEndTheLevel(t *testing.T) { // K15
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: func(w *answer, i int, r *request) {
			if i >= 40 {
				w.fail(500, "EngineCore died")
				return
			}
			steady(w, i, r)
		}}
		c := e.start(t)
		c.Concurrency, c.MaxRequests = 1, 1000
		r, err := Run(t.Context(), c)
		require.ErrorIs(t, err, ErrConsecutiveFailures)
		assert.EqualError(t, err, "too many failures in a row: 20, the last one: http_500: http 500: EngineCore died")
		s := Summarize(r)
		assert.Equal(t, 39, s.OK)
		assert.Equal(t, 20, s.Failed)
	})
}

func TestFailuresWithSuccessesBetweenThemDoNotEndTheLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: func(w *answer, i int, r *request) {
			if i%3 > 0 {
				w.fail(500, "")
				return
			}
			steady(w, i, r)
		}}
		c := e.start(t)
		c.Concurrency, c.MaxRequests, c.MaxConsecutiveFailures = 1, 100, 3
		r, err := Run(t.Context(), c)
		require.NoError(t, err)
		assert.Equal(t, 67, Summarize(r).Failed)
	})
}

func TestTheDurationEndsTheLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: steady}
		c := e.start(t)
		c.MaxRequests, c.Duration = 0, time.Second
		r, err := Run(t.Context(), c)
		require.NoError(t, err)
		s := Summarize(r)
		assert.Equal(t, 14, s.OK, "two lines of 160 ms each, the last begun in time may finish")
		assert.Equal(t, new(7*0.16), s.Window)
		assert.Zero(t, s.Incomplete)
	})
}

func TestTheRequestsEndALevelBeforeItsDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: steady}
		c := e.start(t)
		c.Duration = time.Hour
		r, err := Run(t.Context(), c)
		require.NoError(t, err)
		assert.Len(t, r.Records, 8)
		assert.Less(t, r.Elapsed, time.Second)
	})
}

func TestWhatIsInFlightAfterTheDurationGetsAGrace(t *testing.T) {
	tests := map[string]struct {
		second time.Duration // when the second token of the first measured request comes
		want   Summary
	}{
		"a request that finishes in it counts":                     {35 * time.Second, Summary{OK: 1, Failed: 1, Sent: 2, Categories: map[Category]int{Stalled: 1}}},
		"a request that gets nothing in it has failed by stalling": {time.Hour, Summary{Failed: 2, Sent: 2, Categories: map[Category]int{Stalled: 2}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{answer: func(w *answer, i int, r *request) {
					switch i {
					case 2: // the first measured request
						w.tokens(r, time.Second, tt.second, 2)
					case 3: // hangs
						w.at(time.Hour, "")
					default:
						steady(w, i, r)
					}
				}}
				c := e.start(t)
				c.MaxRequests, c.Duration = 0, 10*time.Second
				r, err := Run(t.Context(), c)
				require.NoError(t, err)
				s := Summarize(r)
				assert.Equal(t, tt.want, Summary{OK: s.OK, Failed: s.Failed, Sent: s.Sent, Categories: s.Categories})
				for _, rec := range r.Records {
					if !rec.OK() {
						assert.Equal(t, "cut at the end of the level: still running 30s after its duration; nothing arrived in that time", rec.Error)
					}
				}
			})
		})
	}
}

func TestALongAnswerThatIsCutIsIncomplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: func(w *answer, i int, r *request) {
			if i < 2 {
				w.tokens(r, 10*time.Second, 20*time.Second, 2) // sets the grace: 2 · 30 s
				return
			}
			w.tokens(r, 500*ms, time.Second, 1000)
		}}
		c := e.start(t)
		c.MaxRequests, c.Duration = 0, 10*time.Second
		c.Workload.Output = FixedLength(1000)
		r, err := Run(t.Context(), c)
		require.NoError(t, err)
		s := Summarize(r)
		assert.Equal(t, 2, s.Incomplete)
		assert.Equal(t, 2, s.Sent)
		assert.Equal(t, new(0.0), s.ErrorRate)
		assert.Nil(t, s.OutputTokensPerSecond)
		assert.Equal(t, "cut at the end of the level: still running 1m0s after its duration", r.Records[0].Error)
		assert.EqualValues(t, 70, r.Records[0].OutputTokens)
		assert.Contains(t, s.Warnings, "incomplete: 2 requests were still running when the level was cut")
	})
}

func TestCancellingReturnsWhatWasMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: steady}
		c := e.start(t)
		c.MaxRequests = 1_000_000
		stop := errors.New("the user has had enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(stop) })
		r, err := Run(ctx, c)
		assert.Equal(t, stop, err)
		assert.Equal(t, stop.Error(), r.Stopped)
		assert.Equal(t, time.Second, r.Elapsed, "at once")
		s := Summarize(r)
		assert.Equal(t, 8, s.OK)
		assert.Equal(t, 8, s.Sent)
		assert.Equal(t, 2, s.Cancelled)
		assert.Equal(t, new(0.0), s.ErrorRate)
		assert.Equal(t, stop.Error(), r.Records[8].Error)
	})
}

func TestCancellingDuringTheWarmupMeasuresNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: steady}
		c := e.start(t)
		ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
		defer cancel()
		r, err := Run(ctx, c)
		assert.Equal(t, context.DeadlineExceeded, err)
		assert.Empty(t, r.Records)
		assert.Equal(t, Cancelled, r.Warmup[0].Category)
		assert.Equal(t, Summary{Partial: true}, Summarize(r))
	})
}

// TestLongResponsesHaveNoHiddenTimeout is S24: more than 5 minutes are fine.
func TestLongResponsesHaveNoHiddenTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: func(w *answer, i int, r *request) { w.tokens(r, 10*time.Minute, 10*time.Minute, 4) }}
		r, err := Run(t.Context(), e.start(t))
		require.NoError(t, err)
		s := Summarize(r)
		assert.Equal(t, 8, s.OK)
		assert.Equal(t, new(600_000.0), s.TTFT.P50)
	})
}

func TestAServerThatDoesNotEndItsAnswerLosesTheConnectionOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: func(w *answer, i int, r *request) {
			steady(w, i, r)
			w.at(time.Hour, ": late\n\n")
		}}
		r, err := Run(t.Context(), e.start(t))
		require.NoError(t, err)
		assert.Equal(t, 8, Summarize(r).OK)
		assert.Less(t, r.Elapsed, 10*time.Second)
		assert.Equal(t, 160*ms, r.Records[0].E2E)
	})
}

func TestProgressLinesSayWhatTheLevelIsDoing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: func(w *answer, i int, r *request) {
			if i == 13 {
				w.fail(500, "")
				return
			}
			w.tokens(r, 900*ms, 900*ms, 4)
		}}
		var log bytes.Buffer
		c := e.start(t)
		c.Log, c.Concurrency = &log, 1
		c.MaxRequests = 20
		_, err := Run(t.Context(), c)
		require.NoError(t, err)
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		assert.Equal(t, []string{
			"warm-up: finished, 1 requests, 0 failed, 3.6s, 0.3 requests/s, 1.1 output tokens/s",
			"measured: 1/20 requests, 0 failed, 1 in flight, 5s, 0.2 requests/s, 0.8 output tokens/s, 5 chunks in the last 5s",
			"measured: 2/20 requests, 0 failed, 0 in flight, 7.2s, 0.3 requests/s, 1.1 output tokens/s, 3 chunks in the last 2.2s",
		}, lines[:3])
		assert.Equal(t, "measured: finished, 20 requests, 1 failed, 1m8.4s, 0.3 requests/s, 1.1 output tokens/s", lines[len(lines)-1])
	})
}

func TestALogThatCannotBeWrittenIsAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{answer: steady}
		c := e.start(t)
		c.Log = full{}
		r, err := Run(t.Context(), c)
		require.NoError(t, err)
		assert.Equal(t, []string{"log: the progress is incomplete: no space left"}, r.Warnings)
	})
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestAConfigIsRefusedWithAllThatIsWrongWithIt(t *testing.T) {
	_, err := Run(t.Context(), Config{
		BaseURL: "localhost:8000", API: "embeddings", MaxRequests: -1, Duration: -1, RequestTimeout: -1, MaxConsecutiveFailures: -1,
		Client: &http.Client{Timeout: time.Second},
	})
	assert.EqualError(t, err, strings.Join([]string{
		`base URL "localhost:8000": must be http://host[:port] or https://host[:port]`,
		`model: must not be empty`,
		`API "embeddings": must be "completions" or "chat"`,
		`input: unknown distribution "": must be fixed, normal, lognormal or uniform`,
		`concurrency: must be at least 1, is 0`,
		`max requests: must not be negative, is -1`,
		`duration: must not be negative, is -1ns`,
		`request timeout: must not be negative, is -1ns`,
		`max consecutive failures: must not be negative, is -1`,
		`client: has a total timeout of 1s; use the request timeout`,
	}, "\n"))
}

func TestAClientWithTooFewConnectionsIsRefused(t *testing.T) {
	_, err := Run(t.Context(), Config{
		BaseURL: "http://h", Model: "m", Workload: Workload{FixedLength(1), FixedLength(1)}, Concurrency: 256, MaxRequests: 1,
		Client: &http.Client{Transport: &http.Transport{MaxConnsPerHost: 100}},
	})
	assert.EqualError(t, err, "client: at most 100 connections per host, but concurrency is 256")
}

func TestALevelNeedsAnEnd(t *testing.T) {
	_, err := Run(t.Context(), Config{BaseURL: "http://h", Model: "m", Workload: Workload{FixedLength(1), FixedLength(1)}, Concurrency: 1})
	assert.EqualError(t, err, "max requests and duration: at least one must be set")
}
