package loop

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/revision"
)

// Somebody waits where a stat was sent out of turn: it does not wait for the thousand that came
// before it, nor do those wait for ever.
func TestAStatSentOutOfTurnGoesBeforeTheOthers(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	w := &world{specs: map[Key]*Spec{}, counts: map[Key]revision.Counts{}}
	var order []time.Duration
	e := New(Options{Shards: 1, Source: w, Pods: w, Actor: w, Clock: func() time.Time { return now }, Observe: func(d time.Duration) { order = append(order, d) }})
	shard := e.shards[0]
	sample := func(name string, age time.Duration) Sample {
		return Sample{Key: Key{Namespace: "default", Name: name}, Arrived: now.Add(-age), Sample: revision.Sample{Reporter: "a", Report: decide.Report{Concurrency: 1}}}
	}
	w.specs[hello] = atZero()
	e.Changed(hello)
	var many []Sample
	for i := range 20 * priorityEvery {
		one := sample(fmt.Sprint("other-", i), time.Second)
		w.specs[one.Key], w.counts[one.Key] = spec(), revision.Counts{Ready: 1}
		e.Changed(one.Key)
		many = append(many, one)
	}
	shard.changed()
	waiting := sample(hello.Name, time.Hour)
	waiting.Report.Queued, waiting.OutOfTurn = 1, true
	if err := e.Report(append(many, waiting)); err != nil {
		t.Fatal(err)
	}
	shard.handle(<-shard.inbox)
	if at := slices.Index(order, time.Hour); at != 0 || len(order) != len(many)+1 {
		t.Errorf("it was decided on as number %d of %d", at, len(order))
	}
	if got := w.written(); !slices.Equal(got, []int32{1}) {
		t.Errorf("written %v for who waits", got)
	}

	// It comes while the others are at work, and comes again and again.
	order = nil
	shard.engine.options.Observe = func(d time.Duration) {
		order = append(order, d)
		if len(order) == priorityEvery/2 {
			for range 2 * inboxDrained {
				if err := e.Report([]Sample{waiting}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	shard.report(many, now)
	if at := slices.Index(order, time.Hour); at != priorityEvery {
		t.Errorf("it was decided on as number %d, want %d", at, priorityEvery)
	}
	if next := order[priorityEvery+inboxDrained]; next != time.Second {
		t.Error("nobody else's turn comes while it presses")
	}
	if len(order) != len(many)+2*inboxDrained {
		t.Errorf("%d decisions", len(order))
	}
}
