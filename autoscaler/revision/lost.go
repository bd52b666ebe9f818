package revision

import (
	"time"

	"ebb.dev/ebb/autoscaler/alive"
	"ebb.dev/ebb/autoscaler/decide"
)

// lostPods is what is done about pods on nodes that do not answer.
type lostPods struct {
	// extra is what replacements said last. Until extraUntil it does not fall.
	extra      int32
	extraUntil time.Time
}

// replaced is how many lost pods an earlier process has replaced. The scale that was found has
// these replacements in it, beyond what that process wanted and what the load takes; to replace the
// same pods again would add as many with each restart.
func (r *Revision) replaced(d *decide.Decision, total int32, now time.Time) int32 {
	beyond := total - max(d.StableRaw, d.PanicRaw, d.BurstRaw, r.found)
	if beyond <= 0 && !now.Before(r.formula.FloorUntil) {
		r.surplus = 0
	}
	return max(min(r.surplus, r.counts.Lost, beyond), 0)
}

// replacements is how many pods more than total there are to be, because some are lost and were
// not replaced before. With rises it only rises.
func (r *Revision) replacements(total, replaced int32, rises bool) int32 {
	extra := max(alive.Extra(total-replaced, r.counts.Lost)-replaced, 0)
	if rises {
		extra = max(extra, min(r.extra, total))
	}
	r.extra = extra
	return extra
}
