// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/llmctl/llmctl/experiment"
)

// refusalOf is the answer of an API server that refuses.
func refusalOf(code int, reason, message string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":%q}`, code, reason, message)
}

// serverThat answers the first creations of a ConfigMap as given, and then well.
func serverThat(t *testing.T, answers ...string) (*Deployer, *atomic.Int32) {
	creations := &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, refusalOf(404, "NotFound", "not found"))
			return
		}
		n := int(creations.Add(1))
		if n > len(answers) {
			fmt.Fprint(w, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}`)
			return
		}
		code := http.StatusInternalServerError
		_, err := fmt.Sscanf(answers[n-1][strings.Index(answers[n-1], `"code":`):], `"code":%d`, &code)
		assert.NoError(t, err)
		w.WriteHeader(code)
		fmt.Fprint(w, answers[n-1])
	}))
	t.Cleanup(server.Close)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, meta.RESTScopeNamespace)
	d, err := New(&rest.Config{Host: server.URL}, mapper, "bench")
	require.NoError(t, err)
	d.ID = "id-1"
	return d, creations
}

func TestOnlyWhatMayHealIsTriedAgain(t *testing.T) {
	quota := refusalOf(403, "Forbidden", "exceeded quota: q, requested: count/configmaps=1")
	for _, c := range []struct {
		name    string
		answers []string
		tries   int32  // 0: as many as time allows
		class   string // "" when it is created in the end
		message string
	}{
		{"conflict, throttling and trouble inside the server", []string{
			refusalOf(409, "Conflict", "the object has been modified"), refusalOf(429, "TooManyRequests", "slow down"),
			refusalOf(500, "InternalError", "etcdserver: leader changed"), refusalOf(503, "ServiceUnavailable", "starting"), refusalOf(504, "Timeout", "too slow"),
		}, 6, "", ""},
		{"no right", []string{refusalOf(403, "Forbidden", `configmaps is forbidden: User "u" cannot create`)}, 1, "infra_error", `create configmap/a: configmaps is forbidden: User "u" cannot create`},
		{"quota, which still counts the trial before", slices.Repeat([]string{quota}, 2), 3, "", ""},
		{"quota", slices.Repeat([]string{quota}, 99), 0, "quota", "create configmap/a: exceeded quota: q, requested: count/configmaps=1"},
		{"admission", []string{refusalOf(400, "BadRequest", `admission webhook "p" denied the request: no`)}, 1, "config_error", `create configmap/a: admission webhook "p" denied the request: no`},
		{"a method that the kind does not have", []string{refusalOf(405, "MethodNotAllowed", "the server does not allow this method")}, 1, "config_error", "create configmap/a: the server does not allow this method"},
		{"too large", []string{refusalOf(413, "RequestEntityTooLarge", "limit is 3145728")}, 1, "config_error", "create configmap/a: limit is 3145728"},
		{"invalid", []string{refusalOf(422, "Invalid", "data: Invalid value")}, 1, "config_error", "create configmap/a: data: Invalid value"},
		{"credentials", []string{refusalOf(401, "Unauthorized", "Unauthorized")}, 1, "infra_error", "create configmap/a: the API server does not accept the credentials; log in again: Unauthorized"},
		{"namespace", []string{refusalOf(404, "NotFound", `namespaces "bench" not found`)}, 1, "infra_error", `create configmap/a: the namespace does not exist: namespaces "bench" not found`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d, creations := serverThat(t, c.answers...)
			objects, err := parse([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"))
			require.NoError(t, err)
			err = d.create(t.Context(), objects[0])
			if c.tries > 0 {
				assert.Equal(t, c.tries, creations.Load())
			}
			if c.class == "" {
				require.NoError(t, err)
				return
			}
			var failed *experiment.Failure
			require.ErrorAs(t, err, &failed)
			assert.Equal(t, experiment.Cause{Class: c.class, Message: c.message}, failed.Cause)
		})
	}
}

func TestWhatIsRefusedForGoodEndsTheTemplate(t *testing.T) {
	configMaps := schema.GroupResource{Resource: "configmaps"}
	for name, c := range map[string]struct {
		err             error
		baseline, later string // classes
	}{
		"no right":     {apierrors.NewForbidden(configMaps, "a", errors.New("no")), "refused", "refused"},
		"not found":    {apierrors.NewNotFound(configMaps, "a"), "refused", "refused"},
		"no method":    {apierrors.NewMethodNotSupported(configMaps, "create"), "refused", "refused"},
		"bad request":  {apierrors.NewBadRequest("no"), "refused", "config_error"},
		"invalid":      {apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, "a", nil), "refused", "config_error"},
		"too large":    {apierrors.NewRequestEntityTooLargeError("no"), "refused", "config_error"},
		"quota":        {apierrors.NewForbidden(configMaps, "a", errors.New("exceeded quota: q")), "quota", "quota"},
		"credentials":  {apierrors.NewUnauthorized("no"), "infra_error", "infra_error"},
		"throttling":   {apierrors.NewTooManyRequestsError("no"), "infra_transient", "infra_transient"},
		"server error": {apierrors.NewInternalError(errors.New("no")), "infra_transient", "infra_transient"},
	} {
		t.Run(name, func(t *testing.T) {
			for index, class := range map[int]string{0: c.baseline, 3: c.later} {
				var failed *experiment.Failure
				require.ErrorAs(t, forGood(index, failure(t.Context(), "create", c.err)), &failed)
				assert.Equal(t, class, failed.Class, "trial %d", index)
			}
		})
	}
}

// A kind that the cluster does not tell of may well have objects, when it is only
// that this user may not ask.
func TestWhatCannotBeLookedUpIsNotTakenForDeleted(t *testing.T) {
	d, _ := serverThat(t)
	objects, err := parse([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"))
	require.NoError(t, err)
	d.Mapper = forbiddenMapper{d.Mapper}
	require.ErrorContains(t, d.delete(t.Context(), objects[0]), "forbidden")
	d.Mapper = meta.NewDefaultRESTMapper(nil)
	require.NoError(t, d.delete(t.Context(), objects[0]), "a kind that is not served")
}

type forbiddenMapper struct{ meta.RESTMapper }

func (forbiddenMapper) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	return nil, apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no discovery"))
}

func TestARetryEndsWithItsContext(t *testing.T) {
	d, _ := serverThat(t)
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	tries := 0
	err := d.retry(ctx, func(context.Context) error {
		if tries++; tries == 2 {
			cancel(stop)
		}
		return apierrors.NewServiceUnavailable("starting")
	})
	require.Error(t, err)
	assert.Equal(t, 2, tries)
}

// gone is the answer that the version of a watch is too old.
var gone = &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old"}

func TestAWatchGoesOnAfterItEndsAndListsAnewAfterGone(t *testing.T) {
	d, _ := serverThat(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pod := func(name, version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
	}
	var story []string
	lists, watches := 0, 0
	err := d.follow(ctx, stream{
		options: metav1.ListOptions{LabelSelector: "a=b"},
		list: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			assert.Equal(t, "a=b", o.LabelSelector)
			if lists++; lists == 1 {
				return nil, apierrors.NewServiceUnavailable("starting")
			}
			return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(10 * lists)}, Items: []corev1.Pod{*pod("listed", "1")}}, nil
		},
		watch: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			assert.Equal(t, "a=b", o.LabelSelector)
			story = append(story, "watch "+o.ResourceVersion)
			w := watch.NewFakeWithChanSize(3, false)
			switch watches++; watches {
			case 1:
				w.Add(pod("p", "21"))
				w.Action(watch.Bookmark, pod("", "25"))
				w.Stop()
			case 2:
				w.Action(watch.Error, gone)
			default:
				w.Delete(pod("p", "33"))
				w.Stop()
				cancel()
			}
			return w, nil
		},
		reset:  func(items []runtime.Object) { story = append(story, fmt.Sprintf("list of %d", len(items))) },
		change: func(kind watch.EventType, _ runtime.Object) { story = append(story, string(kind)) },
	})
	require.NoError(t, err)
	assert.Equal(t, []string{"list of 1", "watch 20", "ADDED", "watch 25", "list of 1", "watch 30", "DELETED"}, story)
}

func TestAWatchWithoutTheRightToItEnds(t *testing.T) {
	d, _ := serverThat(t)
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no"))
	err := d.follow(t.Context(), stream{list: func(context.Context, metav1.ListOptions) (runtime.Object, error) { return nil, forbidden }})
	assert.Equal(t, forbidden, err)
}
