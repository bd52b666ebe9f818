package decide

import (
	"math"
	"time"

	"ebb.dev/ebb/autoscaler/window"
)

// Memory is what a decision remembers of a revision, for another process to go on from.
type Memory struct {
	// At is when it was left.
	At time.Time
	// Windows are those of concurrency and of requests per second, the stable one before the panic one.
	Windows    [4]window.Contents
	Desired    int32
	PanicSince time.Time
	PanicMax   int32
	Floor      int32
	FloorUntil time.Time
	// Delay holds the slots of the scale-down delay, oldest first.
	Delay []DelaySlot
	// Held and Tried are the hysteresis of an adaptive target, and of a try of one.
	Held, Tried Hysteresis
	// Lesson is what is known of an adaptive target.
	Lesson Lesson
}

// Lesson is an Adaptive for another process to go on from, in the middle of a try as well: a try that was dropped would take
// the pods away that it asked for. Its zero value is of one that has not begun.
type Lesson struct {
	Phase                               uint8
	Target, Knee, Learned, Clear, Best  float64
	Since, LearnedAt                    time.Time
	Sum                                 Work
	Seconds                             float64
	Ready, Tried                        int32
	Calm, Strange                       int
	First                               bool
	BeforeConcurrency, BeforeThroughput float64
	BeforeCompleted                     float64
}

// Lesson returns what an Adaptive knows.
func (a Adaptive) Lesson() Lesson {
	return Lesson{Phase: uint8(a.phase), Target: a.target, Knee: a.knee, Learned: a.learned, Clear: a.clear, Best: a.best, Since: a.since,
		LearnedAt: a.learnedAt, Sum: a.sum, Seconds: a.seconds, Ready: a.ready, Tried: a.tried, Calm: a.calm, Strange: a.strange, First: a.first,
		BeforeConcurrency: a.before.concurrency, BeforeThroughput: a.before.throughput, BeforeCompleted: a.before.completed}
}

// GoOn returns the Adaptive that a lesson was of, when the clock of whoever began it was behind by behind. ok is false if the
// lesson makes no sense.
func (l Lesson) GoOn(behind time.Duration, now time.Time) (a Adaptive, ok bool) {
	moved := func(t time.Time) time.Time {
		if t.IsZero() {
			return t
		}
		return t.Add(behind)
	}
	before := point{l.BeforeConcurrency, l.BeforeThroughput, max(l.BeforeCompleted, enoughCompleted)} // an older owner does not tell the last
	a = Adaptive{phase: phase(l.Phase), target: l.Target, knee: l.Knee, learned: l.Learned, clear: l.Clear, best: l.Best, since: moved(l.Since),
		learnedAt: moved(l.LearnedAt), sum: l.Sum, seconds: l.Seconds, ready: l.Ready, tried: l.Tried, calm: l.Calm, strange: l.Strange, first: l.First,
		before: before}
	for _, f := range [...]float64{l.Target, l.Knee, l.Learned, l.Clear, l.Best, l.Sum.Completed, l.Sum.BusySeconds, l.Seconds, l.BeforeConcurrency, l.BeforeThroughput, l.BeforeCompleted} {
		if !valid(f) {
			return Adaptive{}, false
		}
	}
	trying := a.phase == settling || a.phase == measuring
	switch {
	case a.phase > settled, min(l.Ready, l.Tried, l.Sum.Ready) < 0, min(l.Calm, l.Strange) < 0,
		l.Target > 0 && l.Target < lowestLearned,
		trying && (l.Target == 0 || l.BeforeThroughput == 0 || l.BeforeConcurrency == 0),
		a.since.After(now.Add(time.Minute)), a.learnedAt.After(now.Add(time.Minute)):
		return Adaptive{}, false
	}
	return a, true
}

// Learned is what a lesson found out once it has ended, for a process that has no other memory of it. Its zero value is nothing.
type Learned struct {
	// Concurrency is the knee of a pod and Throughput what it gives there, or, with a Throughput of 0, a concurrency at which it was
	// seen not to queue.
	Concurrency, Throughput float64
	// At is when, in Unix seconds.
	At int64
}

// Learned returns what an Adaptive found out. ok is false while it has not.
func (a Adaptive) Learned() (l Learned, ok bool) {
	l.At = a.learnedAt.Unix()
	switch {
	case a.phase != settled:
	case a.target > 0:
		l.Concurrency, l.Throughput, ok = a.knee, a.learned, true
	case a.clear > 0:
		l.Concurrency, ok = a.clear, true
	}
	return l, ok
}

// longestLearned is for how long what was learned is believed: what a function calls, and what it runs on, change in time.
const longestLearned = 30 * 24 * time.Hour

// mostLearned is more than any pod has of requests, or completes in a second.
const mostLearned = 1e7

// Adaptive returns the Adaptive that goes on from there and aims for that share of a pod's capacity. ok is false if what was learned makes
// no sense: it came from outside of the process.
func (l Learned) Adaptive(share float64, now time.Time) (a Adaptive, ok bool) {
	at := time.Unix(l.At, 0)
	switch {
	case !(l.Concurrency >= lowestLearned && l.Concurrency <= mostLearned), !(l.Throughput >= 0 && l.Throughput <= mostLearned), !(share > 0 && share <= 1),
		at.After(now.Add(time.Minute)), now.Sub(at) > longestLearned:
		return Adaptive{}, false
	case l.Throughput == 0:
		return Adaptive{phase: settled, since: now, learnedAt: at, clear: l.Concurrency}, true
	}
	return Adaptive{phase: settled, since: now, learnedAt: at, knee: l.Concurrency, learned: l.Throughput,
		target: math.Max(l.Concurrency*share, lowestLearned)}, true
}

// DelaySlot is the highest scale of two seconds.
type DelaySlot struct {
	At      time.Time // its middle
	Highest int32
}

// Remember returns the memory of a series and the state that goes with it.
func Remember(s *Series, state State, now time.Time) Memory {
	m := Memory{At: now, Desired: state.Desired, PanicSince: state.PanicSince, PanicMax: state.PanicMax, Floor: state.Floor, FloorUntil: state.FloorUntil,
		Held: state.held, Tried: state.tried}
	for i, w := range s.windows() {
		m.Windows[i] = w.Contents()
	}
	for _, slot := range state.delay {
		m.Delay = append(m.Delay, DelaySlot{time.Unix(0, slot.slot*int64(delaySlot)).Add(delaySlot / 2), slot.highest})
	}
	return m
}

func (s *Series) windows() [4]*window.Window {
	return [4]*window.Window{s.concurrency.stable, s.concurrency.panic, s.requests.stable, s.requests.panic}
}

// Recall takes in the memory of another process whose clock was behind by behind, and returns the state to go on with. What this
// process has decided meanwhile is not undercut. ok is false, and nothing is changed, if the memory makes no sense.
func Recall(s *Series, state State, m Memory, behind time.Duration, now time.Time) (next State, ok bool) {
	// Windows count whole seconds of the clock; less than one is the time that the message took.
	shift := int64(behind.Round(time.Second) / time.Second)
	if behind.Abs() <= time.Second {
		shift = 0
	}
	moved := func(t time.Time) time.Time {
		if t.IsZero() {
			return t
		}
		if t = t.Add(behind); t.After(now.Add(time.Hour)) {
			return now.Add(time.Hour) // nothing that is remembered reaches farther
		}
		return t
	}
	if m.Desired < NoDecision || m.PanicMax < 0 || m.Floor < 0 || len(m.Delay) > maxDelaySlots || !m.Held.sensible() || !m.Tried.sensible() || moved(m.PanicSince).After(now.Add(time.Minute)) {
		return state, false
	}
	for i, w := range s.windows() {
		if !w.Absorb(m.Windows[i], m.At.Unix(), shift, now) {
			return state, false
		}
	}
	state.Desired = max(state.Desired, m.Desired)
	// What was found on adoption stood in for the memory.
	state.Floor, state.FloorUntil = m.Floor, moved(m.FloorUntil)
	state.held, state.tried = m.Held, m.Tried
	state.held.Fell, state.tried.Fell = moved(m.Held.Fell), moved(m.Tried.Fell)
	panicked := moved(m.PanicSince)
	if state.assumed {
		state.PanicSince, state.PanicMax, state.assumed = time.Time{}, 0, false
	}
	if panicked.After(state.PanicSince) {
		state.PanicSince = panicked
	}
	if !panicked.IsZero() {
		state.PanicMax = max(state.PanicMax, m.PanicMax)
	}
	for _, slot := range m.Delay {
		state.delay = append(state.delay[:len(state.delay):len(state.delay)], slotMax{moved(slot.At).UnixNano() / int64(delaySlot), max(slot.Highest, 0)})
	}
	state.delay = state.delay.tidy()
	return state, true
}

// maxDelaySlots is an hour of them, and some.
const maxDelaySlots = 2 * 1800
