package pods

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
)

func TestPodsThatStartAreListedUntilTheyHaveTheirOwnLimit(t *testing.T) {
	key := loop.Key{Namespace: "default", Name: "hello-00001"}
	started := func(p *corev1.Pod, annotation, limit string, more ...corev1.PodCondition) *corev1.Pod {
		p.Annotations = map[string]string{names.StartupLimitAnnotation: annotation}
		p.CreationTimestamp = metav1.Unix(900, 0)
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(limit)}
		p.Status.Conditions = append(p.Status.Conditions, more...)
		return p
	}
	const raise = "user-container=250m:1"
	since := metav1.Unix(1500, 0)
	for _, test := range []struct {
		what   string
		pod    *corev1.Pod
		listed bool
		want   Starting // without what all have
	}{
		{"a new one", started(pod("a", corev1.PodPending, false, false), raise, "250m"), true, Starting{Limit: 250}},
		{"one that has more", started(pod("a", corev1.PodRunning, false, false), raise, "1"), true, Starting{Limit: 1000}},
		{"one that is ready, and has more", started(ran(pod("a", corev1.PodRunning, true, false), 1000, 1500), raise, "1"), true, Starting{Limit: 1000, Ready: since.Time}},
		{"one that is ready, and was resized", started(ran(pod("a", corev1.PodRunning, true, false), 1000, 1500), raise, "250m"), false, Starting{}},
		{"one that was ready, and has more", started(ran(pod("a", corev1.PodRunning, false, false), 1000, 1500), raise, "1"), true, Starting{Limit: 1000, Was: true}},
		{"one whose node has not done it yet", started(ran(pod("a", corev1.PodRunning, true, false), 1000, 1500), raise, "250m",
			corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, LastTransitionTime: since}),
			true, Starting{Limit: 250, Ready: since.Time, Resize: Resize{Reason: ResizeInProgress, Since: since.Time}}},
		{"one whose node does not", started(pod("a", corev1.PodRunning, false, false), raise, "1",
			corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: "Infeasible", Message: "no", LastTransitionTime: since}),
			true, Starting{Limit: 1000, Resize: Resize{"Infeasible", "no", since.Time}}},
		{"one that ends", started(pod("a", corev1.PodRunning, true, true), raise, "1"), false, Starting{}},
		{"one that has ended", started(pod("a", corev1.PodFailed, false, false), raise, "1"), false, Starting{}},
		{"one whose annotation says nothing", started(pod("a", corev1.PodPending, false, false), "user-container=1:1", "1"), false, Starting{}},
		{"one whose annotation names queue-proxy", started(pod("a", corev1.PodPending, false, false), "queue-proxy=250m:1", "250m"), false, Starting{}},
		{"one without", pod("a", corev1.PodPending, false, false), false, Starting{}},
	} {
		index := &Index{revisions: map[loop.Key]*group{}, starting: map[podName]*small{}}
		one, err := strip(test.pod)
		if err != nil {
			t.Fatal(err)
		}
		index.put(nil, one.(*small))
		got := index.StartingPods()
		if len(got) == 1 != test.listed {
			t.Errorf("%s: %+v", test.what, got)
			continue
		}
		if !test.listed {
			continue
		}
		test.want.Key, test.want.Pod, test.want.Created = key, "a", time.Unix(900, 0)
		test.want.StartupLimit = names.StartupLimit{Container: "user-container", Low: 250, High: 1000}
		if got[0] != test.want {
			t.Errorf("%s: %+v, want %+v", test.what, got[0], test.want)
		}
		if index.put(one.(*small), nil); len(index.StartingPods()) != 0 {
			t.Errorf("%s: it is listed when it is gone", test.what)
		}
	}
}

func TestWhatHindersAPodIsToldOfItsRevision(t *testing.T) {
	key := loop.Key{Namespace: "default", Name: "hello-00001"}
	index := &Index{revisions: map[loop.Key]*group{}, starting: map[podName]*small{}}
	looked := 0
	index.New = func() { looked++ }
	var last *small
	seen := func(p *corev1.Pod, limit string) {
		t.Helper()
		p.Annotations = map[string]string{names.StartupLimitAnnotation: "user-container=250m:1"}
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(limit)}
		one, err := strip(p)
		if err != nil {
			t.Fatal(err)
		}
		index.put(last, one.(*small))
		last = one.(*small)
	}
	want := func(what string, want revision.Startup) {
		t.Helper()
		if got := index.Count(key).Startup; got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	if index.Hindered(key, "a", "ResizeRefused", "a quota") {
		t.Error("an unknown pod has trouble")
	}
	seen(pod("a", corev1.PodPending, false, false), "250m")
	if index.Hindered(key, "a", "", "") || !index.Hindered(key, "a", "ResizeRefused", "a quota") || index.Hindered(key, "a", "ResizeRefused", "a quota") {
		t.Error("what is news?")
	}
	want("refused", revision.Startup{Reason: "ResizeRefused", Message: "a quota"})
	seen(pod("a", corev1.PodRunning, true, false), "250m")
	want("it is ready", revision.Startup{Reason: "ResizeRefused", Message: "a quota"})
	index.put(last, nil)
	last = nil
	want("it is gone", revision.Startup{})
	seen(pod("b", corev1.PodPending, false, false), "1")
	want("the next one has it", revision.Startup{Raised: true})
	if looked != 2 {
		t.Errorf("%d looks for two new pods", looked)
	}
}
