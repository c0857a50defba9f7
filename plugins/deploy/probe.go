// SPDX-License-Identifier: Apache-2.0

// Package deploy holds what every kind of deployment shares: the probe that
// tells whether an engine really serves.
package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/llmctl/llmctl/experiment"
)

// Probe asks an engine for one real answer. Health alone is not enough: an
// engine can be healthy and refuse every completion.
type Probe struct {
	BaseURL string // http://host:port
	Health  string // path, such as /health
	APIKey  string // sent as a bearer token; may be empty
	Client  *http.Client
	// Expected is what the engine is checked against once it serves; nil: nothing.
	Expected *Expected
}

// Pauses between attempts and the limit of each request.
const (
	probeInterval     = 20 * time.Millisecond
	healthTimeout     = 5 * time.Second
	completionTimeout = 60 * time.Second
)

// Wait asks until the engine answers a completion, and returns the target with
// the served model's name. It ends early with a *experiment.Failure when the
// engine does not take the API key or is not what is Expected, and with ctx; the
// error then says what the last attempt met.
func (p Probe) Wait(ctx context.Context) (experiment.Target, error) {
	var last error
	for {
		target, err := p.once(ctx)
		if err == nil && p.Expected != nil {
			err = p.verify(ctx)
		}
		if err == nil {
			return target, nil
		}
		if ctx.Err() == nil && errors.As(err, new(*experiment.Failure)) { // the cause of ctx may be one, too
			return target, err
		}
		if last == nil || ctx.Err() == nil {
			last = err // an attempt that was cut by ctx says nothing about the engine
		}
		select {
		case <-ctx.Done():
			return target, fmt.Errorf("%w; last probe: %w", context.Cause(ctx), last)
		case <-time.After(probeInterval):
		}
	}
}

// Once asks once; nil means that the engine answered a completion.
func (p Probe) Once(ctx context.Context) error {
	_, err := p.once(ctx)
	return err
}

// roundTrips is how often the way is measured; the shortest counts.
const roundTrips = 5

// RoundTrip measures the way to an engine that serves: the shortest of a few
// small requests on an open connection.
func (p Probe) RoundTrip(ctx context.Context) (time.Duration, error) {
	shortest := time.Duration(0)
	for i := range roundTrips {
		start := time.Now()
		if _, err := p.get(ctx, "/v1/models"); err != nil {
			return 0, err
		}
		if took := time.Since(start); i == 0 || took < shortest {
			shortest = took
		}
	}
	return shortest, nil
}

func (p Probe) once(ctx context.Context) (experiment.Target, error) {
	target := experiment.Target{BaseURL: p.BaseURL}
	if _, err := p.get(ctx, p.Health); err != nil {
		return target, err
	}
	body, err := p.get(ctx, "/v1/models")
	if err != nil {
		return target, err
	}
	var models struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &models); err != nil || len(models.Data) == 0 {
		return target, fmt.Errorf("GET /v1/models names no model: %s", excerpt(body))
	}
	names := make([]string, len(models.Data))
	for i, m := range models.Data {
		names[i] = m.ID
	}
	if target.Model, err = p.Expected.served(names); err != nil {
		return target, err
	}
	return target, p.complete(ctx, target.Model)
}

func (p Probe) get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	status, body, err := p.do(ctx, http.MethodGet, path, nil)
	if err == nil && status != http.StatusOK {
		err = answered(http.MethodGet, path, status, body)
	}
	return body, err
}

// complete asks for one token; engines that only chat are asked to chat.
func (p Probe) complete(ctx context.Context, model string) error {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	requests := []struct {
		path string
		body map[string]any
	}{
		{"/v1/completions", map[string]any{"model": model, "prompt": "Hello", "max_tokens": 1}},
		{"/v1/chat/completions", map[string]any{"model": model, "max_tokens": 1, "messages": []any{map[string]any{"role": "user", "content": "Hello"}}}},
	}
	for i, request := range requests {
		body, err := json.Marshal(request.body)
		if err != nil {
			return err
		}
		status, answer, err := p.do(ctx, http.MethodPost, request.path, body)
		absent := status == http.StatusNotFound || status == http.StatusMethodNotAllowed
		switch {
		case err != nil:
			return err
		case absent && i+1 < len(requests):
			continue
		case status == http.StatusUnauthorized || status == http.StatusForbidden || status >= 500 || absent:
			return answered(http.MethodPost, request.path, status, answer)
		}
		return nil // answered; other 4xx are about our tiny request, not about serving
	}
	return nil
}

func (p Probe) do(ctx context.Context, method, path string, body []byte) (status int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, p.BaseURL+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if p.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+p.APIKey)
	}
	res, err := p.Client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return res.StatusCode, answer, err
}

// answered is the error of an unwanted answer; waiting does not help against one
// about the API key.
func answered(method, path string, status int, body []byte) error {
	text := fmt.Sprintf("%s %s: status %d: %s", method, path, status, excerpt(body))
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		return &experiment.Failure{Cause: experiment.Cause{Class: experiment.ClassConfig, Message: "the engine does not take the API key: " + text}}
	}
	return errors.New(text)
}

// excerpt is the beginning of an answer, on one line.
func excerpt(body []byte) string {
	return strings.Join(strings.Fields(string(body[:min(len(body), 200)])), " ")
}
