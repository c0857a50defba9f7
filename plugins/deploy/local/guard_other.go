// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package local

import (
	"os/exec"
	"syscall"
)

func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func start(command *exec.Cmd) error { return command.Start() }

func adoptOrphans() {}
