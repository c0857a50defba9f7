// SPDX-License-Identifier: Apache-2.0

package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// stopGrace is how long a process group may take to end after SIGTERM.
const stopGrace = 10 * time.Second

// Guard runs a command as a process group of its own and makes sure that the
// group ends: when the command ends, when stdin is closed (which also happens
// when the parent is killed in any way), or on SIGTERM. Arguments are a record
// file, which Guard locks while it lives and which then holds its process id,
// and the command. The result is the command's exit code, or 128 plus the
// signal that ended it.
func Guard(args []string, stdin io.Reader, stderr io.Writer) int {
	if len(args) < 2 {
		fmt.Fprintln(stderr, "guard: usage: guard RECORD COMMAND [ARG...]")
		return 2
	}
	code, err := guard(args[0], args[1:], stdin)
	if err != nil {
		fmt.Fprintln(stderr, "guard:", err)
		return 126
	}
	return code
}

func guard(record string, argv []string, stdin io.Reader) (int, error) {
	lock := flock.New(record)
	if ok, err := lock.TryLock(); err != nil || !ok {
		return 0, fmt.Errorf("lock %s: %v", record, err)
	}
	defer os.Remove(record)
	if err := os.WriteFile(record, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	adoptOrphans()
	command := exec.Command(argv[0], argv[1:]...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.SysProcAttr = groupAttr()
	if err := start(command); err != nil {
		return 0, err
	}
	group := command.Process.Pid
	released := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, stdin) // the end of input is the message
		close(released)
	}()
	done := make(chan error, 1)
	go func() { done <- command.Wait() }()
	var err error
	select {
	case err = <-done:
	case <-released:
		err = stop(group, done)
	case <-signals:
		err = stop(group, done)
	}
	killGroup(group)
	return exitCode(err), nil
}

// stop ends a running group: politely, then not.
func stop(group int, done <-chan error) error {
	_ = syscall.Kill(-group, syscall.SIGTERM) // it may have ended already
	select {
	case err := <-done:
		return err
	case <-time.After(stopGrace):
		_ = syscall.Kill(-group, syscall.SIGKILL)
		return <-done
	}
}

// killGroup ends what the command left behind and returns when nothing is left.
// Orphans of the group become the guard's own children where the system allows
// it, and are reaped here: a zombie would look alive for ever.
func killGroup(group int) {
	for tries := 0; tries < 1000 && syscall.Kill(-group, syscall.SIGKILL) == nil; tries++ {
		if pid, err := syscall.Wait4(-group, nil, syscall.WNOHANG, nil); err != nil || pid == 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		return 126
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}
