package stat

import (
	"testing"
	"time"
)

var begin = time.Unix(1000, 0)

const warmUp = 20 * time.Second

func TestGrew(t *testing.T) {
	arrive := func(l *Load, n int, proxied bool) (edges int) {
		for range n {
			l.Arrive(begin, proxied)
			if l.Grew() {
				edges++
			}
		}
		return edges
	}
	for _, c := range []struct {
		behaviour string
		run       func(*Load) int
		want      int
	}{
		{"a few requests are no burst", func(l *Load) int { return arrive(l, 4, false) }, 0},
		{"each doubling from five on is an edge", func(l *Load) int { return arrive(l, 40, false) }, 4},
		{"what an activator counts is its to report", func(l *Load) int { return arrive(l, 40, true) }, 0},
		{"what was pushed is no news", func(l *Load) int { arrive(l, 39, false); l.Now(begin, "pod", 0); return arrive(l, 38, false) }, 0},
		{"what the last period had is no news", func(l *Load) int {
			arrive(l, 20, false)
			l.Close(begin.Add(time.Second), "pod", 0)
			return arrive(l, 19, false)
		}, 0},
		{"twice what the last period had is", func(l *Load) int {
			arrive(l, 20, false)
			l.Close(begin.Add(time.Second), "pod", 0)
			return arrive(l, 20, false)
		}, 1},
		{"requests that come and go are no growth", func(l *Load) (edges int) {
			for range 100 {
				edges += arrive(l, 1, false)
				l.Leave(begin, false, false)
			}
			return edges
		}, 0},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			if got := c.run(New(begin, warmUp)); got != c.want {
				t.Errorf("%d edges, want %d", got, c.want)
			}
		})
	}
	l := New(begin, warmUp)
	if allocs := testing.AllocsPerRun(100, func() { arrive(l, 1, false) }); allocs > 0 {
		t.Errorf("a request costs %v allocations", allocs)
	}
}

// A time counts from ten seconds after the first request on: a cold pod is slow, whatever its
// program.
func TestTheTimesOfAColdPodDoNotCount(t *testing.T) {
	l := New(begin, warmUp)
	at := begin.Add(time.Hour) // the first request comes late
	ask := func(after time.Duration) uint32 {
		l.Run(at.Add(after))
		l.Judge(at.Add(after), time.Second, false, true)
		timed := uint32(0)
		for _, n := range l.Judged().Latency {
			timed += n
		}
		return timed
	}
	for _, c := range []struct {
		after time.Duration
		want  uint32
	}{{0, 0}, {warmUp - 1, 0}, {warmUp, 1}, {time.Minute, 2}} {
		if got := ask(c.after); got != c.want {
			t.Errorf("%v after the first request: %d times, want %d", c.after, got, c.want)
		}
	}
	l.Cool()
	if got := ask(2 * time.Minute); got != 2 {
		t.Errorf("after a sleep: %d times, want 2", got)
	}
	l.Judge(at.Add(time.Hour), time.Second, true, false)
	before := l.Judged()
	l.Left(at.Add(time.Hour), time.Second, true)
	l.Left(at.Add(time.Hour), time.Second, false)
	after, timed := l.Judged(), uint32(0)
	for i := range after.Latency {
		timed += after.Latency[i] - before.Latency[i]
	}
	if timed != 1 || after.Good != before.Good || after.Failed != before.Failed {
		t.Errorf("of clients that left: %+v", after)
	}
	if got := l.Judged(); got.Good != 5 || got.Failed != 1 {
		t.Errorf("counted %d good and %d failed, want 5 and 1", got.Good, got.Failed)
	}
}
