package loop

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
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

// A few revisions share moments, so that each second wakes the shard a few times, and many do not
// fall due at once. Each is scraped once a second in either case.
func TestRevisionsShareTheMomentsAtWhichTheyAreDue(t *testing.T) {
	for _, c := range []struct{ revisions, moments, atOnce int }{{1, 1, 1}, {16, 4, 16}, {2000, 250, 100}} {
		t.Run(fmt.Sprint(c.revisions), func(t *testing.T) {
			now := time.Unix(1_000_000, 0)
			w := &world{specs: map[Key]*Spec{}, counts: map[Key]revision.Counts{}}
			var answers []func(revision.Scrape)
			scraper := scraperFunc(func(_ Key, done func(revision.Scrape)) { answers = append(answers, done) })
			e := New(Options{Shards: 1, Source: w, Pods: w, Actor: w, Scraper: scraper, Clock: func() time.Time { return now }})
			shard := e.shards[0]
			s := spec()
			s.Found = &revision.State{Desired: 1, Zero: zero.State{Active: zero.Yes, Initialized: true}}
			for i := range c.revisions {
				key := Key{Namespace: "default", Name: fmt.Sprint("r", i)}
				w.specs[key], w.counts[key] = s, revision.Counts{Ready: 1}
				e.Changed(key)
			}
			shard.changed()
			if shard.awake != c.revisions {
				t.Fatalf("%d of %d revisions are awake", shard.awake, c.revisions)
			}
			const seconds = 10
			var rings, scrapes, most int
			for began := now; now.Before(began.Add(2 * seconds * time.Second)); {
				shard.ring()
				if now.After(began.Add(seconds * time.Second)) { // by then they share
					rings, scrapes, most = rings+1, scrapes+len(answers), max(most, len(answers))
				}
				for _, done := range answers {
					done(revision.Scrape{Report: decide.Report{Concurrency: 1}})
					shard.handle(<-shard.inbox)
				}
				answers = nil
				now = shard.clock[0].m.Due()
			}
			if rings > (c.moments+1)*seconds || most > c.atOnce {
				t.Errorf("%d moments in %d s, at most %d scrapes at one", rings, seconds, most)
			}
			if want := c.revisions * seconds; scrapes < want*9/10 || scrapes > want*11/10 {
				t.Errorf("%d scrapes, want about %d", scrapes, want)
			}
			for key := range w.specs {
				w.specs[key] = nil
				e.Changed(key)
			}
			if shard.changed(); shard.awake != 0 {
				t.Errorf("%d revisions are awake after all are gone", shard.awake)
			}
		})
	}
}
