package cluster

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestWhichComponentsAreAwaited(t *testing.T) {
	component := func(program, name string, ready corev1.ConditionStatus, deleted bool) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: System, Name: name, Labels: map[string]string{"app": program}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}}
		if deleted {
			p.DeletionTimestamp, p.Finalizers = new(metav1.Now()), []string{"x"}
		}
		return p
	}
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	webhook, activator := component("webhook", "webhook-1", yes, false), component("activator", "activator-1", yes, false)
	for seen, pods := range map[string][]*corev1.Pod{
		"":                         {webhook, activator, component("activator", "activator-2", no, true)},
		"activator has no pod":     {webhook, component("activator", "activator-2", yes, true)},
		"activator-2 is not Ready": {webhook, activator, component("activator", "activator-2", no, false)},
		"webhook-2 is terminating": {webhook, activator, component("webhook", "webhook-2", yes, true)},
		"webhook has no pod":       {activator},
	} {
		kube := fake.NewClientset()
		for _, pod := range pods {
			if err := kube.Tracker().Add(pod); err != nil {
				t.Fatal(err)
			}
		}
		c := &Cluster{Kube: kube, Programs: []string{"webhook", "activator"}}
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := c.AwaitComponents(ctx)
			if seen == "" && err != nil || seen != "" && (err == nil || !strings.Contains(err.Error(), seen)) {
				t.Errorf("%v, want %q", err, seen)
			}
		})
	}
}

func TestMetricReadsPrometheusText(t *testing.T) {
	text := []byte("# HELP process_cpu_seconds_total x\n# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 1.25\n" +
		"process_resident_memory_bytes 2.9184e+07\n")
	for name, want := range map[string]float64{"process_cpu_seconds_total": 1.25, "process_resident_memory_bytes": 29184000} {
		if got, err := metric(text, name); err != nil || got != want {
			t.Errorf("%s is %v, %v, want %v", name, got, err, want)
		}
	}
	if got, err := metric(text, "process"); err == nil {
		t.Errorf("a missing metric is %v", got)
	}
}

func TestHostOf(t *testing.T) {
	if host, err := HostOf("http://a.b.example"); err != nil || host != "a.b.example" {
		t.Errorf("got %q, %v", host, err)
	}
	for _, bad := range []string{"", "a.b", "http://", "http://[::1"} {
		if host, err := HostOf(bad); err == nil {
			t.Errorf("the host of %q is %q", bad, host)
		}
	}
}
