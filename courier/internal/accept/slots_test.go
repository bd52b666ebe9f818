package accept

import "testing"

func TestNamespacesThatTakeAllTheyCanLeaveSlotsToOthers(t *testing.T) {
	for attackers := 1; attackers <= 4; attackers++ {
		s := newSlots(60)
		taken := map[string]int{}
		for more := true; more; {
			more = false
			for i := range attackers {
				name := string(rune('a' + i))
				if s.take(name) {
					taken[name]++
					more = true
				}
			}
		}
		for name, n := range taken {
			if want := 60 / (attackers + 1); n != want {
				t.Errorf("of %d, %s took %d of 60 slots, not %d", attackers, name, n, want)
			}
		}
		if !s.take("victim") {
			t.Errorf("%d attackers leave no slot", attackers)
		}
		s.give("victim")
		for name, n := range taken {
			for range n {
				s.give(name)
			}
		}
		if s.free != 60 || len(s.held) != 0 {
			t.Errorf("after all gave their slots back: %d free, held %v", s.free, s.held)
		}
	}
}
