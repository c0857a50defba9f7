// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

// engineThat answers each path with the given status; others with 200.
func engineThat(t *testing.T, statuses map[string]int) Probe {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := statuses[r.URL.Path]; status != 0 {
			w.WriteHeader(status)
		}
		fmt.Fprint(w, `{"data": [{"id": "m"}]}`)
	}))
	t.Cleanup(server.Close)
	return Probe{BaseURL: server.URL, Health: "/health", Client: server.Client()}
}

func TestAnEngineServesWhenItAnswersARealRequest(t *testing.T) {
	for name, c := range map[string]struct {
		statuses map[string]int
		message  string // "" when it serves
	}{
		"everything":                            {nil, ""},
		"chat only":                             {map[string]int{"/v1/completions": 404}, ""},
		"chat only, in other words":             {map[string]int{"/v1/completions": 405}, ""},
		"our tiny request is not to its liking": {map[string]int{"/v1/completions": 400}, ""},
		"not healthy":                           {map[string]int{"/health": 503}, "GET /health: status 503: "},
		"healthy and not serving":               {map[string]int{"/v1/completions": 503}, "POST /v1/completions: status 503: "},
		"neither completes nor chats":           {map[string]int{"/v1/completions": 404, "/v1/chat/completions": 404}, "POST /v1/chat/completions: status 404: "},
	} {
		t.Run(name, func(t *testing.T) {
			err := engineThat(t, c.statuses).Once(t.Context())
			if c.message == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, c.message)
			}
		})
	}
}

func TestAnEngineThatDoesNotTakeTheKeyIsNotWaitedFor(t *testing.T) {
	for _, path := range []string{"/v1/models", "/v1/completions"} {
		_, err := engineThat(t, map[string]int{path: 401}).Wait(t.Context())
		var failed *experiment.Failure
		require.ErrorAs(t, err, &failed)
		assert.Equal(t, experiment.ClassConfig, failed.Class)
		assert.Contains(t, failed.Message, "the engine does not take the API key: ")
	}
}

// A deadline is a failure, too, but not one that the engine told: it says nothing in place of what the engine said.
func TestAnAttemptThatIsCutDoesNotHideWhatTheEngineSaid(t *testing.T) {
	timeIsUp := &experiment.Failure{Cause: experiment.Cause{Class: experiment.ClassNotReady, Message: "time is up"}}
	ctx, cancel := context.WithCancelCause(t.Context())
	attempts := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
			if attempts++; attempts == 2 {
				cancel(timeIsUp)
				<-r.Context().Done()
			}
		case "/v1/completions":
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprint(w, `{"data": [{"id": "m"}]}`)
	}))
	defer server.Close()
	_, err := Probe{BaseURL: server.URL, Health: "/health", Client: server.Client()}.Wait(ctx)
	require.ErrorIs(t, err, timeIsUp)
	assert.ErrorContains(t, err, "time is up; last probe: POST /v1/completions: status 503")
}

func TestTheRoundTripIsMeasuredOnAnEngineThatServes(t *testing.T) {
	took, err := engineThat(t, nil).RoundTrip(t.Context())
	require.NoError(t, err)
	assert.Positive(t, took)
	_, err = engineThat(t, map[string]int{"/v1/models": 500}).RoundTrip(t.Context())
	assert.ErrorContains(t, err, "status 500")
}
