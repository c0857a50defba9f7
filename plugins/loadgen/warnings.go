// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// warn tells what should be known before the numbers are believed.
func (s *Summary) warn(r *Result) {
	warn := func(format string, args ...any) { s.Warnings = append(s.Warnings, fmt.Sprintf(format, args...)) }
	if weak := weakPercentiles(s.TTFT.N); weak != "" {
		warn("small_sample: %s", weak)
	}
	if s.InvalidLoad {
		warn("short_output: %d of %d answers ended before the wanted length although ignore_eos was set", s.Short, s.OK)
	}
	talks := len(r.Records) > 0 && r.Records[0].Conversation > 0 // their pauses are no requests
	if want := min(r.Concurrency, s.Sent); s.PeakConcurrency < want && !talks {
		warn("concurrency: at most %d requests were in flight at once, %d were wanted", s.PeakConcurrency, want)
	}
	if s.Incomplete > 0 {
		warn("incomplete: %d requests were still running when the level was cut", s.Incomplete)
	}
	chunks := 0
	var have, want float64
	for i := range r.Records {
		rec := &r.Records[i]
		if !rec.OK() {
			continue
		}
		if rec.TokensSource == FromChunks {
			chunks++
		}
		if rec.PromptTokens > 0 && rec.PromptTarget > 0 {
			have, want = have+float64(rec.PromptTokens), want+float64(rec.PromptTarget)
		}
	}
	s.warnOfDelay(r, warn)
	if s.HeldBack() {
		warn("buffered_stream: %d of %d answers came almost at once at their end: something holds the stream back, or the wait before the first token is very long", s.Buffered, s.OK)
	}
	if chunks > 0 {
		warn("chunk_count: the server reported no token count for %d of %d answers: their chunks were counted", chunks, s.OK)
	}
	if math.Abs(have-want) > 0.02*want {
		warn("prompt_length: prompts had %.0f tokens in all, %.0f were wanted", have, want)
	}
}

// Send delays from which on the client is to blame: an absolute one, and a share of the latency; and the
// share of the wanted rate that it has to achieve.
const (
	delayLimit = 10.0 // ms
	delayShare = 0.1
	achieved   = 0.95
)

// warnOfDelay names a client that could not send on time. Latencies include the delay; a client that is
// too slow makes the server look slow.
func (s *Summary) warnOfDelay(r *Result, warn func(format string, args ...any)) {
	if s.SendDelay.P99 == nil {
		return
	}
	limit := delayLimit
	if s.TTFT.P50 != nil {
		limit = max(limit, delayShare**s.TTFT.P50)
	}
	due, took := spans(r.Records)
	switch late := *s.SendDelay.P99; {
	case late > delayLimit && due < achieved*took:
		warn("send_delay: the client could not keep up: the requests that were due in %.1f s took %.1f s to be sent, and were up to %.1f ms late (p99), which is in their latencies", due, took, late)
	case late > limit:
		warn("send_delay: the client could not keep up: requests were sent up to %.1f ms late (p99), which is in their latencies", late)
	}
}

// spans are the times in seconds in which the requests were due, and in which they were sent: their ratio is
// the share of the wanted rate that was achieved.
func spans(records []Record) (due, took float64) {
	from, to, first, last := time.Duration(math.MaxInt64), time.Duration(0), time.Duration(math.MaxInt64), time.Duration(0)
	for i := range records {
		if rec := &records[i]; rec.Category != Cancelled {
			from, to = min(from, rec.Scheduled), max(to, rec.Scheduled)
			first, last = min(first, rec.Sent), max(last, rec.Sent)
		}
	}
	return (to - from).Seconds(), (last - first).Seconds()
}

// weakPercentiles names the percentiles p that fewer than 10/(1−p) values stand for.
func weakPercentiles(n int) string {
	if n == 0 {
		return ""
	}
	var names, needs []string
	for _, p := range [...]int{50, 90, 95, 99} {
		if need := 1000 / (100 - p); n < need {
			names = append(names, fmt.Sprintf("p%d", p))
			needs = append(needs, fmt.Sprint(need))
		}
	}
	if names == nil {
		return ""
	}
	return fmt.Sprintf("%s from %d requests; at least %s are needed", strings.Join(names, ", "), n, strings.Join(needs, ", "))
}
