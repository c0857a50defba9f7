// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// Lock makes this process the only writer until Unlock or its end, however that
// comes, and clears away what a killed writer left half written. It does not
// wait for a run that is alive: ErrLocked says who holds the lock.
func (d *Dir) Lock() error {
	if err := d.acquire(); err != nil {
		return err
	}
	err := os.WriteFile(d.lockFile(), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600)
	if err != nil {
		err = explain("write", d.lockFile(), err)
	} else {
		err = d.removeTemporaries()
	}
	if err != nil {
		return errors.Join(err, d.Unlock())
	}
	return nil
}

// Unlock ends writing. Unlocking twice is fine.
func (d *Dir) Unlock() error {
	if d.lock == nil {
		return nil
	}
	err := d.lock.Unlock()
	d.lock = nil
	return err
}

// Locked tells whether a run is alive. It neither waits nor stops a run from starting.
func (d *Dir) Locked() bool {
	lock := flock.New(d.lockFile(), flock.SetFlag(os.O_RDONLY))
	free, err := lock.TryRLock()
	if free {
		err = lock.Unlock()
	}
	return err == nil && !free
}

// Delete removes the experiment, or returns ErrLocked while it runs.
func (d *Dir) Delete() error {
	if err := d.acquire(); err != nil {
		return err
	}
	// Under another name first: a half-deleted directory is not an experiment.
	trash := filepath.Join(filepath.Dir(d.path), "."+d.Name()+".deleted")
	err := os.RemoveAll(trash)
	if err == nil {
		err = os.Rename(d.path, trash)
	}
	if err == nil {
		err = os.RemoveAll(trash)
	}
	if err != nil {
		err = explain("delete", d.path, err)
	} else {
		err = syncDir(filepath.Dir(d.path))
	}
	return errors.Join(err, d.Unlock())
}

// acquire takes the lock and leaves the lock file empty, which needs no space on
// a full disk.
func (d *Dir) acquire() error {
	lock := flock.New(d.lockFile())
	for range 1000 {
		if d.lock != nil {
			return d.lockedError()
		}
		mine, err := lock.TryLock()
		if err == nil && mine {
			d.lock = lock
			err = d.inPlace()
		}
		if err != nil {
			return errors.Join(explain("lock", d.lockFile(), err), d.Unlock())
		}
		if mine {
			return nil
		}
		if !d.holderAlive() {
			// Killed a moment ago: a process that it was just starting can hold the
			// lock's file until it has begun.
			time.Sleep(5 * time.Millisecond) //nolint:forbidigo // a few milliseconds, and no context to end it
			continue
		}
		// A run holds the lock for itself. Locked shares it for a moment, in any
		// number: where sharing works there is no run, so try again.
		shared, err := lock.TryRLock()
		if err != nil {
			return explain("lock", d.lockFile(), err)
		}
		if !shared {
			return d.lockedError()
		}
		if err := lock.Unlock(); err != nil {
			return explain("unlock", d.lockFile(), err)
		}
	}
	return d.lockedError()
}

// inPlace returns an error when the file that was locked is not the lock file any
// more, because the experiment was deleted between opening and locking it.
func (d *Dir) inPlace() error {
	locked, err := d.lock.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(d.lockFile())
	if err != nil {
		return err
	}
	if !os.SameFile(locked, named) {
		return fs.ErrNotExist
	}
	return os.Truncate(d.lockFile(), 0)
}

// holderAlive tells whether the process that wrote the lock file lives, or cannot be told.
func (d *Dir) holderAlive() bool {
	data, err := os.ReadFile(d.lockFile())
	pid, numErr := strconv.Atoi(strings.TrimSpace(string(data)))
	return err != nil || numErr != nil || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

func (d *Dir) lockedError() error {
	holder := ""
	pid, err := os.ReadFile(d.lockFile())
	info, statErr := os.Stat(d.lockFile())
	if err == nil && statErr == nil && len(pid) > 0 {
		holder = fmt.Sprintf(" (pid %s since %s)", strings.TrimSpace(string(pid)), info.ModTime().Format(time.RFC3339))
	}
	return fmt.Errorf("experiment %q is %w%s", d.Name(), ErrLocked, holder)
}

// needLock guards what only the run may do.
func (d *Dir) needLock() error {
	if d.lock == nil {
		return fmt.Errorf("experiment %q is not locked for writing", d.Name())
	}
	return nil
}
