// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The annotations of a pod that make it fail. FaultAnnotation names the fault,
// the others are its details; what they mean for each is told at fault.
const (
	FaultAnnotation         = "bed.llmctl.io/fault"
	FaultLogAnnotation      = "bed.llmctl.io/fault-log"       // text
	FaultExitCodeAnnotation = "bed.llmctl.io/fault-exit-code" // number; 1
	FaultAfterAnnotation    = "bed.llmctl.io/fault-after"     // duration
	FaultPodsAnnotation     = "bed.llmctl.io/fault-pods"      // number: only so many pods of the namespace fail; all
)

// fault is how a pod fails. Faults of a container are those of the first one
// that runs an engine, or else of the first one.
//
//	crashloop        prints fault-log, runs for fault-after and exits with fault-exit-code, at every start
//	oom              prints fault-log and is killed for its memory, at every start; with fault-after, that long after it became ready
//	restart          is killed once, fault-after after it became ready
//	liveness-killed  fails its liveness probe and is killed, each time fault-after after it became ready
//	image-pull       its image cannot be pulled: ErrImagePull and ImagePullBackOff take turns
//	slow-pull        its image takes fault-after to pull; then all is well
//	invalid-image    InvalidImageName; fault-log replaces the message
//	config-error     CreateContainerConfigError; fault-log replaces the message
//	slow-ready       becomes ready fault-after after it is healthy
//	never-ready      is healthy and never becomes ready
//	evicted          phase Failed, reason Evicted, fault-after after the start; fault-log replaces the message
//	stuck            stays Terminating for fault-after after its processes have ended
type fault struct {
	name     string
	log      string
	exitCode int
	after    time.Duration
}

// faults has the default of fault-after.
var faults = map[string]time.Duration{
	"crashloop": 0, "oom": 0, "restart": time.Second, "liveness-killed": time.Second,
	"image-pull": 0, "slow-pull": 2 * time.Second, "invalid-image": 0, "config-error": 0,
	"slow-ready": 2 * time.Second, "never-ready": 0, "evicted": 0, "stuck": 5 * time.Second,
}

// newFault reads a pod's annotations. It is called with the lock held.
func (k *kubelet) newFault(object *corev1.Pod) (f fault, err error) {
	name := object.Annotations[FaultAnnotation]
	if name == "" {
		return fault{}, nil
	}
	after, known := faults[name]
	if !known {
		return fault{}, fmt.Errorf("annotation %s: %q is not a fault of the test bed", FaultAnnotation, name)
	}
	f = fault{name: name, log: object.Annotations[FaultLogAnnotation], exitCode: 1, after: after}
	if text, ok := object.Annotations[FaultExitCodeAnnotation]; ok {
		if f.exitCode, err = strconv.Atoi(text); err != nil {
			return fault{}, fmt.Errorf("annotation %s: %w", FaultExitCodeAnnotation, err)
		}
	}
	if text, ok := object.Annotations[FaultAfterAnnotation]; ok {
		if f.after, err = time.ParseDuration(text); err != nil {
			return fault{}, fmt.Errorf("annotation %s: %w", FaultAfterAnnotation, err)
		}
	}
	if text, ok := object.Annotations[FaultPodsAnnotation]; ok {
		limit, err := strconv.Atoi(text)
		if err != nil {
			return fault{}, fmt.Errorf("annotation %s: %w", FaultPodsAnnotation, err)
		}
		key := object.Namespace + "/" + name
		if k.failed[key]++; k.failed[key] > limit {
			return fault{}, nil
		}
	}
	return f, nil
}

// message is the fault's own, or the usual one.
func (f fault) message(usual string) string {
	if f.log != "" {
		return f.log
	}
	return usual
}

// command replaces the engine's for faults that keep it from starting; nil for others.
// A shell plays them, so that logs, exit code and restarts are real.
func (f fault) command() []string {
	const script = `if [ -n "$0" ]; then printf '%s\n' "$0" >&2; fi; sleep "$1"; `
	argv := []string{"sh", "-c", "", f.log, fmt.Sprintf("%.3f", f.after.Seconds()), strconv.Itoa(f.exitCode)}
	switch {
	case f.name == "crashloop":
		argv[2] = script + `exit "$2"`
	case f.name == "oom" && f.after == 0:
		argv[2] = script + `kill -9 $$`
	default:
		return nil
	}
	return argv
}

// kills says whether the fault ends an engine that was ready.
func (f fault) kills(restarts int32) bool {
	switch f.name {
	case "restart":
		return restarts == 0
	case "liveness-killed":
		return true
	case "oom":
		return f.after > 0
	}
	return false
}
