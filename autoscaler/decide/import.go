package decide

import (
	"math"
	"time"

	"ebb.dev/ebb/autoscaler/window"
)

// shifted converts a time of another process to this process's clock. behind is by how much the
// other clock is behind.
func shifted(t time.Time, behind time.Duration) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(behind)
}

// Import returns the state after another process left from. behind is by how much that process's
// clock is behind. The result is never below what this process has decided. ok is false, and s is
// returned, if from is invalid.
func (s State) Import(from State, behind time.Duration, now time.Time) (next State, ok bool) {
	moved := func(t time.Time) time.Time {
		if t = shifted(t, behind); t.After(now.Add(time.Hour)) {
			return now.Add(time.Hour) // no time in a State is later
		}
		return t
	}
	if from.Desired < NoDecision || from.PanicMax < 0 || from.Floor < 0 || len(from.Delay) > maxDelaySlots ||
		!from.Held.valid() || !from.Tried.valid() || moved(from.PanicSince).After(now.Add(time.Minute)) {
		return s, false
	}
	s.Desired = max(s.Desired, from.Desired)
	// The floor from the adoption is replaced by the state.
	s.Floor, s.FloorUntil = from.Floor, moved(from.FloorUntil)
	s.Held, s.Tried = from.Held, from.Tried
	s.Held.Fell, s.Tried.Fell = moved(from.Held.Fell), moved(from.Tried.Fell)
	if s.Assumed {
		s.PanicSince, s.PanicMax, s.Assumed = time.Time{}, 0, false
	}
	if since := moved(from.PanicSince); !since.IsZero() {
		s.PanicMax = max(s.PanicMax, from.PanicMax)
		if since.After(s.PanicSince) {
			s.PanicSince = since
		}
	}
	s.Delay = s.Delay.merge(from.Delay, moved)
	return s, true
}

// maxDelaySlots is more than the longest scale-down delay, an hour, has.
const maxDelaySlots = 2 * 1800

// Windows are the contents of the windows of concurrency and of requests per second, the stable one
// before the panic one.
type Windows [4]window.Contents

func (s *Series) windows() [4]*window.Window {
	return [4]*window.Window{s.concurrency.stable, s.concurrency.panic, s.requests.stable, s.requests.panic}
}

// Export returns the contents of the windows.
func (s *Series) Export() (w Windows) {
	for i, one := range s.windows() {
		w[i] = one.Export()
	}
	return w
}

// Import adds the load that another process had seen until at. behind is by how much its clock is
// behind. It returns false if the windows are invalid.
func (s *Series) Import(w Windows, at time.Time, behind time.Duration, now time.Time) bool {
	shift := shiftOf(behind)
	for i, one := range s.windows() {
		if !one.Import(w[i], at.Unix(), shift, now) {
			return false
		}
	}
	return true
}

// shiftOf is a difference of clocks in whole seconds, which windows count. One of up to a second is
// the time that the message took.
func shiftOf(behind time.Duration) int64 {
	if behind.Abs() <= time.Second {
		return 0
	}
	return int64(behind.Round(time.Second) / time.Second)
}

// Import returns the Adaptive after another process left from, possibly in the middle of a try:
// dropping the try would remove its pods. behind is by how much that process's clock is behind. The
// zero value means no lesson and leaves a as it is. ok is false if from is invalid.
func (a Adaptive) Import(from Adaptive, behind time.Duration, now time.Time) (next Adaptive, ok bool) {
	if from == (Adaptive{}) {
		return a, true
	}
	for _, f := range [...]float64{from.Aim, from.Knee, from.Rate, from.Clear, from.Best, from.Sum.Completed, from.Sum.BusySeconds,
		from.Seconds, from.Before.Concurrency, from.Before.Throughput, from.Before.Completed} {
		if !valid(f) {
			return Adaptive{}, false
		}
	}
	from.Since, from.LearnedAt = shifted(from.Since, behind), shifted(from.LearnedAt, behind)
	trying := from.Phase == settling || from.Phase == measuring
	switch {
	case from.Phase > settled,
		min(from.Ready, from.Tried, from.Sum.Ready) < 0, min(from.Calm, from.Strange) < 0,
		from.Aim > 0 && from.Aim < lowestLearned,
		trying && (from.Aim == 0 || from.Before.Throughput == 0 || from.Before.Concurrency == 0 || from.Before.Completed == 0),
		from.Since.After(now.Add(time.Minute)), from.LearnedAt.After(now.Add(time.Minute)):
		return Adaptive{}, false
	}
	return from, true
}

// Learned is the result of a finished lesson, as stored in the status. The zero value means none.
type Learned struct {
	// Concurrency is the knee of a pod and Throughput its throughput there. With a Throughput of 0,
	// Concurrency is one at which the pod did not queue.
	Concurrency, Throughput float64
	// At is when it was learned, in Unix seconds.
	At int64
}

// Learned returns the result. ok is false while there is none.
func (a Adaptive) Learned() (l Learned, ok bool) {
	l.At = a.LearnedAt.Unix()
	switch {
	case a.Phase != settled:
	case a.Aim > 0:
		l.Concurrency, l.Throughput, ok = a.Knee, a.Rate, true
	case a.Clear > 0:
		l.Concurrency, ok = a.Clear, true
	}
	return l, ok
}

// maxLearnedAge is how long a result is valid. The function, its dependencies and its nodes change
// over time.
const maxLearnedAge = 30 * 24 * time.Hour

// maxLearned is above the concurrency and the throughput of any pod.
const maxLearned = 1e7

// Adaptive returns an Adaptive that continues from the result. share is the share of a pod's
// capacity to aim for. ok is false if the result, which comes from outside the process, is invalid.
func (l Learned) Adaptive(share float64, now time.Time) (a Adaptive, ok bool) {
	at := time.Unix(l.At, 0)
	switch {
	case !(l.Concurrency >= lowestLearned && l.Concurrency <= maxLearned), !(l.Throughput >= 0 && l.Throughput <= maxLearned),
		!(share > 0 && share <= 1), at.After(now.Add(time.Minute)), now.Sub(at) > maxLearnedAge:
		return Adaptive{}, false
	case l.Throughput == 0:
		return Adaptive{Phase: settled, Since: now, LearnedAt: at, Clear: l.Concurrency}, true
	}
	return Adaptive{Phase: settled, Since: now, LearnedAt: at, Knee: l.Concurrency, Rate: l.Throughput,
		Aim: math.Max(l.Concurrency*share, lowestLearned)}, true
}
