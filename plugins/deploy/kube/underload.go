// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/llmctl/llmctl/experiment"
)

// afterLoadProbe is how long an engine may take to answer one token after its load.
const afterLoadProbe = 10 * time.Second

// statusLag is how long a cluster may take to tell of a container's end.
const statusLag = 3 * time.Second

// underLoad says what went wrong since the engine served.
func (in *instance) underLoad(ctx context.Context, s snapshot) experiment.Cause {
	if cause := in.changed(ctx, s); cause.Class != "" {
		return cause
	}
	if lost := in.lost.Load() - in.lostBefore; lost > 0 {
		return found(true, experiment.ClassTransient, "the port-forward through the API server broke %d times under load: requests were lost on the way", lost).Cause
	}
	err := in.answers(ctx)
	if err == nil {
		return experiment.Cause{}
	}
	// It may have ended a moment ago.
	limited, cancel := context.WithTimeout(ctx, statusLag)
	defer cancel()
	for limited.Err() == nil {
		select {
		case <-in.observer.changed:
		case <-limited.Done():
		}
		s, failed := in.look(ctx)
		if failed != nil {
			break
		}
		if cause := in.changed(ctx, s); cause.Class != "" {
			return cause
		}
	}
	return in.mute(ctx, s, err)
}

// changed is changes since the engine served.
func (in *instance) changed(ctx context.Context, s snapshot) experiment.Cause {
	cause := changes(in.before, s)
	if cause.Class == experiment.ClassInfra {
		cause.Message += in.deployer.namespaceState(ctx)
	}
	return cause
}

// answers asks an engine for one completion, on a connection of its own: the
// end of an engine may have left others open.
func (in *instance) answers(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, afterLoadProbe)
	defer cancel()
	in.probe.Client.CloseIdleConnections()
	defer in.probe.Client.CloseIdleConnections()
	return in.probe.Once(limited)
}

// changes says which pod or container is not the one that was asked to serve;
// pods are those of before, with their containers' restarts.
func changes(before map[types.UID]map[string]int32, s snapshot) experiment.Cause {
	now := map[types.UID]podState{}
	for _, p := range s.Pods {
		now[p.UID] = p
	}
	var list []verdict
	for _, uid := range slices.Sorted(maps.Keys(before)) {
		p, alive := now[uid]
		if !alive {
			p = s.Gone[uid]
		}
		list = append(list, p.change(before[uid], alive, s.Events))
	}
	list = slices.DeleteFunc(list, func(v verdict) bool { return v.Class == "" })
	if len(list) == 0 {
		return experiment.Cause{}
	}
	return slices.MinFunc(list, func(a, b verdict) int { return a.rank() - b.rank() }).Cause
}

// change says what happened to a pod that served.
func (p podState) change(restarts map[string]int32, alive bool, events []seenEvent) verdict {
	if p.Pod == nil {
		return found(true, experiment.ClassInfra, "a pod of the trial disappeared under load")
	}
	if v, ok := p.disrupted(); ok {
		return v
	}
	for _, status := range statuses(p.Pod) {
		ended := status.State.Terminated != nil && !p.isInit(status.Name)
		if status.RestartCount <= restarts[status.Name] && !ended {
			continue
		}
		class, how := classRestarted, "restarted under load"
		if ended && (p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded) {
			class, how = classDied, "died under load"
		}
		end := p.ended(status)
		if end == nil {
			return found(true, class, "container %s of pod %s %s", status.Name, p.Name, how)
		}
		cause := p.end(status, end, events, limits{}).Cause
		text := strings.TrimPrefix(cause.Message, cause.Class+": ")
		if cause.Class == classOOM || cause.Class == classGPUOOM {
			class = cause.Class
		}
		return found(true, class, "%s: %s", how, text)
	}
	if alive && nodeLost(p, events) {
		return found(true, experiment.ClassTransient, "node %s of pod %s is not ready", p.Spec.NodeName, p.Name)
	}
	if alive && p.DeletionTimestamp == nil {
		return verdict{}
	}
	if end := p.lastEnd(); end != nil && end.Reason == "OOMKilled" {
		return found(true, classOOM, "pod %s was replaced under load after a container was OOMKilled", p.Name)
	}
	if len(restarts) > 0 && p.lastEnd() != nil {
		return found(true, classRestarted, "pod %s was replaced under load: a container ended with exit code %d", p.Name, p.lastEnd().ExitCode)
	}
	return found(true, experiment.ClassInfra, "pod %s was deleted under load", p.Name)
}

// mute explains an engine whose process lives and does not answer any more.
func (in *instance) mute(ctx context.Context, s snapshot, err error) experiment.Cause {
	for _, p := range s.Pods {
		for _, c := range p.Spec.Containers {
			if !in.isEngine(c.Name) {
				continue
			}
			if log, failed := in.deployer.readLog(ctx, p.Name, c.Name, false); failed == nil {
				if f := in.classify(log); f.Fatal {
					f.Class = deadClass(f.Class)
					return found(true, f.Class, "%s; the engine no longer answers: %v", strings.TrimPrefix(f.Message, f.Class+": "), err).Cause
				}
			}
		}
	}
	if ctx.Err() != nil {
		return experiment.Cause{}
	}
	return found(true, classDied, "the engine no longer answers after the load: %v", err).Cause
}

// deadClass is the class of a fatal line in the log of an engine that did serve:
// its settings were accepted.
func deadClass(class string) string {
	if class == classGPUOOM {
		return class
	}
	return classDied
}

// notReady explains a workload that has not served in time.
func (in *instance) notReady(s snapshot) experiment.Cause {
	if v := diagnose(s, in.deployer.now(), in.limits()); v.Class != "" {
		return v.Cause
	}
	var notes []string
	for _, p := range s.Pods {
		if nodeLost(p, s.Events) {
			return found(true, experiment.ClassTransient, "node %s of pod %s is not ready", p.Spec.NodeName, p.Name).Cause
		}
		if isReady(p.Pod) || p.DeletionTimestamp != nil {
			continue
		}
		text := fmt.Sprintf("pod %s is %s and not ready", p.Name, p.Status.Phase)
		if warning := lastWarning(s.Events, p.Name); warning != "" {
			text += ": " + warning
		}
		notes = append(notes, text)
	}
	if len(s.Pods) == 0 {
		notes = append(notes, "no pods have been created")
		for _, e := range slices.Backward(s.Events) {
			if e.Type == corev1.EventTypeWarning {
				notes = append(notes, e.Message)
				break
			}
		}
	}
	if note := in.loopback(); note != "" && len(notes) > 0 {
		notes = append(notes, note)
	}
	if len(notes) == 0 {
		notes = append(notes, "every pod is ready, and the engine has not answered a completion")
		if in.refused != nil {
			notes[0] += ": " + in.refused.Error()
		}
	}
	return found(true, experiment.ClassNotReady, "%s", strings.Join(notes, "; ")).Cause
}

// lastWarning is what went wrong with a pod last; a failed probe says most.
func lastWarning(events []seenEvent, pod string) string {
	if unhealthy := lastEvent(events, pod, "Unhealthy", ""); unhealthy != "" {
		return unhealthy
	}
	for _, e := range slices.Backward(events) {
		if e.InvolvedObject.Name == pod && e.Type == corev1.EventTypeWarning {
			return e.Message
		}
	}
	return ""
}

// nodeLost tells whether the node of an unready pod has stopped to answer.
func nodeLost(p podState, events []seenEvent) bool {
	return !isReady(p.Pod) && lastEvent(events, p.Name, "NodeNotReady", "") != ""
}

var loopbackHost = regexp.MustCompile(`--[a-z-]*host[= ]+['"]?(127\.0\.0\.1|localhost|::1)\b`)

// loopback notes an engine that listens where nothing outside its pod can
// reach it.
func (in *instance) loopback() string {
	for _, c := range in.trial.containers {
		if loopbackHost.MatchString(strings.Join(c.Argv, " ")) {
			return fmt.Sprintf("container %s listens on the loopback address only; let it listen on 0.0.0.0", c.Name)
		}
	}
	return ""
}
