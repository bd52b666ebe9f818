package decide

import (
	"cmp"
	"slices"
	"time"
)

// delaySlot is the resolution of the scale-down delay.
const delaySlot = 2 * time.Second

// delayWindow finds the maximum of the scale over the delay. It holds only slots that can still
// become the maximum: newest last, with falling values. It is immutable, so that copies of a State
// stay valid.
type delayWindow []slotMax

type slotMax struct {
	Slot    int64
	Highest int32
}

// record adds a value and returns the maximum over the delay that ends now.
func (w delayWindow) record(now time.Time, value int32, delay time.Duration) (delayWindow, int32) {
	slot := now.UnixNano() / int64(delaySlot)
	oldest := slot - int64((delay+delaySlot-1)/delaySlot)
	next := make(delayWindow, 0, len(w)+1)
	for _, old := range w {
		if old.Slot > oldest && old.Slot <= slot && old.Highest > value {
			next = append(next, old)
		}
	}
	next = append(next, slotMax{slot, value})
	return next, next[0].Highest
}

// merge returns the slots of two processes in one window. moved translates the other's times.
func (w delayWindow) merge(from delayWindow, moved func(time.Time) time.Time) delayWindow {
	sorted := slices.Clone(w)
	for _, one := range from {
		middle := time.Unix(0, one.Slot*int64(delaySlot)).Add(delaySlot / 2)
		sorted = append(sorted, slotMax{moved(middle).UnixNano() / int64(delaySlot), max(one.Highest, 0)})
	}
	slices.SortStableFunc(sorted, func(a, b slotMax) int { return cmp.Compare(a.Slot, b.Slot) })
	var next delayWindow
	for _, one := range slices.Backward(sorted) {
		if len(next) == 0 || one.Highest > next[len(next)-1].Highest {
			next = append(next, one)
		}
	}
	slices.Reverse(next)
	return next
}
