package pick

import (
	"math/rand/v2"
	"testing"
)

type fixed struct {
	inFlight []int
	state    []State
}

func (f fixed) Len() int           { return len(f.inFlight) }
func (f fixed) InFlight(i int) int { return f.inFlight[i] }
func (f fixed) State(i int) State {
	if f.state == nil {
		return Open
	}
	return f.state[i]
}

// both returns random bits that make chooseUnlimited draw a and then b of n pods.
func both(a, b, n int) uint64 {
	for r := uint64(0); ; r++ {
		first := int(r % uint64(n))
		if first != a {
			continue
		}
		for hi := uint64(0); hi < uint64(n); hi++ {
			second := int(hi % uint64(n-1))
			if second >= first {
				second++
			}
			if second == b {
				return hi<<32 | r
			}
		}
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		name   string
		pods   fixed
		limit  int
		cursor int
		random uint64
		want   int
		why    Reason
	}{
		{"nobody there", fixed{}, 1, 0, 0, -1, NoPods},
		{"nobody there, no limit", fixed{}, 0, 0, 0, -1, NoPods},
		{"limit 1 packs from the first address", fixed{inFlight: []int{0, 0, 0}}, 1, 2, 0, 0, FirstFree},
		{"limit 1 goes on to the first free", fixed{inFlight: []int{1, 1, 0}}, 1, 0, 0, 2, FirstFree},
		{"limit 3 packs", fixed{inFlight: []int{3, 2, 0}}, 3, 0, 0, 1, FirstFree},
		{"limit 3, all busy", fixed{inFlight: []int{3, 3}}, 3, 0, 0, -1, NoSlot},
		{"limit 4 goes round from the cursor", fixed{inFlight: []int{0, 0, 0}}, 4, 2, 0, 2, RoundRobin},
		{"limit 4 wraps over full pods", fixed{inFlight: []int{0, 4, 4}}, 4, 1, 0, 0, RoundRobin},
		{"a cursor from a longer list still fits", fixed{inFlight: []int{0, 0}}, 10, 7, 0, 1, RoundRobin},
		{"a pod that refused is passed over", fixed{[]int{0, 0}, []State{Full, Open}}, 1, 0, 0, 1, FirstFree},
		{"all refused: wait", fixed{[]int{0, 0}, []State{Full, Full}}, 1, 0, 0, -1, NoSlot},
		{"a busy pod is worth waiting for rather than a suspect", fixed{[]int{1, 0}, []State{Open, Suspect}}, 1, 0, 0, -1, NoSlot},
		{"a refusing pod is worth waiting for rather than a suspect", fixed{[]int{0, 0}, []State{Full, Suspect}}, 1, 0, 0, -1, NoSlot},
		{"the last endpoint stays although suspect", fixed{[]int{0}, []State{Suspect}}, 1, 0, 0, 0, LastResort},
		{"suspects keep their limit", fixed{[]int{1}, []State{Suspect}}, 1, 0, 0, -1, NoSlot},
		{"no limit takes the less loaded", fixed{inFlight: []int{9, 5, 7}}, 0, 0, both(0, 2, 3), 2, LessOfTwo},
		{"no limit, equal load takes the first drawn", fixed{inFlight: []int{5, 5}}, 0, 0, both(1, 0, 2), 1, LessOfTwo},
		{"no limit ignores Full", fixed{[]int{3}, []State{Full}}, 0, 0, 0, 0, LessOfTwo},
		{"no limit, one of two suspect", fixed{[]int{0, 9}, []State{Suspect, Open}}, 0, 0, both(0, 1, 2), 1, LessOfTwo},
		{"no limit, both drawn are suspect, another is not", fixed{[]int{0, 0, 9}, []State{Suspect, Suspect, Open}}, 0, 0, both(0, 1, 3), 2, LessOfTwo},
		{"no limit, the last endpoint stays", fixed{[]int{4}, []State{Suspect}}, 0, 0, 0, 0, LastResort},
		{"no limit, all suspect", fixed{[]int{4, 4}, []State{Suspect, Suspect}}, 0, 0, both(1, 0, 2), 1, LastResort},
		{"a resting pod is not even the last resort", fixed{[]int{0}, []State{Resting}}, 1, 0, 0, -1, NoSlot},
		{"a suspect comes before a resting pod", fixed{[]int{0, 0}, []State{Resting, Suspect}}, 1, 0, 0, 1, LastResort},
		{"no limit, resting", fixed{[]int{0}, []State{Resting}}, 0, 0, 0, -1, NoSlot},
		{"a pod that sleeps comes last", fixed{[]int{0, 1}, []State{Asleep, Open}}, 2, 0, 0, 1, FirstFree},
		{"a pod wakes when the others are full", fixed{[]int{0, 2}, []State{Asleep, Open}}, 2, 0, 0, 0, Woken},
		{"a pod wakes when the others refused", fixed{[]int{0, 0}, []State{Full, Asleep}}, 5, 0, 0, 1, Woken},
		{"a pod that sleeps comes before a suspect", fixed{[]int{0, 0}, []State{Suspect, Asleep}}, 1, 0, 0, 1, Woken},
		{"no limit, one sleeps", fixed{[]int{0, 9}, []State{Asleep, Open}}, 0, 0, both(0, 1, 2), 1, LessOfTwo},
		{"no limit, all sleep", fixed{[]int{0, 0}, []State{Asleep, Asleep}}, 0, 0, both(1, 0, 2), 1, Woken},
		{"no limit, suspect and asleep", fixed{[]int{0, 0}, []State{Suspect, Asleep}}, 0, 0, both(0, 1, 2), 1, Woken},
		{"a pod of this zone goes before one that is far", fixed{[]int{0, 0, 0}, []State{Far, Open, Far}}, 1, 0, 0, 1, FirstFree},
		{"a far pod goes before a queue", fixed{[]int{0, 1, 0}, []State{Far, Open, Far}}, 1, 0, 0, 0, FirstFree},
		{"a far pod that is free goes before waiting for one that refused", fixed{[]int{0, 0}, []State{Full, Far}}, 1, 0, 0, 1, FirstFree},
		{"a far pod goes before one that sleeps", fixed{[]int{0, 1}, []State{Asleep, Far}}, 2, 0, 0, 1, FirstFree},
		{"round robin within this zone", fixed{[]int{0, 0, 0, 0}, []State{Open, Far, Far, Open}}, 10, 1, 0, 3, RoundRobin},
		{"round robin over far pods", fixed{[]int{9, 0, 0, 9}, []State{Open, Far, Far, Open}}, 9, 2, 0, 2, RoundRobin},
		{"a busy far pod is worth waiting for rather than a suspect", fixed{[]int{1, 0}, []State{Far, Suspect}}, 1, 0, 0, -1, NoSlot},
		{"no limit, far pods count by their load", fixed{[]int{4, 5}, []State{Far, Open}}, 0, 0, both(0, 1, 2), 0, LessOfTwo},
		{"no limit, equal load takes the near one", fixed{[]int{5, 5}, []State{Far, Open}}, 0, 0, both(0, 1, 2), 1, LessOfTwo},
		{"no limit, equal load of two far ones takes the first drawn", fixed{[]int{5, 5}, []State{Far, Far}}, 0, 0, both(1, 0, 2), 1, LessOfTwo},
		{"no limit, resting and suspect", fixed{[]int{0, 0}, []State{Resting, Suspect}}, 0, 0, 0, 1, LastResort},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, why := Choose(c.pods, c.limit, c.cursor, c.random); got != c.want || why != c.why {
				t.Errorf("Choose = %d (reason %d), want %d (reason %d)", got, why, c.want, c.why)
			}
		})
	}
}

// Whatever the view: a choice is eligible, and there is one whenever an open pod has a free slot.
func TestChooseNeverOverlooksAFreeSlotNorOverfills(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		n, limit := random.IntN(6), random.IntN(6)
		f := fixed{make([]int, n), make([]State, n)}
		openSlot, nearSlot, allSuspect := false, false, n > 0
		for i := range n {
			f.inFlight[i], f.state[i] = random.IntN(limit+2), State(random.IntN(6))
			if f.state[i] <= Far && (limit == 0 || f.inFlight[i] < limit) {
				openSlot, nearSlot = true, nearSlot || f.state[i] == Open
			}
			allSuspect = allSuspect && f.state[i] >= Suspect
		}
		got, why := Choose(f, limit, random.IntN(20)-5, random.Uint64())
		switch {
		case got < 0 && openSlot:
			t.Fatalf("limit %d, %+v: none chosen (reason %d) although an open pod has a free slot", limit, f, why)
		case got < 0:
		case limit > 0 && f.inFlight[got] >= limit:
			t.Fatalf("limit %d, %+v: chose %d beyond its limit", limit, f, got)
		case f.state[got] == Suspect && !allSuspect:
			t.Fatalf("limit %d, %+v: chose the suspect %d although others live", limit, f, got)
		case limit > 0 && nearSlot && f.state[got] != Open:
			t.Fatalf("limit %d, %+v: chose %d although one of this zone has a free slot", limit, f, got)
		case f.state[got] == Resting:
			t.Fatalf("limit %d, %+v: chose %d that rests", limit, f, got)
		case limit > 0 && f.state[got] == Full:
			t.Fatalf("limit %d, %+v: chose %d that has just refused", limit, f, got)
		}
	}
}

func BenchmarkChoose(b *testing.B) {
	f := fixed{inFlight: make([]int, 100)}
	b.ReportAllocs()
	for i := range b.N {
		Choose(&f, 0, i, uint64(i)*0x9E3779B97F4A7C15)
	}
}
