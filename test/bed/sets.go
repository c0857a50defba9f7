// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// The prefixes of the labels that the real controllers give their pods.
const (
	lwsPrefix   = "leaderworkerset.sigs.k8s.io/"
	rbgPrefix   = "rbg.workloads.x-k8s.io/"            // v1alpha2
	rbgV1Prefix = "rolebasedgroup.workloads.x-k8s.io/" // v1alpha1
)

// set is so many instances of the same pods: one, or a leader and its workers.
type set struct {
	group    string // the owner's name
	role     string // empty for a LeaderWorkerSet
	replicas int64
	members  []member
	flavour  flavour
	recreate bool // an instance is made anew when one of its containers restarts
}

// flavour is the kind of owner: they label and name pods differently.
type flavour int

const (
	lws flavour = iota
	rbgV1
	rbgV2
)

// member is one pod of an instance; its index is its place there.
type member struct {
	suffix   string // of the pod's name, after the instance's
	template corev1.PodTemplateSpec
}

type object = map[string]any

// setsOf reads what pods an owner wants.
func setsOf(owner *unstructured.Unstructured) ([]*set, error) {
	spec, _, err := unstructured.NestedMap(owner.Object, "spec")
	if err != nil {
		return nil, err
	}
	if owner.GetKind() == "LeaderWorkerSet" {
		s, err := leaderWorkerSet(spec)
		if err != nil {
			return nil, err
		}
		s.group = owner.GetName()
		return []*set{s}, nil
	}
	templates := map[string]object{}
	for _, t := range items(spec, "roleTemplates") {
		templates[text(t, "name")] = field(t, "template")
	}
	var sets []*set
	for _, role := range items(spec, "roles") {
		s, err := roleSet(role, templates)
		if err != nil {
			return nil, fmt.Errorf("role %s: %w", text(role, "name"), err)
		}
		s.group = owner.GetName()
		sets = append(sets, s)
	}
	return sets, nil
}

func leaderWorkerSet(spec object) (*set, error) {
	t := field(spec, "leaderWorkerTemplate")
	worker, err := template(field(t, "workerTemplate"), nil)
	if err != nil {
		return nil, err
	}
	leader := worker
	if l := field(t, "leaderTemplate"); l != nil {
		if leader, err = template(l, nil); err != nil {
			return nil, err
		}
	}
	s := &set{flavour: lws, replicas: number(spec, "replicas", 1), recreate: text(t, "restartPolicy") == "RecreateGroupOnPodRestart"}
	s.lead(leader, worker, number(t, "size", 1), "")
	return s, nil
}

// roleSet reads a role in either of the two versions' shapes.
func roleSet(role object, templates map[string]object) (*set, error) {
	s := &set{flavour: rbgV2, role: text(role, "name"), replicas: number(role, "replicas", 1)}
	lead, leadKey, workKey, first := field(role, "leaderWorkerPattern"), "leaderTemplatePatch", "workerTemplatePatch", "-0"
	base := lead
	if lead == nil {
		base = field(role, "standalonePattern")
	}
	if base == nil {
		s.flavour, base = rbgV1, role
		lead, leadKey, workKey, first = field(role, "leaderWorkerSet"), "patchLeaderTemplate", "patchWorkerTemplate", ""
	}
	pods, patch := field(base, "template"), object(nil)
	if ref := field(base, "templateRef"); ref != nil {
		pods, patch = templates[text(ref, "name")], field(ref, "patch")
	}
	if pods == nil {
		return nil, fmt.Errorf("has no template that the test bed knows")
	}
	if lead == nil {
		one, err := template(pods, patch)
		s.members = []member{{template: one}}
		return s, err
	}
	leader, err := template(pods, field(lead, leadKey))
	if err != nil {
		return nil, err
	}
	worker, err := template(pods, field(lead, workKey))
	s.lead(leader, worker, number(lead, "size", 1), first)
	return s, err
}

// lead makes an instance of one leader and size-1 workers.
func (s *set) lead(leader, worker corev1.PodTemplateSpec, size int64, first string) {
	s.members = []member{{suffix: first, template: leader}}
	for i := int64(1); i < size; i++ {
		s.members = append(s.members, member{suffix: fmt.Sprintf("-%d", i), template: worker})
	}
}

// base is the name of the set, to which instances add their numbers.
func (s *set) base() string {
	if s.role == "" {
		return s.group
	}
	return s.group + "-" + s.role
}

func (s *set) instance(i int64) string { return fmt.Sprintf("%s-%d", s.base(), i) }

// pods are those that the set wants, without their owner.
func (s *set) pods() []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range s.replicas {
		for m := range s.members {
			pods = append(pods, s.pod(i, m))
		}
	}
	return pods
}

func (s *set) pod(instance int64, index int) *corev1.Pod {
	m, name := s.members[index], s.instance(instance)
	pod := &corev1.Pod{Spec: *m.template.Spec.DeepCopy()}
	pod.Name = name + m.suffix
	pod.Labels, pod.Annotations = maps.Clone(m.template.Labels), maps.Clone(m.template.Annotations)
	for key, value := range s.labels(instance, index) {
		metav1.SetMetaDataLabel(&pod.ObjectMeta, key, value)
	}
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, s.base()
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.Env = append(s.env(instance, index), c.Env...)
	}
	return pod
}

func (s *set) labels(instance int64, index int) map[string]string {
	i, place, size := strconv.FormatInt(instance, 10), strconv.Itoa(index), strconv.Itoa(len(s.members))
	switch s.flavour {
	case lws:
		return map[string]string{lwsPrefix + "name": s.group, lwsPrefix + "group-index": i, lwsPrefix + "worker-index": place, lwsPrefix + "group-key": s.instance(instance)}
	case rbgV1:
		return map[string]string{rbgV1Prefix + "name": s.group, rbgV1Prefix + "role": s.role, "component." + rbgV1Prefix + "index": place, "component." + rbgV1Prefix + "size": size}
	}
	labels := map[string]string{
		rbgPrefix + "group-name": s.group, rbgPrefix + "role-name": s.role,
		rbgPrefix + "role-instance-name": s.instance(instance), rbgPrefix + "role-instance-index": i,
		rbgPrefix + "component-name": s.component(index), rbgPrefix + "component-id": place, rbgPrefix + "component-size": size,
	}
	if len(s.members) > 1 {
		labels[rbgPrefix+"component-index"] = place
	}
	return labels
}

func (s *set) component(index int) string {
	switch {
	case len(s.members) == 1:
		return s.role
	case index == 0:
		return "leader"
	}
	return "worker"
}

func (s *set) env(instance int64, index int) []corev1.EnvVar {
	leader := fmt.Sprintf("%s%s.%s", s.instance(instance), s.members[0].suffix, s.base())
	place, size := strconv.Itoa(index), strconv.Itoa(len(s.members))
	if s.flavour == lws {
		return []corev1.EnvVar{{Name: "LWS_LEADER_ADDRESS", Value: leader}, {Name: "LWS_GROUP_SIZE", Value: size}, {Name: "LWS_WORKER_INDEX", Value: place}}
	}
	return []corev1.EnvVar{
		{Name: "RBG_GROUP_NAME", Value: s.group}, {Name: "RBG_ROLE_NAME", Value: s.role},
		{Name: "RBG_ROLE_INSTANCE_NAME", Value: s.instance(instance)}, {Name: "RBG_ROLE_INDEX", Value: strconv.FormatInt(instance, 10)},
		{Name: "RBG_COMPONENT_NAME", Value: s.component(index)}, {Name: "RBG_COMPONENT_INDEX", Value: place},
		{Name: "RBG_LWP_LEADER_ADDRESS", Value: leader}, {Name: "RBG_LWP_GROUP_SIZE", Value: size}, {Name: "RBG_LWP_WORKER_INDEX", Value: place},
	}
}

// broken lists the pods of the instances that have to be made anew.
func (s *set) broken(have map[string]*corev1.Pod) []string {
	var names []string
	for i := int64(0); s.recreate && i < s.replicas; i++ {
		restarted := false
		for _, m := range s.members {
			if pod := have[s.instance(i)+m.suffix]; pod != nil {
				for _, c := range pod.Status.ContainerStatuses {
					restarted = restarted || c.RestartCount > 0
				}
			}
		}
		for _, m := range s.members {
			if restarted {
				names = append(names, s.instance(i)+m.suffix)
			}
		}
	}
	return names
}

// ready counts the instances that exist, and those all of whose pods are ready.
func (s *set) ready(have map[string]*corev1.Pod) (exist, ready int64) {
	for i := range s.replicas {
		there, good := 0, 0
		for _, m := range s.members {
			if pod := have[s.instance(i)+m.suffix]; pod != nil && pod.DeletionTimestamp == nil {
				there++
				if podReady(pod) {
					good++
				}
			}
		}
		exist += int64(there / len(s.members))
		ready += int64(good / len(s.members))
	}
	return exist, ready
}

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// statusOf is what the real controllers write, as far as it is read here.
func statusOf(owner *unstructured.Unstructured, sets []*set, have map[string]*corev1.Pod) object {
	status := object{"observedGeneration": owner.GetGeneration()}
	all, roles := true, []any{}
	for _, s := range sets {
		exist, ready := s.ready(have)
		all = all && ready == s.replicas
		if s.flavour == lws {
			status["replicas"], status["readyReplicas"], status["updatedReplicas"] = exist, ready, exist
			status["hpaPodSelector"] = lwsPrefix + "name=" + s.group + "," + lwsPrefix + "worker-index=0"
			continue
		}
		roles = append(roles, object{"name": s.role, "replicas": exist, "readyReplicas": ready, "updatedReplicas": exist})
	}
	if owner.GetKind() == "LeaderWorkerSet" {
		status["conditions"] = []any{
			condition(owner, "Available", all, "AllGroupsReady", "All replicas are ready"),
			condition(owner, "Progressing", !all, "GroupsProgressing", "Replicas are progressing"),
		}
		return status
	}
	status["roleStatuses"] = roles
	reason, message := "RoleNotReady", "Not all role ready"
	if all {
		reason, message = "AllRolesReady", "All roles are ready"
	}
	status["conditions"] = []any{condition(owner, "Ready", all, reason, message)}
	return status
}

// condition keeps the time of the last change.
func condition(owner *unstructured.Unstructured, kind string, ok bool, reason, message string) object {
	value := "False"
	if ok {
		value = "True"
	}
	since := metav1.Now().UTC().Format(time.RFC3339)
	for _, old := range items(field(owner.Object, "status"), "conditions") {
		if text(old, "type") == kind && text(old, "status") == value {
			since = text(old, "lastTransitionTime")
		}
	}
	return object{"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": since}
}

// template reads a pod template with a strategic merge patch over it.
func template(pods, patch object) (t corev1.PodTemplateSpec, err error) {
	if patch != nil {
		base, err := json.Marshal(pods)
		if err != nil {
			return t, err
		}
		over, err := json.Marshal(patch)
		if err != nil {
			return t, err
		}
		merged, err := strategicpatch.StrategicMergePatch(base, over, t)
		if err != nil {
			return t, err
		}
		return t, json.Unmarshal(merged, &t)
	}
	return t, runtime.DefaultUnstructuredConverter.FromUnstructured(pods, &t)
}

// The following read fields of an object, which are missing when they are of
// another type.

func field(o object, name string) object {
	f, _ := o[name].(object)
	return f
}

func items(o object, name string) []object {
	list, _ := o[name].([]any)
	var out []object
	for _, item := range list {
		if i, ok := item.(object); ok {
			out = append(out, i)
		}
	}
	return out
}

func text(o object, name string) string {
	s, _ := o[name].(string)
	return s
}

func number(o object, name string, missing int64) int64 {
	if n, ok := o[name].(int64); ok {
		return n
	}
	return missing
}
