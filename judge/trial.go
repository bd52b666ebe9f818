package judge

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// lookAgain is when a judge looks without an answer. With one it looks at once.
const lookAgain = 2 * time.Second

// Record is what a judge remembers of a rollout. It is written down when the split or the decision
// changes. A process that begins with it has lost evidence, so it is slower and not wrong.
type Record struct {
	Revision string    `json:"revision"` // the new one
	State    State     `json:"state"`
	Until    time.Time `json:"until"` // the newest second that was counted
	Rule     string    `json:"rule,omitempty"`
	Reason   string    `json:"reason,omitempty"`
}

// Encode returns the record as Resume reads it.
func (r *Record) Encode() json.RawMessage {
	raw, err := json.Marshal(r)
	if err != nil {
		return nil // numbers, times and texts always encode
	}
	return raw
}

// Trial is a rollout that is judged, from one look to the next.
type Trial struct {
	Record
	// Held says that the shares stay as they are, and Suspect that something speaks against the new
	// revision meanwhile.
	Held, Suspect bool

	looked time.Time
	cannot string // why the newest figures said that it cannot be judged
}

// Resume returns the trial of a rollout to a revision, from its record if there is one.
func Resume(revision string, record []byte, now time.Time) (t Trial) {
	if json.Unmarshal(record, &t.Record) != nil || t.Revision != revision {
		// What came before the first percent is no draw between the two revisions.
		t.Record = Record{Revision: revision, Until: now}
	}
	return t
}

// Sight is what a look at a rollout finds.
type Sight struct {
	// Share is the percent of the requests that the new revision gets.
	Share int
	// Due says that a step is due. Last says that it gives the new revision all requests, and Least
	// is how many it must have answered for it.
	Due, Last bool
	Least     uint64
	// Cannot says why nobody can judge the rollout, whatever is told.
	Cannot string
	// Heard says that an answer came since the last look, and Figures are what it told of each
	// revision, the new one last; nil if it told nothing.
	Heard   bool
	Figures []Figures
	// Held and Recorded are what is written down: that the shares stand still, and a record.
	Held, Recorded bool
}

// Figures are what was told of one revision. They are zero if nobody told of it.
type Figures struct {
	Name    string
	Seconds []Second // the oldest first
	// Uncounted says that pods are of a version that does not count.
	Uncounted bool
	// Starts is what Input says of it as OldStarts or NewStarts, Ready that a pod of it is ready.
	Starts time.Duration
	Ready  bool
}

// Second is how requests of one revision ended in the second that ended At.
type Second struct {
	At time.Time
	Counts
}

// Finding is what comes of a look.
type Finding struct {
	// Back says that the new revision goes back, and Reason why, or else what was decided when the
	// record was last written.
	Back   bool
	Reason string
	// Write says that the record is to be written down.
	Write bool
	// Again is when to look next if nothing is told.
	Again time.Duration
}

// Look looks at a rollout.
//
//	is                                              does
//	no answer since the last look, and no step due  nothing until lookAgain is over
//	it cannot be judged                             lets it go by the clock
//	figures of several seconds                      judges each second by itself
//	no new figures                                  judges that nobody told
//
// A step that is due is judged when it is due, because it may need more than those before.
func (t Trial) Look(g Guard, s Sight, now time.Time) (Trial, Finding) {
	if next := lookAgain - now.Sub(t.looked); next > 0 && !s.Heard && !s.Due {
		return t, Finding{Reason: t.Reason, Again: next}
	}
	t.looked = now
	var all []Input
	if s.Figures != nil {
		// Decide says for how long nobody told. The autoscaler's log says why.
		all, t.cannot = t.count(s.Figures, s.Share)
	}
	if len(all) == 0 {
		all = []Input{{Share: s.Share, Preview: s.Share == 0}}
	}
	if s.Due {
		newest := &all[len(all)-1]
		newest.Last, newest.Least = s.Last, s.Least
	}
	cannot := cmp.Or(s.Cannot, t.cannot)
	rule, reason := "", cannot
	t.Held, t.Suspect = false, false
	if cannot == "" {
		var d Decision
		for i := range all {
			d, t.State = Decide(g, t.State, all[i], now.Add(-time.Duration(len(all)-1-i)*time.Second))
		}
		if d.Verdict == GoBack {
			// Until the revision is marked, no step is due.
			t.Held, t.Suspect = true, true
			return t, Finding{Back: true, Reason: d.Reason(), Again: lookAgain}
		}
		t.Held, t.Suspect, rule, reason = d.Verdict == Wait, d.Suspects(), d.Rule, d.Reason()
	}
	// A write for each look would be one each second, to the gateways and into the status.
	write := !s.Recorded || t.Held != s.Held || t.Rule != rule || cannot != "" && t.Reason != cannot || s.Due && !t.Held
	if write {
		t.Rule, t.Reason = rule, reason
	}
	return t, Finding{Reason: t.Reason, Write: write, Again: lookAgain}
}

// count takes the seconds that are told of all revisions and were not counted yet, oldest first.
// cannot says why a rollout cannot be judged at all; it goes by the clock then. Told by two
// replicas, those of two revisions end at different moments; what is left over comes with the next
// look.
func (t *Trial) count(told []Figures, share int) (all []Input, cannot string) {
	var until time.Time
	for i := range told {
		switch n := len(told[i].Seconds); {
		case n == 0 && told[i].Uncounted:
			return nil, fmt.Sprintf("the pods of %s are of a version of Ebb that does not count how requests end", told[i].Name)
		case n == 0:
			return nil, ""
		case until.IsZero() || told[i].Seconds[n-1].At.Before(until):
			until = told[i].Seconds[n-1].At
		}
	}
	if !until.After(t.Until) {
		return nil, ""
	}
	seconds := make([][]*Second, len(told))
	for i := range told {
		for k := range told[i].Seconds {
			if s := &told[i].Seconds[k]; s.At.After(t.Until) && !s.At.After(until) {
				seconds[i] = append(seconds[i], s)
			}
		}
	}
	t.Until = until
	// What is judged together counts as one moment, so a look that comes late must not put seconds
	// together, unless it is unknown which of one revision is which of another.
	n := len(seconds[0])
	if slices.ContainsFunc(seconds, func(s []*Second) bool { return len(s) != n }) {
		n = 1
	}
	last := len(told) - 1
	all = make([]Input, n)
	for i := range all {
		all[i] = Input{Told: true, Share: share, Preview: share == 0, NewReady: told[last].Ready}
	}
	for i := range told {
		for k, s := range seconds[i] {
			in := &all[min(k, n-1)]
			if i == last {
				in.New.add(&s.Counts)
			} else {
				in.Old.add(&s.Counts)
			}
		}
		newest := &all[n-1]
		if i == last {
			newest.NewStarts = max(newest.NewStarts, told[i].Starts)
		} else {
			newest.OldStarts = max(newest.OldStarts, told[i].Starts)
		}
	}
	return all, ""
}
