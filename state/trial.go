// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/llmctl/llmctl/experiment"
)

// TrialDir is the directory of one trial.
type TrialDir struct {
	dir      *Dir
	template string
	path     string
}

var _ experiment.Folder = TrialDir{}

// Path is the directory, e.g. quickstart/trials/small/3
func (t TrialDir) Path() string { return t.path }

// ManifestFile is what was deployed, e.g. trials/small/3/manifest.yaml
func (t TrialDir) ManifestFile() string { return filepath.Join(t.path, "manifest.yaml") }

// BenchmarkLogFile is what the evaluator said, e.g. trials/small/3/benchmark.log
func (t TrialDir) BenchmarkLogFile() string { return filepath.Join(t.path, "benchmark.log") }

// MetricsFile is the whole trial record, e.g. trials/small/3/metrics.json
func (t TrialDir) MetricsFile() string { return filepath.Join(t.path, "metrics.json") }

// RequestsFile is one line per request, e.g. trials/small/3/requests.jsonl.gz
func (t TrialDir) RequestsFile() string { return filepath.Join(t.path, "requests.jsonl.gz") }

// LogDir is where the workload's logs go, e.g. trials/small/3/pod-logs
func (t TrialDir) LogDir() string { return filepath.Join(t.path, "pod-logs") }

// Reset prepares the directory for a new attempt: what an earlier one left is
// removed, LogDir exists.
func (t TrialDir) Reset() error {
	if err := t.dir.needLock(); err != nil {
		return err
	}
	if err := experiment.ValidName(t.template); err != nil {
		return fmt.Errorf("template name %w", err)
	}
	if err := os.RemoveAll(t.path); err != nil {
		return explain("empty", t.path, err)
	}
	return makeDir(t.LogDir())
}

// WriteManifest stores what is deployed.
func (t TrialDir) WriteManifest(manifest []byte) error {
	return replace(t.ManifestFile(), manifest, nil)
}

// Requests opens requests.jsonl.gz, the raw records, for appending.
func (t TrialDir) Requests() (io.WriteCloser, error) {
	return openAppend(filepath.Join(t.path, "requests.jsonl.gz"))
}

// BenchmarkLog opens benchmark.log for appending, unbuffered, so that it can be followed.
func (t TrialDir) BenchmarkLog() (io.WriteCloser, error) { return openAppend(t.BenchmarkLogFile()) }
