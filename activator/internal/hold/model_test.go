package hold

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/internal/turns"
	"ebb.dev/ebb/wire"
)

// modelPod is a pod with queue-proxy's side of the refusal protocol (wire.HeaderNoQueue): its limit
// is the only truth about its slots, and it keeps a freed slot for whoever was refused first.
type modelPod struct {
	mutex     sync.Mutex
	limit     int
	busy      int
	turns     turns.Turns
	tell      func(activator string) (wanted bool)
	idleSince time.Time // when it last came to have a free slot
	gone      bool
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
	if p.busy == p.limit-1 {
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
	if p.busy >= p.limit || p.gone {
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

// comeAndGo is called when the first activator hears that the pod left, and when the last one hears
// that it is back.
func (p *modelPod) comeAndGo(gone bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.gone = gone
	p.idleSince = time.Now() // nobody could know before
}

// model is one run: activators in front of pods that take limit requests each, all of about the
// same length.
type model struct {
	activators, pods, limit int
	service                 time.Duration
	untold                  bool // the pods' word of a free slot gets lost
	changing                bool // one pod after the other leaves for a while
	seed                    uint64
}

// With M activators and N pods of some slots each, no request waits longer than 20 ms while a ready
// pod has a free slot, whatever the other activators do, also while pods come and go; and every
// activator gets its share.
func TestNoRequestWaitsWhileAPodHasAFreeSlot(t *testing.T) {
	for activators := 1; activators <= 5; activators++ {
		for _, m := range []model{
			{pods: 1, limit: 1, service: 60 * time.Millisecond},
			{pods: 2, limit: 1, service: 4 * time.Millisecond},
			{pods: 5, limit: 1, service: 60 * time.Millisecond},
			{pods: 25, limit: 1, service: 4 * time.Millisecond},
			{pods: 1, limit: 10, service: 20 * time.Millisecond},
			{pods: 2, limit: 1, service: 60 * time.Millisecond, changing: true},
			{pods: 5, limit: 1, service: 20 * time.Millisecond, changing: true},
			{pods: 5, limit: 3, service: 20 * time.Millisecond, changing: true},
			{pods: 5, limit: 10, service: 20 * time.Millisecond, changing: true},
		} {
			m.activators = activators
			synctest.Test(t, func(t *testing.T) { m.run(t, 20*time.Millisecond) })
		}
	}
}

// When the word of a free slot is lost, trying again finds it.
func TestAFewPodsAreFoundEvenWhenTheirWordIsLost(t *testing.T) {
	for _, pods := range []int{1, 2, 8} {
		m := model{activators: 3, pods: pods, limit: 1, service: 40 * time.Millisecond, untold: true}
		synctest.Test(t, func(t *testing.T) { m.run(t, 30*time.Millisecond) })
	}
}

func (m model) run(t *testing.T, bound time.Duration) {
	random := rand.New(rand.NewPCG(m.seed, uint64(m.activators*100+m.pods+m.limit*1000)))
	began := time.Now()
	queues := map[string]*Queue{}
	names := []string{"a", "b", "c", "d", "e"}[:m.activators]
	pods := map[netip.AddrPort]*modelPod{}
	var listed []int
	for i := range m.pods {
		p := &modelPod{limit: m.limit, idleSince: began, turns: turns.Turns{Keep: wire.TurnMilliseconds * time.Millisecond}}
		address := backend(i).Address
		if !m.untold {
			p.tell = func(activator string) bool { return queues[activator].SlotFree(address) }
		}
		pods[address] = p
		listed = append(listed, i)
	}
	for _, name := range names {
		queues[name] = newQueue(m.limit, listed...)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := map[string]int{}
	var counts sync.Mutex
	var group sync.WaitGroup
	one := func(name string, takes time.Duration) {
		ticket := &Ticket{}
		for {
			slot, err := queues[name].Acquire(t.Context(), ticket)
			if err != nil {
				t.Error(err)
				return
			}
			if pods[slot.Address()].request(name, takes) {
				slot.Release(true)
				break
			}
			slot.Refused()
		}
		counts.Lock()
		defer counts.Unlock()
		served[name]++
	}
	// Load swings between half and one and a half of what the pods can do, and sometimes stops.
	for _, name := range names {
		source := rand.New(rand.NewPCG(m.seed, random.Uint64()))
		group.Go(func() {
			gap := float64(m.service) * float64(m.activators) / float64(m.pods*m.limit)
			for ctx.Err() == nil {
				factor := []float64{0.5, 1.5, 1.0}[source.IntN(3)]
				for range 10 {
					time.Sleep(time.Duration(source.ExpFloat64() * gap / factor))
					takes := time.Duration(float64(m.service) * (0.5 + source.Float64()))
					if source.IntN(20) == 0 {
						takes *= 10
					}
					group.Go(func() { one(name, takes) })
				}
				if source.IntN(5) == 0 {
					time.Sleep(5 * m.service)
				}
			}
		})
	}
	if m.changing {
		source := rand.New(rand.NewPCG(m.seed, random.Uint64()))
		// Each activator hears of it on its own.
		hear := func(listed []int) {
			for _, i := range source.Perm(len(names)) {
				set(queues[names[i]], listed...)
				time.Sleep(time.Duration(source.ExpFloat64() * float64(time.Millisecond)))
			}
		}
		group.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(time.Duration(source.ExpFloat64() * 2 * float64(m.service)))
				gone := source.IntN(m.pods)
				leaves := pods[backend(gone).Address]
				leaves.comeAndGo(true)
				hear(slices.Delete(slices.Clone(listed), gone, gone+1))
				time.Sleep(time.Duration(source.ExpFloat64() * 2 * float64(m.service)))
				hear(listed)
				leaves.comeAndGo(false)
			}
		})
	}
	worst := time.Duration(0)
	for range 30 * 20 { // 30 times as long as a request takes
		time.Sleep(m.service / 20)
		now := time.Now()
		longest := time.Duration(0)
		for _, q := range queues {
			longest = max(longest, q.oldestWait(now))
		}
		for _, p := range pods {
			worst = max(worst, min(longest, p.idleFor(now)))
		}
	}
	stop()
	group.Wait()
	time.Sleep(time.Second) // the last words of a free slot
	if worst > bound {
		t.Errorf("%+v: a request waited while a pod had a free slot for %s", m, worst)
	}
	for _, name := range names {
		empty(t, queues[name])
		if served[name] == 0 {
			t.Errorf("%+v: %s served nothing", m, name)
		}
	}
}
