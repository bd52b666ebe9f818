package hold

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/internal/turns"
	"ebb.dev/ebb/wire"
)

// modelPod is a pod with queue-proxy's side of the refusal protocol (wire.HeaderNoQueue): its limit is the only truth
// about its slots, and it keeps a freed slot for whoever was refused first.
type modelPod struct {
	mutex     sync.Mutex
	limit     int
	busy      int
	turns     turns.Turns
	tell      func(activator string) (wanted bool)
	idleSince time.Time
	served    int
}

const oneWay = 300 * time.Microsecond // network

// request runs one request that takes service at the pod, or is refused.
func (p *modelPod) request(activator string, service time.Duration) bool {
	time.Sleep(oneWay)
	p.mutex.Lock()
	ok := p.turns.Take(activator, p.limit-p.busy, time.Now())
	if ok {
		p.busy++
	}
	p.mutex.Unlock()
	if !ok {
		time.Sleep(oneWay)
		return false
	}
	time.Sleep(service)
	p.mutex.Lock()
	p.busy--
	p.served++
	if p.busy < p.limit {
		p.idleSince = time.Now()
	}
	p.mutex.Unlock()
	go p.next()
	time.Sleep(oneWay)
	return true
}

// next tells the callers whose turn it is, one after the other, until one takes the slot.
func (p *modelPod) next() {
	for {
		p.mutex.Lock()
		caller := p.turns.Next(p.limit-p.busy, time.Now())
		p.mutex.Unlock()
		if caller == "" || p.tell == nil {
			return
		}
		time.Sleep(oneWay)
		wanted := p.tell(caller)
		time.Sleep(oneWay)
		p.mutex.Lock()
		if !wanted {
			p.turns.Decline(caller)
		}
		p.mutex.Unlock()
		if wanted {
			time.Sleep(p.turns.Keep) // lapsed, when it did not come
		}
	}
}

func (p *modelPod) idleFor(now time.Time) time.Duration {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.busy >= p.limit {
		return 0
	}
	return now.Sub(p.idleSince)
}

// oldestWait is how long the request in front of the queue has waited.
func (q *Queue) oldestWait(now time.Time) time.Duration {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if q.first == nil {
		return 0
	}
	return now.Sub(q.first.ticket.Since)
}

// With M activators, N pods and one slot each, no request waits longer than 20 ms while a ready pod is
// idle, whatever the other activators do, and every activator gets its share.
func TestNoRequestWaitsWhileAPodIsIdle(t *testing.T) {
	for activators := 1; activators <= 5; activators++ {
		for _, pods := range []int{1, 2, 5, 25} {
			for _, service := range []time.Duration{4 * time.Millisecond, 300 * time.Millisecond} {
				synctest.Test(t, func(t *testing.T) { runModel(t, activators, pods, service, true, 20*time.Millisecond, 1) })
			}
		}
	}
}

// When the word of a free slot is lost, trying again finds it.
func TestAFewPodsAreFoundEvenWhenTheirWordIsLost(t *testing.T) {
	for _, pods := range []int{1, 2, 8} {
		synctest.Test(t, func(t *testing.T) { runModel(t, 3, pods, 40*time.Millisecond, false, 30*time.Millisecond, 1) })
	}
}

func runModel(t *testing.T, activators, pods int, service time.Duration, told bool, bound time.Duration, seed uint64) {
	random := rand.New(rand.NewPCG(seed, uint64(activators*100+pods)))
	began := time.Now()
	queues := map[string]*Queue{}
	names := []string{"a", "b", "c", "d", "e"}[:activators]
	model := map[netip.AddrPort]*modelPod{}
	var listed []int
	for i := range pods {
		p := &modelPod{limit: 1, idleSince: began, turns: turns.Turns{Keep: wire.TurnMilliseconds * time.Millisecond}}
		if told {
			address := backend(i).Address
			p.tell = func(activator string) bool { return queues[activator].SlotFree(address) }
		}
		model[backend(i).Address] = p
		listed = append(listed, i)
	}
	for _, name := range names {
		queues[name] = newQueue(1, listed...)
	}
	// Load swings between half and one and a half of what the pods can do, and sometimes stops.
	ctx, stop := context.WithCancel(t.Context())
	served, waited := map[string]int{}, map[string]time.Duration{}
	var counts sync.Mutex
	var group sync.WaitGroup
	for _, name := range names {
		source := rand.New(rand.NewPCG(seed, random.Uint64()))
		group.Go(func() {
			for ctx.Err() == nil {
				factor := []float64{0.5, 1.5, 1.0}[source.IntN(3)]
				for range 10 {
					gap := float64(service) * float64(activators) / float64(pods) / factor
					time.Sleep(time.Duration(source.ExpFloat64() * gap))
					takes := time.Duration(float64(service) * (0.5 + source.Float64()))
					if source.IntN(20) == 0 {
						takes *= 10
					}
					group.Go(func() {
						at, ticket := time.Now(), &Ticket{}
						for {
							slot, err := queues[name].Acquire(t.Context(), ticket)
							if err != nil {
								t.Error(err)
								return
							}
							if model[slot.Address()].request(name, takes) {
								slot.Release(true)
								break
							}
							slot.Refused()
						}
						counts.Lock()
						defer counts.Unlock()
						served[name]++
						waited[name] += time.Since(at) - takes
					})
				}
				if source.IntN(5) == 0 {
					time.Sleep(5 * service)
				}
			}
		})
	}
	worst := time.Duration(0)
	for range 1000 {
		time.Sleep(service / 20)
		now := time.Now()
		longest := time.Duration(0)
		for _, q := range queues {
			longest = max(longest, q.oldestWait(now))
		}
		for _, p := range model {
			worst = max(worst, min(longest, p.idleFor(now)))
		}
	}
	stop()
	group.Wait()
	time.Sleep(time.Second) // the last words of a free slot
	if worst > bound {
		t.Errorf("%d activators, %d pods, service %s, seed %d: a request waited while a pod was idle for %s", activators, pods, service, seed, worst)
	}
	for _, name := range names {
		empty(t, queues[name])
		if served[name] == 0 {
			t.Errorf("%d activators, %d pods: %s served nothing", activators, pods, name)
		}
	}
}
