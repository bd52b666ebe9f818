package revision

import (
	"time"

	"ebb.dev/ebb/autoscaler/decide"
)

const (
	// regular is the least time between two regular reports of one reporter. A report that comes
	// sooner was sent out of turn; the next regular report counts the same requests.
	regular = 600 * time.Millisecond
	// silent is how long a reporter must have been silent for its first report with queued requests
	// to count as sent out of turn.
	silent = 1500 * time.Millisecond
	// clockJump is how far a reporter's timestamps may go back before a single report proves that
	// its clock was set. For less, the second late report in a row proves it.
	clockJump = time.Minute
	// maxReporters bounds the memory spent on reporters.
	maxReporters = 512
)

// Refusal says why a report did not count.
type Refusal string

// The refusals of a well-formed report.
const (
	Accepted  Refusal = ""
	Invalid   Refusal = "invalid"
	Late      Refusal = "late"
	Duplicate Refusal = "duplicate"
	Crowded   Refusal = "too-many-reporters"
)

// Sample is one report of an activator, or of a pod that sent it by itself.
type Sample struct {
	Reporter string
	Report   decide.Report
	// Timestamp is the reporter's, in milliseconds, 0 when not given.
	Timestamp int64
	// OutOfTurn says that the reporter's next regular report counts the same requests.
	OutOfTurn bool
}

// reports is what is known of who tells the load.
type reports struct {
	reporters map[string]reporter
	// scraping says that a scrape is under way; scrapeDue is when it was due.
	scraping  bool
	scrapeDue time.Time
}

type reporter struct {
	// seen is the last report, added the last one that entered the windows.
	seen, added time.Time
	// timestamp is that of the newest report, regular that of the newest regular one. They differ
	// because a report sent out of turn may overtake a regular one.
	timestamp, regular int64
	report             decide.Report
	// late is the timestamp of the newest late regular report since the last one in time, and
	// lateAt is when it arrived.
	late   int64
	lateAt time.Time
}

// setBack reports whether a late report shows that the reporter's clock was set back. Single
// reports can be late; after a clock change all of them are, each a period after the other.
func (r reporter) setBack(timestamp int64, now time.Time) bool {
	return r.late != 0 && timestamp > r.late && now.Sub(r.lateAt) >= regular
}

// Record adds one report to the load series.
func (r *Revision) Record(s Sample, now time.Time) Refusal {
	r.wake()
	known, seen := r.reporters[s.Reporter]
	if !seen && len(r.reporters) >= maxReporters {
		r.forgetReporters(now)
		if len(r.reporters) >= maxReporters {
			return Crowded
		}
	}
	// A single pod's report is never regular: the scrape counts the same requests. Reporters that
	// do not mark reports sent out of turn are recognized by their timing.
	outOfTurn := s.OutOfTurn || s.Report.OnePod || now.Sub(known.added) < regular || s.Report.Queued > 0 && now.Sub(known.seen) > silent
	overtaken := false
	if s.Timestamp != 0 && known.timestamp != 0 {
		back := known.timestamp - s.Timestamp
		switch {
		case back == 0 && known.report == s.Report:
			return Duplicate
		case back <= 0 || back >= clockJump.Milliseconds():
		case !outOfTurn && known.setBack(s.Timestamp, now):
		case outOfTurn || s.Timestamp == known.regular && known.regular != 0 || s.Timestamp < known.regular:
			if !outOfTurn && (known.late == 0 || s.Timestamp < known.late) {
				known.late, known.lateAt = s.Timestamp, now
				r.reporters[s.Reporter] = known
			}
			return Late
		default:
			overtaken = true
		}
	}
	if r.reporters == nil {
		r.reporters = map[string]reporter{}
	}
	var accepted bool
	switch {
	case outOfTurn:
		accepted = r.series.Press(now, s.Reporter, s.Report)
	case overtaken:
		accepted = r.series.Overtaken(now, s.Reporter, s.Report)
	default:
		accepted = r.series.Add(now, s.Reporter, s.Report)
	}
	if !accepted {
		return Invalid
	}
	r.noteQueue(s.Report)
	known.seen, known.late = now, 0
	if !overtaken {
		known.report = s.Report
	}
	if !outOfTurn {
		known.added = now
		known.regular = s.Timestamp
	}
	if s.Timestamp != 0 && !overtaken {
		known.timestamp = s.Timestamp
	}
	r.reporters[s.Reporter] = known
	return Accepted
}

// noteQueue remembers with how many ready pods a queue formed.
func (r *Revision) noteQueue(report decide.Report) {
	if report.Queued > 0 {
		r.queuedAt = r.counts.Ready
	}
}

// forgetReporters forgets reporters that have been silent for so long that no report of theirs can
// still be under way.
func (r *Revision) forgetReporters(now time.Time) {
	for name, one := range r.reporters {
		if now.Sub(one.seen) > clockJump {
			delete(r.reporters, name)
		}
	}
}
