// SPDX-License-Identifier: Apache-2.0

package printers

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/llmctl/llmctl/experiment"
)

// Measurement shows one load: its latencies, then everything else.
func Measurement(r *experiment.Measurement) View {
	m := r.Metrics
	latencies := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		column("Latency (ms)"), column("Mean"), column("P50"), column("P90"), column("P95"), column("P99"), column("N"),
	}}
	for _, l := range []struct {
		name string
		of   experiment.Distribution
	}{
		{"ttft", m.TTFT}, {"firstAnswer", m.FirstAnswer}, {"tpot", m.TPOT}, {"itl", m.ITL}, {"e2e", m.E2E}, {"sendDelay", m.SendDelay},
	} {
		if l.of.N > 0 {
			latencies.Rows = append(latencies.Rows, row(l.name, Number(l.of.Mean), Number(l.of.P50), Number(l.of.P90), Number(l.of.P95), Number(l.of.P99), l.of.N))
		}
	}
	rest := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{column("Metric"), column("Value"), column("Margin"), column("Unit")}}
	for _, name := range experiment.MetricNames() {
		metric, _ := experiment.LookupMetric(name)
		if v := m.Value(name); v != nil && metric.Unit != "ms" {
			rest.Rows = append(rest.Rows, row(name, Number(v), margin(m.Margin(name)), metric.Unit))
		}
	}
	if m.AchievedConcurrency != nil {
		rest.Rows = append(rest.Rows, row("achievedConcurrency", Number(m.AchievedConcurrency), "", "requests"))
	}
	rest.Rows = append(rest.Rows, row("requests", requests(m.Requests), "", ""))
	return View{
		Tables: []*metav1.Table{latencies, rest}, Object: r, Names: []string{"measurement/" + r.Model},
		CSV: [][]string{append(experiment.MetricNames(), "sent"), append(metricCells(m), strconv.Itoa(m.Requests.Sent))},
	}
}

// requests counts in words.
func requests(r experiment.Requests) string {
	text := fmt.Sprintf("%d sent, %d ok, %d failed", r.Sent, r.OK, r.Failed)
	if r.Incomplete > 0 {
		text += fmt.Sprintf(", %d incomplete", r.Incomplete)
	}
	if r.Short > 0 {
		text += fmt.Sprintf(", %d short", r.Short)
	}
	for _, category := range slices.Sorted(maps.Keys(r.Failures)) {
		text += fmt.Sprintf("; %s: %d", category, r.Failures[category])
	}
	return text
}
