// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/llmctl/llmctl/experiment"
)

// savedTrial is a trial as it stands in the files.
type savedTrial struct {
	trial experiment.Trial
	line  []byte
}

// Save stores the state of one template: first the records of new and changed
// trials, each on its own (see TrialDir.MetricsFile), then the checkpoint. On an
// error the last checkpoint is still in place. Earlier trials are compared, not
// written again, so a trial is changed by replacing what its pointers point to,
// never by writing through them.
func (d *Dir) Save(st experiment.TemplateState) error {
	if err := d.needLock(); err != nil {
		return err
	}
	if err := verify(st, st.Name); err != nil {
		return fmt.Errorf("save template %q: %w", st.Name, err)
	}
	trials, err := d.encodeTrials(st)
	if err != nil {
		return err
	}
	checkpoint, err := join(st, trials)
	if err != nil {
		return fmt.Errorf("encode template %s: %w", st.Name, err)
	}
	before := d.saved[st.Name]
	for i, t := range trials {
		if i < len(before) && bytes.Equal(before[i].line, t.line) {
			continue
		}
		if err := replace(d.Trial(st.Name, i).MetricsFile(), indent(t.line), nil); err != nil {
			return err
		}
	}
	path := d.CheckpointFile(st.Name)
	err = replace(path, checkpoint, func() error { return linkPrevious(path, d.previousFile(st.Name)) })
	if err != nil {
		return err
	}
	for i := len(trials); i < len(before); i++ {
		if err := remove(d.Trial(st.Name, i).MetricsFile()); err != nil {
			return err
		}
	}
	d.saved[st.Name] = trials
	return nil
}

// encodeTrials takes the text of unchanged trials from the last Save.
func (d *Dir) encodeTrials(st experiment.TemplateState) ([]savedTrial, error) {
	before := d.saved[st.Name]
	trials := make([]savedTrial, len(st.Trials))
	for i, t := range st.Trials {
		if i < len(before) && reflect.DeepEqual(before[i].trial, t) {
			trials[i] = before[i]
			continue
		}
		line, err := encode(t)
		if err != nil {
			return nil, fmt.Errorf("encode trial %d of template %s: %w", i, st.Name, err)
		}
		trials[i] = savedTrial{t, line}
	}
	return trials, nil
}

// join lays out a checkpoint: ordinary JSON with one line per trial.
func join(st experiment.TemplateState, trials []savedTrial) ([]byte, error) {
	st.Trials = []experiment.Trial{}
	empty, err := encode(st)
	if err != nil {
		return nil, err
	}
	head, ok := bytes.CutSuffix(empty, []byte("]}"))
	if !ok {
		return nil, fmt.Errorf("trials are not the last key of %s", empty)
	}
	size := len(empty) + len("\n\n")
	for _, t := range trials {
		size += len(",\n") + len(t.line)
	}
	out := bytes.NewBuffer(make([]byte, 0, size)) // over a megabyte at a thousand trials: not grown step by step
	out.Write(head)
	for i, t := range trials {
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteByte('\n')
		out.Write(t.line)
	}
	out.WriteString("\n]}\n")
	return out.Bytes(), nil
}

// encodeResult lays out a result: its other keys, then the templates as in their
// checkpoints.
func (d *Dir) encodeResult(r *experiment.Result) ([]byte, error) {
	rest := *r
	rest.Templates = nil
	line, err := encode(rest)
	if err != nil {
		return nil, err
	}
	head, ok := bytes.CutSuffix(line, []byte(`"templates":null}`))
	if !ok {
		return nil, fmt.Errorf("templates are not the last key of %s", line)
	}
	out := bytes.NewBuffer(slices.Clone(head))
	out.WriteString(`"templates":[`)
	for i, st := range r.Templates {
		trials, err := d.encodeTrials(st)
		if err != nil {
			return nil, err
		}
		text, err := join(st, trials)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteByte('\n')
		out.Write(bytes.TrimSpace(text))
	}
	out.WriteString("\n]}\n")
	return out.Bytes(), nil
}

// Load reads the state of one template; one that has none is new. A damaged
// checkpoint is never taken for a new one: the state is put together from the
// previous checkpoint and the trials' own records, Warn is told, and, when this
// process holds the lock, the damaged file is kept under another name. Without
// the lock nothing is changed.
func (d *Dir) Load(template string) (experiment.TemplateState, error) {
	if err := experiment.ValidName(template); err != nil {
		return experiment.TemplateState{}, fmt.Errorf("template name %w", err)
	}
	path := d.CheckpointFile(template)
	st, err := readCheckpoint(path, template)
	if err == nil {
		return st, d.remember(st)
	}
	var broken *damage
	missing := errors.Is(err, fs.ErrNotExist)
	if !missing && !errors.As(err, &broken) {
		return st, err
	}
	st = d.rebuild(template)
	delete(d.saved, template) // the next Save writes all of it again
	if missing && len(st.Trials) == 0 {
		return st, nil
	}
	note := "checkpoint " + d.relative(path) + " is missing"
	if !missing {
		note = fmt.Sprintf("checkpoint %s is damaged (%v)", d.relative(path), broken)
	}
	if !missing && d.lock != nil {
		kept, err := d.setAside(path)
		if err != nil {
			return st, err
		}
		note += "; kept as " + d.relative(kept)
	}
	d.Warn(fmt.Sprintf("%s; trials recovered from the previous checkpoint and their own records: %d", note, len(st.Trials)))
	return st, nil
}

// remember makes the next Save write only what differs from st.
func (d *Dir) remember(st experiment.TemplateState) error {
	trials, err := d.encodeTrials(st)
	if err != nil {
		return err
	}
	d.saved[st.Name] = trials
	return nil
}

// rebuild puts a state together from the previous checkpoint and the trials' own
// records. A record is written before the checkpoint that holds its trial, so it
// is never the older one.
func (d *Dir) rebuild(template string) experiment.TemplateState {
	st, err := readCheckpoint(d.previousFile(template), template)
	if err != nil {
		st = experiment.TemplateState{Name: template} // neither generation can be read: the records remain
	}
	for i := 0; ; i++ {
		t, err := readRecord(d.Trial(template, i).MetricsFile(), template, i)
		switch {
		case err != nil && i >= len(st.Trials):
			return st
		case err != nil:
		case i < len(st.Trials):
			st.Trials[i] = t
		default:
			st.Trials = append(st.Trials, t)
			st.Completed, st.TerminationReason = false, "" // said of fewer trials
		}
	}
}

// setAside renames a damaged file to a name that is free.
func (d *Dir) setAside(path string) (string, error) {
	stamp := path + ".corrupt-" + d.Now().UTC().Format("20060102T150405Z")
	kept := stamp
	for n := 2; ; n++ {
		if _, err := os.Lstat(kept); errors.Is(err, fs.ErrNotExist) {
			break
		}
		kept = fmt.Sprintf("%s-%d", stamp, n)
	}
	if err := os.Rename(path, kept); err != nil {
		return "", explain("set aside", path, err)
	}
	return kept, syncDir(filepath.Dir(path))
}

// relative is path as it is told to people: below the experiment's directory.
func (d *Dir) relative(path string) string {
	if rel, err := filepath.Rel(d.path, path); err == nil {
		return rel
	}
	return path
}

// damage is why a file's content cannot be used.
type damage struct{ why error }

func (d *damage) Error() string { return d.why.Error() }

// readCheckpoint returns a *damage when the file can be read but not used.
func readCheckpoint(path, template string) (experiment.TemplateState, error) {
	var st experiment.TemplateState
	data, err := os.ReadFile(path)
	if err != nil {
		return st, err
	}
	if err := json.Unmarshal(data, &st); err != nil {
		return st, &damage{err}
	}
	if err := verify(st, template); err != nil {
		return st, &damage{err}
	}
	return st, nil
}

// verify checks that st can be what was saved for template.
func verify(st experiment.TemplateState, template string) error {
	if err := experiment.ValidName(template); err != nil {
		return fmt.Errorf("name %w", err)
	}
	if st.Name != template {
		return fmt.Errorf("it is of template %q", st.Name)
	}
	for i, t := range st.Trials {
		if t.Template != template || t.Index != i {
			return fmt.Errorf("trial %d is trial %d of template %q", i, t.Index, t.Template)
		}
	}
	return nil
}

func readRecord(path, template string, index int) (experiment.Trial, error) {
	var t experiment.Trial
	data, err := os.ReadFile(path)
	if err != nil {
		return t, err
	}
	if err := json.Unmarshal(data, &t); err != nil {
		return t, err
	}
	if t.Template != template || t.Index != index {
		return t, fmt.Errorf("%s is of trial %d of template %q", path, t.Index, t.Template)
	}
	return t, nil
}
