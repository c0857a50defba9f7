// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/engine"
)

// Classes of failures that only a cluster has; the others are experiment's.
const (
	classOOM       = "oom"
	classGPUOOM    = "gpu_oom"
	classImage     = "image"
	classQuota     = "quota"
	classPending   = "unschedulable"
	classLiveness  = "liveness_killed"
	classRestarted = "server_restarted"
	classDied      = "server_died"
)

// limits are how long a workload may be in trouble.
type limits struct {
	Scheduling  time.Duration
	ImagePull   time.Duration
	MaxRestarts int
	Pods        int // that there should be; -1 is not known
}

// createGrace is how long a controller may be refused its pods: the pods of the
// trial before still count against a quota for a moment.
const createGrace = 3 * time.Second

// verdict is what is wrong with a workload. It is decided when waiting is
// pointless; until then it tells what the wait is for, and when to look again.
type verdict struct {
	experiment.Cause
	Decided bool
	Again   time.Time // zero: when something changes
}

// diagnose says what is wrong with a workload that should come up. Of several
// troubles the decided one counts that says most about the cause.
func diagnose(s snapshot, now time.Time, l limits) verdict {
	var found []verdict
	for _, p := range s.Pods {
		found = append(found, p.trouble(s.Events, now, l)...)
	}
	found = append(found, refusals(s, now, l)...)
	if len(found) == 0 {
		return verdict{}
	}
	var again time.Time
	for _, v := range found {
		if !v.Again.IsZero() && (again.IsZero() || v.Again.Before(again)) {
			again = v.Again
		}
	}
	best := slices.MinFunc(found, func(a, b verdict) int { return a.rank() - b.rank() })
	best.Again = again
	return best
}

// telling orders the classes by how near they are to the cause.
var telling = []string{classOOM, classGPUOOM, experiment.ClassConfig, classImage, classLiveness, classQuota,
	experiment.ClassInfra, classDied, classPending, experiment.ClassTransient}

func (v verdict) rank() int {
	rank := slices.Index(telling, v.Class)
	if rank < 0 {
		rank = len(telling)
	}
	if !v.Decided {
		rank += 2 * len(telling)
	}
	return rank
}

// found makes a verdict.
func found(decided bool, class, format string, args ...any) verdict {
	return verdict{Cause: experiment.Cause{Class: class, Message: oneLine(class + ": " + fmt.Sprintf(format, args...))}, Decided: decided}
}

// after is a verdict that is decided once something has lasted long enough.
func after(since time.Time, limit time.Duration, now time.Time, class, format string, args ...any) verdict {
	v := found(now.Sub(since) >= limit, class, format, args...)
	if !v.Decided {
		v.Again = since.Add(limit)
	}
	return v
}

// trouble lists what is wrong with one pod.
func (p podState) trouble(events []seenEvent, now time.Time, l limits) []verdict {
	if v, ok := p.disrupted(); ok {
		return []verdict{v}
	}
	if p.DeletionTimestamp != nil {
		return nil
	}
	var list []verdict
	for _, status := range statuses(p.Pod) {
		list = append(list, p.container(status, events, now, l)...)
	}
	switch {
	case p.Status.Phase == corev1.PodFailed && len(list) == 0:
		list = append(list, found(true, classDied, "pod %s failed: %s %s", p.Name, p.Status.Reason, p.Status.Message))
	case p.Status.Phase == corev1.PodSucceeded:
		list = append(list, found(true, classDied, "pod %s ended by itself: the engine does not go on serving", p.Name))
	case p.Spec.NodeName == "":
		list = append(list, p.pending(events, now, l))
	}
	if v, ok := p.mount(events, now, l); ok {
		list = append(list, v)
	}
	return list
}

// disrupted tells of a pod that the cluster took away: that says nothing about
// the trial.
func (p podState) disrupted() (verdict, bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return found(true, experiment.ClassTransient, "pod %s was taken away (%s): %s", p.Name, c.Reason, c.Message), true
		}
	}
	if p.Status.Phase != corev1.PodFailed {
		return verdict{}, false
	}
	reason, message := p.Status.Reason, p.Status.Message
	switch {
	case reason == "Evicted" && strings.Contains(message, "exceed"):
		// Its own limit, such as that of the ephemeral storage: it would again.
		return found(true, experiment.ClassInfra, "pod %s was evicted: %s", p.Name, message), true
	case slices.Contains([]string{"Evicted", "Preempting", "NodeLost", "NodeShutdown", "Shutdown", "Terminated",
		"NodeAffinity", "UnexpectedAdmissionError"}, reason), strings.HasPrefix(reason, "OutOf"):
		return found(true, experiment.ClassTransient, "pod %s failed (%s): %s", p.Name, reason, message), true
	}
	return verdict{}, false
}

// pending explains a pod without a node.
func (p podState) pending(events []seenEvent, now time.Time, l limits) verdict {
	text := "no scheduler has looked at it"
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status != corev1.ConditionTrue {
			text = c.Reason + ": " + c.Message
		}
	}
	v := after(p.Seen, l.Scheduling, now, classPending, "pod %s has no node after %s: %s", p.Name, now.Sub(p.Seen).Round(time.Second), text)
	if scaling, ok := scaleUp(events, p.Name); ok {
		v = found(false, classPending, "pod %s waits for a node that is being added: %s", p.Name, scaling)
	}
	return v
}

// scaleUp tells of a node that is being added for a pod, as long as the
// autoscaler has not said otherwise since.
func scaleUp(events []seenEvent, pod string) (text string, ok bool) {
	for _, e := range events {
		if e.InvolvedObject.Name != pod {
			continue
		}
		switch e.Reason {
		case "TriggeredScaleUp", "Nominated":
			text, ok = e.Message, true
		case "NotTriggerScaleUp", "FailedScaleUp":
			ok = false
		}
	}
	return text, ok
}

// mount explains a pod whose containers cannot be made because a volume names
// what does not exist.
func (p podState) mount(events []seenEvent, now time.Time, l limits) (verdict, bool) {
	if p.Status.Phase != corev1.PodPending {
		return verdict{}, false
	}
	for _, e := range slices.Backward(events) {
		if e.InvolvedObject.Name != p.Name || e.Reason != "FailedMount" && e.Reason != "FailedAttachVolume" {
			continue
		}
		class := experiment.ClassInfra
		if strings.Contains(e.Message, "not found") {
			class = experiment.ClassConfig
		}
		return after(firstSeen(events, e), l.ImagePull, now, class, "pod %s: %s", p.Name, e.Message), true
	}
	return verdict{}, false
}

// firstSeen is when an event of the same object and reason was seen first.
func firstSeen(events []seenEvent, like seenEvent) time.Time {
	first := like.Seen
	for _, e := range events {
		if e.InvolvedObject.Name == like.InvolvedObject.Name && e.Reason == like.Reason && e.Seen.Before(first) {
			first = e.Seen
		}
	}
	return first
}

// container lists what is wrong with one container.
func (p podState) container(s corev1.ContainerStatus, events []seenEvent, now time.Time, l limits) []verdict {
	var list []verdict
	if end := p.ended(s); end != nil {
		list = append(list, p.end(s, end, events, l))
	} else if log := p.Logs[s.Name]; log.Fatal {
		list = append(list, verdict{Cause: p.quote(s, log.Cause, ""), Decided: hopeless(log.Class)})
	}
	if waiting := s.State.Waiting; waiting != nil {
		if v, ok := p.waits(s, waiting, events, now, l); ok {
			list = append(list, v)
		}
	}
	return list
}

// isStuck tells whether a waiting container needs help from outside; the
// reasons take turns.
func isStuck(reason string) bool {
	return slices.Contains([]string{"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable",
		"SignatureValidationFailed", "CreateContainerError"}, reason)
}

func (p podState) waits(s corev1.ContainerStatus, waiting *corev1.ContainerStateWaiting, events []seenEvent, now time.Time, l limits) (verdict, bool) {
	where := fmt.Sprintf("container %s of pod %s: %s: %s", s.Name, p.Name, waiting.Reason, waiting.Message)
	switch {
	case waiting.Reason == "InvalidImageName" || waiting.Reason == "ErrImageNeverPull":
		return found(true, classImage, "%s", where), true
	case waiting.Reason == "CreateContainerConfigError":
		return found(true, experiment.ClassConfig, "%s", where), true
	case (waiting.Reason == "RunContainerError" || waiting.Reason == "CreateContainerError") && notInImage(waiting.Message):
		return found(true, experiment.ClassConfig, "%s", where), true
	case waiting.Reason == "RunContainerError":
		return found(int(s.RestartCount) > l.MaxRestarts, experiment.ClassInfra, "%s", where), true
	case waiting.Reason == "CreateContainerError":
		return after(p.stuckSince(s.Name, now), l.ImagePull, now, experiment.ClassInfra, "%s", where), true
	case isStuck(waiting.Reason):
		if detail := lastEvent(events, p.Name, "Failed", "Failed to pull image"); detail != "" && !strings.Contains(where, detail) {
			where += "; " + detail
		}
		return after(p.stuckSince(s.Name, now), l.ImagePull, now, classImage, "%s", where), true
	}
	return verdict{}, false
}

func (p podState) stuckSince(container string, now time.Time) time.Time {
	if since, ok := p.Stuck[container]; ok {
		return since
	}
	return now
}

// lastEvent is the newest message of a reason about an object that contains a text.
func lastEvent(events []seenEvent, object, reason, text string) string {
	for _, e := range slices.Backward(events) {
		if e.InvolvedObject.Name == object && e.Reason == reason && strings.Contains(e.Message, text) {
			return e.Message
		}
	}
	return ""
}

// ended is why a container that should serve ended last; nil when it has not.
func (p podState) ended(s corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if p.isInit(s.Name) && s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 {
		return nil // done, whatever it took
	}
	switch {
	case s.State.Terminated != nil:
		return s.State.Terminated
	case s.LastTerminationState.Terminated != nil:
		return s.LastTerminationState.Terminated
	case s.RestartCount > 0 || p.Recreated > 0 && p.Died != nil:
		return p.Died
	}
	return nil
}

func (p podState) isInit(container string) bool {
	return slices.ContainsFunc(p.Status.InitContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == container })
}

// hopeless tells whether another start of the same container would end alike.
func hopeless(class string) bool {
	return class == experiment.ClassConfig || class == classGPUOOM
}

// end judges a container that ended: what killed it goes before its log, and
// that before its exit code.
func (p podState) end(s corev1.ContainerStatus, end *corev1.ContainerStateTerminated, events []seenEvent, l limits) verdict {
	restarts := int(s.RestartCount) + p.Recreated
	final := s.State.Terminated != nil && (p.Status.Phase == corev1.PodFailed || p.Spec.RestartPolicy == corev1.RestartPolicyNever)
	v := verdict{Decided: restarts > l.MaxRestarts || final}
	how := fmt.Sprintf("exit code %d", end.ExitCode)
	if restarts > 0 {
		how += fmt.Sprintf(", %d restarts", restarts)
	}
	log := p.Logs[s.Name]
	switch probe := killedBy(events, p.Name, s.Name); {
	case neverRan(end):
		class := experiment.ClassInfra
		if notInImage(end.Message) {
			class = experiment.ClassConfig
			v.Decided = true
		}
		v.Cause = experiment.Cause{Class: class, Message: fmt.Sprintf("container %s of pod %s could not be started: %s: %s (%s)", s.Name, p.Name, end.Reason, end.Message, how)}
	case end.Reason == "OOMKilled":
		v.Decided = true
		v.Cause = experiment.Cause{Class: classOOM, Message: fmt.Sprintf("container %s of pod %s was OOMKilled: it reached its memory limit%s (%s)", s.Name, p.Name, p.memoryLimit(s.Name), how)}
	case log.Class != "" && (log.Fatal || probe == ""):
		v.Decided = v.Decided || log.Fatal && hopeless(log.Class)
		v.Cause = p.quote(s, log.Cause, " ("+how+")")
	case probe != "":
		v.Cause = experiment.Cause{Class: classLiveness, Message: fmt.Sprintf("container %s of pod %s: %s (%s)", s.Name, p.Name, probe, how)}
	default:
		v.Cause = engine.ExitHint(int(end.ExitCode), 0)
		if v.Class == classOOM { // a kubelet would have said so
			v.Cause = experiment.Cause{Class: classDied, Message: "killed by SIGKILL, though not by its memory limit"}
		}
		v.Message = strings.TrimPrefix(v.Message, v.Class+": ")
		v.Message = fmt.Sprintf("container %s of pod %s: %s", s.Name, p.Name, v.Message)
		if restarts > 0 {
			v.Message += fmt.Sprintf(", %d restarts", restarts)
		}
		if text := strings.TrimSpace(end.Message); text != "" {
			v.Message += ": " + text
		}
	}
	v.Message = oneLine(v.Class + ": " + strings.TrimPrefix(v.Message, v.Class+": "))
	return v
}

// neverRan tells of a container that the runtime could not start: the kubelet
// gives it an exit code, and there is no log.
func neverRan(end *corev1.ContainerStateTerminated) bool {
	switch end.Reason {
	case "StartError", "RunContainerError", "ContainerCannotRun", "PostStartHookError":
		return true
	}
	return end.ExitCode == 128 && strings.Contains(end.Message, "failed to create")
}

// notInImage tells that the command itself is at fault. Devices and mounts that
// are missing give the same words, and are not the template's.
func notInImage(message string) bool { return badCommand.MatchString(message) }

var badCommand = regexp.MustCompile(`exec:? "?[^" ]+"?: (stat [^ ]+: )?` +
	`(executable file not found|no such file or directory|permission denied|is a directory|exec format error)`)

// quote names the container whose log told the cause.
func (p podState) quote(s corev1.ContainerStatus, cause experiment.Cause, how string) experiment.Cause {
	text := strings.TrimPrefix(cause.Message, cause.Class+": ")
	cause.Message = oneLine(fmt.Sprintf("%s: container %s of pod %s: %s%s", cause.Class, s.Name, p.Name, text, how))
	return cause
}

func (p podState) memoryLimit(container string) string {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if limit, ok := c.Resources.Limits[corev1.ResourceMemory]; ok && c.Name == container {
			return " of " + limit.String()
		}
	}
	return ""
}

// killedBy quotes the event that a container is killed for a failed probe.
func killedBy(events []seenEvent, pod, container string) string {
	for _, e := range slices.Backward(events) {
		if e.InvolvedObject.Name == pod && e.Reason == "Killing" && strings.Contains(e.Message, container) &&
			(strings.Contains(e.Message, "failed liveness probe") || strings.Contains(e.Message, "failed startup probe")) {
			text := e.Message
			if unhealthy := lastEvent(events, pod, "Unhealthy", "probe failed"); unhealthy != "" {
				text += "; " + unhealthy
			}
			return text
		}
	}
	return ""
}

// refusals are about pods that a controller cannot create.
func refusals(s snapshot, now time.Time, l limits) []verdict {
	alive := 0
	for _, p := range s.Pods {
		if p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodFailed {
			alive++
		}
	}
	if alive >= wanted(l.Pods) {
		return nil
	}
	var list []verdict
	for _, e := range s.Events {
		if e.Type != corev1.EventTypeWarning {
			continue
		}
		what := strings.ToLower(e.InvolvedObject.Kind) + " " + e.InvolvedObject.Name
		switch e.Reason {
		case "InvalidTemplateRef":
			list = append(list, found(true, experiment.ClassConfig, "%s: %s", what, e.Message))
		case "FailedCreate", "FailedCreatePod":
			list = append(list, after(firstSeen(s.Events, e), createGrace, now, refusalClass(e.Message), "%s cannot create its pods: %s", what, e.Message))
		}
	}
	return list
}

func refusalClass(message string) string {
	switch {
	case strings.Contains(message, "exceeded quota"):
		return classQuota
	case strings.Contains(message, "failed calling webhook"):
		return experiment.ClassTransient
	case isAdmission(message), strings.Contains(message, "is invalid"), strings.Contains(message, "error looking up service account"),
		strings.Contains(message, "must specify"):
		return experiment.ClassConfig
	}
	return experiment.ClassInfra
}
