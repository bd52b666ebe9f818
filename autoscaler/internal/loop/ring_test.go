package loop

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/revision"
)

// Revisions that are due within a few milliseconds are served together, each once, and those after
// them when they are due.
func TestWhatIsDueTogetherIsServedTogether(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	w := &world{specs: map[Key]*Spec{}, counts: map[Key]revision.Counts{}}
	served := map[string]int{}
	var answers []func(revision.Scrape)
	scraper := scraperFunc(func(k Key, done func(revision.Scrape)) { served[k.Name]++; answers = append(answers, done) })
	e := New(Options{Shards: 1, Source: w, Pods: w, Actor: w, Scraper: scraper, Clock: func() time.Time { return now }})
	shard := e.shards[0]
	for i := range 4 {
		key := Key{Namespace: "default", Name: fmt.Sprint("r", i)}
		w.specs[key], w.counts[key] = spec(), revision.Counts{Ready: 1}
		e.Changed(key)
	}
	shard.changed()
	began := now
	for i := range 4 {
		m := shard.index[Key{Namespace: "default", Name: fmt.Sprint("r", i)}]
		m.StartScrapesAt(now.Add(revision.ScrapePeriod + time.Duration(i)*3*time.Millisecond)) // after 0, 3, 6 and 9 ms
		shard.reschedule(m, now)
	}
	shard.ring() // the first ticks
	for _, c := range []struct {
		after time.Duration
		want  []string
	}{
		{revision.ScrapePeriod, []string{"r0", "r1"}},
		{revision.ScrapePeriod + 6*time.Millisecond, []string{"r2", "r3"}},
		{2*revision.ScrapePeriod + 10*time.Millisecond, []string{"r0", "r1", "r2", "r3"}},
	} {
		for _, done := range answers {
			done(revision.Scrape{Failed: true})
			shard.handle(<-shard.inbox)
		}
		answers = nil
		clear(served)
		now = began.Add(c.after)
		shard.ring()
		var got []string
		for name, n := range served {
			if got = append(got, name); n != 1 {
				t.Errorf("after %s: %s was served %d times", c.after, name, n)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("after %s: served %v, want %v", c.after, got, c.want)
		}
		if due := shard.clock[0].m.Due(); due.Before(now) {
			t.Errorf("after %s: the clock rings again %s ago", c.after, now.Sub(due))
		}
	}
}

type scraperFunc func(Key, func(revision.Scrape))

func (f scraperFunc) Scrape(k Key, _ time.Duration, done func(revision.Scrape)) { f(k, done) }
