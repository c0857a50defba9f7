// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// engineCalled answers with its name; /hang does not answer.
func engineCalled(t *testing.T, name string) direct {
	t.Helper()
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			<-hang
		}
		fmt.Fprint(w, name)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(hang) })
	return direct{name, server.Listener.Addr().String()}
}

func get(url string) (string, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

func TestATunnelSpreadsConnectionsOverThePods(t *testing.T) {
	tunnel, err := openTunnel([]way{engineCalled(t, "a"), engineCalled(t, "b")})
	require.NoError(t, err)
	defer tunnel.close()
	var names strings.Builder
	for range 6 {
		name, err := get(tunnel.url())
		require.NoError(t, err)
		names.WriteString(name)
	}
	assert.Equal(t, "bababa", names.String())
}

func TestAnEnginesEndEndsItsConnectionsOnly(t *testing.T) {
	tunnel, err := openTunnel([]way{engineCalled(t, "a"), engineCalled(t, "b")})
	require.NoError(t, err)
	defer tunnel.close()
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := get(tunnel.url() + "/hang")
			ended <- err
		}()
	}
	require.Eventually(t, func() bool {
		tunnel.mu.Lock()
		defer tunnel.mu.Unlock()
		return len(tunnel.open) == 2
	}, 10*time.Second, time.Millisecond)
	tunnel.cut("b")
	require.Error(t, <-ended)
	assert.Empty(t, ended, "the other goes on")
	tunnel.close()
	require.Error(t, <-ended)
	_, err = net.Dial("tcp", strings.TrimPrefix(tunnel.url(), "http://"))
	assert.Error(t, err, "the port is closed")
}

func TestAPortForwardIsDialledAgainAfterItBroke(t *testing.T) {
	w := newWorld(t)
	in := w.deploy(w.plan(simulated()))
	target, err := in.Ready(t.Context())
	require.NoError(t, err)
	complete(t, target.BaseURL)
	f := in.tunnel.ways[0].(*forward)
	broken := f.current
	require.NoError(t, broken.Close())
	<-broken.CloseChan()
	complete(t, target.BaseURL)
	cause, err := in.Diagnose(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "infra_transient", cause.Class)
	assert.Contains(t, cause.Message, "the port-forward through the API server broke 1 times under load")
}

func TestATrialAsksTheAPIServerALimitedNumberOfThings(t *testing.T) {
	w := newWorld(t)
	in := w.deploy(w.plan(simulated()))
	_, err := in.Ready(t.Context())
	require.NoError(t, err)
	_, err = in.Diagnose(t.Context())
	require.NoError(t, err)
	require.NoError(t, in.Delete(t.Context()))
	requests := w.bed.Requests(t, w.Namespace)
	for _, r := range requests {
		if r.Resource == "pods" && r.Name == "" && !strings.Contains(r.URI, "portforward") {
			assert.Contains(t, r.URI, "labelSelector=", "%s %s", r.Verb, r.URI)
		}
		t.Log(r.Verb, r.Resource, r.Name, r.Status)
	}
	assert.LessOrEqual(t, len(requests), 40)
	assert.NotEmpty(t, requests)
}
