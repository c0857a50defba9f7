// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/llmctl/llmctl/experiment"
)

// modelsTimeout limits the request for the list of models.
const modelsTimeout = 30 * time.Second

// FirstModel asks a server for the first model that it names.
func (p *Plan) FirstModel(ctx context.Context, baseURL string) (string, error) {
	names, err := p.settings.models(ctx, baseURL)
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		return "", errors.New("the server names no model in /v1/models: say which one to ask for")
	}
	return names[0], nil
}

// models lists what a server serves.
func (s settings) models(ctx context.Context, baseURL string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, modelsTimeout)
	defer cancel()
	res, err := get(ctx, s.client(), baseURL+"/v1/models", s.apiKey)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("GET /v1/models: %w", err)
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if res.StatusCode != http.StatusOK || json.Unmarshal(body, &list) != nil {
		return nil, fmt.Errorf("GET /v1/models: status %d: %.200s", res.StatusCode, body)
	}
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	return names, nil
}

// checkModel is a configuration error when the server's list of models lacks the
// one to ask for. A server without a list is asked all the same.
func (s settings) checkModel(ctx context.Context, t experiment.Target) error {
	names, err := s.models(ctx, t.BaseURL)
	if err != nil || len(names) == 0 || slices.Contains(names, t.Model) {
		return nil
	}
	return &experiment.Failure{Cause: experiment.Cause{Class: experiment.ClassConfig, Message: fmt.Sprintf(
		"the server does not serve model %s; it serves %s", t.Model, strings.Join(names, ", "))}}
}

// get is a request with the API key, which may be "". The body is the caller's
// to close.
func get(ctx context.Context, c *http.Client, url, apiKey string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+apiKey)
	}
	return c.Do(req)
}

// client sends the evaluator's own few requests.
func (s settings) client() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: s.tls, DisableKeepAlives: true}}
}
