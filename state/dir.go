// SPDX-License-Identifier: Apache-2.0

package state

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/llmctl/llmctl/experiment"
)

// Dir is the directory of one experiment. It is not safe for concurrent use by
// several goroutines.
type Dir struct {
	Warn func(string)     // is told, in one sentence, about damage that was found
	Now  func() time.Time // names damaged files that are set aside

	path  string
	lock  *flock.Flock // nil: for reading
	saved map[string][]savedTrial
}

var _ experiment.Store = (*Dir)(nil)

// Path is the directory, e.g. ~/.local/state/llmctl/quickstart
func (d *Dir) Path() string { return d.path }

// Name is the experiment's, e.g. quickstart
func (d *Dir) Name() string { return filepath.Base(d.path) }

// ExperimentFile is what is being run, e.g. quickstart/experiment.yaml
func (d *Dir) ExperimentFile() string { return filepath.Join(d.path, "experiment.yaml") }

// ManifestFile is a template at the start, e.g. quickstart/manifests/small.yaml
func (d *Dir) ManifestFile(template string) string {
	return filepath.Join(d.path, "manifests", template+".yaml")
}

// CheckpointFile is a template's state, e.g. quickstart/templates/small.json
func (d *Dir) CheckpointFile(template string) string {
	return filepath.Join(d.path, "templates", template+".json")
}

// LogFile is all the run said, e.g. quickstart/controller.log
func (d *Dir) LogFile() string { return filepath.Join(d.path, "controller.log") }

// ResultFile is the full result, e.g. quickstart/result.json
func (d *Dir) ResultFile() string { return filepath.Join(d.path, "result.json") }

// ReportFile is the summary, e.g. quickstart/report.json
func (d *Dir) ReportFile() string { return filepath.Join(d.path, "report.json") }

// BestFile is the winner's manifest, e.g. quickstart/best_trial.yaml
func (d *Dir) BestFile() string { return filepath.Join(d.path, "best_trial.yaml") }

// ProcessDir has a record of each local process, e.g. quickstart/processes
func (d *Dir) ProcessDir() string { return filepath.Join(d.path, "processes") }

// idFile is what the experiment's objects in a cluster are labelled with, e.g. quickstart/id
func (d *Dir) idFile() string { return filepath.Join(d.path, "id") }

// ID tells the experiment apart from any other of the same name, also on other
// machines. It is made up when it is first asked for, which needs the lock.
func (d *Dir) ID() (string, error) {
	data, err := os.ReadFile(d.idFile())
	if id := strings.TrimSpace(string(data)); err == nil && id != "" {
		return id, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", explain("read", d.idFile(), err)
	}
	if err := d.needLock(); err != nil {
		return "", err
	}
	id := strings.ToLower(rand.Text())
	return id, replace(d.idFile(), []byte(id+"\n"), nil)
}

// previousFile is the checkpoint before the last, e.g. quickstart/templates/small.json.prev
func (d *Dir) previousFile(template string) string { return d.CheckpointFile(template) + ".prev" }

// lockFile is locked during a run, e.g. quickstart/lock
func (d *Dir) lockFile() string { return filepath.Join(d.path, "lock") }

// Trial is where a trial keeps its files, e.g. quickstart/trials/small/3
func (d *Dir) Trial(template string, index int) TrialDir {
	return TrialDir{d, template, filepath.Join(d.path, "trials", template, strconv.Itoa(index))}
}

// exists tells whether an experiment was begun here.
func (d *Dir) exists() (bool, error) {
	for _, path := range []string{d.ExperimentFile(), filepath.Dir(d.CheckpointFile(""))} {
		_, err := os.Stat(path)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return false, nil
}

// WriteExperiment stores what is being run: the templates' manifests, by name,
// and then the experiment file, so that an experiment with a file is complete.
// On resume with another budget or SLA the manifests stay; pass nil.
func (d *Dir) WriteExperiment(file []byte, manifests map[string][]byte) error {
	if err := d.needLock(); err != nil {
		return err
	}
	for _, template := range slices.Sorted(maps.Keys(manifests)) {
		if err := experiment.ValidName(template); err != nil {
			return fmt.Errorf("template name %w", err)
		}
		if err := replace(d.ManifestFile(template), manifests[template], nil); err != nil {
			return err
		}
	}
	return replace(d.ExperimentFile(), file, nil)
}

// OpenLog opens controller.log for appending, unbuffered.
func (d *Dir) OpenLog() (io.WriteCloser, error) { return openAppend(d.LogFile()) }

// WriteResult stores result.json, one line per trial. The texts of trials that
// Save has written are used again.
func (d *Dir) WriteResult(r *experiment.Result) error {
	if err := d.needLock(); err != nil {
		return err
	}
	data, err := d.encodeResult(r)
	if err != nil {
		return fmt.Errorf("encode %s: %w", d.ResultFile(), err)
	}
	return replace(d.ResultFile(), data, nil)
}

// WriteReport stores report.json. Lists of many experiments read only this file
// of each.
func (d *Dir) WriteReport(s experiment.Summary) error {
	if err := d.needLock(); err != nil {
		return err
	}
	line, err := encode(s)
	if err != nil {
		return fmt.Errorf("encode %s: %w", d.ReportFile(), err)
	}
	return replace(d.ReportFile(), indent(line), nil)
}

// WriteBest stores the winner's manifest; nil removes it, because nothing is feasible.
func (d *Dir) WriteBest(manifest []byte) error {
	if err := d.needLock(); err != nil {
		return err
	}
	if manifest != nil {
		return replace(d.BestFile(), manifest, nil)
	}
	return remove(d.BestFile())
}

// Experiment reads experiment.yaml.
func (d *Dir) Experiment() ([]byte, error) { return os.ReadFile(d.ExperimentFile()) }

// Manifest reads a template as it was at the start.
func (d *Dir) Manifest(template string) ([]byte, error) { return os.ReadFile(d.ManifestFile(template)) }

// Result reads result.json; fs.ErrNotExist before the first trial has finished.
func (d *Dir) Result() ([]byte, error) { return os.ReadFile(d.ResultFile()) }

// Report reads report.json; fs.ErrNotExist before the first trial has finished.
func (d *Dir) Report() ([]byte, error) { return os.ReadFile(d.ReportFile()) }

// Best reads best_trial.yaml; fs.ErrNotExist when nothing is feasible.
func (d *Dir) Best() ([]byte, error) { return os.ReadFile(d.BestFile()) }
