// SPDX-License-Identifier: Apache-2.0

package printers

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/llmctl/llmctl/experiment"
)

// Winner shows the best trial beside the baseline of its template.
func Winner(r *experiment.Result, manifest []any) View {
	b := r.Best
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		column("Template"), column("Trial"), column(b.Metric), column("Baseline"), column("Gain"), column("Params"),
	}}
	baseline := Number(b.Baseline)
	if b.Baseline != nil && !b.BaselineFeasible {
		baseline += " (violates the SLA)"
	}
	gain := Gain(b.Gain)
	if b.NoGain() {
		gain += " (within noise)"
	}
	table.Rows = []metav1.TableRow{row(b.Template, b.Index, strings.TrimSpace(Number(&b.Score)+" "+margin(b.Margin)), baseline, gain, Params(b.Params))}
	v := View{Tables: []*metav1.Table{table}, Names: objectNames(manifest)}
	if len(manifest) == 1 {
		v.Object = manifest[0]
	} else {
		v.Object = map[string]any{"apiVersion": "v1", "kind": "List", "items": manifest}
	}
	return v
}

// objectNames are the kind.group/name of each object, as kubectl prints them.
func objectNames(objects []any) []string {
	var names []string
	for _, o := range objects {
		object, _ := o.(map[string]any)
		meta, _ := object["metadata"].(map[string]any)
		version, _ := object["apiVersion"].(string)
		kind, _ := object["kind"].(string)
		if group, _, ok := strings.Cut(version, "/"); ok {
			kind += "." + group
		}
		names = append(names, fmt.Sprintf("%s/%v", strings.ToLower(kind), meta["name"]))
	}
	return names
}

// standing marks the winner and what ties with it.
func standing(best *experiment.Best, t *experiment.Trial) string {
	switch {
	case best == nil:
		return ""
	case best.Template == t.Template && best.Index == t.Index:
		return "*"
	case best.Tied(t.Template, t.Index):
		return " (tie)"
	}
	return ""
}

// Ties says which trials may be as good as the best; "" when there is none.
func Ties(b *experiment.Best) string {
	if len(b.Ties) == 0 {
		return ""
	}
	list := make([]string, len(b.Ties))
	for i, t := range b.Ties {
		list[i] = fmt.Sprintf("%s/%d (%s)", t.Template, t.Index, Number(&t.Score))
	}
	return fmt.Sprintf("as good, as far as these measurements tell: %s", strings.Join(list, ", "))
}
