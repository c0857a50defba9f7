// SPDX-License-Identifier: Apache-2.0

package autobench

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/printers"
	"github.com/llmctl/llmctl/state"
)

// progress tells what a run does, line by line, on stderr and in controller.log.
type progress struct {
	out  io.Writer
	now  func() time.Time
	spec *experiment.Spec
}

func (p *progress) line(format string, args ...any) {
	// A log line that cannot be written is no reason to stop measuring; the
	// checkpoint, which is written right after, is.
	_, _ = fmt.Fprintf(p.out, "%s %s\n", p.now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

func (p *progress) begin(dir *state.Dir, r *experiment.Runner) {
	s := p.spec
	p.line("experiment %s: %d templates, %s over %d parameters, at most %d trials each, on %s", s.Name, len(s.Templates),
		s.Strategy.Algorithm, len(s.Space.Dims()), s.Strategy.MaxTrialsPerTemplate, s.Execution.Target)
	p.line("state: %s", dir.Path())
	if !r.Started.IsZero() {
		p.line("resuming the run of %s", r.Started.Format(time.DateTime))
	}
}

func (p *progress) event(e experiment.Event) {
	switch e.Kind {
	case experiment.TemplateStarted:
		if e.Index > 0 {
			p.line("template %s: going on after %d trials", e.Template, e.Index)
			return
		}
		p.line("template %s", e.Template)
	case experiment.TrialStarted:
		p.line("  trial %s/%d: %s", e.Template, e.Index, printers.Params(e.Params))
	case experiment.PhaseStarted:
		// The table of trials has the lengths; logs -f shows the load itself.
	case experiment.TrialFinished:
		p.line("  trial %s/%d: %s", e.Template, e.Index, p.verdict(e.Trial))
	case experiment.TrialInterrupted:
		p.line("  trial %s/%d: interrupted, not recorded; it will run again", e.Template, e.Index)
	case experiment.TemplateFinished:
		p.line("template %s: completed: %s", e.Template, e.Text)
	case experiment.Warned:
		p.line("warning: %s", e.Text)
	}
}

// verdict is one finished trial in a line.
func (p *progress) verdict(t *experiment.Trial) string {
	took := time.Duration(t.Seconds * float64(time.Second)).Round(100 * time.Millisecond)
	switch t.Outcome() {
	case experiment.Errored:
		return fmt.Sprintf("error (%s) after %s: %s", t.Reason, took, t.Error)
	case experiment.Violated:
		return fmt.Sprintf("violates the SLA: %s; %s [%s]", printers.Why(t), p.score(t), took)
	default:
		return fmt.Sprintf("feasible: %s [%s]", p.score(t), took)
	}
}

func (p *progress) score(t *experiment.Trial) string {
	metric, _ := experiment.LookupMetric(p.spec.Objectives.Optimize)
	words := []string{strings.TrimSpace(fmt.Sprintf("%s %s %s", p.spec.Objectives.Optimize, printers.Number(t.Score), metric.Unit))}
	for _, name := range []string{"ttftP99", "tpotP99"} {
		words = append(words, fmt.Sprintf("%s %s ms", name, printers.Number(t.Metrics.Value(name))))
	}
	return strings.Join(words, ", ")
}

// end says how the run ended.
func (p *progress) end(r *experiment.Result, err error) {
	p.line("%s after %s", r.Status, p.now().Sub(r.Started).Round(time.Second))
	if err != nil && r.Status == experiment.Failed {
		p.line("stopped by: %v", err)
	}
	b := r.Best
	if b == nil {
		return
	}
	p.line("best: trial %s/%d (%s): %s %s", b.Template, b.Index, printers.Params(b.Params), b.Metric, printers.Number(&b.Score))
	switch {
	case b.Index == 0:
		p.line("the template as it is was not beaten")
	case b.NoGain():
		p.line("that is %s against the template unchanged (%s), which cannot be told from noise", printers.Gain(b.Gain), printers.Number(b.Baseline))
	case b.Gain != nil && b.BaselineFeasible:
		p.line("that is %s against the template unchanged (%s)", printers.Gain(b.Gain), printers.Number(b.Baseline))
	case b.Gain != nil:
		p.line("that is %s against the template unchanged (%s), which violates the SLA", printers.Gain(b.Gain), printers.Number(b.Baseline))
	}
	if text := printers.Ties(b); text != "" {
		p.line("%s", text)
	}
	p.line("apply it with: llmctl autobench best %s -o yaml | kubectl apply -f -", r.Name)
}
