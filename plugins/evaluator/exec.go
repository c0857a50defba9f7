// SPDX-License-Identifier: Apache-2.0

package evaluator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/llmctl/llmctl/experiment"
)

// command measures with a command of the user's; doc/evaluators.md has the contract.
type command struct{ settings }

func (e command) Evaluate(ctx context.Context, t experiment.Target, traffic experiment.Traffic) (*experiment.Metrics, error) {
	dir, err := os.MkdirTemp("", "llmctl-exec-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "metrics.json")
	environ := slices.Clone(e.environ)
	for _, name := range slices.Sorted(maps.Keys(e.env)) {
		environ = append(environ, name+"="+e.env[name])
	}
	environ = append(environ, e.variables(t, traffic, file)...)
	p := process{argv: e.command, environ: environ, log: traffic.Log, secrets: e.secrets}
	return p.measure(ctx, "the command gave metrics", func() (*experiment.Metrics, error) { return readMetrics(file) })
}

// variables tell the command what to do.
func (e command) variables(t experiment.Target, traffic experiment.Traffic, file string) []string {
	s := traffic.Scenario
	list := []string{
		"LLMCTL_BASE_URL=" + t.BaseURL, "LLMCTL_MODEL=" + t.Model, "LLMCTL_METRICS_FILE=" + file,
		"LLMCTL_WORKLOAD=" + s.Workload, "LLMCTL_SEED=" + strconv.FormatUint(traffic.Seed+e.baseSeed, 10),
		"LLMCTL_WARM=" + strconv.FormatBool(traffic.Warm),
	}
	add := func(name string, value float64) {
		if value > 0 {
			list = append(list, name+"="+strconv.FormatFloat(value, 'f', -1, 64))
		}
	}
	add("LLMCTL_CONCURRENCY", float64(s.Concurrency))
	add("LLMCTL_RATE", s.Rate)
	add("LLMCTL_MAX_REQUESTS", float64(s.MaxRequests))
	add("LLMCTL_DURATION_SECONDS", s.Duration.Seconds())
	for name, value := range map[string]string{"LLMCTL_ARRIVAL": s.Arrival, "LLMCTL_TRACE": s.Trace, "LLMCTL_API_KEY": e.apiKey} {
		if value != "" {
			list = append(list, name+"="+value)
		}
	}
	slices.Sort(list)
	return list
}

// readMetrics reads the metrics that a command wrote, in the shape of
// experiment.Metrics. Numbers that are none are not measured.
func readMetrics(path string) (*experiment.Metrics, error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: the command wrote no $LLMCTL_METRICS_FILE", errNoResult)
	case err != nil:
		return nil, err
	case len(bytes.TrimSpace(data)) == 0:
		return nil, fmt.Errorf("%w: $LLMCTL_METRICS_FILE is empty", errNoResult)
	}
	clean, replaced := withoutNaN(data)
	dec := json.NewDecoder(bytes.NewReader(clean))
	dec.DisallowUnknownFields()
	var m experiment.Metrics
	err = dec.Decode(&m)
	if _, more := dec.Token(); err == nil && more != io.EOF {
		err = errors.New("something follows the object")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: $LLMCTL_METRICS_FILE: %w; it begins with: %.200s", errNoResult, err, bytes.TrimSpace(data))
	}
	if replaced > 0 {
		m.Warnings = append(m.Warnings, fmt.Sprintf("%d numbers of the command's metrics were NaN or infinite and are treated as not measured", replaced))
	}
	return &m, nil
}
