// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

// trial is a trial record of the usual size; equal indices give equal trials.
func trial(template string, index int) experiment.Trial {
	number := func(x float64) *float64 { return experiment.Number(x + float64(index)) }
	latency := experiment.Distribution{Mean: number(101.5), P50: number(99.25), P90: number(150.125), P95: number(170), P99: number(220.75), N: 512}
	return experiment.Trial{
		Template: template,
		Index:    index,
		Params:   experiment.Params{"default": {"maxNumSeqs": experiment.Int(int64(index)), "gpuMemoryUtilization": experiment.Float(0.85)}},
		Started:  time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC).Add(time.Duration(index) * time.Minute),
		Seconds:  61.5,
		Phases:   []experiment.Phase{{Name: "deploy", Seconds: 0.5}, {Name: "ready", Seconds: 20}, {Name: "load", Seconds: 40}, {Name: "delete", Seconds: 1}},
		Metrics: &experiment.Metrics{
			TTFT: latency, TPOT: latency, ITL: latency, E2E: latency,
			OutputThroughput: number(1234.5), InputThroughput: number(2345.5), TotalThroughput: number(3580), RequestsPerSecond: number(4.5),
			ErrorRate: experiment.Number(0), Concurrency: 16, AchievedConcurrency: experiment.Number(15.9), Seconds: 40,
			Requests: experiment.Requests{Sent: 512, OK: 512}, Warnings: []string{"percentiles above p95 rest on 5 requests"},
		},
		Violations: []experiment.Violation{{Bound: "ttftP99MaxMs", Limit: 200, Value: number(220.75), Excess: experiment.Number(0.1)}},
		Score:      number(1234.5),
	}
}

// small is the state of template "small" after n trials.
func small(n int) experiment.TemplateState {
	st := experiment.TemplateState{Name: "small"}
	for i := range n {
		st.Trials = append(st.Trials, trial("small", i))
	}
	return st
}

// load opens the experiment anew, locked or not, and loads template "small";
// notes are what Warn was told.
func load(t *testing.T, d *Dir, locked bool) (st experiment.TemplateState, notes []string) {
	t.Helper()
	fresh, err := Root(filepath.Dir(d.Path())).Open(d.Name())
	require.NoError(t, err)
	if locked {
		require.NoError(t, d.Unlock())
		require.NoError(t, fresh.Lock())
		t.Cleanup(func() { assert.NoError(t, fresh.Unlock()) })
	}
	fresh.Now = func() time.Time { return time.Date(2026, 1, 2, 15, 4, 5, 0, time.FixedZone("", 3600)) }
	fresh.Warn = func(note string) { notes = append(notes, note) }
	st, err = fresh.Load("small")
	require.NoError(t, err)
	return st, notes
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func TestLoadReturnsWhatWasSaved(t *testing.T) {
	d := begin(t, Root(t.TempDir()), "demo")
	st := small(3)
	st.Completed, st.TerminationReason = true, "3 of 3 trials missed the SLA (<= 0.5 allowed)"
	require.NoError(t, d.Save(st))
	got, notes := load(t, d, false)
	assert.Equal(t, st, got)
	assert.Empty(t, notes)

	data, err := os.ReadFile(d.Trial("small", 2).MetricsFile())
	require.NoError(t, err)
	var record experiment.Trial
	require.NoError(t, json.Unmarshal(data, &record))
	assert.Equal(t, st.Trials[2], record)
}

func TestATemplateWithoutFilesIsNew(t *testing.T) {
	d := begin(t, Root(t.TempDir()), "demo")
	require.NoError(t, d.Trial("small", 0).Reset()) // its first trial was interrupted
	got, notes := load(t, d, true)
	assert.Equal(t, experiment.TemplateState{Name: "small"}, got)
	assert.Empty(t, notes)
}

func TestACheckpointIsOrdinaryJSONWithOneLinePerTrial(t *testing.T) {
	d := begin(t, Root(t.TempDir()), "demo")
	st := experiment.TemplateState{Name: "small", Completed: true, TerminationReason: "a < b", Trials: []experiment.Trial{
		{Template: "small", Started: time.Unix(0, 0).UTC(), Error: "exit status 1", Reason: "gpu_oom"},
		{Template: "small", Index: 1, Started: time.Unix(60, 0).UTC(), Error: "exit status 1"},
	}}
	require.NoError(t, d.Save(st))
	got, err := os.ReadFile(d.CheckpointFile("small"))
	require.NoError(t, err)
	assert.Equal(t, `{"name":"small","completed":true,"terminationReason":"a < b","trials":[
{"template":"small","index":0,"started":"1970-01-01T00:00:00Z","seconds":0,"error":"exit status 1","reason":"gpu_oom"},
{"template":"small","index":1,"started":"1970-01-01T00:01:00Z","seconds":0,"error":"exit status 1"}
]}
`, string(got))

	require.NoError(t, d.Save(experiment.TemplateState{Name: "small"}))
	got, err = os.ReadFile(d.CheckpointFile("small"))
	require.NoError(t, err)
	assert.Equal(t, "{\"name\":\"small\",\"completed\":false,\"trials\":[\n]}\n", string(got))
	reread, _ := load(t, d, false)
	assert.Equal(t, experiment.TemplateState{Name: "small", Trials: []experiment.Trial{}}, reread)
}

func TestChangedTrialsAreWrittenAgainAndOnlyThose(t *testing.T) {
	for name, reopened := range map[string]bool{"in the same run": false, "after a resume": true} {
		t.Run(name, func(t *testing.T) {
			d := begin(t, Root(t.TempDir()), "demo")
			st := small(3)
			require.NoError(t, d.Save(st))
			if reopened {
				require.NoError(t, d.Unlock())
				again, err := Root(filepath.Dir(d.Path())).Open("demo")
				require.NoError(t, err)
				require.NoError(t, again.Lock())
				t.Cleanup(func() { assert.NoError(t, again.Unlock()) })
				st, err = again.Load("small")
				require.NoError(t, err)
				d = again
			}
			for i := range 3 {
				write(t, d.Trial("small", i).MetricsFile(), "untouched")
			}
			st.Trials[1].Violations, st.Trials[1].Score = nil, experiment.Number(7) // judged again
			require.NoError(t, d.Save(st))
			for i, want := range []bool{true, false, true} {
				data, err := os.ReadFile(d.Trial("small", i).MetricsFile())
				require.NoError(t, err)
				assert.Equal(t, want, string(data) == "untouched", "trial %d", i)
			}
			got, _ := load(t, d, false)
			assert.Equal(t, st, got)
		})
	}
}

func TestTheRecordsOfDroppedTrialsAreRemoved(t *testing.T) {
	d := begin(t, Root(t.TempDir()), "demo")
	require.NoError(t, d.Save(small(4)))
	require.NoError(t, d.Save(small(2)))
	write(t, d.CheckpointFile("small"), "")
	require.NoError(t, os.Remove(d.previousFile("small")))
	got, _ := load(t, d, false)
	assert.Equal(t, small(2), got)
}

func TestADamagedCheckpointIsSetAsideAndTheStatePutTogetherAgain(t *testing.T) {
	whole, err := join(small(1), []savedTrial{{line: []byte(`{"template":"small","index":0,"started":"2026-01-02T03:04:05Z","seconds":1}`)}})
	require.NoError(t, err)
	for content, why := range map[string]string{
		"":                              "unexpected end of JSON input",
		`{"trials":[{"id":1,`:           "unexpected end of JSON input",
		string(whole[:len(whole)/2]):    "unexpected end of JSON input",
		string(whole) + "x":             "invalid character 'x' after top-level value",
		strings.Repeat("\x00", 64):      `invalid character '\x00' looking for beginning of value`,
		"null":                          `it is of template ""`,
		`{"name":"large","trials":[]}`:  `it is of template "large"`,
		`{"name":"small","trials":[1]}`: "json: cannot unmarshal number into Go struct field TemplateState.trials of type experiment.Trial",
		strings.Replace(string(whole), `"index":0`, `"index":1`, 1):                          `trial 0 is trial 1 of template "small"`,
		strings.Replace(string(whole), `{"template":"small"`, `{"template":"large"`, 1):      `trial 0 is trial 0 of template "large"`,
		strings.Replace(string(whole), `"seconds":1`, `"seconds":1},{"template":"small"`, 1): `trial 1 is trial 0 of template "small"`,
	} {
		t.Run(why, func(t *testing.T) {
			d := begin(t, Root(t.TempDir()), "demo")
			for n := 5; n <= 7; n++ {
				require.NoError(t, d.Save(small(n)))
			}
			write(t, d.CheckpointFile("small"), content)
			tail := "; trials recovered from the previous checkpoint and their own records: 7"

			got, notes := load(t, d, false)
			assert.Equal(t, small(7), got)
			assert.Equal(t, []string{"checkpoint templates/small.json is damaged (" + why + ")" + tail}, notes)

			got, notes = load(t, d, true)
			assert.Equal(t, small(7), got)
			assert.Equal(t, []string{"checkpoint templates/small.json is damaged (" + why + "); kept as templates/small.json.corrupt-20260102T140405Z" + tail}, notes)
			kept, err := os.ReadFile(d.CheckpointFile("small") + ".corrupt-20260102T140405Z")
			require.NoError(t, err)
			assert.Equal(t, content, string(kept))

			got, notes = load(t, d, false)
			assert.Equal(t, small(7), got, "nothing has been saved since")
			assert.Equal(t, []string{"checkpoint templates/small.json is missing" + tail}, notes)
		})
	}
}

func TestWhatIsRecoveredDependsOnWhatIsLeft(t *testing.T) {
	for name, test := range map[string]struct {
		damage func(t *testing.T, d *Dir)
		want   int
	}{
		"both generations and a record in between are damaged": {func(t *testing.T, d *Dir) {
			write(t, d.previousFile("small"), "{")
			write(t, d.Trial("small", 4).MetricsFile(), "")
		}, 4},
		"no previous generation": {func(t *testing.T, d *Dir) { require.NoError(t, os.Remove(d.previousFile("small"))) }, 7},
		"no records":             {func(t *testing.T, d *Dir) { require.NoError(t, os.RemoveAll(filepath.Join(d.Path(), "trials"))) }, 6},
		"a record of another trial": {func(t *testing.T, d *Dir) {
			other, err := os.ReadFile(d.Trial("small", 5).MetricsFile())
			require.NoError(t, err)
			write(t, d.Trial("small", 6).MetricsFile(), string(other))
		}, 6},
		"nothing": {func(t *testing.T, d *Dir) {
			require.NoError(t, os.RemoveAll(filepath.Join(d.Path(), "trials")))
			require.NoError(t, os.Remove(d.previousFile("small")))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := begin(t, Root(t.TempDir()), "demo")
			require.NoError(t, d.Save(small(6)))
			require.NoError(t, d.Save(small(7)))
			write(t, d.CheckpointFile("small"), "")
			test.damage(t, d)
			got, notes := load(t, d, true)
			assert.Equal(t, small(test.want), got)
			assert.Equal(t, []string{fmt.Sprintf("checkpoint templates/small.json is damaged (unexpected end of JSON input); kept as "+
				"templates/small.json.corrupt-20260102T140405Z; trials recovered from the previous checkpoint and their own records: %d", test.want)}, notes)
		})
	}
}

func TestARecordIsNewerThanThePreviousCheckpoint(t *testing.T) {
	d := begin(t, Root(t.TempDir()), "demo")
	st := small(3)
	st.Completed, st.TerminationReason = true, "all 3 trials done"
	require.NoError(t, d.Save(st))
	retried := small(3)
	retried.Trials[1].Seconds = 5
	require.NoError(t, d.Save(retried))
	write(t, d.CheckpointFile("small"), "")
	got, _ := load(t, d, true)
	retried.Completed, retried.TerminationReason = true, "all 3 trials done" // of the previous generation: as many trials
	assert.Equal(t, retried, got)
}

func TestARecoveredStateOfMoreTrialsIsNotCompleted(t *testing.T) {
	d := begin(t, Root(t.TempDir()), "demo")
	st := small(3)
	st.Completed, st.TerminationReason = true, "all 3 trials done"
	require.NoError(t, d.Save(st))
	require.NoError(t, d.Save(small(4)))
	write(t, d.CheckpointFile("small"), "")
	got, _ := load(t, d, true)
	assert.Equal(t, small(4), got)
}

func TestSetAsideFilesAreNeverOverwritten(t *testing.T) {
	d := begin(t, Root(t.TempDir()), "demo")
	d.Now = func() time.Time { return time.Unix(0, 0) }
	d.Warn = func(string) {}
	for n := range 3 {
		write(t, filepath.Join(d.Path(), "x.json"), fmt.Sprint(n))
		_, err := d.setAside(filepath.Join(d.Path(), "x.json"))
		require.NoError(t, err)
	}
	for n, suffix := range []string{"", "-2", "-3"} {
		got, err := os.ReadFile(filepath.Join(d.Path(), "x.json.corrupt-19700101T000000Z"+suffix))
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprint(n), string(got))
	}
}

func TestSavingGoesOnAfterARecovery(t *testing.T) {
	d := begin(t, Root(t.TempDir()), "demo")
	require.NoError(t, d.Save(small(1)))
	require.NoError(t, d.Save(small(2)))
	write(t, d.CheckpointFile("small"), "")
	st, err := d.Load("small")
	require.NoError(t, err)
	require.NoError(t, d.Save(small(2+1)))
	assert.Equal(t, small(2), st)
	got, notes := load(t, d, true)
	assert.Equal(t, small(3), got)
	assert.Empty(t, notes)
	previous, err := readCheckpoint(d.previousFile("small"), "small")
	require.NoError(t, err)
	assert.Equal(t, small(1), previous, "the generation before the damage is kept until there are two good ones")
}

func TestThePreviousGenerationIsKeptWithoutHardLinks(t *testing.T) {
	d := begin(t, Root(t.TempDir()), "demo")
	require.NoError(t, d.Save(small(1)))
	path, previous := d.CheckpointFile("small"), d.previousFile("small")
	require.NoError(t, copyFile(path, previous))
	assert.FileExists(t, path)
	got, err := readCheckpoint(previous, "small")
	require.NoError(t, err)
	assert.Equal(t, small(1), got)
}

func TestSavingTheSameGenerationTwiceLeavesNoTemporaryFile(t *testing.T) {
	d := begin(t, Root(t.TempDir()), "demo")
	require.NoError(t, d.Save(small(1)))
	path, previous := d.CheckpointFile("small"), d.previousFile("small")
	// As after a crash between keeping the previous generation and replacing the checkpoint.
	require.NoError(t, linkPrevious(path, previous))
	require.NoError(t, linkPrevious(path, previous))
	assert.Equal(t, []string{"small.json", "small.json.prev"}, files(t, filepath.Dir(path)))
}

func TestAStateThatCannotBeSavedLeavesTheOldOne(t *testing.T) {
	for want, spoil := range map[string]func(*experiment.TemplateState){
		"encode trial 2 of template small: json: unsupported value: NaN": func(st *experiment.TemplateState) {
			nan := math.NaN()
			st.Trials[2].Score = &nan
		},
		`save template "small": trial 2 is trial 3 of template "small"`: func(st *experiment.TemplateState) { st.Trials[2].Index = 3 },
		`save template "small": trial 2 is trial 2 of template "large"`: func(st *experiment.TemplateState) { st.Trials[2].Template = "large" },
	} {
		t.Run(want, func(t *testing.T) {
			d := begin(t, Root(t.TempDir()), "demo")
			require.NoError(t, d.Save(small(2)))
			before := files(t, d.Path())
			st := small(3)
			spoil(&st)
			assert.EqualError(t, d.Save(st), want)
			assert.Equal(t, before, files(t, d.Path()))
			require.NoError(t, d.Save(small(3)), "and later trials can still be saved")
			got, notes := load(t, d, true)
			assert.Equal(t, small(3), got)
			assert.Empty(t, notes)
		})
	}
}

func TestATemplateNameThatIsAPathIsNotSaved(t *testing.T) {
	d := begin(t, Root(t.TempDir()), "demo")
	assert.EqualError(t, d.Save(experiment.TemplateState{Name: "../x"}),
		`save template "../x": name `+experiment.ValidName("../x").Error())
}

// BenchmarkSave is one more trial on top of many. The target is 20 ms at most,
// and no visible growth.
func BenchmarkSave(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("trials=%d", n), func(b *testing.B) {
			d := begin(b, Root(b.TempDir()), "demo")
			st := small(n)
			require.NoError(b, d.Save(st))
			for b.Loop() {
				st.Trials[n-1].Seconds++
				require.NoError(b, d.Save(st))
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/save")
		})
	}
}
