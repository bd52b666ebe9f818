package turns

import (
	"fmt"
	"testing"
	"time"
)

func TestTurnsGoRoundInTheOrderOfRefusal(t *testing.T) {
	now := time.Unix(0, 0)
	turns := Turns{Keep: 5 * time.Millisecond}
	if !turns.Take("a", 1, now) {
		t.Fatal("a free slot was refused although nobody waits")
	}
	for _, caller := range []string{"b", "c", "b"} {
		if turns.Take(caller, 0, now) {
			t.Fatalf("%s got a slot although none is free", caller)
		}
	}
	for _, want := range []string{"b", "c"} {
		if got := turns.Next(1, now); got != want {
			t.Fatalf("it is %q's turn, want %q", got, want)
		}
		if turns.Take("a", 1, now) {
			t.Fatalf("a took the slot that is kept for %s", want)
		}
		if !turns.Take(want, 1, now) {
			t.Fatalf("%s did not get the slot that is kept for it", want)
		}
	}
	if got := turns.Next(1, now); got != "a" {
		t.Fatalf("it is %q's turn, want a, who was refused last", got)
	}
	turns.Decline("a")
	if !turns.Take("d", 1, now) {
		t.Fatal("a declined slot is still kept")
	}
}

func TestAKeptSlotLapses(t *testing.T) {
	now := time.Unix(0, 0)
	turns := Turns{Keep: 5 * time.Millisecond}
	turns.Take("gone", 0, now)
	turns.Next(1, now)
	if turns.Take("b", 1, now.Add(4*time.Millisecond)) {
		t.Fatal("the kept slot was given away early")
	}
	if !turns.Take("b", 1, now.Add(5*time.Millisecond)) {
		t.Fatal("the slot is kept for somebody who does not come")
	}
}

func TestOtherSlotsAreFreeForAll(t *testing.T) {
	now := time.Unix(0, 0)
	turns := Turns{Keep: time.Second}
	turns.Take("a", 0, now)
	turns.Next(1, now)
	if !turns.Take("b", 2, now) {
		t.Fatal("of two free slots one is kept for a, the other is free")
	}
}

func TestTheListIsBounded(t *testing.T) {
	turns := Turns{Keep: time.Second}
	for i := range 10 * Max {
		turns.Take(fmt.Sprint(i), 0, time.Unix(0, 0))
	}
	if turns.Waiting() != Max {
		t.Fatalf("%d callers are remembered, want %d", turns.Waiting(), Max)
	}
}
