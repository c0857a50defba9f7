// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// recorder writes events. What happens again is counted in the event that tells of it.
type recorder struct {
	core corev1client.CoreV1Interface
	log  io.Writer

	mu     sync.Mutex // held while an event is written
	known  map[eventKey]*corev1.Event
	number int
}

type eventKey struct {
	about           types.UID
	path            string
	reason, message string
}

func newRecorder(core corev1client.CoreV1Interface, log io.Writer) *recorder {
	return &recorder{core: core, log: log, known: map[eventKey]*corev1.Event{}}
}

// record tells of something that happened to an object. As with a kubelet's,
// an event that cannot be written is lost.
func (r *recorder) record(ctx context.Context, about corev1.ObjectReference, source corev1.EventSource, kind, reason, message string) {
	key := eventKey{about.UID, about.FieldPath, reason, message}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := metav1.Now()
	event, events := r.known[key], r.core.Events(about.Namespace)
	var err error
	if event == nil {
		r.number++
		event, err = events.Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: about.Namespace, Name: fmt.Sprintf("%s.%x.%d", about.Name, now.UnixNano(), r.number)},
			InvolvedObject: about, Source: source, ReportingController: source.Component, ReportingInstance: source.Host,
			Type: kind, Reason: reason, Message: message, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		}, metav1.CreateOptions{})
	} else {
		patch := fmt.Appendf(nil, `{"count":%d,"lastTimestamp":%q}`, event.Count+1, now.UTC().Format(time.RFC3339))
		event, err = events.Patch(ctx, event.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	switch {
	case err == nil:
		r.known[key] = event
	case ctx.Err() == nil && !ending(err):
		fmt.Fprintf(r.log, "bed: event %s of %s %s/%s: %v\n", reason, about.Kind, about.Namespace, about.Name, err)
	}
}

// ending says that a namespace is being removed.
func ending(err error) bool { return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) }

// forget drops what is known of an object that does not exist any more.
func (r *recorder) forget(about types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.known {
		if key.about == about {
			delete(r.known, key)
		}
	}
}
