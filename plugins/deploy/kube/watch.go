// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// stream is what can be listed and watched. Lists are selected: never a whole
// namespace's pods.
type stream struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// options select; from is the version to start at instead of with a list.
	options metav1.ListOptions
	from    string

	reset  func([]runtime.Object) // all there is now
	change func(watch.EventType, runtime.Object)
}

// watchLimit ends a watch on the server's side; it is then opened again.
const watchLimit = 10 * time.Minute

// follow passes on all changes until ctx ends. It goes on after lost
// connections and, by a new list, after the server has forgotten the version.
// An error is one that waiting does not heal.
func (d *Deployer) follow(ctx context.Context, s stream) error {
	var b backoff
	version, worked := s.from, false
	var refused time.Time
	for ctx.Err() == nil {
		var err error
		if version == "" {
			version, err = s.relist(ctx)
		}
		if err == nil {
			worked, refused, b = true, time.Time{}, backoff{}
			version, err = s.watchFrom(ctx, version)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			continue
		case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
			version = ""
			continue
		case isRefusal(err) && worked:
			if refused.IsZero() {
				refused = d.now()
			}
			if d.now().Sub(refused) > refusalGrace {
				return err
			}
		case !isTransient(err):
			return err
		}
		if b.sleep(ctx, err) != nil {
			return nil
		}
	}
	return nil
}

func (s stream) relist(ctx context.Context) (version string, err error) {
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := s.list(limited, s.options)
	if err != nil {
		return "", err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return "", err
	}
	access, err := meta.ListAccessor(list)
	if err != nil {
		return "", err
	}
	s.reset(items)
	return access.GetResourceVersion(), nil
}

// watchFrom passes on changes until the watch ends, and returns the version to
// go on from.
func (s stream) watchFrom(ctx context.Context, version string) (string, error) {
	options := s.options
	seconds := int64(watchLimit / time.Second)
	options.ResourceVersion, options.AllowWatchBookmarks, options.TimeoutSeconds = version, true, &seconds
	w, err := s.watch(ctx, options)
	if err != nil {
		return version, err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return version, apierrors.FromObject(event.Object)
		}
		if access, err := meta.Accessor(event.Object); err == nil {
			version = access.GetResourceVersion()
		}
		if event.Type != watch.Bookmark {
			s.change(event.Type, event.Object)
		}
	}
	return version, nil
}
