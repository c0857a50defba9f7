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
	"strings"
	"syscall"

	"github.com/google/renameio/v2"
)

// replace puts data at path as a whole or not at all, and returns when it would
// survive a power cut. beforeRename may be nil; it runs when the new content is
// on disk and the old one still in place.
func replace(path string, data []byte, beforeRename func() error) error {
	dir := filepath.Dir(path)
	if err := makeDir(dir); err != nil {
		return err
	}
	// With its own choice of directory renameio would probe $TMPDIR at every write.
	file, err := renameio.NewPendingFile(path, renameio.WithTempDir(dir), renameio.WithStaticPermissions(0o600))
	if err != nil {
		return explain("write", path, err)
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err == nil && beforeRename != nil {
		err = beforeRename()
	}
	if err == nil {
		err = file.CloseAtomicallyReplace()
	}
	if err != nil {
		return explain("write", path, errors.Join(err, file.Cleanup()))
	}
	return syncDir(dir)
}

// linkPrevious keeps the content of path under the name previous. The link is
// made aside and renamed, so that there is a previous file at every moment.
func linkPrevious(path, previous string) error {
	aside := temporary(path)
	err := os.Link(path, aside)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the first generation
	}
	if err != nil {
		return copyFile(path, previous) // a file system without hard links
	}
	if err := os.Rename(aside, previous); err != nil {
		return err
	}
	// Renaming one name of a file to another name of the same file does nothing.
	return remove(aside)
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return replace(to, data, nil)
}

// temporary is a name in renameio's style: .small.json0
func temporary(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"0")
}

// removeTemporaries clears away what a killed writer left: see temporary.
func (d *Dir) removeTemporaries() error {
	return filepath.WalkDir(d.path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return explain("read", path, err)
		}
		name, hidden := strings.CutPrefix(entry.Name(), ".")
		stem := strings.TrimRight(name, "0123456789")
		written := strings.HasSuffix(stem, ".json") || strings.HasSuffix(stem, ".yaml") || strings.HasSuffix(stem, ".prev")
		if hidden && written && stem != name && entry.Type().IsRegular() {
			return remove(path)
		}
		return nil
	})
}

// remove removes the file at path, which may be gone already.
func remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return explain("remove", path, err)
	}
	return syncDir(filepath.Dir(path))
}

// makeDir makes path and its parents, each lasting before the next.
func makeDir(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	parent := filepath.Dir(path)
	if parent != path {
		if err := makeDir(parent); err != nil {
			return err
		}
	}
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrExist) {
		if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
			return nil // made by another process at this moment
		}
		err = syscall.ENOTDIR
	}
	if err != nil {
		return explain("create", path, err)
	}
	return syncDir(parent)
}

// syncDir makes the names in a directory last.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return explain("open", path, err)
	}
	err = dir.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		err = nil // some network file systems have no such thing
	}
	if err = errors.Join(err, dir.Close()); err != nil {
		return explain("sync", path, err)
	}
	return nil
}

func openAppend(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, explain("open", path, err)
	}
	return file, nil
}

// explain names the file that was asked for, not the temporary one that the
// system complained about, and what a user can do.
func explain(verb, path string, err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	advice := ""
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		advice = "; free some space or choose another --state-dir"
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOTDIR):
		advice = "; choose another --state-dir"
	}
	return fmt.Errorf("%s %s: %w%s", verb, path, err, advice)
}

// encode gives v as one line of JSON, with < and > as they are.
func encode(v any) ([]byte, error) {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(line.Bytes(), []byte("\n")), nil
}

// indent lays out one line of JSON for reading.
func indent(line []byte) []byte {
	var out bytes.Buffer
	if err := json.Indent(&out, line, "", "  "); err != nil {
		panic(fmt.Sprintf("state: indent own JSON: %v", err)) // encode's output is valid
	}
	out.WriteByte('\n')
	return out.Bytes()
}
