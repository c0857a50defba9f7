// SPDX-License-Identifier: Apache-2.0

package state

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tmpfs mounts an empty file system of 64 KiB.
func tmpfs(t *testing.T) Root {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mounting a 64 KiB tmpfs needs root with CAP_SYS_ADMIN: %v", err)
	}
	t.Cleanup(func() { assert.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return Root(dir)
}

func TestAFullDiskLeavesTheLastCheckpoint(t *testing.T) {
	root := tmpfs(t)
	d := begin(t, root, "demo")
	saved := 0
	var err error
	for err == nil {
		require.Less(t, saved, 1000, "64 KiB are never full")
		if err = d.Save(small(saved + 1)); err == nil {
			saved++
		}
	}
	require.Positive(t, saved)
	assert.ErrorIs(t, err, syscall.ENOSPC)
	assert.Regexp(t, `^write `+string(root)+`/demo/\S+\.json: no space left on device; free some space or choose another --state-dir$`, err.Error())

	got, notes := load(t, d, false)
	assert.Equal(t, small(saved), got)
	assert.Empty(t, notes)
	for _, path := range files(t, d.Path()) {
		assert.NotContains(t, path, "/.", "left over")
	}

	require.NoError(t, d.Unlock())
	require.NoError(t, os.Truncate(d.lockFile(), 0))
	fill(t, filepath.Join(string(root), "rest"))
	err = d.Lock()
	assert.EqualError(t, err, "write "+d.lockFile()+": no space left on device; free some space or choose another --state-dir")
	assert.False(t, d.Locked())
	require.NoError(t, d.Delete(), "which is how space is freed")
}

// fill makes a file that takes the rest of the disk.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	require.NoError(t, err)
	for err == nil {
		_, err = file.Write(make([]byte, 512))
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, file.Close())
}

func TestAReadOnlyStateDirCanBeReadAndSaysSoOtherwise(t *testing.T) {
	root := tmpfs(t)
	d := begin(t, root, "demo")
	require.NoError(t, d.Save(small(2)))
	require.NoError(t, d.Unlock())
	require.NoError(t, syscall.Mount("tmpfs", string(root), "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, "size=64k"))

	got, notes := load(t, d, false)
	assert.Equal(t, small(2), got)
	assert.Empty(t, notes)
	assert.False(t, d.Locked())
	assert.EqualError(t, d.Lock(), "lock "+d.lockFile()+": read-only file system; choose another --state-dir")
	assert.EqualError(t, d.Delete(), "lock "+d.lockFile()+": read-only file system; choose another --state-dir")
	_, err := root.Create("other")
	assert.EqualError(t, err, "create "+filepath.Join(string(root), "other")+": read-only file system; choose another --state-dir")
}
