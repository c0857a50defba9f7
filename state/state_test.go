// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

// begin creates an experiment with its file, locked until the end of the test.
func begin(t testing.TB, root Root, name string) *Dir {
	t.Helper()
	d, err := root.Create(name)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Unlock()) })
	require.NoError(t, d.WriteExperiment([]byte("name: "+name+"\n"), map[string][]byte{"small": []byte("kind: Pod\n")}))
	return d
}

func TestDefaultRootFollowsTheEnvironment(t *testing.T) {
	for want, env := range map[Root]map[string]string{
		"/data":                          {"LLMCTL_STATE_DIR": "/data", "XDG_STATE_HOME": "/xdg"},
		"/xdg/llmctl":                    {"XDG_STATE_HOME": "/xdg"},
		"/home/ada/.local/state/llmctl":  {"XDG_STATE_HOME": "relative/is/ignored"},
		"/home/ada2/.local/state/llmctl": {},
	} {
		home := "/home/ada"
		if len(env) == 0 {
			home = "/home/ada2"
		}
		assert.Equal(t, want, DefaultRoot(func(key string) string { return env[key] }, home))
	}
}

func TestNamesThatLeaveTheRootAreRefusedEverywhere(t *testing.T) {
	why := experiment.ValidName("../x").Error()
	root := Root(t.TempDir())
	_, err := root.Create("../x")
	assert.EqualError(t, err, `experiment name `+why)
	_, err = root.Open("../x")
	assert.EqualError(t, err, `experiment name `+why)

	d := begin(t, root, "demo")
	_, err = d.Load("../x")
	assert.EqualError(t, err, `template name `+why)
	assert.EqualError(t, d.Trial("../..", 0).Reset(), `template name `+strings.Replace(why, "../x", "../..", 1))
	assert.EqualError(t, d.WriteExperiment(nil, map[string][]byte{"../x": nil}), `template name `+why)
}

func TestAnExperimentLeavesTheDocumentedFilesAndNoOthers(t *testing.T) {
	root := Root(filepath.Join(t.TempDir(), "not", "yet", "there"))
	d := begin(t, root, "demo")
	log, err := d.OpenLog()
	require.NoError(t, err)
	say(t, log, "started")
	require.NoError(t, log.Close())
	trial := d.Trial("small", 0)
	require.NoError(t, trial.Reset())
	require.NoError(t, trial.WriteManifest([]byte("kind: Pod\n")))
	bench, err := trial.BenchmarkLog()
	require.NoError(t, err)
	require.NoError(t, bench.Close())
	require.NoError(t, d.Save(small(1)))
	require.NoError(t, d.Save(small(2)))
	require.NoError(t, d.WriteResult(&experiment.Result{Status: experiment.Running}))
	require.NoError(t, d.WriteReport(experiment.Summary{Status: experiment.Running}))
	require.NoError(t, d.WriteBest([]byte("kind: Pod\n")))

	assert.Equal(t, []string{
		"demo/best_trial.yaml",
		"demo/controller.log",
		"demo/experiment.yaml",
		"demo/lock",
		"demo/manifests/small.yaml",
		"demo/report.json",
		"demo/result.json",
		"demo/templates/small.json",
		"demo/templates/small.json.prev",
		"demo/trials/small/0/benchmark.log",
		"demo/trials/small/0/manifest.yaml",
		"demo/trials/small/0/metrics.json",
		"demo/trials/small/1/metrics.json",
	}, files(t, string(root)))
	require.NoError(t, filepath.WalkDir(string(root), func(path string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := entry.Info()
		require.NoError(t, err)
		want := fs.FileMode(0o600)
		if entry.IsDir() {
			want = 0o700
		}
		assert.Equal(t, want, info.Mode().Perm(), path)
		return nil
	}))
}

func say(t *testing.T, log io.Writer, line string) {
	t.Helper()
	_, err := fmt.Fprintln(log, line)
	require.NoError(t, err)
}

// files lists the regular files below dir.
func files(t testing.TB, dir string) []string {
	t.Helper()
	var found []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)
		if entry.Type().IsRegular() {
			rel, err := filepath.Rel(dir, path)
			require.NoError(t, err)
			found = append(found, rel)
		}
		return nil
	}))
	return found
}

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	root := Root(t.TempDir())
	writer := begin(t, root, "demo")
	result := &experiment.Result{Error: "ttft <= 200 & more", Templates: []experiment.TemplateState{small(2), {Name: "new"}}}
	require.NoError(t, writer.WriteResult(result))
	require.NoError(t, writer.WriteReport(result.Summary()))
	require.NoError(t, writer.WriteBest([]byte("kind: Pod\n")))

	d, err := root.Open("demo")
	require.NoError(t, err)
	assert.Equal(t, "demo", d.Name())
	for want, read := range map[string]func() ([]byte, error){
		"name: demo\n": d.Experiment,
		"kind: Pod\n":  func() ([]byte, error) { return d.Manifest("small") },
	} {
		got, err := read()
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
	}
	data, err := d.Result()
	require.NoError(t, err)
	want, err := json.Marshal(result)
	require.NoError(t, err)
	want = bytes.Replace(want, []byte(`"trials":null`), []byte(`"trials":[]`), 1)
	assert.JSONEq(t, string(want), string(data))
	assert.Contains(t, string(data), "ttft <= 200 & more")
	data, err = d.Report()
	require.NoError(t, err)
	var summary experiment.Summary
	require.NoError(t, json.Unmarshal(data, &summary))
	assert.Equal(t, result.Summary(), summary)
	best, err := d.Best()
	require.NoError(t, err)
	assert.Equal(t, "kind: Pod\n", string(best))

	require.NoError(t, writer.WriteBest(nil))
	require.NoError(t, writer.WriteBest(nil))
	_, err = d.Best()
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

func TestAResultThatIsNoJSONLeavesTheOldOne(t *testing.T) {
	d := begin(t, Root(t.TempDir()), "demo")
	require.NoError(t, d.WriteResult(&experiment.Result{Name: "good"}))
	broken := &experiment.Result{Config: &experiment.Spec{Evaluator: experiment.Plugin{Config: map[string]any{"f": func() {}}}}}
	assert.ErrorContains(t, d.WriteResult(broken), "unsupported type: func()")
	got, err := d.Result()
	require.NoError(t, err)
	assert.Contains(t, string(got), `"name":"good"`)
}

func TestTheIDIsMadeOnceAndKept(t *testing.T) {
	root := Root(t.TempDir())
	d := begin(t, root, "demo")
	id, err := d.ID()
	require.NoError(t, err)
	assert.Regexp(t, `^[a-z2-7]{26}$`, id)
	require.NoError(t, d.Unlock())
	again, err := root.Open("demo")
	require.NoError(t, err)
	same, err := again.ID()
	require.NoError(t, err)
	assert.Equal(t, id, same)
	other, err := begin(t, root, "other").ID()
	require.NoError(t, err)
	assert.NotEqual(t, id, other)
}

func TestNothingIsWrittenWithoutTheLock(t *testing.T) {
	root := Root(t.TempDir())
	require.NoError(t, begin(t, root, "demo").Unlock())
	before := files(t, string(root))
	d, err := root.Open("demo")
	require.NoError(t, err)
	for _, err := range []error{
		d.Save(small(1)), d.WriteResult(&experiment.Result{}), d.WriteReport(experiment.Summary{}), d.WriteBest(nil), d.WriteExperiment(nil, nil), d.Trial("small", 0).Reset(),
	} {
		assert.EqualError(t, err, `experiment "demo" is not locked for writing`)
	}
	assert.Equal(t, before, files(t, string(root)))
}

func TestATakenNameIsNotCreatedAgain(t *testing.T) {
	root := Root(t.TempDir())
	d := begin(t, root, "demo")
	_, err := root.Create("demo")
	assert.ErrorIs(t, err, ErrLocked, "while it runs")
	require.NoError(t, d.Unlock())
	_, err = root.Create("demo")
	assert.ErrorIs(t, err, ErrExists)
	assert.EqualError(t, err, `experiment "demo" already exists in `+string(root)+`: resume it, delete it or choose another --name`)
	assert.False(t, d.Locked())

	require.NoError(t, os.Remove(d.ExperimentFile()))
	require.NoError(t, os.MkdirAll(filepath.Dir(d.CheckpointFile("small")), 0o700))
	_, err = root.Create("demo")
	assert.ErrorIs(t, err, ErrExists, "a checkpoint alone is an experiment too")
}

func TestADirectoryWithoutAnExperimentIsNone(t *testing.T) {
	root := Root(t.TempDir())
	d, err := root.Create("demo") // and killed before WriteExperiment
	require.NoError(t, err)
	require.NoError(t, d.Unlock())
	_, err = root.Open("demo")
	assert.ErrorIs(t, err, ErrNotFound)
	names, err := root.List()
	require.NoError(t, err)
	assert.Empty(t, names)
	begin(t, root, "demo")
}

func TestListIsSortedAndSkipsWhatIsNotOurs(t *testing.T) {
	root := Root(t.TempDir())
	begin(t, root, "zeta")
	begin(t, root, "alpha")
	require.NoError(t, os.Mkdir(filepath.Join(string(root), ".alpha.deleted"), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(string(root), "lost+found"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(string(root), "notes"), nil, 0o600))
	names, err := root.List()
	require.NoError(t, err)
	assert.Equal(t, []string{"alpha", "zeta"}, names)

	names, err = Root(filepath.Join(string(root), "none")).List()
	require.NoError(t, err)
	assert.Empty(t, names)
}

func TestAnUnknownNameNamesTheRootAndTheNearOnes(t *testing.T) {
	root := Root(t.TempDir())
	for _, name := range []string{"quickstart", "vllm-local", "vllm-cluster"} {
		begin(t, root, name)
	}
	for name, hint := range map[string]string{
		"quikstart":  "; did you mean quickstart?",
		"vllm-lokal": "; did you mean vllm-local?",
		"other":      "",
	} {
		_, err := root.Open(name)
		assert.ErrorIs(t, err, ErrNotFound)
		assert.EqualError(t, err, fmt.Sprintf("experiment %q not found in %s%s", name, root, hint))
	}
}

func TestAFileInPlaceOfTheStateDirIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("keep"), 0o600))
	_, err := Root(file).Create("demo")
	assert.EqualError(t, err, "create "+file+": not a directory; choose another --state-dir")
	_, err = Root(file).List()
	assert.EqualError(t, err, "read "+file+": not a directory; choose another --state-dir")
	_, err = Root(file).Open("demo")
	assert.EqualError(t, err, `open experiment "demo": stat `+file+`/demo/experiment.yaml: not a directory`)
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "keep", string(got))
}

func TestResetEmptiesATrialForANewAttempt(t *testing.T) {
	d := begin(t, Root(t.TempDir()), "demo")
	trial := d.Trial("small", 3)
	require.NoError(t, trial.Reset())
	require.NoError(t, os.WriteFile(filepath.Join(trial.LogDir(), "pod-0.log"), []byte("old"), 0o600))
	log, err := trial.BenchmarkLog()
	require.NoError(t, err)
	say(t, log, "one")
	seen, err := os.ReadFile(trial.BenchmarkLogFile())
	require.NoError(t, err)
	assert.Equal(t, "one\n", string(seen), "before it is closed")
	require.NoError(t, log.Close())
	log, err = trial.BenchmarkLog()
	require.NoError(t, err)
	say(t, log, "two")
	require.NoError(t, log.Close())
	seen, err = os.ReadFile(trial.BenchmarkLogFile())
	require.NoError(t, err)
	assert.Equal(t, "one\ntwo\n", string(seen))

	require.NoError(t, trial.Reset())
	assert.Empty(t, files(t, trial.Path()))
	assert.DirExists(t, trial.LogDir())
}

func BenchmarkList1000(b *testing.B) {
	root := Root(b.TempDir())
	for i := range 1000 {
		d, err := root.Create(fmt.Sprintf("experiment-%04d", i))
		require.NoError(b, err)
		require.NoError(b, d.WriteExperiment([]byte("name: x\n"), nil))
		require.NoError(b, d.WriteReport(experiment.Summary{
			Status: experiment.Completed, Templates: []experiment.TemplateSummary{{Name: "small", Trials: 40}}, Best: &experiment.Best{Template: "small"},
		}))
		require.NoError(b, d.Unlock())
	}
	for b.Loop() {
		names, err := root.List()
		require.NoError(b, err)
		require.Len(b, names, 1000)
		for _, name := range names {
			d, err := root.Open(name)
			require.NoError(b, err)
			report, err := d.Report()
			require.NoError(b, err)
			var summary struct{ Status string }
			require.NoError(b, json.Unmarshal(report, &summary))
			require.False(b, d.Locked())
		}
	}
}
