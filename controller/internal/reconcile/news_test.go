package reconcile

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// What can wait is reconciled once, a second after the first change, and not at all if something
// else has its key reconciled meanwhile.
func TestWhatCanWaitIsReconciledOnceForManyChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		c := &Controller{Name: "test", Reconcile: func(context.Context, Key) (time.Duration, error) {
			at = append(at, time.Since(began).Round(time.Millisecond))
			return 0, nil
		}}
		leases := NewLeases()
		leases.win("", t.Context())
		ran := make(chan struct{})
		r := runner{timeout: time.Minute, leases: leases, metrics: NewMetrics(prometheus.NewRegistry()), log: slog.New(slog.DiscardHandler), mgr: &Manager{}}
		go func() {
			defer close(ran)
			for r.next(c) {
			}
		}()
		urgency := Soon
		h := c.handler(Self, c.Enqueue, func(_, _ any) Urgency { return urgency })
		change := func(version string, u Urgency) {
			urgency = u
			h.OnUpdate(&servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Name: "r"}}, &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Name: "r", ResourceVersion: version}})
			time.Sleep(300 * time.Millisecond)
			synctest.Wait()
		}
		change("1", Never)
		change("2", Soon) // after 300 ms
		change("3", Soon)
		time.Sleep(2 * time.Second)
		change("4", Soon) // after 2.9 s
		change("5", AtOnce)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		c.q().ShutDown()
		<-ran
		if want := []time.Duration{1300 * time.Millisecond, 3200 * time.Millisecond}; len(at) != 2 || at[0] != want[0] || at[1] != want[1] {
			t.Errorf("reconciled after %v, want after %v", at, want)
		}
	})
}

func TestHowManyPodsARevisionHasIsNoNews(t *testing.T) {
	revision := func(change func(*servingv1.Revision)) *servingv1.Revision {
		rev := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Name: "r", Generation: 1, Annotations: map[string]string{"a": "b"}}}
		rev.Status.Conditions = duckv1.Conditions{{Type: servingv1.RevisionConditionActive, Status: "True"}, {Type: apis.ConditionReady, Status: "True"}}
		change(rev)
		return rev
	}
	before := revision(func(*servingv1.Revision) {})
	for what, c := range map[string]struct {
		change func(*servingv1.Revision)
		want   Urgency
	}{
		"its pods and Active": {func(r *servingv1.Revision) {
			r.Status.ActualReplicas, r.Status.DesiredReplicas, r.Status.Conditions[0].Status = ptr.To(int32(1)), ptr.To(int32(1)), "False"
		}, Never},
		"Ready":           {func(r *servingv1.Revision) { r.Status.Conditions[1].Status = "False" }, AtOnce},
		"a label":         {func(r *servingv1.Revision) { r.Labels = map[string]string{"c": "d"} }, AtOnce},
		"an annotation":   {func(r *servingv1.Revision) { r.Annotations["a"] = "c" }, AtOnce},
		"a new object":    {func(r *servingv1.Revision) { r.UID = "other" }, AtOnce},
		"its end":         {func(r *servingv1.Revision) { r.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, AtOnce},
		"what it awaited": {func(r *servingv1.Revision) { r.Status.ObservedGeneration = 1 }, AtOnce},
	} {
		if got := BesidesScale(before, revision(c.change)); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
	if BesidesScale(nil, before) != AtOnce || BesidesScale(before, nil) != AtOnce {
		t.Error("a Revision came or went, and that is no news")
	}
}
