// SPDX-License-Identifier: Apache-2.0

package engine

import (
	goflag "flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

var update = goflag.Bool("update", false, "write the golden files")

func manifest(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
	require.NoError(t, err)
	return data
}

// params reads settings such as "maxNumSeqs=256" for role default and
// "decode/maxNumSeqs=256" for another.
func params(settings ...string) experiment.Params {
	p := experiment.Params{}
	for _, s := range settings {
		role, setting, ok := strings.Cut(s, "/")
		if !ok || strings.Contains(role, "=") {
			role, setting = experiment.DefaultRole, s
		}
		for name, v := range values(setting) {
			if p[role] == nil {
				p[role] = map[string]experiment.Value{}
			}
			p[role][name] = v
		}
	}
	return p
}

func TestRenderedManifests(t *testing.T) {
	rows := []struct {
		golden, file, engine string
		params               []string
		options              Options
	}{
		{golden: "deployment", file: "deployment", engine: "vllm",
			params: []string{"maxNumSeqs=256", "enforceEager=false", "gpuMemoryUtilization=0.9", `compilationConfig={"cudagraph_mode":"FULL"}`}},
		{golden: "deployment-env", file: "deployment", engine: "vllm",
			params: []string{"env:VLLM_LOGGING_LEVEL=DEBUG", "env:VLLM_USE_V1=1", "env:A=x y: z"}},
		{golden: "statefulset-flow", file: "statefulset-flow", engine: "sglang",
			params: []string{"gpuMemoryUtilization=0.9", "enablePrefixCaching=true", "maxNumSeqs=256", "chunkedPrefillSize=-1"}},
		{golden: "pod-entrypoint", file: "pod-entrypoint", engine: "vllm",
			params: []string{"compilationConfig.mode=3", "tensorParallelSize=2", "env:X=1"}},
		{golden: "pod-noargs", file: "pod-noargs", engine: "vllm", params: []string{"maxNumSeqs=256", "env:X=1"}},
		{golden: "script-literal", file: "script-literal", engine: "vllm",
			params: []string{"maxNumSeqs=256", "enforceEager=false", `speculativeConfig={"method":"ngram"}`}},
		{golden: "script-folded", file: "script-folded", engine: "vllm", params: []string{"maxNumSeqs=256", "enforceEager=false", "blockSize=32"}},
		{golden: "script-quoted", file: "script-quoted", engine: "vllm", params: []string{"maxNumSeqs=256", `compilationConfig={"mode":3}`}},
		{golden: "env-args", file: "env-args", engine: "vllm", params: []string{"maxNumSeqs=256", "blockSize=32"}},
		{golden: "leaderworkerset", file: "leaderworkerset", engine: "sglang", params: []string{"maxNumSeqs=256", "leader/tensorParallelSize=8"}},
		{golden: "rolebasedgroup-v1alpha2", file: "rolebasedgroup-v1alpha2", engine: "sglang",
			params:  []string{"maxNumSeqs=256", "decode/maxNumSeqs=1024", "decode/enableMixedChunk=true"},
			options: Options{ExcludeDefaultRoles: []string{"router"}}},
		{golden: "rolebasedgroup-excluded", file: "rolebasedgroup-v1alpha2", engine: "sglang",
			params:  []string{"maxNumSeqs=256", "decode/tensorParallelSize=2"},
			options: Options{ExcludeDefaultRoles: []string{"router", "decode"}}},
		{golden: "rolebasedgroup-v1alpha1", file: "rolebasedgroup-v1alpha1", engine: "sglang", params: []string{"maxNumSeqs=256"}},
		{golden: "inferenceservice", file: "inferenceservice", engine: "vllm", params: []string{"maxNumSeqs=256"}},
		{golden: "aliases", file: "aliases", engine: "vllm", params: []string{"maxNumSeqs=256"}},
		{golden: "crlf", file: "crlf", engine: "vllm", params: []string{"maxNumSeqs=256", "enforceEager=false"}},
		{golden: "custom", file: "custom", engine: "vllm", params: []string{"maxNumSeqs=256"},
			options: Options{PodTemplatePaths: []string{"{.spec.groups[*].podTemplate}"}}},
		{golden: "simulator", file: "simulator", engine: "simulator", params: []string{"maxNumSeqs=256", "maxNumBatchedTokens=512"}},
	}
	for _, row := range rows {
		t.Run(row.golden, func(t *testing.T) {
			e := load(t, row.engine)
			before := manifest(t, row.file)
			got, err := e.Render(before, params(row.params...), row.options)
			require.NoError(t, err)
			path := filepath.Join("testdata", "golden", row.golden+".yaml")
			if *update {
				require.NoError(t, os.WriteFile(path, got, 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, string(want), string(got))

			again, err := e.Render(got, params(row.params...), row.options)
			require.NoError(t, err)
			assert.Equal(t, string(got), string(again), "rendering twice changes nothing more")
			same, err := e.Render(before, experiment.Params{"default": {}}, row.options)
			require.NoError(t, err)
			assert.Equal(t, string(before), string(same), "no parameters, no change")
		})
	}
}
