package stat

import (
	"testing"
	"time"
)

func TestGrew(t *testing.T) {
	begin := time.Unix(1000, 0)
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
			if got := c.run(New(begin)); got != c.want {
				t.Errorf("%d edges, want %d", got, c.want)
			}
		})
	}
	l := New(begin)
	if allocs := testing.AllocsPerRun(100, func() { arrive(l, 1, false) }); allocs > 0 {
		t.Errorf("a request costs %v allocations", allocs)
	}
}
