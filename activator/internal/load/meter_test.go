package load

import (
	"math"
	"slices"
	"testing"
	"time"

	"ebb.dev/ebb/wire"
)

func TestMeter(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	for _, c := range []struct {
		name     string
		run      func(*Meter)
		end      int
		want     wire.Stat
		reported bool
	}{
		{"nothing ever", func(*Meter) {}, 1000, wire.Stat{}, false},
		{"one request through the whole second", func(m *Meter) { m.In(at(0)) }, 1000, wire.Stat{AverageConcurrent: 1, Requests: 1}, true},
		{"half of it", func(m *Meter) { m.In(at(0)); m.Out(at(500), 200, 0) }, 1000, wire.Stat{AverageConcurrent: 0.5, Requests: 1, Completed: 1}, true},
		{"a second one for a quarter", func(m *Meter) { m.In(at(0)); m.In(at(500)); m.Out(at(750), 200, 0) }, 1000, wire.Stat{AverageConcurrent: 1.25, Requests: 2, Completed: 1}, true},
		{"the period begins with the first request", func(m *Meter) { m.In(at(900)) }, 1000, wire.Stat{AverageConcurrent: 1, Requests: 1}, true},
		{"a clock that goes back", func(m *Meter) { m.In(at(500)); m.Out(at(0), 200, 0) }, 1000, wire.Stat{Requests: 1, Completed: 1}, true},
		{"at the same moment", func(m *Meter) { m.In(at(1000)) }, 1000, wire.Stat{AverageConcurrent: 1, Requests: 1}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m Meter
			c.run(&m)
			got, ok := m.Take(at(c.end))
			if ok != c.reported || math.Abs(got.AverageConcurrent-c.want.AverageConcurrent) > 1e-9 || got.Requests != c.want.Requests || got.Completed != c.want.Completed {
				t.Errorf("got %+v, %v; want %+v, %v", got, ok, c.want, c.reported)
			}
		})
	}
}

func TestARevisionThatBecomesIdleReportsOneLastZero(t *testing.T) {
	var m Meter
	begin := time.Unix(1000, 0)
	m.In(begin)
	m.Out(begin.Add(time.Millisecond), 200, 0)
	var reports []wire.Stat
	for second := range 5 {
		if stat, ok := m.Take(begin.Add(time.Duration(second+1) * time.Second)); ok {
			reports = append(reports, stat)
		}
	}
	var over Meter // its only request ends in another period than it began in
	over.In(begin)
	over.Take(begin.Add(time.Second))
	over.Out(begin.Add(1500*time.Millisecond), 200, 0)
	if stat, ok := over.Take(begin.Add(2 * time.Second)); !ok || stat.AverageConcurrent != 0.5 {
		t.Errorf("half a second of a request: %+v, %v", stat, ok)
	}
	if stat, ok := over.Take(begin.Add(3 * time.Second)); !ok || stat != (wire.Stat{}) {
		t.Errorf("idle after it: %+v, %v, want a last zero", stat, ok)
	}
	if len(reports) != 2 || reports[1].AverageConcurrent != 0 || reports[1].Requests != 0 {
		t.Errorf("got %+v, want one report with load and one of zero", reports)
	}
}

// Where pods have no limit, nothing waits: growth is the only sign of a burst.
func TestGrowthIsWorthAReportOutOfTurn(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	in := func(m *Meter, n, ms int) (edges []int) {
		for range n {
			if m.In(at(ms)) {
				edges = append(edges, m.Now())
			}
		}
		return edges
	}
	for _, c := range []struct {
		behaviour string
		run       func(*Meter) []int
		want      []int
	}{
		{"the first few are not", func(m *Meter) []int { return in(m, 4, 0) }, nil},
		{"a burst is, at each doubling", func(m *Meter) []int { return in(m, 100, 0) }, []int{5, 10, 20, 40, 80}},
		{"not what a report out of turn has told", func(m *Meter) []int { in(m, 39, 0); m.Peek(); return in(m, 40, 0) }, []int{78}},
		{"not what the last period had", func(m *Meter) []int { in(m, 20, 0); m.Take(at(1000)); return in(m, 19, 1000) }, nil},
		{"twice what the last period had", func(m *Meter) []int { in(m, 20, 0); m.Take(at(1000)); return in(m, 20, 1000) }, []int{40}},
		{"requests that come and go are no growth", func(m *Meter) (edges []int) {
			for range 1000 {
				edges = append(edges, in(m, 1, 0)...)
				m.Out(at(0), 200, 0)
			}
			return edges
		}, nil},
		{"a load that swings is told once a period", func(m *Meter) (edges []int) {
			for range 50 {
				edges = append(edges, in(m, 8, 0)...)
				for range 8 {
					m.Out(at(0), 200, 0)
				}
			}
			return edges
		}, []int{5}},
		{"no more than ten in a period", func(m *Meter) []int { return in(m, 20_000, 0)[9:] }, []int{2560}},
		{"after an idle time again from nothing", func(m *Meter) []int {
			in(m, 30, 0)
			for range 30 {
				m.Out(at(999), 200, 0)
			}
			for second := range 4 {
				m.Take(at(1000 * (second + 1)))
			}
			return in(m, 6, 5000)
		}, []int{5}},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			if got := c.run(new(Meter)); !slices.Equal(got, c.want) {
				t.Errorf("reports out of turn at %v requests, want %v", got, c.want)
			}
		})
	}
	var m Meter
	if allocs := testing.AllocsPerRun(100, func() { m.In(begin) }); allocs > 0 {
		t.Errorf("a request costs %v allocations", allocs)
	}
}

func TestRising(t *testing.T) {
	var m Meter
	now := time.Now()
	arrive := func(n int) {
		for range n {
			m.In(now)
		}
	}
	arrive(78)
	m.Peek()
	if m.Rising() {
		t.Error("what was reported is not more")
	}
	arrive(7)
	if m.Rising() {
		t.Error("less than a tenth more is no burst")
	}
	arrive(15)
	if !m.Rising() {
		t.Error("100 after 78 is the rest of a burst")
	}
	for range 2 * maxEdges {
		m.Rising()
	}
	if m.Rising() {
		t.Error("reports out of turn have no bound")
	}
}
