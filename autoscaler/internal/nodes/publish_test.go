package nodes

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"ebb.dev/ebb/wire"
)

func TestOneReplicaTellsWhichNodesAreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		var calls, fails atomic.Int64
		var may atomic.Bool
		kube.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			if calls.Add(1); fails.Load() > 0 {
				fails.Add(-1)
				return true, nil, errors.New("the API server is away")
			}
			return false, nil, nil
		})
		leases := kube.CoordinationV1().Leases("knative-serving")
		p := &Publisher{Leases: leases, MayWrite: may.Load, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { p.Run(ctx); close(done) }()
		said := func() string {
			lease, err := leases.Get(t.Context(), wire.SilentNodes, metav1.GetOptions{})
			if err != nil {
				return "nothing"
			}
			return lease.Annotations[wire.SilentNodesAnnotation]
		}
		expect := func(when, want string) {
			t.Helper()
			synctest.Wait()
			if got := said(); got != want {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		p.Set([]string{"b"})
		time.Sleep(5 * time.Second)
		expect("by another replica", "nothing")
		p.Set(nil)
		may.Store(true)
		time.Sleep(5 * time.Second)
		expect("while all nodes answer", "nothing")
		calls.Store(0)
		time.Sleep(time.Minute)
		if n := calls.Load(); n > 0 {
			t.Errorf("%d calls in a minute in which nothing changes", n)
		}
		p.Set([]string{"b", "c"})
		expect("at once", "b,c")
		fails.Store(1)
		p.Set([]string{"b"})
		time.Sleep(2 * publishPeriod)
		expect("after a failure", "b")
		may.Store(false)
		time.Sleep(2 * publishPeriod)
		p.Set(nil)
		time.Sleep(5 * time.Second)
		expect("by a replica that has lost its part", "b")
		may.Store(true)
		time.Sleep(2 * publishPeriod)
		expect("by one that has it again", "")
		cancel()
		<-done
	})
}

// A replica that takes over keeps what the one before told of nodes that it cannot judge yet. Where
// it cannot read that, it writes nothing.
func TestWhatAnotherReplicaToldStaysUntilThisOneCanDecide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "knative-serving", Name: wire.SilentNodes,
			Annotations: map[string]string{wire.SilentNodesAnnotation: "b,c"}}})
		var fails atomic.Int64
		fails.Store(2)
		kube.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			if fails.Add(-1) >= 0 {
				return true, nil, errors.New("the API server is away")
			}
			return false, nil, nil
		})
		var open atomic.Pointer[[]string]
		open.Store(&[]string{"a", "b", "c"})
		leases := kube.CoordinationV1().Leases("knative-serving")
		p := &Publisher{Leases: leases, MayWrite: func() bool { return true }, Log: slog.New(slog.DiscardHandler),
			Undecided: func(nodes []string) []string {
				return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return !slices.Contains(*open.Load(), n) })
			}}
		p.Set([]string{"d"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { p.Run(ctx); close(done) }()
		expect := func(when, want string) {
			t.Helper()
			synctest.Wait()
			lease, err := kube.Tracker().Get(coordinationv1.SchemeGroupVersion.WithResource("leases"), "knative-serving", wire.SilentNodes)
			if err != nil {
				t.Fatal(err)
			}
			if got := lease.(*coordinationv1.Lease).Annotations[wire.SilentNodesAnnotation]; got != want {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		expect("while it cannot read", "b,c")
		time.Sleep(3 * publishPeriod)
		expect("while nothing is decided", "b,c,d")
		open.Store(&[]string{"a", "c"})
		time.Sleep(2 * publishPeriod)
		expect("when b answers", "c,d")
		open.Store(&[]string{"a", "b", "c"})
		time.Sleep(2 * publishPeriod)
		expect("b is not asked about again", "c,d")
		p.Set([]string{"c", "d"})
		open.Store(&[]string{})
		time.Sleep(2 * publishPeriod)
		expect("when this replica calls c silent itself", "c,d")
		p.Set(nil)
		time.Sleep(2 * publishPeriod)
		expect("when all answer", "")
		cancel()
		<-done
	})
}

// A replica that started after the end of a node, and does not write, hears of it once: it decides
// about revisions all the same.
func TestAReplicaThatDoesNotWriteHearsWhatWasTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "knative-serving", Name: wire.SilentNodes,
			Annotations: map[string]string{wire.SilentNodesAnnotation: "b,c"}}})
		var reads, writes, fails, told atomic.Int64
		fails.Store(2)
		kube.PrependReactor("*", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetVerb() != "get" {
				writes.Add(1)
			} else if reads.Add(1); fails.Add(-1) >= 0 {
				return true, nil, errors.New("the API server is away")
			}
			return false, nil, nil
		})
		p := &Publisher{Leases: kube.CoordinationV1().Leases("knative-serving"), MayWrite: func() bool { return false }, Log: slog.New(slog.DiscardHandler),
			Undecided: func(nodes []string) []string {
				if told.Add(1); !slices.Equal(nodes, []string{"b", "c"}) {
					t.Errorf("told of %v", nodes)
				}
				return nodes
			}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { p.Run(ctx); close(done) }()
		time.Sleep(time.Minute)
		if reads.Load() != 3 || told.Load() != 1 || writes.Load() != 0 {
			t.Errorf("%d reads, told %d times, %d writes", reads.Load(), told.Load(), writes.Load())
		}
		cancel()
		<-done
	})
}
