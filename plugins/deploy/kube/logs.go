// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const (
	logLines   = 200     // that are saved of each container
	readLines  = 5000    // in which the cause is looked for
	logBytes   = 4 << 20 // that are read of each container
	headBytes  = 1 << 20 // that are read of a log's beginning, where an engine says what it runs with
	heardBytes = 1 << 18 // that are kept of a log that is read along
	logTimeout = 5 * time.Second
	saveLimit  = 30 * time.Second // for all logs of a trial

	maxListeners = 32 // logs that are read along in one trial
	lastWords    = time.Second
)

// readLog is the end of a container's log, or of the log before its last restart.
func (d *Deployer) readLog(ctx context.Context, pod, container string, previous bool) ([]byte, error) {
	return d.getLog(ctx, pod, &corev1.PodLogOptions{
		Container: container, Previous: previous, TailLines: new(int64(readLines)), LimitBytes: new(int64(logBytes)),
	})
}

// readHead is the beginning of a container's log.
func (d *Deployer) readHead(ctx context.Context, pod, container string) ([]byte, error) {
	return d.getLog(ctx, pod, &corev1.PodLogOptions{Container: container, LimitBytes: new(int64(headBytes))})
}

// getLog reads a part of a log that is there already.
func (d *Deployer) getLog(ctx context.Context, pod string, part *corev1.PodLogOptions) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	return d.Core.Pods(d.Namespace).GetLogs(pod, part).DoRaw(ctx)
}

// isEngine tells whether a container's log is the engine's.
func (in *instance) isEngine(container string) bool {
	for _, c := range in.trial.containers {
		if c.Name == container {
			return true
		}
	}
	return false
}

func (in *instance) classify(log []byte) logFinding {
	cause, fatal := in.deployer.Engine.Classify(bytes.NewReader(log))
	return logFinding{Cause: cause, Fatal: fatal}
}

// readEnds reads and saves the log of each container that ended since the last
// look: the next restart takes it away. It tells whether there was one.
func (in *instance) readEnds(ctx context.Context, s snapshot) (found bool) {
	for _, p := range s.Pods {
		for _, status := range statuses(p.Pod) {
			end := status.State.Terminated
			if end == nil {
				end = status.LastTerminationState.Terminated
			}
			if end == nil || end.ExitCode == 0 && p.isInit(status.Name) {
				continue
			}
			key := fmt.Sprintf("%s/%s/%d/%s", p.UID, status.Name, status.RestartCount, end.FinishedAt)
			if in.looked[key] {
				continue
			}
			if in.looked == nil {
				in.looked = map[string]bool{}
			}
			found = true
			in.looked[key] = !isTransient(in.readEnd(ctx, p, status))
		}
	}
	return found
}

func (in *instance) readEnd(ctx context.Context, p podState, status corev1.ContainerStatus) error {
	previous, restarts := status.State.Terminated == nil, int(status.RestartCount)
	log, err := in.deployer.readLog(ctx, p.Name, status.Name, previous)
	if !previous {
		restarts++         // as it will be called after the restart
		if len(log) == 0 { // which may have happened meanwhile
			if before, failed := in.deployer.readLog(ctx, p.Name, status.Name, true); failed == nil {
				log, err = before, nil
			}
		}
	}
	if err == nil && in.isEngine(status.Name) {
		in.observer.learn(p.UID, status.Name, in.classify(log), true)
	}
	in.write(logName(p.Pod, status.Name, restarts), log, err)
	return err
}

// listen reads along with the logs of running engines: one can hang after a
// message that dooms it. It ends with ctx.
func (in *instance) listen(ctx context.Context, s snapshot) {
	for _, p := range s.Pods {
		for _, status := range p.Status.ContainerStatuses {
			key := fmt.Sprintf("%s/%s/%d", p.UID, status.Name, status.RestartCount)
			if status.State.Running == nil || !in.isEngine(status.Name) || in.heard[key] || len(in.heard) >= maxListeners {
				continue
			}
			if in.heard == nil {
				in.heard = map[string]bool{}
			}
			in.heard[key] = true
			in.listeners.Go(func() { in.hear(ctx, p.Pod, status.Name) })
		}
	}
}

// hear reads one log until it ends or has said enough. What cannot be read is
// read when the container ends.
func (in *instance) hear(ctx context.Context, p *corev1.Pod, container string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log, err := in.deployer.Core.Pods(in.deployer.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Container: container, Follow: true}).Stream(ctx)
	if err != nil {
		return
	}
	defer log.Close()
	var heard []byte
	fresh, doomed := 0, false // bytes not looked at yet
	chunk := make([]byte, 32<<10)
	for err == nil {
		var n int
		n, err = log.Read(chunk)
		heard, fresh = append(heard, chunk[:n]...), fresh+n
		heard = heard[max(0, len(heard)-heardBytes):]
		if end := bytes.LastIndexByte(heard, '\n') + 1; !doomed && end > 0 {
			from := bytes.LastIndexByte(heard[:max(0, len(heard)-fresh)], '\n') + 1
			if doomed = in.classify(heard[from:end]).Fatal; doomed {
				time.AfterFunc(lastWords, cancel) // the lines after it may say more
			}
			fresh = len(heard) - end
		}
	}
	if doomed {
		in.observer.learn(p.UID, container, in.classify(heard), false)
	}
}

// logName is a container's file; run counts the restart that ended the log, 0
// is the log of the container as it is.
func logName(p *corev1.Pod, container string, run int) string {
	name := p.Name
	if len(p.Spec.Containers)+len(p.Spec.InitContainers) > 1 {
		name += "." + container
	}
	if run > 0 {
		name += fmt.Sprintf(".before-restart-%d", run)
	}
	return name + ".log"
}

// write saves a log, or why there is none. A log that is there stays unless the new one
// could be read.
func (in *instance) write(name string, log []byte, err error) {
	path := filepath.Join(in.plan.Logs, name)
	if err != nil {
		if _, known := os.Stat(path); known == nil {
			return
		}
		log = []byte(fmt.Sprintf("(no log: %s)\n", whyNoLog(err)))
	}
	if err := os.WriteFile(path, lastLines(log, logLines), 0o600); err != nil {
		in.deployer.Warn(fmt.Sprintf("save log: %v", err))
	}
}

// lastLines is the end of a log.
func lastLines(log []byte, n int) []byte {
	at := len(bytes.TrimRight(log, "\n"))
	for ; n > 0 && at >= 0; n-- {
		at = bytes.LastIndexByte(log[:at], '\n')
	}
	return log[at+1:]
}

func whyNoLog(err error) string {
	if apierrors.IsForbidden(err) {
		return "the right to get pods/log is missing: " + err.Error()
	}
	return err.Error()
}

// saveLogs saves the logs that tell why a workload failed: those of failed and
// of started but unready pods. Logs from before restarts have been saved when
// the restarts were seen. Each is tried for itself.
func (in *instance) saveLogs(ctx context.Context, s snapshot) error {
	ctx, cancel := context.WithTimeout(ctx, saveLimit)
	defer cancel()
	for _, p := range s.Pods {
		for _, container := range logsWanted(p) {
			log, err := in.deployer.readLog(ctx, p.Name, container, false)
			in.write(logName(p.Pod, container, 0), log, err)
		}
	}
	return errors.Join(in.saveYAML("pods.yaml", podReports(s)), in.saveYAML("events.yaml", eventReports(s)))
}

// logsWanted decides which containers' current logs are worth saving: those of a
// pod that failed, restarted or does not become ready, as far as they have started.
func logsWanted(p podState) []string {
	var names []string
	for _, status := range statuses(p.Pod) {
		started := status.State.Running != nil || status.State.Terminated != nil
		unwell := p.Status.Phase == corev1.PodFailed || status.RestartCount > 0 || !isReady(p.Pod)
		initDone := p.isInit(status.Name) && status.State.Terminated != nil && status.State.Terminated.ExitCode == 0
		if started && unwell && !initDone {
			names = append(names, status.Name)
		}
	}
	return names
}

// podReport is a pod without what may hold secrets.
type podReport struct {
	Name   string            `json:"name"`
	Node   string            `json:"node,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Gone   bool              `json:"gone,omitempty"`
	Status corev1.PodStatus  `json:"status"`
}

func podReports(s snapshot) []podReport {
	var list []podReport
	for _, p := range s.Pods {
		list = append(list, podReport{p.Name, p.Spec.NodeName, p.Labels, false, p.Status})
	}
	for _, p := range s.Gone {
		list = append(list, podReport{p.Name, p.Spec.NodeName, p.Labels, true, p.Status})
	}
	slices.SortFunc(list, func(a, b podReport) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

type eventReport struct {
	Time    metav1.Time `json:"time"`
	Type    string      `json:"type"`
	Object  string      `json:"object"`
	Reason  string      `json:"reason"`
	Message string      `json:"message"`
	Count   int32       `json:"count,omitempty"`
}

func eventReports(s snapshot) []eventReport {
	list := []eventReport{}
	for _, e := range s.Events {
		object := strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name
		list = append(list, eventReport{metav1.NewTime(eventTime(e.Event)), e.Type, object, e.Reason, e.Message, e.Count})
	}
	return list
}

func (in *instance) saveYAML(name string, value any) error {
	data, err := yaml.Marshal(value)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(in.plan.Logs, name), data, 0o600)
}
