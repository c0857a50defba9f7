// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// announce tells kwok where the logs and ports of the pod's processes are.
func (p *pod) announce(ctx context.Context, all []*container) error {
	var logs, forwards []any
	for _, c := range all {
		if c.engine {
			var err error
			if c.port, err = p.kubelet.ports.free(); err != nil {
				return err
			}
			forwards = append(forwards, map[string]any{
				"ports":  []any{int64(c.listed)},
				"target": map[string]any{"address": loopback, "port": int64(c.port)},
			})
		}
		logs = append(logs, map[string]any{
			"containers": []any{c.spec.Name}, "logsFile": currentLog(c.dir), "previousLogsFile": previousLog(c.dir),
		})
	}
	if err := p.apply(ctx, kwokForwards, "PortForward", map[string]any{"forwards": forwards}); err != nil {
		return err
	}
	return p.apply(ctx, kwokLogs, "Logs", map[string]any{"logs": logs})
}

// apply writes an object of the pod's name, however long the API server is away.
func (p *pod) apply(ctx context.Context, kind schema.GroupVersionResource, name string, spec map[string]any) error {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": kind.GroupVersion().String(), "kind": name,
		"metadata": map[string]any{"name": p.object.Name, "namespace": p.object.Namespace},
		"spec":     spec,
	}}
	object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.object.Name, UID: p.object.UID}})
	client := p.kubelet.dynamic.Resource(kind).Namespace(p.object.Namespace)
	for {
		_, err := client.Apply(ctx, p.object.Name, object, metav1.ApplyOptions{FieldManager: "bed", Force: true})
		if err == nil || final(err) || apierrors.IsForbidden(err) || !sleep(ctx, retryEvery) {
			return err
		}
	}
}

// retract takes back what announce has told. What stays is removed with the pod.
func (p *pod) retract(ctx context.Context) {
	for _, kind := range []schema.GroupVersionResource{kwokForwards, kwokLogs} {
		err := p.kubelet.dynamic.Resource(kind).Namespace(p.object.Namespace).Delete(ctx, p.object.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			p.complain(ctx, "retract", err)
		}
	}
}

// known waits until kwok serves the log of a container that has begun to write
// one: its watch may lag behind, and a pod that is seen to run has logs.
func (p *pod) known(ctx context.Context, container string) error {
	client := &http.Client{Timeout: probeLimit, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	url := fmt.Sprintf("%s/containerLogs/%s/%s/%s?limitBytes=1", p.kubelet.kwok, p.object.Namespace, p.object.Name, container)
	late := time.AfterFunc(10*time.Second, func() {
		p.complain(ctx, "start", fmt.Errorf("kwok does not serve the logs of container %s yet", container))
	})
	defer late.Stop()
	return poll(ctx, "wait for kwok", func(ctx context.Context) (bool, error) {
		return status(ctx, client, url, "") == http.StatusOK, nil
	})
}
