// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/llmctl/llmctl/plugins/deploy"
)

// expected is what the serving engine is checked against. Several engines behind
// one address, as prefill and decode are, cannot be told apart from outside.
func (in *instance) expected(pods []*corev1.Pod) *deploy.Expected {
	if len(in.trial.engineRoles()) != 1 && in.trial.roles() {
		return nil
	}
	c := in.trial.containers[0]
	return &deploy.Expected{Engine: in.deployer.Engine, Container: c, Log: func(ctx context.Context) ([]byte, error) {
		own := in.trial.running(pods, c)
		if len(own) == 0 {
			return nil, errors.New("no pod runs the engine")
		}
		return in.deployer.readHead(ctx, own[0].Name, c.Name)
	}}
}

// roles tells whether the trial has a kind with roles of its own.
func (t *trial) roles() bool {
	for _, u := range t.workloads() {
		if k, ok := t.kinds.of(u); ok && k.Count.Each != "" {
			return true
		}
	}
	return false
}
