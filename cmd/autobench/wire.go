// SPDX-License-Identifier: Apache-2.0

package autobench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/deploy/local"
	"github.com/llmctl/llmctl/plugins/engine"
	"github.com/llmctl/llmctl/plugins/evaluator"
	"github.com/llmctl/llmctl/plugins/search"
	"github.com/llmctl/llmctl/state"
)

// setup is an experiment with the plugins that it names.
type setup struct {
	spec     *experiment.Spec
	engine   *engine.Engine
	options  engine.Options
	searcher experiment.Searcher
	plan     *evaluator.Plan
	warnings []string
}

// load reads an experiment file and builds its plugins; every problem of the
// file itself, of the plugins' settings and of the templates is in one error.
func (o *options) load(path string) (*setup, error) {
	spec, err := experiment.Load(path)
	problems := &experiment.Problems{File: path}
	if err != nil && (!errors.As(err, &problems) || spec == nil) {
		return nil, err
	}
	s := &setup{spec: spec, options: renderOptions(spec)}
	found := slices.Clone(problems.List)
	add := func(path string, err error) {
		known := func(p experiment.Problem) bool { return p.Path == path }
		if err != nil && !slices.ContainsFunc(problems.List, known) {
			found = append(found, experiment.Problem{Path: path, Message: err.Error()})
		}
	}
	found = append(found, search.Check(spec)...)
	plan, more := evaluator.Read(spec, Environment())
	s.plan, found = plan, append(found, more...)
	if spec.Backend != "" {
		s.engine, err = engine.Load(spec.Backend, o.engineDirs...)
		add("backend", err)
	}
	if s.engine != nil {
		for i, t := range spec.Templates {
			if t.Source != nil {
				add(fmt.Sprintf("templates[%d].template", i), s.check(t))
			}
		}
	}
	s.warnings = append(s.warnings, ignored(spec)...)
	if len(found) > 0 {
		return s, &experiment.Problems{File: path, List: found}
	}
	s.searcher, err = search.New(spec)
	return s, err
}

func renderOptions(spec *experiment.Spec) engine.Options {
	return engine.Options{ExcludeDefaultRoles: spec.ExcludeDefaultRoles, PodTemplatePaths: spec.Execution.PodTemplatePaths}
}

// check renders the template at the corners of the search space, where each
// parameter takes its first and its last value.
func (s *setup) check(t experiment.Template) error {
	dims := s.spec.Space.Dims()
	low, high := make([]float64, len(dims)), make([]float64, len(dims))
	for i := range dims {
		high[i] = 1 - 1e-12
	}
	corners := []experiment.Params{nil, s.spec.Space.At(low), s.spec.Space.At(high)}
	warnings, err := s.engine.Check(t.Source, corners, s.options)
	if err == nil {
		err = s.fits(t.Source)
	}
	for _, w := range warnings {
		s.warnings = append(s.warnings, fmt.Sprintf("template %s: %s", t.Name, w))
	}
	if err == nil && s.spec.Execution.Target == experiment.TargetLocal {
		err = s.local("").Check(t.Source)
	}
	return err
}

// fits tells when the largest request of the load is longer than an engine of
// the manifest can serve: all of them would fail.
func (s *setup) fits(manifest []byte) error {
	containers, err := s.engine.Find(manifest, s.options)
	if err != nil {
		return err
	}
	for _, c := range containers {
		limit, err := s.engine.ContextLength(c)
		if err != nil {
			return err
		}
		if limit > 0 && s.plan.Largest > limit {
			return fmt.Errorf("container %q: requests have up to %d tokens, prompt and answer together, but the engine's context is limited to %d", c.Name, s.plan.Largest, limit)
		}
	}
	return nil
}

// Environment is what evaluators take from this process.
func Environment() evaluator.Environment {
	return evaluator.Environment{Getenv: os.Getenv, Environ: os.Environ()}
}

// SpareMemory makes a process that puts load on small: it lets the heap grow by a
// third between collections, not to twice its size, unless the environment says
// otherwise. Loads are heavy in chunks, which leave no garbage, so this costs little.
func SpareMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(33)
	}
}

// ignored names settings of existing files that have no effect here.
func ignored(spec *experiment.Spec) []string {
	var notes []string
	if spec.Results != (experiment.Results{}) {
		notes = append(notes, "results: has no effect; results are kept in --state-dir")
	}
	if spec.Strategy.StoragePath != "" {
		notes = append(notes, "strategy.storagePath: has no effect; the state is kept in --state-dir")
	}
	return notes
}

// local builds the deployer of local processes; records is its directory for
// the files of running processes.
func (s *setup) local(records string) *local.Deployer {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return &local.Deployer{
		Engine: s.engine, Options: s.options, Guard: []string{self, GuardCommand}, Self: self,
		Records: records, Environ: os.Environ(), APIKey: s.plan.APIKey,
	}
}

// deployer is that of the experiment's target; dir must be locked.
func (o *options) deployer(s *setup, dir *state.Dir) (experiment.Deployer, error) {
	if s.spec.Execution.Target == experiment.TargetLocal {
		return s.local(dir.ProcessDir()), nil
	}
	id, err := dir.ID()
	if err != nil {
		return nil, err
	}
	d, err := o.cluster(s, id)
	if err != nil {
		return nil, err
	}
	d.APIKey = s.plan.APIKey
	return d, nil
}

// runner puts the loop of an experiment together; dir must be locked.
func (o *options) runner(s *setup, dir *state.Dir, report func(experiment.Event)) (*experiment.Runner, error) {
	SpareMemory()
	deployer, err := o.deployer(s, dir)
	if err != nil {
		return nil, err
	}
	return &experiment.Runner{
		Spec: s.spec, Searcher: s.searcher, Evaluator: s.plan.Evaluator, Store: dir, Deployer: deployer,
		Render: func(t experiment.Template, p experiment.Params) ([]byte, error) {
			manifest, err := s.engine.Render(t.Source, p, s.options)
			if err != nil {
				return nil, err
			}
			return manifest, s.fits(manifest)
		},
		Folder:  func(template string, index int) experiment.Folder { return dir.Trial(template, index) },
		Publish: func(r *experiment.Result) error { return s.publish(dir, r) },
		Report:  report,
		Now:     o.now,
	}, nil
}

// publish writes the files that are derived from the trials.
func (s *setup) publish(dir *state.Dir, r *experiment.Result) error {
	manifest, err := s.winner(r.Best)
	if err != nil {
		return err
	}
	return errors.Join(dir.WriteBest(manifest), dir.WriteResult(r), dir.WriteReport(r.Summary()))
}

// winner is the template with the best parameters; nil when there is none.
func (s *setup) winner(best *experiment.Best) ([]byte, error) {
	if best == nil {
		return nil, nil
	}
	for _, t := range s.spec.Templates {
		if t.Name == best.Template {
			return s.engine.Render(t.Source, best.Params, s.options)
		}
	}
	return nil, fmt.Errorf("template %s is not in the experiment", best.Template)
}

// absolute makes a path good for any working directory; where there is none to
// start from, the path stays as it is.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
