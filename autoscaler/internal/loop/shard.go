package loop

import (
	"container/heap"
	"context"
	"hash/maphash"
	"sync"
	"time"

	"ebb.dev/ebb/autoscaler/zero"
)

// event is one piece of news for a shard; exactly one field is set.
type event struct {
	samples []Sample
	scrape  *scrapeDone
	probe   *probeDone
	handed  *takeOver
	reached chan struct{} // closed when what Changed told before is taken in
}

type scrapeDone struct {
	revision *revision
	result   Scrape
	arrived  time.Time
}

type probeDone struct {
	revision *revision
	epoch    int
	answer   zero.Probe
}

type shard struct {
	engine *Engine
	inbox  chan event
	// pressing holds samples sent out of turn, which go before all others: somebody waits.
	pressing chan event
	pressed  bool // they are being taken in

	// dirty holds the keys whose PodAutoscaler or pods changed; it grows with the number of
	// revisions at most, so that an informer's callback never waits.
	dirtyMutex sync.Mutex
	dirty      map[Key]struct{}
	news       chan struct{}

	// index is changed by the shard's goroutine alone, under mutex; others read it under mutex.
	mutex sync.Mutex
	index map[Key]*revision

	clock dueHeap
	// left are revisions that this shard gave up a moment ago.
	left left
	// stopped is closed when nobody reads the inbox any more.
	stopped chan struct{}
}

func newShard(e *Engine) *shard {
	return &shard{engine: e, inbox: make(chan event, inboxLength), pressing: make(chan event, inboxLength), dirty: map[Key]struct{}{},
		news: make(chan struct{}, 1), index: map[Key]*revision{}, stopped: make(chan struct{})}
}

func put(inbox chan<- event, e event) error {
	select {
	case inbox <- e:
		return nil
	default:
		return ErrBusy
	}
}

// answer brings the outcome of something the shard asked for; unlike put it waits for room.
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
			timer.Reset(max(s.clock[0].r.due().Sub(now), 0))
		} else {
			timer.Reset(time.Hour)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.news:
			s.changed()
		case e := <-s.pressing:
			s.handle(e)
			s.press()
		case e := <-s.inbox:
			s.handle(e)
			s.drain()
		case <-timer.C:
			s.ring()
		}
	}
}

// press takes in what was sent out of turn, with an end. While it does, it need not be asked again.
func (s *shard) press() {
	if s.pressed {
		return
	}
	s.pressed = true
	defer func() { s.pressed = false }()
	for range inboxDrained {
		select {
		case e := <-s.pressing:
			s.handle(e)
		default:
			return
		}
	}
}

// drain takes in what is there, with an end: what is due waits meanwhile.
func (s *shard) drain() {
	for range inboxDrained {
		select {
		case e := <-s.inbox:
			s.handle(e)
		default:
			return
		}
	}
}

// together is what is served of what is not due yet, so that ten thousand revisions do not wake the process for each.
const together = 5 * time.Millisecond

// ring serves every revision whose clock is due, and those due so soon that they would ring at once again. A step has a moment of its own,
// before which there is nothing to be done.
func (s *shard) ring() {
	now := s.engine.options.Clock()
	soon := now.Add(together)
	for len(s.clock) > 0 {
		r := s.clock[0].r
		if due := r.due(); due.After(soon) || due.After(now) && due.Equal(r.stepAt) {
			return
		}
		if !r.scrapeAt.IsZero() && !r.scrapeAt.After(soon) {
			s.scrape(r, now)
		}
		if tick := !r.tickAt.After(soon); tick || !r.stepAt.IsZero() && !r.stepAt.After(now) {
			if tick {
				r.tickAt = now.Add(TickPeriod)
			}
			s.decide(r, now, false)
		}
		s.reschedule(r, now)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// changed takes in new PodAutoscalers and pod counts.
func (s *shard) changed() {
	s.dirtyMutex.Lock()
	keys := s.dirty
	s.dirty = make(map[Key]struct{})
	s.dirtyMutex.Unlock()
	now := s.engine.options.Clock()
	for key := range keys {
		spec := s.engine.options.Source.Spec(key)
		r := s.index[key]
		switch {
		case spec == nil:
			if r != nil {
				s.left.put(r.handOver(now), now)
				s.drop(r)
			}
			continue
		case r != nil && r.spec.UID != spec.UID:
			s.drop(r) // deleted and made anew under the same name
			r = nil
		}
		counts := s.engine.options.Pods.Count(key)
		if r == nil {
			r = adopt(key, spec, counts, now)
			if !r.recollect(now) {
				s.engine.refuse(StrangeMemory)
				if log := s.engine.options.Log; log != nil {
					log.Warn("what the status says was learned makes no sense, or is too old, and is ignored", "revision", key.String(), "learned", spec.Found.Learned)
				}
			}
			// Spread over the period what was adopted all at once.
			r.scrapeAt = now.Add(time.Duration(maphash.Comparable(s.engine.seed, key) % uint64(ScrapePeriod)))
			s.mutex.Lock()
			s.index[key] = r
			s.mutex.Unlock()
			heap.Push(&s.clock, dueEntry{r.due().UnixNano(), r})
		} else {
			s.mutex.Lock()
			r.update(spec)
			s.mutex.Unlock()
			r.counts = counts
		}
		// A bound that was lowered, or a pod that became ready, takes effect at once; the load
		// that was decided on is not decided anew, except upwards.
		s.decide(r, now, true)
		s.reschedule(r, now)
	}
}

func (s *shard) drop(r *revision) {
	s.mutex.Lock()
	delete(s.index, r.key)
	s.mutex.Unlock()
	heap.Remove(&s.clock, r.heapIndex)
	r.heapIndex = -1
}

func (s *shard) handle(e event) {
	now := s.engine.options.Clock()
	switch {
	case e.samples != nil:
		s.report(e.samples, now)
	case e.scrape != nil:
		if r := e.scrape.revision; r.heapIndex >= 0 {
			r.scraped(e.scrape.result, now)
			s.decide(r, now, true)
			s.reschedule(r, now)
			s.observe(e.scrape.arrived)
		}
	case e.reached != nil:
		s.changed()
		close(e.reached)
	case e.handed != nil:
		if s.index[e.handed.Key] == nil {
			s.changed() // the news that it is this process's may still wait
		}
		r := s.index[e.handed.Key]
		if r == nil || !r.takeOver(*e.handed, now) {
			s.engine.refuse(StrangeMemory)
			return
		}
		s.decide(r, now, true)
		s.reschedule(r, now)
	case e.probe != nil:
		r := e.probe.revision
		r.probing = false
		if r.heapIndex >= 0 && r.epoch == e.probe.epoch {
			r.probe = e.probe.answer
			s.decide(r, now, false)
			s.reschedule(r, now)
		}
	}
}

func (s *shard) report(samples []Sample, now time.Time) {
	for i := range samples {
		if i%pressEvery == 0 {
			s.press()
		}
		sample := &samples[i]
		r := s.index[sample.Key]
		if r == nil {
			if elsewhere := s.engine.options.Elsewhere; elsewhere == nil || !elsewhere(sample.Key) {
				s.engine.refuse(UnknownKey)
			}
			continue
		}
		if refusal := r.record(*sample, now); refusal != Accepted {
			s.engine.refuse(refusal)
			continue
		}
		// Reports of several reporters of one revision that arrived together make one decision.
		if i+1 < len(samples) && samples[i+1].Key == sample.Key {
			continue
		}
		s.decide(r, now, true)
		s.reschedule(r, now)
		s.observe(sample.Arrived)
	}
}

// observe tells how long ago what has just been decided on arrived.
func (s *shard) observe(arrived time.Time) {
	if s.engine.options.Observe != nil && !arrived.IsZero() {
		s.engine.options.Observe(s.engine.options.Clock().Sub(arrived))
	}
}

func (s *shard) decide(r *revision, now time.Time, between bool) {
	order, any := r.decideNow(now, between, s.engine.options.Budget)
	if any {
		s.engine.options.Actor.Act(order)
	}
	if !order.Step.Probe || r.probing || s.engine.options.Prober == nil {
		return
	}
	if r.probe == zero.ProbedOther {
		r.probe, r.probeAfter = zero.NotProbed, now.Add(zero.RetryProbe)
	}
	if now.Before(r.probeAfter) {
		r.stepAt = r.probeAfter
		return
	}
	r.probing = true
	done := &probeDone{revision: r, epoch: r.epoch}
	s.engine.options.Prober.Probe(r.key, r.spec.H2C, func(answer zero.Probe) {
		done.answer = answer
		s.answer(event{probe: done})
	})
}

func (s *shard) scrape(r *revision, now time.Time) {
	due := r.scrapeAt
	r.scrapeAt = later(due, now).Add(ScrapePeriod)
	if r.scraping || !r.spec.Scraped || s.engine.options.Scraper == nil {
		return
	}
	if r.counts.Ready == 0 {
		return
	}
	r.scraping, r.scrapeDue = true, due
	s.engine.options.Scraper.Scrape(r.key, r.spec.Decide.StableWindow, func(result Scrape) {
		s.answer(event{scrape: &scrapeDone{revision: r, result: result, arrived: s.engine.options.Clock()}})
	})
}

func (s *shard) reschedule(r *revision, now time.Time) {
	if r.heapIndex < 0 {
		return
	}
	if r.asleep(now) {
		r.forgetReporters(now) // each wake-up brings pods with new names
		r.tickAt, r.scrapeAt, r.looked = now.Add(sleepPeriod), time.Time{}, time.Time{}
	} else {
		if r.tickAt.Sub(now) > TickPeriod {
			r.tickAt = now.Add(TickPeriod)
		}
		if r.scrapeAt.IsZero() {
			r.scrapeAt = now
		}
	}
	// Most stats change nothing about it.
	if at := r.due().UnixNano(); at != s.clock[r.heapIndex].at {
		s.clock[r.heapIndex].at = at
		heap.Fix(&s.clock, r.heapIndex)
	}
}

// dueHeap orders revisions by when they are due, in Unix nanoseconds. The times lie together: with ten thousand revisions
// most of what is compared would not be in a processor's cache otherwise.
type dueHeap []dueEntry

type dueEntry struct {
	at int64
	r  *revision
}

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].r.heapIndex, h[j].r.heapIndex = i, j
}
func (h *dueHeap) Push(x any) {
	e := x.(dueEntry)
	e.r.heapIndex = len(*h)
	*h = append(*h, e)
}
func (h *dueHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = dueEntry{}
	*h = old[:len(old)-1]
	return e
}
