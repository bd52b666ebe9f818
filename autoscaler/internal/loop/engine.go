package loop

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// ErrBusy says that a shard's inbox is full; the sender is to try again.
var ErrBusy = errors.New("the autoscaler's inbox is full")

// inboxLength bounds the batches that wait for a shard, inboxDrained how many are taken in before its clock is looked at.
const (
	inboxLength  = 4096
	inboxDrained = 32
	// pressEvery is after how many samples it is looked whether somebody presses.
	pressEvery = 16
)

// Options are what an Engine works with.
type Options struct {
	Shards  int
	Source  Source
	Pods    Pods
	Actor   Actor
	Scraper Scraper
	Prober  Prober
	Budget  *Budget
	Log     *slog.Logger
	// Clock is monotonic; nil stands for Monotonic().
	Clock func() time.Time
	// Elsewhere, if set, says that somebody else scales a revision that this engine does not have: its stats are no mistake.
	Elsewhere func(Key) bool
	// Observe, if set, is told the time from a sample's arrival to the decision that counts it.
	Observe func(time.Duration)
}

// Monotonic returns a clock that begins at the present wall time and is not moved by later settings of it.
func Monotonic() func() time.Time {
	began := time.Now()
	return func() time.Time { return began.Add(time.Since(began)) }
}

// Engine runs the revisions. Its methods may be called from any goroutine and do not block.
type Engine struct {
	options Options
	seed    maphash.Seed
	shards  []*shard
	refused [len(refusals)]atomic.Int64
}

var refusals = [...]Refusal{Invalid, Late, Duplicate, UnknownKey, Crowded, StrangeMemory}

// New returns an Engine; Run makes it work.
func New(o Options) *Engine {
	if o.Clock == nil {
		o.Clock = Monotonic()
	}
	e := &Engine{options: o, seed: maphash.MakeSeed()}
	for range max(o.Shards, 1) {
		e.shards = append(e.shards, newShard(e))
	}
	return e
}

// Run works until ctx is done.
func (e *Engine) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, s := range e.shards {
		all.Go(func() { s.run(ctx) })
	}
	all.Wait()
	return nil
}

func (e *Engine) shard(key Key) *shard {
	if len(e.shards) == 1 {
		return e.shards[0]
	}
	return e.shards[maphash.Comparable(e.seed, key)%uint64(len(e.shards))]
}

// Report hands samples in. It returns ErrBusy, and has taken only some of them, when an inbox is full.
func (e *Engine) Report(samples []Sample) error {
	shards := len(e.shards)
	batches := make([][]Sample, 2*shards) // the second half of them presses
	expected := len(samples)/shards + len(samples)/8 + 1
	for n := range samples {
		i := 0
		if shards > 1 {
			i = int(maphash.Comparable(e.seed, samples[n].Key) % uint64(shards))
		}
		if samples[n].OutOfTurn {
			i += shards
		}
		if batches[i] == nil {
			batches[i] = make([]Sample, 0, min(expected, len(samples)-n))
		}
		batches[i] = append(batches[i], samples[n])
	}
	var err error
	for i, batch := range batches {
		if len(batch) > 0 {
			to := e.shards[i%shards].inbox
			if i >= shards {
				to = e.shards[i-shards].pressing
			}
			err = errors.Join(err, put(to, event{samples: batch}))
		}
	}
	if err != nil {
		return ErrBusy
	}
	return nil
}

// Changed says that a PodAutoscaler, its ownership, the settings it is resolved with, or its pods changed.
func (e *Engine) Changed(key Key) { e.shard(key).touch(key) }

// Settle returns when everything that Changed told is taken in, or Run has ended, or patience is at its end.
func (e *Engine) Settle(patience time.Duration) {
	end := time.NewTimer(patience)
	defer end.Stop()
	for _, s := range e.shards {
		reached := make(chan struct{})
		select {
		case s.inbox <- event{reached: reached}:
		case <-s.stopped:
			continue
		case <-end.C:
			return
		}
		select {
		case <-reached:
		case <-s.stopped:
		case <-end.C:
			return
		}
	}
}

// Refused returns how many samples did not count, by reason.
func (e *Engine) Refused() map[Refusal]int64 {
	counts := make(map[Refusal]int64, len(refusals))
	for i, r := range refusals {
		counts[r] = e.refused[i].Load()
	}
	return counts
}

func (e *Engine) refuse(r Refusal) {
	for i, one := range refusals {
		if one == r {
			e.refused[i].Add(1)
		}
	}
}

// History returns the last decisions of a revision, oldest first, or false if this process does not decide it.
func (e *Engine) History(key Key) ([]Entry, bool) {
	s := e.shard(key)
	s.mutex.Lock()
	r := s.index[key]
	s.mutex.Unlock()
	if r == nil {
		return nil, false
	}
	r.view.mutex.Lock()
	defer r.view.mutex.Unlock()
	return r.view.history.list(), true
}

// View is one revision as seen from outside.
type View struct {
	Key    Key
	Spec   *Spec
	Status Status
	Counts Counts
	// Last is the newest run of decisions; Times is 0 before there was one.
	Last Entry
}

// Each calls visit with every revision.
func (e *Engine) Each(visit func(View)) {
	for _, s := range e.shards {
		s.mutex.Lock()
		all := make([]*revision, 0, len(s.index))
		specs := make([]*Spec, 0, len(s.index))
		for _, r := range s.index {
			all = append(all, r)
			specs = append(specs, r.spec)
		}
		s.mutex.Unlock()
		for i, r := range all {
			v := View{Key: r.key, Spec: specs[i]}
			r.view.mutex.Lock()
			v.Status, v.Counts = r.view.status, r.view.counts
			if last := r.view.history.last(); last != nil {
				v.Last = *last
			}
			r.view.mutex.Unlock()
			visit(v)
		}
	}
}
