// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

func itoa(i int) string { return strconv.Itoa(i) }

// parse reads the documents of a manifest without what only a server writes.
func parse(manifest []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for number := 1; ; number++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		u := &unstructured.Unstructured{}
		if err := unmarshal(document, &u.Object); err != nil {
			return nil, fmt.Errorf("document %d: %w", number, err)
		}
		if len(u.Object) == 0 {
			number--
			continue
		}
		if u.GetName() == "" {
			u.SetName(strings.TrimRight(u.GetGenerateName(), "-"))
		}
		if u.GetKind() == "" || u.GetAPIVersion() == "" || u.GetName() == "" {
			return nil, fmt.Errorf("document %d: is not a Kubernetes object: it needs apiVersion, kind and metadata.name", number)
		}
		strip(u)
		objects = append(objects, u)
	}
	if len(objects) == 0 {
		return nil, errors.New("the manifest is empty")
	}
	return objects, nil
}

// unmarshal reads a document; whole numbers become int64, as unstructured
// objects need them.
func unmarshal(document []byte, object *map[string]any) error {
	data, err := yaml.YAMLToJSON(document)
	if err != nil {
		return err
	}
	return utiljson.Unmarshal(data, object)
}

// strip removes what belongs to one stored object, as in a manifest that was
// read from a cluster, and what only one object of the cluster can have.
func strip(u *unstructured.Unstructured) {
	delete(u.Object, "status")
	for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink",
		"deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences", "generateName"} {
		unstructured.RemoveNestedField(u.Object, "metadata", field)
	}
	annotations := u.GetAnnotations()
	for _, key := range []string{"kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/revision",
		"pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller"} {
		delete(annotations, key)
	}
	if len(annotations) == 0 {
		annotations = nil
	}
	u.SetAnnotations(annotations)
	if isKind(u, "", "Service") {
		stripService(u)
	}
}

// stripService takes the addresses away that another Service has, and makes it
// reachable inside the cluster only: a trial needs no load balancer.
func stripService(u *unstructured.Unstructured) {
	spec, ok := u.Object["spec"].(map[string]any)
	if !ok {
		return
	}
	if spec["clusterIP"] != "None" {
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
	}
	if t := spec["type"]; t == "LoadBalancer" || t == "NodePort" {
		for _, field := range []string{"type", "loadBalancerIP", "loadBalancerClass", "loadBalancerSourceRanges",
			"allocateLoadBalancerNodePorts", "externalTrafficPolicy", "healthCheckNodePort"} {
			delete(spec, field)
		}
	}
	delete(spec, "externalIPs")
	for _, port := range find(u.Object, "spec.ports[]") {
		delete(port, "nodePort")
	}
}

func isKind(u *unstructured.Unstructured, group, kind string) bool {
	gvk := u.GroupVersionKind()
	return gvk.Group == group && gvk.Kind == kind
}

// reference names an object as kubectl does: deployment/llm.
func reference(u *unstructured.Unstructured) string {
	return strings.ToLower(u.GetKind()) + "/" + u.GetName()
}

// leftOut are kinds that reach from a trial to what is in use: a route would
// send the users' requests to the trial, and an autoscaler would change what is measured.
var leftOut = []string{"networking.k8s.io/Ingress", "gateway.networking.k8s.io/HTTPRoute", "gateway.networking.k8s.io/GRPCRoute",
	"autoscaling/HorizontalPodAutoscaler", "autoscaling.k8s.io/VerticalPodAutoscaler", "keda.sh/ScaledObject"}

func isLeftOut(u *unstructured.Unstructured) bool {
	gvk := u.GroupVersionKind()
	return slices.Contains(leftOut, gvk.Group+"/"+gvk.Kind)
}
