// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package loadgen

import (
	"fmt"
	"syscall"
)

// spareFiles are open files beside the connections: logs, standard streams, the poller, name resolution.
const spareFiles = 64

// ensureFiles makes sure that so many connections can be open at once, raising the soft limit where the
// hard limit allows.
func ensureFiles(concurrency int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	need := uint64(concurrency) + spareFiles
	if limit.Cur >= need {
		return nil
	}
	if limit.Max < need {
		return fmt.Errorf("concurrency %d needs %d open files, but the limit is %d (ulimit -n)", concurrency, need, limit.Max)
	}
	limit.Cur = need
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("concurrency %d: raise the limit of open files to %d: %w", concurrency, need, err)
	}
	return nil
}
