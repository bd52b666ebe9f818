package loop

import (
	"container/heap"
	"context"
	"hash/maphash"
	"sync"
	"time"
	"unique"

	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
)

// event is one event for a shard. Exactly one field is set.
type event struct {
	samples  []Sample
	scrape   *scrapeDone
	probe    *probeDone
	imported *imported
	found    *found
	reached  chan struct{} // closed when all changes announced before are handled
}

// found is the scale of a revision that differs from the one that an order was decided on.
type found struct {
	key      Key
	uid      types.UID
	replicas int32
}

type scrapeDone struct {
	member  *member
	result  revision.Scrape
	arrived time.Time
}

type probeDone struct {
	member *member
	epoch  int
	answer zero.Probe
}

// member is one revision of a shard. Only the shard's goroutine touches it, except for view.
type member struct {
	key  Key
	spec *Spec
	*revision.Revision
	// heapIndex is the place in the shard's heap, -1 once the revision was dropped.
	heapIndex int
	awake     bool // counted in the shard's awake
	view      view
}

// view is the part that readers outside the shard may see.
type view struct {
	mutex   sync.Mutex
	history history
	// status is that of the last decision; most revisions at zero have the same.
	status unique.Handle[revision.Status]
	counts *revision.Counts // never nil, and never written to
}

// shard runs the revisions whose keys hash to it, on one goroutine.
type shard struct {
	engine *Engine
	inbox  chan event
	// priority holds samples sent out of turn. They are handled first, because requests are queued.
	priority chan event
	draining bool // priority is being drained

	// dirty holds the keys whose PodAutoscaler or pods changed. Unlike a channel it never blocks
	// the callback of an informer. It is at most as long as the list of revisions.
	dirtyMutex sync.Mutex
	dirty      map[Key]struct{}
	news       chan struct{}

	// index is changed by the shard's goroutine alone, under mutex. Others read it under mutex.
	mutex sync.Mutex
	index map[Key]*member

	clock dueHeap
	awake int // how many revisions are awake
	left  left
	// given is when to look again at revisions that another autoscaler scales and whose pods sleep.
	given map[Key]time.Time
	// stopped is closed when the inbox is no longer read.
	stopped chan struct{}
}

func newShard(e *Engine) *shard {
	return &shard{engine: e, inbox: make(chan event, inboxLength), priority: make(chan event, inboxLength), dirty: map[Key]struct{}{},
		news: make(chan struct{}, 1), index: map[Key]*member{}, given: map[Key]time.Time{}, stopped: make(chan struct{})}
}

func put(inbox chan<- event, e event) error {
	select {
	case inbox <- e:
		return nil
	default:
		return ErrBusy
	}
}

// answer queues the result of something that the shard asked for. Unlike put it waits for room.
func (s *shard) answer(e event) {
	select {
	case s.inbox <- e:
	case <-s.stopped:
	}
}

func (s *shard) touch(key Key) {
	s.dirtyMutex.Lock()
	s.dirty[key] = struct{}{}
	s.dirtyMutex.Unlock()
	select {
	case s.news <- struct{}{}:
	default:
	}
}

func (s *shard) run(ctx context.Context) {
	defer close(s.stopped)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := s.engine.options.Clock()
		if len(s.clock) > 0 {
			timer.Reset(max(s.clock[0].m.Due().Sub(now), 0))
		} else {
			timer.Reset(time.Hour)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.news:
			s.changed()
		case e := <-s.priority:
			s.handle(e)
			s.drainPriority()
		case e := <-s.inbox:
			s.handle(e)
			s.drain()
		case <-timer.C:
			s.ring()
		}
	}
}

// drainPriority handles a bounded number of priority samples. Handling a batch looks for priority
// samples, too, which must not recurse.
func (s *shard) drainPriority() {
	if s.draining {
		return
	}
	s.draining = true
	defer func() { s.draining = false }()
	s.drainFrom(s.priority)
}

// drain handles a bounded number of events, so that the clocks are not neglected.
func (s *shard) drain() { s.drainFrom(s.inbox) }

func (s *shard) drainFrom(from <-chan event) {
	for range inboxDrained {
		select {
		case e := <-from:
			s.handle(e)
		default:
			return
		}
	}
}

// together is the time difference within which revisions are served at once, so that ten thousand
// revisions do not wake the process ten thousand times.
const together = 5 * time.Millisecond

// perMoment is how many revisions of a shard share a moment at which they are due, fewestMoments
// how many of those a second has at least.
const (
	perMoment     = 4
	fewestMoments = 4
)

// slot is how far apart the moments are at which so many revisions are due. To wake for one scrape
// costs ten times as much CPU as the scrape: a few revisions do not wake the process for each, and
// many do not fall due at once.
func slot(awake int) time.Duration {
	moments := time.Duration(fewestMoments)
	for moments*perMoment < time.Duration(awake) && revision.ScrapePeriod/moments > together {
		moments *= 2
	}
	return revision.ScrapePeriod / moments
}

// ring serves every revision that is due now or within together.
func (s *shard) ring() {
	now := s.engine.options.Clock()
	soon := now.Add(together)
	slot := slot(s.awake)
	for len(s.clock) > 0 && s.clock[0].m.DueWith(now, soon) {
		m := s.clock[0].m
		m.Share(slot)
		scrape, decide := m.Ring(now, soon)
		if scrape {
			s.scrape(m)
		}
		if decide {
			s.decide(m, now, false)
		}
		s.reschedule(m, now)
	}
}

// changed handles new PodAutoscalers and pod counts.
func (s *shard) changed() {
	s.dirtyMutex.Lock()
	keys := s.dirty
	s.dirty = make(map[Key]struct{})
	s.dirtyMutex.Unlock()
	now := s.engine.options.Clock()
	for key := range keys {
		spec := s.engine.options.Source.Spec(key)
		m := s.index[key]
		if spec == nil {
			if m != nil {
				s.left.put(key, m.Export(now))
				s.drop(m)
			}
			s.release(key, now)
			continue
		}
		if m != nil && m.spec.UID != spec.UID {
			s.drop(m) // deleted and created again under the same name
			m = nil
		}
		counts := s.engine.options.Pods.Count(key)
		if m == nil {
			m = s.adopt(key, spec, counts, now)
		} else {
			s.mutex.Lock()
			m.spec = spec.adopted()
			s.mutex.Unlock()
			m.Update(&m.spec.Config)
			m.SetCounts(counts)
		}
		// A lower bound or a ready pod takes effect at once. Otherwise this decision only raises.
		s.decide(m, now, true)
		s.reschedule(m, now)
	}
}

// adopt starts deciding for a revision, from what its status says.
func (s *shard) adopt(key Key, spec *Spec, counts revision.Counts, now time.Time) *member {
	m := &member{key: key, spec: spec.adopted()}
	m.Revision = revision.New(&m.spec.Config, counts, now)
	m.view.counts = m.Counts()
	if !m.Import(*spec.Found, 0, now) {
		s.engine.refuse(InvalidState)
		if log := s.engine.options.Log; log != nil {
			log.Warn("ignoring the learned target in the status: it is invalid or too old", "revision", key.String(), "learned", spec.Found.Learned)
		}
	}
	// Spread the scrapes of revisions adopted together over the period.
	m.StartScrapesAt(now.Add(time.Duration(maphash.Comparable(s.engine.seed, key) % uint64(revision.ScrapePeriod))))
	s.mutex.Lock()
	s.index[key] = m
	s.mutex.Unlock()
	heap.Push(&s.clock, dueEntry{m.Due().UnixNano(), m})
	return m
}

func (s *shard) drop(m *member) {
	s.mutex.Lock()
	delete(s.index, m.key)
	s.mutex.Unlock()
	heap.Remove(&s.clock, m.heapIndex)
	m.heapIndex = -1
	if m.awake {
		s.awake--
	}
	if budget := s.engine.options.Budget; budget != nil {
		budget.Memory.Leave(m.key.String())
	}
}

func (s *shard) handle(e event) {
	now := s.engine.options.Clock()
	switch {
	case e.samples != nil:
		s.report(e.samples, now)
	case e.scrape != nil:
		if m := e.scrape.member; m.heapIndex >= 0 {
			for range m.Scraped(e.scrape.result, now) {
				s.engine.refuse(WrongMetric)
			}
			s.decide(m, now, true)
			s.reschedule(m, now)
			s.observe(e.scrape.arrived)
		}
	case e.reached != nil:
		s.changed()
		close(e.reached)
	case e.imported != nil:
		if s.index[e.imported.key] == nil {
			s.changed() // that this process owns it may still be in the queue
		}
		m := s.index[e.imported.key]
		if m == nil || e.imported.state.At.IsZero() || !m.Import(e.imported.state, e.imported.behind, now) {
			s.engine.refuse(InvalidState)
			return
		}
		s.decide(m, now, true)
		s.reschedule(m, now)
	case e.found != nil:
		if m := s.index[e.found.key]; m != nil && m.spec.UID == string(e.found.uid) {
			m.Found(e.found.replicas)
			s.decide(m, now, true)
			s.reschedule(m, now)
		}
	case e.probe != nil:
		if m := e.probe.member; m.Probed(e.probe.answer, e.probe.epoch) && m.heapIndex >= 0 {
			s.decide(m, now, false)
			s.reschedule(m, now)
		}
	}
}

func (s *shard) report(samples []Sample, now time.Time) {
	for i := range samples {
		if i%priorityEvery == 0 {
			s.drainPriority()
		}
		sample := &samples[i]
		m := s.index[sample.Key]
		if m == nil {
			if elsewhere := s.engine.options.Elsewhere; elsewhere == nil || !elsewhere(sample.Key) {
				s.engine.refuse(UnknownKey)
			}
			continue
		}
		if refusal := m.Record(sample.Sample, now); refusal != revision.Accepted {
			s.engine.refuse(refusal)
			continue
		}
		// Reports of one revision that arrived together make one decision.
		if i+1 < len(samples) && samples[i+1].Key == sample.Key {
			continue
		}
		s.decide(m, now, true)
		s.reschedule(m, now)
		s.observe(sample.Arrived)
	}
}

// observe reports how long ago the data of the latest decision arrived.
func (s *shard) observe(arrived time.Time) {
	if s.engine.options.Observe != nil && !arrived.IsZero() {
		s.engine.options.Observe(s.engine.options.Clock().Sub(arrived))
	}
}

// decide makes a decision and passes on what follows from it.
func (s *shard) decide(m *member, now time.Time, between bool) {
	out := m.Decide(now, between, s.engine.options.Budget)
	m.view.mutex.Lock()
	if m.view.history.latest() == nil || m.view.status.Value() != out.Status {
		m.view.status = unique.Make(out.Status)
	}
	m.view.history.add(out.Explanation)
	m.view.counts = m.Counts()
	m.view.mutex.Unlock()
	if out.Changed {
		s.engine.options.Actor.Act(Order{Key: m.key, UID: types.UID(m.spec.UID), Target: m.spec.Target, Outcome: out, Since: now})
	}
	if t := s.engine.options.Tender; t != nil && (out.PodOrders.Wake > 0 || out.PodOrders.Sleep > 0 || out.PodOrders.Look || out.PodOrders.Grow) {
		t.Tend(m.key, out.PodOrders, out.Reason)
	}
	if out.Probe {
		s.probe(m, out.Epoch)
	}
}

func (s *shard) probe(m *member, epoch int) {
	if s.engine.options.Prober == nil {
		return
	}
	s.engine.options.Prober.Probe(m.key, m.spec.H2C, func(answer zero.Probe) {
		s.answer(event{probe: &probeDone{member: m, epoch: epoch, answer: answer}})
	})
}

func (s *shard) scrape(m *member) {
	if s.engine.options.Scraper == nil {
		m.Scraped(revision.Scrape{Failed: true}, s.engine.options.Clock())
		return
	}
	s.engine.options.Scraper.Scrape(m.key, m.spec.Formula.StableWindow, func(result revision.Scrape) {
		s.answer(event{scrape: &scrapeDone{member: m, result: result, arrived: s.engine.options.Clock()}})
	})
}

func (s *shard) reschedule(m *member, now time.Time) {
	if m.heapIndex < 0 {
		return
	}
	if m.Rest(now) {
		m.view.mutex.Lock()
		m.view.history.share(&s.engine.equal)
		m.view.mutex.Unlock()
	}
	if awake := m.Awake(); awake != m.awake {
		if m.awake = awake; awake {
			s.awake++
		} else {
			s.awake--
		}
	}
	// Most stats do not change when the revision is due.
	if at := m.Due().UnixNano(); at != s.clock[m.heapIndex].at {
		s.clock[m.heapIndex].at = at
		heap.Fix(&s.clock, m.heapIndex)
	}
}
