// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestADeploymentServesThroughAPortForwardAndLeavesNothing(t *testing.T) {
	w := newWorld(t)
	in := w.deploy(w.plan(simulated()))
	target, err := in.Ready(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "m", target.Model)
	names := []string{}
	for _, p := range target.Phases {
		names = append(names, p.Name)
		assert.GreaterOrEqual(t, p.Seconds, 0.0, p.Name)
	}
	assert.Equal(t, []string{"create", "schedule", "pull", "start", "ready", "first-token"}, names)
	for range 10 {
		res, err := http.Post(target.BaseURL+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"a","max_tokens":1}`))
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		assert.Equal(t, http.StatusOK, res.StatusCode)
	}
	cause, err := in.Diagnose(t.Context())
	require.NoError(t, err)
	assert.Empty(t, cause)
	require.NoError(t, in.Delete(t.Context()))
	require.NoError(t, in.Delete(t.Context()), "twice is fine")
	pods, err := w.Core.Pods(w.Namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, pods.Items)
	left, err := w.bed.Leftovers(t.Context(), w.Namespace)
	require.NoError(t, err)
	assert.Empty(t, left)
	for _, warning := range w.warnings { // on a busy machine
		assert.Contains(t, warning, "the port-forward to trial small/0 takes ")
	}
}
