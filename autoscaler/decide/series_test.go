package decide

import (
	"math/rand"
	"reflect"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/window"
)

// A load's average does not depend on when, within a second, its reports arrive.
func TestReportsThatComeLateOrEarly(t *testing.T) {
	type report struct {
		at       int // milliseconds
		reporter string
		load     float64
	}
	for _, c := range []struct {
		behaviour     string
		reports       []report
		stable, panic float64
	}{
		{"one that comes late and the next that comes early are not summed",
			[]report{{900, "a", 10}, {2050, "a", 10}, {2950, "a", 10}}, 10, 10},
		{"the later one of a second counts",
			[]report{{1050, "a", 100}, {1950, "a", 10}}, 10, 10},
		{"two reporters in one second are summed",
			[]report{{1050, "a", 10}, {1060, "b", 5}}, 15, 15},
		{"two reporters that both report twice in one second are summed once",
			[]report{{1050, "a", 7}, {1060, "b", 50}, {1900, "a", 10}, {1910, "b", 5}}, 15, 15},
		{"the scrape and an activator are two reporters",
			[]report{{1050, ScrapeReporter, 10}, {1060, "a", 5}, {1900, ScrapeReporter, 20}}, 25, 25},
		{"a second that fell between two reports was no pause",
			[]report{{990, "a", 10}, {2010, "a", 10}, {2990, "a", 10}, {4010, "a", 10}}, 10, 10},
		{"of a skipped second the lesser load is known",
			[]report{{900, "a", 10}, {2100, "a", 40}}, 20, 25},
		{"a reporter that had become idle had no load while it was silent",
			[]report{{900, "a", 0}, {2900, "a", 30}}, 10, 15},
		// An activator that becomes idle says so: one that did not was cut off, and its load is
		// unknown.
		{"who is silent without having said that it has no load had one that is missing",
			[]report{{900, "a", 10}, {3900, "a", 30}}, 20, 30},
		{"who said that it had no load had none while it was silent",
			[]report{{900, "a", 10}, {1900, "a", 0}, {3900, "a", 30}}, 10, 15},
		{"a report after a long pause starts afresh",
			[]report{{500, "a", 10}, {90_500, "a", 30}}, 30, 30},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			s := NewSeries(time.Minute, 2*time.Second)
			var now time.Time
			for _, r := range c.reports {
				now = time.UnixMilli(1_000_000_000 + int64(r.at))
				if !s.Add(now, r.reporter, Report{Concurrency: r.load, RequestsPerSecond: 2 * r.load}) {
					t.Fatalf("%+v is refused", r)
				}
			}
			for _, metric := range []Metric{Concurrency, RequestsPerSecond} {
				times := 1.0
				if metric == RequestsPerSecond {
					times = 2
				}
				o := s.Observe(now, metric, window.Linear, 1, true)
				if o.Stable != times*c.stable || o.Panic != times*c.panic {
					t.Errorf("metric %v: stable %v and panic %v, want %v and %v", metric, o.Stable, o.Panic, times*c.stable, times*c.panic)
				}
			}
		})
	}
}

// Whether the newest load is a second's average or that of a moment is known, so that a decision
// can say it.
func TestALoadSentOutOfTurnIsMarked(t *testing.T) {
	type report struct {
		reporter string
		load     float64
		turn     bool // regular, in its turn
		onePod   bool
	}
	for _, c := range []struct {
		behaviour string
		reports   []report
		pushed    bool
	}{
		{"a regular report is an average", []report{{"a", 10, true, false}}, false},
		{"a press is of a moment", []report{{"a", 10, false, false}}, true},
		{"a press after a regular report", []report{{"a", 10, true, false}, {"a", 40, false, false}}, true},
		{"a regular report after a press", []report{{"a", 40, false, false}, {"a", 10, true, false}}, false},
		{"one of two", []report{{"a", 10, true, false}, {"b", 40, false, false}}, true},
		{"a press without load counts for nothing", []report{{"a", 10, true, false}, {"b", 0, false, false}}, false},
		{"a pod's press that the scrape has overtaken", []report{{"pod", 10, false, true}, {ScrapeReporter, 40, true, false}}, false},
		{"a pod's press beyond the scrape", []report{{ScrapeReporter, 10, true, false}, {"pod", 40, false, true}}, true},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			s := NewSeries(time.Minute, 6*time.Second)
			now := time.UnixMilli(1_000_000_000)
			for i, r := range c.reports {
				now = now.Add(time.Duration(i) * 10 * time.Millisecond)
				record := s.Press
				if r.turn {
					record = s.Add
				}
				if !record(now, r.reporter, Report{Concurrency: r.load, OnePod: r.onePod}) {
					t.Fatalf("%+v is refused", r)
				}
			}
			if got := s.Observe(now, Concurrency, window.Linear, 1, true).Pushed; got != c.pushed {
				t.Errorf("got %v", got)
			}
		})
	}
}

// A report that was sent out of turn in between does not make the windows forget what they hold.
func TestPressKeepsWhatARegularReportCounted(t *testing.T) {
	s := NewSeries(time.Minute, 6*time.Second)
	at := func(ms int64) time.Time { return time.UnixMilli(1_000_000_000 + ms) }
	s.Add(at(50), "a", Report{Concurrency: 10})
	s.Press(at(300), "a", Report{Concurrency: 80, Queued: 70})
	s.Add(at(950), "a", Report{Concurrency: 20})
	if o := s.Observe(at(950), Concurrency, window.Linear, 1, true); o.Stable != 20 || o.Panic != 20 {
		t.Errorf("stable %v, panic %v, want 20", o.Stable, o.Panic)
	}
}

// Whatever the jitter around the turn of the second, the average of a constant load is that load.
func TestJitterDoesNotMoveTheAverage(t *testing.T) {
	for seed := range int64(200) {
		random := rand.New(rand.NewSource(seed))
		s := NewSeries(20*time.Second, 3*time.Second)
		begin := time.UnixMilli(1_000_000_000)
		for period := range 60 {
			now := begin.Add(time.Duration(period)*time.Second + time.Duration(random.Intn(900)-450)*time.Millisecond)
			s.Add(now, "a", Report{Concurrency: 4})
			if o := s.Observe(now, Concurrency, window.Linear, 1, true); o.Stable != 4 || o.Panic != 4 {
				t.Fatalf("seed %d, period %d: stable %v, panic %v, want 4", seed, period, o.Stable, o.Panic)
			}
		}
	}
}

func TestARequestInFlightIsSeenWhereTheScaleFollowsRates(t *testing.T) {
	s, now := NewSeries(time.Minute, 6*time.Second), epoch
	for range 60 {
		now = now.Add(time.Second)
		s.Add(now, ScrapeReporter, Report{Concurrency: 1})
	}
	o := s.Observe(now, RequestsPerSecond, window.Linear, 1, true)
	d, _ := Decide(defaults(), Start(defaults(), 1, NoDecision, now), o, now)
	if o.Stable != 0 || o.InFlight != 1 || d.Desired != 1 || d.Rule != RuleInFlight {
		t.Errorf("%+v, %+v, want one request in flight and the last pod kept", o, d)
	}
	for range 61 {
		now = now.Add(time.Second)
		s.Add(now, ScrapeReporter, Report{})
	}
	if d, _ = Decide(defaults(), Start(defaults(), 1, NoDecision, now), s.Observe(now, RequestsPerSecond, window.Linear, 1, true), now); d.Desired != 0 {
		t.Errorf("a window after its end: %+v", d)
	}
}

// While all seconds but the last ones are missing, one in which an activator has not reported yet
// counts for much. Whenever the scale is decided, a constant load is constant.
func TestASecondThatIsNotOverLowersNothingAfterASilence(t *testing.T) {
	s := NewSeries(time.Minute, 6*time.Second)
	now, seen := time.Unix(10_000, 0), false // a window
	look := func(who string) {
		o := s.Observe(now, Concurrency, window.Linear, 6, false)
		if seen && !o.Missing && o.Stable < 35.9-20.9/60 {
			t.Fatalf("%s, after the report of %s: %v", now.UTC().Format("04:05"), who, o.Stable)
		}
	}
	run := func(seconds int, first bool) {
		for range seconds {
			if first {
				s.Add(now, "first", Report{Concurrency: 20.9})
				look("first")
			}
			s.Add(now, "second", Report{Concurrency: 15})
			look("second")
			now = now.Add(time.Second)
		}
	}
	run(70, true)
	seen = true
	for _, seconds := range []int{3, 10, 30, 59} {
		run(seconds, false)
		run(70, true)
	}
}

// What was ever written, and whether the last scrape failed, is all that is left of a Series of
// which nothing counts any more. Pods that are ready again before the first scrape have a load that
// is known only if one was known before.
func TestWhatIsLeftOfASeriesReadsAsTheSeries(t *testing.T) {
	const stable, panicking = time.Minute, 6 * time.Second
	now := time.Unix(10_000, 0)
	for name, c := range map[string]struct {
		before         func(*Series)
		known, missing bool
	}{
		"nothing":                 {func(*Series) {}, false, false},
		"an activator":            {func(s *Series) { s.Add(now, "a", Report{Concurrency: 1}); s.Add(now, "a", Report{}) }, true, false},
		"a scrape":                {func(s *Series) { s.Add(now, ScrapeReporter, Report{Concurrency: 1}) }, true, false},
		"a scrape that failed":    {func(s *Series) { s.Miss(now) }, true, true},
		"one that failed at last": {func(s *Series) { s.Add(now, ScrapeReporter, Report{}); s.Miss(now.Add(time.Second)) }, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewSeries(stable, panicking)
			c.before(s)
			later := now.Add(2 * stable)
			left, ok := s.Idle(later)
			if !ok {
				t.Fatal("something counts for ever")
			}
			again := left.Again(stable, panicking)
			if once, ok := again.Idle(later); !ok || once != left {
				t.Errorf("of that %+v is left, of the first %+v", once, left)
			}
			again.Resize(2*stable, panicking)
			for _, metric := range []Metric{Concurrency, RequestsPerSecond} {
				want := s.Observe(later, metric, window.Linear, 1, true)
				if got := again.Observe(later, metric, window.Linear, 1, true); !reflect.DeepEqual(got, want) {
					t.Errorf("by metric %v\n%+v, not\n%+v", metric, got, want)
				}
				if want.Known != c.known || want.Missing != c.missing {
					t.Errorf("by metric %v known: %v, missing: %v", metric, want.Known, want.Missing)
				}
			}
		})
	}
}
