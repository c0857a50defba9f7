// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kubelets start again at once the first time, and then after ten seconds, twenty
// and so on up to five minutes; here it is faster.
const (
	firstBackOff = 300 * time.Millisecond
	lastBackOff  = 5 * time.Second
)

// container is a container of a pod.
type container struct {
	pod    *pod
	spec   corev1.Container
	init   bool
	index  int    // in its list
	dir    string // with its logs and its shim
	real   bool   // its command is run; others are only said to run
	engine bool   // it runs an engine, which is expected to serve
	faulty bool   // the pod's fault is this container's
	port   int    // that its engine listens on, in place of spec's
	host   string // that spec's command line says, or 0.0.0.0
	listed int    // port that spec's command line says, or the container port, or vLLM's default
}

// containers are the pod's init containers and its main ones.
func (p *pod) containers() (initial, main []*container) {
	for i, spec := range p.object.Spec.InitContainers {
		initial = append(initial, p.newContainer(spec, i, true))
	}
	for i, spec := range p.object.Spec.Containers {
		main = append(main, p.newContainer(spec, i, false))
	}
	faulty := slices.IndexFunc(main, func(c *container) bool { return c.engine })
	main[max(0, faulty)].faulty = true
	return initial, main
}

var (
	portFlag = regexp.MustCompile(`--port[= ]["']?(\d+)`)
	hostFlag = regexp.MustCompile(`--host[= ]["']?([^\s"']+)`)
)

const vllmPort = 8000

func (p *pod) newContainer(spec corev1.Container, index int, init bool) *container {
	argv := append(slices.Clone(spec.Command), spec.Args...)
	line := strings.Join(argv, " ")
	c := &container{pod: p, spec: spec, init: init, index: index, dir: filepath.Join(p.dir, spec.Name), host: "0.0.0.0", listed: vllmPort}
	if len(spec.Command) > 0 {
		name := filepath.Base(spec.Command[0])
		c.real = simulated[name] || name == "sh" || name == "bash"
		c.engine = c.real && !init && engineCommand.MatchString(line)
	}
	if len(spec.Ports) > 0 {
		c.listed = int(spec.Ports[0].ContainerPort)
	}
	if found := portFlag.FindAllStringSubmatch(line, -1); found != nil {
		c.listed, _ = strconv.Atoi(found[len(found)-1][1]) // digits
	}
	if found := hostFlag.FindAllStringSubmatch(line, -1); found != nil {
		c.host = found[len(found)-1][1]
	}
	return c
}

// doomed says that a fault plays in the place of the container's command.
func (c *container) doomed() bool { return c.faulty && c.pod.fault.command() != nil }

func (c *container) sidecar() bool { return c.init && sidecar(c.spec) }

// path is the container's place in the pod, as events have it.
func (c *container) path() string {
	if c.init {
		return "spec.initContainers{" + c.spec.Name + "}"
	}
	return "spec.containers{" + c.spec.Name + "}"
}

func (c *container) event(ctx context.Context, kind, reason, message string) {
	c.pod.event(ctx, c.path(), kind, reason, message)
}

// put writes the container's status into its pod's, which has one for every container.
func (c *container) put(s *corev1.PodStatus, status corev1.ContainerStatus) { *c.status(s) = status }

func (c *container) status(s *corev1.PodStatus) *corev1.ContainerStatus {
	list, specs := &s.ContainerStatuses, c.pod.object.Spec.Containers
	if c.init {
		list, specs = &s.InitContainerStatuses, c.pod.object.Spec.InitContainers
	}
	if len(*list) != len(specs) {
		*list = make([]corev1.ContainerStatus, len(specs))
	}
	return &(*list)[c.index]
}

// set changes the container's status.
func (c *container) set(ctx context.Context, change func(*corev1.ContainerStatus)) {
	c.pod.update(ctx, func(s *corev1.PodStatus) { change(c.status(s)) })
}

func (c *container) wait(ctx context.Context, reason, message string) {
	c.set(ctx, func(s *corev1.ContainerStatus) {
		if s.State.Terminated != nil {
			s.LastTerminationState = s.State
		}
		s.Ready, s.Started, s.State = false, new(bool), waiting(reason, message)
	})
}

// run starts the container, again and again as the pod's policy says, until it
// has ended for good or the pod leaves. It says whether the container succeeded.
func (c *container) run(ctx context.Context) bool {
	for restart := int32(0); ; restart++ {
		ended, ok := c.once(ctx, restart)
		if !ok {
			return false
		}
		policy := c.pod.object.Spec.RestartPolicy
		switch {
		case c.sidecar():
			policy = corev1.RestartPolicyAlways
		case c.init && policy == corev1.RestartPolicyAlways:
			policy = corev1.RestartPolicyOnFailure
		}
		if !restarts(policy, ended.ExitCode) {
			return ended.ExitCode == 0
		}
		if restart > 0 && !c.backOff(ctx, restart) {
			return false
		}
	}
}

// backOff is the pause before a restart.
func (c *container) backOff(ctx context.Context, restart int32) bool {
	pause := min(lastBackOff, firstBackOff<<min(restart-1, 10))
	pod := fmt.Sprintf("%s_%s(%s)", c.pod.object.Name, c.pod.object.Namespace, c.pod.object.UID)
	c.event(ctx, corev1.EventTypeWarning, "BackOff", fmt.Sprintf("Back-off restarting failed container %s in pod %s", c.spec.Name, pod))
	c.wait(ctx, "CrashLoopBackOff", fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", pause, c.spec.Name, pod))
	return sleep(ctx, pause)
}

// once runs the container to its end. It returns false when the pod has left.
func (c *container) once(ctx context.Context, restart int32) (ended corev1.ContainerStateTerminated, ok bool) {
	env, ok := c.environment(ctx)
	if !ok {
		return ended, false
	}
	log, err := c.openLog()
	if err != nil {
		c.pod.complain(ctx, "log of", err)
		return ended, false
	}
	defer log.Close()
	ended.StartedAt, ended.ContainerID = metav1.Now(), fmt.Sprintf("bed://%s/%s/%d", c.pod.object.UID, c.spec.Name, restart)
	var engine *child
	if c.real || c.doomed() {
		if engine, err = c.launch(env, log, restart); err != nil {
			c.pod.complain(ctx, "start", err)
			return ended, false
		}
		defer engine.stop()
		if err := c.pod.known(ctx, c.spec.Name); err != nil {
			return ended, false
		}
	}
	c.running(ctx, ended, restart)
	if ended.ExitCode, ok = c.outlast(ctx, engine, restart); !ok {
		return ended, false
	}
	ok = c.ended(ctx, log, &ended)
	return ended, ok
}

// outlast waits for the end of the container's process and returns its exit code,
// or false when the pod has left. Without a process, init containers end at once
// and others never.
func (c *container) outlast(ctx context.Context, engine *child, restart int32) (code int32, ok bool) {
	if engine == nil {
		if !c.init || c.sidecar() {
			<-ctx.Done()
		}
		return 0, ctx.Err() == nil
	}
	watching, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() { defer close(watched); c.watch(watching, engine, restart) }()
	select {
	case <-ctx.Done():
		c.event(context.WithoutCancel(ctx), corev1.EventTypeNormal, "Killing", "Stopping container "+c.spec.Name)
	case <-engine.exited:
	}
	cancel()
	<-watched
	if ctx.Err() != nil {
		return 0, false
	}
	return int32(engine.code), true
}

// running shows the container as started.
func (c *container) running(ctx context.Context, started corev1.ContainerStateTerminated, restart int32) {
	c.event(ctx, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine", c.spec.Image))
	c.event(ctx, corev1.EventTypeNormal, "Created", "Created container: "+c.spec.Name)
	c.event(ctx, corev1.EventTypeNormal, "Started", "Started container "+c.spec.Name)
	c.set(ctx, func(s *corev1.ContainerStatus) {
		if s.State.Terminated != nil {
			s.LastTerminationState = s.State
		}
		yes := true
		s.RestartCount, s.Started, s.ContainerID, s.ImageID = restart, &yes, started.ContainerID, "bed://"+c.spec.Image
		s.Ready = !c.engine && !c.doomed()
		s.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started.StartedAt}}
	})
}

// ended shows the container as ended, and keeps its log as the previous one.
func (c *container) ended(ctx context.Context, log *containerLog, ended *corev1.ContainerStateTerminated) bool {
	ended.FinishedAt, ended.Reason = metav1.Now(), "Completed"
	switch {
	case ended.ExitCode == 137 && c.faulty && c.pod.fault.name == "oom":
		ended.Reason = "OOMKilled"
	case ended.ExitCode != 0:
		ended.Reason = "Error"
	}
	if err := errors.Join(log.Close(), keepLog(c.dir)); err != nil {
		c.pod.complain(ctx, "log of", err)
		return false
	}
	c.set(ctx, func(s *corev1.ContainerStatus) {
		if s.State.Terminated != nil {
			s.LastTerminationState = s.State
		}
		s.Ready, s.Started = false, new(bool)
		s.State = corev1.ContainerState{Terminated: ended}
	})
	return ctx.Err() == nil
}

// watch is the readiness and liveness of a running engine.
func (c *container) watch(ctx context.Context, engine *child, restart int32) {
	if !c.engine {
		return
	}
	f, isReady := c.pod.fault, false
	if !c.faulty {
		f = fault{}
	}
	var killing sync.WaitGroup
	defer killing.Wait()
	var healthy time.Time // since when
	for sleep(ctx, pollEvery) {
		message := c.probe(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case message != "":
			healthy = time.Time{}
		case healthy.IsZero():
			healthy = time.Now()
		}
		now := message == "" && f.name != "never-ready" && (f.name != "slow-ready" || time.Since(healthy) >= f.after)
		if now != isReady {
			isReady = now
			c.set(ctx, func(s *corev1.ContainerStatus) { s.Ready = now })
			if now && f.kills(restart) {
				killing.Go(func() { c.kill(ctx, engine, f) })
			}
		}
		switch {
		case isReady:
			sleep(ctx, 10*pollEvery)
		case f.name == "never-ready":
			message = c.refused()
			fallthrough
		case message != "" && c.spec.ReadinessProbe != nil:
			c.event(ctx, corev1.EventTypeWarning, "Unhealthy", "Readiness probe failed: "+message)
			sleep(ctx, 10*pollEvery)
		}
	}
}

// kill ends a ready engine as the fault says.
func (c *container) kill(ctx context.Context, engine *child, f fault) {
	if !sleep(ctx, f.after) {
		return
	}
	if f.name == "liveness-killed" {
		c.event(ctx, corev1.EventTypeWarning, "Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 503")
		c.event(ctx, corev1.EventTypeNormal, "Killing", fmt.Sprintf("Container %s failed liveness probe, will be restarted", c.spec.Name))
	}
	if err := c.signal(os.Kill); err != nil {
		c.pod.complain(ctx, "kill engine of", err)
		engine.release()
	}
}
