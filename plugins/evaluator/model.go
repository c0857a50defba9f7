// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/loadgen"
)

// model asks the simulated engine for the figures of its pure model instead of
// measuring: the answer is exact, immediate and the same every time. It serves
// to try out experiments and works with the simulated engine only.
type model struct{ settings }

// simulation is a request of the engine's /simulate and its answer.
type simulation struct {
	Concurrency int       `json:"concurrency,omitempty"`
	RequestList []request `json:"requestList,omitempty"`
	Requests    []timing  `json:"requests,omitempty"`
}

type request struct {
	Prompt int `json:"prompt"`
	Output int `json:"output"`
}

type timing struct {
	ArrivalMs    float64 `json:"arrivalMs"`
	TTFTMs       float64 `json:"ttftMs"`
	E2EMs        float64 `json:"e2eMs"`
	PromptTokens int     `json:"promptTokens"`
	OutputTokens int     `json:"outputTokens"`
}

func (e model) Evaluate(ctx context.Context, t experiment.Target, traffic experiment.Traffic) (*experiment.Metrics, error) {
	if traffic.Scenario.MaxRequests == 0 {
		return nil, errors.New("evaluator model needs scenario.maxRequests")
	}
	ask := simulation{Concurrency: traffic.Scenario.Concurrency}
	random := rand.New(rand.NewPCG(traffic.Seed, 0))
	for range traffic.Scenario.MaxRequests {
		ask.RequestList = append(ask.RequestList, request{e.workload.Input.Draw(random), e.workload.Output.Draw(random)})
	}
	answer, err := e.ask(ctx, t.BaseURL+"/simulate", ask)
	if err != nil {
		return nil, err
	}
	result := &loadgen.Result{Concurrency: ask.Concurrency}
	for i, r := range answer.Requests {
		prompt, output := int32(r.PromptTokens), int32(r.OutputTokens)
		result.Records = append(result.Records, loadgen.Record{
			Index: int32(i), Scheduled: millis(r.ArrivalMs), Sent: millis(r.ArrivalMs), Done: millis(r.ArrivalMs + r.E2EMs),
			TTFT: millis(r.TTFTMs), E2E: millis(r.E2EMs), PromptTarget: prompt, PromptTokens: prompt,
			OutputTarget: output, OutputTokens: output, TokensSource: loadgen.FromUsage, FirstChunkTokens: 1,
		})
	}
	fmt.Fprintf(traffic.Log, "%d requests at concurrency %d, computed by the engine's model\n", len(answer.Requests), ask.Concurrency)
	return metrics(result, loadgen.Summarize(result))
}

func millis(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

func (e model) ask(ctx context.Context, url string, ask simulation) (*simulation, error) {
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if e.apiKey != "" {
		req.Header.Set("Authorization", "Bearer "+e.apiKey)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("POST /simulate: status %d; evaluator model works with the simulated engine only: %s", res.StatusCode, bytes.TrimSpace(data[:min(len(data), 200)]))
	}
	var answer simulation
	return &answer, json.Unmarshal(data, &answer)
}
