// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra/doc"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"github.com/llmctl/llmctl/cmd/autobench"
	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/deploy/kube"
	"github.com/llmctl/llmctl/state"
)

var update = flag.Bool("update", false, "write the command reference instead of comparing it")

// run executes a command line and returns its exit code and what it printed.
func run(t *testing.T, argv0 string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	streams, _, out, errOut := genericiooptions.NewTestIOStreams()
	root := New(streams, argv0)
	root.SetArgs(args)
	code = exit(root.ExecuteContext(t.Context()), errOut)
	return code, out.String(), errOut.String()
}

func TestAsAPluginTheHelpSpeaksOfKubectl(t *testing.T) {
	code, stdout, _ := run(t, "/x/kubectl-llmctl", "autobench", "best", "--help")
	assert.Equal(t, 0, code)
	assert.Contains(t, stdout, "kubectl llmctl autobench best NAME")
	_, stdout, _ = run(t, "llmctl", "autobench", "best", "--help")
	assert.Contains(t, stdout, "\n  llmctl autobench best NAME")
}

func TestTheOldNameOfTheGroupWorks(t *testing.T) {
	t.Setenv("LLMCTL_STATE_DIR", t.TempDir())
	t.Setenv("LLMCTL_CONFIG", os.DevNull)
	code, _, stderr := run(t, "llmctl", "auto-benchmark", "list")
	assert.Equal(t, 0, code)
	assert.Contains(t, stderr, "No experiments found")
}

func TestErrorsBecomeExitCodes(t *testing.T) {
	for want, err := range map[int]error{
		0:   nil,
		1:   errors.New("x"),
		2:   fmt.Errorf("wrapped: %w", autobench.Usagef("x")),
		3:   fmt.Errorf("wrapped: %w", autobench.ErrNothingFeasible),
		4:   errors.Join(experiment.ErrTimedOut, errors.New("x")),
		5:   fmt.Errorf("wrapped: %w", state.ErrLocked),
		7:   exitError(7),
		130: errors.Join(experiment.ErrInterrupted, errors.New("x")),
	} {
		assert.Equal(t, want, exitCode(err))
	}
	assert.Equal(t, 2, exitCode(fmt.Errorf("wrapped: %w", &experiment.Problems{})))
}

func TestUnknownCommandsAndFlagsAreUsageErrors(t *testing.T) {
	for _, args := range [][]string{{"autobnch"}, {"autobench", "rn"}, {"autobench", "run", "--nope"}, {"autobench", "list", "x"}} {
		code, stdout, stderr := run(t, "llmctl", args...)
		assert.Equal(t, 2, code, "%v: %s", args, stderr)
		assert.Empty(t, stdout)
		assert.True(t, strings.HasPrefix(stderr, "error: "), stderr)
	}
}

func TestFlagsGoBeforeTheEnvironmentAndThatBeforeTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte("state-dir: /from/file\ncontext: filed\n"), 0o600))
	env := map[string]string{"LLMCTL_CONFIG": file}
	settings := func(args ...string) (stateDir, context string) {
		streams, _, _, _ := genericiooptions.NewTestIOStreams()
		root := New(streams, "llmctl")
		list, _, err := root.Find([]string{"autobench", "list"})
		require.NoError(t, err)
		require.NoError(t, list.ParseFlags(args))
		require.NoError(t, configure(list.Flags(), func(name string) string { return env[name] }, nil))
		stateDir, err = list.Flags().GetString("state-dir")
		require.NoError(t, err)
		context, err = list.Flags().GetString("context")
		require.NoError(t, err)
		return stateDir, context
	}
	dir, context := settings()
	assert.Equal(t, [2]string{"/from/file", "filed"}, [2]string{dir, context})
	env["LLMCTL_STATE_DIR"] = "/from/env"
	dir, _ = settings()
	assert.Equal(t, "/from/env", dir)
	dir, _ = settings("--state-dir", "/from/flag")
	assert.Equal(t, "/from/flag", dir)
}

func TestAnUnknownConfigurationKeyIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte("statedir: x\n"), 0o600))
	t.Setenv("LLMCTL_CONFIG", file)
	code, _, stderr := run(t, "llmctl", "autobench", "list")
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr, "unknown key statedir; known: state-dir, engine-dir")
}

// doc/rbac.yaml is generated from the rights that preflight asks for.
func TestTheRoleInTheDocsIsWhatIsNeeded(t *testing.T) {
	role := rbacv1.Role{
		TypeMeta:   metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "Role"},
		ObjectMeta: metav1.ObjectMeta{Name: "llmctl"},
		Rules:      kube.Rules(),
	}
	data, err := yaml.Marshal(role)
	require.NoError(t, err)
	text := "# What llmctl autobench needs in the namespace of its trials, for templates of\n" +
		"# every kind it knows; leave out the kinds that yours do not have. A RoleBinding\n" +
		"# gives it to a user. Generated: make docs.\n" + string(data)
	if *update {
		require.NoError(t, os.WriteFile("../doc/rbac.yaml", []byte(text), 0o644))
	}
	stored, err := os.ReadFile("../doc/rbac.yaml")
	require.NoError(t, err, "run make docs")
	assert.Equal(t, text, string(stored), "run make docs")
}

// The command reference is generated; this test fails when it is out of date.
func TestReferenceIsUpToDate(t *testing.T) {
	t.Setenv("HOME", "/home/you")
	t.Setenv("XDG_STATE_HOME", "")
	streams, _, _, _ := genericiooptions.NewTestIOStreams()
	root := New(streams, "llmctl")
	root.DisableAutoGenTag = true
	fresh := t.TempDir()
	if *update {
		fresh = "../doc/reference"
		require.NoError(t, os.RemoveAll(fresh))
		require.NoError(t, os.MkdirAll(fresh, 0o755))
	}
	require.NoError(t, doc.GenMarkdownTree(root, fresh))
	stored, err := filepath.Glob("../doc/reference/*.md")
	require.NoError(t, err)
	generated, err := filepath.Glob(filepath.Join(fresh, "*.md"))
	require.NoError(t, err)
	require.Equal(t, len(generated), len(stored), "run make docs")
	for _, path := range generated {
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join("../doc/reference", filepath.Base(path)))
		require.NoError(t, err, "run make docs")
		assert.Equal(t, string(want), string(got), "run make docs")
	}
}
