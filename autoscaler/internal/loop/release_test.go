package loop

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/autoscaler/revision"
)

// bedroom is told to wake pods, which is of no use while they are deaf.
type bedroom struct {
	*world
	mutex sync.Mutex
	deaf  atomic.Bool
	told  []revision.PodOrders
}

func (b *bedroom) Tend(key Key, s revision.PodOrders, why func() string) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.told = append(b.told, s)
	if b.deaf.Load() || why() == "" {
		return
	}
	b.world.mutex.Lock()
	defer b.world.mutex.Unlock()
	c := b.counts[key]
	c.Ready, c.Asleep = c.Ready+s.Wake, c.Asleep-s.Wake
	if s.Grow {
		c.Shrunk = 0
	}
	b.counts[key] = c
}

func (b *bedroom) took() []revision.PodOrders {
	synctest.Wait()
	b.mutex.Lock()
	defer b.mutex.Unlock()
	told := b.told
	b.told = nil
	return told
}

func TestPodsOfARevisionThatIsGivenAwayWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{specs: map[Key]*Spec{hello: nil}, counts: map[Key]revision.Counts{}, scrape: func() revision.Scrape { return revision.Scrape{} }}
		b := &bedroom{world: w}
		var given atomic.Bool
		w.engine = New(Options{Shards: 1, Source: w, Pods: w, Actor: w, Scraper: w, Prober: w, Tender: b,
			Given: func(Key) bool { return given.Load() }, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { w.engine.Run(ctx); close(done) }()
		defer func() { cancel(); <-done }()
		pods := func(c revision.Counts) {
			w.mutex.Lock()
			w.counts[hello] = c
			w.mutex.Unlock()
			w.engine.Changed(hello)
		}

		// The lease went to another replica, which lets them sleep.
		pods(revision.Counts{Asleep: 3, Lapsed: 1, Shrunk: 1})
		if told := b.took(); len(told) > 0 {
			t.Errorf("pods of another replica are told %+v", told)
		}

		given.Store(true)
		b.deaf.Store(true)
		w.engine.Changed(hello)
		if told := b.took(); len(told) != 1 || told[0].Wake != 3 || !told[0].Grow {
			t.Errorf("pods that sleep are told %+v", told)
		}
		time.Sleep(10 * releasePeriod)
		if told := b.took(); len(told) < 9 || len(told) > 11 {
			t.Errorf("pods that did not wake are told %d times", len(told))
		}
		b.deaf.Store(false)
		time.Sleep(2 * releasePeriod)
		b.took()
		pods(revision.Counts{Ready: 3, Lapsed: 1}) // after a restart nobody knows whether it sleeps
		if told := b.took(); len(told) != 1 || !told[0].Look || told[0].Wake != 0 {
			t.Errorf("a pod that may sleep is told %+v", told)
		}
		pods(revision.Counts{Ready: 4})
		time.Sleep(10 * releasePeriod)
		if told := b.took(); len(told) > 1 {
			t.Errorf("pods that are awake are told %+v", told)
		}
	})
}
