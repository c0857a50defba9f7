// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"

	"github.com/llmctl/llmctl/experiment"
)

// How an API server that does not answer is waited for.
const (
	requestTimeout = 30 * time.Second // of one request
	outageLimit    = 2 * time.Minute  // of all attempts together
	firstBackoff   = 100 * time.Millisecond
	lastBackoff    = 5 * time.Second
	// refusalGrace is how long an API server that came back may refuse everything:
	// it answers before it has read who may do what.
	refusalGrace = 15 * time.Second
)

// backoff is a true exponential one.
type backoff struct{ wait time.Duration }

// sleep waits longer each time; the error is ctx's.
func (b *backoff) sleep(ctx context.Context, err error) error {
	b.wait = min(max(2*b.wait, firstBackoff), lastBackoff)
	wait := b.wait
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		wait = min(max(wait, time.Duration(seconds)*time.Second), lastBackoff)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// retry makes a request until it is answered for good. Its error is the last
// one that the request met.
func (d *Deployer) retry(ctx context.Context, request func(context.Context) error) error {
	var b backoff
	start, lost := d.now(), false
	for {
		limited, cancel := context.WithTimeout(ctx, requestTimeout)
		err := request(limited)
		cancel()
		passed := d.now().Sub(start)
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case isTransient(err) && passed < outageLimit:
			lost = lost || !isAnswer(err)
		case lost && isRefusal(err) && passed < outageLimit+refusalGrace:
		default:
			return err
		}
		if stopped := b.sleep(ctx, err); stopped != nil {
			return fmt.Errorf("%w (last answer: %w)", stopped, err)
		}
	}
}

func isAnswer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

func isRefusal(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// isTransient tells whether the same request can succeed later.
func isTransient(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := status.Status().Code
		return code == http.StatusConflict && !apierrors.IsAlreadyExists(err) ||
			code == http.StatusTooManyRequests || code >= 500 || apierrors.IsTimeout(err)
	}
	var op *net.OpError
	return errors.As(err, &op) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || utilnet.IsProbableEOF(err) || utilnet.IsTimeout(err) ||
		utilnet.IsHTTP2ConnectionLost(err) || utilnet.IsConnectionReset(err)
}

// failure makes an error of the API server that of a trial, with its class.
// What the caller's context ended stays as it is.
func failure(ctx context.Context, what string, err error) error {
	var known *experiment.Failure
	if err == nil || ctx.Err() != nil || errors.As(err, &known) {
		return err
	}
	failed := fail(classify(err), "%s: %s", what, explain(err))
	text := err.Error()
	switch {
	case strings.Contains(text, "exceeded quota"):
	case isAdmission(text), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return &permanentError{error: failed}
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		return &permanentError{error: failed, always: true}
	}
	return failed
}

// permanentError is an answer that the same request will always get. Unless it
// is for its contents, other contents will get it, too.
type permanentError struct {
	error
	always   bool
	unserved bool // the namespace cannot have objects of this kind
}

// notServed is the failure of an object of such a kind.
func notServed(format string, args ...any) error {
	return &permanentError{error: fail(experiment.ClassConfig, format, args...), always: true, unserved: true}
}

func isNotServed(err error) bool {
	var refused *permanentError
	return errors.As(err, &refused) && refused.unserved
}

func (p *permanentError) Unwrap() error { return p.error }

func fail(class, format string, args ...any) error {
	return &experiment.Failure{Cause: experiment.Cause{Class: class, Message: oneLine(fmt.Sprintf(format, args...))}}
}

func classify(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "exceeded quota"):
		return classQuota
	case isAdmission(text), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsAlreadyExists(err),
		apierrors.IsMethodNotSupported(err), apierrors.IsRequestEntityTooLargeError(err), meta.IsNoMatchError(err):
		return experiment.ClassConfig
	case isTransient(err):
		return experiment.ClassTransient
	default:
		return experiment.ClassInfra
	}
}

// isAdmission tells whether an object was refused for what it says.
func isAdmission(text string) bool {
	return strings.Contains(text, "denied the request") || strings.Contains(text, "violates PodSecurity") ||
		strings.Contains(text, "is forbidden: unable to validate against any") ||
		strings.Contains(text, "usage per Container") || strings.Contains(text, "usage per Pod")
}

// explain adds to the server's message what to do about it.
func explain(err error) string {
	text := err.Error()
	switch {
	case apierrors.IsUnauthorized(err):
		return "the API server does not accept the credentials; log in again: " + text
	case apierrors.HasStatusCause(err, "NamespaceTerminating"):
		return "the namespace is being deleted: " + text
	case apierrors.IsNotFound(err) && strings.HasPrefix(text, "namespaces "):
		return "the namespace does not exist: " + text
	case isTransient(err) && !isAnswer(err):
		return fmt.Sprintf("no answer from the API server for %s: %s", outageLimit, text)
	}
	return text
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// resource is where objects of u's kind are; a kind that the cluster does not
// serve, or not in namespaces, is a *experiment.Failure.
func (d *Deployer) resource(u *unstructured.Unstructured) (*meta.RESTMapping, dynamic.ResourceInterface, error) {
	gvk := u.GroupVersionKind()
	mapping, err := d.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	switch {
	case meta.IsNoMatchError(err):
		return nil, nil, notServed("%s: the cluster does not serve kind %s of %s", reference(u), u.GetKind(), u.GetAPIVersion())
	case err != nil:
		return nil, nil, err
	case mapping.Scope.Name() != meta.RESTScopeNameNamespace:
		return nil, nil, notServed("%s: a %s belongs to the whole cluster and cannot be a part of a trial; create it once and take it out of the template", reference(u), u.GetKind())
	}
	return mapping, d.Dynamic.Resource(mapping.Resource).Namespace(d.Namespace), nil
}

// mapped is resource, waiting for an API server that is away.
func (d *Deployer) mapped(ctx context.Context, u *unstructured.Unstructured) (mapping *meta.RESTMapping, resource dynamic.ResourceInterface, err error) {
	err = d.retry(ctx, func(context.Context) (err error) {
		mapping, resource, err = d.resource(u)
		return err
	})
	return mapping, resource, failure(ctx, reference(u), err)
}

var foreground = metav1.DeletePropagationForeground
