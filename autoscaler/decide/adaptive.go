package decide

import (
	"fmt"
	"math"
	"time"
)

// Timing and thresholds of learning. A step takes settleTime, a measurement, and the start of the
// pods.
const (
	// settleTime passes between a change of pods and the begin of a measurement, measureTime is the
	// least length of one, patience how long the pods asked for are waited for.
	settleTime  = 2 * time.Second
	measureTime = 3 * time.Second
	patience    = 60 * time.Second
	// sureCompleted is the number of requests that a measurement stands on, if they come within
	// sureTime; enoughCompleted the least one, and longestMeasure how long it may take to collect
	// that.
	sureCompleted   = 600
	sureTime        = 10 * time.Second
	enoughCompleted = 40
	longestMeasure  = 30 * time.Second
	// longestAsk is how long a try waits for more pods to be asked for; bounds may forbid it.
	longestAsk = 10 * time.Second
	// saturated is the share of its throughput that a pod must keep at half the concurrency for the
	// other half to have been a mere queue.
	saturated = 0.85
	// changed is the deviation from what was learned that, over oddSeconds, is taken for a new
	// behaviour, and relearnAfter the least time between two lessons, so that noise does not become
	// oscillation.
	changed      = 0.4
	oddSeconds   = 20
	relearnAfter = 2 * time.Minute
	// leastTried is the concurrency below which nothing is tried.
	leastTried = 1.5
	// lowestLearned is the least target that is learned or tried.
	lowestLearned = 0.25
)

// phase is what an Adaptive is doing.
type phase uint8

const (
	watching  phase = iota // at the configured target, waiting for enough load to tell anything
	settling               // the pods of a try are starting
	measuring              // a try is running
	settled                // the knee is known
)

// Work is what the pods of a revision did in a second, summed over them.
type Work struct {
	// Completed requests, and BusySeconds that requests spent in the user containers.
	Completed, BusySeconds float64
	// Ready pods did it; Wanted were asked for.
	Ready, Wanted int32
}

// point is a measured state of one pod: its mean concurrency and its throughput in requests a
// second, and how many requests of all pods that stands on.
type point struct{ Concurrency, Throughput, Completed float64 }

// responseTime is by Little's law.
func (p point) responseTime() float64 { return p.Concurrency / p.Throughput }

// Adaptive learns at which concurrency a pod reaches the most throughput it can give: the knee,
// beyond which more concurrency only waits inside the pod. It halves the concurrency of each pod,
// by asking for more of them, until throughput per pod falls with it. Then the pods no longer
// queue, their response time is the bare one, and the knee is most throughput × bare response time
// (Little's law at the asymptotes of operational analysis: Denning and Buzen, The Operational
// Analysis of Queueing Network Models, 1978). It never learns a target above the configured one,
// and stays with that one while it cannot tell. As of a configured target, it is the pod's
// capacity, of which the target utilization is aimed for: at the knee itself a pod has nothing left
// for requests that come unevenly, and gives less than its most.
//
// Its zero value is ready for use. It is a value: Learn returns the next one.
type Adaptive struct {
	Phase phase
	// Aim is the target in force, 0 for the configured one.
	Aim     float64
	Since   time.Time // when the phase began
	Sum     Work      // of the measurement under way
	Seconds float64
	// Ready is how many pods the last second had: a measurement is of one number of pods.
	Ready int32
	// Before is the state that the try is compared with, Best the highest throughput seen in the
	// lesson.
	Before point
	Best   float64
	// Tried is how many pods there were when the try began, Calm for how many seconds their number
	// has been the one wanted.
	Tried int32
	Calm  int
	First bool // no try of the lesson has been compared yet
	// Knee is the concurrency at the knee and Rate the throughput there, learned at LearnedAt.
	// Strange counts the seconds that do not fit them.
	Knee      float64
	Rate      float64
	LearnedAt time.Time
	Strange   int
	// Clear is a concurrency at which a pod did not queue while the knee stayed unknown.
	Clear float64
}

// Target returns the target in force, given the configured one.
func (a Adaptive) Target(configured float64) float64 {
	if a.Aim > 0 {
		return math.Min(a.Aim, configured)
	}
	return configured
}

// Config returns what a revision that learns is decided by.
func (a Adaptive) Config(c Config) Config {
	c.Target, c.Steady, c.Trying = a.Target(c.Target), true, a.Phase == settling || a.Phase == measuring
	return c
}

// String says what is known, for reasons and logs.
func (a Adaptive) String() string {
	switch {
	case a.Phase == settled && a.Aim > 0:
		return fmt.Sprintf("learned target %s (a pod's knee is at %s, with %s requests/s)", number(a.Aim), number(a.Knee), number(a.Rate))
	case a.Phase == settling || a.Phase == measuring:
		return fmt.Sprintf("trying target %s", number(a.Aim))
	}
	return "nothing learned, configured target"
}

// Learn takes the work of one second in and returns the next state. configured is the target in
// force without learning, share the share of a pod's capacity that is aimed for, above 0 and at
// most 1.
func (a Adaptive) Learn(now time.Time, configured, share float64, w Work) Adaptive {
	if w.Ready == 0 {
		if a.Phase != settled {
			return Adaptive{}
		}
		return a
	}
	if a.Since.IsZero() {
		a.Since = now
	}
	steady := w.Ready == a.Ready && w.Wanted == w.Ready
	a.Ready = w.Ready
	switch a.Phase {
	case settling:
		switch age := now.Sub(a.Since); {
		case w.Ready < w.Wanted && age > patience:
			return a.giveUp(now) // a bound, or no room in the cluster: no more can be tried
		case age >= patience || a.Calm >= int(settleTime/time.Second) && (w.Ready > a.Tried || age >= longestAsk):
			return a.enter(measuring, now)
		case steady:
			a.Calm++
		default:
			a.Calm = 0
		}
		return a
	case settled:
		return a.watch(now, w)
	}

	if !steady && a.Phase == watching {
		return a.enter(watching, now) // pods that come and go share the load unevenly
	}
	a.Sum.Completed += w.Completed
	a.Sum.BusySeconds += w.BusySeconds
	a.Sum.Ready += w.Ready
	a.Seconds++
	age := now.Sub(a.Since)
	sure := a.Sum.Completed >= sureCompleted || a.Sum.Completed >= enoughCompleted && age >= sureTime
	if age < measureTime || !sure && age < longestMeasure {
		return a
	}
	p := point{a.Sum.BusySeconds / float64(a.Sum.Ready), a.Sum.Completed / float64(a.Sum.Ready), a.Sum.Completed}
	if a.Sum.Completed < enoughCompleted || p.Concurrency <= 0 {
		if a.Phase == watching {
			return a.enter(watching, now)
		}
		return a.giveUp(now)
	}
	return a.compare(now, configured, share, p)
}

// compare draws the lesson of one measurement.
func (a Adaptive) compare(now time.Time, configured, share float64, p point) Adaptive {
	a.Best = math.Max(a.Best, p.Throughput)
	if a.Phase == watching {
		// About one request in a pod cannot queue.
		if p.Concurrency < leastTried {
			return a.enter(watching, now)
		}
		a.First = true
		return a.try(now, configured, p)
	}
	kept := p.Throughput / a.Before.Throughput
	if p.Concurrency > 0.75*a.Before.Concurrency {
		// A bound keeps the pods from having less each. What they have is still queue, or it cannot
		// be told.
		if p.Concurrency < 0.95*a.Before.Concurrency && kept >= (1+p.Concurrency/a.Before.Concurrency)/2 {
			a.Before, a.First = p, false
		}
		return a.giveUp(now)
	}
	// What would be left of the throughput if it were all work and no queue.
	proportional := p.Concurrency / a.Before.Concurrency
	least := saturated
	if a.First { // a wrong "no" ends the lesson, so chance gets twice the deviation of both counts
		least -= 2 * math.Sqrt(1/a.Before.Completed+1/p.Completed)
	}
	if kept >= math.Max(least, (1+proportional)/2) && p.Concurrency/2 >= lowestLearned {
		a.First = false
		return a.try(now, configured, p)
	}
	if a.Before.Throughput >= a.Best && a.First {
		// Throughput fell with concurrency from the first try on, so what was there before was no
		// queue, and the knee lies somewhere above: it cannot be told.
		return a.cannotTell(now)
	}
	a.Knee = math.Max(math.Min(math.Max(a.Best*p.responseTime(), p.Concurrency), a.Before.Concurrency), lowestLearned)
	a.Aim = math.Max(a.Knee*share, lowestLearned)
	a.Rate, a.LearnedAt, a.Strange = a.Best, now, 0
	return a.enter(settled, now)
}

// try asks for half of the present concurrency in each pod.
func (a Adaptive) try(now time.Time, configured float64, p point) Adaptive {
	a.Before, a.Tried, a.Calm = p, a.Ready, 0
	a.Aim = math.Max(math.Min(p.Concurrency, configured)/2, lowestLearned)
	return a.enter(settling, now)
}

// giveUp keeps the concurrency that the last try began at, of which is known that it is not too
// low; if it was the first try, nothing is known and the configured target holds.
func (a Adaptive) giveUp(now time.Time) Adaptive {
	if a.First {
		return a.cannotTell(now)
	}
	a.Aim, a.Knee = a.Before.Concurrency, a.Before.Concurrency
	a.Rate, a.LearnedAt, a.Strange = a.Best, now, 0
	return a.enter(settled, now)
}

// cannotTell ends a lesson with the configured target.
func (a Adaptive) cannotTell(now time.Time) Adaptive {
	return Adaptive{Clear: a.Before.Concurrency, Before: a.Before, LearnedAt: now}.enter(settled, now)
}

func (a Adaptive) enter(next phase, now time.Time) Adaptive {
	a.Phase, a.Since, a.Sum, a.Seconds = next, now, Work{}, 0
	if next == watching {
		a.Best = 0
	}
	return a
}

// watch looks for work that does not fit what was learned: more or less throughput than the
// concurrency should bring.
func (a Adaptive) watch(now time.Time, w Work) Adaptive {
	if w.Completed < 1 {
		return a
	}
	p := point{w.BusySeconds / float64(w.Ready), w.Completed / float64(w.Ready), w.Completed}
	if a.Clear > 0 {
		// More requests in fewer pods that are answered as fast do not queue in these: more pods
		// would do as little as at the last try.
		asFast := a.Before.Throughput > 0 && p.responseTime()*saturated < a.Before.responseTime()
		if p.Concurrency < 1.5*a.Clear || asFast {
			a.Strange = 0
		} else if a.Strange++; a.Strange >= oddSeconds && now.Sub(a.LearnedAt) >= relearnAfter {
			return Adaptive{}.enter(watching, now)
		}
		return a
	}
	expected := a.Rate * math.Min(1, p.Concurrency/math.Max(a.Knee, lowestLearned))
	odd := math.Abs(p.Throughput-expected) > changed*expected
	if p.Concurrency < a.Aim/2 {
		odd = p.Throughput > (1+changed)*a.Rate // hardly loaded pods answer as they like
	}
	if !odd {
		a.Strange = 0
		return a
	}
	a.Strange++
	if a.Strange < oddSeconds || now.Sub(a.LearnedAt) < relearnAfter {
		return a
	}
	return Adaptive{}.enter(watching, now)
}
