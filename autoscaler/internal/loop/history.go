package loop

import (
	"time"

	"ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/autoscaler/revision"
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
	entries []Entry
	// newest is the index of the newest entry.
	newest int
}

func (h *history) add(e revision.Explanation) {
	if last := h.last(); last != nil && sameRun(&last.Explanation, &e) {
		last.Times++
		last.Explanation = e
		return
	}
	entry := Entry{First: e.Decision.Time, Times: 1, Explanation: e}
	if len(h.entries) == HistoryLength {
		h.newest = (h.newest + 1) % HistoryLength
		h.entries[h.newest] = entry
		return
	}
	if n := len(h.entries); n == cap(h.entries) {
		// Most revisions have few entries; never reserve more than are kept.
		h.entries = append(make([]Entry, 0, min(max(2*n, 1), HistoryLength)), h.entries...)
	}
	h.newest = len(h.entries)
	h.entries = append(h.entries, entry)
}

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

func (h *history) last() *Entry {
	if len(h.entries) == 0 {
		return nil
	}
	return &h.entries[h.newest]
}

// list returns the entries, oldest first.
func (h *history) list() []Entry {
	if len(h.entries) == 0 {
		return nil
	}
	oldest := (h.newest + 1) % len(h.entries)
	return append(append(make([]Entry, 0, len(h.entries)), h.entries[oldest:]...), h.entries[:oldest]...)
}
