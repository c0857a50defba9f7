// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/state"
)

// BenchmarkTurnaround reports the time from the end of one trial's load to the
// start of the next trial: verdict, checkpoint, the engine's own exit, its port.
func BenchmarkTurnaround(b *testing.B) {
	path := file(b)
	var gap, startup time.Duration
	gaps := 0
	for b.Loop() {
		h := newHome(b)
		h.must("autobench", "run", "-f", path, "--name", "demo")
		trials := h.result("demo").Templates[0].Trials
		for i := range trials[1:] {
			end := trials[i].Started.Add(time.Duration(trials[i].Seconds * float64(time.Second)))
			gap += trials[i+1].Started.Sub(end)
			startup += time.Duration(trials[i].Phases[1].Seconds * float64(time.Second))
			gaps++
		}
	}
	b.ReportMetric(float64(gap.Microseconds())/1e3/float64(gaps), "ms/turnaround")
	b.ReportMetric(float64(startup.Microseconds())/1e3/float64(gaps), "ms/start-to-serving")
}

// BenchmarkStatus1000 lists a thousand experiments with the built binary.
func BenchmarkStatus1000(b *testing.B) {
	h := newHome(b)
	best := &experiment.Best{Template: "small", Index: 3, Metric: "outputThroughput", Score: 1000}
	for i := range 1000 {
		d, err := state.Root(h.dir).Create(fmt.Sprintf("experiment-%04d", i))
		require.NoError(b, err)
		require.NoError(b, d.WriteExperiment([]byte("name: x\n"), nil))
		require.NoError(b, d.WriteReport(experiment.Summary{
			Status: experiment.Completed, Started: time.Now(), Templates: []experiment.TemplateSummary{{Name: "small", Trials: 20}}, Best: best,
		}))
		require.NoError(b, d.Unlock())
	}
	for b.Loop() {
		require.Equal(b, 1001, bytes.Count([]byte(h.must("autobench", "status").stdout), []byte("\n")))
	}
}

// BenchmarkDemo runs what make demo runs, after the build.
func BenchmarkDemo(b *testing.B) {
	for b.Loop() {
		h := newHome(b)
		path, err := filepath.Abs("../../examples/quickstart/experiment.yaml")
		require.NoError(b, err)
		h.must("autobench", "run", "-f", path, "--name", "demo")
	}
}
