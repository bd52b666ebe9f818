package decide

import (
	"fmt"
	"math"
	"time"
)

// Timing and thresholds of learning. A step takes settleTime, a measurement, and the start of the
// pods.
const (
	// settleTime passes between a change of the number of pods and the start of a measurement.
	// measureTime is the minimum length of a measurement, patience the maximum wait for the pods of
	// a try.
	settleTime  = 2 * time.Second
	measureTime = 3 * time.Second
	patience    = 60 * time.Second
	// A measurement uses sureCompleted requests if they complete within sureTime. Otherwise it
	// needs at least enoughCompleted, and ends after maxMeasure.
	sureCompleted   = 600
	sureTime        = 10 * time.Second
	enoughCompleted = 40
	maxMeasure      = 30 * time.Second
	// maxAsk is how long a try waits until more pods are asked for. A bound may prevent this.
	maxAsk = 10 * time.Second
	// saturated is the share of its throughput that a pod keeps at half the concurrency if the
	// other half was only queued.
	saturated = 0.85
	// changed is the deviation from the learned values that counts as a new behaviour if it lasts
	// for oddSeconds. relearnAfter is the minimum time between two lessons, so that noise does not
	// cause oscillation.
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
	watching  phase = iota // at the configured target, waiting for enough load
	settling               // the pods of a try are starting
	measuring              // a try is running
	settled                // the knee is known
)

// Work is the sum over a revision's pods of what they did in one second.
type Work struct {
	// Completed requests, and BusySeconds that requests spent in the user containers.
	Completed, BusySeconds float64
	// Ready pods did it; Wanted were asked for.
	Ready, Wanted int32
}

// point is a measurement of one pod: its mean concurrency, its throughput in requests per second,
// and the number of completed requests, over all pods, that it is based on.
type point struct{ Concurrency, Throughput, Completed float64 }

// responseTime follows from Little's law.
func (p point) responseTime() float64 { return p.Concurrency / p.Throughput }

// Adaptive learns the knee of a pod: the concurrency at which its throughput is highest. Beyond the
// knee, additional requests only wait inside the pod.
//
// It halves the concurrency of each pod, by asking for more pods, until the throughput per pod
// falls. Then nothing is queued in the pods, the response time is the bare service time, and the
// knee is the highest throughput × bare response time (Little's law at the asymptotes of
// operational analysis: Denning and Buzen, The Operational Analysis of Queueing Network Models,
// 1978).
//
// It never learns a target above the configured one, and keeps the configured one while it has no
// result. As with a configured target, the knee is the pod's capacity, and the autoscaler aims for
// the target utilization of it. A pod at the knee has no room for uneven arrivals, and its
// throughput falls below the maximum.
//
// The zero value is ready for use. Adaptive is a value: Learn returns the next one.
type Adaptive struct {
	Phase phase
	// Aim is the target in force, 0 for the configured one.
	Aim     float64
	Since   time.Time // when the phase began
	Sum     Work      // of the measurement under way
	Seconds float64
	// Ready is the number of pods in the last second. A measurement covers one number of pods.
	Ready int32
	// Before is the point that a try is compared with, Best the highest throughput in the lesson.
	Before point
	Best   float64
	// Tried is the number of pods when the try began, Calm for how many seconds it has been the
	// number wanted.
	Tried int32
	Calm  int
	First bool // no try of the lesson has been compared yet
	// Knee is the concurrency at the knee and Rate the throughput there, learned at LearnedAt.
	// Strange counts the seconds that do not fit them.
	Knee      float64
	Rate      float64
	LearnedAt time.Time
	Strange   int
	// Clear is a concurrency at which nothing was queued in a pod, if the knee is not known.
	Clear float64
}

// Target returns the target in force, given the configured one.
func (a Adaptive) Target(configured float64) float64 {
	if a.Aim > 0 {
		return math.Min(a.Aim, configured)
	}
	return configured
}

// Config returns the configuration of the formula for a revision that learns.
func (a Adaptive) Config(c Config) Config {
	c.Target, c.Steady, c.Trying = a.Target(c.Target), true, a.Phase == settling || a.Phase == measuring
	return c
}

// String describes the result for reasons and logs.
func (a Adaptive) String() string {
	switch {
	case a.Phase == settled && a.Aim > 0:
		return fmt.Sprintf("learned target %s (a pod's knee is at %s, with %s requests/s)", number(a.Aim), number(a.Knee), number(a.Rate))
	case a.Phase == settling || a.Phase == measuring:
		return fmt.Sprintf("trying target %s", number(a.Aim))
	}
	return "nothing learned, configured target"
}

// Learn takes the work of one second and returns the next state. configured is the target without
// learning. share is the share of a pod's capacity to aim for, above 0 and at most 1.
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
			return a.giveUp(now) // a bound, or no room in the cluster
		case age >= patience || a.Calm >= int(settleTime/time.Second) && (w.Ready > a.Tried || age >= maxAsk):
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
		return a.enter(watching, now) // the load is uneven while pods start and stop
	}
	a.Sum.Completed += w.Completed
	a.Sum.BusySeconds += w.BusySeconds
	a.Sum.Ready += w.Ready
	a.Seconds++
	age := now.Sub(a.Since)
	sure := a.Sum.Completed >= sureCompleted || a.Sum.Completed >= enoughCompleted && age >= sureTime
	if age < measureTime || !sure && age < maxMeasure {
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

// compare evaluates one measurement.
func (a Adaptive) compare(now time.Time, configured, share float64, p point) Adaptive {
	a.Best = math.Max(a.Best, p.Throughput)
	if a.Phase == watching {
		// A pod with about one request has no queue.
		if p.Concurrency < leastTried {
			return a.enter(watching, now)
		}
		a.First = true
		return a.try(now, configured, p)
	}
	kept := p.Throughput / a.Before.Throughput
	if p.Concurrency > 0.75*a.Before.Concurrency {
		// A bound prevents less load per pod. The requests may still be queued in the pods, so
		// there is no result.
		if p.Concurrency < 0.95*a.Before.Concurrency && kept >= (1+p.Concurrency/a.Before.Concurrency)/2 {
			a.Before, a.First = p, false
		}
		return a.giveUp(now)
	}
	// The throughput that would remain if nothing was queued.
	proportional := p.Concurrency / a.Before.Concurrency
	least := saturated
	if a.First { // a wrong "no" ends the lesson, so allow twice the deviation of both counts
		least -= 2 * math.Sqrt(1/a.Before.Completed+1/p.Completed)
	}
	if kept >= math.Max(least, (1+proportional)/2) && p.Concurrency/2 >= lowestLearned {
		a.First = false
		return a.try(now, configured, p)
	}
	if a.Before.Throughput >= a.Best && a.First {
		// Throughput fell with concurrency at the first try. So nothing was queued before it, and
		// the knee is above: there is no result.
		return a.cannotTell(now)
	}
	a.Knee = math.Max(math.Min(math.Max(a.Best*p.responseTime(), p.Concurrency), a.Before.Concurrency), lowestLearned)
	a.Aim = math.Max(a.Knee*share, lowestLearned)
	a.Rate, a.LearnedAt, a.Strange = a.Best, now, 0
	return a.enter(settled, now)
}

// try asks for half of the present concurrency per pod.
func (a Adaptive) try(now time.Time, configured float64, p point) Adaptive {
	a.Before, a.Tried, a.Calm = p, a.Ready, 0
	a.Aim = math.Max(math.Min(p.Concurrency, configured)/2, lowestLearned)
	return a.enter(settling, now)
}

// giveUp keeps the concurrency at the start of the last try, which is known not to be too low.
// After the first try nothing is known, and the configured target applies.
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

// watch looks for work that does not fit the result: more or less throughput than the concurrency
// explains.
func (a Adaptive) watch(now time.Time, w Work) Adaptive {
	if w.Completed < 1 {
		return a
	}
	p := point{w.BusySeconds / float64(w.Ready), w.Completed / float64(w.Ready), w.Completed}
	if a.Clear > 0 {
		// More requests in fewer pods, at the same response time, are not queued in the pods. More
		// pods would give the same result as the last try.
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
		odd = p.Throughput > (1+changed)*a.Rate // the response time of pods with little load varies
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
