package lease

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/test/apiservertest"
)

func quick(buckets uint32) Scheme {
	s := usual(buckets)
	s.LeaseDuration, s.RenewDeadline, s.RetryPeriod = 15*time.Second, 10*time.Second, 2*time.Second
	return s
}

// writers are replicas that write until they were told that they may, and what others think of
// them. The test fails if one gets a bucket in which another may write still.
type writers struct {
	mutex sync.Mutex
	until map[string]map[string]time.Time // bucket -> replica -> until when it may write
	fate  map[string]Fate
	won   int
}

func newWriters() *writers {
	return &writers{until: map[string]map[string]time.Time{}, fate: map[string]Fate{}}
}

func (w *writers) think(of string, fate Fate) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.fate[of] = fate
}

func (w *writers) fateOf(_ context.Context, identity string) Fate {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.fate[identity]
}

// begin begins a replica whose work may overlap, and whose writes may not.
func (w *writers) begin(t *testing.T, s *server, name string, scheme Scheme, random *rand.Rand, delay time.Duration) *replica {
	return newWork().begin(t, s, name, scheme, random, delay, func(e *Election) {
		e.Renewed = func(bucket string, until time.Time) {
			w.mutex.Lock()
			defer w.mutex.Unlock()
			if w.until[bucket] == nil {
				w.until[bucket] = map[string]time.Time{}
			}
			for other, theirs := range w.until[bucket] {
				if now := time.Now(); other != name && now.Before(theirs) && now.Before(until) {
					t.Errorf("%s may write in %s for %s, and %s for %s", name, bucket, until.Sub(now), other, theirs.Sub(now))
				}
			}
			w.until[bucket][name] = until
		}
		won := e.Won
		e.Won = func(bucket string, held context.Context) {
			w.mutex.Lock()
			w.won++
			for other, until := range w.until[bucket] {
				if other != name && time.Now().Before(until) {
					t.Errorf("%s gets %s, where %s may write for %s", name, bucket, other, time.Until(until))
				}
			}
			w.mutex.Unlock()
			won(bucket, held)
		}
		lost := e.Lost
		e.Lost = func(bucket string) {
			w.mutex.Lock()
			delete(w.until[bucket], name)
			w.mutex.Unlock()
			lost(bucket)
		}
		e.Fate = w.fateOf
	})
}

// With the usual timings of several replicas it is 15 s otherwise.
func TestTheLeaseOfADeadReplicaIsTakenAfterAThirdOfIt(t *testing.T) {
	for seed := range int64(20) {
		synctest.Test(t, func(t *testing.T) {
			s, w := newServer(), newWriters()
			a := w.begin(t, s, "a", quick(1), source(seed), 50*time.Millisecond)
			time.Sleep(time.Second)
			b := w.begin(t, s, "b", quick(1), source(seed+100), 50*time.Millisecond)
			w.think("a", Dead) // before it is: while it renews, that changes nothing
			if took := takes(t, s, seed, a, b); took < 5*time.Second || took > 7*time.Second {
				t.Errorf("seed %d: %v after the last renewal", seed, took)
			}
		})
	}
}

// A node that is cut off from the others, but not from the API server.
func TestAReplicaThatRenewsItsLeaseKeepsItWhateverOthersThinkOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newServer(), newWriters()
		a := w.begin(t, s, "a", quick(1), source(1), 200*time.Millisecond)
		time.Sleep(time.Second)
		b := w.begin(t, s, "b", quick(1), source(2), 200*time.Millisecond)
		w.think("a", Dead)
		time.Sleep(10 * time.Minute)
		if len(a.holds()) != 1 || len(b.holds()) != 0 || a.tale() != "won controller.00-of-01" {
			t.Errorf("a holds %v, b %v; a: %s", a.holds(), b.holds(), a.tale())
		}
		b.end()
		a.end()
	})
}

// Verdicts that are right and wrong, ways to the API server that break and heal, timings that reach
// the replicas one after the other: at no time may two write.
func TestNobodyMayWriteBesideAnotherWhateverIsThoughtOfThem(t *testing.T) {
	rounds, won := 20, 0
	if testing.Short() {
		rounds = 8
	}
	for seed := range rounds {
		synctest.Test(t, func(t *testing.T) {
			random := source(int64(seed))
			s, w := newServer(), newWriters()
			schemes := []Scheme{usual(2), quick(2), quick(2)}
			schemes[2].RetryPeriod = 8 * time.Second
			var all []*replica
			for i := range 3 {
				all = append(all, w.begin(t, s, fmt.Sprint("replica-", i), schemes[0], source(random.Int63()), 200*time.Millisecond))
			}
			for range 60 {
				who := all[random.Intn(len(all))]
				switch random.Intn(4) {
				case 0:
					who.cell.set(schemes[random.Intn(len(schemes))])
				case 1:
					who.cut.Store(!who.cut.Load())
				case 2, 3:
					w.think(who.name, Fate(random.Intn(2)))
				}
				time.Sleep(time.Duration(random.Int63n(int64([]time.Duration{100 * time.Millisecond, 2 * time.Second, 20 * time.Second}[random.Intn(3)]))))
			}
			for _, r := range all {
				r.cut.Store(false)
				r.cell.set(schemes[1])
			}
			time.Sleep(3 * time.Minute)
			var held []string
			for _, r := range all {
				held = append(held, r.holds()...)
			}
			if slices.Sort(held); len(held) != 2 || held[0] == held[1] {
				t.Errorf("seed %d: at last %v are held", seed, held)
			}
			for _, r := range all {
				r.end()
			}
			won += w.won
		})
	}
	t.Logf("a bucket had another owner %d times", won)
	if won < 5*rounds {
		t.Errorf("a bucket had another owner only %d times: the test tests little", won)
	}
}

// atTheNextRenewal waits until the server has taken a renewal of the holder, which is called dead,
// and calls do before the answer goes out.
func (w *writers) atTheNextRenewal(s *server, holder *replica, do func()) {
	taken := make(chan struct{})
	s.taken.Store(new(func() {
		do()
		close(taken)
	}))
	w.think(holder.name, Dead)
	<-taken
}

// The holder is cut off or paused just then. As soon as it goes on, it has the answer, and another
// one has the Lease.
func TestALateAnswerLetsNobodyWriteBesideAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newServer(), newWriters()
		a := w.begin(t, s, "a", quick(1), source(1), 0)
		time.Sleep(time.Second)
		b := w.begin(t, s, "b", quick(1), source(2), 0)
		time.Sleep(20 * time.Second)
		w.atTheNextRenewal(s, a, func() { a.slow.Store(int64(8 * time.Second)) })
		time.Sleep(7 * time.Second)
		a.slow.Store(0)
		time.Sleep(20 * time.Second)
		if len(a.holds()) != 0 || len(b.holds()) != 1 {
			t.Errorf("a holds %v, b %v", a.holds(), b.holds())
		}
		b.end()
		a.end()
	})
}

// The answer is lost. The elector then renews once more with the time of the renewal that was
// taken, so nothing changes, and nobody sees it.
func TestARenewalThatChangesNothingProlongsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newServer(), newWriters()
		a := w.begin(t, s, "a", quick(1), source(1), 0)
		time.Sleep(time.Second)
		b := w.begin(t, s, "b", quick(1), source(2), 0)
		time.Sleep(20 * time.Second)
		w.atTheNextRenewal(s, a, func() {
			a.slow.Store(int64(2 * time.Second))
			a.cut.Store(true)
		})
		time.Sleep(2500 * time.Millisecond)
		a.slow.Store(0)
		a.cut.Store(false)
		time.Sleep(20 * time.Second)
		if len(a.holds())+len(b.holds()) != 1 {
			t.Errorf("a holds %v, b %v", a.holds(), b.holds())
		}
		b.end()
		a.end()
	})
}

// The API server says nothing of a holder's pod.
func TestSettingsDoNotWaitForWhatIsKnownOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newServer(), newWork()
		a := w.begin(t, s, "a", quick(1), source(1), 0)
		time.Sleep(time.Second)
		b := w.begin(t, s, "b", quick(1), source(2), 0, func(e *Election) {
			e.Fate = func(ctx context.Context, _ string) Fate {
				<-ctx.Done()
				return Lives
			}
		})
		time.Sleep(10 * time.Second)
		b.cell.set(quick(2))
		select {
		case <-b.ended:
		case <-time.After(10 * time.Second):
			t.Error("after 10 s it goes by the old settings")
			b.end()
		}
		a.end()
	})
}

// What is read is older than what the events told before the answer came.
func TestAnAnswerThatRenewalsOvertookDelaysNothing(t *testing.T) {
	for seed := range int64(20) {
		synctest.Test(t, func(t *testing.T) {
			s, w := newServer(), newWriters()
			a := w.begin(t, s, "a", usual(1), source(seed), 0)
			time.Sleep(time.Second)
			b := w.begin(t, s, "b", usual(1), source(seed+100), 0)
			time.Sleep(20 * time.Second)
			b.slow.Store(int64(25 * time.Second)) // two renewals
			time.Sleep(time.Minute + time.Duration(source(seed).Int63n(int64(time.Minute))))
			a.cut.Store(true)
			w.think("a", Dead)
			renewed := s.spec(t, "controller.00-of-01").RenewTime.Time
			time.Sleep(time.Second)
			b.slow.Store(0)
			for len(b.holds()) == 0 && time.Since(renewed) < 2*time.Minute {
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(renewed); took > 30*time.Second {
				t.Errorf("seed %d: %v after the last renewal", seed, took)
			}
			b.end()
			a.end()
		})
	}
}

// Its renewals come late, and it writes now and then all the same.
func TestBehindASlowAPIServerAReplicaMayWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newServer(), newWriters()
		a := w.begin(t, s, "a", quick(1), source(1), 0)
		time.Sleep(10 * time.Second)
		a.slow.Store(int64(2 * time.Second)) // each way
		may := 0
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			w.mutex.Lock()
			if time.Now().Before(w.until["controller.00-of-01"]["a"]) {
				may++
			}
			w.mutex.Unlock()
		}
		if may < 200 || len(a.holds()) != 1 {
			t.Errorf("it may write for %d of 600 moments, and holds %v", may, a.holds())
		}
		a.slow.Store(0)
		a.end()
	})
}

func TestWhatIsKnownOfAPodsReplica(t *testing.T) {
	_, config := apiservertest.New()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for name, node := range map[string]string{"on-a": "a", "on-b": "b", "nowhere": ""} {
		pod, err := client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.Status.PodIP = "10.0.0.1"
		if _, err := client.CoreV1().Pods(namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	fate := OfPod(client, namespace, func(node string) bool { return node == "b" || node == "" })
	for identity, want := range map[string]Fate{
		"on-a": Lives, "on-a_10.0.0.1": Lives, "on-a_10.0.0.2": Gone, "on-b": Dead, "on-b_10.0.0.1": Dead, "on-b_10.0.0.2": Gone,
		"nowhere": Lives, "nobody": Gone, "nobody_10.0.0.1": Gone, "": Lives,
	} {
		if got := fate(t.Context(), identity); got != want {
			t.Errorf("%q is %s, want %s", identity, got, want)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if got := fate(ended, "nobody"); got != Lives {
		t.Errorf("without an answer it is %s", got)
	}
}
