package limit

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// model is the dumb second version: a list of what runs and a list of what waits.
type model struct {
	slots, most int
	maxBytes    int64
	running     []*Waiter
	waiting     []*Waiter
	weight      map[*Waiter]int64
}

func (m *model) bytes() (sum int64) {
	for _, w := range m.waiting {
		sum += m.weight[w]
	}
	return sum
}

func (m *model) enter(w *Waiter, bytes int64) Outcome {
	switch {
	case m.slots == 0 || len(m.running) < m.slots && len(m.waiting) == 0:
		m.running = append(m.running, w)
		return Admitted
	case len(m.waiting) < m.most && (m.maxBytes == 0 || m.bytes()+bytes <= m.maxBytes):
		m.waiting = append(m.waiting, w)
		m.weight[w] = bytes
		return Queued
	}
	return Full
}

func (m *model) leave(w *Waiter) *Waiter {
	m.running = slices.DeleteFunc(m.running, func(x *Waiter) bool { return x == w })
	if len(m.waiting) == 0 {
		return nil
	}
	next := m.waiting[0]
	m.waiting = m.waiting[1:]
	m.running = append(m.running, next)
	return next
}

func TestAnyMixOfEndsBringsItBackToZero(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		l := &Limit{Slots: random.IntN(4), MaxWaiting: random.IntN(8), MaxBytes: int64(random.IntN(2) * 40)}
		m := &model{slots: l.Slots, most: l.MaxWaiting, maxBytes: l.MaxBytes, weight: map[*Waiter]int64{}}
		pool := make([]*Waiter, 20)
		for i := range pool {
			pool[i] = &Waiter{}
		}
		check := func(step string) {
			if l.Running() != len(m.running) || l.Waiting() != len(m.waiting) || l.Bytes() != m.bytes() {
				t.Fatalf("seed %d, after %s: running %d waiting %d bytes %d, want %d %d %d",
					seed, step, l.Running(), l.Waiting(), l.Bytes(), len(m.running), len(m.waiting), m.bytes())
			}
			if l.Slots > 0 && l.Running() > l.Slots {
				t.Fatalf("seed %d: %d run in %d slots", seed, l.Running(), l.Slots)
			}
		}
		for range 300 {
			w := pool[random.IntN(len(pool))]
			running, waiting := slices.Contains(m.running, w), slices.Contains(m.waiting, w)
			switch {
			case running:
				want := m.leave(w)
				if got := l.Leave(w); got != want {
					t.Fatalf("seed %d: Leave promoted another request than the first that waits", seed)
				}
				check("leave")
			case waiting && random.IntN(2) == 0:
				bytes := int64(random.IntN(20))
				want := m.maxBytes == 0 || m.bytes()+bytes <= m.maxBytes
				if want {
					m.weight[w] += bytes
				}
				if got := l.Grow(w, bytes); got != want {
					t.Fatalf("seed %d: Grow is %v, want %v", seed, got, want)
				}
				check("grow")
			case waiting:
				m.waiting = slices.DeleteFunc(m.waiting, func(x *Waiter) bool { return x == w })
				if !l.Cancel(w) {
					t.Fatalf("seed %d: a waiting request could not be canceled", seed)
				}
				check("cancel")
			default:
				bytes := int64(random.IntN(20))
				want := m.enter(w, bytes)
				if got := l.Enter(w, bytes); got != want {
					t.Fatalf("seed %d: Enter is %v, want %v", seed, got, want)
				}
				check("enter")
			}
		}
		for _, w := range pool {
			if slices.Contains(m.waiting, w) {
				l.Cancel(w)
				m.waiting = slices.DeleteFunc(m.waiting, func(x *Waiter) bool { return x == w })
			}
		}
		for len(m.running) > 0 {
			w := m.running[0]
			m.leave(w)
			l.Leave(w)
			l.Leave(w) // a second Leave does nothing
		}
		if l.Running() != 0 || l.Waiting() != 0 || l.Bytes() != 0 {
			t.Fatalf("seed %d: at the end %d run, %d wait, %d bytes", seed, l.Running(), l.Waiting(), l.Bytes())
		}
	}
}

func TestCancelAfterPromotionSaysSo(t *testing.T) {
	l := &Limit{Slots: 1, MaxWaiting: 1}
	a, b := &Waiter{}, &Waiter{}
	l.Enter(a, 0)
	l.Enter(b, 0)
	if got := l.Leave(a); got != b {
		t.Fatal("b was not promoted")
	}
	if l.Cancel(b) {
		t.Fatal("b runs, so it cannot leave the queue")
	}
	l.Leave(b)
	if l.Running() != 0 {
		t.Fatalf("%d run", l.Running())
	}
}
