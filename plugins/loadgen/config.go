// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// API names the endpoint that is put under load.
type API string

const (
	// Completions is /v1/completions; prompts are sent as token ids where the server takes them.
	Completions API = "completions"
	// Chat is /v1/chat/completions; each request is one user message of calibrated text.
	Chat API = "chat"
)

// Config describes one level of load: a closed loop that keeps Concurrency requests in flight, or an open
// loop that sends requests at a Rate or as a Trace has them, whatever the server does.
type Config struct {
	// BaseURL is the server's address, with or without a trailing /v1.
	BaseURL string
	// Model is sent as "model".
	Model string
	// APIKey is sent as a bearer token and removed from every error text. Empty: no Authorization header.
	APIKey string
	// API is the endpoint; empty means Completions.
	API API

	// Workload says how long prompts and answers are. Dataset has prompts from a file instead, and
	// Conversations are chats of several turns. At most one of the three is set.
	Workload      Workload
	Dataset       *Dataset
	Conversations *Conversations
	// Concurrency is the number of requests kept in flight, at least 1; with Conversations that of
	// conversations, pauses included. 0 in an open loop.
	Concurrency int
	// Rate is the number of requests that are due per second. Arrival spaces them; its zero value is
	// Constant. RampUp is the time in which the rate grows linearly from 0, as part of the measurement.
	Rate    float64
	Arrival Arrival
	RampUp  time.Duration
	// Trace gives the times and lengths of the requests, in place of all of the above.
	Trace *Trace
	// MaxRequests ends the level after so many measured requests; 0 means no limit, or all of a trace
	// or of the conversations.
	MaxRequests int
	// Duration ends the level after so much measured time; 0 means no limit. At least one of Duration
	// and MaxRequests must be set. When it is over nothing new is sent, and what is in flight may still
	// finish for as long as the larger of 30 s and twice the longest request seen.
	Duration time.Duration
	// Warmup is the number of requests that are sent, finished and kept apart before the measured
	// window. A number below Concurrency, also 0, is raised to it: a smaller wave would leave the first
	// batches of that size to the measurement; in an open loop it is raised to a second's requests.
	// Negative: no warm-up, for a server that is warm already; an open loop still sends one request, to
	// find out what the server accepts before the clock runs.
	Warmup int
	// WarmupRatio is the same as a share of the planned requests, in [0, 1); the larger one counts.
	WarmupRatio float64
	// Seed decides every length and every prompt. Levels with different seeds share no prompt.
	Seed uint64

	// IgnoreEOS asks the server to generate exactly the wanted number of tokens. An answer that is
	// shorter all the same is marked Short.
	IgnoreEOS bool
	// RequestTimeout limits one request from connecting to the last byte; 0 means no limit. A level whose
	// server hangs ends with its Duration and the grace, or by StallTimeout. One without a Duration whose server
	// is slow, but never stands still, takes as long as its requests do: that is for the context to limit. An
	// answer longer than was asked for is aborted: see TooManyTokens.
	RequestTimeout time.Duration
	// MaxConsecutiveFailures stops the level after that many failures in a row;
	// 0 means the larger of 20 and Concurrency.
	MaxConsecutiveFailures int
	// StallTimeout stops the level when nothing at all has arrived for so long while requests were in
	// flight; they are Stalled. 0 means 15 minutes, longer than any prefill; negative: never.
	StallTimeout time.Duration
	// Bounds are those of the service-level agreement. They decide what goodput is, and when a level
	// ends that StopWhenDecided.
	Bounds []Bound
	// StopWhenDecided ends the level as soon as no outcome of its remaining requests could make it keep
	// the bounds. Only what is certain counts; it takes MaxRequests, a trace or conversations, since it
	// has to be known how many requests are to come. In an open loop the level also ends when the server
	// is over-saturated: see saturation.
	StopWhenDecided bool
	// AllowEmptyOutput lets an answer without any token, but with a normal end, count as a success
	// that has no latency.
	AllowEmptyOutput bool
	// AllowChunkCount lets the number of chunks stand for the number of tokens in TPOT, ITL and
	// throughput where the server reports no usage.
	AllowChunkCount bool

	// Log receives progress lines; nil: none.
	Log io.Writer
	// TLS is for servers with https; nil: the system's roots. It goes with a nil Client.
	TLS *tls.Config
	// Client sends the requests. It must have no total Timeout and no connection limit below
	// Concurrency. Nil: a client of its own, HTTP/1.1 without proxy, one connection per request in
	// flight, closed when Run returns.
	Client *http.Client
}

// withDefaults returns the config with every default filled in, or all that is wrong with it.
func (c Config) withDefaults() (Config, error) {
	if c.API == "" {
		c.API = Completions
	}
	if c.MaxConsecutiveFailures == 0 {
		c.MaxConsecutiveFailures = max(20, c.Concurrency)
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = defaultStall
	}
	if c.Rate > 0 && c.Arrival == (Arrival{}) {
		c.Arrival.Process = Constant
	}
	if c.MaxRequests == 0 && c.Duration == 0 || c.Trace != nil || c.Conversations != nil {
		if n := c.available(); n > 0 && (c.MaxRequests <= 0 || n < c.MaxRequests) {
			c.MaxRequests = n
		}
	}
	c.Warmup = c.warmup()
	return c, errors.Join(c.checkServer(), c.checkLoad(), c.checkShape(), c.checkClient())
}

const defaultStall = 15 * time.Minute

// open tells whether requests are sent on a schedule.
func (c Config) open() bool { return c.Rate > 0 || c.Trace != nil }

// available is how many requests a trace or the conversations have; 0: any number.
func (c Config) available() int {
	switch {
	case c.Trace != nil:
		return len(c.Trace.Rows)
	case c.Conversations != nil && c.Conversations.validate() == nil:
		return c.Conversations.turns(c.Seed)
	}
	return 0
}

// warmup is the number of requests before the measurement.
func (c Config) warmup() int {
	least := c.Concurrency
	if c.open() {
		least = max(1, int(math.Ceil(min(c.meanRate(), maxTokens))))
	}
	switch {
	case c.Warmup >= 0:
		return max(c.Warmup, least, int(c.WarmupRatio*float64(c.MaxRequests)))
	case c.open():
		return 1
	}
	return 0
}

// meanRate is that of the open loop, in requests/s.
func (c Config) meanRate() float64 {
	if c.Trace == nil {
		return c.Rate
	}
	rows := c.Trace.Rows
	if n := len(rows); n > 0 && rows[n-1].At > 0 {
		return float64(n) / rows[n-1].At.Seconds()
	}
	return 1
}

func (c Config) checkServer() error {
	var errs []error
	u, err := url.Parse(c.BaseURL)
	switch {
	case err != nil:
		errs = append(errs, fmt.Errorf("base URL: %w", err))
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		errs = append(errs, fmt.Errorf("base URL %q: must be http://host[:port] or https://host[:port]", u.Redacted()))
	}
	if c.Model == "" {
		errs = append(errs, errors.New("model: must not be empty"))
	}
	if c.API != Completions && c.API != Chat {
		errs = append(errs, fmt.Errorf("API %q: must be %q or %q", c.API, Completions, Chat))
	}
	return errors.Join(errs...)
}

func (c Config) checkLoad() error {
	var errs []error
	if c.Dataset == nil && c.Conversations == nil && c.Trace == nil {
		errs = append(errs, c.Workload.validate())
	}
	if c.Concurrency < 1 && !c.open() {
		errs = append(errs, fmt.Errorf("concurrency: must be at least 1, is %d", c.Concurrency))
	}
	if c.MaxRequests < 0 {
		errs = append(errs, fmt.Errorf("max requests: must not be negative, is %d", c.MaxRequests))
	}
	if c.Duration < 0 {
		errs = append(errs, fmt.Errorf("duration: must not be negative, is %v", c.Duration))
	}
	if c.MaxRequests == 0 && c.Duration == 0 {
		errs = append(errs, errors.New("max requests and duration: at least one must be set"))
	}
	if c.RequestTimeout < 0 {
		errs = append(errs, fmt.Errorf("request timeout: must not be negative, is %v", c.RequestTimeout))
	}
	if c.MaxConsecutiveFailures < 0 {
		errs = append(errs, fmt.Errorf("max consecutive failures: must not be negative, is %d", c.MaxConsecutiveFailures))
	}
	return errors.Join(errs...)
}

// checkShape refuses loads that contradict themselves.
func (c Config) checkShape() error {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(c.Rate < 0 || c.Rate > 1e6 || c.Rate != c.Rate, "rate: must be from 0 to 1e+06, is %g", c.Rate)
	refuse(c.RampUp < 0, "ramp-up: must not be negative, is %v", c.RampUp)
	refuse(c.WarmupRatio < 0 || c.WarmupRatio >= 1 || c.WarmupRatio != c.WarmupRatio, "warm-up ratio: must be in [0, 1), is %g", c.WarmupRatio)
	refuse(c.open() && c.Concurrency > 0, "concurrency: does not go with a rate or a trace")
	refuse(c.Rate > 0 && c.Trace != nil, "rate: does not go with a trace, which has its own times")
	refuse(c.open() && c.Conversations != nil, "conversations: go with a concurrency")
	refuse(c.Dataset != nil && c.Conversations != nil, "dataset: does not go with conversations")
	refuse(c.Trace != nil && c.Dataset != nil, "dataset: does not go with a trace, which has its own lengths")
	refuse(c.Dataset != nil && len(c.Dataset.Samples) == 0, "dataset: has no prompts")
	refuse(c.Trace != nil && len(c.Trace.Rows) == 0, "trace: has no requests")
	if c.Rate > 0 {
		if err := c.Arrival.validate(); err != nil {
			errs = append(errs, fmt.Errorf("arrival: %w", err))
		}
	}
	if c.Conversations != nil {
		errs = append(errs, c.Conversations.validate())
	}
	for _, b := range c.Bounds {
		errs = append(errs, b.validate())
	}
	return errors.Join(errs...)
}

// checkClient refuses limits that would be read as limits of the server.
func (c Config) checkClient() error {
	if c.Client == nil {
		return nil
	}
	if c.TLS != nil {
		return errors.New("client: brings its own TLS settings")
	}
	if c.Client.Timeout != 0 {
		return fmt.Errorf("client: has a total timeout of %v; use the request timeout", c.Client.Timeout)
	}
	t, ok := c.Client.Transport.(*http.Transport)
	if ok && t.MaxConnsPerHost > 0 && t.MaxConnsPerHost < c.Concurrency {
		return fmt.Errorf("client: at most %d connections per host, but concurrency is %d", t.MaxConnsPerHost, c.Concurrency)
	}
	return nil
}

// root is the base URL without a trailing slash or /v1; /tokenize lives directly below it.
func (c Config) root() string {
	return strings.TrimSuffix(strings.TrimRight(c.BaseURL, "/"), "/v1")
}

func (c Config) endpoint() string {
	if c.API == Chat {
		return c.root() + "/v1/chat/completions"
	}
	return c.root() + "/v1/completions"
}
