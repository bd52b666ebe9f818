package revision

import "time"

// busyPods is how many pods have a program that says that it is busy, and when one was seen last.
type busyPods struct {
	busy   held
	busyAt time.Time
}

// busyHold is for how long a sample must have had fewer busy pods before fewer are kept: one that
// misses the only busy pod is likely, all of a minute are not.
const busyHold = time.Minute

// occupy takes how many pods have a program that says that it is busy.
func (r *Revision) occupy(s Scrape, now time.Time) {
	if r.config.BusyFor <= 0 {
		return
	}
	if s.Busy > 0 {
		r.busyAt = now
	}
	hold := busyHold
	if SampleSize(s.Ready) == s.Ready {
		hold = 0
	}
	r.busy.need(s.Busy, hold, now)
}

// occupied is how many pods are kept because their programs say that they are busy: never more than
// there are, and not for longer than the last one seen may have said it.
func (r *Revision) occupied(now time.Time) int32 {
	if r.config.BusyFor <= 0 || now.Sub(r.busyAt) >= r.config.BusyFor {
		r.busy = held{}
	}
	return min(r.busy.value, r.counts.Ready+r.counts.Lapsed)
}
