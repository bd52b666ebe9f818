package hold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func backend(i int) Backend {
	return Backend{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8012), Pod: fmt.Sprintf("pod-%d", i)}
}

func newQueue(limit int, pods ...int) *Queue {
	q := New(limit, NewBudget(Bounds{}).Share("ns"), Options{})
	set(q, pods...)
	return q
}

func set(q *Queue, pods ...int) {
	var b []Backend
	for _, i := range pods {
		b = append(b, backend(i))
	}
	q.SetPods(b)
}

// result is what one request got.
type result struct {
	slot Slot
	err  error
	at   time.Time
}

// ask acquires in a goroutine of its own.
func ask(ctx context.Context, q *Queue) chan result {
	answer := make(chan result, 1)
	go func() {
		slot, err := q.Acquire(ctx, &Ticket{})
		answer <- result{slot, err, time.Now()}
	}()
	return answer
}

func got(t *testing.T, answer chan result) result {
	t.Helper()
	synctest.Wait()
	select {
	case r := <-answer:
		return r
	default:
		t.Fatal("the request still waits")
		return result{}
	}
}

func waits(t *testing.T, answer chan result) {
	t.Helper()
	synctest.Wait()
	select {
	case r := <-answer:
		t.Fatalf("the request does not wait: %v %v", r.slot, r.err)
	default:
	}
}

func empty(t *testing.T, q *Queue) {
	t.Helper()
	waiting, inFlight := q.Load()
	if waiting != 0 || inFlight != 0 || q.share.budget.Held() != 0 {
		t.Errorf("%d wait, %d are in flight, the budget counts %d; want none", waiting, inFlight, q.share.budget.Held())
	}
}

func TestARequestAtZeroIsForwardedAsSoonAsAPodAppears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(0)
		answers := make([]chan result, 10)
		for i := range answers {
			answers[i] = ask(t.Context(), q)
		}
		waits(t, answers[0])
		began := time.Now()
		set(q, 1)
		for _, answer := range answers {
			r := got(t, answer)
			if r.err != nil || r.slot.Address() != backend(1).Address || r.at != began {
				t.Fatalf("got %v, %v after %s", r.slot, r.err, r.at.Sub(began))
			}
			r.slot.Release(true)
		}
		empty(t, q)
	})
}

func TestARequestBindsOnlyToAFreeSlotAndInOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 1)
		first := got(t, ask(t.Context(), q))
		second := ask(t.Context(), q)
		waits(t, second)
		third := ask(t.Context(), q)
		waits(t, third)
		set(q, 1, 2) // a pod that appears takes what waits already
		r := got(t, second)
		if r.slot.Pod() != "pod-2" {
			t.Fatalf("the second request went to %s", r.slot.Pod())
		}
		waits(t, third)
		first.slot.Release(true)
		if r := got(t, third); r.slot.Pod() != "pod-1" {
			t.Fatalf("the third request went to %s", r.slot.Pod())
		} else {
			r.slot.Release(true)
		}
		r.slot.Release(true)
		empty(t, q)
	})
}

func TestAClientThatLeavesFreesItsPlaceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1)
		ctx, cancel := context.WithCancelCause(t.Context())
		answer := ask(ctx, q)
		waits(t, answer)
		gone := errors.New("gone")
		cancel(gone)
		if r := got(t, answer); !errors.Is(r.err, gone) {
			t.Fatalf("got %v", r.err)
		}
		empty(t, q)
	})
}

func TestWhatIsBeyondTheBoundsIsRefusedAtOnce(t *testing.T) {
	for _, c := range []struct {
		name   string
		bounds Bounds
		want   int // held of one revision
	}{
		{"count of a revision", Bounds{PerRevision: 3}, 3},
		{"one namespace takes at most half of the total", Bounds{Total: 10}, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget := NewBudget(c.bounds)
				q := New(1, budget.Share("flooded"), Options{})
				other := New(1, budget.Share("other"), Options{})
				ctx, cancel := context.WithCancel(t.Context())
				held := 0
				for range 20 {
					answer := ask(ctx, q)
					synctest.Wait()
					select {
					case r := <-answer:
						var full *FullError
						if !errors.As(r.err, &full) {
							t.Fatalf("got %v", r.err)
						}
					default:
						held++
					}
				}
				if held != c.want {
					t.Errorf("%d requests are held, want %d", held, c.want)
				}
				waits(t, ask(ctx, other)) // another namespace still has room
				if budget.Refusals() != int64(20-held) {
					t.Errorf("%d refusals are counted, want %d", budget.Refusals(), 20-held)
				}
				cancel()
				synctest.Wait()
				empty(t, q)
			})
		})
	}
}

func TestARevisionThatCannotStartAnswersWithItsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(0)
		began := time.Now()
		held := ask(t.Context(), q)
		time.Sleep(time.Second)
		q.SetFailure("ImagePullBackOff: no such image")
		waits(t, held) // the condition may be older than this attempt
		r := <-held
		var cannot *CannotStartError
		if !errors.As(r.err, &cannot) || !strings.Contains(r.err.Error(), "no such image") || r.at.Sub(began) > 5*time.Second {
			t.Fatalf("got %v after %s", r.err, r.at.Sub(began))
		}
		if r := got(t, ask(t.Context(), q)); !errors.As(r.err, &cannot) {
			t.Fatalf("a new request got %v, want the reason at once", r.err)
		}
		// It recovers: requests wait again, and a pod serves them.
		q.SetFailure("")
		again := ask(t.Context(), q)
		waits(t, again)
		set(q, 1)
		got(t, again).slot.Release(true)
		// A stale condition does not matter while a pod is there.
		q.SetFailure("ExitCode1")
		got(t, ask(t.Context(), q)).slot.Release(true)
		// Much later, at zero again, a request is a new attempt.
		set(q)
		time.Sleep(2 * attemptEnds)
		late := ask(t.Context(), q)
		time.Sleep(FailAfter / 2)
		waits(t, late)
		set(q, 2)
		got(t, late).slot.Release(true)
		empty(t, q)
	})
}

// An outage that made a request wait is no reason to refuse it once the first pod fails: it may be
// the node that is not back yet.
func TestARequestThatWaitedForLongIsNotRefusedAtTheFirstFailure(t *testing.T) {
	for reason, after := range map[string]time.Duration{"ErrImagePull": FailAfter, "Unschedulable": RoomAfter, "Unschedulable: 0/1 nodes are available": RoomAfter} {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(0)
			held := ask(t.Context(), q)
			time.Sleep(time.Minute)
			q.SetFailure(reason)
			time.Sleep(after - time.Millisecond)
			waits(t, held)
			next := ask(t.Context(), q)
			waits(t, next)
			time.Sleep(time.Millisecond)
			var cannot *CannotStartError
			if r := got(t, held); !errors.As(r.err, &cannot) {
				t.Errorf("%s: got %v after %s", reason, r.err, after)
			}
			if r := <-next; !errors.As(r.err, &cannot) {
				t.Errorf("%s: the next got %v", reason, r.err)
			}
			empty(t, q)
		})
	}
}

func TestADeletedRevisionFailsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(0)
		held := ask(t.Context(), q)
		waits(t, held)
		q.Delete()
		if r := got(t, held); !errors.Is(r.err, ErrDeleted) {
			t.Fatalf("got %v", r.err)
		}
		if r := got(t, ask(t.Context(), q)); !errors.Is(r.err, ErrDeleted) {
			t.Fatalf("a new request got %v", r.err)
		}
		empty(t, q)
	})
}

func TestAFailedDialMovesToAnotherPodAndNeverLosesTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 1, 2)
		ticket := &Ticket{}
		acquire := func() Slot {
			slot, err := q.Acquire(t.Context(), ticket)
			if err != nil {
				t.Fatal(err)
			}
			return slot
		}
		acquire().Failed()
		slot := acquire()
		if slot.Pod() != "pod-2" {
			t.Fatalf("after pod-1 refused the connection the request went to %s", slot.Pod())
		}
		slot.Failed()
		began := time.Now()
		slot = acquire() // both failed: a short rest, then one of them nevertheless
		if rest := time.Since(began); rest == 0 || rest > 100*time.Millisecond {
			t.Errorf("the last resort came after %s", rest)
		}
		slot.Release(true)
		for range 20 { // nobody answers at all: attempts become rare but never end
			acquire().Failed()
		}
		if tried := time.Since(began); tried < 2*time.Second || tried > 20*time.Second {
			t.Errorf("20 failed dials took %s", tried)
		}
		acquire().Release(true)
		empty(t, q)
	})
}

// On a node where nobody answers, pods get requests only if there are no others, until they answer
// or some time has passed.
func TestPodsOfASilentNodeArePassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(0, 1, 2, 3)
		there := map[netip.Addr]bool{backend(1).Address.Addr(): true, backend(3).Address.Addr(): true}
		for range 50 {
			q.Silent(there)
			slot := got(t, ask(t.Context(), q)).slot
			if slot.Pod() != "pod-2" {
				t.Fatalf("a request goes to %s", slot.Pod())
			}
			slot.Release(true)
			time.Sleep(silentFor / 2)
		}
		time.Sleep(silentFor)
		seen := map[string]bool{}
		for range 50 {
			slot := got(t, ask(t.Context(), q)).slot
			seen[slot.Pod()] = true
			defer slot.Release(true)
		}
		if len(seen) != 3 {
			t.Errorf("later, requests go to %v", seen)
		}
		set(q, 1, 3)
		time.Sleep(restMost) // since they were tried last
		q.Silent(there)
		last := got(t, ask(t.Context(), q)).slot
		last.Release(true)
		time.Sleep(restMost) // the other rests
		if again := got(t, ask(t.Context(), q)).slot; again.Pod() != last.Pod() {
			t.Errorf("one answered, and the next request goes to %s", again.Pod())
		}
	})
}

func TestAPodThatSleepsIsWokenOnlyWhenTheOthersAreFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1)
		sleeper := backend(1)
		sleeper.Asleep = true
		q.SetPods([]Backend{sleeper, backend(2)})
		first := got(t, ask(t.Context(), q)).slot
		second := got(t, ask(t.Context(), q)).slot
		if first.Pod() != "pod-2" || second.Pod() != "pod-1" {
			t.Fatalf("the requests went to %s and %s, want the pod that is awake first", first.Pod(), second.Pod())
		}
		third := ask(t.Context(), q)
		waits(t, third)
		set(q, 1, 2) // it has said that it is awake
		second.Release(true)
		if slot := got(t, third).slot; slot.Pod() != "pod-1" {
			t.Errorf("the third request went to %s", slot.Pod())
		} else {
			slot.Release(true)
		}
		first.Release(true)
		empty(t, q)
	})
}

// A pod that woke for a request says so a little later. Requests that come one after another go to
// it meanwhile, and wake no other pod.
func TestOneRequestAfterAnotherWakesOnePod(t *testing.T) {
	for _, limit := range []int{0, 1, 10} {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(limit)
			var asleep []Backend
			for n := range 20 {
				b := backend(n + 1)
				b.Asleep = true
				asleep = append(asleep, b)
			}
			q.SetPods(asleep)
			woken := map[string]bool{}
			for range 20 {
				slot := got(t, ask(t.Context(), q)).slot
				woken[slot.Pod()] = true
				slot.Release(true)
				time.Sleep(wokeFor / 2)
			}
			if len(woken) != 1 {
				t.Errorf("with limit %d, %d pods were woken", limit, len(woken))
			}
			// A pod that says nothing for longer may sleep again: one that is awake is better.
			time.Sleep(wokeFor)
			asleep[len(asleep)-1].Asleep = false
			q.SetPods(asleep)
			slot := got(t, ask(t.Context(), q)).slot
			if last := asleep[len(asleep)-1].Pod; slot.Pod() != last {
				t.Errorf("with limit %d, a request went to %s and not to %s, which is awake", limit, slot.Pod(), last)
			}
			slot.Release(true)
			empty(t, q)
		})
	}
}

// The only pod refuses connections: all requests wait, however many they are the pod is tried now
// and then, and once it has answered one of them the others follow at once.
func TestTheOnlyPodIsTriedNowAndThenUntilItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(0, 1)
		tries := 0
		works := false
		var answered []time.Time
		var all sync.WaitGroup
		stay := make(chan struct{})
		for range 100 {
			all.Go(func() {
				ticket := &Ticket{}
				for {
					slot, err := q.Acquire(t.Context(), ticket)
					if err != nil {
						t.Error(err)
						return
					}
					q.mutex.Lock()
					ok := works
					if !ok {
						tries++
					} else {
						answered = append(answered, time.Now())
					}
					q.mutex.Unlock()
					if ok {
						slot.Answered()
						<-stay
						slot.Release(true)
						return
					}
					slot.Failed()
				}
			})
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		q.mutex.Lock()
		// The first hundred find a pod of which nothing is known yet.
		if tries < 100 || tries > 100+2*60+20 {
			t.Errorf("the pod was tried %d times in a minute", tries)
		}
		works = true
		q.mutex.Unlock()
		time.Sleep(2 * restMost)
		synctest.Wait()
		if len(answered) != 100 || !answered[99].Equal(answered[0]) {
			t.Errorf("%d were answered", len(answered))
		}
		close(stay)
		all.Wait()
		empty(t, q)
	})
}

func TestAPodThatRefusedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 1)
		ticket := &Ticket{}
		slot, _ := q.Acquire(t.Context(), ticket)
		slot.Refused()
		began := time.Now()
		slot, _ = q.Acquire(t.Context(), ticket)
		if took := time.Since(began); took < retryFull || took > 2*retryFull {
			t.Errorf("tried again after %s", took)
		}
		slot.Refused()
		began = time.Now()
		go func() { q.SlotFree(backend(1).Address) }()
		slot, _ = q.Acquire(t.Context(), ticket)
		if took := time.Since(began); took != 0 {
			t.Errorf("tried %s after the pod said that a slot is free", took)
		}
		slot.Release(true)
		if q.SlotFree(backend(1).Address) {
			t.Error("a slot was wanted although nothing waits")
		}
		empty(t, q)
	})
}

func TestPressureIsToldWhenTheQueueFormsAndDoubles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mutex sync.Mutex
		var told []int
		q := New(0, NewBudget(Bounds{}).Share("ns"), Options{Pressure: func(waiting int) {
			mutex.Lock()
			defer mutex.Unlock()
			told = append(told, waiting)
		}})
		for range 9 {
			waits(t, ask(t.Context(), q))
		}
		mutex.Lock()
		if fmt.Sprint(told) != "[1 2 4 8]" {
			t.Errorf("told %v", told)
		}
		mutex.Unlock()
		q.Delete()
	})
}

// Whatever mix of cancels, refusals, failures, pods coming and going: nothing leaks.
func TestAccountsReturnToZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for limit := range 6 {
			random := rand.New(rand.NewPCG(uint64(limit), 7))
			q := newQueue(limit)
			var group sync.WaitGroup
			for range 300 {
				seed := random.Uint64()
				group.Go(func() { oneRequest(t, q, rand.New(rand.NewPCG(seed, 1))) })
				if random.IntN(5) == 0 {
					var pods []int
					for i := range 8 {
						if random.IntN(2) == 0 {
							pods = append(pods, i)
						}
					}
					set(q, pods...)
				}
				if random.IntN(10) == 0 {
					q.SlotFree(backend(random.IntN(8)).Address)
				}
				if random.IntN(20) == 0 {
					q.SetFailure([]string{"", "broken"}[random.IntN(2)])
				}
				time.Sleep(time.Duration(random.IntN(3000)) * time.Microsecond)
			}
			set(q, 1, 2)
			group.Wait()
			empty(t, q)
			for _, p := range q.pods {
				if p.inFlight != 0 {
					t.Errorf("limit %d: %s keeps %d in flight", limit, p.Pod, p.inFlight)
				}
			}
		}
	})
}

func oneRequest(t *testing.T, q *Queue, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(50))*time.Millisecond)
	defer cancel()
	ticket := &Ticket{}
	for {
		slot, err := q.Acquire(ctx, ticket)
		if err != nil {
			return
		}
		time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
		switch random.IntN(6) {
		case 0:
			slot.Refused()
		case 1:
			slot.Failed()
		default:
			slot.Release(random.IntN(2) == 0)
			return
		}
	}
}

func BenchmarkAcquireAndRelease(b *testing.B) {
	q := newQueue(100, 1, 2, 3)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var ticket Ticket
		for pb.Next() {
			slot, err := q.Acquire(context.Background(), &ticket)
			if err != nil {
				b.Error(err)
				return
			}
			slot.Release(true)
		}
	})
}
