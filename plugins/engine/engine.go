// SPDX-License-Identifier: Apache-2.0

// Package engine knows inference engines: how to find one in a manifest, how to
// change its command line exactly, and what its log says when it dies. An
// engine is a YAML descriptor; nothing in the code names one.
package engine

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed descriptors/*.yaml
var builtin embed.FS

// Engine is one inference engine.
type Engine struct {
	Name        string
	DefaultPort int
	HealthPath  string // URL path that answers 200 once the engine serves
	MetricsPath string // URL path of the Prometheus metrics

	desc    *descriptor
	grammar *grammar
	kinds   []kindPods
}

// Names lists the engines that come with the program, sorted.
func Names() []string {
	files, err := builtinFiles()
	if err != nil {
		panic("engine: " + err.Error()) // the embedded files are tested
	}
	return files.names()
}

// Load returns the engine with the given name. Files *.yaml in dirs add
// engines and replace those of the same name, later directories first; a file
// that extends its own name builds on the one it replaces.
func Load(name string, dirs ...string) (*Engine, error) {
	files, err := builtinFiles()
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		if err := files.add(os.DirFS(dir), dir); err != nil {
			return nil, err
		}
	}
	desc, err := files.resolve(name, len(files))
	if err != nil {
		return nil, err
	}
	if err := desc.check(); err != nil {
		return nil, fmt.Errorf("engine %s: %w", name, err)
	}
	g, err := newGrammar(desc)
	if err != nil {
		return nil, fmt.Errorf("engine %s: %w", name, err)
	}
	kinds, err := loadKinds()
	if err != nil {
		return nil, err
	}
	return &Engine{
		Name: name, DefaultPort: desc.Port.Default, HealthPath: desc.Health, MetricsPath: desc.Metrics,
		desc: desc, grammar: g, kinds: kinds,
	}, nil
}

// Parameters lists the engine's abstract parameters, sorted; other names of a
// parameter are not in the list.
func (e *Engine) Parameters() []string { return slices.Sorted(maps.Keys(e.desc.Parameters)) }

// descriptorFile is one descriptor as it was read.
type descriptorFile struct {
	name, path string
	data       []byte
}

// descriptorFiles are in the order of reading; of one name the last counts.
type descriptorFiles []descriptorFile

func builtinFiles() (descriptorFiles, error) {
	sub, err := fs.Sub(builtin, "descriptors")
	if err != nil {
		return nil, err
	}
	var files descriptorFiles
	err = files.add(sub, "descriptors")
	return files, err
}

func (files *descriptorFiles) add(dir fs.FS, where string) error {
	names, err := fs.Glob(dir, "*.yaml")
	if err != nil {
		return err
	}
	if _, err := fs.Stat(dir, "."); err != nil {
		return fmt.Errorf("engine directory: %w", err)
	}
	for _, name := range names {
		data, err := fs.ReadFile(dir, name)
		if err != nil {
			return fmt.Errorf("read engine file: %w", err)
		}
		file := descriptorFile{strings.TrimSuffix(path.Base(name), ".yaml"), filepath.Join(where, name), data}
		*files = append(*files, file)
	}
	return nil
}

func (files descriptorFiles) names() []string {
	set := map[string]bool{}
	for _, f := range files {
		set[f.name] = true
	}
	return slices.Sorted(maps.Keys(set))
}

var errNoDescriptor = errors.New("no such engine")

// resolve reads the descriptor of the given name among the first n files, and
// the ones that it extends.
func (files descriptorFiles) resolve(name string, n int) (*descriptor, error) {
	i := n - 1
	for i >= 0 && files[i].name != name {
		i--
	}
	if i < 0 {
		return nil, fmt.Errorf("engine %q: %w; known are %s", name, errNoDescriptor, strings.Join(files.names(), ", "))
	}
	d := &descriptor{}
	if err := decodeStrict(files[i].data, d); err != nil {
		return nil, fmt.Errorf("%s: %w", files[i].path, err)
	}
	if d.Extends == "" {
		return d, nil
	}
	// An engine that extends its own name means the one it replaces; every
	// other base may be any file, but never again this one.
	visible := files[:i]
	if d.Extends != name {
		visible = slices.DeleteFunc(slices.Clone(files), func(f descriptorFile) bool { return f.name == name })
	}
	base, err := visible.resolve(d.Extends, len(visible))
	if err != nil {
		return nil, fmt.Errorf("%s: extends: %w", files[i].path, err)
	}
	d.extend(base)
	return d, nil
}
