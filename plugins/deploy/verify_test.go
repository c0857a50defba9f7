// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/engine"
)

func TestAnEngineThatIsNotWhatTheManifestSaysGivesNoResult(t *testing.T) {
	for name, c := range map[string]struct {
		engine, argv string
		served       []string
		log, info    string
		want         string // "" where it serves
	}{
		"as deployed":           {"vllm", "vllm serve m --max-num-seqs 64", []string{"m"}, "non-default args: {'max_num_seqs': 64}\n", "", ""},
		"flags without effect":  {"vllm", "vllm serve m --max-num-seqs 64", []string{"m"}, "non-default args: {'max_num_seqs': 32}\n", "", "--max-num-seqs is 64, the engine runs with 32"},
		"by its server info":    {"sglang", "sglang serve --model-path m --max-running-requests 64", []string{"m"}, "", `{"max_running_requests": 32}`, "--max-running-requests is 64, the engine runs with 32"},
		"without a server info": {"sglang", "sglang serve --model-path m --max-running-requests 64", []string{"m"}, "", "", ""},
		"without a log":         {"vllm", "vllm serve m --max-num-seqs 64", []string{"m"}, "", "", ""},
		"another model":         {"vllm", "vllm serve other", []string{"other"}, "", "", "the engine serves m, lora, but the manifest says other; does the endpoint lead to another engine?"},
		"one of several names":  {"vllm", "vllm serve x", []string{"lora"}, "", "", ""},
		"a name from a Secret":  {"vllm", "vllm serve $(MODEL)", []string{"$(MODEL)"}, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := engine.Load(c.engine)
			require.NoError(t, err)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/v1/models":
					fmt.Fprint(w, `{"data": [{"id": "m"}, {"id": "lora"}]}`)
				case r.URL.Path == "/server_info" && c.info == "":
					w.WriteHeader(http.StatusNotFound)
				case r.URL.Path == "/server_info":
					fmt.Fprint(w, c.info)
				}
			}))
			defer server.Close()
			read := func(context.Context) ([]byte, error) {
				if c.log == "" {
					return nil, errors.New("forbidden")
				}
				return []byte(c.log), nil
			}
			target, err := Probe{BaseURL: server.URL, Health: "/health", Client: server.Client(), Expected: &Expected{
				Engine: e, Container: engine.Container{Argv: strings.Fields(c.argv), Served: c.served}, Log: read,
			}}.Wait(t.Context())
			if c.want == "" {
				require.NoError(t, err)
				assert.Contains(t, []string{"m", "lora"}, target.Model)
				return
			}
			var failed *experiment.Failure
			require.ErrorAs(t, err, &failed)
			assert.Equal(t, experiment.Cause{Class: ClassMismatch, Message: c.want}, failed.Cause)
		})
	}
}
