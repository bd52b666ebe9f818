package faults

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"ebb.dev/ebb/test/internal/cluster"
)

// of is a pod of a controller on a node.
func of(kind, name, node string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "soak", Name: name, UID: types.UID(name), Labels: map[string]string{"serving.knative.dev/revision": "r"}},
		Spec: corev1.PodSpec{NodeName: node}}
	if kind != "" {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "owner", UID: "owner", Controller: new(true)}}
	}
	return p
}

// A budget lets a pod go later, and what belongs to the node stays. The node takes pods again, also
// if the time is over.
func TestADrain(t *testing.T) {
	for name, c := range map[string]struct {
		refusals int
		fails    bool
		left     []string
	}{
		"a budget lets it go later": {3, false, []string{"agent", "static"}},
		"a budget never does":       {1_000_000, true, []string{"agent", "kept", "static"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kube := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}},
					of("ReplicaSet", "free", "b"), of("ReplicaSet", "kept", "b"), of("DaemonSet", "agent", "b"), of("", "static", "b"))
				pods := corev1.SchemeGroupVersion.WithResource("pods")
				closed := func() bool {
					node, err := kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("nodes"), "", "b")
					if err != nil {
						t.Fatal(err)
					}
					return node.(*corev1.Node).Spec.Unschedulable
				}
				refused := 0
				kube.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
					if action.GetSubresource() != "eviction" {
						return false, nil, nil
					}
					pod := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction).Name
					if !closed() {
						t.Errorf("pod %s is evicted from a node that takes others", pod)
					}
					if pod == "kept" && refused < c.refusals {
						refused++
						return true, nil, apierrors.NewTooManyRequests("the budget", 0)
					}
					return true, nil, kube.Tracker().Delete(pods, "soak", pod)
				})
				n := Nodes{&cluster.Cluster{Kube: kube}, []string{"a", "b", "c"}}
				err := n.Drain(t.Context(), "b")
				if (err != nil) != c.fails || c.fails && !strings.Contains(err.Error(), "pod soak/kept is on node b: the budget") {
					t.Errorf("%v", err)
				}
				if closed() {
					t.Error("the node takes no pods")
				}
				var left []string
				all, err := kube.CoreV1().Pods("soak").List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range all.Items {
					left = append(left, p.Name)
				}
				if slices.Sort(left); !slices.Equal(left, c.left) {
					t.Errorf("%v are left, want %v", left, c.left)
				}
			})
		})
	}
}

func TestTheNodeWithMostPodsIsHit(t *testing.T) {
	going := of("ReplicaSet", "going", "b")
	going.DeletionTimestamp = new(metav1.Now())
	pods := []corev1.Pod{*of("ReplicaSet", "1", "a"), *of("ReplicaSet", "2", "a"), *of("ReplicaSet", "3", "a"),
		*of("ReplicaSet", "4", "b"), *going, *of("ReplicaSet", "5", "c"), *of("ReplicaSet", "6", "c"), *of("ReplicaSet", "7", "")}
	for want, ends := range map[Hit][]string{{Node: "c", Pods: 2}: {"b", "c"}, {Node: "b", Pods: 1}: {"b", "empty"}, {Node: "empty"}: {"empty", "too"}, {}: nil} {
		if got := busiest(pods, ends); got != want {
			t.Errorf("of %v: %+v, want %+v", ends, got, want)
		}
	}
}

// A measurement on a full disk is none.
func TestANodeWithoutDiskIsTold(t *testing.T) {
	node := func(name string, pressure corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: corev1.NodeDiskPressure, Status: pressure, Message: "kubelet has disk pressure"}}}}
	}
	const text = "node b has DiskPressure (kubelet has disk pressure)"
	for pressure, fails := range map[corev1.ConditionStatus]bool{corev1.ConditionTrue: true, corev1.ConditionFalse: false, corev1.ConditionUnknown: false} {
		kube := fake.NewClientset(node("a", corev1.ConditionFalse), node("b", pressure))
		err := Nodes{Cluster: &cluster.Cluster{Kube: kube}}.Room(t.Context())
		if (err != nil) != fails || fails && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", pressure, err)
		}
	}
}

func TestNamedNodes(t *testing.T) {
	n := Nodes{All: []string{"ebb-dev-a", "ebb-dev-b", "ebb-dev-c"}}
	for name, want := range map[string]string{"b": "ebb-dev-b", "ebb-dev-c": "ebb-dev-c", "d": "", "": ""} {
		if got, err := n.Named(name); got != want || (err == nil) == (want == "") {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	if got := n.But("ebb-dev-b"); !slices.Equal(got, []string{"ebb-dev-a", "ebb-dev-c"}) {
		t.Errorf("%v", got)
	}
}

// Also while the API server is away now and then, and when a pod comes and goes, or an event does.
func TestWhatIsReplacedIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		event := func(name, reason string, n int32) *corev1.Event {
			return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Reason: reason, Count: n,
				InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "b"}}
		}
		kube := fake.NewClientset(of("ReplicaSet", "old", "a"), event("lost-before", "NodeLost", 2), event("ready", "NodeReady", 1))
		var away atomic.Bool
		kube.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			if away.Load() {
				return true, nil, errors.New("the API server is away")
			}
			return false, nil, nil
		})
		do := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		pods, events, ctx := kube.CoreV1().Pods("soak"), kube.CoreV1().Events("default"), t.Context()
		done, err := Set{Cluster: &cluster.Cluster{Kube: kube}, Namespace: "soak"}.Replacing(ctx)
		do(err)
		add := func(p *corev1.Pod) {
			t.Helper()
			_, err := pods.Create(ctx, p, metav1.CreateOptions{})
			do(err)
		}
		add(of("ReplicaSet", "short", "a"))
		time.Sleep(2 * time.Second)
		do(pods.Delete(ctx, "short", metav1.DeleteOptions{}))
		do(pods.Delete(ctx, "old", metav1.DeleteOptions{}))
		away.Store(true)
		time.Sleep(10 * time.Second)
		away.Store(false)
		add(of("ReplicaSet", "new", "c"))
		for _, e := range []*corev1.Event{event("silent", "NodeSilent", 0), event("lost", "NodeLost", 1)} {
			_, err = events.Create(ctx, e, metav1.CreateOptions{})
			do(err)
		}
		_, err = events.Update(ctx, event("lost-before", "NodeLost", 5), metav1.UpdateOptions{})
		do(err)
		time.Sleep(2 * time.Second)
		do(events.Delete(ctx, "lost", metav1.DeleteOptions{}))
		got, err := done()
		do(err)
		if want := (Replaced{Silent: 1, Lost: 4, Pods: 2}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		away.Store(true)
		if _, err := (Set{Cluster: &cluster.Cluster{Kube: kube}, Namespace: "soak"}).Replacing(ctx); err == nil || !strings.Contains(err.Error(), "in soak: the API server is away") {
			t.Errorf("begins without the API server: %v", err)
		}
	})
}

func TestWhatIsHitIsTold(t *testing.T) {
	kube := fake.NewClientset(of("ReplicaSet", "1", "c"))
	c := &cluster.Cluster{Kube: kube, Programs: cluster.Components}
	var told []Hit
	set := Set{Cluster: c, Namespace: "soak", Nodes: Nodes{c, []string{"a", "b", "c"}}, Ends: []string{"b", "c"}, Hit: func(h Hit) { told = append(told, h) }}
	var done string
	if err := set.hit(context.Background(), func(node string) error { done = node; return nil }); err != nil {
		t.Fatal(err)
	}
	if len(told) != 1 || told[0].Node != "c" || told[0].Pods != 1 || done != "c" {
		t.Errorf("told of %+v, did it to %q", told, done)
	}
}
