package revision

import (
	"slices"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/keep"
	"ebb.dev/ebb/autoscaler/window"
	"ebb.dev/ebb/autoscaler/zero"
)

// State is what one process knows of a revision, for the process that decides for it next. Either
// the earlier process hands it over, or it is read back from the PodAutoscaler's status. The status
// holds only Desired, Zero and Learned.
type State struct {
	UID string
	// At is when the State was exported, zero for one that was read from the status.
	At time.Time
	// Desired is the scale reported last, Ordered the scale ordered last; -1 for none.
	Desired, Ordered int32
	// Asleep is how many pods slept, as the status says.
	Asleep   int32
	Zero     zero.State
	Learned  decide.Learned
	Formula  decide.State
	Adaptive decide.Adaptive
	Windows  decide.Windows
	// Told are the windows of the metrics that the pods tell, by place.
	Told [][2]window.Contents
	// Keep is what is known of idle times, Awake how many pods were to be awake. They are empty
	// without standby. Of a status, Keep has only the histograms.
	Keep  keep.State
	Awake int32
	// Busy is how many pods have a busy program, BusyAt when one was seen last. A process that
	// starts from a status keeps the scale found there until it has asked the pods.
	Busy   int32
	BusyAt time.Time
	// Extra is how many pods there were beyond those that were wanted, because others were lost.
	Extra int32
}

// inherited is what a status told of an earlier process: found is the scale that it reported,
// surplus how many pods more there were, until the scale is no higher than it needs to be.
type inherited struct{ found, surplus int32 }

// verdict is how long a process that takes over may take to find out by itself that pods are lost.
const verdict = 20 * time.Second

// Export returns what this process knows.
func (r *Revision) Export(now time.Time) State {
	r.wake()
	sent := int32(0)
	if r.everSent {
		sent = r.sent.Value().Desired
	}
	s := State{UID: r.config.UID, At: now, Desired: sent, Ordered: r.ordered, Zero: r.zero, Learned: r.learned,
		Formula: r.formula, Windows: r.series.Export(), Told: r.series.ExportTold(), Extra: r.extra}
	if r.config.Standby != nil {
		s.Keep, s.Awake = r.history.Export(), r.awake.value
	}
	if r.config.BusyFor > 0 {
		s.Busy, s.BusyAt = r.busy.value, r.busyAt
	}
	if r.config.Adaptive {
		s.Adaptive = r.adaptive
	}
	return s
}

// Import continues from what an earlier process knew. behind is by how much that process's clock
// was behind. It reports false if the state is of another object or cannot be right; then nothing
// is taken from it, except that a wrong lesson in a status does not spoil the rest.
func (r *Revision) Import(s State, behind time.Duration, now time.Time) bool {
	r.wake()
	if s.At.IsZero() {
		return r.importStatus(s, now)
	}
	if s.UID != r.config.UID {
		return false
	}
	adaptive, ok := r.adaptive.Import(s.Adaptive, behind, now)
	if !ok {
		return false
	}
	history, ok := keep.Import(s.Keep, behind, now)
	if !ok || s.Awake < 0 || s.Busy < 0 || s.Extra < 0 {
		return false
	}
	formula, ok := r.formula.Import(s.Formula, behind, now)
	if !ok || !r.series.Import(s.Windows, s.At, behind, now) || !r.series.ImportTold(s.Told, r.config.Formula.Others, s.At, behind, now) {
		return false
	}
	r.adaptive, r.formula, r.history = adaptive, formula, history
	r.awake.value = max(r.awake.value, s.Awake)
	at := s.BusyAt.Add(behind)
	if at.After(now) {
		at = now
	}
	if s.Busy > 0 && at.After(r.busyAt) {
		r.busy, r.busyAt = held{value: max(r.busy.value, s.Busy)}, at
	}
	if extra := min(s.Extra, r.counts.Running()-max(s.Desired, 0)); extra > r.extra {
		r.extra, r.extraUntil = extra, now.Add(verdict)
	}
	r.importSince(s.Zero, behind, now)
	switch {
	case s.Ordered < 0 || s.Ordered == r.ordered:
	case r.ordered < 0:
		r.ordered = s.Ordered
	case r.assumed: // whether the last order was carried out is not known
		r.Found(-1)
	}
	return true
}

// importSince takes the times of transitions, which the status has only in whole seconds and as of
// its last write.
func (r *Revision) importSince(s zero.State, behind time.Duration, now time.Time) {
	earlier := func(own, theirs time.Time) time.Time {
		if theirs = theirs.Add(behind); theirs.Before(own) && now.Sub(theirs) < 365*24*time.Hour {
			return theirs
		}
		return own
	}
	if s.Active == r.zero.Active {
		r.zero.ActiveSince = earlier(r.zero.ActiveSince, s.ActiveSince)
	}
	if s.Proxied && r.zero.Proxied {
		r.zero.ProxiedSince = earlier(r.zero.ProxiedSince, s.ProxiedSince)
		r.zero.LastShort = earlier(r.zero.LastShort, s.LastShort)
	}
}

// importStatus continues from a status alone: the scale found there is kept for a stable window.
func (r *Revision) importStatus(s State, now time.Time) bool {
	floor := decide.NoDecision
	if s.Zero.Initialized {
		floor = max(s.Desired, r.counts.Running()-max(s.Asleep, 0))
	}
	r.formula = decide.Start(r.config.Formula, r.counts.Ready, floor, now)
	r.found, r.surplus = s.Desired, max(floor-max(s.Desired, 0), 0)
	if s.Desired+s.Asleep == r.counts.Running() {
		r.ordered, r.assumed = r.counts.Running(), true
	}
	// The pods that sleep are idle from now on, as far as is known. So are others beyond those that
	// were wanted: a pod that slept on a node that was drained has a successor that starts.
	s.Keep.Needed = min(max(s.Desired, 0), keep.Ranks)
	idle := max(s.Keep.Needed+max(s.Asleep, 0), r.counts.Running())
	s.Keep.IdleSince = slices.Repeat([]time.Time{now}, int(min(idle, keep.Ranks)))
	if history, ok := keep.Import(s.Keep, 0, now); ok {
		r.history = history
	}
	r.zero = s.Zero
	if r.zero.ActiveSince.IsZero() {
		r.zero.ActiveSince = now
	}
	if r.zero.Proxied {
		r.zero.LastShort = now
	}
	if !r.config.Adaptive || s.Learned == (decide.Learned{}) {
		return true
	}
	adaptive, ok := s.Learned.Adaptive(r.config.Formula.Share(), now)
	if ok {
		r.adaptive, r.learned = adaptive, s.Learned
	}
	return ok
}
