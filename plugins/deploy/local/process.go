// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/deploy"
	"github.com/llmctl/llmctl/plugins/engine"
)

// process is a running engine with its guard.
type process struct {
	deployer  *Deployer
	command   *exec.Cmd      // the guard
	hold      io.WriteCloser // closing it tells the guard to end the engine
	container engine.Container
	log       string
	port      int
	exited    chan struct{} // closed when the guard, and so the engine, has ended
	err       error         // of the guard; valid after exited
	stopping  sync.Once
	served    *deploy.Probe // that the engine answered; nil before
}

// readLog reads what the engine has said so far.
func (p *process) readLog(context.Context) ([]byte, error) { return os.ReadFile(p.log) }

func (p *process) wait() {
	p.err = p.command.Wait()
	close(p.exited)
}

// logInterval is how often the log of a starting engine is searched for a
// message that dooms it: engines can hang after one instead of ending.
const logInterval = time.Second

// Ready waits until the engine answers, or fails as soon as it has ended or has
// logged a fatal message.
func (p *process) Ready(ctx context.Context) (experiment.Target, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		target experiment.Target
		err    error
	}
	answered := make(chan answer, 1)
	probe := deploy.Probe{
		BaseURL: "http://" + net.JoinHostPort(loopback, strconv.Itoa(p.port)), Health: p.deployer.Engine.HealthPath,
		APIKey: p.deployer.APIKey, Client: &http.Client{Transport: &http.Transport{}},
		Expected: &deploy.Expected{Engine: p.deployer.Engine, Container: p.container, Log: p.readLog},
	}
	defer probe.Client.CloseIdleConnections()
	go func() {
		target, err := probe.Wait(ctx)
		answered <- answer{target, err}
	}()
	ticker := time.NewTicker(logInterval)
	defer ticker.Stop()
	var size int64
	for {
		select {
		case a := <-answered:
			if a.err == nil {
				p.served = &probe
			}
			return a.target, a.err
		case <-p.exited:
			return experiment.Target{}, &experiment.Failure{Cause: p.cause()}
		case <-ticker.C:
			info, err := os.Stat(p.log)
			if err != nil || info.Size() == size {
				continue
			}
			size = info.Size()
			if cause, fatal := p.classify(); fatal {
				return experiment.Target{}, &experiment.Failure{Cause: cause}
			}
		}
	}
}

// How long an engine may take to answer after its load, and to end when it does not.
const (
	answerLimit = 10 * time.Second
	exitLag     = 3 * time.Second
)

// Diagnose says why the engine ended, or that it runs and answers no more; an
// engine that answers is not at fault. Its log has been in the trial's folder all
// along.
func (p *process) Diagnose(ctx context.Context) (experiment.Cause, error) {
	var mute error
	if p.served != nil && p.running() {
		limited, cancel := context.WithTimeout(ctx, answerLimit)
		defer cancel()
		defer p.served.Client.CloseIdleConnections()
		if mute = p.served.Once(limited); mute != nil {
			// It may be ending: why is worth more than that.
			select {
			case <-p.exited:
			case <-time.After(exitLag):
			case <-ctx.Done():
			}
		}
	}
	switch {
	case !p.running():
		return p.cause(), nil
	case mute == nil || ctx.Err() != nil:
		return experiment.Cause{}, nil
	}
	if cause, fatal := p.classify(); fatal {
		return cause, nil
	}
	cause := experiment.Cause{Class: "server_died", Message: fmt.Sprintf("server_died: the engine runs but does not answer any more: %v", mute)}
	if last := p.lastLines(3); last != "" {
		cause.Message += "; its last words: " + last
	}
	return cause, nil
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// cause explains the end of the process from its log and exit code.
func (p *process) cause() experiment.Cause {
	code := exitCode(p.err)
	if cause, _ := p.classify(); cause.Class != "" {
		cause.Message += fmt.Sprintf(" (exit code %d)", code)
		return cause
	}
	cause := engine.ExitHint(code, 0)
	if last := p.lastLines(3); last != "" {
		cause.Message += "; its last words: " + last
	}
	return cause
}

func (p *process) classify() (experiment.Cause, bool) {
	f, err := os.Open(p.log)
	if err != nil {
		return experiment.Cause{}, false
	}
	defer f.Close()
	return p.deployer.Engine.Classify(f)
}

// lastLines is the end of the log, the lines joined by " | ".
func (p *process) lastLines(n int) string {
	f, err := os.Open(p.log)
	if err != nil {
		return ""
	}
	defer f.Close()
	const tail = 4096
	if info, err := f.Stat(); err == nil && info.Size() > tail {
		if _, err := f.Seek(-tail, io.SeekEnd); err != nil {
			return ""
		}
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// Delete ends the process group and returns when it is gone and its port is free.
func (p *process) Delete(ctx context.Context) error {
	p.stopping.Do(func() { _ = p.hold.Close() }) // a guard that has ended closed it too
	select {
	case <-p.exited:
	case <-time.After(stopGrace + 5*time.Second):
		if err := killTree(p.command.Process.Pid); err != nil {
			return fmt.Errorf("end process %d: %w", p.command.Process.Pid, err)
		}
		<-p.exited
	case <-ctx.Done():
		return fmt.Errorf("end process %d: %w", p.command.Process.Pid, context.Cause(ctx))
	}
	return p.portFree(ctx)
}

func (p *process) portFree(ctx context.Context) error {
	address := net.JoinHostPort(loopback, strconv.Itoa(p.port))
	for {
		l, err := net.Listen("tcp", address)
		if err == nil {
			return l.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("port %d is still in use after the engine ended: %w", p.port, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// killTree ends a guard and, by the kernel or by its own doing, its engine.
func killTree(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		return err
	}
	return nil
}

func sessionAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
