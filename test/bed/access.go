// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

// KubeconfigFor returns the path of a file for a service account that has the given
// rights in a namespace and none elsewhere.
func (b *Bed) KubeconfigFor(t testing.TB, namespace string, rules []rbacv1.PolicyRule) string {
	t.Helper()
	name := "limited-" + rand.String(5)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := b.Core.ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{})
	require.NoError(t, err)
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	b.create(t, &rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "Role"}, ObjectMeta: meta, Rules: rules})
	b.create(t, &rbacv1.RoleBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "RoleBinding"}, ObjectMeta: meta,
		RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: namespace}},
	})
	token, err := b.Core.ServiceAccounts(namespace).CreateToken(t.Context(), name, &authv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	path := b.writeKubeconfig(t, token.Status.Token, namespace)
	b.awaitRights(t, path, namespace, rules)
	return path
}

// awaitRights waits until the API server knows of a new role.
func (b *Bed) awaitRights(t testing.TB, kubeconfig, namespace string, rules []rbacv1.PolicyRule) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	question := &unstructured.Unstructured{Object: object{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": object{"namespace": namespace},
	}}
	require.NoError(t, poll(t.Context(), "wait for the role", func(ctx context.Context) (bool, error) {
		answer, err := client.Resource(rulesReviews).Create(ctx, question, metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		known := 0
		for _, rule := range items(field(answer.Object, "status"), "resourceRules") {
			groups, _ := rule["apiGroups"].([]any)
			if len(groups) != 1 || groups[0] != "authorization.k8s.io" && groups[0] != "authentication.k8s.io" { // everybody's
				known++
			}
		}
		return known >= len(rules), nil
	}))
}

// ExpiredKubeconfig returns the path of a file whose credentials the API server
// does not take any more.
func (b *Bed) ExpiredKubeconfig(t testing.TB, namespace string) string {
	t.Helper()
	return b.writeKubeconfig(t, "expired-"+rand.String(20), namespace)
}

func (b *Bed) writeKubeconfig(t testing.TB, token, namespace string) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*b.plane.kubeconfig(token, namespace), path))
	return path
}

func (b *Bed) create(t testing.TB, typed runtime.Object) {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	require.NoError(t, err)
	object := &unstructured.Unstructured{Object: content}
	client, err := b.resource(object.GroupVersionKind(), object.GetNamespace())
	require.NoError(t, err)
	_, err = client.Create(context.Background(), object, metav1.CreateOptions{})
	require.NoError(t, err)
}
