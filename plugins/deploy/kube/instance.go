// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/deploy"
)

// slowRoundTrip is from where on the way to the engine shows in the latencies.
const slowRoundTrip = 5 * time.Millisecond

// instance is a deployed trial. Its methods are called one after another.
type instance struct {
	deployer *Deployer
	trial    *trial
	plan     experiment.Plan
	observer *observer
	stop     context.CancelFunc // ends the observer

	phases phases
	tunnel *tunnel
	lost   atomic.Int64 // port-forwards that broke
	// When the engine served: the restarts until then, by pod and container, and
	// the port-forwards lost until then.
	served     bool
	before     map[types.UID]map[string]int32
	lostBefore int64
	probe      deploy.Probe
	cause      experiment.Cause // why Ready failed
	refused    error            // what the last probe met when Ready ended
	looked     map[string]bool  // ends of containers whose logs were read
	heard      map[string]bool  // running containers whose logs are read along
	listeners  sync.WaitGroup
	deleted    bool
}

// answer is what a probe found.
type answer struct {
	target experiment.Target
	err    error
	at     time.Time
}

// Ready waits until every pod is ready, the workload's controller says so, and
// the engine answers a completion. It fails with a *experiment.Failure as soon
// as waiting is pointless.
func (in *instance) Ready(ctx context.Context) (experiment.Target, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer in.listeners.Wait()
	defer cancel()
	var answers chan answer
	var target *experiment.Target
	var timer *time.Timer
	for {
		s, err := in.look(ctx)
		if err != nil {
			return experiment.Target{}, err
		}
		in.listen(ctx, s)
		pods, enough := in.trial.readyPods(s)
		in.phases.note(s, in.trial.pods(), enough, in.deployer.now())
		if enough && answers == nil {
			if answers, err = in.ask(ctx, pods); err != nil {
				return experiment.Target{}, err
			}
		}
		current, gone := in.trial.objectsReady(s)
		if gone != "" {
			return experiment.Target{}, fail(experiment.ClassInfra, "%s was deleted while the trial ran%s", gone, in.deployer.namespaceState(ctx))
		}
		if enough && current && target != nil {
			in.serve(s, target)
			return *target, nil
		}
		v := diagnose(s, in.deployer.now(), in.limits())
		if v.Decided {
			in.cause = v.Cause
			if err := in.saveLogs(ctx, s); err != nil {
				in.deployer.Warn(fmt.Sprintf("save the logs of %s: %v", in.trial.name, err))
			}
			return experiment.Target{}, &experiment.Failure{Cause: v.Cause}
		}
		timer = time.NewTimer(in.until(v.Again))
		select {
		case <-in.observer.changed:
		case <-timer.C:
		case a := <-answers:
			if a.err != nil {
				return experiment.Target{}, a.err
			}
			target, in.phases.served = &a.target, a.at
		case <-ctx.Done():
			timer.Stop()
			if answers != nil && target == nil {
				in.refused = (<-answers).err
			}
			return experiment.Target{}, context.Cause(ctx)
		}
		timer.Stop()
	}
}

// until is how long nothing needs to be looked at.
func (in *instance) until(again time.Time) time.Duration {
	if again.IsZero() {
		return time.Hour
	}
	return max(again.Sub(in.deployer.now()), time.Millisecond)
}

func (in *instance) limits() limits {
	e := in.deployer.Execution
	return limits{Scheduling: e.SchedulingTimeout, ImagePull: e.ImagePullTimeout, MaxRestarts: e.MaxRestarts, Pods: in.trial.pods()}
}

// look is what has been observed, with the logs of containers that ended.
func (in *instance) look(ctx context.Context) (snapshot, error) {
	s, err := in.observer.snapshot()
	if err != nil {
		return s, failure(ctx, "watch the trial", err)
	}
	if in.readEnds(ctx, s) {
		s, err = in.observer.snapshot()
	}
	return s, failure(ctx, "watch the trial", err)
}

// ask starts to ask the engine for a completion.
func (in *instance) ask(ctx context.Context, pods []*corev1.Pod) (chan answer, error) {
	url, tunnel, forwarded, err := in.reach(ctx, pods)
	if err != nil {
		return nil, fail(experiment.ClassInfra, "reach the engine: %v", err)
	}
	direct := ""
	if in.tunnel = tunnel; tunnel != nil {
		in.observer.onEnd(tunnel.cut)
		if tunnel.url() != url {
			direct = tunnel.url()
		}
	}
	in.probe = deploy.Probe{BaseURL: url, Health: in.deployer.Engine.HealthPath, APIKey: in.deployer.APIKey, Client: &http.Client{Transport: &http.Transport{}}, Expected: in.expected(pods)}
	answers := make(chan answer, 1)
	go func() {
		target, err := in.probe.Wait(ctx)
		target.Direct = direct
		at := in.deployer.now()
		if err == nil && forwarded {
			in.measure(ctx)
		}
		answers <- answer{target, err, at}
	}()
	return answers, nil
}

// measure tells how long the way through the API server is.
func (in *instance) measure(ctx context.Context) {
	took, err := in.probe.RoundTrip(ctx)
	if err == nil && took > slowRoundTrip {
		in.deployer.Warn(fmt.Sprintf("the port-forward to trial %s/%d takes %.1f ms for a round trip, which is in every latency; run llmctl in the cluster, or set execution.endpoint",
			in.plan.Template, in.plan.Index, took.Seconds()*1000))
	}
}

// serve notes how the workload is when its load begins.
func (in *instance) serve(s snapshot, target *experiment.Target) {
	in.probe.Client.CloseIdleConnections()
	in.before = map[types.UID]map[string]int32{}
	for _, p := range s.Pods {
		restarts := map[string]int32{}
		for _, status := range statuses(p.Pod) {
			restarts[status.Name] = status.RestartCount
		}
		in.before[p.UID] = restarts
	}
	in.served, in.lostBefore = true, in.lost.Load()
	target.Phases = in.phases.list()
}

// Diagnose saves what is left of a failed workload's logs and says why it
// failed; the zero Cause means that nothing is wrong with it.
func (in *instance) Diagnose(ctx context.Context) (experiment.Cause, error) {
	if err := in.relist(ctx); err != nil {
		return in.cause, failure(ctx, "list the trial's pods", err)
	}
	s, err := in.look(ctx)
	if err != nil && in.cause.Class == "" {
		return experiment.Cause{}, err
	}
	cause := in.cause
	switch {
	case cause.Class != "":
	case in.served:
		cause = in.underLoad(ctx, s)
	default:
		cause = in.notReady(s)
	}
	if cause.Class == "" {
		return cause, nil
	}
	return cause, in.saveLogs(ctx, s)
}

// relist asks for the pods as they are now: a watch may be behind.
func (in *instance) relist(ctx context.Context) error {
	d := in.deployer
	return d.retry(ctx, func(ctx context.Context) error {
		_, err := in.observer.podStream().relist(ctx)
		return err
	})
}

// Delete removes the trial's objects and returns when their pods are gone.
func (in *instance) Delete(ctx context.Context) error {
	in.release()
	if in.deleted {
		return nil
	}
	err := in.deployer.deleteAll(ctx, in.trial.objects, ofTrial(in.deployer.ID, in.trial.name))
	in.deleted = err == nil
	return err
}

// release ends what this process has open for the trial.
func (in *instance) release() {
	in.stop()
	if in.tunnel != nil {
		in.tunnel.close()
		in.tunnel = nil
	}
	in.observer.done.Wait()
}

// Keep marks the workload as kept for debugging, so that Sweep leaves it alone,
// and returns the command that removes it.
func (in *instance) Keep(ctx context.Context) (how string, err error) {
	in.release()
	d := in.deployer
	patch := []byte(fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, LabelKeep))
	var kinds []string
	for _, u := range in.trial.objects {
		mapping, resource, err := d.mapped(ctx, u)
		if err != nil {
			return "", err
		}
		err = d.retry(ctx, func(ctx context.Context) error {
			_, err := resource.Patch(ctx, u.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "llmctl"})
			return err
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return "", failure(ctx, "keep "+reference(u), err)
		}
		name := strings.TrimSuffix(mapping.Resource.Resource+"."+mapping.Resource.Group, ".")
		if !slices.Contains(kinds, name) {
			kinds = append(kinds, name)
		}
	}
	return fmt.Sprintf("kubectl delete %s -n %s -l %s", strings.Join(kinds, ","), d.Namespace, ofTrial(d.ID, in.trial.name)), nil
}

// namespaceState says when the namespace is the trouble; it needs no rights of its own.
func (d *Deployer) namespaceState(ctx context.Context) string {
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	namespace, err := d.Core.Namespaces().Get(limited, d.Namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf(": namespace %s is gone", d.Namespace)
	case err == nil && namespace.DeletionTimestamp != nil:
		return fmt.Sprintf(": namespace %s is being deleted", d.Namespace)
	}
	return ""
}
