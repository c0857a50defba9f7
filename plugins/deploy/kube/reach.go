// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/llmctl/llmctl/plugins/engine"
)

// Labels by which controllers tell the parts of a group of pods.
var (
	roleLabels = []string{"rbg.workloads.x-k8s.io/role-name", "rolebasedgroup.workloads.x-k8s.io/role"}
	// rankLabels are "0" at the pod of a group that serves.
	rankLabels = []string{"leaderworkerset.sigs.k8s.io/worker-index", "rbg.workloads.x-k8s.io/component-index"}
)

// entrance are words in the names of roles that pass requests on to the others.
var entrance = []string{"router", "gateway", "frontend", "proxy", "loadbalancer", "lb"}

// roleOf is a pod's role, "" for kinds without roles.
func roleOf(pod *corev1.Pod) string {
	for _, key := range roleLabels {
		if role := pod.Labels[key]; role != "" {
			return role
		}
	}
	return ""
}

func isLeader(pod *corev1.Pod) bool {
	for _, key := range rankLabels {
		if rank, ok := pod.Labels[key]; ok && rank != "0" {
			return false
		}
	}
	return true
}

// endpoint is what answers a trial's requests.
type endpoint struct {
	pods    []*corev1.Pod
	port    int
	service string // host and port of a Service with an address in front of them; may be empty
}

// serving finds the pods that answer, and their port: those behind the
// trial's Service, or the role that passes requests on, or the engine's own.
func (t *trial) serving(pods []*corev1.Pod, namespace string) (endpoint, error) {
	leaders := slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return !isLeader(p) })
	if e, ok := t.behindService(leaders, namespace); ok {
		return e, nil
	}
	if roles := t.engineRoles(); len(roles) > 1 {
		for _, p := range leaders {
			role := roleOf(p)
			passesOn := slices.ContainsFunc(entrance, func(word string) bool { return strings.Contains(strings.ToLower(role), word) })
			if role != "" && !slices.Contains(roles, role) && passesOn {
				return endpoint{pods: ofRole(leaders, role), port: cmp.Or(firstPort(p), t.containers[0].Port)}, nil
			}
		}
	}
	for _, c := range t.containers {
		if own := t.running(leaders, c); len(own) > 0 {
			return endpoint{pods: own, port: c.Port}, nil
		}
	}
	return endpoint{}, fmt.Errorf("no pod of the trial runs the engine's container %q", t.containers[0].Name)
}

func (t *trial) engineRoles() []string {
	var roles []string
	for _, c := range t.containers {
		if !slices.Contains(roles, c.Role) {
			roles = append(roles, c.Role)
		}
	}
	return roles
}

func ofRole(pods []*corev1.Pod, role string) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return roleOf(p) != role })
}

// running are the pods that run an engine container. The role in a template
// need not be that of the pods, when roles share a template.
func (t *trial) running(pods []*corev1.Pod, c engine.Container) []*corev1.Pod {
	var own, all []*corev1.Pod
	for _, p := range pods {
		has := slices.ContainsFunc(p.Spec.Containers, func(x corev1.Container) bool { return x.Name == c.Name })
		if !has || t.ownerOf(p) != t.names[c.Object] {
			continue
		}
		all = append(all, p)
		if role := roleOf(p); role == "" || role == c.Role {
			own = append(own, p)
		}
	}
	if len(own) == 0 {
		return all
	}
	return own
}

// ownerOf is the name of the trial's object that a pod was made for: the
// longest one that the pod's name begins with.
func (t *trial) ownerOf(p *corev1.Pod) string {
	owner, workloads := "", t.workloads()
	for _, u := range workloads {
		name := u.GetName()
		if (p.Name == name || strings.HasPrefix(p.Name, name+"-")) && len(name) > len(owner) {
			owner = name
		}
	}
	if owner == "" && len(workloads) == 1 {
		return workloads[0].GetName()
	}
	return owner
}

// firstPort is the port that a pod declares first, or 0.
func firstPort(p *corev1.Pod) int {
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			return int(port.ContainerPort)
		}
	}
	return 0
}

// behindService finds the trial's Service that has pods: first the one with the
// trial's own name, and one with an address before one without.
func (t *trial) behindService(pods []*corev1.Pod, namespace string) (endpoint, bool) {
	var services []*corev1.Service
	for _, u := range t.objects {
		if s := asService(u); s != nil && len(s.Spec.Selector) > 0 && len(s.Spec.Ports) > 0 {
			services = append(services, s)
		}
	}
	rank := func(s *corev1.Service) int {
		rank := 0
		if s.Name != t.name {
			rank++
		}
		if s.Spec.ClusterIP == corev1.ClusterIPNone {
			rank += 2
		}
		return rank
	}
	slices.SortStableFunc(services, func(a, b *corev1.Service) int { return cmp.Compare(rank(a), rank(b)) })
	for _, s := range services {
		selector := labels.SelectorFromSet(s.Spec.Selector)
		own := slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return !selector.Matches(labels.Set(p.Labels)) })
		if len(own) == 0 {
			continue
		}
		port, target := t.ports(s, own[0])
		if s.Spec.ClusterIP == corev1.ClusterIPNone {
			// Its name leads to one of the pods, on their own port.
			return endpoint{pods: own, port: target}, true
		}
		return endpoint{pods: own, port: target, service: net.JoinHostPort(s.Name+"."+namespace+".svc", strconv.Itoa(port))}, true
	}
	return endpoint{}, false
}

func asService(u *unstructured.Unstructured) *corev1.Service {
	if !isKind(u, "", "Service") {
		return nil
	}
	s := &corev1.Service{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, s); err != nil {
		return nil // the server will say so
	}
	return s
}

// ports are a Service's port and the pod's port behind it: the engine's as its
// arguments or container ports say, the Service's, the engine's default.
func (t *trial) ports(s *corev1.Service, pod *corev1.Pod) (port, target int) {
	known := 0
	for _, c := range t.containers {
		if len(t.running([]*corev1.Pod{pod}, c)) > 0 && c.PortFrom != "default" {
			known = c.Port
			break
		}
	}
	for _, p := range s.Spec.Ports {
		if at := targetPort(p, pod); at == known {
			return int(p.Port), at
		}
	}
	chosen := s.Spec.Ports[0]
	for _, p := range s.Spec.Ports {
		if p.Name == "http" || p.Name == "api" {
			chosen = p
			break
		}
	}
	target = cmp.Or(known, targetPort(chosen, pod), t.containers[0].Port)
	return int(chosen.Port), target
}

// targetPort is where a Service's port leads to in a pod, or 0.
func targetPort(p corev1.ServicePort, pod *corev1.Pod) int {
	if name := p.TargetPort.StrVal; name != "" {
		for _, c := range pod.Spec.Containers {
			for _, port := range c.Ports {
				if port.Name == name {
					return int(port.ContainerPort)
				}
			}
		}
		return 0
	}
	return int(cmp.Or(p.TargetPort.IntVal, p.Port))
}

// reach opens the way to the serving pods and returns its URL. The tunnel is
// nil when none is needed; forwarded tells that the URL goes through the API server.
// With execution.endpoint the tunnel passes by the URL.
func (in *instance) reach(ctx context.Context, pods []*corev1.Pod) (url string, t *tunnel, forwarded bool, err error) {
	d := in.deployer
	if d.Execution.Endpoint != "" {
		return strings.TrimRight(d.Execution.Endpoint, "/"), in.beside(pods), false, nil
	}
	e, err := in.trial.serving(pods, d.Namespace)
	if err != nil {
		return "", nil, false, err
	}
	if d.InCluster {
		host, _, splitErr := net.SplitHostPort(e.service)
		if splitErr == nil {
			if _, err := net.DefaultResolver.LookupHost(ctx, host); err == nil {
				return "http://" + e.service, nil, false, nil
			}
		}
	}
	t, forwarded, err = in.straight(e, &in.lost)
	if err != nil {
		return "", nil, false, err
	}
	return t.url(), t, forwarded, nil
}

// straight opens a tunnel to the pods themselves. What is lost of a forwarded
// connection is counted.
func (in *instance) straight(e endpoint, lost *atomic.Int64) (t *tunnel, forwarded bool, err error) {
	d := in.deployer
	var ways []way
	for _, p := range e.pods {
		if d.InCluster && p.Status.PodIP != "" {
			ways = append(ways, direct{p.Name, net.JoinHostPort(p.Status.PodIP, strconv.Itoa(e.port))})
			continue
		}
		way, err := d.forward(p.Name, e.port, lost)
		if err != nil {
			return nil, false, err
		}
		ways, forwarded = append(ways, way), true
	}
	t, err = openTunnel(ways)
	return t, forwarded, err
}

// beside opens a way that passes by execution.endpoint, to compare the two. It is
// nil where there is none, which keeps no trial from running.
func (in *instance) beside(pods []*corev1.Pod) *tunnel {
	e, err := in.trial.serving(pods, in.deployer.Namespace)
	if err != nil {
		return nil
	}
	t, _, err := in.straight(e, new(atomic.Int64))
	if err != nil {
		return nil
	}
	return t
}
