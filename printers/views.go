// SPDX-License-Identifier: Apache-2.0

package printers

import (
	"fmt"
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
