// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"errors"
	"fmt"
	"io"
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

// Config describes one level of load: a closed loop that keeps Concurrency requests in flight.
type Config struct {
	// BaseURL is the server's address, with or without a trailing /v1.
	BaseURL string
	// Model is sent as "model".
	Model string
	// APIKey is sent as a bearer token and removed from every error text. Empty: no Authorization header.
	APIKey string
	// API is the endpoint; empty means Completions.
	API API

	// Workload says how long prompts and answers are.
	Workload Workload
	// Concurrency is the number of requests kept in flight, at least 1.
	Concurrency int
	// MaxRequests ends the level after so many measured requests; 0 means no limit.
	MaxRequests int
	// Duration ends the level after so much measured time; 0 means no limit. At least one of Duration
	// and MaxRequests must be set. When it is over nothing new is sent, and what is in flight may still
	// finish for as long as the larger of 30 s and twice the longest request seen.
	Duration time.Duration
	// Warmup is the number of requests that are sent, finished and kept apart before the measured
	// window. A number below Concurrency, also 0, is raised to it: a smaller wave would leave the first
	// batches of that size to the measurement. Negative: no warm-up, for a server that is warm already.
	Warmup int
	// Seed decides every length and every prompt. Levels with different seeds share no prompt.
	Seed uint64

	// IgnoreEOS asks the server to generate exactly the wanted number of tokens. An answer that is
	// shorter all the same is marked Short.
	IgnoreEOS bool
	// RequestTimeout limits one request from connecting to the last byte; 0 means no limit. Without it
	// and without Duration, nothing but the context ends a level whose server hangs.
	RequestTimeout time.Duration
	// MaxConsecutiveFailures stops the level after that many failures in a row;
	// 0 means the larger of 20 and Concurrency.
	MaxConsecutiveFailures int
	// AllowEmptyOutput lets an answer without any token, but with a normal end, count as a success
	// that has no latency.
	AllowEmptyOutput bool
	// AllowChunkCount lets the number of chunks stand for the number of tokens in TPOT, ITL and
	// throughput where the server reports no usage.
	AllowChunkCount bool

	// Log receives progress lines; nil: none.
	Log io.Writer
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
	switch {
	case c.Warmup < 0:
		c.Warmup = 0
	default:
		c.Warmup = max(c.Warmup, c.Concurrency)
	}
	return c, errors.Join(c.checkServer(), c.checkLoad(), c.checkClient())
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
	errs := []error{c.Workload.validate()}
	if c.Concurrency < 1 {
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

// checkClient refuses limits that would be read as limits of the server.
func (c Config) checkClient() error {
	if c.Client == nil {
		return nil
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
