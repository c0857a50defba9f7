// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

//go:embed manifests/*.yaml
var manifests embed.FS

var (
	roleGroups    = schema.GroupVersionResource{Group: "workloads.x-k8s.io", Version: "v1alpha2", Resource: "rolebasedgroups"}
	leaderWorkers = schema.GroupVersionResource{Group: "leaderworkerset.x-k8s.io", Version: "v1", Resource: "leaderworkersets"}
	rulesReviews  = schema.GroupVersionResource{Group: "authorization.k8s.io", Version: "v1", Resource: "selfsubjectrulesreviews"}
	kwokLogs      = schema.GroupVersionResource{Group: "kwok.x-k8s.io", Version: "v1alpha1", Resource: "logs"}
	kwokForwards  = schema.GroupVersionResource{Group: "kwok.x-k8s.io", Version: "v1alpha1", Resource: "portforwards"}
)

// installKinds creates the custom kinds and waits until they are served.
func (b *Bed) installKinds(ctx context.Context) error {
	files, err := manifests.ReadDir("manifests")
	if err != nil {
		return err
	}
	for _, file := range files {
		data, err := manifests.ReadFile("manifests/" + file.Name())
		if err != nil {
			return err
		}
		if _, err := b.Create(ctx, "", data); err != nil {
			return err
		}
	}
	for _, kind := range []schema.GroupVersionResource{roleGroups, leaderWorkers, kwokLogs, kwokForwards} {
		err := poll(ctx, "wait for "+kind.String(), func(ctx context.Context) (bool, error) {
			_, err := b.Dynamic.Resource(kind).List(ctx, metav1.ListOptions{})
			return err == nil, nil
		})
		if err != nil {
			return err
		}
	}
	b.mapper.Reset()
	return nil
}

// Create creates every object of a manifest, in a namespace where the kind has
// one, and returns them as created.
func (b *Bed) Create(ctx context.Context, namespace string, manifest []byte) ([]*unstructured.Unstructured, error) {
	objects, err := decode(manifest)
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	var created []*unstructured.Unstructured
	for _, object := range objects {
		client, err := b.resource(object.GroupVersionKind(), namespace)
		if err != nil {
			return created, err
		}
		object, err = client.Create(ctx, object, metav1.CreateOptions{})
		if err != nil {
			return created, err
		}
		created = append(created, object)
	}
	return created, nil
}

// resource is the client for a kind.
func (b *Bed) resource(kind schema.GroupVersionKind, namespace string) (dynamic.ResourceInterface, error) {
	mapping, err := b.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return b.Dynamic.Resource(mapping.Resource).Namespace(namespace), nil
	}
	return b.Dynamic.Resource(mapping.Resource), nil
}

func decode(manifest []byte) ([]*unstructured.Unstructured, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	var objects []*unstructured.Unstructured
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		switch {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, err
		case len(object.Object) > 0:
			objects = append(objects, object)
		}
	}
}

// awaitAccount waits for the service account that pods of a namespace need.
func (b *Bed) awaitAccount(ctx context.Context, namespace string) error {
	return poll(ctx, "wait for the service account of namespace "+namespace, func(ctx context.Context) (bool, error) {
		_, err := b.Core.ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}
