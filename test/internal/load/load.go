// Package load keeps a number of requests in flight: a closed loop, in which each client sends its
// next request when the previous one is answered. Sockets can send at a rate, too.
//
// Owns: its goroutines and the report. Reads: responses; the CPU time of the machine and of this
// process. Writes: nothing. Never: retries.
package load

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

// Loop is what to send. It ends after Lasts or after Requests, whichever comes first; 0 is no
// bound, but one of the two must be set.
type Loop struct {
	Client      *http.Client
	URL         string
	Outstanding int
	Lasts       time.Duration
	Requests    int
	// Body is sent with POST if it is set.
	Body string
	// TooLate is how long an answer may take, 0 for any time. A later one is no success.
	TooLate time.Duration
}

// Report is the outcome of a Loop.
type Report struct {
	Begun         time.Time
	Lasted        time.Duration // from the first request to the last answer, or Loop.Lasts if that was the bound
	Outstanding   int
	Total, Failed int
	Failure       probe.Reply // the first one
	TooLate       int         // 2xx after more than Loop.TooLate; they are not among Failed
	Late          int         // answered with success in the last third of Loop.Lasts
	inTime        int         // answered with success before the end, if Loop.Lasts set one
	Seconds       []int       // successes of each second
	Pods          map[string]int
	LatePods      map[string]int // as Pods, of the last third
	took          []float64      // milliseconds, of all answers
	served        []time.Duration
	limit         time.Duration // Loop.TooLate
}

// Run runs the loop.
func (l Loop) Run(ctx context.Context) *Report {
	r := &Report{Begun: time.Now(), Outstanding: l.Outstanding, limit: l.TooLate, Pods: map[string]int{}, LatePods: map[string]int{}}
	var end, lateFrom time.Time
	if l.Lasts > 0 {
		end = r.Begun.Add(l.Lasts)
		lateFrom = end.Add(-l.Lasts / 3)
	}
	var sent atomic.Int64
	more := func() bool {
		return ctx.Err() == nil && (end.IsZero() || time.Now().Before(end)) && (l.Requests == 0 || sent.Add(1) <= int64(l.Requests))
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for range l.Outstanding {
		all.Go(func() {
			for more() {
				reply := l.send(ctx)
				mu.Lock()
				r.note(reply, end, lateFrom)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	r.Lasted = time.Since(r.Begun)
	if l.Lasts > 0 && r.Lasted > l.Lasts {
		r.Lasted = l.Lasts
	}
	return r
}

func (l Loop) send(ctx context.Context) probe.Reply {
	if l.Body == "" {
		return probe.Get(ctx, l.Client, l.URL)
	}
	return probe.Post(ctx, l.Client, l.URL, l.Body)
}

func (r *Report) note(reply probe.Reply, end, lateFrom time.Time) {
	done := time.Now()
	r.Total++
	r.took = append(r.took, result.Milliseconds(reply.Took))
	pod := reply.Header.Get("X-Pod-Name")
	if pod != "" {
		if r.Pods[pod]++; r.Pods[pod] == 1 {
			r.served = append(r.served, done.Sub(r.Begun))
		}
	}
	if !reply.OK() {
		if r.Failed++; r.Failed == 1 {
			r.Failure = reply
		}
		return
	}
	if r.limit > 0 && reply.Took > r.limit {
		r.TooLate++
		return
	}
	if end.IsZero() || done.Before(end) {
		r.inTime++
	}
	second := int(done.Sub(r.Begun) / time.Second)
	for len(r.Seconds) <= second {
		r.Seconds = append(r.Seconds, 0)
	}
	r.Seconds[second]++
	if !end.IsZero() && done.After(lateFrom) && done.Before(end) {
		r.Late++
		if pod != "" {
			r.LatePods[pod]++
		}
	}
}

// RPS is the rate of successes. What was in flight at the end does not count.
func (r *Report) RPS() float64 { return float64(r.inTime) / r.Lasted.Seconds() }

// LateRPS is the rate of the last third, when all wanted pods are ready.
func (r *Report) LateRPS() float64 { return float64(r.Late) / (r.Lasted.Seconds() / 3) }

// Quantile returns the q-quantile (0 to 1) of the times of all answers, in milliseconds.
func (r *Report) Quantile(q float64) float64 { return result.Quantile(r.took, q) }

// ServedBy returns the seconds until n pods had answered a request, nil if fewer did.
func (r *Report) ServedBy(n int) any {
	if len(r.served) < n {
		return nil
	}
	return result.Milliseconds(r.served[n-1]) / 1000
}

// Fields are the members of the report that every benchmark prints. too_late is there if answers
// had a limit.
func (r *Report) Fields() result.Fields {
	fields := result.Fields{"outstanding": r.Outstanding, "requests": r.Total, "failed": r.Failed, "rps": r.RPS(),
		"p50_ms": r.Quantile(0.5), "p99_ms": r.Quantile(0.99)}
	if r.limit > 0 {
		fields["too_late"] = r.TooLate
	}
	return fields
}
