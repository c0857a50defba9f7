// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

// kills is how often the run is killed in all.
const kills = 200

// The run is killed at random moments and resumed until it is done, again and
// again. However it was cut, it ends with the trials and the winner of a run that
// was left alone, and nothing stays running.
func TestKilledAnywhereTheExperimentEndsTheSame(t *testing.T) {
	path := file(t)
	whole := newHome(t)
	start := time.Now()
	whole.must("autobench", "run", "-f", path, "--name", "demo")
	length := time.Since(start)
	want, wantBest := settled(whole)

	random := rand.New(rand.NewPCG(1, 1))
	for killed := 0; killed < kills; {
		h := newHome(t)
		args := []string{"autobench", "run", "-f", path, "--name", "demo"}
		for {
			c := h.command(t.Context(), args...)
			require.NoError(t, c.Start())
			// Short spans kill in the middle of one trial, long ones let some finish.
			span := time.Duration(random.Float64() * random.Float64() * float64(length) / 2)
			timer := time.AfterFunc(span, func() { _ = c.Process.Kill() }) // it may have ended
			code := exitCode(t, c.Wait())
			timer.Stop()
			if code == 0 {
				break
			}
			require.Equal(t, 137, code)
			killed++
			if _, err := os.Stat(filepath.Join(h.dir, "demo", "experiment.yaml")); err == nil {
				args = []string{"autobench", "resume", "demo"}
			}
		}
		got, gotBest := settled(h)
		require.Equal(t, want, got)
		require.Equal(t, wantBest, gotBest)
		h.noProcessLeft()
	}
}

// settled is what must not depend on interruptions.
func settled(h *home) ([]experiment.TemplateState, string) {
	r := h.result("demo")
	for i := range r.Templates {
		for j := range r.Templates[i].Trials {
			trial := &r.Templates[i].Trials[j]
			trial.Started, trial.Seconds, trial.Phases = time.Time{}, 0, nil
		}
	}
	best, err := os.ReadFile(filepath.Join(h.dir, "demo", "best_trial.yaml"))
	require.NoError(h.t, err)
	return r.Templates, string(best)
}
