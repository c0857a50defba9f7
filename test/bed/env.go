// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/llmctl/llmctl/plugins/engine"
)

// environment returns the container's variables with their values. While an
// object that they come from does not exist, the container waits for it. It
// returns false when the pod has left.
func (c *container) environment(ctx context.Context) ([]corev1.EnvVar, bool) {
	for {
		env, err := c.resolve(ctx)
		if err == nil {
			return env, ctx.Err() == nil
		}
		if ctx.Err() == nil {
			c.event(ctx, corev1.EventTypeWarning, "Failed", "Error: "+err.Error())
			c.wait(ctx, "CreateContainerConfigError", err.Error())
		}
		if !sleep(ctx, retryEvery) {
			return nil, false
		}
	}
}

func (c *container) resolve(ctx context.Context) ([]corev1.EnvVar, error) {
	var env []corev1.EnvVar
	for _, from := range c.spec.EnvFrom {
		var values map[string]string
		var err error
		switch {
		case from.ConfigMapRef != nil:
			values, err = c.pod.configMap(ctx, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		case from.SecretRef != nil:
			values, err = c.pod.secret(ctx, from.SecretRef.Name, from.SecretRef.Optional)
		}
		if err != nil {
			return nil, err
		}
		for name, value := range values {
			env = append(env, corev1.EnvVar{Name: from.Prefix + name, Value: value})
		}
	}
	for _, v := range c.spec.Env {
		value := engine.Expand([]string{v.Value}, lookup(env))[0]
		if v.ValueFrom != nil {
			var err error
			if value, err = c.pod.valueFrom(ctx, *v.ValueFrom); err != nil {
				return nil, err
			}
		}
		env = slices.DeleteFunc(env, func(old corev1.EnvVar) bool { return old.Name == v.Name })
		env = append(env, corev1.EnvVar{Name: v.Name, Value: value})
	}
	return env, nil
}

func (p *pod) valueFrom(ctx context.Context, from corev1.EnvVarSource) (string, error) {
	switch {
	case from.ConfigMapKeyRef != nil:
		values, err := p.configMap(ctx, from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Optional)
		return key(values, "ConfigMap", from.ConfigMapKeyRef.Key, from.ConfigMapKeyRef.Optional, err)
	case from.SecretKeyRef != nil:
		values, err := p.secret(ctx, from.SecretKeyRef.Name, from.SecretKeyRef.Optional)
		return key(values, "Secret", from.SecretKeyRef.Key, from.SecretKeyRef.Optional, err)
	case from.FieldRef != nil:
		return p.field(from.FieldRef.FieldPath), nil
	}
	return "", nil // a resource's amount, which no engine here reads
}

func key(values map[string]string, kind, key string, optional *bool, err error) (string, error) {
	if err != nil {
		return "", err
	}
	value, ok := values[key]
	if !ok && (optional == nil || !*optional) {
		return "", fmt.Errorf("couldn't find key %s in %s", key, kind)
	}
	return value, nil
}

// field is a field of the pod by its path; those that engines use.
func (p *pod) field(path string) string {
	return map[string]string{
		"metadata.name": p.object.Name, "metadata.namespace": p.object.Namespace, "metadata.uid": string(p.object.UID),
		"spec.nodeName": p.object.Spec.NodeName, "status.podIP": p.address, "status.hostIP": loopback,
	}[path]
}

// configMap is the data of a ConfigMap; of one that may be missing, nothing.
func (p *pod) configMap(ctx context.Context, name string, optional *bool) (map[string]string, error) {
	object, err := p.kubelet.core.ConfigMaps(p.object.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, missing("configmap", name, optional, err)
	}
	return object.Data, nil
}

// secret is the data of a Secret; of one that may be missing, nothing.
func (p *pod) secret(ctx context.Context, name string, optional *bool) (map[string]string, error) {
	object, err := p.kubelet.core.Secrets(p.object.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, missing("secret", name, optional, err)
	}
	values := map[string]string{}
	for key, value := range object.Data {
		values[key] = string(value)
	}
	return values, nil
}

func missing(kind, name string, optional *bool, err error) error {
	switch {
	case !apierrors.IsNotFound(err):
		return err
	case optional != nil && *optional:
		return nil
	}
	return fmt.Errorf("%s %q not found", kind, name)
}
