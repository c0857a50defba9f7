// SPDX-License-Identifier: Apache-2.0

package local

import (
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// adoptOrphans makes this process the parent of orphaned descendants; without
// it they go to init, which some containers lack.
func adoptOrphans() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // since Linux 3.4; init does it otherwise
}

// groupAttr makes the command a group leader that the kernel kills when the
// guard dies.
func groupAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// start keeps the starting thread: Pdeathsig follows the thread, not the process.
func start(command *exec.Cmd) error {
	runtime.LockOSThread()
	return command.Start()
}
