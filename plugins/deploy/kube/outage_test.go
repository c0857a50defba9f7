// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/test/bed"
)

// outage is how long the API server is away.
const outage = 30 * time.Second

func TestEveryPhaseOutlastsAnAPIServerThatIsAway(t *testing.T) {
	b := bed.New(t, bed.Config{Llmctl: shared.Get(t).Llmctl, Log: os.Stderr})
	in := func() *world { return worldOf(t, b, b.REST, b.Namespace(t)) }
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	serving := func(w *world) *instance {
		in := w.deploy(w.plan(simulated()))
		_, err := in.Ready(ctx)
		require.NoError(t, err)
		return in
	}
	starting, loaded, leaving, left, coming := in(), in(), in(), in(), in()
	slow := starting.deploy(starting.plan(simulated(fault("slow-ready", "after", "10s")...)))
	underLoad, goes := serving(loaded), serving(leaving)
	left.Templates = map[string][]byte{"small": []byte(simulated())}
	serving(left).release()

	done := make(chan struct{}, 5)
	phase := func(name string, f func() error) {
		go func() {
			assert.NoError(t, f(), name)
			done <- struct{}{}
		}()
	}
	phase("becoming ready", func() error { _, err := slow.Ready(ctx); return err })
	b.StopAPIServer()
	phase("after the load", func() error {
		cause, err := underLoad.Diagnose(ctx)
		assert.Equal(t, experiment.ClassTransient, cause.Class, "what went through the API server is void: %v", cause)
		return err
	})
	phase("deletion", func() error { return goes.Delete(ctx) })
	phase("sweeping", func() error { return left.Sweep(ctx) })
	phase("creation", func() error {
		created, err := coming.Deploy(ctx, coming.plan(simulated()))
		if err != nil {
			return err
		}
		_, err = created.Ready(ctx)
		assert.NoError(t, created.Delete(ctx))
		return err
	})
	select {
	case <-time.After(outage):
	case <-ctx.Done():
	}
	assert.Empty(t, done, "nothing gave up")
	require.NoError(t, b.StartAPIServer(ctx))
	for range 5 {
		<-done
	}
	require.NoError(t, slow.Delete(ctx))
	again := serving(starting)
	res, err := http.Get(again.probe.BaseURL + "/health")
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
}
