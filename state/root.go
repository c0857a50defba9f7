// SPDX-License-Identifier: Apache-2.0

// Package state keeps experiments as plain files, one directory each, so that a
// run can be interrupted anywhere, resumed, and read after the fact. It is the
// only code that knows file names.
package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/llmctl/llmctl/experiment"
)

// Why an experiment cannot be opened.
var (
	ErrExists   = errors.New("already exists")
	ErrNotFound = errors.New("not found")
	ErrLocked   = errors.New("locked by another run")
)

// Root is the directory that holds the experiments.
type Root string

// DefaultRoot is $LLMCTL_STATE_DIR, else $XDG_STATE_HOME/llmctl, else
// home/.local/state/llmctl.
func DefaultRoot(getenv func(string) string, home string) Root {
	if dir := getenv("LLMCTL_STATE_DIR"); dir != "" {
		return Root(dir)
	}
	// The XDG base directory specification has relative paths ignored.
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return Root(filepath.Join(dir, "llmctl"))
	}
	return Root(filepath.Join(home, ".local", "state", "llmctl"))
}

// Create makes the directory of a new experiment and locks it; call Unlock at
// the end. It returns ErrExists when the name is taken, and ErrLocked when it is
// taken and running.
func (r Root) Create(name string) (*Dir, error) {
	d, err := r.dir(name)
	if err != nil {
		return nil, err
	}
	if err := makeDir(d.path); err != nil {
		return nil, err
	}
	if err := d.Lock(); err != nil {
		return nil, err
	}
	taken, err := d.exists()
	if err == nil && taken {
		err = fmt.Errorf("experiment %q %w in %s: resume it, delete it or choose another --name", name, ErrExists, r)
	}
	if err != nil {
		return nil, errors.Join(err, d.Unlock())
	}
	return d, nil
}

// Open finds an experiment. The result is for reading until it is locked.
func (r Root) Open(name string) (*Dir, error) {
	d, err := r.dir(name)
	if err != nil {
		return nil, err
	}
	found, err := d.exists()
	if err != nil {
		return nil, fmt.Errorf("open experiment %q: %w", name, err)
	}
	if found {
		return d, nil
	}
	names, err := r.List()
	if err != nil {
		return nil, err
	}
	hint := ""
	if near := experiment.Nearest(name, names); near != "" {
		hint = "; did you mean " + near + "?"
	}
	return nil, fmt.Errorf("experiment %q %w in %s%s", name, ErrNotFound, r, hint)
}

// List names the experiments, sorted. A root that does not exist has none.
func (r Root) List() ([]string, error) {
	entries, err := os.ReadDir(string(r))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, explain("read", string(r), err)
	}
	var names []string
	for _, entry := range entries {
		d, err := r.dir(entry.Name())
		if err != nil {
			continue // no name of ours, such as a directory that is being deleted
		}
		// One that cannot be looked into is listed: reading it will say why.
		if found, err := d.exists(); found || err != nil && entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

func (r Root) dir(name string) (*Dir, error) {
	if err := experiment.ValidName(name); err != nil {
		return nil, fmt.Errorf("experiment name %w", err)
	}
	return &Dir{
		Warn:  func(string) {},
		Now:   time.Now,
		path:  filepath.Join(string(r), name),
		saved: map[string][]savedTrial{},
	}, nil
}
