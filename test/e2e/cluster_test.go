// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/test/bed"
)

// cluster is a real control plane; see package bed.
var cluster bed.Lazy

// clusterFile writes an experiment for the cluster: a template of the given kind
// with an optimum, and the same without CUDA graphs, which is hopeless.
func clusterFile(t testing.TB, kind string, changes ...string) string {
	t.Helper()
	path := file(t, append([]string{
		"target: local", "target: kubernetes", "maxTrialsPerTemplate: 8", "maxTrialsPerTemplate: 4",
	}, changes...)...)
	data, err := os.ReadFile(filepath.Join("testdata/cluster", kind+".yaml"))
	require.NoError(t, err)
	dir := filepath.Dir(path)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "graphs.yaml"), data, 0o600))
	eager := strings.NewReplacer("--startup-time", "--enforce-eager --startup-time").Replace(string(data))
	if kind != "statefulset" { // there the flags are in a shell string
		eager = strings.NewReplacer("--startup-time", "--enforce-eager, --startup-time").Replace(string(data))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "eager.yaml"), []byte(eager), 0o600))
	return path
}

// The whole way on a cluster, for every kind: run, kill, resume, early
// termination, best, and the winner applied to the user's own workload.
func TestOnAClusterEveryKindIsTunedAndNothingIsLeft(t *testing.T) {
	local := newHome(t)
	local.must("autobench", "run", "-f", file(t, "maxTrialsPerTemplate: 8", "maxTrialsPerTemplate: 4"), "--name", "demo")
	want := parameters(local.result("demo"))
	for _, kind := range []string{"deployment", "statefulset", "rolebasedgroup", "leaderworkerset"} {
		t.Run(kind, func(t *testing.T) {
			b := cluster.Get(t)
			namespace := b.Namespace(t)
			h := newHome(t)
			h.onCluster = true
			on := []string{"--kubeconfig", b.Kubeconfig, "--namespace", namespace}
			path := clusterFile(t, kind)
			manifest, err := os.ReadFile(filepath.Join(filepath.Dir(path), "graphs.yaml"))
			require.NoError(t, err)
			b.Apply(t, namespace, string(manifest)) // the user's own, which must not be touched

			c := h.command(t.Context(), append([]string{"autobench", "run", "-f", path, "--name", "demo"}, on...)...)
			require.NoError(t, c.Start())
			require.Eventually(t, func() bool { return trials(h.dir, "demo") >= 1 }, time.Minute, 20*time.Millisecond)
			require.NoError(t, c.Process.Kill())
			require.Equal(t, 137, exitCode(t, c.Wait()))

			h.must(append([]string{"autobench", "resume", "demo"}, on...)...)
			r := h.result("demo")
			require.Equal(t, experiment.Completed, r.Status)
			assert.Equal(t, want, parameters(r), "the trials are those of a local run")
			assert.Equal(t, "SLA failure rate 1.00 (3 of 3 measured trials) reached maxSLAFailureRate 1", r.Templates[1].TerminationReason)
			require.NotNil(t, r.Best)
			left, err := b.Leftovers(t.Context(), namespace)
			require.NoError(t, err)
			require.Empty(t, left)

			best := h.must("autobench", "best", "demo", "-o", "yaml").stdout
			b.Kubectl(t, best, "apply", "--dry-run=server", "-n", namespace, "-f", "-")
			diff := exec.Command(filepath.Join(b.Bin, "kubectl"), "--kubeconfig", b.Kubeconfig, "diff", "-n", namespace, "-f", "-")
			diff.Stdin = strings.NewReader(best)
			out, err := diff.Output()
			require.Equal(t, 1, exitCode(t, err), "kubectl diff ends with 1 where there is a difference")
			for _, line := range strings.Split(string(out), "\n") {
				if changed := strings.TrimLeft(line, "+-"); changed != line && !strings.HasPrefix(line, "+++") && !strings.HasPrefix(line, "---") {
					assert.Regexp(t, `max-num|^ *(- )?"?\d+"?$|generation:`, changed, "only the tuned arguments change")
				}
			}
		})
	}
}

// Every command of the guide's walk-through, as it stands there, in order.
func TestTheGuidesClusterWalkThrough(t *testing.T) {
	guide, err := os.ReadFile("../../doc/guide.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(guide), "\n## On a cluster\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var commands []string
	for i, block := range strings.Split(section, "```") {
		if i%2 == 1 {
			commands = append(commands, strings.Split(strings.TrimSpace(block), "\n")...)
		}
	}
	require.GreaterOrEqual(t, len(commands), 7)

	b := cluster.Get(t)
	namespace := b.Namespace(t)
	h := newHome(t)
	h.onCluster = true
	dir := filepath.Dir(clusterFile(t, "deployment"))
	manifest, err := os.ReadFile(filepath.Join(dir, "graphs.yaml"))
	require.NoError(t, err)
	b.Apply(t, namespace, string(manifest))
	kubeconfig, err := os.ReadFile(b.Kubeconfig)
	require.NoError(t, err)
	config := filepath.Join(dir, "kubeconfig")
	require.NoError(t, os.WriteFile(config, kubeconfig, 0o600))
	shell := func(command string) (string, int) {
		c := exec.CommandContext(t.Context(), "sh", "-c", command)
		c.Dir = dir
		c.Env = append(os.Environ(), "PATH="+filepath.Dir(binary)+":"+b.Bin+":"+os.Getenv("PATH"), "KUBECONFIG="+config,
			"LLMCTL_STATE_DIR="+h.dir, "LLMCTL_CONFIG=/dev/null")
		out, err := c.CombinedOutput()
		return string(out), exitCode(t, err)
	}
	out, code := shell("kubectl config set-context --current --namespace " + namespace)
	require.Zero(t, code, out)
	for _, command := range commands {
		out, code := shell(command)
		want := 0
		if strings.Contains(command, "kubectl diff") {
			want = 1 // there is a difference
		}
		require.Equal(t, want, code, "%s\n%s", command, out)
	}
	out, code = shell("kubectl get deployment chat -o yaml")
	require.Zero(t, code, out)
	assert.NotContains(t, out, "llmctl.io/", "the user's own workload has the winner's flags and no label of a trial")
	assert.Contains(t, out, "--max-num-seqs")
	assert.NoDirExists(t, filepath.Join(h.dir, "chat"))
}

// parameters are the settings of all trials.
func parameters(r experiment.Result) map[string][]string {
	settings := map[string][]string{}
	for _, template := range r.Templates {
		for _, trial := range template.Trials {
			settings[template.Name] = append(settings[template.Name], trial.Params.String())
		}
	}
	return settings
}

// Ctrl-C in whatever phase leaves nothing in the cluster.
func TestCtrlCOnAClusterLeavesNothing(t *testing.T) {
	b := cluster.Get(t)
	for _, after := range []time.Duration{100 * time.Millisecond, 700 * time.Millisecond, 1500 * time.Millisecond, 3 * time.Second} {
		namespace := b.Namespace(t)
		h := newHome(t)
		h.onCluster = true
		c := h.command(t.Context(), "autobench", "run", "-f", clusterFile(t, "deployment"), "--name", "demo", "--kubeconfig", b.Kubeconfig, "--namespace", namespace)
		require.NoError(t, c.Start())
		time.Sleep(after)
		require.NoError(t, c.Process.Signal(os.Interrupt))
		code := exitCode(t, c.Wait())
		assert.Contains(t, []int{0, 130}, code, "0: done already")
		left, err := b.Leftovers(t.Context(), namespace)
		require.NoError(t, err)
		assert.Empty(t, left, "after %s", after)
	}
}

func TestAFailingTrialOnAClusterSaysWhyAndCanBeKept(t *testing.T) {
	b := cluster.Get(t)
	namespace := b.Namespace(t)
	h := newHome(t)
	h.onCluster = true
	on := []string{"--kubeconfig", b.Kubeconfig, "--namespace", namespace}
	path := clusterFile(t, "deployment",
		"maxNumSeqs: {type: pow2, min: 8, max: 64}", "gpuMemoryUtilization: {type: categorical, values: [0.99]}",
		"    maxNumBatchedTokens: {type: pow2, min: 256, max: 4096}\n", "")
	h.must(append([]string{"autobench", "run", "-f", path, "--name", "demo", "--keep-failed", "1"}, on...)...)
	r := h.result("demo")
	trial := r.Templates[0].Trials[1]
	assert.Equal(t, "gpu_oom", trial.Reason, trial.Error)
	assert.Contains(t, h.must("autobench", "logs", "demo", "--trial", "graphs/1", "--pod").stdout, "out of memory")
	log := h.must("autobench", "logs", "demo").stdout
	assert.Contains(t, log, "the workload of trial graphs/1 is kept; remove it with: kubectl delete")
	left, err := b.Leftovers(t.Context(), namespace)
	require.NoError(t, err)
	assert.NotEmpty(t, left)
	h.must(append([]string{"autobench", "delete", "demo"}, on...)...)
}

func TestWhatTheClusterRefusesIsToldBeforeAnythingIsCreated(t *testing.T) {
	b := cluster.Get(t)
	namespace := b.Namespace(t)
	h := newHome(t)
	h.onCluster = true
	on := []string{"--kubeconfig", b.Kubeconfig, "--namespace", namespace}
	valid := h.must(append([]string{"autobench", "validate", "--cluster", "-f", clusterFile(t, "deployment")}, on...)...)
	assert.Contains(t, valid.stderr, "context bed, namespace "+namespace)
	for name, c := range map[string]struct {
		args []string
		edit []string
		want string
	}{
		"no cluster":          {[]string{"--server", "http://127.0.0.1:1"}, nil, "reach the cluster at http://127.0.0.1:1"},
		"no kubeconfig":       {[]string{"--kubeconfig", "/none"}, nil, "/none"},
		"wrong context":       {append([]string{"--context", "other"}, on...), nil, `context "other" does not exist`},
		"expired credentials": {[]string{"--kubeconfig", b.ExpiredKubeconfig(t, namespace), "--namespace", namespace}, nil, "nauthorized"},
		"no rights":           {[]string{"--kubeconfig", b.KubeconfigFor(t, namespace, nil), "--namespace", namespace}, nil, "deployments"},
		"no such namespace":   {[]string{"--kubeconfig", b.Kubeconfig, "--namespace", "none"}, nil, `"none" not found`},
		"no such kind":        {on, []string{"apiVersion: apps/v1\nkind: Deployment", "apiVersion: apps/v7\nkind: Deployment"}, "apps/v7"},
		"refused object":      {on, []string{"containerPort: 8000", "containerPort: 800000"}, "800000"},
	} {
		t.Run(name, func(t *testing.T) {
			path := clusterFile(t, "deployment")
			if c.edit != nil {
				rewrite(t, filepath.Join(filepath.Dir(path), "graphs.yaml"), c.edit...)
			}
			out := h.llmctl(append([]string{"autobench", "run", "-f", path, "--name", "demo"}, c.args...)...)
			assert.NotEqual(t, 0, out.code)
			assert.Contains(t, out.stderr, c.want)
			assert.NoDirExists(t, filepath.Join(h.dir, "demo"))
			assert.Equal(t, 1, bytes.Count([]byte(out.stderr), []byte("error:")), out.stderr)
		})
	}
}
