package revision

import "time"

// driftTime is how long the number of pods may differ from the last scale that was ordered before
// the scale is read again.
const driftTime = 10 * time.Second

// lastOrder is the last scale that was ordered, and what became of it.
type lastOrder struct {
	ordered int32 // -1 if unknown
	assumed bool  // it is only what a status and the pods agreed on
	// driftedAt is since when the number of pods has differed from it.
	driftedAt time.Time
}

// Found tells what the scale is, when it is not what the last order was decided on, -1 if that is
// unknown. The next decision starts from it.
func (r *Revision) Found(replicas int32) { r.lastOrder = lastOrder{ordered: replicas} }

// drifted reports, once per driftTime, that the number of pods has not matched the last order for
// that long: somebody else may have written the scale or replaced the scale target. If the order is
// only assumed, the last pod may go because an earlier process scaled to zero and ended before its
// status said so: requests would wait for nothing.
func (o *lastOrder) drifted(running int32, now time.Time) bool {
	switch {
	case o.ordered < 0 || running == o.ordered:
		o.driftedAt = time.Time{}
	case o.assumed && running == 0:
		o.assumed, o.driftedAt = false, now
		return true
	case o.driftedAt.IsZero():
		o.driftedAt = now
	case now.Sub(o.driftedAt) >= driftTime:
		o.driftedAt = now
		return true
	}
	return false
}
