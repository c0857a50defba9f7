// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestASecondWriterIsToldWhoHoldsTheLock(t *testing.T) {
	root := Root(t.TempDir())
	first := begin(t, root, "demo")
	since := time.Date(2026, 1, 2, 15, 4, 5, 0, time.Local)
	require.NoError(t, os.Chtimes(first.lockFile(), since, since))

	second, err := root.Open("demo")
	require.NoError(t, err)
	assert.True(t, second.Locked())
	want := fmt.Sprintf(`experiment "demo" is locked by another run (pid %d since %s)`, os.Getpid(), since.Format(time.RFC3339))
	for _, err := range []error{second.Lock(), second.Delete(), first.Lock(), first.Delete()} {
		assert.ErrorIs(t, err, ErrLocked)
		assert.EqualError(t, err, want)
	}
	got, err := second.Experiment()
	require.NoError(t, err)
	assert.Equal(t, "name: demo\n", string(got), "readers do not wait")

	require.NoError(t, first.Unlock())
	require.NoError(t, first.Unlock())
	assert.False(t, second.Locked())
	require.NoError(t, second.Lock())
	require.NoError(t, second.Unlock())
}

func TestOnlyOneOfManyWritersGetsTheLock(t *testing.T) {
	root := Root(t.TempDir())
	require.NoError(t, begin(t, root, "demo").Unlock())
	var won atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			d, err := root.Open("demo")
			if !assert.NoError(t, err) {
				return
			}
			if err := d.Lock(); err != nil {
				assert.ErrorIs(t, err, ErrLocked)
				return
			}
			won.Add(1) // and keeps it
		})
	}
	group.Wait()
	assert.EqualValues(t, 1, won.Load())
}

func TestAskingWhetherARunIsAliveNeverStopsOneFromStarting(t *testing.T) {
	root := Root(t.TempDir())
	d := begin(t, root, "demo")
	require.NoError(t, d.Unlock())
	var done atomic.Bool
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			reader, err := root.Open("demo")
			assert.NoError(t, err)
			for !done.Load() {
				reader.Locked()
			}
		})
	}
	for range 200 {
		require.NoError(t, d.Lock())
		require.NoError(t, d.Unlock())
	}
	done.Store(true)
	readers.Wait()
}

func TestLockedMakesNoFile(t *testing.T) {
	root := Root(t.TempDir())
	d := begin(t, root, "demo")
	require.NoError(t, d.Unlock())
	require.NoError(t, os.Remove(d.lockFile()))
	assert.False(t, d.Locked())
	assert.NoFileExists(t, d.lockFile())
}

func TestLockClearsAwayWhatAKilledWriterLeft(t *testing.T) {
	d := begin(t, Root(t.TempDir()), "demo")
	require.NoError(t, d.Save(small(1)))
	require.NoError(t, d.Trial("small", 1).Reset())
	require.NoError(t, d.Unlock())
	keep := filepath.Join(d.Trial("small", 1).LogDir(), ".engine.log1")
	require.NoError(t, os.WriteFile(keep, nil, 0o600))
	before := files(t, d.Path())
	for _, path := range []string{
		".result.json123", "templates/.small.json456", "templates/.small.json0", "templates/.small.json.prev7",
		"trials/small/0/.metrics.json8", "manifests/.small.yaml9",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(d.Path(), path), []byte(`{"na`), 0o600))
	}
	require.NoError(t, d.Lock())
	assert.Equal(t, before, files(t, d.Path()))
}

func TestDeleteRemovesTheExperimentAndFreesTheName(t *testing.T) {
	root := Root(t.TempDir())
	d := begin(t, root, "demo")
	require.NoError(t, d.Save(small(3)))
	require.NoError(t, d.Unlock())
	// What a killed deletion left.
	require.NoError(t, os.MkdirAll(filepath.Join(string(root), ".demo.deleted", "templates"), 0o700))
	require.NoError(t, d.Delete())
	entries, err := os.ReadDir(string(root))
	require.NoError(t, err)
	assert.Empty(t, entries)
	begin(t, root, "demo")
}

func TestAnExperimentDeletedWhileItIsBeingLockedIsNotLocked(t *testing.T) {
	root := Root(t.TempDir())
	d := begin(t, root, "demo")
	// d holds a lock file that is not the one under that name any more.
	require.NoError(t, os.Remove(d.lockFile()))
	require.NoError(t, os.WriteFile(d.lockFile(), nil, 0o600))
	assert.EqualError(t, d.inPlace(), "file does not exist")
}
