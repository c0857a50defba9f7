// SPDX-License-Identifier: Apache-2.0

package autobench

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"k8s.io/client-go/rest"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/deploy/kube"
)

// cluster builds the deployer of trials in the cluster and namespace that the
// kube flags choose. id is the experiment's own; see state.Dir.ID.
func (o *options) cluster(s *setup, id string) (*kube.Deployer, error) {
	config, err := o.kube.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	namespace, _, err := o.kube.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, fmt.Errorf("find the namespace: %w", err)
	}
	mapper, err := o.kube.ToRESTMapper()
	if err != nil {
		return nil, fmt.Errorf("ask the cluster for its kinds: %w", err)
	}
	d, err := kube.New(config, mapper, namespace)
	if err != nil {
		return nil, err
	}
	d.Engine, d.Options = s.engine, s.options
	d.Experiment, d.ID, d.Execution = s.spec.Name, id, s.spec.Execution
	d.InCluster = inCluster(config)
	d.Warn = o.warn
	d.Templates = map[string][]byte{}
	for _, t := range s.spec.Templates {
		d.Templates[t.Name] = t.Source
	}
	return d, nil
}

// inCluster tells whether this process is a pod of the cluster it talks to.
func inCluster(config *rest.Config) bool {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	return host != "" && config.Host == "https://"+net.JoinHostPort(host, port)
}

// preflight finds what would keep the trials from running in the cluster,
// before anything is created.
func (o *options) preflight(ctx context.Context, s *setup) error {
	if s.spec.Execution.Target != experiment.TargetKubernetes {
		return nil
	}
	d, err := o.cluster(s, preflightID)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.ErrOut, "cluster %s, context %s, namespace %s\n", d.Config.Host, o.contextName(), d.Namespace)
	if err := reach(ctx, d); err != nil {
		return err
	}
	warnings, err := d.Preflight(ctx, d.Templates)
	for _, w := range warnings {
		o.warn(w)
	}
	if ctx.Err() != nil {
		return experiment.ErrInterrupted
	}
	return err
}

// reachLimit is how long a cluster may take to answer at all.
const reachLimit = 10 * time.Second

// reach asks the cluster for its version, once. Later requests are made again for
// as long as an outage may take, which is too patient for a wrong address.
func reach(ctx context.Context, d *kube.Deployer) error {
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	if err := d.Core.RESTClient().Get().AbsPath("/version").Do(ctx).Error(); err != nil {
		return fmt.Errorf("reach the cluster at %s: %w; check --kubeconfig and --context", d.Config.Host, err)
	}
	return nil
}

// preflightID stands for the experiment's id in objects that are only tried.
const preflightID = "preflight"

// contextName is the kube context that is used.
func (o *options) contextName() string {
	if o.kube.Context != nil && *o.kube.Context != "" {
		return *o.kube.Context
	}
	raw, err := o.kube.ToRawKubeConfigLoader().RawConfig()
	if err != nil || raw.CurrentContext == "" {
		return "(none)"
	}
	return raw.CurrentContext
}
