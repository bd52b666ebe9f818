package lease

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/internal/leasetest"
)

func usual(buckets int) Scheme {
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
	client *leasetest.Client
	cancel context.CancelFunc
	ended  chan struct{}

	mutex   sync.Mutex
	buckets []string
	held    map[string]context.Context
	holders map[string]string
	story   []string
}

func (w *work) begin(t *testing.T, s *leasetest.Store, name string, scheme Scheme, random *rand.Rand, delay time.Duration, more ...func(*Election)) *replica {
	r := &replica{name: name, cell: newCell(scheme), client: s.Client(random, delay), ended: make(chan struct{}),
		held: map[string]context.Context{}, holders: map[string]string{}}
	each := func(bucket string, do func(piece int)) {
		for p := range pieces {
			if bucketOf(p, r.buckets) == bucket {
				do(p)
			}
		}
	}
	e := &Election{Client: r.client, Namespace: "knative-serving", Component: "controller", Identity: name, Scheme: r.cell.get, Log: slog.New(slog.DiscardHandler),
		Began: func(buckets []string) {
			r.mutex.Lock()
			defer r.mutex.Unlock()
			if len(r.held) > 0 {
				t.Errorf("%s begins with %v while it holds %v", name, buckets, r.held)
			}
			r.buckets, r.holders = buckets, map[string]string{}
		},
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
		if err := e.Run(ctx); err != nil {
			t.Error(err)
		}
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
		s, w := leasetest.New(t), newWork()
		a := w.begin(t, s, "a", usual(1), source(1), 10*time.Millisecond)
		time.Sleep(time.Second)
		b := w.begin(t, s, "b", usual(1), source(2), 10*time.Millisecond)
		time.Sleep(25 * time.Second)
		before := s.Spec("controller.00-of-01")
		next := usual(1)
		next.LeaseDuration, next.RenewDeadline, next.RetryPeriod = 15*time.Second, 10*time.Second, 2*time.Second
		a.cell.set(next)
		time.Sleep(time.Second)
		b.cell.set(next)
		writes := s.Writes()
		time.Sleep(20 * time.Second)
		if a.tale() != "won controller.00-of-01" || b.tale() != "" {
			t.Errorf("a: %s; b: %s", a.tale(), b.tale())
		}
		after := s.Spec("controller.00-of-01")
		if *after.LeaseDurationSeconds != 15 || !after.AcquireTime.Equal(before.AcquireTime) || *after.LeaseTransitions != *before.LeaseTransitions {
			t.Errorf("before %+v, after %+v", before, after)
		}
		if n := s.Writes() - writes; n < 8 || n > 12 {
			t.Errorf("%d renewals in 20 s, want one every 2 s", n)
		}
		b.end()
		a.end()
	})
}

func TestALeaseThatIsGivenBackIsTakenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := leasetest.New(t), newWork()
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

// cutOff begins two replicas, of which the first holds the lease and now cannot reach the API server, until cut is false. Their work fails the
// test if it overlaps.
func cutOff(t *testing.T) (a, b *replica, cut *atomic.Bool) {
	s, w := leasetest.New(t), newWork()
	cut = new(atomic.Bool)
	a = w.begin(t, s, "a", usual(1), source(1), 0, func(e *Election) { e.Client.(*leasetest.Client).Cut = cut.Load })
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

// The new timings are longer; what the store says still has the old ones, and so the old patience counts.
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

func TestAnotherNumberOfBucketsBeginsWhenNobodyWorksByTheOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := leasetest.New(t), newWork()
		a := w.begin(t, s, "a", usual(1), source(1), 10*time.Millisecond)
		time.Sleep(time.Second)
		b := w.begin(t, s, "b", usual(1), source(2), 10*time.Millisecond)
		time.Sleep(time.Second)
		// b learns of it first, and has to wait; a, who works by the old number, a minute later.
		b.cell.set(usual(3))
		time.Sleep(time.Minute)
		if a.tale() != "won controller.00-of-01" || b.tale() != "" || w.done() != pieces {
			t.Errorf("a: %s; b: %s", a.tale(), b.tale())
		}
		a.cell.set(usual(3))
		time.Sleep(time.Second)
		if all := append(a.holds(), b.holds()...); len(all) != 3 || w.done() != pieces {
			t.Errorf("a holds %v, b %v", a.holds(), b.holds())
		}
		if names := s.Names(); strings.Join(names, " ") != "controller.00-of-03 controller.01-of-03 controller.02-of-03" {
			t.Errorf("there are %v", names)
		}
		// And the other way round, with another prefix.
		next := usual(1)
		next.Prefix = "renamed."
		a.cell.set(next)
		b.cell.set(next)
		time.Sleep(time.Second)
		if names := s.Names(); strings.Join(names, " ") != "renamed.00-of-01" || w.done() != pieces {
			t.Errorf("there are %v", names)
		}
		a.end()
		b.end()
	})
}

// A replica that crashed with the old number of buckets is not waited for longer than its lease lasts, and not at all once its pod is gone.
func TestALeaseOfTheOldNumberWithoutAHolderIsNotWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		gone     func(context.Context, string) bool
		min, max time.Duration
	}{
		"it runs out":      {nil, 50 * time.Second, 100 * time.Second},
		"its pod is gone":  {func(_ context.Context, identity string) bool { return identity == "crashed" }, 0, 5 * time.Second},
		"its pod is there": {func(context.Context, string) bool { return false }, 50 * time.Second, 100 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, w := leasetest.New(t), newWork()
				holder, seconds, now := "crashed", int32(60), metav1.NowMicro()
				s.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "controller.00-of-01", UID: "u"},
					Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now}})
				s.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "another.00-of-01", UID: "v"},
					Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now}})
				a := w.begin(t, s, "a", usual(2), source(1), 10*time.Millisecond, func(e *Election) { e.Gone = c.gone })
				began := time.Now()
				for w.done() < pieces && time.Since(began) < 5*time.Minute {
					time.Sleep(100 * time.Millisecond)
				}
				if took := time.Since(began); took < c.min || took > c.max {
					t.Errorf("it took %v", took)
				}
				if names := s.Names(); strings.Join(names, " ") != "another.00-of-01 controller.00-of-02 controller.01-of-02" {
					t.Errorf("there are %v", names)
				}
				a.end()
			})
		})
	}
}

// Replicas come and go, the settings change to and fro and reach each replica late and not always, calls are slow and fail: nothing
// is ever worked on twice, and when it is quiet again everything is worked on.
func TestNothingIsWorkedOnTwiceWhateverChanges(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	moves, writes := 0, 0
	for seed := range rounds {
		synctest.Test(t, func(t *testing.T) {
			random := source(int64(seed))
			s, w := leasetest.New(t), newWork()
			schemes := []Scheme{usual(1), usual(2), usual(3)}
			schemes[1].LeaseDuration, schemes[1].RenewDeadline, schemes[1].RetryPeriod = 15*time.Second, 10*time.Second, 2*time.Second
			if seed%2 == 1 {
				schemes[2].Prefix = "other."
			}
			truth := schemes[0]
			var all []*replica
			var cuts []*atomic.Bool
			begin := func() {
				cut := &atomic.Bool{}
				cuts = append(cuts, cut)
				all = append(all, w.begin(t, s, fmt.Sprintf("replica-%d", len(all)), truth, source(random.Int63()), 200*time.Millisecond,
					func(e *Election) { e.Client.(*leasetest.Client).Cut = cut.Load }))
			}
			begin()
			begin()
			living := []int{0, 1}
			for range 25 {
				time.Sleep(time.Duration(random.Int63n(int64([]time.Duration{100 * time.Millisecond, 2 * time.Second, 20 * time.Second}[random.Intn(3)]))))
				who := living[random.Intn(len(living))]
				switch random.Intn(6) {
				case 0, 1:
					truth = schemes[random.Intn(len(schemes))]
				case 2, 3:
					all[who].cell.set(truth)
				case 4:
					cuts[who].Store(!cuts[who].Load())
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
				cuts[i].Store(false)
				all[i].cell.set(truth)
			}
			time.Sleep(3 * time.Minute)
			if w.done() != pieces {
				t.Errorf("seed %d: only %d of %d pieces are worked on at last", seed, w.done(), pieces)
			}
			for _, i := range living {
				all[i].end()
			}
			moves, writes = moves+w.moves, max(writes, s.Writes())
		})
	}
	// About ten minutes each: replicas that disagree must not flood the API server.
	if writes > 2000 {
		t.Errorf("%d writes in one round", writes)
	}
	t.Logf("at most %d writes in a round, %d moves in all", writes, moves)
	if moves < rounds*pieces*2 {
		t.Errorf("only %d moves: the test tests little", moves)
	}
}

func TestTimingsThatCannotBeAreRefused(t *testing.T) {
	for _, change := range []func(*Scheme){
		func(s *Scheme) { s.LeaseDuration = s.RenewDeadline },
		func(s *Scheme) { s.RetryPeriod = s.RenewDeadline },
		func(s *Scheme) { s.RetryPeriod = 0 },
		func(s *Scheme) { s.LeaseDuration = time.Millisecond },
	} {
		s := usual(1)
		change(&s)
		e := Election{Scheme: func() (Scheme, <-chan struct{}) { return s, nil }}
		if err := e.Run(t.Context()); err == nil {
			t.Errorf("%+v is taken", s)
		}
	}
}
