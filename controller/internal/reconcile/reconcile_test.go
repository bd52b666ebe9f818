package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/internal/lease"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/eventually"
)

var configurations = schema.GroupResource{Group: "serving.knative.dev", Resource: "configurations"}

func configuration(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "serving.knative.dev/v1", "kind": "Configuration",
		"metadata": map[string]any{"namespace": "ns", "name": name}, "spec": map[string]any{"template": map[string]any{}}}}
}

type frame struct {
	store *apiservertest.Store
	mgr   *Manager
	kind  Kind[*servingv1.Configuration]
}

// newFrame runs Configurations through reconcile, with the caches filled.
func newFrame(t *testing.T, reconcile func(context.Context, *servingv1.Configuration) (time.Duration, error)) *frame {
	t.Helper()
	store, config := apiservertest.Start(t)
	clients, err := ConnectTo(config)
	if err != nil {
		t.Fatal(err)
	}
	w := NewManager(clients, settings.NewStore(nil), record.NewFakeRecorder(1000), slog.New(slog.DiscardHandler), "sys", "cluster.local")
	return &frame{store, w, Kind[*servingv1.Configuration]{
		Name: "configuration", Informer: w.EbbInformers.Serving().V1().Configurations().Informer(), Manager: w,
		Client:    func(ns string) Client[*servingv1.Configuration] { return w.Ebb.ServingV1().Configurations(ns) },
		Reconcile: reconcile,
	}}
}

func (f *frame) run(t *testing.T, controllers []*Controller, o Options) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	o.Metrics = NewMetrics(prometheus.NewRegistry())
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	go func() { ended <- f.mgr.Run(ctx, controllers, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func (f *frame) status(name string) *servingv1.ConfigurationStatus {
	object, err := f.mgr.Ebb.ServingV1().Configurations("ns").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return &servingv1.ConfigurationStatus{}
	}
	return &object.Status
}

func TestAFailedReconcileOfANewGenerationDoesNotLeaveTheLastReadyInForce(t *testing.T) {
	var mu sync.Mutex
	fail := false
	f := newFrame(t, func(_ context.Context, c *servingv1.Configuration) (time.Duration, error) {
		mu.Lock()
		defer mu.Unlock()
		// Also what a reconcile does whose other conditions are still True from before.
		c.GetConditionSet().Manage(&c.Status).MarkTrue(apis.ConditionReady)
		if fail {
			return 0, errors.New("no luck")
		}
		return 0, nil
	})
	f.store.Put(configurations, configuration("c"))
	f.run(t, []*Controller{f.kind.Controller()}, Options{Alone: true})
	eventually.True(t, "Ready", func() bool { return f.status("c").GetCondition(apis.ConditionReady).IsTrue() })
	first := f.status("c").GetCondition(apis.ConditionReady).LastTransitionTime

	mu.Lock()
	fail = true
	mu.Unlock()
	next := f.store.Get(configurations, "ns", "c")
	next.Object["spec"] = map[string]any{"template": map[string]any{"metadata": map[string]any{"name": "x"}}}
	f.store.Put(configurations, next)
	eventually.True(t, "a failed generation is observed and not Ready", func() bool {
		s := f.status("c")
		return s.ObservedGeneration == 2 && s.GetCondition(apis.ConditionReady).GetReason() == "NewObservedGenFailure"
	})

	mu.Lock()
	fail = false
	mu.Unlock()
	eventually.True(t, "Ready again by trying again, without another change", func() bool {
		return f.status("c").GetCondition(apis.ConditionReady).IsTrue()
	})
	if f.status("c").GetCondition(apis.ConditionReady).LastTransitionTime.Inner.Before(&first.Inner) {
		t.Error("the time of the transition went backwards")
	}
}

func TestAStatusThatDoesNotChangeIsNotWritten(t *testing.T) {
	f := newFrame(t, func(_ context.Context, c *servingv1.Configuration) (time.Duration, error) {
		m := c.GetConditionSet().Manage(&c.Status)
		m.MarkUnknown(apis.ConditionReady, "Passing", "through") // and back: no transition
		m.MarkTrue(apis.ConditionReady)
		return 0, nil
	})
	f.store.Put(configurations, configuration("c"))
	c := f.kind.Controller()
	f.run(t, []*Controller{c}, Options{Alone: true})
	// Ready in the cache too: a reconcile that reads an older object rightly writes again.
	eventually.True(t, "Ready", func() bool {
		object, found, _ := f.kind.Informer.GetStore().GetByKey("ns/c")
		return found && object.(*servingv1.Configuration).Status.GetCondition(apis.ConditionReady).IsTrue()
	})
	f.store.Writes()
	for range 20 {
		if _, err := c.Reconcile(context.Background(), Key{Namespace: "ns", Name: "c"}); err != nil {
			t.Fatal(err)
		}
	}
	if writes := f.store.Writes(); len(writes) != 0 {
		t.Errorf("wrote %v", writes)
	}
}

func TestAPanicOverOneObjectDoesNotStopTheOthers(t *testing.T) {
	f := newFrame(t, func(_ context.Context, c *servingv1.Configuration) (time.Duration, error) {
		if c.Name == "hostile" {
			panic("as it wished")
		}
		c.GetConditionSet().Manage(&c.Status).MarkTrue(apis.ConditionReady)
		return 0, nil
	})
	f.store.Put(configurations, configuration("hostile"))
	f.store.Put(configurations, configuration("well"))
	c := f.kind.Controller()
	c.Workers = 1
	f.run(t, []*Controller{c}, Options{Alone: true})
	eventually.True(t, "the other is Ready", func() bool { return f.status("well").GetCondition(apis.ConditionReady).IsTrue() })
}

func TestANamespaceThatIsBeingDeletedIsNoFailure(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "going", errors.New("the namespace is being terminated"))
	refused.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause, Field: "metadata.namespace"}}
	f := newFrame(t, func(_ context.Context, c *servingv1.Configuration) (time.Duration, error) {
		if c.Name == "going" {
			return 0, errors.Join(fmt.Errorf("create Service ns/going: %w", refused), errors.New("and more"))
		}
		c.GetConditionSet().Manage(&c.Status).MarkTrue(apis.ConditionReady)
		return 0, nil
	})
	f.store.Put(configurations, configuration("going"))
	c := f.kind.Controller()
	c.Workers = 1
	f.run(t, []*Controller{c}, Options{Alone: true})
	eventually.True(t, "it is reconciled", func() bool { return f.status("going").ObservedGeneration == 1 })
	f.store.Put(configurations, configuration("other"))
	eventually.True(t, "the next one is, so that the first is done with", func() bool { return f.status("other").ObservedGeneration == 1 })
	if n := c.q().NumRequeues(Key{Namespace: "ns", Name: "going"}); n != 0 {
		t.Errorf("it is tried again, for the %d. time", n)
	}
	select {
	case event := <-f.mgr.Events.(*record.FakeRecorder).Events:
		t.Errorf("an event in a namespace that takes none: %s", event)
	default:
	}
}

func TestAReconcileIsGivenUpAfterItsTime(t *testing.T) {
	given := make(chan error, 100)
	f := newFrame(t, func(ctx context.Context, _ *servingv1.Configuration) (time.Duration, error) {
		<-ctx.Done()
		given <- ctx.Err()
		return 0, ctx.Err()
	})
	f.store.Put(configurations, configuration("c"))
	f.run(t, []*Controller{f.kind.Controller()}, Options{Alone: true, Timeout: time.Millisecond})
	if err := <-given; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ended by %v", err)
	}
}

func TestAChangedSettingReconcilesEverything(t *testing.T) {
	seen := make(chan int64, 100)
	var f *frame
	f = newFrame(t, func(_ context.Context, _ *servingv1.Configuration) (time.Duration, error) {
		seen <- f.mgr.Settings.Load().GC.MinNonActiveRevisions
		return 0, nil
	})
	f.store.Put(configurations, configuration("c"))
	f.run(t, []*Controller{f.kind.Controller()}, Options{Alone: true})
	<-seen
	changed := *f.mgr.Settings.Load()
	changed.GC.MinNonActiveRevisions = 77
	f.mgr.Settings.Set(&changed)
	for <-seen != 77 {
	}
}

func TestReplicasShareTheKeysAndTakeOverFromOneThatLeaves(t *testing.T) {
	scheme := lease.Scheme{Buckets: 3, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 20 * time.Millisecond, Prefix: "controller."}
	leases := lease.Source(func() (lease.Scheme, <-chan struct{}) { return scheme, nil })
	var mu sync.Mutex
	by := map[string]map[string]bool{}
	reconcile := func(replica string) func(context.Context, *servingv1.Configuration) (time.Duration, error) {
		return func(_ context.Context, c *servingv1.Configuration) (time.Duration, error) {
			mu.Lock()
			defer mu.Unlock()
			if by[c.Name] == nil {
				by[c.Name] = map[string]bool{}
			}
			by[c.Name][replica] = true
			return 0, nil
		}
	}
	f := newFrame(t, reconcile("one"))
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for _, name := range keys {
		f.store.Put(configurations, configuration(name))
	}
	// The first replica lives in a context of its own, so that it can leave before the test ends.
	ctx, leave := context.WithCancel(context.Background())
	left := make(chan error, 1)
	go func() {
		left <- f.mgr.Run(ctx, []*Controller{f.kind.Controller()}, Options{Identity: "one", Timeout: time.Minute, Leases: leases,
			Metrics: NewMetrics(prometheus.NewRegistry())})
	}()
	all := func(replica string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, name := range keys {
				if !by[name][replica] {
					return false
				}
			}
			return true
		}
	}
	eventually.True(t, "one replica alone does everything", all("one"))

	second := NewManager(Clients{f.mgr.Kube, f.mgr.Ebb, f.mgr.Gateways, nil}, f.mgr.Settings, f.mgr.Events, f.mgr.Log, "sys", "cluster.local")
	kind := f.kind
	kind.Informer = second.EbbInformers.Serving().V1().Configurations().Informer()
	kind.Reconcile = reconcile("two")
	two := &frame{f.store, second, kind}
	two.run(t, []*Controller{kind.Controller()}, Options{Identity: "two", Leases: leases})
	mu.Lock()
	for name, replicas := range by {
		if replicas["two"] {
			t.Errorf("%s was reconciled by both at once", name)
		}
	}
	mu.Unlock()
	leave()
	if err := <-left; err != nil {
		t.Fatal(err)
	}
	// Without handing the leases back this would take the 15 s of a lease.
	eventually.True(t, "the second replica takes over all keys", all("two"))
}

func TestTheControllerFollowsConfigLeaderElection(t *testing.T) {
	f := newFrame(t, func(context.Context, *servingv1.Configuration) (time.Duration, error) { return 0, nil })
	change := func(do func(*settings.LeaderElection)) {
		changed := *f.mgr.Settings.Load()
		do(&changed.LeaderElection)
		f.mgr.Settings.Set(&changed)
	}
	leases := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	type state struct {
		holder, acquired string
		seconds          int64
	}
	get := func(name string) (s state) {
		if l := f.store.Get(leases, f.mgr.SystemNamespace, name); l != nil {
			s.holder, _, _ = unstructured.NestedString(l.Object, "spec", "holderIdentity")
			s.acquired, _, _ = unstructured.NestedString(l.Object, "spec", "acquireTime")
			s.seconds, _, _ = unstructured.NestedInt64(l.Object, "spec", "leaseDurationSeconds")
		}
		return s
	}
	ended := make(chan error, 1)
	go func() {
		ended <- f.mgr.Run(t.Context(), []*Controller{f.kind.Controller()}, Options{Identity: "one", Timeout: time.Minute,
			SettingsWithin: 10000 * time.Hour, Leases: f.mgr.Settings.Leases("controller", "controller."),
			Metrics: NewMetrics(prometheus.NewRegistry())})
	}()
	const name = "controller.00-of-01"
	eventually.True(t, "the lease is held", func() bool { return get(name).holder == "one" && get(name).seconds == 60 })
	before := get(name)
	change(func(s *settings.LeaderElection) { s.LeaseDuration, s.RetryPeriod = 90*time.Second, time.Second })
	eventually.True(t, "the lease has the new duration", func() bool { return get(name).seconds == 90 })
	if after := get(name); after.holder != "one" || after.acquired != before.acquired {
		t.Errorf("%+v before and %+v after: the lease was lost in between", before, after)
	}
	change(func(s *settings.LeaderElection) { s.LeasePrefixes = map[string]string{"controller": "renamed"} })
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "renamed.00-of-01") {
		t.Errorf("the controller ended with %v", err)
	}
	if holder := get(name).holder; holder != "" {
		t.Errorf("the lease is still held by %s", holder)
	}
}

func TestAStatusMeetsANewerObject(t *testing.T) {
	var f *frame
	f = newFrame(t, func(ctx context.Context, c *servingv1.Configuration) (time.Duration, error) {
		if c.Labels["meanwhile"] == "" {
			object := f.store.Get(configurations, "ns", "c")
			object.SetLabels(map[string]string{"meanwhile": "changed"})
			f.store.Put(configurations, object)
		}
		c.GetConditionSet().Manage(&c.Status).MarkTrue(apis.ConditionReady)
		return 0, nil
	})
	f.store.Put(configurations, configuration("c"))
	f.run(t, []*Controller{f.kind.Controller()}, Options{Alone: true})
	eventually.True(t, "the status is written over the newer object, whose label stays", func() bool {
		object := f.store.Get(configurations, "ns", "c")
		return object.GetLabels()["meanwhile"] == "changed" && f.status("c").GetCondition(apis.ConditionReady).IsTrue()
	})
}

// A reconcile that worked with an old object must not replace a newer status by what it found.
func TestAStatusFromAnOldObjectIsNotWrittenOverANewerOne(t *testing.T) {
	var f *frame
	stale := true
	f = newFrame(t, func(ctx context.Context, c *servingv1.Configuration) (time.Duration, error) {
		if stale {
			stale = false
			object := f.store.Get(configurations, "ns", "c")
			object.Object["status"] = map[string]any{"latestReadyRevisionName": "c-00001"}
			f.store.Put(configurations, object)
		}
		if c.Status.LatestReadyRevisionName == "" {
			c.GetConditionSet().Manage(&c.Status).MarkFalse(apis.ConditionReady, "NeverReady", "")
		} else {
			c.GetConditionSet().Manage(&c.Status).MarkTrue(apis.ConditionReady)
		}
		return 0, nil
	})
	f.store.Put(configurations, configuration("c"))
	f.run(t, []*Controller{f.kind.Controller()}, Options{Alone: true})
	eventually.True(t, "the status goes on from the newer one", func() bool {
		status := f.status("c")
		return status.LatestReadyRevisionName == "c-00001" && status.GetCondition(apis.ConditionReady).IsTrue()
	})
}

func TestFinalizersAreSetRunAndRemoved(t *testing.T) {
	finalized := make(chan struct{}, 100)
	f := newFrame(t, func(context.Context, *servingv1.Configuration) (time.Duration, error) { return 0, nil })
	f.kind.Finalizer = "test.example.com"
	f.kind.Finalize = func(context.Context, *servingv1.Configuration) error { finalized <- struct{}{}; return nil }
	f.store.Put(configurations, configuration("c"))
	f.run(t, []*Controller{f.kind.Controller()}, Options{Alone: true})
	eventually.True(t, "the finalizer is there", func() bool { return len(f.store.Get(configurations, "ns", "c").GetFinalizers()) == 1 })
	if err := f.mgr.Ebb.ServingV1().Configurations("ns").Delete(context.Background(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	<-finalized
	eventually.True(t, "the object is gone", func() bool {
		_, err := f.mgr.Ebb.ServingV1().Configurations("ns").Get(context.Background(), "c", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// The table above holdFor, row by row.
func TestAStatusIsHeldBackOnlyWhileItShowsProgress(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	status := func(text string, age time.Duration) (s servingv1.ServiceStatus) {
		for word := range strings.FieldsSeq(text) {
			name, value, _ := strings.Cut(word, "=")
			value, reason, _ := strings.Cut(value, "/")
			s.Conditions = append(s.Conditions, apis.Condition{Type: apis.ConditionType(name), Status: corev1.ConditionStatus(value), Reason: reason,
				LastTransitionTime: apis.VolatileTime{Inner: metav1.NewTime(now.Add(-age))}})
		}
		return s
	}
	for _, tt := range []struct {
		why           string
		before, after string
		age           time.Duration
		hold          time.Duration
	}{
		{"first status of a new object", "", "Ready=Unknown", 500 * time.Millisecond, 1500 * time.Millisecond},
		{"first status of an object that is older", "", "Ready=Unknown", 2 * time.Second, 0},
		{"another step", "Ready=Unknown RoutesReady=Unknown", "Ready=Unknown RoutesReady=Unknown/Later", 4 * time.Second, 6 * time.Second},
		{"a step of a part", "Ready=Unknown RoutesReady=Unknown", "Ready=Unknown RoutesReady=True", time.Second, 9 * time.Second},
		{"the last step was told long ago", "Ready=Unknown", "Ready=Unknown/Later", 10 * time.Second, 0},
		{"nothing changed", "Ready=Unknown", "Ready=Unknown", time.Second, 0},
		{"it is Ready", "Ready=Unknown", "Ready=True", time.Second, 0},
		{"it fails", "Ready=Unknown", "Ready=False", time.Second, 0},
		{"it fails in another way", "Ready=False/One", "Ready=False/Two", time.Second, 0},
		{"it is not Ready any more", "Ready=True", "Ready=Unknown", time.Second, 0},
		{"it does not fail any more", "Ready=False", "Ready=Unknown", time.Second, 0},
		{"it fails from the start", "", "Ready=False", 0, 0},
		{"a part is not True any more", "Ready=Unknown RoutesReady=True", "Ready=Unknown RoutesReady=Unknown", time.Second, 0},
		{"a clock that is ahead", "Ready=Unknown", "Ready=Unknown/Later", -time.Hour, 0},
	} {
		t.Run(tt.why, func(t *testing.T) {
			k := Kind[*servingv1.Service]{Manager: &Manager{Now: func() time.Time { return now }},
				MayHold: func(_, _ *servingv1.Service) bool { return true }}
			before, after := &servingv1.Service{}, &servingv1.Service{}
			before.CreationTimestamp = metav1.NewTime(now.Add(-max(tt.age, 0)))
			before.Status, after.Status = status(tt.before, tt.age), status(tt.after, tt.age)
			if hold := k.holdFor(before, after); hold != tt.hold {
				t.Errorf("held for %v, want %v", hold, tt.hold)
			}
			k.MayHold = nil
			if hold := k.holdFor(before, after); hold != 0 {
				t.Errorf("held for %v, although it may not", hold)
			}
		})
	}
}

func TestWhileItIsBusyTheControllerHoldsProgressBackForLonger(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w := &Manager{Now: func() time.Time { return now }}
	w.running.Store(int64(busyAt * runtime.GOMAXPROCS(0)))
	k := Kind[*servingv1.Service]{Manager: w, MayHold: func(_, _ *servingv1.Service) bool { return true }}
	for _, tt := range []struct {
		age, hold time.Duration
		ready     corev1.ConditionStatus
	}{
		{time.Second, time.Second, corev1.ConditionUnknown},
		{20 * time.Second, firstStatusWithin, corev1.ConditionUnknown},
		{20 * time.Second, 0, corev1.ConditionTrue},
		{busyStatusWithin, 0, corev1.ConditionUnknown},
	} {
		before, after := &servingv1.Service{}, &servingv1.Service{}
		before.CreationTimestamp = metav1.NewTime(now.Add(-tt.age))
		after.Status.Conditions = duckv1.Conditions{{Type: apis.ConditionReady, Status: tt.ready}}
		if hold := k.holdFor(before, after); hold != tt.hold {
			t.Errorf("after %v, %s is held for %v, want %v", tt.age, tt.ready, hold, tt.hold)
		}
	}
}

func TestANewObjectWaitsWhileOthersAreWorkedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		busy.Store(true)
		c := &Controller{Name: "service"}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { c.admit(ctx, busy.Load); close(ended) }()
		created := func(name string) {
			c.handler(Self, c.arrivals().Add, always).OnAdd(&servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}, false)
		}
		queued := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			if got := c.q().Len(); got != want {
				t.Errorf("%s %d keys are queued, want %d", when, got, want)
			}
		}
		created("a")
		created("b")
		time.Sleep(admitWithin / 2)
		queued("while it is busy", 0)
		time.Sleep(admitWithin)
		queued("after a has waited long enough", 1)
		busy.Store(false)
		time.Sleep(admitStep)
		queued("when it is not busy any more", 2)
		created("c")
		queued("while it is not busy", 3)
		busy.Store(true)
		c.handler(Self, c.arrivals().Add, always).OnUpdate(&servingv1.Service{}, &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: "changed"}})
		c.handler(Self, c.arrivals().Add, always).OnAdd(&servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: "existed"}}, true)
		queued("a change, and an object that existed before the start, do not wait:", 6)
		cancel()
		<-ended
		c.q().ShutDown()
	})
}

// Events that arrive right after a reconcile cause one more, not one each: the caches do not show
// yet what the reconcile wrote.
func TestAKeyRestsForAsLongAsItsReconcileTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times []time.Duration
		began := time.Now()
		c := &Controller{Name: "slow", Workers: 1, Reconcile: func(context.Context, Key) (time.Duration, error) {
			times = append(times, time.Since(began))
			time.Sleep(50 * time.Millisecond) // a write
			return 0, nil
		}}
		leases := NewLeases()
		leases.win("", t.Context())
		w := &Manager{}
		r := runner{timeout: time.Minute, leases: leases, metrics: NewMetrics(prometheus.NewRegistry()), log: slog.New(slog.DiscardHandler), mgr: w}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { r.work(ctx, c); close(ended) }()
		for range 9 {
			c.Enqueue(Key{Name: "a"})
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		cancel()
		<-ended
		if diff := cmp.Diff([]time.Duration{0, 100 * time.Millisecond}, times); diff != "" {
			t.Errorf("reconciled at other times (-want +got):\n%s", diff)
		}
	})
}

func TestNothingIsReconciledInANamespaceThatIsBeingDeleted(t *testing.T) {
	reconciled, finalized := make(chan string, 100), make(chan string, 100)
	f := newFrame(t, func(_ context.Context, c *servingv1.Configuration) (time.Duration, error) {
		reconciled <- c.Namespace
		return 0, nil
	})
	f.kind.Finalizer = "test.example.com"
	f.kind.Finalize = func(_ context.Context, c *servingv1.Configuration) error { finalized <- c.Namespace; return nil }
	f.store.Put(schema.GroupResource{Resource: "namespaces"}, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": "ns", "deletionTimestamp": "2026-03-01T12:00:00Z", "finalizers": []any{"kubernetes"}}}})
	going := configuration("going")
	going.SetFinalizers([]string{"test.example.com"})
	f.store.Put(configurations, going)
	other := configuration("other")
	other.SetNamespace("stays")
	f.store.Put(configurations, other)
	c := f.kind.Controller()
	c.Workers = 1
	f.run(t, []*Controller{c}, Options{Alone: true})
	if namespace := <-reconciled; namespace != "stays" {
		t.Errorf("reconciled in namespace %q", namespace)
	}
	if err := f.mgr.Ebb.ServingV1().Configurations("ns").Delete(t.Context(), "going", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if namespace := <-finalized; namespace != "ns" {
		t.Errorf("finalized in namespace %q", namespace)
	}
	eventually.True(t, "the object is gone", func() bool { return f.store.Get(configurations, "ns", "going") == nil })
	select {
	case namespace := <-reconciled:
		if namespace == "ns" {
			t.Error("reconciled in a namespace that is being deleted")
		}
	default:
	}
}

func TestTheSoonerTimeIsNeverZeroUnlessBothAre(t *testing.T) {
	for _, row := range []struct{ a, b, want time.Duration }{
		{0, 0, 0}, {time.Second, 0, time.Second}, {0, time.Second, time.Second}, {time.Second, time.Minute, time.Second}, {time.Minute, time.Second, time.Second},
	} {
		if got := Sooner(row.a, row.b); got != row.want {
			t.Errorf("of %v and %v: %v", row.a, row.b, got)
		}
	}
}
