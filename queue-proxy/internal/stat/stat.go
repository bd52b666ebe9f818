// Package stat is the load of this pod: time-weighted concurrency and counts per reporting period,
// for the autoscaler.
//
// Owns: the figures of the current and the last period. Reads: the times it is given. Writes:
// answers to scrapes, and reports pushed when a queue forms or load doubles. Never: locks; its
// caller, the gate, guards it together with the limit, so that one lock per request's begin and end
// suffices.
package stat

import (
	"time"

	"ebb.dev/ebb/wire"
)

// Load is the ledger. Begin, End and the others take the time of the event, which may be a little
// out of order.
type Load struct {
	began time.Time // of the process
	since time.Time // of the period
	last  time.Time // of the last change

	inside, proxied, busy            int     // requests in the pod; those the activator counts; those in the container
	insideTime, proxiedTime, busySum float64 // request-seconds of the period
	arrived, arrivedProxied          float64
	completed                        float64

	ended wire.Outcomes // of the period, without those that the activator counts

	judged wire.Judged   // since the process began, those too that came through an activator
	warm   time.Time     // from when on the times of requests count; zero before the first one
	warmUp time.Duration // see wire.Sidecar

	told float64 // the concurrency last reported, without what the activator counts
}

// leastGrowth is how many requests more than last reported are worth a push.
const leastGrowth = 5

// New starts the first period.
func New(now time.Time, warmUp time.Duration) *Load {
	return &Load{began: now, since: now, last: now, warmUp: warmUp}
}

func (l *Load) advance(now time.Time) {
	d := now.Sub(l.last).Seconds()
	if d <= 0 {
		return
	}
	l.insideTime += d * float64(l.inside)
	l.proxiedTime += d * float64(l.proxied)
	l.busySum += d * float64(l.busy)
	l.last = now
}

// Arrive notes a request; proxied says that an activator counts it too.
func (l *Load) Arrive(now time.Time, proxied bool) {
	l.advance(now)
	l.inside++
	l.arrived++
	if proxied {
		l.proxied++
		l.arrivedProxied++
	}
}

// Run notes that a request went to the container.
func (l *Load) Run(now time.Time) {
	l.advance(now)
	l.busy++
	if l.warm.IsZero() {
		l.warm = now.Add(l.warmUp)
	}
}

// Cool notes that the container will be cold at the next request.
func (l *Load) Cool() { l.warm = time.Time{} }

// Judge notes the end of a request that the judge of rollouts counts. sent is when the container
// got it; a time that says nothing is not timed.
func (l *Load) Judge(sent time.Time, took time.Duration, failed, timed bool) {
	if failed {
		l.judged.Failed++
	} else {
		l.judged.Good++
	}
	l.Left(sent, took, timed)
}

// Left notes a request whose client waited so long, and left. It says nothing of who failed, but
// who never answers must not look as if nobody had asked.
func (l *Load) Left(sent time.Time, took time.Duration, timed bool) {
	if timed && !l.warm.IsZero() && !sent.Before(l.warm) {
		l.judged.Latency.Add(took)
	}
}

// Sender notes which drawer the sender of a request has that the judge of rollouts counts. It is
// called besides Judge.
func (l *Load) Sender(drawer int, failed bool) { count(&l.judged.Senders[drawer], failed) }

// Tagged notes the end of a request that came by a tag. It is called instead of Judge.
func (l *Load) Tagged(failed bool) { count(&l.judged.Tagged, failed) }

func count(s *wire.Sender, failed bool) {
	if failed {
		s.Failed++
	} else {
		s.Good++
	}
}

// Judged is what Judge, Sender and Tagged have noted since the process began.
func (l *Load) Judged() wire.Judged { return l.judged }

// Refuse notes that the request, which arrived and leaves now, found the pod full.
func (l *Load) Refuse(now time.Time, proxied bool, status int) {
	l.Leave(now, proxied, false)
	l.ended.Refused++
	l.End(proxied, status, 0)
}

// End notes how a request ended. It is called besides Leave.
func (l *Load) End(proxied bool, status int, took time.Duration) {
	if !proxied {
		l.ended.End(status, took)
	}
}

// Leave notes the end of a request that had been given to the container, or (ran false) had not.
func (l *Load) Leave(now time.Time, proxied, ran bool) {
	l.advance(now)
	l.inside--
	if proxied {
		l.proxied--
	}
	if ran {
		l.busy--
		l.completed++
	}
}

// Grew reports true once the requests that no activator counts are at least twice, and leastGrowth
// more than, what was last reported. Where pods have no limit nothing ever waits, so this is the
// only edge of a burst.
func (l *Load) Grew() bool {
	own := float64(l.inside - l.proxied)
	if own < 2*l.told || own < l.told+leastGrowth {
		return false
	}
	l.told = own
	return true
}

// Rising reports true when a tenth more requests that no activator counts are here than were last
// reported. Asked a moment after a push, it tells whether that saw the middle of a burst, which may
// end below twice what was pushed.
func (l *Load) Rising() bool {
	own := float64(l.inside - l.proxied)
	return own >= l.told*1.1 && own >= l.told+1
}

// Inside is the number of requests in the pod now.
func (l *Load) Inside() int { return l.inside }

// Close ends the period and returns its report.
func (l *Load) Close(now time.Time, pod string, queued int) wire.Stat {
	s := l.Peek(now, pod, queued)
	if l.ended != (wire.Outcomes{}) {
		ended := l.ended
		s.Ended, l.ended = &ended, wire.Outcomes{}
	}
	l.since = now
	l.told = s.AverageConcurrent - s.AverageProxiedConcurrent
	l.insideTime, l.proxiedTime, l.busySum = 0, 0, 0
	l.arrived, l.arrivedProxied, l.completed = 0, 0, 0
	return s
}

// Peek is the report of the period so far.
func (l *Load) Peek(now time.Time, pod string, queued int) wire.Stat {
	l.advance(now)
	s := wire.Stat{
		PodName:         pod,
		Requests:        l.arrived,
		ProxiedRequests: l.arrivedProxied,
		ProcessUptime:   now.Sub(l.began).Seconds(),
		Timestamp:       now.UnixMilli(),
		Queued:          float64(queued),
		Completed:       l.completed,
		BusySeconds:     l.busySum,
	}
	if d := now.Sub(l.since).Seconds(); d > 0 {
		s.AverageConcurrent = l.insideTime / d
		s.AverageProxiedConcurrent = l.proxiedTime / d
	}
	return s
}

// Now is the report that is pushed under pressure: the concurrency of this moment rather than a
// mean over a period that has hardly begun.
func (l *Load) Now(now time.Time, pod string, queued int) wire.Stat {
	s := l.Peek(now, pod, queued)
	s.AverageConcurrent = float64(l.inside)
	s.AverageProxiedConcurrent = float64(l.proxied)
	l.told = float64(l.inside - l.proxied)
	return s
}
