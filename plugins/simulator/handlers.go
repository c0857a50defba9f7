// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// maxBody is the largest request body: a prompt of a million token ids and
// room to spare.
const maxBody = 64 << 20

// authorized checks the key. As in vLLM, only /v1 is guarded.
func (s *Server) authorized(r *http.Request) bool {
	if len(s.options.APIKeys) == 0 || !strings.HasPrefix(r.URL.Path, "/v1") || r.Method == http.MethodOptions {
		return true
	}
	key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return slices.ContainsFunc(s.options.APIKeys, func(want string) bool {
		return subtle.ConstantTimeCompare([]byte(key), []byte(want)) == 1
	})
}

// writeJSON sends v.
func writeJSON(w http.ResponseWriter, status int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data) // an error means that the client has gone
}

// writeError sends err in OpenAI's form; anything but an *apiError is the
// client's fault.
func writeError(w http.ResponseWriter, err error) {
	var e *apiError
	if !errors.As(err, &e) {
		e = badRequest("%v", err)
	}
	writeJSON(w, e.Code, map[string]*apiError{"error": e})
}

// readJSON decodes a request body into v.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return badRequest("read body: %v", err)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return badRequest("body: %v", err)
	}
	return nil
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"version": "llmctl-simulator"})
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	type model struct {
		ID          string   `json:"id"`
		Object      string   `json:"object"`
		Created     int64    `json:"created"`
		OwnedBy     string   `json:"owned_by"`
		Root        string   `json:"root"`
		Parent      *string  `json:"parent"`
		MaxModelLen int      `json:"max_model_len"`
		Permission  []string `json:"permission"`
	}
	list := []model{}
	for _, name := range s.options.ServedModelNames {
		list = append(list, model{
			ID: name, Object: "model", Created: s.started.Unix(), OwnedBy: "vllm", Root: s.options.Root,
			MaxModelLen: s.cfg.MaxModelLen, Permission: []string{},
		})
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Model           string    `json:"model"`
		Prompt          string    `json:"prompt"`
		Messages        []message `json:"messages"`
		ReturnTokenStrs bool      `json:"return_token_strs"`
	}
	if err := readJSON(w, r, &req); err != nil {
		writeError(w, err)
		return
	}
	if err := s.checkModel(req.Model); err != nil {
		writeError(w, err)
		return
	}
	ids := tokenize(req.Prompt)
	if len(req.Messages) > 0 {
		var err error
		if ids, err = applyChatTemplate(req.Messages); err != nil {
			writeError(w, err)
			return
		}
	}
	answer := struct {
		Count       int      `json:"count"`
		MaxModelLen int      `json:"max_model_len"`
		Tokens      []int    `json:"tokens"`
		TokenStrs   []string `json:"token_strs"`
	}{Count: len(ids), MaxModelLen: s.cfg.MaxModelLen, Tokens: ids}
	if req.ReturnTokenStrs {
		for i := range ids {
			piece, err := detokenize(ids[i : i+1])
			if err != nil {
				writeError(w, err)
				return
			}
			answer.TokenStrs = append(answer.TokenStrs, piece)
		}
	}
	writeJSON(w, http.StatusOK, answer)
}

func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Model  string `json:"model"`
		Tokens []int  `json:"tokens"`
	}
	if err := readJSON(w, r, &req); err != nil {
		writeError(w, err)
		return
	}
	if err := s.checkModel(req.Model); err != nil {
		writeError(w, err)
		return
	}
	prompt, err := detokenize(req.Tokens)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"prompt": prompt})
}

// simulate runs the pure model of the server's own configuration over a list
// of requests in a closed loop: no noise, no faults, no time scale.
func (s *Server) simulate(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Concurrency int   `json:"concurrency"` // at least 1
		Requests    int   `json:"requests"`    // how many to run; 0 = the whole list; more = the list again and again
		Seed        int64 `json:"seed"`        // accepted, without effect: nothing here is random
		RequestList []struct {
			Prompt int `json:"prompt"`
			Output int `json:"output"`
		} `json:"requestList"`
	}
	if err := readJSON(w, r, &req); err != nil {
		writeError(w, err)
		return
	}
	if req.Requests == 0 {
		req.Requests = len(req.RequestList)
	}
	if req.Concurrency < 1 || len(req.RequestList) == 0 || req.Requests < 0 || req.Requests > 1e6 {
		writeError(w, badRequest("need concurrency of at least 1, a requestList, and at most 1000000 requests"))
		return
	}
	requests := make([]Request, req.Requests)
	for i := range requests {
		from := req.RequestList[i%len(req.RequestList)]
		requests[i] = Request{Prompt: from.Prompt, Output: from.Output}
	}
	result, err := Simulate(s.cfg, requests, req.Concurrency)
	if err != nil {
		writeError(w, fmt.Errorf("simulate: %w", err))
		return
	}
	writeJSON(w, http.StatusOK, newSimulation(result))
}

// simulation is the answer of /simulate, in the order of the requests.
type simulation struct {
	Requests  []simulatedRequest `json:"requests"`
	DurationS float64            `json:"durationS"`
}

type simulatedRequest struct {
	ArrivalMs    float64 `json:"arrivalMs"` // since the beginning of the simulation
	TTFTMs       float64 `json:"ttftMs"`
	E2EMs        float64 `json:"e2eMs"`
	OutputTokens int     `json:"outputTokens"`
	PromptTokens int     `json:"promptTokens"`
}

func newSimulation(r Result) simulation {
	out := simulation{DurationS: r.Duration, Requests: make([]simulatedRequest, len(r.Requests))}
	for i, t := range r.Requests {
		out.Requests[i] = simulatedRequest{
			ArrivalMs: t.Arrival * 1e3, TTFTMs: t.TTFT() * 1e3, E2EMs: t.E2E() * 1e3, OutputTokens: t.Output, PromptTokens: t.Prompt,
		}
	}
	return out
}
