package decide

import (
	"slices"
	"time"
)

// delaySlot is the resolution of the scale-down delay.
const delaySlot = 2 * time.Second

// delayWindow remembers the highest scale of the last while. It holds only slots that could still
// become the maximum: newest last, values falling. It is never changed in place, so that a State can
// be kept and used again.
type delayWindow []slotMax

type slotMax struct {
	slot    int64
	highest int32
}

// record adds a value and returns the maximum over the delay that ends now.
func (w delayWindow) record(now time.Time, value int32, delay time.Duration) (delayWindow, int32) {
	slot := now.UnixNano() / int64(delaySlot)
	oldest := slot - int64((delay+delaySlot-1)/delaySlot)
	next := make(delayWindow, 0, len(w)+1)
	for _, old := range w {
		if old.slot > oldest && old.slot <= slot && old.highest > value {
			next = append(next, old)
		}
	}
	next = append(next, slotMax{slot, value})
	return next, next[0].highest
}

// tidy brings slots of two memories into one: by time, values falling.
func (w delayWindow) tidy() delayWindow {
	sorted := slices.SortedStableFunc(slices.Values(w), func(a, b slotMax) int { return int(a.slot - b.slot) })
	var next delayWindow
	for _, one := range slices.Backward(sorted) {
		if len(next) == 0 || one.highest > next[len(next)-1].highest {
			next = append(next, one)
		}
	}
	slices.Reverse(next)
	return next
}
