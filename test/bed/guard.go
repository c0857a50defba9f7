// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
)

// guard starts processes behind "llmctl guard", which ends them with this process
// however it ends.
type guard struct {
	llmctl  string
	records string // directory of the guards' record files
}

// child is a guarded process.
type child struct {
	name     string
	pid      int       // of the guard
	hold     io.Closer // the guard ends the child's process group when this is closed
	released atomic.Bool
	exited   chan struct{} // closed once the process and its group are gone
	code     int           // valid after exited; 128 plus the signal that ended it
}

// start runs argv; set may change the command's streams, directory and environment.
func (g guard) start(name string, argv []string, set func(*exec.Cmd)) (*child, error) {
	command := exec.Command(g.llmctl, append([]string{"guard", filepath.Join(g.records, name)}, argv...)...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C in the terminal is ours to handle
	if set != nil {
		set(command)
	}
	hold, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c := &child{name: name, pid: command.Process.Pid, hold: hold, exited: make(chan struct{})}
	go func() {
		defer close(c.exited)
		err := command.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			c.code = exit.ExitCode()
		} else if err != nil {
			c.code = -1
		}
	}()
	return c, nil
}

// release asks the process to end: SIGTERM, and SIGKILL ten seconds later.
func (c *child) release() {
	c.released.Store(true)
	_ = c.hold.Close() // twice, or broken already, is as good
}

// stop releases the process and waits until it is gone.
func (c *child) stop() {
	c.release()
	<-c.exited
}

// kill ends a process that has no children of its own, at once where that is
// possible: on Linux the kernel ends what a guard has started with the guard.
func (c *child) kill() {
	c.released.Store(true)
	if runtime.GOOS == "linux" && c.running() {
		_ = syscall.Kill(c.pid, syscall.SIGKILL) // it may have ended just now
	}
	c.release()
}

func (c *child) running() bool {
	select {
	case <-c.exited:
		return false
	default:
		return true
	}
}

// logFile makes a file for a command's output.
func logFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
}
