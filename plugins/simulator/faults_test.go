// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func withFaults(f Faults) func(*Config, *Options) {
	return func(_ *Config, o *Options) { o.Faults = f }
}

const askShort = `{"prompt":[1,2],"max_tokens":6,"ignore_eos":true}`

func TestFatalFaultsEndTheServerAtTheirRequest(t *testing.T) {
	for want, f := range map[error]Faults{ErrCrashed: {CrashAt: 3}, ErrOutOfMemory: {OutOfMemoryAt: 3}} {
		server := startServer(t, withFaults(f))
		for range 2 {
			status, _ := server.post("/v1/completions", askShort)
			assert.Equal(t, http.StatusOK, status)
		}
		_, err := http.Post(server.url+"/v1/chat/completions", "", strings.NewReader("{}"))
		require.Error(t, err, "the connection breaks")
		require.ErrorIs(t, <-server.ended, want)
	}
}

func TestHangingRequestsAreNeverAnswered(t *testing.T) {
	server := startServer(t, withFaults(Faults{HangFrom: 2}))
	status, _ := server.post("/v1/completions", askShort)
	assert.Equal(t, http.StatusOK, status)

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.url+"/v1/completions", strings.NewReader(askShort))
	require.NoError(t, err)
	_, err = http.DefaultClient.Do(r)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	status, _ = server.get("/health")
	assert.Equal(t, http.StatusOK, status)
	server.cancel()
	require.NoError(t, <-server.ended)
}

func TestNotServingIsHealthy(t *testing.T) {
	server := startServer(t, withFaults(Faults{NotServing: true}))
	status, _ := server.get("/health")
	assert.Equal(t, http.StatusOK, status)
	status, body := server.post("/v1/completions", askShort)
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Equal(t, `{"error":{"message":"The engine is not serving.","type":"ServiceUnavailableError","param":null,"code":503}}`, body)
}

func TestMidstreamErrors(t *testing.T) {
	var log lines
	server := startServer(t, func(_ *Config, o *Options) {
		o.Faults.MidstreamErrors = 1
		o.RequestLog = &log
	})
	const event = `data: {"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.",` +
		`"type":"InternalServerError","param":null,"code":500}}` + "\n\ndata: [DONE]\n\n"
	status, body := server.post("/v1/completions", strings.Replace(askShort, "}", `,"stream":true}`, 1))
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, 3, strings.Count(body, `"finish_reason":null`), "half of the tokens")
	assert.True(t, strings.HasSuffix(body, event), body)
	assert.Equal(t, 1, strings.Count(body, "[DONE]"))

	_, body = server.post("/v1/completions", `{"prompt":[1],"max_tokens":1,"stream":true}`)
	assert.Equal(t, event, body, "nothing before the error")

	status, body = server.post("/v1/completions", askShort)
	assert.Equal(t, http.StatusInternalServerError, status)
	assert.Contains(t, body, "EngineCore encountered an issue")

	require.Eventually(t, func() bool { return len(log.records(t)) == 3 }, 5*time.Second, time.Millisecond)
	for _, r := range log.records(t) {
		assert.Equal(t, "error", r.FinishReason)
	}
	const failed = `vllm:request_success_total{engine="0",finished_reason="error",model_name="m"}`
	require.Eventually(t, func() bool { return server.metric(failed) == 3 }, 5*time.Second, time.Millisecond)
}

func TestFaultRatesHoldAndRepeatWithTheSeed(t *testing.T) {
	statuses := func(seed int64) (out []int) {
		server := startServer(t, func(_ *Config, o *Options) { o.Faults.HTTP500s, o.Seed = 0.3, seed })
		for range 60 {
			status, _ := server.post("/v1/completions", `{"prompt":[1],"max_tokens":1}`)
			out = append(out, status)
		}
		return out
	}
	first := statuses(1)
	assert.Equal(t, first, statuses(1))
	assert.NotEqual(t, first, statuses(2))
	assert.Contains(t, first, 200)
	assert.Contains(t, first, 500)

	f := Faults{HTTP500s: 0.3, MidstreamErrors: 0.1, seed: 9}
	failed, broken, both := 0, 0, 0
	for n := range 20000 {
		a, b := f.http500(n), f.midstream(n)
		if a {
			failed++
		}
		if b {
			broken++
		}
		if a && b {
			both++
		}
	}
	assert.InDelta(t, 0.3, float64(failed)/20000, 0.02)
	assert.InDelta(t, 0.1, float64(broken)/20000, 0.02)
	assert.InDelta(t, 0.03, float64(both)/20000, 0.01, "independent of each other")
}

func TestSlowFirstTokenIsDividedByTheTimeScale(t *testing.T) {
	s, err := New(DefaultConfig(), Options{ServedModelNames: []string{"m"}, TimeScale: 4, Faults: Faults{SlowFirstToken: 2 * time.Second}})
	require.NoError(t, err)
	assert.Equal(t, 504*time.Millisecond, s.player.overhead)
}
