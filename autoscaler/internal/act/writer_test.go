package act

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/autoscaler/revision"
)

// orderOf is an order for another revision than key.
func orderOf(name string, from, to int32) loop.Order {
	o := order(from, to)
	o.Key.Name, o.Target.Name = name, name
	o.Urgent = from == 0
	return o
}

func scaled(calls []string, name string, to int) bool {
	return slices.Contains(calls, fmt.Sprintf("scale %s %d", name, to))
}

// hang asks pods of a dead node: none answers.
func hang(ctx context.Context, _ loop.Key, _ []pods.Pod) map[string]float64 {
	<-ctx.Done()
	return nil
}

func TestAWakeDoesNotWaitBehindScaleDowns(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		w.costs = &Costs{Kube: c.kube, Ready: func(loop.Key) []pods.Pod { return podsOf("a", "b", "c", "d") },
			Count: func(loop.Key) revision.Counts { return revision.Counts{Ready: 4} }, InFlight: hang, Now: time.Now}
		const down = 2 * workers
		for i := range down {
			w.Act(orderOf(fmt.Sprint("down-", i), 4, 2))
		}
		expect(t, c)                        // every worker that takes scale-downs waits for pods
		for i := range int32(2 * raisers) { // more than are kept free for them, so those must come free at once
			w.Act(orderOf(fmt.Sprint("wake-", i), 0, 1))
			w.Act(orderOf(fmt.Sprint("raise-", i), 2, 5))
		}
		w.Act(orderOf("down-0", 2, 5)) // asked for while its scale-down is under way
		synctest.Wait()                // and no time goes by
		calls := c.done()
		for i := range 2 * raisers {
			if !scaled(calls, fmt.Sprint("wake-", i), 1) || !scaled(calls, fmt.Sprint("raise-", i), 5) {
				t.Fatalf("wake or raise %d waits behind scale-downs; done: %q", i, calls)
			}
		}
		if scaled(calls, "down-0", 5) {
			t.Error("a raise overtook the scale-down of its own revision that was under way")
		}
		time.Sleep(10 * time.Second) // virtual
		calls = c.done()
		for i := range down {
			if !scaled(calls, fmt.Sprint("down-", i), 2) {
				t.Errorf("scale-down %d was not written", i)
			}
		}
		if before, after := slices.Index(calls, "scale down-0 2"), slices.Index(calls, "scale down-0 5"); before < 0 || after < before {
			t.Errorf("the scale-down and then the raise of one revision: calls %d and %d of %q", before, after, calls)
		}
	})
}

// Many orders of one kind do not leave out any worker that may take them, nor one that was queued
// while all were idle.
func TestEveryWorkerThatMayTakeAnOrderDoes(t *testing.T) {
	for behaviour, c := range map[string]struct{ from, to int32 }{"scale-downs": {4, 2}, "raises": {1, 2}, "wakes": {0, 1}} {
		t.Run(behaviour, func(t *testing.T) {
			play(t, func(t *testing.T, cl *cluster, w *Writer) {
				synctest.Wait()
				for i := range 3 * workers {
					w.Act(orderOf(fmt.Sprint("r-", i), c.from, c.to))
				}
				synctest.Wait()
				calls := cl.done()
				for i := range 3 * workers {
					if !scaled(calls, fmt.Sprint("r-", i), int(c.to)) {
						t.Errorf("order %d was not carried out", i)
					}
				}
			})
		})
	}
}

// An order that was to add pods when it was queued may be replaced by one that removes some.
func TestARaiserLeavesAScaleDownToTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(nil, nil, nil, &cluster{}, nil, nil, nil)
		w.Act(orderOf("turned", 3, 5))
		w.Act(orderOf("turned", 5, 2))
		w.Act(orderOf("plain", 4, 2))
		w.Act(orderOf("raise", 1, 2))
		w.Act(orderOf("wake", 0, 1))
		for _, want := range []string{"wake", "raise"} {
			if task, o, _ := w.next(t.Context(), true); task == nil || o.Key.Name != want {
				t.Errorf("a raiser took %s, want %s", o.Key.Name, want)
			}
		}
		for _, want := range []string{"plain", "turned"} {
			if task, o, _ := w.next(t.Context(), false); task == nil || o.Key.Name != want || o.Replicas != 2 {
				t.Errorf("a worker took %s to %d pods, want %s", o.Key.Name, o.Replicas, want)
			}
		}
	})
}

func TestAScaleDownWaitsASecondAndUsesWhatAnsweredInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		for _, name := range []string{"a", "b", "c"} {
			kube.Tracker().Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: name}})
		}
		c := &Costs{Kube: kube, Ready: func(loop.Key) []pods.Pod { return podsOf("a", "b", "c") }, Count: func(loop.Key) revision.Counts { return revision.Counts{Ready: 3} },
			InFlight: func(ctx context.Context, key loop.Key, all []pods.Pod) map[string]float64 {
				hang(ctx, key, all)
				return map[string]float64{"a": 0, "b": 7} // c hangs
			}, Now: time.Now}
		began := time.Now()
		if err := c.Mark(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > askTimeout { // virtual
			t.Errorf("a pod that hangs held a scale-down for %s, want %s", took, askTimeout)
		}
		for name, marked := range map[string]bool{"a": true, "b": false, "c": false} {
			p, err := kube.CoreV1().Pods(key.Namespace).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if (p.Annotations[deletionCost] != "") != marked {
				t.Errorf("pod %s is marked to go: %v, want %v", name, !marked, marked)
			}
		}
	})
}
