// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

func TestFactsOfContainers(t *testing.T) {
	rows := []struct {
		file, engine string
		options      Options
		want         []Container
	}{
		{file: "deployment", engine: "vllm", want: []Container{{
			Role: "default", Document: 2, Kind: "Deployment", Object: "chat", Name: "engine", Image: "vllm/vllm-openai:v0.26.0",
			Argv: words("vllm serve meta-llama/Llama-3.1-8B-Instruct --max_num_seqs 64 --enforce-eager --port 8000"),
			Env:  []EnvVar{{Name: "HF_TOKEN", From: "secretKeyRef hf token"}, {Name: "VLLM_LOGGING_LEVEL", Value: "INFO"}},
			Port: 8000, PortFrom: "argument", Model: "meta-llama/Llama-3.1-8B-Instruct", Served: []string{"meta-llama/Llama-3.1-8B-Instruct"},
		}}},
		{file: "statefulset-flow", engine: "sglang", want: []Container{{
			Role: "default", Document: 1, Kind: "StatefulSet", Object: "flow", Name: "engine", Image: "lmsysorg/sglang:v0.5.9",
			Argv: words("python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --mem-fraction-static=0.8 --disable-radix-cache --port 30000"),
			Port: 30000, PortFrom: "argument", Model: "Qwen/Qwen3-8B", Served: []string{"Qwen/Qwen3-8B"},
		}}},
		{file: "pod-entrypoint", engine: "vllm", want: []Container{{
			Role: "default", Document: 1, Kind: "Pod", Object: "bare", Name: "engine",
			Image: "registry.example:5000/mirror/vllm/vllm-openai@sha256:0123456789abcdef",
			Argv: []string{"vllm", "serve", "--model=org/model", "--served-model-name", "chat", "chat-large", "--compilation-config",
				"{\"cudagraph_mode\": \"NONE\"}\n", "--tensor-parallel-size=1"},
			Port: 8000, PortFrom: "default", Model: "org/model", Served: []string{"chat", "chat-large"},
		}}},
		{file: "script-literal", engine: "vllm", want: []Container{{
			Role: "default", Document: 1, Kind: "Deployment", Object: "script", Name: "engine", Image: "example/vllm:1",
			Argv: []string{"/bin/bash", "-c", "set -euo pipefail\nsource /opt/venv/bin/activate   # \"quotes\" stay\n\n" +
				"exec vllm serve \"$MODEL\" \\\n  --max-num-seqs 64 \\\n  --enforce-eager \\\n  --port 8000 2>&1 | tee /var/log/engine.log\n"},
			Env:  []EnvVar{{Name: "MODEL", Value: "org/model"}},
			Port: 8000, PortFrom: "argument", Model: "org/model", Served: []string{"org/model"},
		}}},
		{file: "env-args", engine: "vllm", want: []Container{{
			Role: "default", Document: 1, Kind: "Deployment", Object: "env-args", Name: "engine", Image: "vllm/vllm-openai:v0.26.0",
			Argv: words("vllm serve $(MODEL) $(SEQS) --port=$(PORT)"),
			Env:  []EnvVar{{Name: "MODEL", Value: "org/model"}, {Name: "SEQS", Value: "--max-num-seqs=64"}, {Name: "PORT", Value: "8123"}},
			Port: 8123, PortFrom: "argument", Model: "org/model", Served: []string{"org/model"},
		}}},
		{file: "leaderworkerset", engine: "sglang", want: []Container{{
			Role: "leader", Document: 1, Kind: "LeaderWorkerSet", Object: "big", Name: "leader", Image: "lmsysorg/sglang:latest",
			Argv: words("python3 -m sglang.launch_server --model-path org/big --tp 16 --nnodes $(LWS_GROUP_SIZE) --node-rank 0"),
			Port: 30000, PortFrom: "default", Model: "org/big", Served: []string{"org/big"},
		}, {
			Role: "worker", Document: 1, Kind: "LeaderWorkerSet", Object: "big", Name: "worker", Image: "lmsysorg/sglang:latest",
			Argv: words("python3 -m sglang.launch_server --model-path org/big --tp 16 --nnodes $(LWS_GROUP_SIZE) --node-rank $(LWS_WORKER_INDEX)"),
			Port: 30000, PortFrom: "default", Model: "org/big", Served: []string{"org/big"},
		}}},
		{file: "inferenceservice", engine: "vllm", want: []Container{{
			Role: "default", Document: 1, Kind: "InferenceService", Object: "isvc", Name: "kserve-container", Image: "vllm/vllm-openai:v0.26.0",
			Argv: words("vllm serve --model /mnt/models"),
			Port: 8000, PortFrom: "default", Model: "/mnt/models", Served: []string{"/mnt/models"},
		}}},
		{file: "custom", engine: "vllm", options: Options{PodTemplatePaths: []string{"spec.groups[].podTemplate"}}, want: []Container{{
			Role: "fast", Document: 1, Kind: "Fleet", Object: "fleet-", Name: "engine", Image: "x/y",
			Argv: words("vllm serve m"), Port: 8000, PortFrom: "default", Model: "m", Served: []string{"m"},
		}}},
		{file: "simulator", engine: "simulator", want: []Container{{
			Role: "default", Document: 1, Kind: "Deployment", Object: "sim", Name: "engine", Image: "example/llmctl:1",
			Argv: words("llmctl simulate --model sim-8b --time-scale 50 --max-num-seqs 16"),
			Port: 8000, PortFrom: "default", Model: "sim-8b", Served: []string{"sim-8b"},
		}}},
	}
	for _, row := range rows {
		t.Run(row.file, func(t *testing.T) {
			got, err := load(t, row.engine).Find(manifest(t, row.file), row.options)
			require.NoError(t, err)
			assert.Equal(t, row.want, got)
		})
	}
}

func TestRolesOfARoleBasedGroup(t *testing.T) {
	found, err := load(t, "sglang").Find(manifest(t, "rolebasedgroup-v1alpha2"), Options{})
	require.NoError(t, err)
	var roles []string
	for _, c := range found {
		roles = append(roles, c.Role+"/"+c.Name)
	}
	assert.Equal(t, []string{"prefill/sglang", "decode/sglang"}, roles)
}

// pod wraps containers, written as YAML in flow style, into a pod.
func podWith(containers ...string) string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n")
	for _, c := range containers {
		b.WriteString("  - " + c + "\n")
	}
	return b.String()
}

const vllmContainer = `{name: engine, image: x, command: [vllm, serve, m]}`

func TestCommandsThatAreRecognised(t *testing.T) {
	rows := []struct {
		name, engine, container string
		found                   bool
	}{
		{"program", "vllm", `{name: c, command: [vllm, serve, m]}`, true},
		{"program with a path", "vllm", `{name: c, command: [/opt/venv/bin/vllm], args: [serve, m]}`, true},
		{"module", "vllm", `{name: c, command: [python, -m, vllm.entrypoints.openai.api_server]}`, true},
		{"module with a path and options", "vllm", `{name: c, command: [/usr/bin/python3.12, -u, -X, dev, -m, vllm.entrypoints.openai.api_server]}`, true},
		{"program by its interpreter", "vllm", `{name: c, command: [python3, /usr/local/bin/vllm, serve, m]}`, true},
		{"launcher", "vllm", `{name: c, command: [nsys, profile, -o, x, vllm, serve, m]}`, true},
		{"all in args", "vllm", `{name: c, image: nvidia/cuda, args: [vllm, serve, m]}`, true},
		{"all in args of a script", "vllm", `{name: c, image: nvidia/cuda, args: [sh, -c, "vllm serve m"]}`, true},
		{"image", "vllm", `{name: c, image: vllm/vllm-openai, args: [--model, m]}`, true},
		{"image with the word serve", "vllm", `{name: c, image: vllm/vllm-openai, args: [serve, m]}`, true},
		{"image of a variant", "vllm", `{name: c, image: "r.example/rhaiis/vllm-cuda-rhel9:3", args: [--model, m]}`, true},
		{"image with a command of its own", "vllm", `{name: c, image: vllm/vllm-openai, command: [sleep, inf], args: [--model, m]}`, false},
		{"another image", "vllm", `{name: c, image: example/not-vllm-openai, args: [--model, m]}`, false},
		{"another subcommand", "vllm", `{name: c, command: [vllm, bench, serve]}`, false},
		{"another program", "vllm", `{name: c, command: [myvllm, serve]}`, false},
		{"another module", "vllm", `{name: c, command: [python3, -m, vllm.entrypoints.cli]}`, false},
		{"words that only mention it", "vllm", `{name: c, command: [echo, vllm, serve]}`, false},
		{"sglang program", "sglang", `{name: c, command: [sglang, serve, --model-path, m]}`, true},
		{"sglang module", "sglang", `{name: c, command: [python3, -m, sglang.launch_server]}`, true},
		{"sglang image", "sglang", `{name: c, image: "lmsysorg/sglang:v0.5.9-cu124", args: [--model-path, m]}`, true},
		{"sglang image with a whole command", "sglang", `{name: c, image: lmsysorg/sglang, args: [python3, -m, sglang.launch_server]}`, true},
		{"sglang router", "sglang", `{name: c, image: lmsysorg/sglang-router, command: [python3, -m, sglang_router.launch_router]}`, false},
		{"vllm is no sglang", "sglang", vllmContainer, false},
		{"simulator", "simulator", `{name: c, command: [/usr/bin/llmctl, simulate, m]}`, true},
		{"simulator with the word serve", "simulator", `{name: c, command: [llmctl, simulate, serve, m]}`, true},
		{"the tool itself", "simulator", `{name: c, command: [llmctl, autobench, run]}`, false},
		{"vllm is no simulator", "simulator", vllmContainer, false},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			_, err := load(t, row.engine).Find([]byte(podWith(row.container)), Options{})
			if row.found {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, "no container runs "+row.engine)
			}
		})
	}
}

func TestPortOfAContainer(t *testing.T) {
	rows := []struct {
		name, rest string
		port       int
		from       string
	}{
		{"argument", `args: [--port, "9000"], ports: [{containerPort: 8000}]`, 9000, "argument"},
		{"last argument", `args: [--port, "9000", --port=9001]`, 9001, "argument"},
		{"variable", `args: [--port, $(P)], env: [{name: P, value: "9002"}]`, 9002, "argument"},
		{"unseen variable", `args: [--port, $(P)], env: [{name: P, valueFrom: {fieldRef: {fieldPath: x}}}], ports: [{containerPort: 7000}]`, 7000, "container port"},
		{"declared default port", `ports: [{name: metrics, containerPort: 9090}, {containerPort: 8000}]`, 8000, "container port"},
		{"declared port with a name", `ports: [{name: metrics, containerPort: 9090}, {name: http, containerPort: 8080}]`, 8080, "container port"},
		{"first declared port", `ports: [{name: a, containerPort: 9090}, {name: b, containerPort: 9091}]`, 9090, "container port"},
		{"default", `workingDir: /w`, 8000, "default"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			found, err := load(t, "vllm").Find([]byte(podWith(`{name: c, command: [vllm, serve, m], `+row.rest+`}`)), Options{})
			require.NoError(t, err)
			assert.Equal(t, row.port, found[0].Port)
			assert.Equal(t, row.from, found[0].PortFrom)
		})
	}
}

func TestTroubleWithManifests(t *testing.T) {
	rbg := string(manifest(t, "rolebasedgroup-v1alpha2"))
	rows := []struct {
		name, engine string // default vllm
		text         string
		params       []string // default maxNumSeqs=256
		options      Options
		want         string
	}{
		{name: "nothing", text: "\n# only a comment\n---\n", want: "the manifest is empty"},
		{name: "no YAML", text: podWith(vllmContainer) + "---\na: [\n", want: "document 2: line 8: did not find expected node content"},
		{name: "no objects", text: "a: 1\n---\n- b\n---\n" + podWith(vllmContainer) + "---\napiVersion: v1\nkind: Secret\n", want: "document 1: is not a Kubernetes object: it needs apiVersion and kind\n" +
			"document 2: is not a Kubernetes object: it is no mapping\ndocument 4: secret: is not a Kubernetes object: it needs metadata.name"},
		{name: "list", text: "apiVersion: v1\nkind: List\nitems: []\n", want: "document 1: List holds several objects: write each as a document of its own"},
		{name: "no engine", text: podWith(`{name: a, image: nginx}`, `{name: b, command: [sh, -c, "exec nginx -g 'daemon off;' -c /etc/x"]}`),
			want: `no container runs vllm; seen: pod/p container "a" runs the image nginx; pod/p container "b" runs "sh -c exec nginx …"`},
		{name: "secrets are not quoted", text: podWith(`{name: a, command: [proxy, --api-key, sk-123]}`), want: `no container runs vllm; seen: pod/p container "a" runs "proxy --api-key …"`},
		{name: "no pod template", text: "apiVersion: example.com/v1\nkind: Fleet\nmetadata: {name: f}\n", want: "no container runs vllm: no pod template found in fleet/f; name its path in podTemplatePaths"},
		{name: "script file", text: podWith(`{name: a, command: [bash, /start.sh, vllm]}`),
			want: `no container runs vllm; seen: pod/p container "a" runs "bash /start.sh vllm": cannot be edited safely: it runs a script file, which may start the engine; ` + advice},
		{name: "script file of the engine's image", text: podWith(`{name: a, image: vllm/vllm-openai, command: [bash, /start.sh]}`),
			want: `pod/p container "a": cannot be edited safely: it runs a script file, which may start the engine; ` + advice},
		{name: "loop", text: podWith(`{name: a, command: [bash, -c, "while :; do vllm serve m; done"]}`),
			want: `pod/p container "a": cannot be edited safely: the script in command[2] starts the engine in a loop; ` + advice},
		{name: "two engines in a pod", text: podWith(vllmContainer, `{name: other, command: [vllm, serve, n]}`), want: `pod/p: two containers run vllm, "engine" and "other": there must be one`},
		{name: "init container", text: podWith(`{name: a, image: nginx}`) + "  initContainers:\n  - " + vllmContainer + "\n", want: `no container runs vllm; seen: pod/p container "a" runs the image nginx`},
		{name: "parameter", text: podWith(vllmContainer), params: []string{"maxNumSeqs=x", "env:=1", "nothing=1"},
			want: "pod/p container \"engine\": env:: \"\" is not a name of an environment variable\n" +
				"pod/p container \"engine\": maxNumSeqs: the value must be an integer ≥ 1, is the text \"x\"\n" +
				"pod/p container \"engine\": nothing: the engine has no such parameter; any flag can be named as it is, such as \"--max-num-seqs\""},
		{name: "role of a manifest without roles", text: podWith(vllmContainer), params: []string{"decode/maxNumSeqs=1"}, want: `role "decode": the manifest has no roles; use "default"`},
		{name: "role that is not there", engine: "sglang", text: rbg, params: []string{"decoder/maxNumSeqs=1"}, want: `role "decoder": the manifest has only router, prefill, decode`},
		{name: "role without an engine", engine: "sglang", text: rbg, params: []string{"router/maxNumSeqs=1"}, want: `role "router": has no container of its own that runs the engine`},
		{name: "all roles excluded", engine: "sglang", text: rbg, options: Options{ExcludeDefaultRoles: []string{"prefill", "decode"}},
			want: `role "default": excludeDefaultRoles leaves no role that runs the engine`},
		{name: "errors name the role", engine: "sglang", text: rbg, params: []string{"decode/maxNumSeqs=0"}, want: `rolebasedgroup/pd role "decode" container "sglang": maxNumSeqs: the value must be an integer ≥ 1, is 0`},
		{name: "variable from a reference", text: podWith(`{name: e, command: [vllm, serve, m], env: [{name: A, valueFrom: {}}]}`), params: []string{"env:A=1"},
			want: `pod/p container "e": env:A: the manifest takes its value from a reference, which a parameter cannot replace`},
		{name: "variable used elsewhere too", text: podWith(`{name: e, command: [vllm, serve, m, $(A)], env: [{name: A, value: --max-num-seqs=1}, {name: B, value: x$(A)}]}`),
			want: `pod/p container "e": maxNumSeqs: the variable A in command[3] holds the flag, and the variable is used elsewhere too: write the flag on the engine's own command line`},
		{name: "one word from a variable", text: podWith(`{name: e, command: [vllm, serve, m, $(A)], env: [{name: A, value: --max-num-seqs 1 --enforce-eager}]}`),
			want: `pod/p container "e": maxNumSeqs: the variable A in command[3]: "--max-num-seqs 1 --enforce-eager" is one word, which the engine does not read as a flag: write flag and value as two words`},
		{name: "variable from a reference as argument", text: podWith(`{name: e, command: [vllm, serve, m, $(A)], env: [{name: A, valueFrom: {configMapKeyRef: {name: c, key: k}}}]}`),
			want: `pod/p container "e": maxNumSeqs: command[3] may hold --max-num-seqs, and what it holds cannot be seen: write the engine's flags out`},
		{name: "a patch that replaces the arguments", engine: "sglang", text: strings.Replace(rbg, "      leaderTemplatePatch:\n", "      leaderTemplatePatch:\n        spec: {containers: [{name: sglang, args: [--model-path, other]}]}\n", 1),
			want: `rolebasedgroup/pd role "decode" container "sglang": cannot be edited safely: the patch spec.roles[].leaderWorkerPattern.leaderTemplatePatch replaces a part of the engine's command line; ` + advice},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			engine, settings := row.engine, row.params
			if engine == "" {
				engine = "vllm"
			}
			if settings == nil {
				settings = []string{"maxNumSeqs=256"}
			}
			_, err := load(t, engine).Render([]byte(row.text), params(settings...), row.options)
			require.Error(t, err)
			assert.Equal(t, row.want, err.Error())
		})
	}
}

func TestAliasesThatExplodeAreRefused(t *testing.T) {
	var b strings.Builder
	b.WriteString("a: &a [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 'b'; i <= 'h'; i++ {
		b.WriteString(string(i) + ": &" + string(i) + " [" + strings.TrimSuffix(strings.Repeat("*"+string(i-1)+", ", 10), ", ") + "]\n")
	}
	_, err := load(t, "vllm").Find([]byte(b.String()), Options{})
	assert.EqualError(t, err, "document 1: aliases expand to too much")
}

func TestTwoHundredRenderingsAreOne(t *testing.T) {
	e := load(t, "vllm")
	p := params("maxNumSeqs=256", "gpuMemoryUtilization=0.9", "maxNumBatchedTokens=512", "enforceEager=true", `compilationConfig={"b":1,"a":{"d":1,"c":2}}`, "env:B=1", "env:A=2")
	first, err := e.Render(manifest(t, "deployment"), p, Options{})
	require.NoError(t, err)
	for range 200 {
		got, err := e.Render(manifest(t, "deployment"), p, Options{})
		require.NoError(t, err)
		require.True(t, bytes.Equal(first, got))
	}
}

func TestWarnings(t *testing.T) {
	rows := []struct {
		name, container string
		params          []string
		want            []string
	}{
		{name: "nothing to say", container: `{name: e, command: [vllm, serve, m, --enforce-eager, --port, "1"]}`},
		{name: "F20 removed flag", container: `{name: e, command: [vllm, serve, m, --disable_log_requests]}`,
			want: []string{`command[3]: --disable_log_requests is gone from newer versions of vllm: requests are not logged unless --enable-log-requests is given; drop the flag`}},
		{name: "removed flag as parameter", container: `{name: e, command: [vllm, serve, m]}`, params: []string{"--num-scheduler-steps=8"},
			want: []string{`--num-scheduler-steps is gone from newer versions of vllm: multi-step decoding is gone; drop the flag`}},
		{name: "F4 one word", container: `{name: e, command: [vllm, serve, m, "--quantization awq"]}`,
			want: []string{`command[3]: "--quantization awq" is one word, which the engine does not read as a flag: write flag and value as two words`}},
		{name: "one word with a secret", container: `{name: e, command: [vllm, serve, m, "--api-key sk-123"]}`,
			want: []string{`command[3]: "--api-key …" is one word, which the engine does not read as a flag: write flag and value as two words`}},
		{name: "switch with a value", container: `{name: e, command: [vllm, serve, m, --enforce-eager, "False", --async-scheduling=true]}`,
			want: []string{`command[3]: --enforce-eager is a switch: the engine does not read "False" as its value`, `command[5]: --async-scheduling=true is a switch and takes no value`}},
		{name: "lost arguments", container: `{name: e, command: [sh, -c, vllm serve m], args: [--max-num-seqs, "64"]}`,
			want: []string{`args[0]: "--max-num-seqs" does not reach the engine: the shell keeps what follows its script`}},
		{name: "config file", container: `{name: e, command: [vllm, serve, m, --config, x.yaml]}`,
			want: []string{`command[3]: the arguments in the file of --config are not seen; parameters override them, but cannot turn a switch off there`}},
		{name: "ambiguous flag", container: `{name: e, command: [vllm, serve, m, --max-lo, "8"]}`,
			want: []string{`command[3]: --max-lo is ambiguous: it may be --max-log-len or --max-logprobs or --max-lora-rank or --max-loras`}},
		{name: "value that is not known", container: `{name: e, command: [vllm, serve, m]}`, params: []string{"attentionBackend=FLASH"},
			want: []string{`attentionBackend: "FLASH" is not among the known values: auto, FLASH_ATTN, FLASHINFER, TRITON_ATTN, FLEX_ATTENTION, FLASHMLA, CUTLASS_MLA, FLASHINFER_MLA, TRITON_MLA, FLASH_ATTN_MLA, ROCM_*`}},
		{name: "parameter that does nothing", container: `{name: e, command: [vllm, serve, m, --kv-cache-memory-bytes, 8g]}`, params: []string{"gpuMemoryUtilization=0.9"},
			want: []string{`gpuMemoryUtilization has no effect: the template has --kv-cache-memory-bytes, which overrides it`}},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			got, err := load(t, "vllm").Check([]byte(podWith(row.container)), []experiment.Params{params(row.params...)}, Options{})
			require.NoError(t, err)
			var want []string
			for _, w := range row.want {
				want = append(want, `pod/p container "e": `+w)
			}
			assert.Equal(t, want, got)
		})
	}
}

func TestCheckReportsEachErrorOnce(t *testing.T) {
	corners := []experiment.Params{params("maxNumSeqs=0", "dtype=x"), params("maxNumSeqs=0"), params("maxNumSeqs=1"), params("gpuMemoryUtilization=2")}
	_, err := load(t, "vllm").Check([]byte(podWith(vllmContainer)), corners, Options{})
	assert.EqualError(t, err, `pod/p container "engine": dtype: the value must be one of auto, half, float16, bfloat16, float, float32, is the text "x"
pod/p container "engine": maxNumSeqs: the value must be an integer ≥ 1, is 0
pod/p container "engine": gpuMemoryUtilization: the value must be a number > 0 ≤ 1, is 2`)
}
