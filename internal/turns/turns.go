// Package turns lets callers who were refused a slot take turns at it.
//
// Owns: a list of refused callers in order, and for whom a free slot is kept at the moment. Never:
// reads a clock or locks; the caller passes the time and guards it.
package turns

import (
	"slices"
	"strings"
	"time"
)

// Max bounds how many callers are remembered; further ones are refused without a place.
const Max = 64

// Turns is ready to use when zero, except for Keep.
type Turns struct {
	// Keep is how long a free slot is kept for the caller whose turn it is.
	Keep time.Duration

	waiting []string
	kept    []kept
}

type kept struct {
	caller string
	until  time.Time
}

// Take says whether caller may take one of free slots now. If not, it gets a place in the list.
func (t *Turns) Take(caller string, free int, now time.Time) bool {
	if len(t.waiting) == 0 && len(t.kept) == 0 && free > 0 {
		return true
	}
	t.lapse(now)
	if free > 0 {
		for i, k := range t.kept {
			if k.caller == caller {
				t.kept = slices.Delete(t.kept, i, i+1)
				return true
			}
		}
		// Those that wait without a kept slot have been passed over by nobody yet: Next is called
		// at every release, so a free slot beyond the kept ones is free for all.
		if free > len(t.kept) {
			t.forget(caller)
			return true
		}
	}
	if !slices.Contains(t.waiting, caller) && len(t.waiting) < Max {
		t.waiting = append(t.waiting, strings.Clone(caller)) // the caller's may be part of a buffer
	}
	return false
}

// Next is called when a slot became free, when a kept slot was declined, and when one lapsed. It
// returns the caller to tell, for whom one slot is now kept, or "" when nobody waits or no slot is
// left.
func (t *Turns) Next(free int, now time.Time) string {
	if len(t.waiting) == 0 {
		return ""
	}
	t.lapse(now)
	if free <= len(t.kept) {
		return ""
	}
	caller := t.waiting[0]
	t.waiting = slices.Delete(t.waiting, 0, 1)
	t.kept = append(t.kept, kept{caller, now.Add(t.Keep)})
	return caller
}

// Decline gives up the slot that is kept for caller.
func (t *Turns) Decline(caller string) {
	t.kept = slices.DeleteFunc(t.kept, func(k kept) bool { return k.caller == caller })
}

// Waiting is how many callers have a place.
func (t *Turns) Waiting() int { return len(t.waiting) }

func (t *Turns) lapse(now time.Time) {
	t.kept = slices.DeleteFunc(t.kept, func(k kept) bool { return !now.Before(k.until) })
}

func (t *Turns) forget(caller string) {
	t.waiting = slices.DeleteFunc(t.waiting, func(w string) bool { return w == caller })
}
