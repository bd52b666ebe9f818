package loop

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/autoscaler/revision"
)

// ErrBusy says that a shard's inbox is full; the sender should try again.
var ErrBusy = errors.New("the autoscaler's inbox is full")

const (
	// inboxLength bounds the batches queued for a shard.
	inboxLength = 4096
	// inboxDrained is how many batches a shard handles before it looks at its clock.
	inboxDrained = 32
	// priorityEvery is the number of samples after which a shard looks for priority samples.
	priorityEvery = 16
)

// Options are what an Engine works with.
type Options struct {
	Shards  int
	Source  Source
	Pods    Pods
	Actor   Actor
	Scraper Scraper
	Tender  Tender
	Prober  Prober
	Budget  *revision.Budget
	Log     *slog.Logger
	// Clock is monotonic; nil stands for Monotonic().
	Clock func() time.Time
	// Elsewhere, if set, reports whether another autoscaler scales a revision that this engine does
	// not know. Stats of such a revision are not rejected as unknown.
	Elsewhere func(Key) bool
	// Given, if set, reports whether this replica would decide for a revision, but another
	// autoscaler scales it. That one knows no standby, so pods that sleep are woken. A revision
	// that this replica does not own is none of these: its pods go on sleeping.
	Given func(Key) bool
	// Observe, if set, receives the time from a sample's arrival to the decision that counts it.
	Observe func(time.Duration)
}

// Monotonic returns a clock that starts at the present wall time and ignores later changes of it.
func Monotonic() func() time.Time {
	began := time.Now()
	return func() time.Time { return began.Add(time.Since(began)) }
}

// Engine runs the revisions. Its methods may be called from any goroutine and do not block.
type Engine struct {
	options Options
	seed    maphash.Seed
	shards  []*shard
	equal   decisions
	refused [len(refusals)]atomic.Int64
}

var refusals = [...]revision.Refusal{revision.Invalid, revision.Late, revision.Duplicate, UnknownKey, revision.Crowded, InvalidState, WrongMetric}

// New returns an Engine; call Run to start it.
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

// Run runs the shards until ctx is done.
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

// Report queues samples. When an inbox is full it returns ErrBusy and has taken only some of them.
func (e *Engine) Report(samples []Sample) error {
	shards := len(e.shards)
	batches := make([][]Sample, 2*shards) // the second half has priority
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
				to = e.shards[i-shards].priority
			}
			err = errors.Join(err, put(to, event{samples: batch}))
		}
	}
	if err != nil {
		return ErrBusy
	}
	return nil
}

// Changed says that a PodAutoscaler, its ownership, the settings it is resolved with, or its pods
// changed.
func (e *Engine) Changed(key Key) { e.shard(key).touch(key) }

// Found takes the scale of a revision that differs from the one that an order was decided on. It
// waits for room in the shard's inbox.
func (e *Engine) Found(key Key, uid types.UID, replicas int32) {
	e.shard(key).answer(event{found: &found{key, uid, replicas}})
}

// Settle returns when all earlier changes are handled, when Run has ended, or after patience.
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

// Refused returns how many samples and states did not count, by reason.
func (e *Engine) Refused() map[revision.Refusal]int64 {
	counts := make(map[revision.Refusal]int64, len(refusals))
	for i, r := range refusals {
		counts[r] = e.refused[i].Load()
	}
	return counts
}

func (e *Engine) refuse(r revision.Refusal) {
	for i, one := range refusals {
		if one == r {
			e.refused[i].Add(1)
		}
	}
}

// History returns the last decisions of a revision, oldest first, or false if this process does not
// decide it.
func (e *Engine) History(key Key) ([]Entry, bool) {
	s := e.shard(key)
	s.mutex.Lock()
	m := s.index[key]
	s.mutex.Unlock()
	if m == nil {
		return nil, false
	}
	m.view.mutex.Lock()
	defer m.view.mutex.Unlock()
	return m.view.history.list(), true
}

// View is what others may see of one revision.
type View struct {
	Key    Key
	Spec   *Spec
	Status revision.Status
	Counts revision.Counts
	// Last is the newest run of decisions. Its Times is 0 before there was one.
	Last Entry
}

// Each calls visit with every revision.
func (e *Engine) Each(visit func(View)) {
	e.Some(func(Key, *Spec) bool { return true }, visit)
}

// Some calls visit with every revision that is wanted.
func (e *Engine) Some(wanted func(Key, *Spec) bool, visit func(View)) {
	for _, s := range e.shards {
		s.mutex.Lock()
		var all []*member
		var specs []*Spec
		for _, m := range s.index {
			if wanted(m.key, m.spec) {
				all = append(all, m)
				specs = append(specs, m.spec)
			}
		}
		s.mutex.Unlock()
		for i, m := range all {
			v := View{Key: m.key, Spec: specs[i]}
			m.view.mutex.Lock()
			v.Counts = *m.view.counts
			if last := m.view.history.latest(); last != nil {
				v.Status, v.Last = m.view.status.Value(), last.entry()
			}
			m.view.mutex.Unlock()
			visit(v)
		}
	}
}
