// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// The winner is what kubectl takes. The server is a stand-in for a cluster: it
// only knows which kinds there are.
func TestKubectlTakesTheWinner(t *testing.T) {
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("kubectl is not installed")
	}
	h := newHome(t)
	h.must("autobench", "run", "-f", file(t, "maxTrialsPerTemplate: 8", "maxTrialsPerTemplate: 2"), "--name", "demo")
	best := h.must("autobench", "best", "demo", "-o", "yaml").stdout
	apply := exec.Command(kubectl, "apply", "--dry-run=client", "--validate=false", "--server", discovery(t), "-f", "-")
	apply.Env = append(os.Environ(), "KUBECONFIG=/dev/null", "HOME="+t.TempDir())
	apply.Stdin = bytes.NewReader([]byte(best))
	out, err := apply.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "deployment.apps/chat created (dry run)\nservice/chat created (dry run)\n", string(out))
}

// discovery serves as much of a cluster's API as kubectl apply --dry-run=client
// asks for: which kinds there are, and that no object exists.
func discovery(t *testing.T) string {
	answers := map[string]string{
		"/api":          `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis":         `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"apps","versions":[{"groupVersion":"apps/v1","version":"v1"}],"preferredVersion":{"groupVersion":"apps/v1","version":"v1"}}]}`,
		"/api/v1":       `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"services","singularName":"service","namespaced":true,"kind":"Service","verbs":["get","create","patch"]}]}`,
		"/apis/apps/v1": `{"kind":"APIResourceList","groupVersion":"apps/v1","resources":[{"name":"deployments","singularName":"deployment","namespaced":true,"kind":"Deployment","verbs":["get","create","patch"]}]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			answer = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
		}
		_, _ = w.Write([]byte(answer)) // kubectl may have gone
	}))
	t.Cleanup(server.Close)
	return server.URL
}
