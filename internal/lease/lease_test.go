package lease

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"ebb.dev/ebb/test/apiservertest"
)

const namespace = "knative-serving"

// server is the API server that replicas share.
type server struct {
	*apiservertest.Store
	transport http.RoundTripper
	writes    atomic.Int64
	taken     atomic.Pointer[func()] // called once, when a write was taken, before the answer goes out
}

func newServer() *server {
	store, config := apiservertest.New()
	s := &server{Store: store, transport: config.Transport}
	store.Written = func(apiservertest.Write) {
		if do := s.taken.Swap(nil); do != nil {
			(*do)()
		}
	}
	return s
}

// link is one replica's way to the server. Each call takes a moment before it arrives and one
// before the answer is back. While it is cut, no call succeeds; one whose answer was lost has taken
// effect.
type link struct {
	*server
	delay func() time.Duration
	cut   *atomic.Bool
}

func (l *link) client(t *testing.T) kubernetes.Interface {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://apiserver.test", QPS: -1, Transport: l})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (l *link) RoundTrip(r *http.Request) (*http.Response, error) {
	wait := func() error {
		select {
		case <-time.After(l.delay()):
		case <-r.Context().Done():
			return r.Context().Err()
		}
		if l.cut.Load() {
			return errors.New("no route to the API server")
		}
		return nil
	}
	if err := wait(); err != nil {
		return nil, err
	}
	if r.Method != http.MethodGet {
		l.writes.Add(1)
	}
	response, err := l.transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if err := wait(); err != nil {
		response.Body.Close()
		return nil, err
	}
	return response, nil
}

func (s *server) spec(t *testing.T, name string) coordinationv1.LeaseSpec {
	var l coordinationv1.Lease
	object := s.Get(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, namespace, name)
	if object == nil {
		t.Fatalf("there is no lease %s", name)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &l); err != nil {
		t.Fatal(err)
	}
	return l.Spec
}

func usual(buckets uint32) Scheme {
	return Scheme{Prefix: "controller.", Buckets: buckets, LeaseDuration: 60 * time.Second, RenewDeadline: 40 * time.Second, RetryPeriod: 10 * time.Second}
}

// cell is a setting that may change.
type cell struct {
	mutex    sync.Mutex
	scheme   Scheme
	replaced chan struct{}
}

func newCell(s Scheme) *cell { return &cell{scheme: s, replaced: make(chan struct{})} }

func (c *cell) get() (Scheme, <-chan struct{}) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.scheme, c.replaced
}

func (c *cell) set(s Scheme) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.scheme = s
	close(c.replaced)
	c.replaced = make(chan struct{})
}

// work is pieces that lie in some bucket each, whatever the number of buckets.
type work struct {
	mutex sync.Mutex
	doer  map[int]string // piece -> who works on it
	moves int
}

const pieces = 30

func bucketOf(piece int, names []string) string {
	h := fnv.New32a()
	fmt.Fprint(h, piece)
	return names[int(h.Sum32())%len(names)]
}

// replica works on what its buckets hold, and fails the test if another one works on the same.
type replica struct {
	name   string
	cell   *cell
	cut    *atomic.Bool
	slow   *atomic.Int64 // more nanoseconds each way
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // of Run, once ended

	buckets []string

	mutex   sync.Mutex
	held    map[string]context.Context
	holders map[string]string
	story   []string
}

func (w *work) begin(t *testing.T, s *server, name string, scheme Scheme, random *rand.Rand, delay time.Duration, more ...func(*Election)) *replica {
	r := &replica{name: name, cell: newCell(scheme), cut: new(atomic.Bool), slow: new(atomic.Int64), ended: make(chan struct{}), buckets: scheme.Names(),
		held: map[string]context.Context{}, holders: map[string]string{}}
	var mutex sync.Mutex
	to := &link{server: s, cut: r.cut, delay: func() time.Duration {
		mutex.Lock()
		defer mutex.Unlock()
		return time.Duration(random.Int63n(int64(delay)+1) + r.slow.Load())
	}}
	each := func(bucket string, do func(piece int)) {
		for p := range pieces {
			if bucketOf(p, r.buckets) == bucket {
				do(p)
			}
		}
	}
	e := &Election{Client: to.client(t), Namespace: namespace, Identity: name, Buckets: r.buckets, Scheme: r.cell.get,
		Log: slog.New(slog.DiscardHandler),
		Won: func(bucket string, held context.Context) {
			r.mutex.Lock()
			defer r.mutex.Unlock()
			r.held[bucket] = held
			r.story = append(r.story, "won "+bucket)
			w.mutex.Lock()
			defer w.mutex.Unlock()
			each(bucket, func(p int) {
				if other := w.doer[p]; other != "" {
					t.Errorf("piece %d: %s begins with it in %s while %s works on it", p, name, bucket, other)
				}
				w.doer[p] = name
				w.moves++
			})
		},
		Lost: func(bucket string) {
			r.mutex.Lock()
			defer r.mutex.Unlock()
			if r.held[bucket].Err() == nil {
				t.Errorf("%s lost %s, but its context lives", name, bucket)
			}
			delete(r.held, bucket)
			r.story = append(r.story, "lost "+bucket)
			w.mutex.Lock()
			defer w.mutex.Unlock()
			each(bucket, func(p int) { delete(w.doer, p) })
		},
		Holder: func(bucket, identity string) {
			r.mutex.Lock()
			defer r.mutex.Unlock()
			r.holders[bucket] = identity
		},
	}
	for _, change := range more {
		change(e)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer close(r.ended)
		r.err = e.Run(ctx)
	}()
	return r
}

func (r *replica) end() {
	r.cancel()
	<-r.ended
}

func (r *replica) holds() []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	var all []string
	for name := range r.held {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

func (r *replica) tale() string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return strings.Join(r.story, ", ")
}

func newWork() *work { return &work{doer: map[int]string{}} }

// done counts the pieces that somebody works on.
func (w *work) done() int {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return len(w.doer)
}

func source(seed int64) *rand.Rand { return rand.New(rand.NewSource(seed)) }

func TestOtherTimingsKeepWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newServer(), newWork()
		a := w.begin(t, s, "a", usual(1), source(1), 10*time.Millisecond)
		time.Sleep(time.Second)
		b := w.begin(t, s, "b", usual(1), source(2), 10*time.Millisecond)
		time.Sleep(25 * time.Second)
		before := s.spec(t, "controller.00-of-01")
		next := usual(1)
		next.LeaseDuration, next.RenewDeadline, next.RetryPeriod = 15*time.Second, 10*time.Second, 2*time.Second
		a.cell.set(next)
		time.Sleep(time.Second)
		b.cell.set(next)
		writes := s.writes.Load()
		time.Sleep(20 * time.Second)
		if a.tale() != "won controller.00-of-01" || b.tale() != "" {
			t.Errorf("a: %s; b: %s", a.tale(), b.tale())
		}
		after := s.spec(t, "controller.00-of-01")
		if *after.LeaseDurationSeconds != 15 || !after.AcquireTime.Equal(before.AcquireTime) || *after.LeaseTransitions != *before.LeaseTransitions {
			t.Errorf("before %+v, after %+v", before, after)
		}
		if n := s.writes.Load() - writes; n < 8 || n > 12 {
			t.Errorf("%d renewals in 20 s, want one every 2 s", n)
		}
		b.end()
		a.end()
	})
}

func TestALeaseThatIsGivenBackIsTakenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newServer(), newWork()
		a := w.begin(t, s, "a", usual(2), source(1), 10*time.Millisecond)
		time.Sleep(time.Second)
		b := w.begin(t, s, "b", usual(2), source(2), 10*time.Millisecond)
		time.Sleep(15 * time.Second)
		b.mutex.Lock()
		if b.holders["controller.00-of-02"] != "a" {
			t.Errorf("b knows %v", b.holders)
		}
		b.mutex.Unlock()
		a.end()
		began := time.Now()
		for len(b.holds()) < 2 {
			time.Sleep(10 * time.Millisecond)
			if time.Since(began) > time.Second {
				t.Fatalf("a second after a left, b holds %v", b.holds())
			}
		}
		b.end()
		if w.done() != 0 {
			t.Error("work goes on after the end")
		}
	})
}

// cutOff begins two replicas. The first holds the lease and cannot reach the API server until cut
// is false. Their work fails the test if it overlaps.
func cutOff(t *testing.T) (a, b *replica, cut *atomic.Bool) {
	s, w := newServer(), newWork()
	a = w.begin(t, s, "a", usual(1), source(1), 0)
	cut = a.cut
	time.Sleep(5 * time.Second)
	b = w.begin(t, s, "b", usual(1), source(2), 0)
	time.Sleep(time.Second)
	cut.Store(true)
	return a, b, cut
}

func TestALeaseThatCannotBeRenewedIsLostBeforeOthersMayHaveIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, cut := cutOff(t)
		// The work fails the test if it overlaps, so it is enough to see that b gets it.
		time.Sleep(2 * time.Minute)
		if len(a.holds()) != 0 || len(b.holds()) != 1 {
			t.Errorf("a holds %v, b %v", a.holds(), b.holds())
		}
		cut.Store(false)
		time.Sleep(time.Minute)
		if len(a.holds()) != 0 || len(b.holds()) != 1 {
			t.Errorf("later a holds %v, b %v", a.holds(), b.holds())
		}
		b.end()
		a.end()
	})
}

// It is not looked for now and then: whoever waits for it knows when it is over.
func TestALeaseThatIsNotRenewedIsTakenWhenItIsOver(t *testing.T) {
	for seed := range int64(20) {
		synctest.Test(t, func(t *testing.T) {
			s, w := newServer(), newWork()
			a := w.begin(t, s, "a", quick(1), source(seed), 10*time.Millisecond)
			time.Sleep(time.Second)
			b := w.begin(t, s, "b", quick(1), source(seed+100), 10*time.Millisecond)
			if took := takes(t, s, seed, a, b); took < 15*time.Second || took > 15500*time.Millisecond {
				t.Errorf("seed %d: %v after the last renewal", seed, took)
			}
		})
	}
}

// takes cuts off the holder a at some time of its renewals, returns how long after the last one b
// has the lease, and ends both.
func takes(t *testing.T, s *server, seed int64, a, b *replica) time.Duration {
	time.Sleep(30*time.Second + time.Duration(source(seed).Int63n(int64(4*time.Second))))
	a.cut.Store(true)
	time.Sleep(time.Second)
	renewed := s.spec(t, "controller.00-of-01").RenewTime.Time
	for len(b.holds()) == 0 && time.Since(renewed) < time.Minute {
		time.Sleep(10 * time.Millisecond)
	}
	took := time.Since(renewed)
	b.end()
	a.end()
	return took
}

// Its holder died while the API server was away, for longer than the lease lasts. The one that
// waits does not wait for a retry period more.
func TestALeaseThatEndedMeanwhileIsTakenAsSoonAsTheServerIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := cutOff(t)
		b.cut.Store(true)
		time.Sleep(3 * time.Minute)
		b.cut.Store(false)
		time.Sleep(time.Second)
		if len(b.holds()) != 1 {
			t.Error("a second after the server is back, b does not hold it")
		}
		b.end()
		a.end()
	})
}

// After the API server was away for longer than the lease lasts, the work goes on at once.
func TestALeaseIsTakenAgainAsSoonAsTheServerIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newServer(), newWork()
		a := w.begin(t, s, "a", usual(1), source(1), 0)
		time.Sleep(5 * time.Second)
		b := w.begin(t, s, "b", usual(1), source(2), 0)
		time.Sleep(time.Second)
		for _, away := range []time.Duration{5 * time.Minute, 61 * time.Second} {
			a.cut.Store(true)
			b.cut.Store(true)
			time.Sleep(away)
			if held := slices.Concat(a.holds(), b.holds()); len(held) != 0 {
				t.Errorf("without the server %v are held", held)
			}
			a.cut.Store(false)
			b.cut.Store(false)
			time.Sleep(time.Second) // virtual
			if held := slices.Concat(a.holds(), b.holds()); len(held) != 1 {
				t.Errorf("a second after the server is back, %v are held", held)
			}
			time.Sleep(time.Minute)
		}
		b.end()
		a.end()
	})
}

// The new timings are longer; what the store says still has the old ones, and so the old patience
// counts.
func TestTimingsThatChangeWithoutAStoreDoNotProlongALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, cut := cutOff(t)
		next := usual(1)
		next.LeaseDuration, next.RenewDeadline = 10*time.Minute, 5*time.Minute
		a.cell.set(next)
		time.Sleep(2 * time.Minute)
		if len(a.holds()) != 0 || len(b.holds()) != 1 {
			t.Errorf("a holds %v, b %v", a.holds(), b.holds())
		}
		cut.Store(false)
		b.end()
		a.end()
	})
}

// Whoever starts with the new number must not find somebody who still works by the old one: Run
// ends, and releases what it held.
func TestAnotherNumberOfBucketsEndsTheProcess(t *testing.T) {
	for name, change := range map[string]func(*Scheme){
		"buckets": func(s *Scheme) { s.Buckets = 3 },
		"prefix":  func(s *Scheme) { s.Prefix = "renamed." },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w := newServer(), newWork()
				a := w.begin(t, s, "a", usual(1), source(1), 10*time.Millisecond)
				time.Sleep(5 * time.Second)
				if w.done() != pieces {
					t.Fatalf("a works on %d pieces", w.done())
				}
				next := usual(1)
				change(&next)
				a.cell.set(next)
				<-a.ended
				if a.err == nil || !strings.Contains(a.err.Error(), "restart") || !strings.Contains(a.err.Error(), next.Names()[0]) {
					t.Errorf("it ended with %v", a.err)
				}
				if holder := s.spec(t, "controller.00-of-01").HolderIdentity; w.done() != 0 || holder != nil {
					t.Errorf("%d pieces are worked on, and the lease is held by %v", w.done(), holder)
				}
				b := w.begin(t, s, "b", next, source(2), 10*time.Millisecond)
				time.Sleep(5 * time.Second)
				if w.done() != pieces {
					t.Errorf("b works on %d pieces", w.done())
				}
				b.end()
			})
		})
	}
}

// The times in a Lease are those of its holder's clock. Others go by when they saw them change.
func TestTheClockOfTheHolderDoesNotMatter(t *testing.T) {
	leases := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	for _, off := range []time.Duration{-10 * time.Minute, 0, 10 * time.Minute} {
		t.Run(off.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w := newServer(), newWork()
				renew := func() {
					now := metav1.NewMicroTime(time.Now().Add(off))
					content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&coordinationv1.Lease{
						TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
						ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "controller.00-of-01"},
						Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("other"), LeaseDurationSeconds: new(int32(60)), RenewTime: &now},
					})
					if err != nil {
						t.Fatal(err)
					}
					s.Put(leases, &unstructured.Unstructured{Object: content})
				}
				renew()
				a := w.begin(t, s, "a", usual(1), source(1), 0)
				for range 18 {
					time.Sleep(10 * time.Second)
					renew()
				}
				if held := a.holds(); len(held) != 0 {
					t.Errorf("a took %v, which another renews", held)
				}
				time.Sleep(2 * time.Minute)
				if len(a.holds()) != 1 {
					t.Error("a did not take a lease that nobody renewed for two minutes")
				}
				a.end()
			})
		})
	}
}

// Nobody waits for the lease of a replica that crashed for longer than it lasts, and not at all
// once its pod is gone.
func TestALeaseWithoutAHolderIsNotWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		fate     func(context.Context, string) Fate
		min, max time.Duration
	}{
		"it expires":       {nil, 50 * time.Second, 100 * time.Second},
		"its pod is gone":  {func(_ context.Context, identity string) Fate { return map[string]Fate{"crashed": Gone}[identity] }, 0, 5 * time.Second},
		"its pod is there": {func(context.Context, string) Fate { return Lives }, 50 * time.Second, 100 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w := newServer(), newWork()
				crashed := w.begin(t, s, "crashed", usual(1), source(1), 0)
				time.Sleep(time.Second)
				crashed.cut.Store(true)
				crashed.end()
				a := w.begin(t, s, "a", usual(1), source(1), 10*time.Millisecond, func(e *Election) { e.Fate = c.fate })
				began := time.Now()
				for w.done() < pieces && time.Since(began) < 5*time.Minute {
					time.Sleep(100 * time.Millisecond)
				}
				if took := time.Since(began); took < c.min || took > c.max {
					t.Errorf("it took %v", took)
				}
				a.end()
			})
		})
	}
}

// Replicas come and go, the timings change and reach each replica late and not always, calls are
// slow and fail: nothing is ever worked on twice, and when it is quiet again everything is worked
// on.
func TestNothingIsWorkedOnTwiceWhateverChanges(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	moves, writes := 0, int64(0)
	for seed := range rounds {
		synctest.Test(t, func(t *testing.T) {
			random := source(int64(seed))
			s, w := newServer(), newWork()
			buckets := uint32(1 + seed%3)
			schemes := []Scheme{usual(buckets), usual(buckets), usual(buckets)}
			schemes[1].LeaseDuration, schemes[1].RenewDeadline, schemes[1].RetryPeriod = 15*time.Second, 10*time.Second, 2*time.Second
			schemes[2].LeaseDuration, schemes[2].RenewDeadline, schemes[2].RetryPeriod = 30*time.Second, 29*time.Second, 20*time.Second
			truth := schemes[0]
			var all []*replica
			begin := func() {
				all = append(all, w.begin(t, s, fmt.Sprintf("replica-%d", len(all)), truth, source(random.Int63()), 200*time.Millisecond))
			}
			begin()
			begin()
			living := []int{0, 1}
			for range 25 {
				longest := []time.Duration{100 * time.Millisecond, 2 * time.Second, 20 * time.Second}[random.Intn(3)]
				time.Sleep(time.Duration(random.Int63n(int64(longest))))
				who := living[random.Intn(len(living))]
				switch random.Intn(6) {
				case 0, 1:
					truth = schemes[random.Intn(len(schemes))]
				case 2, 3:
					all[who].cell.set(truth)
				case 4:
					all[who].cut.Store(!all[who].cut.Load())
				case 5:
					if len(living) == 3 {
						all[who].end()
						living = slices.DeleteFunc(living, func(i int) bool { return i == who })
					} else {
						living = append(living, len(all))
						begin()
					}
				}
			}
			for _, i := range living {
				all[i].cut.Store(false)
				all[i].cell.set(truth)
			}
			time.Sleep(3 * time.Minute)
			if w.done() != pieces {
				t.Errorf("seed %d: only %d of %d pieces are worked on at last", seed, w.done(), pieces)
			}
			for _, i := range living {
				all[i].end()
			}
			for _, r := range all {
				if r.err != nil {
					t.Errorf("seed %d: %s: %v", seed, r.name, r.err)
				}
			}
			moves, writes = moves+w.moves, max(writes, s.writes.Load())
		})
	}
	// About ten minutes each: replicas that disagree must not flood the API server.
	if writes > 2000 {
		t.Errorf("%d writes in one round", writes)
	}
	t.Logf("at most %d writes in a round, %d moves in all", writes, moves)
	if moves < rounds*pieces {
		t.Errorf("only %d moves: the test tests little", moves)
	}
}

func TestTimingsThatCannotBeAreRefused(t *testing.T) {
	for _, change := range []func(*Scheme){
		func(s *Scheme) { s.LeaseDuration = s.RenewDeadline },
		func(s *Scheme) { s.RetryPeriod = s.RenewDeadline },
		func(s *Scheme) { s.RetryPeriod = 0 },
	} {
		s := usual(1)
		change(&s)
		_, config := apiservertest.New()
		e := Election{Client: kubernetes.NewForConfigOrDie(config), Namespace: namespace, Identity: "a", Buckets: s.Names(),
			Scheme: func() (Scheme, <-chan struct{}) { return s, nil }, Log: slog.New(slog.DiscardHandler)}
		if err := e.Run(t.Context()); err == nil {
			t.Errorf("%+v is taken", s)
		}
	}
}
