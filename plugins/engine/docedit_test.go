// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each row is what follows "name: e" in a container, before and after.
func TestOnlyTheChangedWordsChange(t *testing.T) {
	off := []string{"enforceEager=false"}
	both := []string{"enforceEager=false", "maxNumSeqs=256"}
	rows := []struct {
		name   string
		params []string
		before string
		after  string
	}{
		{"first of a flow list", off, "command: [vllm, serve]\nargs: [--enforce-eager,  m , x]  # c", "command: [vllm, serve]\nargs: [m , x]  # c"},
		{"middle of a flow list", off, "command: [vllm, serve]\nargs: ['m',--enforce-eager,x]", "command: [vllm, serve]\nargs: ['m',x]"},
		{"last of a flow list", off, "command: [vllm, serve]\nargs: [ m, --enforce-eager ]", "command: [vllm, serve]\nargs: [ m ]"},
		{"neighbours of a flow list", off, "command: [vllm, serve]\nargs: [m, --enforce-eager, --enforce-eager, x, --enforce-eager]", "command: [vllm, serve]\nargs: [m, x]"},
		{"only word of a flow list", off, "command: [vllm, serve, m]\nargs: [ --enforce-eager ]", "command: [vllm, serve, m]\nargs: [  ]"},
		{"flow list with trailing comma", both, "command: [vllm, serve]\nargs: [\n  m,   # model\n  \"--enforce-eager\",\n  ]", "command: [vllm, serve]\nargs: [\n  m, --max-num-seqs, \"256\",\n  ]"},
		{"first of a block list", off, "command: [vllm, serve]\nargs:\n- --enforce-eager # c\n# d\n- m", "command: [vllm, serve]\nargs:\n# d\n- m"},
		{"last of a block list", both, "command: [vllm, serve]\nargs:\n  -   m\n  -   \"--enforce-eager\"   # c\nworkingDir: /x", "command: [vllm, serve]\nargs:\n  -   m\n  -   --max-num-seqs\n  -   \"256\"\nworkingDir: /x"},
		{"all quoted", []string{"maxNumSeqs=256"}, "command: ['vllm', 'serve', 'm']", "command: ['vllm', 'serve', 'm', '--max-num-seqs', '256']"},
		{"plain and quoted", []string{"maxNumSeqs=256"}, "command: [vllm, serve, 'm']", "command: [vllm, serve, 'm', --max-num-seqs, \"256\"]"},
		{"text that needs quotes in a flow list", []string{`compilationConfig={"a":1}`}, "command: [vllm, serve, m]", `command: [vllm, serve, m, --compilation-config, '{"a":1}']`},
		{"quoted text with quotes", []string{"compilationConfig.a=b"}, `command: ["vllm", "serve", "m", "--compilation-config", "{\"a\": \"it's\"}"]`, `command: ["vllm", "serve", "m", "--compilation-config", "{\"a\":\"b\"}"]`},
		{"words of many bytes", []string{"maxNumSeqs=256"}, "command: [vllm, serve, 'mödel', \"日本\", --max-num-seqs, '1', é]", "command: [vllm, serve, 'mödel', \"日本\", --max-num-seqs, '256', é]"},
		{"script in single quotes", []string{`compilationConfig={"a":"b"}`}, "command: [sh, -c, 'vllm serve ''m'' && true']", "command: [sh, -c, 'vllm serve ''m'' --compilation-config ''{\"a\":\"b\"}'' && true']"},
		{"script in plain style", []string{"maxNumSeqs=256"}, "command: [sh, -c]\nargs:\n- exec vllm serve m --max-num-seqs 1 --port 1  # c", "command: [sh, -c]\nargs:\n- exec vllm serve m --max-num-seqs 256 --port 1  # c"},
		{"script over lines in double quotes", []string{"maxNumSeqs=256"}, "command: [sh, -c]\nargs: [\"vllm serve m\n    --port 1\"]", "command: [sh, -c]\nargs: [\"vllm serve m --port 1 --max-num-seqs 256\"]"},
		{"folded script with kept lines", both, "command: [sh, -c]\nargs:\n- >\n  vllm serve\n  m --enforce-eager\n\n  # the end\n", "command: [sh, -c]\nargs:\n- >\n  vllm serve\n  m --max-num-seqs 256\n\n  # the end\n"},
		{"kept line ends", off, "command: [sh, -c]\nargs:\n- |+ # c\n  vllm serve m \\\n    --enforce-eager \\\n    --port 1\n\n", "command: [sh, -c]\nargs:\n- |+ # c\n  vllm serve m \\\n    --port 1\n\n"},
		{"new variable behind others", []string{"env:B=1"}, "command: [vllm, serve, m]\nenv:\n  -  name: A\n     value: x\nworkingDir: /x", "command: [vllm, serve, m]\nenv:\n  -  name: A\n     value: x\n  -  name: B\n     value: \"1\"\nworkingDir: /x"},
		{"variable with a reference", []string{"env:A=$(B) $$"}, "command: [vllm, serve, m]\nenv: [{name: A, value: x}]", "command: [vllm, serve, m]\nenv: [{name: A, value: $$(B) $$$$}]"},
		{"variable without a value", []string{"env:A=1"}, "command: [vllm, serve, m]\nenv:\n- name: A\n- name: B\n  value: x", "command: [vllm, serve, m]\nenv:\n- name: A\n  value: \"1\"\n- name: B\n  value: x"},
		{"number that is text", []string{"env:A=1"}, "command: [vllm, serve, m]\nenv:\n- name: A\n  value: 1", "command: [vllm, serve, m]\nenv:\n- name: A\n  value: \"1\""},
	}
	indent := func(text string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name:  p}\nspec:\n  containers:\n  - name: e\n    " + strings.ReplaceAll(text, "\n", "\n    ") + "\n"
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			got, err := load(t, "vllm").Render([]byte(indent(row.before)), params(row.params...), Options{})
			require.NoError(t, err)
			assert.Equal(t, indent(row.after), string(got))
		})
	}
}

// What the text cannot be edited for is written anew, and means the same.
func TestDocumentsThatAreWrittenAnew(t *testing.T) {
	rows := []struct{ name, before, after string }{
		{"directive and comments", "%YAML 1.1\n# first\n--- # second\n# third\n\napiVersion: v1 # fourth\nkind: Pod\nmetadata: &m {name: p}\nspec: {containers: [{name: e, command: [vllm, serve, m]}]}\n# fifth\n...\n",
			"%YAML 1.1\n---\n# first\n# second\n# third\napiVersion: v1 # fourth\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: e, command: [vllm, serve, m, --max-num-seqs, \"256\"]}]}\n\n# fifth\n...\n"},
		{"content behind the marker", "--- {apiVersion: v1, kind: Pod, metadata: &m {name: p}, spec: {containers: [{name: e, command: [vllm, serve, m]}]}}\n",
			"---\n{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: e, command: [vllm, serve, m, --max-num-seqs, \"256\"]}]}}\n"},
		{"image without arguments in flow style", "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: e, image: vllm/vllm-openai}]}}\r\n",
			"{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: e, image: vllm/vllm-openai, args: [--max-num-seqs, \"256\"]}]}}\r\n"},
		{"block scalar that goes", "apiVersion: v1\nkind: Pod\nmetadata: {name:   p}\nspec:\n  containers:\n  - name: e\n    command: [vllm, serve]\n    args:\n    - m\n    - --max-num-seqs=1\n    - --max-num-seqs\n    - |-\n      2\n    - x\n",
			"apiVersion: v1\nkind: Pod\nmetadata: {name:   p}\nspec:\n  containers:\n  - name: e\n    command: [vllm, serve]\n    args:\n    - m\n    - --max-num-seqs=256\n    - x\n"},
		{"JSON", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"e","command":["vllm","serve","m"]}]}}`,
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"e","command":["vllm","serve","m", "--max-num-seqs", "256"]}]}}`},
	}
	other := "apiVersion: v1\nkind: Service\nmetadata: {name:  s}\n...\n"
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			got, err := load(t, "vllm").Render([]byte(other+row.before), params("maxNumSeqs=256"), Options{})
			require.NoError(t, err)
			assert.Equal(t, other+row.after, string(got))
		})
	}
}
