package pods

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/standby"
	"ebb.dev/ebb/test/apiservertest"
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

// ran sets when a pod's queue-proxy started, and when its readiness changed.
func ran(p *corev1.Pod, started, changed int64) *corev1.Pod {
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: names.QueueProxyContainer,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Unix(started, 0)}}}}
	p.Status.Conditions[1].LastTransitionTime = metav1.Unix(changed, 0)
	return p
}

func TestWhichPodsAreStarting(t *testing.T) {
	key := loop.Key{Namespace: "default", Name: "hello-00001"}
	unscheduled := pod("waits for a node", corev1.PodPending, false, false)
	unscheduled.Status.StartTime = nil
	later := pod("came later", corev1.PodPending, false, false)
	later.Status.StartTime = &metav1.Time{Time: time.Unix(1500, 0)}
	gone := pod("its node died", corev1.PodRunning, false, false)
	gone.Spec.NodeName = "dead"
	for _, c := range []struct {
		name string
		pods []*corev1.Pod
		want time.Time
	}{
		{"no pod", nil, time.Time{}},
		{"one without a node", []*corev1.Pod{unscheduled}, time.Time{}},
		{"one that is ready", []*corev1.Pod{pod("a", corev1.PodRunning, true, false)}, time.Time{}},
		{"one that was ready", []*corev1.Pod{ran(pod("a", corev1.PodRunning, false, false), 1000, 2000)}, time.Time{}},
		{"one that ends", []*corev1.Pod{pod("a", corev1.PodRunning, false, true)}, time.Time{}},
		{"one whose images are pulled", []*corev1.Pod{later}, time.Unix(1500, 0)},
		{"one whose node died", []*corev1.Pod{gone}, time.Time{}},
		{"one whose node died, and another", []*corev1.Pod{gone, later}, time.Unix(1500, 0)},
		{"the slowest counts", []*corev1.Pod{unscheduled, later, pod("a", corev1.PodRunning, false, false)}, time.Unix(1000, 0)},
	} {
		index := &Index{revisions: map[loop.Key]*group{}}
		index.SetSilent(map[string]bool{"dead": true}, func(loop.Key) {})
		for _, p := range c.pods {
			one, err := strip(p)
			if err != nil {
				t.Fatal(err)
			}
			index.put(nil, one.(*small))
		}
		if got := index.Starting(key); !got.Equal(c.want) {
			t.Errorf("%s: starting since %v, want %v", c.name, got, c.want)
		}
	}
}

// What a pod says of its sleep counts until the kubelet has noticed.
func TestAPodSaysThatItSleeps(t *testing.T) {
	key := loop.Key{Namespace: "default", Name: "hello-00001"}
	index := &Index{revisions: map[loop.Key]*group{}}
	var last *small
	seen := func(p *corev1.Pod) {
		t.Helper()
		one, err := strip(p)
		if err != nil {
			t.Fatal(err)
		}
		index.put(last, one.(*small))
		last = one.(*small)
	}
	want := func(what string, counts revision.Counts, scraped int) {
		t.Helper()
		if got := index.Count(key); got != counts || len(index.ToScrape(key)) != scraped {
			t.Errorf("%s: %+v and %d to scrape, want %+v and %d", what, got, len(index.ToScrape(key)), counts, scraped)
		}
	}
	ready := pod("a", corev1.PodRunning, true, false)
	lapsed := ran(pod("a", corev1.PodRunning, false, false), 1000, 2000)
	if index.Said(key, "a", 1, "") {
		t.Error("an unknown pod can sleep")
	}
	seen(ready)
	if index.Said(key, "a", 0, "") || !index.Said(key, "a", 1, "") || index.Said(key, "a", 1, "") {
		t.Error("what is news?")
	}
	want("the kubelet has not noticed yet", revision.Counts{Asleep: 1, Deep: [revision.Levels]int32{1}}, 0)
	seen(lapsed)
	want("it has", revision.Counts{Asleep: 1, Deep: [revision.Levels]int32{1}}, 0)
	index.Said(key, "a", 2, "")
	if asleep, _ := index.NotReady(key); len(asleep) != 1 || asleep[0].Depth != 2 || asleep[0].Since.IsZero() {
		t.Errorf("%+v", asleep)
	}
	index.Said(key, "a", 0, "")
	want("it woke", revision.Counts{Ready: 1}, 1)
	seen(ready)
	want("the kubelet knows", revision.Counts{Ready: 1}, 1)
	seen(lapsed)
	want("it is really not ready", revision.Counts{NotReady: 1, Lapsed: 1}, 1)
	index.Said(key, "a", 2, "")
	seen(pod("a", corev1.PodRunning, false, true))
	want("it is deleted", revision.Counts{NotReady: 1, Terminating: 1}, 0)
}

// A pod that could be frozen and still sleeps warm after ten seconds has no node agent.
func TestAPodWithoutANodeAgentIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := loop.Key{Namespace: "default", Name: "hello-00001"}
		index := &Index{revisions: map[loop.Key]*group{}}
		for name, containers := range map[string]string{"a": "user-container", "b": "", "c": "user-container"} {
			p := pod(name, corev1.PodRunning, true, false)
			p.Annotations = map[string]string{standby.Containers: containers}
			one, err := strip(p)
			if err != nil {
				t.Fatal(err)
			}
			index.put(nil, one.(*small))
			index.Said(key, name, 1, "")
		}
		index.Said(key, "c", 2, "")
		if got := index.Count(key); got.Alone != 0 {
			t.Errorf("told at once: %+v", got)
		}
		time.Sleep(freezeTime)
		if !index.Said(key, "a", 1, "") || index.Said(key, "a", 1, "") || index.Said(key, "b", 1, "") || index.Said(key, "c", 2, "") {
			t.Error("what is news?")
		}
		if got := index.Count(key); got.Alone != 1 || got.Asleep != 3 {
			t.Errorf("%+v, want one alone of three", got)
		}
		if !index.Said(key, "a", 2, "") || index.Count(key).Alone != 0 {
			t.Error("it is frozen after all")
		}
	})
}

// A pod whose freeze failed has a node agent, and says so at once.
func TestAPodWhoseFreezeFailedIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := loop.Key{Namespace: "default", Name: "hello-00001"}
		index := &Index{revisions: map[loop.Key]*group{}}
		for _, name := range []string{"a", "b", "c"} {
			p := pod(name, corev1.PodRunning, true, false)
			p.Annotations = map[string]string{standby.Containers: "user-container"}
			one, err := strip(p)
			if err != nil {
				t.Fatal(err)
			}
			index.put(nil, one.(*small))
		}
		says := func(pod string, depth uint8, failure string, news bool, unfrozen, alone int32, why string) {
			t.Helper()
			if got := index.Said(key, pod, depth, failure); got != news {
				t.Errorf("%s says %d, %q: news %v", pod, depth, failure, got)
			}
			if got := index.Count(key); got.Unfrozen != unfrozen || got.Alone != alone || got.FreezeFailure != why {
				t.Errorf("%s said %d, %q: %+v, want %d unfrozen, %d alone, %q", pod, depth, failure, got, unfrozen, alone, why)
			}
		}
		says("a", 1, "", true, 0, 0, "")
		says("a", 1, "too late", true, 1, 0, "too late")
		says("a", 1, "too late", false, 1, 0, "too late")
		says("b", 1, "busy", true, 2, 0, "busy")
		says("c", 2, "nonsense", true, 2, 0, "busy")
		time.Sleep(freezeTime)
		says("a", 1, "too late", false, 2, 0, "busy")
		says("b", 2, "", true, 1, 0, "too late")
		says("a", 1, "", true, 0, 1, "") // its agent has left, and so has the failure
		says("a", 0, "too late", true, 0, 0, "")
	})
}

func TestPodsThatWereReadyAreScrapedWhenNoneIs(t *testing.T) {
	notReady := func(name string) *corev1.Pod { return pod(name, corev1.PodRunning, false, false) }
	for behaviour, c := range map[string]struct {
		pods   []*corev1.Pod
		want   []string
		lapsed int32
	}{
		"one that was ready":                     {[]*corev1.Pod{ran(notReady("a"), 1000, 2000)}, []string{"a"}, 1},
		"not one that is starting":               {[]*corev1.Pod{ran(notReady("a"), 1000, 999)}, nil, 0},
		"nor one whose queue-proxy is restarted": {[]*corev1.Pod{ran(notReady("a"), 3000, 2000)}, nil, 0},
		"nor one whose queue-proxy is gone":      {[]*corev1.Pod{notReady("a")}, nil, 0},
		"nor one that is being deleted":          {[]*corev1.Pod{ran(pod("a", corev1.PodRunning, false, true), 1000, 2000)}, nil, 0},
		"ready ones alone, if there are any":     {[]*corev1.Pod{ran(notReady("a"), 1000, 2000), pod("b", corev1.PodRunning, true, false)}, []string{"b"}, 1},
	} {
		index := &Index{revisions: map[loop.Key]*group{}}
		for _, p := range c.pods {
			one, err := strip(p)
			if err != nil {
				t.Fatal(err)
			}
			index.put(nil, one.(*small))
		}
		key := loop.Key{Namespace: "default", Name: "hello-00001"}
		var got []string
		for _, p := range index.ToScrape(key) {
			got = append(got, p.Name)
		}
		if counts := index.Count(key); !slices.Equal(got, c.want) || counts.Lapsed != c.lapsed {
			t.Errorf("%s: %q are scraped, %+v", behaviour, got, counts)
		}
	}
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
	index, err := NewIndex(client)
	if err != nil {
		t.Fatal(err)
	}
	if !index.Start(t.Context().Done(), func(k loop.Key) {
		mutex.Lock()
		told[k]++
		mutex.Unlock()
	}) {
		t.Fatal("pods are not known")
	}
	key := loop.Key{Namespace: "default", Name: "hello-00001"}
	if got, want := index.Count(key), (revision.Counts{Ready: 2, NotReady: 3, Pending: 1, Terminating: 1}); got != want {
		t.Errorf("counts %+v, want %+v", got, want)
	}
	// All began at the same time; those that are ready, leave or have ended start no more.
	if got := index.Starting(key); !got.Equal(time.Unix(1000, 0)) {
		t.Errorf("a pod has been starting since %v", got)
	}
	if got := index.Count(key).Running(); got != 4 {
		t.Errorf("%d pods count against the replicas, want 4", got)
	}
	ready := index.Ready(key)
	if len(ready) != 2 || ready[0].IP != "10.0.0.1" || !ready[0].Started.Equal(time.Unix(1000, 0)) {
		t.Errorf("ready %+v", ready)
	}
	if got := index.Count(loop.Key{Namespace: "other", Name: "hello-00001"}); got != (revision.Counts{}) {
		t.Errorf("another namespace's revision of the same name has %+v", got)
	}
	if index.Ready(loop.Key{}) != nil {
		t.Error("nobody has ready pods")
	}
}

func TestPodsAreStripped(t *testing.T) {
	o, err := strip(pod("ready-1", corev1.PodRunning, true, false))
	if err != nil {
		t.Fatal(err)
	}
	p := o.(*small)
	if p.state != ready || p.ip == "" || p.key() != (loop.Key{Namespace: "default", Name: "hello-00001"}) || p.GetName() != "ready-1" {
		t.Errorf("kept too little: %+v", p)
	}
	if again, err := strip(p); again != o || err != nil {
		t.Errorf("stripped twice: %v, %v", again, err)
	}
	if key, err := cache.MetaNamespaceKeyFunc(p); key != "default/ready-1" || err != nil {
		t.Errorf("the informer knows it as %q, %v", key, err)
	}
	if size := unsafe.Sizeof(*p); size > 216 {
		t.Errorf("a pod takes %d bytes and its strings", size)
	}
	if o, err := strip("no pod"); o != "no pod" || err != nil {
		t.Errorf("%v, %v", o, err)
	}
}

func TestTheIndexFollowsThePods(t *testing.T) {
	client := fake.NewClientset()
	watched := apiservertest.Watches(t, client)
	told := make(chan loop.Key, 100)
	index, err := NewIndex(client)
	if err != nil {
		t.Fatal(err)
	}
	if !index.Start(t.Context().Done(), func(k loop.Key) { told <- k }) {
		t.Fatal("pods are not known")
	}
	watched(1)
	key := loop.Key{Namespace: "default", Name: "hello-00001"}
	api := client.CoreV1().Pods("default")
	step := func(what string, do func() error, want revision.Counts, ready int) {
		t.Helper()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		if k := <-told; k != key {
			t.Fatalf("%s: told of %s", what, k)
		}
		if got := index.Count(key); got != want || len(index.Ready(key)) != ready {
			t.Errorf("%s: %+v with %d ready", what, got, len(index.Ready(key)))
		}
	}
	update := func(p *corev1.Pod) func() error {
		return func() error {
			p.ResourceVersion = fmt.Sprint(time.Now().UnixNano())
			_, err := api.Update(t.Context(), p, metav1.UpdateOptions{})
			return err
		}
	}
	step("a pod appears", func() error {
		_, err := api.Create(t.Context(), pod("a", corev1.PodPending, false, false), metav1.CreateOptions{})
		return err
	}, revision.Counts{Pending: 1, NotReady: 1}, 0)
	step("it starts", update(pod("a", corev1.PodRunning, false, false)), revision.Counts{NotReady: 1}, 0)
	step("it becomes ready", update(pod("a", corev1.PodRunning, true, false)), revision.Counts{Ready: 1}, 1)
	before := index.Ready(key)
	step("it is to go", update(pod("a", corev1.PodRunning, true, true)), revision.Counts{NotReady: 1, Terminating: 1}, 0)
	step("it is gone", func() error { return api.Delete(t.Context(), "a", metav1.DeleteOptions{}) }, revision.Counts{}, 0)
	if len(before) != 1 || before[0].Name != "a" {
		t.Errorf("a list that was handed out changed: %v", before)
	}
	if len(index.revisions) != 0 {
		t.Errorf("%d revisions without pods are remembered", len(index.revisions))
	}
}

// A new process has seen no pod before it shrank.
func TestTheMemoryOfAPodThatShrankIsInItsAnnotation(t *testing.T) {
	for name, c := range map[string]struct {
		note, limit string
		want        int32
	}{
		"what it asked for":        {`{"user-container":{"cpu":"500m","memory":"2Gi"}}`, "", 2048 + 1},
		"of another container":     {`{"gone":{"memory":"2Gi"}}`, "", 1 + 1},
		"nothing was taken":        {`{}`, "", 1 + 1},
		"no JSON":                  {`{"user-container":`, "", 0},
		"less than it asks for":    {`{"user-container":{"memory":"-2Gi"}}`, "", 1 + 1},
		"more than a node has":     {`{"user-container":{"memory":"900Ti"}}`, "", maxMiB + 1},
		"more than the limit":      {`{"user-container":{"memory":"900Ti"}}`, "512Mi", 512 + 1},
		"an annotation is missing": {"", "", 1 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod("a", corev1.PodRunning, false, false)
			p.Annotations = map[string]string{}
			if c.note != "" {
				p.Annotations[names.AwakeRequestsAnnotation] = c.note
			}
			little := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}
			p.Spec.Containers = []corev1.Container{{Name: "user-container", Resources: corev1.ResourceRequirements{Requests: little}},
				{Name: names.QueueProxyContainer, Resources: corev1.ResourceRequirements{Requests: little}}}
			if c.limit != "" {
				p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(c.limit)}
			}
			o, err := strip(p)
			if err != nil {
				t.Fatal(err)
			}
			if got := o.(*small).memory; got != c.want {
				t.Errorf("%d MiB, want %d", got, c.want)
			}
		})
	}
}

// Pods that were asked for do not count: they pay no price.
func TestWhatPodsTakeThatPay(t *testing.T) {
	index := &Index{revisions: map[loop.Key]*group{}}
	for _, name := range []string{"a", "b", "c"} {
		p := pod(name, corev1.PodRunning, true, false)
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi")}
		one, err := strip(p)
		if err != nil {
			t.Fatal(err)
		}
		index.put(nil, one.(*small))
		if name != "c" {
			index.Said(loop.Key{Namespace: "default", Name: "hello-00001"}, name, 2, "")
		}
	}
	for asked, want := range map[int32]float64{0: 200, 1: 100, 2: 0, 9: 0} {
		if got := index.Asleep(64, .5, func(string) int32 { return asked }); got != want {
			t.Errorf("with %d asked for, %v MiB pay, want %v", asked, got, want)
		}
	}
}
