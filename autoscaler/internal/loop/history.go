package loop

import (
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/zero"
)

// HistoryLength is how many decisions of a revision are kept.
const HistoryLength = 100

// Entry is a run of like decisions: same outcome by the same rule. The inputs are those of the last one.
type Entry struct {
	First time.Time
	Times int
	// Want and Replicas are the outcome; Applied says whether Replicas was to be written.
	Decision decide.Decision
	Step     zero.Step
}

// Rule is the rule that limited the outcome, Reason the sentence that explains it.
func (e Entry) Rule() string   { return rule(e.Decision, e.Step) }
func (e Entry) Reason() string { return reason(e.Decision, e.Step) }

// history holds the last runs of decisions, oldest first once it is full from position next on.
type history struct {
	entries []Entry
	next    int
}

func (h *history) add(d decide.Decision, s zero.Step) {
	if last := h.last(); last != nil && last.Decision.Desired == d.Desired && last.Decision.Rule == d.Rule &&
		last.Step.Want == s.Want && last.Step.Rule == s.Rule && last.Decision.Panicking == d.Panicking {
		last.Times++
		last.Decision, last.Step = d, s
		return
	}
	e := Entry{First: d.Time, Times: 1, Decision: d, Step: s}
	if len(h.entries) < HistoryLength {
		h.entries = append(h.entries, e)
		return
	}
	h.entries[h.next] = e
	h.next = (h.next + 1) % HistoryLength
}

func (h *history) last() *Entry {
	if len(h.entries) == 0 {
		return nil
	}
	return &h.entries[(h.next+len(h.entries)-1)%len(h.entries)]
}

func (h *history) list() []Entry {
	out := make([]Entry, 0, len(h.entries))
	out = append(out, h.entries[h.next:]...)
	return append(out, h.entries[:h.next]...)
}
