// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// world is everything around the loop: a store in memory that behaves like one
// on disk, a workload that takes time, and a measurement that depends on the
// parameters only.
type world struct {
	saved    map[string]TemplateState
	running  map[string]bool // workloads by name
	events   []string
	attempts int // trials begun

	saveErr   error
	searchErr error
	sweeps    int
	deletes   int
	deploy    func(ctx context.Context, plan Plan) error
	ready     func(ctx context.Context) error
	evaluate  func(ctx context.Context, params Params) (*Metrics, error)
	diagnose  Cause
	vouch     bool // the evaluator asks for the workload's state itself
	delete    func() error
	keepErr   error
	params    Params // of the trial on its way
}

func newWorld() *world { return &world{saved: map[string]TemplateState{}, running: map[string]bool{}} }

func (w *world) Load(name string) (TemplateState, error) {
	s, ok := w.saved[name]
	if !ok {
		return TemplateState{Name: name}, nil
	}
	s.Trials = append([]Trial(nil), s.Trials...)
	return s, nil
}

func (w *world) Save(s TemplateState) error {
	if w.saveErr != nil {
		return w.saveErr
	}
	s.Trials = append([]Trial(nil), s.Trials...)
	w.saved[s.Name] = s
	return nil
}

func (w *world) Sweep(context.Context) error { w.sweeps++; clear(w.running); return nil }

func (w *world) Deploy(ctx context.Context, plan Plan) (Instance, error) {
	w.attempts++
	if w.deploy != nil {
		if err := w.deploy(ctx, plan); err != nil {
			return nil, err
		}
	}
	w.running[plan.Name] = true
	return &workload{w, plan.Name}, nil
}

type workload struct {
	w    *world
	name string
}

func (i *workload) Ready(ctx context.Context) (Target, error) {
	if i.w.ready != nil {
		if err := i.w.ready(ctx); err != nil {
			return Target{}, err
		}
	}
	return Target{BaseURL: "http://" + i.name, Model: "m"}, sleep(ctx, 10*time.Second)
}

func (i *workload) Diagnose(context.Context) (Cause, error) { return i.w.diagnose, nil }

func (i *workload) Keep(context.Context) (string, error) { return "rm " + i.name, i.w.keepErr }

func (i *workload) Delete(context.Context) error {
	i.w.deletes++
	if i.w.delete != nil {
		if err := i.w.delete(); err != nil {
			return err
		}
	}
	delete(i.w.running, i.name)
	return nil
}

func (w *world) Evaluate(ctx context.Context, _ Target, traffic Traffic) (*Metrics, error) {
	if w.vouch {
		if _, err := traffic.Diagnose(ctx); err != nil {
			return nil, err
		}
	}
	if err := sleep(ctx, time.Minute); err != nil {
		return nil, err
	}
	if w.evaluate != nil {
		return w.evaluate(ctx, w.params)
	}
	return measured(100+number(w.params), 50), nil
}

func number(p Params) float64 {
	x, _ := p["default"]["x"].Number()
	return x
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Next proposes x = 1, 2, … up to 9.
func (w *world) Next(_ context.Context, history []Trial) (Params, error) {
	if w.searchErr != nil {
		return nil, w.searchErr
	}
	if len(history) > 9 {
		return nil, ErrExhausted
	}
	return Params{"default": {"x": Int(int64(len(history)))}}, nil
}

// folder keeps nothing.
type folder struct{}

func (folder) Reset() error                          { return nil }
func (folder) WriteManifest([]byte) error            { return nil }
func (folder) BenchmarkLog() (io.WriteCloser, error) { return nopCloser{io.Discard}, nil }
func (folder) Requests() (io.WriteCloser, error)     { return nopCloser{io.Discard}, nil }
func (folder) LogDir() string                        { return "logs" }

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func (w *world) runner(change ...func(*Spec)) *Runner {
	spec := &Spec{
		Name:       "demo",
		Templates:  []Template{{Name: "a"}, {Name: "b"}},
		Objectives: goals(Bound{"ttftP99", true, 100}),
		Strategy:   Strategy{MaxTrialsPerTemplate: 4, EarlyTermination: EarlyTermination{MaxConsecutiveErrors: 3}},
		Execution:  Execution{ReadyTimeout: 10 * time.Minute},
	}
	for _, f := range change {
		f(spec)
	}
	return &Runner{
		Spec: spec, Searcher: w, Deployer: w, Evaluator: w, Store: w, Now: time.Now,
		Render:  func(_ Template, p Params) ([]byte, error) { w.params = p; return []byte("x"), nil },
		Folder:  func(string, int) Folder { return folder{} },
		Publish: func(*Result) error { return nil },
		Report: func(e Event) {
			if e.Text != "" {
				w.events = append(w.events, e.Text)
			}
		},
	}
}

// outcomes shows a template's trials as one letter each.
func (w *world) outcomes(template string) string {
	var b strings.Builder
	for i, t := range w.saved[template].Trials {
		if t.Index != i {
			b.WriteByte('!')
		}
		b.WriteByte(t.Outcome()[0])
	}
	return b.String()
}

func TestTheLoopTriesTheBaselineFirstAndKeepsTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		result, err := w.runner().Run(t.Context())
		require.NoError(t, err)
		assert.Equal(t, Completed, result.Status)
		assert.Equal(t, "ffff", w.outcomes("a"))
		assert.Equal(t, "ffff", w.outcomes("b"))
		assert.Empty(t, w.saved["a"].Trials[0].Params)
		assert.Equal(t, "maxTrialsPerTemplate 4 reached", w.saved["b"].TerminationReason)
		assert.Equal(t, 3, result.Best.Index)
		assert.Equal(t, "a", result.Best.Template)
		assert.Empty(t, w.running)
		assert.Equal(t, 70.0, w.saved["a"].Trials[1].Seconds)
		assert.Equal(t, []Phase{{"deploy", 0}, {"ready", 10}, {"load", 60}}, w.saved["a"].Trials[1].Phases)
	})
}

func TestAnExhaustedSearchCompletesTheTemplate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		_, err := w.runner(func(s *Spec) { s.Strategy.MaxTrialsPerTemplate = 50 }).Run(t.Context())
		require.NoError(t, err)
		assert.Len(t, w.saved["a"].Trials, 10)
		assert.Equal(t, "search space exhausted", w.saved["a"].TerminationReason)
	})
}

func TestASearchThatFailsStopsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.searchErr = errors.New("broken")
		result, err := w.runner().Run(t.Context())
		require.ErrorContains(t, err, "propose trial 1: broken")
		assert.Equal(t, Failed, result.Status)
		assert.False(t, w.saved["a"].Completed)
	})
}

// The loop's main property: cut at any moment and resumed as often as needed, an
// experiment has the trials that it has without interruption.
func TestInterruptedAnywhereAndResumedGivesTheSameTrials(t *testing.T) {
	reference := newWorld()
	synctest.Test(t, func(t *testing.T) {
		_, err := reference.runner().Run(t.Context())
		require.NoError(t, err)
	})
	for step := 3 * time.Second; step < 10*time.Minute; step += 7 * time.Second {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			runs := 0
			// Each run lasts a little longer, so that the last one can finish any trial.
			for limit := step; ; limit += step {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				result, err := w.runner().Run(ctx)
				cancel()
				require.Empty(t, w.running, "nothing is left running")
				runs++
				if err == nil {
					break
				}
				require.ErrorIs(t, err, ErrInterrupted)
				require.Equal(t, Interrupted, result.Status)
			}
			require.Greater(t, runs, 0)
			for _, name := range []string{"a", "b"} {
				require.Equal(t, settings(reference.saved[name]), settings(w.saved[name]), "interrupted every %s", step)
			}
		})
	}
}

func settings(s TemplateState) []string {
	lines := []string{fmt.Sprint(s.Completed, s.TerminationReason)}
	for _, t := range s.Trials {
		lines = append(lines, fmt.Sprint(t.Index, t.Params, *t.Score, t.Violations))
	}
	return lines
}

func TestTheExperimentsTimeoutIsResumableAndItsTrialNotRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		result, err := w.runner(func(s *Spec) { s.Strategy.Timeout = 100 * time.Second }).Run(t.Context())
		require.ErrorIs(t, err, ErrTimedOut)
		assert.Equal(t, TimedOut, result.Status)
		assert.Equal(t, "f", w.outcomes("a"))
		assert.False(t, w.saved["a"].Completed)
		assert.Empty(t, w.running)
	})
}

func TestTheTrialsTimeoutIsAnExecutionError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		_, err := w.runner(func(s *Spec) { s.Execution.TrialTimeout = 30 * time.Second }).Run(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "eee", w.outcomes("a"))
		trial := w.saved["a"].Trials[0]
		assert.Equal(t, "execution.trialTimeout 30s reached", trial.Error)
		assert.Equal(t, ClassTimeout, trial.Reason)
		assert.Equal(t, "3 consecutive execution errors reached maxConsecutiveErrors 3", w.saved["a"].TerminationReason)
	})
}

func TestFailedWorkloadsAreKeptUpToTheNumberAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			keep int
			err  error
			left int
		}{{0, nil, 0}, {2, nil, 2}, {2, errors.New("forbidden"), 0}} {
			w := newWorld()
			w.keepErr = c.err
			w.ready = func(context.Context) error { return &Failure{Cause{Class: "gpu_oom", Message: "out of memory"}} }
			r := w.runner()
			r.KeepFailed = c.keep
			_, err := r.Run(t.Context())
			require.NoError(t, err)
			assert.Len(t, w.running, c.left)
		}
	})
}

func TestSettingsBeyondTheEnginesOwnLimitAreNotTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.deploy = func(context.Context, Plan) error {
			if number(w.params) >= 2 {
				return &Failure{Cause{Class: ClassConfig, Message: "x is too large", Limit: &Limit{Param: "x", Value: 2}}}
			}
			return nil
		}
		_, err := w.runner(func(s *Spec) { s.Strategy.MaxTrialsPerTemplate = 9 }).Run(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "ffe", w.outcomes("a"))
		assert.Equal(t, "search space exhausted", w.saved["a"].TerminationReason)
		assert.Contains(t, w.events, "skipping x=9: the engine's limit for x is 2 (trial a/2)")
		attempts := w.attempts
		_, err = w.runner(func(s *Spec) { s.Strategy.MaxTrialsPerTemplate = 9 }).Run(t.Context())
		require.NoError(t, err)
		assert.Equal(t, attempts, w.attempts, "the stored limit holds after a resume")
	})
}

func TestATransientFailureIsTriedAgainVisibly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for failures, want := range map[int]string{2: "ffff", 3: "efff"} {
			w := newWorld()
			left := failures
			w.ready = func(context.Context) error {
				if left--; left >= 0 {
					return &Failure{Cause{Class: ClassTransient, Message: "node gone"}}
				}
				return nil
			}
			_, err := w.runner(func(s *Spec) { s.Execution.InfraRetries = 2 }).Run(t.Context())
			require.NoError(t, err)
			assert.Equal(t, want, w.outcomes("a"))
			assert.Contains(t, w.events, "trial a/0: node gone; trying again (2 of 2)")
			assert.Empty(t, w.running)
		}
	})
}

func TestAWorkloadThatNeverServesFailsAfterTheReadyTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.ready = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		_, err := w.runner().Run(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "not serving after execution.rbgReadyTimeout 10m0s", w.saved["a"].Trials[0].Error)
		assert.Equal(t, ClassNotReady, w.saved["a"].Trials[0].Reason)
		assert.Empty(t, w.running)
	})
}

func TestTheWorkloadsOwnCauseGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.evaluate = func(context.Context, Params) (*Metrics, error) {
			m := measured(100, 50)
			m.Requests.Failed = 3
			return m, nil
		}
		w.diagnose = Cause{Class: "gpu_oom", Message: "CUDA out of memory"}
		_, err := w.runner().Run(t.Context())
		require.NoError(t, err)
		trial := w.saved["a"].Trials[0]
		assert.Equal(t, "gpu_oom", trial.Reason)
		assert.Equal(t, "CUDA out of memory", trial.Error)
		assert.Nil(t, trial.Metrics, "what a dying server answered is no measurement")
	})
}

// A sweep keeps the level that passed before the engine broke.
func TestMetricsThatTheEvaluatorVouchesForStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.diagnose, w.vouch = Cause{Class: "gpu_oom", Message: "out of memory"}, true
		_, err := w.runner().Run(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "ffff", w.outcomes("a"))
	})
}

func TestFailuresOfAHealthyWorkloadAreData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.evaluate = func(context.Context, Params) (*Metrics, error) {
			m := measured(100, 50)
			m.Requests.Failed, m.ErrorRate = 3, f64(0.03)
			return m, nil
		}
		_, err := w.runner(func(s *Spec) {
			s.Objectives.Bounds = append(s.Objectives.Bounds, Bound{"errorRate", true, 0.01})
		}).Run(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "vvvv", w.outcomes("a"))
	})
}

func TestATrialThatCannotBeBuiltOrDeployedIsAnExecutionErrorWithoutCleanup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.deploy = func(_ context.Context, plan Plan) error {
			if plan.Template == "b" {
				return &Failure{Cause{Class: "quota", Message: "exceeded quota"}}
			}
			return nil
		}
		r := w.runner()
		render := r.Render
		r.Render = func(tmpl Template, p Params) ([]byte, error) {
			if tmpl.Name == "a" && number(p) == 2 {
				return nil, errors.New("maxNumSeqs: 256.5 is not an integer")
			}
			return render(tmpl, p)
		}
		_, err := r.Run(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "ffef", w.outcomes("a"))
		assert.Equal(t, ClassConfig, w.saved["a"].Trials[2].Reason)
		assert.Equal(t, "eee", w.outcomes("b"))
		assert.Equal(t, "quota", w.saved["b"].Trials[0].Reason)
		assert.Equal(t, 3, w.deletes)
	})
}

func TestAWorkloadRefusedForGoodStopsItsTemplateAndIsTriedAgainByResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.deploy = func(_ context.Context, plan Plan) error {
			if plan.Template == "a" {
				return &Failure{Cause{Class: ClassRefused, Message: "deployments is forbidden"}}
			}
			return nil
		}
		_, err := w.runner().Run(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "e", w.outcomes("a"))
		assert.Equal(t, "refused for good: deployments is forbidden", w.saved["a"].TerminationReason)
		assert.Equal(t, "ffff", w.outcomes("b"))

		w.deploy = nil
		_, err = w.runner().Run(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "ffff", w.outcomes("a"), "what refused it may have been mended")
	})
}

func TestACheckpointThatCannotBeWrittenStopsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.saveErr = errors.New("no space left on device")
		result, err := w.runner().Run(t.Context())
		require.ErrorContains(t, err, "save checkpoint of template a: no space left on device")
		assert.Equal(t, Failed, result.Status)
		assert.Equal(t, 1, w.attempts)
		assert.Empty(t, w.running)
	})
}

func TestCleanupDoublesItsPausesAndThenStopsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		var at []time.Duration
		begin := time.Now()
		w.delete = func() error { at = append(at, time.Since(begin)); return errors.New("finalizer") }
		_, err := w.runner().Run(t.Context())
		require.ErrorContains(t, err, "remove workload of trial a/0: finalizer")
		const end = 70 * time.Second
		assert.Equal(t, []time.Duration{end, end + time.Second, end + 3*time.Second, end + 7*time.Second}, at)
		assert.Equal(t, "f", w.outcomes("a"), "the measurement is kept")
	})
}

func TestCleanupOutlivesTheInterruption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		failures := 2
		w.delete = func() error {
			if failures--; failures >= 0 {
				return errors.New("busy")
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := w.runner().Run(ctx)
		require.ErrorIs(t, err, ErrInterrupted)
		assert.Empty(t, w.running)
		assert.Equal(t, 3, w.deletes)
	})
}

func TestResumeCountsWhatIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		_, err := w.runner().Run(t.Context())
		require.NoError(t, err)
		_, err = w.runner().Run(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 8, w.attempts, "a finished experiment runs nothing")
		_, err = w.runner(func(s *Spec) { s.Strategy.MaxTrialsPerTemplate = 6 }).Run(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 12, w.attempts, "a raised budget goes on where it stopped")
		assert.Equal(t, "maxTrialsPerTemplate 6 reached", w.saved["a"].TerminationReason)
	})
}

func TestChangedBoundsJudgeStoredMetricsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		_, err := w.runner().Run(t.Context())
		require.NoError(t, err)
		result, err := w.runner(func(s *Spec) { s.Objectives = goals(Bound{"ttftP99", true, 40}) }).Run(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 8, w.attempts)
		assert.Equal(t, "vvvv", w.outcomes("a"))
		assert.Nil(t, result.Best)
	})
}

func TestRetryErroredRunsOnlyTheErroredTrialsAgainInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		broken := true
		w.evaluate = func(_ context.Context, p Params) (*Metrics, error) {
			if broken && number(p) == 1 {
				return nil, errors.New("no answer")
			}
			return measured(100, 50), nil
		}
		_, err := w.runner().Run(t.Context())
		require.NoError(t, err)
		require.Equal(t, "feff", w.outcomes("a"))
		require.Equal(t, "measure: no answer", w.saved["a"].Trials[1].Error)
		broken = false
		r := w.runner()
		r.RetryErrored = true
		_, err = r.Run(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "ffff", w.outcomes("a"))
		assert.Equal(t, 10, w.attempts)
		assert.True(t, w.saved["a"].Completed)
	})
}

func TestANaNNeverCostsTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.evaluate = func(context.Context, Params) (*Metrics, error) { return measured(math.NaN(), 50), nil }
		_, err := w.runner().Run(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "vvvv", w.outcomes("a"))
		assert.Contains(t, w.saved["a"].Trials[0].Metrics.Warnings[0], "outputThroughput was not a usable number")
	})
}

func TestEveryTrialHasItsOwnPromptsAndTemplatesShareThem(t *testing.T) {
	seen := map[uint64]bool{}
	for index := range 100 {
		seed := promptSeed(7, index)
		assert.False(t, seen[seed])
		seen[seed] = true
	}
	assert.NotEqual(t, promptSeed(7, 0), promptSeed(8, 0))
}
