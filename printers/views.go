// SPDX-License-Identifier: Apache-2.0

package printers

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/llmctl/llmctl/experiment"
)

// none stands for what is not there, as in kubectl.
const none = "<none>"

// column makes a table column; wide ones are shown with -o wide only.
func column(name string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string"}
}

func wide(name string) metav1.TableColumnDefinition {
	c := column(name)
	c.Priority = 1
	return c
}

func row(cells ...any) metav1.TableRow { return metav1.TableRow{Cells: cells} }

// List shows experiments, one a line.
func List(summaries []experiment.Summary, now time.Time) View {
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		column("Name"), column("Status"), column("Templates"), column("Trials"), column("Feasible"),
		column("Best"), column("Score"), column("Gain"), column("Age"), wide("Updated"), wide("Metric"), wide("Error"),
	}}
	v := View{Tables: []*metav1.Table{table}}
	for _, s := range summaries {
		var done, trials, feasible int
		for _, t := range s.Templates {
			trials, feasible = trials+t.Trials, feasible+t.Feasible
			if t.Completed {
				done++
			}
		}
		best, score, gain, metric := none, none, none, none
		if b := s.Best; b != nil {
			best, score, gain, metric = fmt.Sprintf("%s/%d", b.Template, b.Index), Number(&b.Score), Gain(b.Gain), b.Metric
		}
		table.Rows = append(table.Rows, row(s.Name, string(s.Status), fmt.Sprintf("%d/%d", done, len(s.Templates)), trials, feasible,
			best, score, gain, age(s.Started, now), age(s.Updated, now), metric, orNone(s.Error)))
		v.Names = append(v.Names, "autobench/"+s.Name)
	}
	v.Object = map[string]any{"apiVersion": "v1", "kind": "List", "items": summaries}
	return v
}

// Experiment shows one experiment: its templates and all trials.
func Experiment(r *experiment.Result) View {
	templates := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		column("Template"), column("Status"), column("Trials"), column("Feasible"), column("Violated"), column("Errors"), column("Reason"),
	}}
	for _, t := range r.Summary().Templates {
		templates.Rows = append(templates.Rows, row(t.Name, templateStatus(r, t),
			fmt.Sprintf("%d/%d", t.Trials, r.Config.Strategy.MaxTrialsPerTemplate), t.Feasible, t.Violated, t.Errors, orNone(t.TerminationReason)))
	}
	trials := &metav1.Table{ColumnDefinitions: TrialColumns(r.Config.Objectives)}
	for _, t := range r.Templates {
		for i := range t.Trials {
			trials.Rows = append(trials.Rows, TrialRow(r.Config.Objectives, &t.Trials[i], standing(r.Best, &t.Trials[i])))
		}
	}
	return View{Tables: []*metav1.Table{templates, trials}, Object: r, Names: []string{"autobench/" + r.Name}, CSV: trialLines(r)}
}

// trialLines has a line with every metric for each trial.
func trialLines(r *experiment.Result) [][]string {
	lines := [][]string{slices.Concat([]string{"template", "index", "outcome", "params"}, experiment.MetricNames(), []string{"sent", "why"})}
	for _, t := range r.Templates {
		for i := range t.Trials {
			trial := &t.Trials[i]
			sent := ""
			if trial.Metrics != nil {
				sent = strconv.Itoa(trial.Metrics.Requests.Sent)
			}
			lines = append(lines, slices.Concat(
				[]string{trial.Template, strconv.Itoa(trial.Index), string(trial.Outcome()), trial.Params.String()},
				metricCells(trial.Metrics), []string{sent, Why(trial)}))
		}
	}
	return lines
}

// metricCells are all metrics in the order of their names; what was not measured is empty.
func metricCells(m *experiment.Metrics) []string {
	var cells []string
	for _, name := range experiment.MetricNames() {
		cell := ""
		if v := m.Value(name); v != nil {
			cell = strconv.FormatFloat(*v, 'g', -1, 64)
		}
		cells = append(cells, cell)
	}
	return cells
}

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

// standing marks the winner and what ties with it.
func standing(best *experiment.Best, t *experiment.Trial) string {
	switch {
	case best == nil:
		return ""
	case best.Template == t.Template && best.Index == t.Index:
		return "*"
	case slices.ContainsFunc(best.Ties, func(o experiment.Tie) bool { return o.Template == t.Template && o.Index == t.Index }):
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
	return fmt.Sprintf("no difference beyond the noise to %s; more requests tell smaller differences apart", strings.Join(list, ", "))
}

// templateStatus tells the template at work from those that wait.
func templateStatus(r *experiment.Result, t experiment.TemplateSummary) string {
	if t.Completed {
		return "Completed"
	}
	for _, other := range r.Templates {
		if other.Completed {
			continue
		}
		if other.Name == t.Name && r.Status == experiment.Running {
			return "Running"
		}
		break
	}
	if t.Trials > 0 {
		return "Incomplete"
	}
	return "Pending"
}

// tailMetrics are the latencies shown for every trial.
var tailMetrics = []string{"ttftP99", "tpotP99"}

// TrialColumns are the columns of TrialRow: the score, the usual tails, and
// whatever else the objectives bound.
func TrialColumns(o experiment.Objectives) []metav1.TableColumnDefinition {
	columns := []metav1.TableColumnDefinition{column("Trial"), column("Outcome"), column(o.Optimize)}
	for _, name := range shown(o) {
		columns = append(columns, column(name))
	}
	columns = append(columns, column("N"), column("Params"))
	for _, name := range []string{"ttftP50", "tpotP50", "e2eP50", "e2eP99", "requestsPerSecond"} {
		columns = append(columns, wide(name))
	}
	return append(columns, wide("Took"), wide("Why"))
}

func shown(o experiment.Objectives) []string {
	names := slices.Clone(tailMetrics)
	for _, b := range o.Bounds {
		if !slices.Contains(names, b.Metric) && b.Metric != o.Optimize {
			names = append(names, b.Metric)
		}
	}
	return names
}

// TrialRow is a trial as a line of a table, with its standing among the others.
func TrialRow(o experiment.Objectives, t *experiment.Trial, standing string) metav1.TableRow {
	outcome := string(t.Outcome()) + standing
	if t.Outcome() == experiment.Errored {
		outcome += " (" + t.Reason + ")"
	}
	cells := []any{fmt.Sprintf("%s/%d", t.Template, t.Index), outcome, Number(t.Metrics.Value(o.Optimize))}
	for _, name := range shown(o) {
		cells = append(cells, mark(t, name, Number(t.Metrics.Value(name))))
	}
	n := none
	if t.Metrics != nil {
		n = strconv.Itoa(t.Metrics.Requests.Sent)
		if t.Metrics.Partial != "" {
			n += " partial"
		}
	}
	cells = append(cells, n, Params(t.Params))
	for _, name := range []string{"ttftP50", "tpotP50", "e2eP50", "e2eP99", "requestsPerSecond"} {
		cells = append(cells, Number(t.Metrics.Value(name)))
	}
	return row(append(cells, duration.HumanDuration(time.Duration(t.Seconds*float64(time.Second))), orNone(Why(t)))...)
}

// mark shows which bound a figure breaks.
func mark(t *experiment.Trial, metric, text string) string {
	for _, v := range t.Violations {
		if strings.HasPrefix(v.Bound, metric) {
			return text + "!"
		}
	}
	return text
}

// Why says what kept a trial from being feasible; "" when it is.
func Why(t *experiment.Trial) string {
	if t.Error != "" {
		return t.Error
	}
	return Violations(t.Violations)
}

// Violations are missed bounds on one line.
func Violations(list []experiment.Violation) string {
	reasons := make([]string, len(list))
	for i, v := range list {
		reasons[i] = v.String()
	}
	return strings.Join(reasons, "; ")
}

// Plan shows the trials that a run would make.
func Plan(r *experiment.Result) View {
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{column("Trial"), column("Params")}}
	for _, t := range r.Templates {
		for i := range t.Trials {
			table.Rows = append(table.Rows, row(fmt.Sprintf("%s/%d", t.Name, i), Params(t.Trials[i].Params)))
		}
	}
	return View{Tables: []*metav1.Table{table}, Object: r, Names: []string{"autobench/" + r.Name}}
}

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
	table.Rows = []metav1.TableRow{row(b.Template, b.Index, strings.TrimSpace(Number(&b.Score)+" "+margin(b.Margin)), baseline, Gain(b.Gain), Params(b.Params))}
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

// Params shows the settings of a trial.
func Params(p experiment.Params) string {
	if len(p) == 0 {
		return "template unchanged"
	}
	return p.String()
}

// Number shows a figure with four significant digits, or <none>.
func Number(v *float64) string {
	switch {
	case v == nil:
		return none
	case *v >= 1000:
		return strconv.FormatFloat(*v, 'f', 0, 64)
	default:
		return strconv.FormatFloat(*v, 'g', 4, 64)
	}
}

// margin shows how far off a figure may be; "" when that is not known.
func margin(v *float64) string {
	if v == nil {
		return ""
	}
	return "±" + Number(v)
}

// Gain shows a relative improvement as a percentage with its sign, or <none>.
func Gain(gain *float64) string {
	if gain == nil {
		return none
	}
	return fmt.Sprintf("%+.1f%%", *gain*100)
}

func age(t, now time.Time) string {
	if t.IsZero() {
		return none
	}
	return duration.HumanDuration(now.Sub(t))
}

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}
