// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/llmctl/llmctl/experiment"
)

// engines are loaded once for all tests; nothing changes them.
var engines = map[string]func() (*Engine, error){
	"vllm":      sync.OnceValues(func() (*Engine, error) { return Load("vllm") }),
	"sglang":    sync.OnceValues(func() (*Engine, error) { return Load("sglang") }),
	"simulator": sync.OnceValues(func() (*Engine, error) { return Load("simulator") }),
}

func load(t testing.TB, name string) *Engine {
	t.Helper()
	e, err := engines[name]()
	require.NoError(t, err)
	return e
}

// overlay sets parameters on a plain command line.
func overlay(e *Engine, argv []string, params map[string]experiment.Value) ([]string, error) {
	inv, err := e.locate(commandLine{argv: argv, command: len(argv)})
	if err != nil {
		return nil, err
	}
	settings, _, err := e.grammar.settings(params)
	if err != nil {
		return nil, err
	}
	changes, err := e.grammar.edit(inv.words, inv.positional, settings)
	if err != nil {
		return nil, err
	}
	plan, err := inv.plan(changes, nil)
	if err != nil {
		return nil, err
	}
	_, out := plan.list(argv, inv.script)
	return out, nil
}

// values reads "name=value" pairs as an experiment file would: numbers and
// booleans are recognised, 'x' is text.
func values(pairs ...string) map[string]experiment.Value {
	params := map[string]experiment.Value{}
	for _, pair := range pairs {
		name, text, _ := strings.Cut(pair, "=")
		var v experiment.Value
		if quoted, ok := strings.CutPrefix(text, "'"); ok {
			v = experiment.String(strings.TrimSuffix(quoted, "'"))
		} else if err := v.UnmarshalJSON([]byte(text)); err != nil {
			v = experiment.String(text)
		}
		params[name] = v
	}
	return params
}

// A row is a command line, the parameters, and the command line that must come
// out, or the error. Words are separated by blanks; a word with a blank or a
// quote stands between backquotes.
type argvRow struct {
	name   string
	argv   string
	params []string
	want   string
	err    string
}

func words(line string) []string {
	var out []string
	for i, part := range strings.Split(line, "`") {
		if i%2 == 1 {
			out = append(out, part)
		} else {
			out = append(out, strings.Fields(part)...)
		}
	}
	return out
}

func runArgvRows(t *testing.T, engine string, rows []argvRow) {
	e := load(t, engine)
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			got, err := overlay(e, words(row.argv), values(row.params...))
			if row.err != "" {
				require.Error(t, err)
				assert.Equal(t, row.err, err.Error())
				return
			}
			require.NoError(t, err)
			want := row.want
			if want == "" {
				want = row.argv
			}
			assert.Equal(t, words(want), got)
			again, err := overlay(e, got, values(row.params...))
			require.NoError(t, err)
			assert.Equal(t, got, again, "a second time changes nothing")
		})
	}
}

func TestVLLMArguments(t *testing.T) {
	seqs := []string{"maxNumSeqs=256"}
	runArgvRows(t, "vllm", []argvRow{
		{name: "new flag goes behind the engine's own", argv: "vllm serve m --port 8000", params: seqs, want: "vllm serve m --port 8000 --max-num-seqs 256"},
		{name: "value in its own word", argv: "vllm serve m --max-num-seqs 64 --port 8000", params: seqs, want: "vllm serve m --max-num-seqs 256 --port 8000"},
		{name: "value behind =", argv: "vllm serve m --max-num-seqs=64 --port 8000", params: seqs, want: "vllm serve m --max-num-seqs=256 --port 8000"},
		{name: "F3 underscores", argv: "vllm serve m --max_num_seqs 64", params: seqs, want: "vllm serve m --max_num_seqs 256"},
		{name: "underscores and =", argv: "vllm serve m --max_num-seqs=64", params: seqs, want: "vllm serve m --max_num-seqs=256"},
		{name: "unique abbreviation", argv: "vllm serve m --max-num-se 64", params: seqs, want: "vllm serve m --max-num-se 256"},
		{name: "abbreviation with =", argv: "vllm serve m --max_num_se=64", params: seqs, want: "vllm serve m --max_num_se=256"},
		{name: "abbreviation of several flags", argv: "vllm serve m --max-num 64", params: seqs,
			err: "maxNumSeqs: command[3]: --max-num is ambiguous: it may be --max-num-batched-tokens or --max-num-scheduled-tokens or --max-num-seqs"},
		{name: "duplicates go, the first place stays", argv: "vllm serve m --max-num-seqs 1 --port 1 --max_num_seqs=2 --max-num-se 3", params: seqs, want: "vllm serve m --max-num-seqs 256 --port 1"},
		{name: "short alias", argv: "vllm serve m -tp 2", params: []string{"tensorParallelSize=4"}, want: "vllm serve m -tp 4"},
		{name: "short alias with =", argv: "vllm serve m -tp=2", params: []string{"tensorParallel=4"}, want: "vllm serve m -tp=4"},
		{name: "short alias and long flag", argv: "vllm serve m --tensor-parallel-size 1 -tp 2", params: []string{"tensorParallelSize=4"}, want: "vllm serve m --tensor-parallel-size 4"},
		{name: "value attached to a flag of one letter", argv: "vllm serve m -qawq", params: []string{"quantization=fp8"}, want: "vllm serve m -qfp8"},
		{name: "optimization level attached", argv: "vllm serve m -O3", params: []string{"optimizationLevel=1"}, want: "vllm serve m -O1"},
		{name: "optimization level behind =", argv: "vllm serve m -O=3", params: []string{"optimizationLevel=1"}, want: "vllm serve m -O=1"},
		{name: "the value may look like the flag's neighbour", argv: "vllm serve --max-num-seqs --port 8000", params: seqs, want: "vllm serve --max-num-seqs 256 --port 8000"},
		{name: "flag without value at the end", argv: "vllm serve m --max-num-seqs", params: seqs, want: "vllm serve m --max-num-seqs 256"},
		{name: "what another flag takes as its value is no flag", argv: "vllm serve m --chat-template `--max-num-seqs 64`", params: seqs, want: "vllm serve m --chat-template `--max-num-seqs 64` --max-num-seqs 256"},
		{name: "options end at --", argv: "vllm serve m -- --max-num-seqs 64", params: seqs, want: "vllm serve m --max-num-seqs 256 -- --max-num-seqs 64"},
		{name: "F4 flag and value in one word", argv: "vllm serve m `--max-num-seqs 64`", params: seqs,
			err: "maxNumSeqs: command[3]: \"--max-num-seqs 64\" is one word, which the engine does not read as a flag: write flag and value as two words"},
		{name: "one word with two flags", argv: "vllm serve m `--port 1 --max-num-seqs=64`", params: seqs,
			err: "maxNumSeqs: command[3]: \"--port 1 --max-num-seqs=64\" is one word, which the engine does not read as a flag: write flag and value as two words"},
		{name: "one word that swallows another flag", argv: "vllm serve m `--max-num-seqs=64 --port 1`", params: seqs,
			err: "maxNumSeqs: command[3]: \"--max-num-seqs=64 --port 1\" is one word and no number: write each flag and value as a word of its own"},
		{name: "unrelated one-word flags do not matter", argv: "vllm serve m `--quantization awq`", params: seqs, want: "vllm serve m `--quantization awq` --max-num-seqs 256"},
		{name: "F15 flags never stand before the positional model", argv: "vllm serve m --port 8000", params: []string{"maxNumSeqs=256", "gpuMemoryUtilization=0.9"},
			want: "vllm serve m --port 8000 --gpu-memory-utilization 0.9 --max-num-seqs 256"},
		{name: "the model alone", argv: "vllm serve m", params: seqs, want: "vllm serve m --max-num-seqs 256"},
		{name: "no argument at all", argv: "vllm serve", params: seqs, want: "vllm serve --max-num-seqs 256"},
		{name: "module form", argv: "python3 -m vllm.entrypoints.openai.api_server --model m", params: seqs, want: "python3 -m vllm.entrypoints.openai.api_server --model m --max-num-seqs 256"},
		{name: "F10 large integer from a float", argv: "vllm serve m", params: []string{"maxModelLen=1048576.0"}, want: "vllm serve m --max-model-len 1048576"},
		{name: "F11 integer with a zero fraction", argv: "vllm serve m", params: []string{"maxNumSeqs=256.0"}, want: "vllm serve m --max-num-seqs 256"},
		{name: "F11 integer with a fraction", argv: "vllm serve m", params: []string{"maxNumSeqs=256.5"}, err: "maxNumSeqs: the value must be an integer ≥ 1, is 256.5"},
		{name: "text for an integer", argv: "vllm serve m", params: []string{"maxNumSeqs='256'"}, err: `maxNumSeqs: the value must be an integer ≥ 1, is the text "256"`},
		{name: "bool for an integer", argv: "vllm serve m", params: []string{"maxNumSeqs=true"}, err: "maxNumSeqs: the value must be an integer ≥ 1, is true"},
		{name: "number out of range", argv: "vllm serve m", params: []string{"gpuMemoryUtilization=1.01"}, err: "gpuMemoryUtilization: the value must be a number > 0 ≤ 1, is 1.01"},
		{name: "zero share of memory", argv: "vllm serve m", params: []string{"gpuMemoryUtilization=0"}, err: "gpuMemoryUtilization: the value must be a number > 0 ≤ 1, is 0"},
		{name: "whole share of memory", argv: "vllm serve m", params: []string{"gpuMemoryUtilization=1"}, want: "vllm serve m --gpu-memory-utilization 1"},
		{name: "small float without exponent", argv: "vllm serve m", params: []string{"watermark=0.0000001"}, want: "vllm serve m --watermark 0.0000001"},
		{name: "choice", argv: "vllm serve m", params: []string{"schedulePolicy=lpm"}, err: `schedulePolicy: the value must be one of fcfs, priority, is the text "lpm"`},
		{name: "open choice", argv: "vllm serve m", params: []string{"kvCacheDtype=fp4_of_2031"}, want: "vllm serve m --kv-cache-dtype fp4_of_2031"},
		{name: "F19 empty value", argv: "vllm serve m", params: []string{"kvCacheDtype=''"}, err: "kvCacheDtype: the value is empty"},
		{name: "F19 empty value of a flag", argv: "vllm serve m", params: []string{"--kv-cache-dtype=''"}, err: "--kv-cache-dtype: the value is empty"},
		{name: "length with a suffix", argv: "vllm serve m --max-model-len 8k", params: []string{"maxModelLen=16K"}, want: "vllm serve m --max-model-len 16K"},
		{name: "length that fits the memory", argv: "vllm serve m", params: []string{"maxModelLen=auto"}, want: "vllm serve m --max-model-len auto"},
		{name: "negative number as value", argv: "vllm serve m --max-model-len -1 --port 1", params: []string{"maxModelLen=4096"}, want: "vllm serve m --max-model-len 4096 --port 1"},
		{name: "negative number as new value", argv: "vllm serve m", params: []string{"maxModelLen=-1"}, want: "vllm serve m --max-model-len -1"},
		{name: "raw flag that is known", argv: "vllm serve m --max_num_seqs 1", params: []string{"--max-num-seqs=256"}, want: "vllm serve m --max_num_seqs 256"},
		{name: "raw flag of the wrong kind", argv: "vllm serve m", params: []string{"--max-num-seqs=x"}, err: `--max-num-seqs: the value must be an integer ≥ 1, is the text "x"`},
		{name: "raw flag that is not known", argv: "vllm serve m --new_thing 1", params: []string{"--new-thing=2"}, want: "vllm serve m --new_thing 2"},
		{name: "raw value that looks like a flag", argv: "vllm serve m", params: []string{"--new-thing=--x"}, want: "vllm serve m --new-thing=--x"},
		{name: "raw alias", argv: "vllm serve m", params: []string{"-tp=2"}, want: "vllm serve m -tp 2"},
		{name: "raw and abstract", argv: "vllm serve m", params: []string{"--max-num-seqs=2", "maxNumSeqs=3"}, err: "maxNumSeqs: --max-num-seqs sets the same flag --max-num-seqs"},
		{name: "raw flag with its value", argv: "vllm serve m", params: []string{"--max-num-seqs 3=2"}, err: "--max-num-seqs 3: is not a flag: write the flag alone, its values go into the list of values"},
		{name: "list", argv: "vllm serve m --cudagraph-capture-sizes 1 2 4 --port 1", params: []string{"cudagraphCaptureSizes='8,16'"}, want: "vllm serve m --cudagraph-capture-sizes 8 16 --port 1"},
		{name: "longer list", argv: "vllm serve m --cudagraph-capture-sizes 1 --port 1", params: []string{"cudagraphCaptureSizes='8 16 32'"}, want: "vllm serve m --cudagraph-capture-sizes 8 16 32 --port 1"},
		{name: "list with a wrong item", argv: "vllm serve m", params: []string{"cudagraphCaptureSizes='8 x'"}, err: `cudagraphCaptureSizes: the value must be an integer ≥ 1, is the text "x"`},
		{name: "all errors at once", argv: "vllm serve m", params: []string{"maxNumSeqs=0", "maxNumSeq=1", "dtype=float8"},
			err: "dtype: the value must be one of auto, half, float16, bfloat16, float, float32, is the text \"float8\"\n" +
				"maxNumSeq: the engine has no such parameter; did you mean maxNumSeqs?\nmaxNumSeqs: the value must be an integer ≥ 1, is 0"},
		{name: "parameter of another engine", argv: "vllm serve m", params: []string{"chunkedPrefillSize=512"}, err: "chunkedPrefillSize: the engine does not have it: use maxNumBatchedTokens, the most tokens of one step"},
	})
}

func TestVLLMSwitches(t *testing.T) {
	on, off := []string{"enforceEager=true"}, []string{"enforceEager=false"}
	prefixOn, prefixOff := []string{"enablePrefixCaching=true"}, []string{"enablePrefixCaching=false"}
	runArgvRows(t, "vllm", []argvRow{
		{name: "F6 a switch that is there stays", argv: "vllm serve m --enforce-eager --port 8000", params: on},
		{name: "on", argv: "vllm serve m --port 8000", params: on, want: "vllm serve m --port 8000 --enforce-eager"},
		{name: "F7 off by default, last word", argv: "vllm serve m --port 8000 --enforce-eager", params: off, want: "vllm serve m --port 8000"},
		{name: "off by default, in the middle", argv: "vllm serve m --enforce-eager --port 8000", params: off, want: "vllm serve m --port 8000"},
		{name: "off by default and not there", argv: "vllm serve m", params: off},
		{name: "off by default, and the user says so", argv: "vllm serve m --no-enforce-eager", params: off},
		{name: "the user says both", argv: "vllm serve m --enforce-eager --no-enforce-eager", params: off, want: "vllm serve m --no-enforce-eager"},
		{name: "turned round", argv: "vllm serve m --no-enforce-eager --port 1", params: on, want: "vllm serve m --enforce-eager --port 1"},
		{name: "both spellings, on", argv: "vllm serve m --enforce-eager --no-enforce-eager", params: on, want: "vllm serve m --enforce-eager"},
		{name: "twice", argv: "vllm serve m --enforce_eager --enforce-eager", params: on, want: "vllm serve m --enforce_eager"},
		{name: "on by default, off", argv: "vllm serve m", params: prefixOff, want: "vllm serve m --no-enable-prefix-caching"},
		{name: "on by default, off, in place", argv: "vllm serve m --enable-prefix-caching --port 1", params: prefixOff, want: "vllm serve m --no-enable-prefix-caching --port 1"},
		{name: "on by default, off already", argv: "vllm serve m --no_enable_prefix_caching --port 1", params: prefixOff},
		{name: "on by default, on", argv: "vllm serve m", params: prefixOn, want: "vllm serve m --enable-prefix-caching"},
		{name: "on by default, on again", argv: "vllm serve m --no-enable-prefix-caching --port 1", params: prefixOn, want: "vllm serve m --enable-prefix-caching --port 1"},
		{name: "short alias", argv: "vllm serve m -ep --port 1", params: []string{"expertParallel=false"}, want: "vllm serve m --port 1"},
		{name: "abbreviated negation", argv: "vllm serve m --no-enforce --port 1", params: on, want: "vllm serve m --enforce-eager --port 1"},
		{name: "a switch with a value loses it", argv: "vllm serve m --enforce-eager=true", params: on, want: "vllm serve m --enforce-eager"},
		{name: "text for a switch", argv: "vllm serve m", params: []string{"enforceEager='on'"}, err: `enforceEager: --enforce-eager is a switch: the value must be true or false, is the text "on"`},
		{name: "number for a switch", argv: "vllm serve m", params: []string{"enforceEager=1"}, err: `enforceEager: --enforce-eager is a switch: the value must be true or false, is 1`},
		{name: "raw switch of unknown default", argv: "vllm serve m", params: []string{"--enable-lora=false"}, want: "vllm serve m --no-enable-lora"},
		{name: "raw negation", argv: "vllm serve m", params: []string{"--no-enable-prefix-caching=true"}, want: "vllm serve m --no-enable-prefix-caching"},
		{name: "raw negation undone", argv: "vllm serve m", params: []string{"--no-enable-prefix-caching=false"}, want: "vllm serve m --enable-prefix-caching"},
		{name: "raw switch without a negation", argv: "vllm serve m --disable-log-stats", params: []string{"--disable-log-stats=false"}, want: "vllm serve m"},
		{name: "unknown switch on", argv: "vllm serve m --no-new-thing", params: []string{"--new-thing=true"}, want: "vllm serve m --new-thing"},
		{name: "unknown switch off", argv: "vllm serve m --new-thing", params: []string{"--new-thing=false"}, want: "vllm serve m --no-new-thing"},
		{name: "unknown negation", argv: "vllm serve m", params: []string{"--no-new-thing=true"}, want: "vllm serve m --no-new-thing"},
	})
}

func TestVLLMJSON(t *testing.T) {
	runArgvRows(t, "vllm", []argvRow{
		{name: "F13 one compact word with sorted keys", argv: "vllm serve m", params: []string{`speculativeConfig={"num_speculative_tokens": 3, "method": "ngram"}`},
			want: "vllm serve m --speculative-config `{\"method\":\"ngram\",\"num_speculative_tokens\":3}`"},
		{name: "merged into the template's", argv: "vllm serve m --compilation-config `{\"b\": {\"x\": 1}, \"a\": 1e3}` --port 1", params: []string{`compilationConfig={"b": {"y": 2}, "c": [1]}`},
			want: "vllm serve m --compilation-config `{\"a\":1e3,\"b\":{\"x\":1,\"y\":2},\"c\":[1]}` --port 1"},
		{name: "behind =", argv: "vllm serve m --compilation-config={\"a\":1}", params: []string{`compilationConfig={"b":2}`},
			want: "vllm serve m --compilation-config={\"a\":1,\"b\":2}"},
		{name: "all spellings of the template", argv: "vllm serve m -cc {\"a\":1} --compilation-config.b.c 2 --compilation_config.l+ x,y --port 1 -cc.d=true --compilation-config {\"a\":5}",
			params: []string{"compilationConfig.mode=3"},
			want:   "vllm serve m -cc {\"a\":5,\"b\":{\"c\":2},\"d\":true,\"l\":[\"x\",\"y\"],\"mode\":3} --port 1"},
		{name: "dotted spelling first", argv: "vllm serve m --compilation-config.cudagraph_mode NONE", params: []string{"compilationConfig.cudagraph_mode=FULL"},
			want: "vllm serve m --compilation-config {\"cudagraph_mode\":\"FULL\"}"},
		{name: "dotted spelling behind =", argv: "vllm serve m --compilation-config.cudagraph_mode=NONE", params: []string{"compilationConfig.cudagraph_mode=FULL"},
			want: "vllm serve m --compilation-config={\"cudagraph_mode\":\"FULL\"}"},
		{name: "a key without a value", argv: "vllm serve m -cc.mode", params: []string{"maxNumSeqs=1"}, err: "maxNumSeqs: command[3]: -cc.mode has no value, and would take the next flag for it"},
		{name: "numbers with suffixes in dotted keys", argv: "vllm serve m --kv-transfer-config.size 4k", params: []string{"--kv-transfer-config.n=1"},
			want: "vllm serve m --kv-transfer-config {\"n\":1,\"size\":4000}"},
		{name: "object and key", argv: "vllm serve m", params: []string{`compilationConfig={"mode":3,"a":{"b":1}}`, "compilationConfig.a.c=2"},
			want: "vllm serve m --compilation-config {\"a\":{\"b\":1,\"c\":2},\"mode\":3}"},
		{name: "list in a dotted key", argv: "vllm serve m", params: []string{"compilationConfig.sizes='[1, 2]'"}, want: "vllm serve m --compilation-config {\"sizes\":[1,2]}"},
		{name: "large numbers keep their digits", argv: "vllm serve m --hf-overrides {\"n\":12345678901234567890}", params: []string{"--hf-overrides.m=1048576"},
			want: "vllm serve m --hf-overrides {\"m\":1048576,\"n\":12345678901234567890}"},
		{name: "no HTML escapes", argv: "vllm serve m", params: []string{"--hf-overrides.m='<a&b>'"}, want: "vllm serve m --hf-overrides {\"m\":\"<a&b>\"}"},
		{name: "the parameter is no JSON", argv: "vllm serve m", params: []string{"compilationConfig={x"}, err: "compilationConfig: the value is not valid JSON: invalid character 'x' looking for beginning of object key string"},
		{name: "the parameter is no object", argv: "vllm serve m", params: []string{"compilationConfig='[1]'"}, err: "compilationConfig: the value is not a JSON object"},
		{name: "the parameter is a number", argv: "vllm serve m", params: []string{"compilationConfig=3"}, err: "compilationConfig: the value must be a JSON object, is 3"},
		{name: "the template is no JSON", argv: "vllm serve m --compilation-config {x", params: []string{"compilationConfig.mode=3"},
			err: "compilationConfig.mode: command[4]: the value of --compilation-config is not valid JSON: invalid character 'x' looking for beginning of object key string"},
		{name: "the template is no object", argv: "vllm serve m --compilation-config 3", params: []string{"compilationConfig.mode=3"},
			err: "compilationConfig.mode: command[4]: the value of --compilation-config is not a JSON object"},
		{name: "no keys of a plain flag", argv: "vllm serve m", params: []string{"maxNumSeqs.x=3"}, err: "maxNumSeqs.x: --max-num-seqs is not a JSON flag and has no keys"},
		{name: "a flag takes the place of its twin", argv: "vllm serve m --attention-config `{\"backend\": \"FLASHINFER\", \"x\": 1}`", params: []string{"attentionBackend=FLASH_ATTN"},
			want: "vllm serve m --attention-config {\"x\":1} --attention-backend FLASH_ATTN"},
		{name: "a twin that was alone goes", argv: "vllm serve m -ac.backend FLASHINFER --port 1", params: []string{"attentionBackend=FLASH_ATTN"},
			want: "vllm serve m --port 1 --attention-backend FLASH_ATTN"},
		{name: "a twin that is not there changes nothing", argv: "vllm serve m -ac.x 1 --attention-config `{\"y\": 1}`", params: []string{"attentionBackend=FLASH_ATTN"},
			want: "vllm serve m -ac.x 1 --attention-config `{\"y\": 1}` --attention-backend FLASH_ATTN"},
		{name: "a key takes the place of its flag", argv: "vllm serve m --max-cudagraph-capture-size 8 --port 1", params: []string{"compilationConfig.max_cudagraph_capture_size=16"},
			want: "vllm serve m --port 1 --compilation-config {\"max_cudagraph_capture_size\":16}"},
		{name: "both twins", argv: "vllm serve m", params: []string{"compilationConfig.max_cudagraph_capture_size=16", "maxCudagraphCaptureSize=16"},
			err: "maxCudagraphCaptureSize: compilationConfig.max_cudagraph_capture_size sets the same thing"},
		{name: "an old level is no object and has no twin", argv: "vllm serve m --compilation-config 3", params: []string{"maxCudagraphCaptureSize=16"},
			want: "vllm serve m --compilation-config 3 --max-cudagraph-capture-size 16"},
	})
}

func TestSGLangArguments(t *testing.T) {
	runArgvRows(t, "sglang", []argvRow{
		{name: "long flag", argv: "python3 -m sglang.launch_server --model-path m --mem-fraction-static 0.8 --tp-size 2", params: []string{"gpuMemoryUtilization=0.9"},
			want: "python3 -m sglang.launch_server --model-path m --mem-fraction-static 0.9 --tp-size 2"},
		{name: "underscores are another flag", argv: "sglang serve m --tp_size 2", params: []string{"tensorParallelSize=4"}, want: "sglang serve m --tp_size 2 --tp-size 4"},
		{name: "abbreviation", argv: "sglang serve m --tp 2", params: []string{"tensorParallelSize=4"}, want: "sglang serve m --tp 4"},
		{name: "abbreviation of several flags", argv: "sglang serve m --pp 2", params: []string{"pipelineParallelSize=4"},
			err: "pipelineParallelSize: command[3]: --pp is ambiguous: it may be --pp-async-batch-depth or --pp-max-micro-batch-size or --pp-size"},
		{name: "alias that is an abbreviation of another", argv: "sglang serve m --ep 2", params: []string{"expertParallel=4"}, want: "sglang serve m --ep 4"},
		{name: "long alias and duplicate", argv: "sglang serve m --tensor-parallel-size=2 --tp 8", params: []string{"tensorParallel=4"}, want: "sglang serve m --tensor-parallel-size=4"},
		{name: "old spelling stays", argv: "sglang serve m --cuda-graph-max-bs 8", params: []string{"cudaGraphMaxBs=16"}, want: "sglang serve m --cuda-graph-max-bs 16"},
		{name: "chunking off", argv: "sglang serve m --chunked-prefill-size 512 --port 1", params: []string{"chunkedPrefillSize=-1"}, want: "sglang serve m --chunked-prefill-size -1 --port 1"},
		{name: "chunking zero", argv: "sglang serve m", params: []string{"chunkedPrefillSize=0"}, err: "chunkedPrefillSize: the value must be an integer ≥ 1 or -1, is 0"},
		{name: "F6 switch on, there", argv: "sglang serve m --enable-torch-compile --tp 2", params: []string{"enableTorchCompile=true"}},
		{name: "F7 switch off", argv: "sglang serve m --enable-torch-compile --tp 2", params: []string{"enableTorchCompile=false"}, want: "sglang serve m --tp 2"},
		{name: "switch on", argv: "sglang serve m --tp 2", params: []string{"enableMixedChunk=true"}, want: "sglang serve m --tp 2 --enable-mixed-chunk"},
		{name: "inverted switch off", argv: "sglang serve m", params: []string{"enablePrefixCaching=false"}, want: "sglang serve m --disable-radix-cache"},
		{name: "inverted switch on", argv: "sglang serve m --disable-radix-cache --tp 2", params: []string{"enablePrefixCaching=true"}, want: "sglang serve m --tp 2"},
		{name: "inverted switch by its flag", argv: "sglang serve m", params: []string{"--disable-radix-cache=true"}, want: "sglang serve m --disable-radix-cache"},
		{name: "overlap schedule", argv: "sglang serve m", params: []string{"asyncScheduling=false"}, want: "sglang serve m --disable-overlap-schedule"},
		{name: "graphs off", argv: "sglang serve m", params: []string{"enforceEager=true"}, want: "sglang serve m --disable-cuda-graph"},
		{name: "unknown switch off is left out", argv: "sglang serve m --new-thing", params: []string{"--new-thing=false"}, want: "sglang serve m"},
		{name: "no dotted keys", argv: "sglang serve m --cuda-graph-config {\"a\":1} --x.y 1", params: []string{"cudaGraphConfig.b=2"}, want: "sglang serve m --cuda-graph-config {\"a\":1,\"b\":2} --x.y 1"},
		{name: "the existing tool's space", argv: "sglang serve m --port 8000", params: []string{"gpuMemoryUtilization=0.95", "maxNumSeqs=2048", "chunkedPrefillSize=8192", "schedulePolicy=dfs-weight"},
			want: "sglang serve m --port 8000 --chunked-prefill-size 8192 --max-running-requests 2048 --mem-fraction-static 0.95 --schedule-policy dfs-weight"},
		{name: "parameter of another engine", argv: "sglang serve m", params: []string{"maxNumBatchedTokens=512"}, err: "maxNumBatchedTokens: the engine does not have it: chunkedPrefillSize and maxPrefillTokens are the nearest"},
		{name: "float with a fraction", argv: "sglang serve m", params: []string{"scheduleConservativeness=0.30000000000000004"}, want: "sglang serve m --schedule-conservativeness 0.30000000000000004"},
	})
}
