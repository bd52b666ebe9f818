package loop

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Revisions that are due within a few milliseconds are served together, each once, and those after them when they are due. A step has a
// moment of its own: nothing is done before it, and it does not keep the shard busy until then.
func TestWhatIsDueTogetherIsServedTogether(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	w := &world{specs: map[Key]*Spec{}, counts: map[Key]Counts{}, scrape: func() Scrape { return Scrape{Failed: true} }}
	served := map[string]int{}
	e := New(Options{Shards: 1, Source: w, Pods: w, Actor: w, Scraper: scraperFunc(func(k Key) { served[k.Name]++ }), Clock: func() time.Time { return now }})
	shard := e.shards[0]
	adopted := func(name string) *revision {
		key := Key{Namespace: "default", Name: name}
		w.specs[key], w.counts[key] = spec(), Counts{Ready: 1}
		e.Changed(key)
		shard.changed()
		r := shard.index[key]
		r.tickAt, r.stepAt = now.Add(time.Hour), time.Time{}
		return r
	}
	due := func(r *revision, scrape, step time.Duration) {
		r.scrapeAt = now.Add(scrape)
		if step > 0 {
			r.stepAt = now.Add(step)
		}
		shard.clock[r.heapIndex].at = r.due().UnixNano()
		shard.reschedule(r, now)
	}
	for i := range 4 {
		due(adopted(fmt.Sprint("r", i)), time.Duration(i)*3*time.Millisecond, 0) // after 0, 3, 6 and 9 ms
	}
	due(adopted("step"), time.Hour, together/2)
	names := func() (all []string) {
		for name, n := range served {
			if n != 1 {
				t.Errorf("%s was served %d times", name, n)
			}
			all = append(all, name)
		}
		clear(served)
		slices.Sort(all)
		return all
	}
	shard.ring()
	if got := names(); !slices.Equal(got, []string{"r0"}) {
		t.Errorf("served %v, of which what comes after the step is too much", got)
	}
	now = now.Add(together / 2)
	shard.ring()
	if got := names(); !slices.Equal(got, []string{"r1", "r2"}) {
		t.Errorf("served %v with the step", got)
	}
	if due := shard.clock[0].r.due(); due.Before(now) {
		t.Errorf("the clock rings again %s ago", now.Sub(due))
	}
	now = now.Add(time.Second)
	for _, r := range shard.index {
		r.scraping = false
	}
	shard.ring()
	if got := names(); !slices.Equal(got, []string{"r0", "r1", "r2", "r3"}) {
		t.Errorf("a second later %v", got)
	}
}

// scraperFunc is told whom to scrape, and never says what came of it.
type scraperFunc func(Key)

func (f scraperFunc) Scrape(k Key, _ time.Duration, _ func(Scrape)) { f(k) }
