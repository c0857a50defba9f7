// SPDX-License-Identifier: Apache-2.0

// Package local runs a template's engine as a process group on this machine,
// without a cluster.
package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/engine"
)

const loopback = "127.0.0.1"

// Deployer starts engines as local processes. All fields are required.
type Deployer struct {
	Engine  *engine.Engine
	Options engine.Options
	// Guard is the command that Guard is behind, without its arguments; it stands
	// between this process and the engine's and outlives this one long enough to
	// end the engine.
	Guard []string
	// Self is the binary that the word llmctl means in a template's command.
	Self string
	// Records is the directory of the files that tell of running guards.
	Records string
	// Environ is the environment of the engines, as os.Environ has it.
	Environ []string
	// APIKey goes with the probe's requests; may be empty.
	APIKey string
}

// Deploy starts the command of the manifest's one engine container.
func (d *Deployer) Deploy(_ context.Context, plan experiment.Plan) (experiment.Instance, error) {
	container, err := d.container(plan.Manifest)
	if err != nil {
		return nil, &experiment.Failure{Cause: experiment.Cause{Class: experiment.ClassConfig, Message: err.Error()}}
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	argv, err := d.Engine.WithAddress(container, loopback, port)
	if err != nil {
		return nil, &experiment.Failure{Cause: experiment.Cause{Class: experiment.ClassConfig, Message: err.Error()}}
	}
	env, err := d.environment(container)
	if err != nil {
		return nil, &experiment.Failure{Cause: experiment.Cause{Class: experiment.ClassConfig, Message: err.Error()}}
	}
	return d.start(plan, container, engine.Expand(argv, declared(container, env)), env, port)
}

// Check says what keeps a manifest from running here.
func (d *Deployer) Check(manifest []byte) error {
	container, err := d.container(manifest)
	if err != nil {
		return err
	}
	_, err = d.environment(container)
	return err
}

func (d *Deployer) container(manifest []byte) (engine.Container, error) {
	containers, err := d.Engine.Find(manifest, d.Options)
	switch {
	case err != nil:
		return engine.Container{}, err
	case len(containers) != 1:
		return engine.Container{}, fmt.Errorf("execution.target local runs one engine; the template has %d", len(containers))
	case len(containers[0].Argv) == 0:
		return engine.Container{}, fmt.Errorf("container %q: has no command; execution.target local needs one, since there is no image to take it from", containers[0].Name)
	}
	return containers[0], nil
}

// environment is the inherited one with the container's values over it. Values
// that a cluster takes from elsewhere must be inherited.
func (d *Deployer) environment(c engine.Container) (map[string]string, error) {
	env := map[string]string{}
	for _, entry := range d.Environ {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	for _, v := range c.Env {
		if _, ok := env[v.Name]; v.From != "" && !ok {
			return nil, fmt.Errorf("container %q: environment variable %s comes from %s; without a cluster, set it in the environment of llmctl", c.Name, v.Name, v.From)
		}
		if v.From == "" {
			env[v.Name] = v.Value
		}
	}
	return env, nil
}

// declared looks up what $(NAME) in a command may refer to: the container's own
// variables only, as in a cluster.
func declared(c engine.Container, env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, v := range c.Env {
			if v.Name == name {
				return env[name], true
			}
		}
		return "", false
	}
}

func (d *Deployer) start(plan experiment.Plan, c engine.Container, argv []string, env map[string]string, port int) (experiment.Instance, error) {
	path, err := d.link()
	if err != nil {
		return nil, err
	}
	env["PATH"] = path + string(os.PathListSeparator) + env["PATH"]
	if filepath.Base(argv[0]) == "llmctl" {
		argv[0] = d.Self
	}
	logPath := filepath.Join(plan.Logs, plan.Name+".log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the processes hold their own
	// The process id keeps records apart: the guard of a killed run may be so
	// young that it writes its own only now.
	record := fmt.Sprintf("%s.%d", filepath.Join(d.Records, plan.Name), os.Getpid())
	guard := append(append([]string{}, d.Guard[1:]...), record)
	p := &process{deployer: d, container: c, log: logPath, port: port, exited: make(chan struct{})}
	p.command = exec.Command(d.Guard[0], append(guard, argv...)...)
	p.command.Stdout, p.command.Stderr = log, log
	p.command.SysProcAttr = sessionAttr() // Ctrl-C in the terminal is ours to handle
	if info, err := os.Stat(c.WorkingDir); c.WorkingDir != "" && err == nil && info.IsDir() {
		p.command.Dir = c.WorkingDir
	}
	for name, value := range env {
		p.command.Env = append(p.command.Env, name+"="+value)
	}
	if p.hold, err = p.command.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	go p.wait()
	return p, nil
}

// link makes a directory in which the name llmctl is this binary, for commands
// inside shell strings.
func (d *Deployer) link() (string, error) {
	dir := filepath.Join(d.Records, "bin")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	link := filepath.Join(dir, "llmctl")
	if to, err := os.Readlink(link); err == nil && to == d.Self {
		return dir, nil
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	return dir, os.Symlink(d.Self, link)
}

// Sweep waits for the guards of an earlier, killed run to end their engines, and
// ends those that do not. A record is locked by the guard that wrote it, so a
// process id that was given out again is never mistaken for a guard.
func (d *Deployer) Sweep(ctx context.Context) error {
	entries, err := os.ReadDir(d.Records)
	if errors.Is(err, os.ErrNotExist) {
		return os.MkdirAll(d.Records, 0o700)
	} else if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		if err := sweep(ctx, filepath.Join(d.Records, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

func sweep(ctx context.Context, record string) error {
	lock := flock.New(record)
	limited, cancel := context.WithTimeout(ctx, stopGrace+5*time.Second)
	defer cancel()
	ok, err := lock.TryLockContext(limited, 10*time.Millisecond)
	if !ok {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		data, readErr := os.ReadFile(record)
		pid, numErr := strconv.Atoi(string(data))
		if readErr != nil || numErr != nil {
			return fmt.Errorf("process record %s: %v", record, errors.Join(err, readErr, numErr))
		}
		if err := killTree(pid); err != nil {
			return fmt.Errorf("end process %d of an earlier run: %w", pid, err)
		}
	}
	return errors.Join(os.Remove(record), lock.Close())
}

// freePort asks the system for a port that nobody uses now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
