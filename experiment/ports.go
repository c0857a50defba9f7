// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"context"
	"errors"
	"io"
)

// ErrExhausted is returned by a Searcher that has nothing new to propose; like
// io.EOF it is a normal end.
var ErrExhausted = errors.New("search space exhausted")

// Searcher proposes what to try next. It keeps no state: equal histories give
// equal proposals, and it never proposes settings that are in the history.
// history holds the template's finished trials in order, baseline first.
type Searcher interface {
	Next(ctx context.Context, history []Trial) (Params, error)
}

// Plan is one trial about to be deployed.
type Plan struct {
	Template string
	Index    int
	Name     string // of the workload; unique within the experiment, a valid object name
	Manifest []byte // the template with the trial's flags
	Logs     string // existing directory for the workload's logs
}

// Deployer starts trial workloads.
type Deployer interface {
	// Deploy starts the workload and returns at once. When it fails nothing is left running.
	Deploy(ctx context.Context, plan Plan) (Instance, error)
	// Sweep removes what an earlier, killed run of this experiment left behind.
	Sweep(ctx context.Context) error
}

// Instance is a deployed workload.
type Instance interface {
	// Ready blocks until the workload answers a real request, or fails fast with
	// a *Failure when it never will.
	Ready(ctx context.Context) (Target, error)
	// Diagnose writes what is left of the workload's logs and says what went
	// wrong; the zero Cause means that the workload is not at fault.
	Diagnose(ctx context.Context) (Cause, error)
	// Delete removes the workload and returns when its resources are free.
	// Deleting twice is fine.
	Delete(ctx context.Context) error
}

// Keeper is an Instance that can be left in place for debugging.
type Keeper interface {
	// Keep marks the workload as kept and tells how to remove it.
	Keep(ctx context.Context) (how string, err error)
}

// Target is a serving engine.
type Target struct {
	BaseURL string // http://host:port, no trailing slash
	Model   string // served model name
	// Direct is another address of the same engine, one without what the user put
	// in front of it; empty: there is none. It is for comparison.
	Direct string
	// Phases are parts of the way to serving, in order; may be empty.
	Phases []Phase
}

// Cause is why a workload failed.
type Cause struct {
	Class   string // config_error, gpu_oom, oom, server_died, not_ready, …
	Message string // one line, quoting the deciding log line
	Limit   *Limit // the engine's own limit that was met, when its log names one
}

// Limit is the value of a parameter from which on an engine cannot start.
type Limit struct {
	Param string `json:"param"`
	Value int64  `json:"value"`
}

// Failure is the error of a workload that will never serve.
type Failure struct{ Cause }

func (f *Failure) Error() string { return f.Message }

// Traffic is what an Evaluator puts on a Target.
type Traffic struct {
	Scenario   Scenario
	Objectives Objectives // what a passing level of a sweep keeps
	Seed       uint64     // of the prompts; equal for the trials of one index in every template
	Warm       bool       // the engine has served this traffic before: no warm-up
	Log        io.Writer  // benchmark.log
	// Diagnose says whether the workload has broken so far; the zero Cause: it has
	// not. An evaluator that asks and gives metrics all the same vouches for them.
	Diagnose func(context.Context) (Cause, error)
	// Requests opens the file of the raw records, requests.jsonl.gz, for
	// appending; the caller closes it.
	Requests func() (io.WriteCloser, error)
}

// Evaluator measures a serving engine under load. An error means that there is
// no measurement; failed requests are data.
type Evaluator interface {
	Evaluate(ctx context.Context, t Target, traffic Traffic) (*Metrics, error)
}

// Folder is the place of one trial's files.
type Folder interface {
	// Reset empties the folder for a new attempt.
	Reset() error
	WriteManifest(manifest []byte) error
	// BenchmarkLog opens benchmark.log; the caller closes it.
	BenchmarkLog() (io.WriteCloser, error)
	// Requests opens requests.jsonl.gz for appending; the caller closes it.
	Requests() (io.WriteCloser, error)
	// LogDir is the directory for the workload's logs; Reset makes it.
	LogDir() string
}

// Store keeps the checkpoints. Save is atomic: after a crash at any moment Load
// returns the state before or after it.
type Store interface {
	Load(template string) (TemplateState, error)
	Save(TemplateState) error
}
