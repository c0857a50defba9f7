// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// hostWord is a word that may be a host: after a scheme or before a port it is.
var hostWord = regexp.MustCompile(`(://)?\b([a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)(:\d+\b)?`)

// hosts are the names by which the pods of a template reach each other.
type hosts struct {
	services  map[string]bool   // by the template's name
	names     map[string]string // the template's names → the trial's
	namespace string
}

// renameHosts lets commands, variables and configuration files call the trial's
// Services, and pods by name, where the template calls its own. Only words that
// are hosts without doubt are changed.
func renameHosts(objects []*unstructured.Unstructured, h hosts, kinds kindTable) {
	for _, u := range objects {
		if isKind(u, "", "ConfigMap") {
			changeTexts(u.Object["data"], h.change)
		}
		k, _ := kinds.of(u)
		for _, p := range k.Pods {
			for _, template := range find(u.Object, p.Path) {
				for _, spec := range []any{template["spec"], template} {
					if m, ok := spec.(map[string]any); ok {
						changeContainers(m, h.change)
					}
				}
			}
		}
	}
}

func (h hosts) change(text string) string {
	return hostWord.ReplaceAllStringFunc(text, func(found string) string {
		m := hostWord.FindStringSubmatch(found)
		return m[1] + h.rename(m[2], m[1] != "" || m[3] != "") + m[3]
	})
}

// rename gives a host its name in the trial: llm, llm.bench, llm.bench.svc or
// llm-0.llm-pods. certain tells that it is a host.
func (h hosts) rename(name string, certain bool) string {
	labels := strings.Split(name, ".")
	at := 0 // of the Service
	if len(labels) > 1 && h.services[labels[1]] {
		if i := strings.LastIndexByte(labels[0], '-'); i > 0 && h.names[labels[0][:i]] != "" {
			labels[0] = h.names[labels[0][:i]] + labels[0][i:]
			at, certain = 1, true
		}
	}
	rest := labels[at+1:]
	inCluster := len(rest) > 1 && rest[1] == "svc"
	if !h.services[labels[at]] || !certain && !inCluster || len(rest) > 1 && !inCluster {
		return name
	}
	labels[at] = h.names[labels[at]]
	if len(rest) > 0 {
		rest[0] = h.namespace
	}
	return strings.Join(labels, ".")
}

func changeContainers(spec map[string]any, change func(string) string) {
	for _, list := range []string{"containers[]", "initContainers[]"} {
		for _, c := range find(spec, list) {
			changeTexts(c["command"], change)
			changeTexts(c["args"], change)
			for _, variable := range find(c, "env[]") {
				if text, ok := variable["value"].(string); ok {
					variable["value"] = change(text)
				}
			}
		}
	}
}

// changeTexts changes the texts of a list or a map.
func changeTexts(value any, change func(string) string) {
	switch v := value.(type) {
	case []any:
		for i, item := range v {
			if text, ok := item.(string); ok {
				v[i] = change(text)
			}
		}
	case map[string]any:
		for key, item := range v {
			if text, ok := item.(string); ok {
				v[key] = change(text)
			}
		}
	}
}
