// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/llmctl/llmctl/experiment"
)

// diagnoseCase is a document of testdata/diagnose.yaml.
type diagnoseCase struct {
	Name   string       `json:"name"`
	Pods   []corev1.Pod `json:"pods"`
	Events []struct {
		corev1.Event
		Age string `json:"age"`
	} `json:"events"`
	Seen      map[string]string                `json:"seen"`  // by pod
	Stuck     map[string]string                `json:"stuck"` // by container
	Recreated map[string]int                   `json:"recreated"`
	Died      *corev1.ContainerStateTerminated `json:"died"`
	Logs      map[string]struct {
		Class, Message string
		Fatal          bool
	} `json:"logs"`
	Limits struct {
		Pods     *int `json:"pods"`
		Restarts *int `json:"restarts"`
	} `json:"limits"`
	Want struct {
		Decided bool   `json:"decided"`
		Class   string `json:"class"`
		Message string `json:"message"`
		Again   string `json:"again"`
	} `json:"want"`
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func ago(t *testing.T, text string) time.Time {
	t.Helper()
	if text == "" {
		return noon
	}
	age, err := time.ParseDuration(text)
	require.NoError(t, err)
	return noon.Add(-age)
}

func (c diagnoseCase) snapshot(t *testing.T) snapshot {
	s := snapshot{}
	for i := range c.Pods {
		pod := &c.Pods[i]
		pod.UID = types.UID(pod.Name)
		p := podState{Pod: pod, Seen: ago(t, c.Seen[pod.Name]), Recreated: c.Recreated[pod.Name], Stuck: map[string]time.Time{}, Logs: map[string]logFinding{}}
		if p.Recreated > 0 {
			p.Died = c.Died
		}
		for name, age := range c.Stuck {
			p.Stuck[name] = ago(t, age)
		}
		for name, l := range c.Logs {
			p.Logs[name] = logFinding{experiment.Cause{Class: l.Class, Message: l.Message}, l.Fatal}
		}
		s.Pods = append(s.Pods, p)
	}
	for i := range c.Events {
		e := &c.Events[i].Event
		e.CreationTimestamp = metav1.NewTime(noon.Add(time.Duration(i) * time.Second))
		s.Events = append(s.Events, seenEvent{e, ago(t, c.Events[i].Age)})
	}
	return s
}

func TestDiagnose(t *testing.T) {
	data, err := os.ReadFile("testdata/diagnose.yaml")
	require.NoError(t, err)
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		var c diagnoseCase
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), &c), document)
		t.Run(c.Name, func(t *testing.T) {
			l := limits{Scheduling: 5 * time.Minute, ImagePull: 2 * time.Minute, MaxRestarts: 2, Pods: 1}
			if c.Limits.Pods != nil {
				l.Pods = *c.Limits.Pods
			}
			if c.Limits.Restarts != nil {
				l.MaxRestarts = *c.Limits.Restarts
			}
			want := verdict{Decided: c.Want.Decided, Cause: experiment.Cause{Class: c.Want.Class, Message: c.Want.Message}}
			if c.Want.Again != "" {
				after, err := time.ParseDuration(c.Want.Again)
				require.NoError(t, err)
				want.Again = noon.Add(after)
			}
			assert.Equal(t, want, diagnose(c.snapshot(t), noon, l))
		})
	}
}
