package loop

import (
	"time"

	"ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/internal/interned"
)

// HistoryLength is how many runs of decisions are kept for a revision: those that are told.
const HistoryLength = v1alpha1.MaxHistory

// Entry is a run of equal decisions: same outcome by the same rule. The inputs are those of the
// last one.
type Entry struct {
	First time.Time
	Times int
	revision.Explanation
}

// history is a ring of the last runs.
type history struct {
	runs []run
	// newest is the index of the newest run.
	newest int
}

// run is an Entry as it is kept.
type run struct {
	first, last time.Time
	times       int
	// decided is the last decision, without its time if it is shared with other revisions.
	decided *revision.Explanation
	shared  bool
}

func (r *run) entry() Entry {
	e := Entry{First: r.first, Times: r.times, Explanation: *r.decided}
	e.Decision.Time = r.last
	return e
}

// decisions lets revisions share the last decision.
type decisions = interned.Few[*revision.Explanation]

// share lets the last decision be one with an equal one of another revision. Most of those at zero
// have the same.
func (h *history) share(all *decisions) {
	if last := h.latest(); last != nil && !last.shared {
		e := *last.decided
		e.Decision.Time = time.Time{}
		last.decided, last.shared = all.Same(&e), true
	}
}

func (h *history) add(e revision.Explanation) {
	at := e.Decision.Time
	if last := h.latest(); last != nil && sameRun(last.decided, &e) {
		last.times++
		last.last = at
		if last.shared {
			last.decided, last.shared = copied(e), false
		} else {
			*last.decided = e
		}
		return
	}
	next := run{first: at, last: at, times: 1, decided: copied(e)}
	if len(h.runs) == HistoryLength {
		h.newest = (h.newest + 1) % HistoryLength
		h.runs[h.newest] = next
		return
	}
	if n := len(h.runs); n == cap(h.runs) {
		// Most revisions have few runs; never reserve more than are kept.
		h.runs = append(make([]run, 0, min(max(2*n, 1), HistoryLength)), h.runs...)
	}
	h.newest = len(h.runs)
	h.runs = append(h.runs, next)
}

// copied returns a copy on the heap. The argument of add itself is not there: most decisions are
// like the one before.
func copied(e revision.Explanation) *revision.Explanation { return &e }

func sameRun(a, b *revision.Explanation) bool {
	return a.Decision.Desired == b.Decision.Desired && a.Decision.Rule == b.Decision.Rule &&
		a.Decision.Panicking == b.Decision.Panicking && a.Step.Want == b.Step.Want && a.Step.Rule == b.Step.Rule &&
		a.Awake == b.Awake && kept(a) == kept(b) && a.Extra == b.Extra && a.Lost == b.Lost
}

func kept(e *revision.Explanation) int32 {
	if e.Keep == nil {
		return 0
	}
	return e.Keep.Keep
}

func (h *history) latest() *run {
	if len(h.runs) == 0 {
		return nil
	}
	return &h.runs[h.newest]
}

// list returns the entries, oldest first.
func (h *history) list() []Entry {
	if len(h.runs) == 0 {
		return nil
	}
	list, oldest := make([]Entry, 0, len(h.runs)), (h.newest+1)%len(h.runs)
	for i := range h.runs {
		list = append(list, h.runs[(oldest+i)%len(h.runs)].entry())
	}
	return list
}
