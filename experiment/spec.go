// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"encoding/json"
	"time"
)

// APIVersion and Kind may head an experiment file.
const (
	APIVersion = "llmctl.io/v1alpha1"
	Kind       = "AutoBenchmark"
)

// Spec is an experiment file after loading: every duration, enum and number is
// typed, defaults are filled in. Its JSON has the keys of the file.
type Spec struct {
	Name      string     `json:"name"`
	Templates []Template `json:"templates"`
	Backend   string     `json:"backend"` // the engine's name
	Space     Space      `json:"searchSpace"`
	// ExcludeDefaultRoles are roles to which the parameters of role "default" do not apply.
	ExcludeDefaultRoles []string    `json:"excludeDefaultRoles,omitempty"`
	Constraints         Constraints `json:"constraints,omitempty"`
	Scenario            Scenario    `json:"scenario"`
	Objectives          Objectives  `json:"objectives"`
	Strategy            Strategy    `json:"strategy"`
	Evaluator           Plugin      `json:"evaluator"`
	Results             Results     `json:"results,omitzero"`
	Execution           Execution   `json:"execution"`
}

// Template is a complete manifest that holds one engine workload.
type Template struct {
	Name   string `json:"name"`
	Path   string `json:"template"` // file; relative paths start at the experiment file's folder
	Source []byte `json:"-"`        // the file's text
}

// Scenario is the load.
type Scenario struct {
	Name string `json:"name,omitempty"`
	// Workload is the shape of the requests, such as fixed(512,256); the evaluator
	// reads it. Empty with a trace.
	Workload string `json:"workload,omitempty"`
	// Concurrency is the number of requests in flight (a closed loop); unused when
	// a sweep is given.
	Concurrency      int   `json:"concurrency,omitempty"`
	ConcurrencySweep []int `json:"concurrencySweep,omitempty"` // levels, ascending

	// Rate is the number of requests sent per second whatever the engine does (an
	// open loop); RateSweep are levels of it, ascending.
	Rate      float64       `json:"rate,omitempty"`
	RateSweep []float64     `json:"rateSweep,omitempty"`
	Arrival   string        `json:"arrival,omitempty"` // constant, poisson or gamma(burstiness); the evaluator reads it
	RampUp    time.Duration `json:"-"`                 // in which the rate grows from 0

	// Trace is a file of arrival times and lengths to replay, an absolute path
	// once loaded; TraceSource is its content.
	Trace       string `json:"trace,omitempty"`
	TraceSource []byte `json:"-"`

	// MaxLoad searches the largest load that keeps the SLA.
	MaxLoad *MaxLoad `json:"maxLoad,omitempty"`

	Duration    time.Duration `json:"-"`                     // 0: no limit
	MaxRequests int           `json:"maxRequests,omitempty"` // 0: no limit
	MinRequests int           `json:"minRequests,omitempty"` // least requests of a sweep's level
	// StopWhenDecided ends a level as soon as no outcome of its remaining requests
	// could make it keep the SLA.
	StopWhenDecided bool `json:"stopWhenDecided"`
}

// What MaxLoad varies.
const (
	LoadConcurrency = "concurrency"
	LoadRate        = "rate"
)

// MaxLoad is the range in which the largest load is searched.
type MaxLoad struct {
	Of  string  `json:"of"` // concurrency or rate
	Min float64 `json:"min"`
	Max float64 `json:"max"`
}

// Objectives are the bounds to keep and the metric to optimise.
type Objectives struct {
	Bounds     []Bound `json:"-"` // key sla in the file
	Optimize   string  `json:"optimize"`
	AllowNoSLA bool    `json:"allowNoSLA,omitempty"`
}

// Strategy says how to search and when to stop.
type Strategy struct {
	Algorithm            string           `json:"algorithm"`
	MaxTrialsPerTemplate int              `json:"maxTrialsPerTemplate"` // the baseline included
	Timeout              time.Duration    `json:"-"`                    // of one run or resume; 0: none
	Seed                 uint64           `json:"seed"`
	EarlyTermination     EarlyTermination `json:"earlyTermination"`
	AlgorithmConfig      map[string]any   `json:"algorithmConfig,omitempty"`
	StoragePath          string           `json:"storagePath,omitempty"` // accepted and unused: state is plain files
}

// EarlyTermination ends a template when going on is pointless. A limit of 0 is off.
type EarlyTermination struct {
	MinTrials                 int     `json:"minTrials,omitempty"` // finished trials before the SLA rules apply
	MaxConsecutiveErrors      int     `json:"maxConsecutiveErrors"`
	MaxConsecutiveSLAFailures int     `json:"maxConsecutiveSLAFailures,omitempty"`
	MaxSLAFailureRate         float64 `json:"maxSLAFailureRate,omitempty"` // in (0, 1]; reached counts
}

// Plugin names an implementation and carries its own settings.
type Plugin struct {
	Type   string         `json:"type"`
	Config map[string]any `json:"config,omitempty"`
}

// Results is accepted from existing files; results are kept in the state directory.
type Results struct {
	PVC     string `json:"pvc,omitempty"`
	SubPath string `json:"subPath,omitempty"`
}

// Where a trial runs.
const (
	TargetKubernetes = "kubernetes"
	TargetLocal      = "local"
)

// Execution says where and how long trials run.
type Execution struct {
	Target       string        `json:"target"`
	ReadyTimeout time.Duration `json:"-"` // key rbgReadyTimeout (alias readyTimeout)
	TrialTimeout time.Duration `json:"-"` // one whole trial; 0: none
	// InfraRetries is how often a trial is made again after a failure that has
	// nothing to do with it, such as a node that went away.
	InfraRetries int `json:"infraRetries"`

	// The rest is for trials in a cluster.
	SchedulingTimeout time.Duration `json:"-"`           // pending without a node; longer while nodes are being added
	ImagePullTimeout  time.Duration `json:"-"`           // since the first failed pull
	MaxRestarts       int           `json:"maxRestarts"` // of a container, before it serves
	// PodTemplatePaths lead to the pod templates of kinds that llmctl does not
	// know, such as spec.workers[].template.
	PodTemplatePaths []string `json:"podTemplatePaths,omitempty"`
	// Endpoint is where the engine is reached; empty: found from the workload.
	Endpoint string `json:"endpoint,omitempty"`
}

// MarshalJSON adds the durations as text.
func (s Scenario) MarshalJSON() ([]byte, error) {
	type plain Scenario
	return json.Marshal(struct {
		plain
		Duration string `json:"duration,omitempty"`
		RampUp   string `json:"rampUp,omitempty"`
	}{plain(s), text(s.Duration), text(s.RampUp)})
}

// MarshalJSON adds the bounds under the keys of the file.
func (o Objectives) MarshalJSON() ([]byte, error) {
	type plain Objectives
	sla := map[string]float64{}
	for _, b := range o.Bounds {
		sla[b.Key()] = b.Limit
	}
	return json.Marshal(struct {
		SLA map[string]float64 `json:"sla"`
		plain
	}{sla, plain(o)})
}

// MarshalJSON adds the timeout as text.
func (s Strategy) MarshalJSON() ([]byte, error) {
	type plain Strategy
	return json.Marshal(struct {
		plain
		Timeout string `json:"timeout,omitempty"`
	}{plain(s), text(s.Timeout)})
}

// MarshalJSON adds the timeouts as text.
func (e Execution) MarshalJSON() ([]byte, error) {
	type plain Execution
	return json.Marshal(struct {
		plain
		ReadyTimeout      string `json:"rbgReadyTimeout"`
		TrialTimeout      string `json:"trialTimeout"`
		SchedulingTimeout string `json:"schedulingTimeout"`
		ImagePullTimeout  string `json:"imagePullTimeout"`
	}{plain(e), e.ReadyTimeout.String(), e.TrialTimeout.String(), e.SchedulingTimeout.String(), e.ImagePullTimeout.String()})
}

func text(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}
