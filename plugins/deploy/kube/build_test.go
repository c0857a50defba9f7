// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/engine"
)

var update = flag.Bool("update", false, "write the golden files anew")

func builder(t *testing.T) *Deployer {
	d := newDeployer(t)
	var err error
	d.Engine, err = engine.Load("vllm")
	require.NoError(t, err)
	return d
}

func build(t *testing.T, d *Deployer, manifest string, foreign ...labels.Set) *trial {
	t.Helper()
	built, err := d.build(experiment.Plan{Template: "small", Index: 3, Name: "chat-small-01234567-3", Manifest: []byte(manifest)}, foreign)
	require.NoError(t, err)
	return built
}

func TestATemplateBecomesTheObjectsOfATrial(t *testing.T) {
	files, err := filepath.Glob("testdata/build/*.yaml")
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, ".golden.yaml") {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			manifest, err := os.ReadFile(file)
			require.NoError(t, err)
			built := build(t, builder(t), string(manifest))
			var out strings.Builder
			for _, u := range built.objects {
				data, err := yaml.Marshal(u.Object)
				require.NoError(t, err)
				out.WriteString("---\n" + string(data))
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".golden.yaml"
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(out.String()), 0o600))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			assert.Equal(t, string(want), out.String())
			again := build(t, builder(t), string(manifest))
			assert.Equal(t, built.objects, again.objects, "equal input gives equal objects")
		})
	}
}

// at is a value of a trial's object, by kind/name of the template.
func at(t *testing.T, built *trial, object, path string) any {
	t.Helper()
	for _, u := range built.objects {
		if strings.ToLower(u.GetKind())+"/"+u.GetAnnotations()[annotationObject] == object {
			found := values(u.Object, path)
			require.Len(t, found, 1, "%s in %v", path, u.Object)
			return found[0]
		}
	}
	require.Fail(t, "no object "+object)
	return nil
}

func TestReferencesOfCustomKindsFollowTheNames(t *testing.T) {
	config := "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: cfg}\n"
	pod := `{spec: {containers: [{name: e, command: [vllm, serve, m], envFrom: [{configMapRef: {name: cfg}}]}]}}`
	for _, c := range []struct{ manifest, object, path string }{
		{"apiVersion: workloads.x-k8s.io/v1alpha2\nkind: RoleBasedGroup\nmetadata: {name: llm}\nspec: {roles: [{name: r, standalonePattern: {template: " + pod + "}}]}\n",
			"rolebasedgroup/llm", "spec.roles[].standalonePattern.template.spec.containers[].envFrom[].configMapRef.name"},
		{"apiVersion: workloads.x-k8s.io/v1alpha1\nkind: RoleBasedGroup\nmetadata: {name: llm}\nspec: {roles: [{name: r, template: " + pod + "}]}\n",
			"rolebasedgroup/llm", "spec.roles[].template.spec.containers[].envFrom[].configMapRef.name"},
		{"apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: llm}\nspec: {leaderWorkerTemplate: {workerTemplate: " + pod + "}}\n",
			"leaderworkerset/llm", "spec.leaderWorkerTemplate.workerTemplate.spec.containers[].envFrom[].configMapRef.name"},
		{"apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: llm}\nspec: {predictor: {containers: [{name: e, command: [vllm, serve, m], envFrom: [{configMapRef: {name: cfg}}]}]}}\n",
			"inferenceservice/llm", "spec.predictor.containers[].envFrom[].configMapRef.name"},
		{"apiVersion: x.example/v1\nkind: Farm\nmetadata: {name: llm}\nspec: {workers: [{template: " + pod + "}]}\n",
			"farm/llm", "spec.workers[].template.spec.containers[].envFrom[].configMapRef.name"},
	} {
		t.Run(c.object, func(t *testing.T) {
			d := builder(t)
			d.Options.PodTemplatePaths = []string{"spec.workers[].template"}
			built := build(t, d, c.manifest+config)
			assert.Equal(t, "chat-small-01234567-3-cfg", at(t, built, c.object, c.path))
			for _, u := range built.workloads() {
				for _, m := range podLabels(u, built.kinds, false) {
					assert.Equal(t, "id-1", m[LabelExperimentID], "the pods have the trial's labels")
				}
				assert.NotEmpty(t, podLabels(u, built.kinds, false))
			}
		})
	}
}

func TestATrialsServiceFindsOnlyTheTrialsPods(t *testing.T) {
	for _, c := range []struct{ name, manifest, service string }{
		{"labels that a controller gives", templates["LeaderWorkerSet"], "service/llm"},
		{"labels of the template", templates["StatefulSet"], "service/llm-pods"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDeployer(t)
			selector, ok := at(t, build(t, d, c.manifest), c.service, "spec.selector").(map[string]any)
			require.True(t, ok)
			assert.Equal(t, "chat-small-01234567-3", selector[LabelTrial])
			assert.NotContains(t, selector, "llm")
			for key, value := range selector {
				assert.NotEqual(t, "llm", value, key)
			}
		})
	}
}

func TestAServiceInUseDoesNotFindTheTrialsPods(t *testing.T) {
	manifest := strings.Replace(templates["RoleBasedGroup of v1alpha1"], "{app: llm}", "{app: llm, tier: gpu, zone: a, app.kubernetes.io/part-of: chat}", 1)
	foreign := []labels.Set{{"tier": "gpu"}, {"zone": "b"}, {"app.kubernetes.io/part-of": "chat", "zone": "a"}, {}}
	built := build(t, newDeployer(t), manifest, foreign...)
	assert.Equal(t, map[string]any{
		"app": "chat-small-01234567-3", "tier": "chat-small-01234567-3-gpu", "zone": "chat-small-01234567-3-a",
		"app.kubernetes.io/part-of": "chat-small-01234567-3-chat",
		LabelExperimentID:           "id-1", LabelTemplate: "small", LabelTrial: "chat-small-01234567-3",
	}, at(t, built, "rolebasedgroup/llm", "spec.roles[].template.metadata.labels"))
	built = build(t, newDeployer(t), manifest)
	assert.Equal(t, "gpu", at(t, built, "rolebasedgroup/llm", "spec.roles[].template.metadata.labels.tier"), "labels that nothing selects by stay")
}

func TestNamesAreShortDistinctAndKeepTheTrialsNumber(t *testing.T) {
	n := naming{main: "llm", trial: "a-long-experiment-name-0123-89e0bdaa-123", taken: map[string]bool{"llm-token": true, "llm-decode": true}}
	require.Len(t, n.trial, 40)
	seen := map[string]string{}
	for _, name := range []string{"llm", "llm-prefill", "llm-decode", "decode", "token", "llm-token", "Upper_Case", "upper-case", "70b-llm",
		strings.Repeat("x", 253), strings.Repeat("x", 252)} {
		for _, longest := range []int{maxName, maxLabel} {
			got := n.of(name, longest)
			assert.LessOrEqual(t, len(got), longest)
			assert.Regexp(t, `^[a-z][a-z0-9-]*[a-z0-9]$`, got)
			assert.Contains(t, got, "-123", "%s", name)
			old, known := seen[got]
			assert.True(t, !known || old == name, "%s and %s are both %s", old, name, got)
			seen[got] = name
		}
	}
	assert.Equal(t, n.trial, n.of("llm", maxName))
	assert.Equal(t, n.trial+"-token", n.of("llm-token", maxLabel))
}

func TestLabelValuesAreValidAndDistinct(t *testing.T) {
	for text, want := range map[string]string{
		"small": "small", "a/b": "a-b-c14cddc0", "a b": "a-b-c8687a08", "_x": "x-a01e47cb",
		strings.Repeat("x", 70): strings.Repeat("x", 54) + "-c71bd109",
	} {
		got := labelValue(text)
		assert.Regexp(t, `^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`, got)
		assert.LessOrEqual(t, len(got), 63)
		assert.Equal(t, want, got)
	}
}

func TestAManifestThatCannotBeDeployedIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ manifest, message string }{
		"two containers run the engine": {strings.Replace(templates["Pod"], "containers:", "containers:\n  - {name: other, command: [llmctl, simulate, --model=m]}", 1), "two containers run"},
		"the same object twice":         {templates["Pod"] + "---\n" + templates["Pod"], "already registered"},
		"no engine":                     {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "no container runs"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newDeployer(t).build(experiment.Plan{Name: "x-0", Manifest: []byte(c.manifest)}, nil)
			assert.ErrorContains(t, err, c.message)
		})
	}
}

func TestHostsOfTheTemplatesServicesAreThoseOfTheTrial(t *testing.T) {
	h := hosts{
		services:  map[string]bool{"llm": true, "llm-pods": true},
		names:     map[string]string{"llm": "t-0", "llm-pods": "t-0-pods", "cfg": "t-0-cfg"},
		namespace: "bench",
	}
	for text, want := range map[string]string{
		"http://llm":                           "http://t-0",
		"http://llm:8000/v1":                   "http://t-0:8000/v1",
		"--url=llm:8000":                       "--url=t-0:8000",
		"llm.production.svc":                   "t-0.bench.svc",
		"http://llm.production/v1":             "http://t-0.bench/v1",
		"llm.p.svc.cluster.local:1":            "t-0.bench.svc.cluster.local:1",
		"llm-0.llm-pods:5000,llm-1.llm-pods.p": "t-0-0.t-0-pods:5000,t-0-1.t-0-pods.bench",
		"upstream { server llm:80; }":          "upstream { server t-0:80; }",
		"llm":                                  "llm",
		"--served-model-name llm":              "--served-model-name llm",
		"/models/llm":                          "/models/llm",
		"my-llm:8000":                          "my-llm:8000",
		"http://llm-other:8000":                "http://llm-other:8000",
		"cfg:8000":                             "cfg:8000",
		"http://llm.example.com":               "http://llm.example.com",
		"org/llm:v1":                           "org/llm:v1",
	} {
		assert.Equal(t, want, h.change(text))
	}
}
