// SPDX-License-Identifier: Apache-2.0

// Package kube runs a template as a trial workload in a Kubernetes namespace:
// any kind that has pods, through the dynamic client.
package kube

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/dynamic"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/llmctl/llmctl/experiment"
	"github.com/llmctl/llmctl/plugins/engine"
)

// Deployer starts trials in one namespace. New sets the clients; the other
// fields are required unless stated.
type Deployer struct {
	Dynamic       dynamic.Interface
	Core          corev1client.CoreV1Interface
	Authorization authorizationv1client.AuthorizationV1Interface
	Mapper        meta.RESTMapper
	Config        *rest.Config

	Namespace string
	Engine    *engine.Engine
	Options   engine.Options
	// Experiment is the experiment's name, ID its unique id: a label value. Only
	// objects with this id are ever changed or deleted.
	Experiment string
	ID         string
	Execution  experiment.Execution
	// Templates are the experiment's templates by name, without parameters; their
	// kinds are the ones that Sweep and Preflight look at.
	Templates map[string][]byte
	// InCluster tells that this process runs in a pod of the cluster, so that
	// Services and pods are reached without a port-forward.
	InCluster bool
	// APIKey goes with the probe's requests; may be empty.
	APIKey string
	// Warn receives one line about what the user should know; it must return soon
	// and be safe for concurrent use.
	Warn func(string)
	Now  func() time.Time // nil means time.Now
}

// Requests per second to the API server before this client slows itself down;
// the server has its own limits.
const (
	clientQPS   = 100
	clientBurst = 200
)

// New returns a Deployer with clients for the given cluster; the caller sets
// the fields below Config. The mapper should forget and ask again when it does not
// know a kind.
func New(config *rest.Config, mapper meta.RESTMapper, namespace string) (*Deployer, error) {
	config = rest.CopyConfig(config)
	d := &Deployer{Config: config, Mapper: mapper, Namespace: namespace}
	if config.WarningHandler == nil && config.WarningHandlerWithContext == nil {
		config.WarningHandler = &serverWarnings{deployer: d}
	}
	if config.QPS == 0 {
		config.QPS, config.Burst = clientQPS, clientBurst
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	if d.Dynamic, err = dynamic.NewForConfigAndClient(config, client); err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	if d.Core, err = corev1client.NewForConfigAndClient(config, client); err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	if d.Authorization, err = authorizationv1client.NewForConfigAndClient(config, client); err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	return d, nil
}

// serverWarnings passes on what the API server warns of, each once.
type serverWarnings struct {
	deployer *Deployer
	said     sync.Map
}

func (s *serverWarnings) HandleWarningHeader(code int, _ string, text string) {
	if _, known := s.said.LoadOrStore(text, true); code == 299 && text != "" && !known && s.deployer.Warn != nil {
		s.deployer.Warn("the API server warns: " + text)
	}
}

func (d *Deployer) now() time.Time {
	if d.Now == nil {
		return time.Now()
	}
	return d.Now()
}
