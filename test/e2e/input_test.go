// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

// rewrite changes a file.
func rewrite(t *testing.T, path string, changes ...string) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	text := strings.NewReplacer(changes...).Replace(string(data))
	require.NotEqual(t, string(data), text)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func TestTemplatesThatCannotBeTunedAreNamedBeforeAnythingStarts(t *testing.T) {
	for name, c := range map[string]struct {
		changes []string
		want    string
	}{
		"no manifest":         {[]string{"apiVersion: apps/v1\n", ""}, "templates[0].template: "},
		"no engine":           {[]string{"[llmctl, simulate]", "[python, app.py]"}, "templates[0].template: "},
		"two candidates":      {[]string{"      containers:\n", "      containers:\n      - {name: other, image: x, command: [llmctl, simulate, m]}\n"}, "other"},
		"flag and value in 1": {[]string{"--max-num-seqs=16", "--max-num-seqs 16"}, "--max-num-seqs 16"},
		"value from a secret": {[]string{"        ports:\n", "        env:\n        - {name: HF_TOKEN_OF_TEST, valueFrom: {secretKeyRef: {name: hf, key: token}}}\n        ports:\n"}, "HF_TOKEN_OF_TEST comes from"},
		"unclosed yaml":       {[]string{"[llmctl, simulate]", "[llmctl, simulate"}, "templates[0].template: "},
		"no name":             {[]string{"  name: chat\n  labels", "  labels"}, "templates[0].template: "},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			path := file(t)
			rewrite(t, filepath.Join(filepath.Dir(path), "graphs.yaml"), c.changes...)
			out := h.llmctl("autobench", "run", "-f", path, "--name", "demo")
			require.Equal(t, 2, out.code, out.stderr)
			assert.Contains(t, out.stderr, c.want)
			assert.NoDirExists(t, filepath.Join(h.dir, "demo"))
		})
	}
}

// A file of the existing auto-benchmark is refused for what is not built yet, and for nothing else.
func TestAnExistingFileValidatesApartFromWhatIsNotYet(t *testing.T) {
	h := newHome(t)
	out := h.llmctl("autobench", "validate", "-f", "testdata/auto-benchmark/config.yaml")
	assert.Equal(t, 2, out.code)
	assert.Equal(t, `warning: results: has no effect; results are kept in --state-dir
error: testdata/auto-benchmark/config.yaml has these problems:
  strategy.algorithm: tpe: not yet; use grid, qmc or random
  evaluator.type: genai-bench is not on the PATH: pip install genai-bench==0.0.5
`, out.stderr)
}

func TestAFullDiskStopsTheRunAndLosesNothing(t *testing.T) {
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("needs root on Linux to mount a small tmpfs")
	}
	h := newHome(t)
	mount := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", mount).CombinedOutput(); err != nil {
		t.Skipf("mount is not allowed here: %s", out)
	}
	t.Cleanup(func() { require.NoError(t, exec.Command("umount", mount).Run()) })
	h.dir = mount
	out := h.llmctl("autobench", "run", "-f", file(t), "--name", "demo")
	require.Equal(t, 1, out.code, out.stderr)
	assert.Contains(t, out.stderr, "no space left on device; free some space or choose another --state-dir")
	require.Empty(t, h.processes())
	before := len(h.result("demo").Templates[0].Trials)
	t.Logf("%d trials were kept", before)

	require.NoError(t, exec.Command("mount", "-o", "remount,size=8m", mount).Run())
	h.must("autobench", "resume", "demo")
	after := h.result("demo")
	assert.Equal(t, experiment.Completed, after.Status)
	assert.Len(t, after.Templates[0].Trials, 8)
}

// What a run needs from its environment, best does not.
func TestBestNeedsNoSecrets(t *testing.T) {
	h := newHome(t)
	path := file(t, "type: model", "type: model\n  config: {apiKey: env:KEY_OF_TEST}", "maxTrialsPerTemplate: 8", "maxTrialsPerTemplate: 1")
	rewrite(t, filepath.Join(filepath.Dir(path), "graphs.yaml"), "        ports:\n", "        env:\n        - {name: KEY_OF_TEST, valueFrom: {secretKeyRef: {name: s, key: k}}}\n        ports:\n")
	out := h.llmctl("autobench", "run", "-f", path, "--name", "demo")
	require.Equal(t, 2, out.code)
	assert.Contains(t, out.stderr, "evaluator.config.apiKey: environment variable KEY_OF_TEST is not set")
	t.Setenv("KEY_OF_TEST", "sk-very-secret")
	h.must("autobench", "run", "-f", path, "--name", "demo")
	require.NoError(t, os.Unsetenv("KEY_OF_TEST"))
	assert.Contains(t, h.must("autobench", "best", "demo", "-o", "yaml").stdout, "kind: Deployment")
	require.NoError(t, filepath.WalkDir(h.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		assert.NotContains(t, string(data), "sk-very-secret", path)
		return err
	}))
}

func TestTheShellCompletesNames(t *testing.T) {
	h := newHome(t)
	h.llmctl("autobench", "run", "-f", file(t, "maxTrialsPerTemplate: 8", "maxTrialsPerTemplate: 1"), "--name", "demo")
	for _, verb := range []string{"best", "status", "resume", "logs", "delete"} {
		assert.Contains(t, h.must("__complete", "autobench", verb, "").stdout, "demo\n", verb)
	}
}

func TestWatchingEndsWithTheRun(t *testing.T) {
	h := newHome(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := h.command(ctx, "autobench", "run", "-f", file(t), "--name", "demo")
	require.NoError(t, c.Start())
	require.Eventually(t, func() bool { return trials(h.dir, "demo") >= 1 }, 30*time.Second, 5*time.Millisecond)
	watched := h.must("autobench", "status", "demo", "-w").stdout
	followed := h.must("autobench", "logs", "demo", "-f").stdout
	require.Equal(t, 0, exitCode(t, c.Wait()))
	assert.Contains(t, watched, "eager/2")
	assert.Contains(t, followed, "apply it with: llmctl autobench best demo")
}
