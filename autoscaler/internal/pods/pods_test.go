package pods

import (
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
)

func pod(name string, phase corev1.PodPhase, ready, deleted bool) *corev1.Pod {
	started := metav1.NewTime(time.Unix(1000, 0))
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{names.RevisionLabel: "hello-00001", "app": "x"},
		Annotations: map[string]string{"a": "long text"}},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "user-container", Image: "image"}}},
		Status: corev1.PodStatus{Phase: phase, PodIP: "10.0.0.1", StartTime: &started}}
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: status, Message: "long text"}}
	if deleted {
		now := metav1.Now()
		p.DeletionTimestamp = &now
		p.Finalizers = []string{"x"}
	}
	return p
}

func TestCountAndReady(t *testing.T) {
	client := fake.NewClientset(
		pod("pending", corev1.PodPending, false, false),
		pod("starting", corev1.PodRunning, false, false),
		pod("ready-1", corev1.PodRunning, true, false),
		pod("ready-2", corev1.PodRunning, true, false),
		pod("leaving", corev1.PodRunning, true, true),
		pod("done", corev1.PodSucceeded, false, false),
		pod("failed", corev1.PodFailed, false, false),
	)
	var mutex sync.Mutex
	told := map[loop.Key]int{}
	index, err := NewIndex(client, func(k loop.Key) {
		mutex.Lock()
		told[k]++
		mutex.Unlock()
	})
	if err != nil {
		t.Fatal(err)
	}
	if !index.Start(t.Context().Done()) {
		t.Fatal("pods are not known")
	}
	key := loop.Key{Namespace: "default", Name: "hello-00001"}
	if got, want := index.Count(key), (loop.Counts{Ready: 2, NotReady: 3, Pending: 1, Terminating: 1}); got != want {
		t.Errorf("counts %+v, want %+v", got, want)
	}
	if got := index.Count(key).Running(); got != 4 {
		t.Errorf("%d pods count against the replicas, want 4", got)
	}
	ready := index.Ready(key)
	if len(ready) != 2 || ready[0].IP != "10.0.0.1" || !ready[0].Started.Equal(time.Unix(1000, 0)) {
		t.Errorf("ready %+v", ready)
	}
	if got := index.Count(loop.Key{Namespace: "other", Name: "hello-00001"}); got != (loop.Counts{}) {
		t.Errorf("another namespace's revision of the same name has %+v", got)
	}
	if index.Ready(loop.Key{}) != nil {
		t.Error("nobody has ready pods")
	}
}

func TestPodsAreStripped(t *testing.T) {
	o, err := strip(pod("ready", corev1.PodRunning, true, false))
	if err != nil {
		t.Fatal(err)
	}
	p := o.(*corev1.Pod)
	if len(p.Spec.Containers) > 0 || len(p.Annotations) > 0 || len(p.Labels) != 1 || len(p.Status.Conditions) != 1 || p.Status.Conditions[0].Message != "" {
		t.Errorf("kept too much: %+v", p)
	}
	if !state(p).ready || state(p).ip == "" || p.Labels[names.RevisionLabel] == "" {
		t.Errorf("kept too little: %+v", p)
	}
	if o, err := strip("no pod"); o != "no pod" || err != nil {
		t.Errorf("%v, %v", o, err)
	}
}
