// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"context"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
)

// source is a kind that can be listed and watched.
type source struct {
	what  string
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// relistAfter is the pause after a broken watch. client-go's informers wait up to
// half a minute after an outage of the API server, which tests would wait for too.
const relistAfter = 100 * time.Millisecond

// follow calls seen for every object and each of its versions, and gone once it
// does not exist any more, until ctx ends. It survives outages of the API server.
func follow(ctx context.Context, s source, log io.Writer, seen func(runtime.Object), gone func(types.UID)) {
	known := map[types.UID]bool{}
	var last error
	for ctx.Err() == nil {
		err := followOnce(ctx, s, known, seen, gone)
		if err != nil && last == nil && ctx.Err() == nil && !utilnet.IsConnectionRefused(err) {
			fmt.Fprintf(log, "bed: watch %s: %v\n", s.what, err)
		}
		last = err
		sleep(ctx, relistAfter)
	}
}

func followOnce(ctx context.Context, s source, known map[types.UID]bool, seen func(runtime.Object), gone func(types.UID)) error {
	list, err := s.list(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	objects, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	now := map[types.UID]bool{}
	for _, object := range objects {
		id, err := uid(object)
		if err != nil {
			return err
		}
		now[id], known[id] = true, true
		seen(object)
	}
	for id := range known {
		if !now[id] {
			delete(known, id)
			gone(id)
		}
	}
	version, err := meta.NewAccessor().ResourceVersion(list)
	if err != nil {
		return err
	}
	w, err := s.watch(ctx, metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		return err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		id, err := uid(event.Object)
		switch {
		case err != nil: // a Status, for a watch that has to begin anew
			return nil
		case event.Type == watch.Deleted:
			delete(known, id)
			gone(id)
		case event.Type == watch.Added, event.Type == watch.Modified:
			known[id] = true
			seen(event.Object)
		}
	}
	return nil
}

func uid(object runtime.Object) (types.UID, error) {
	m, err := meta.Accessor(object)
	if err != nil {
		return "", err
	}
	return m.GetUID(), nil
}
