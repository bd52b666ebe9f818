// Package keep decides how many pods that nobody needs now stay asleep, and for how long.
//
// Owns: for each rank of a revision's pods, since when it is idle and a histogram of its idle
// times.
// Reads: the configuration and the time that the caller passes.
// Writes: nothing but its results.
// Never: looks at a clock, logs, starts a goroutine or does I/O.
//
// The rank of a pod is how many pods are needed before it is: rank 1 is idle when the revision is
// at zero, rank 10 when nine pods or fewer are needed. Each rank has idle times of its own. So the
// second pod of a service that needs two pods once an hour is kept for other times than its first.
//
// An idle pod is kept while the cold start that it may save is worth more than the memory that it
// takes until then. The hybrid histogram policy (Shahrad et al., USENIX ATC 2020) keeps each
// application for the same share of its idle times; here the same memory buys more, because it goes
// where the next request is most likely.
package keep

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Ranks bounds how many ranks are told apart. The pods above share the last one.
const Ranks = 512

// exact is up to which rank each has a histogram of its own. Above, a histogram is for an eighth of
// an octave.
const exact = 16

// DefaultWorth is what a saved cold start of a second is worth by default, in MiB-seconds: a GiB
// for 80 s. Against the compatible formula it saves, on two samples of eight hours of the Azure
// trace of 2019, 98 % of the cold starts for 30 and 38 % more memory, and on a day of 50 of its
// applications 95 % for 23 %.
const DefaultWorth = 80_000

// near is how long before and after the time at which a pod is expected to be needed it is awake at
// most. A wake takes about ten milliseconds, a hundredth of a cold start, so longer is not worth
// the memory.
const near = 10 * time.Second

// Config is what decides how much is kept. It is immutable.
type Config struct {
	// Worth is what a saved cold start of a second is worth, in MiB-seconds.
	Worth float64
	// ColdStart is how long a cold start of this revision takes. It is taken to be at least
	// a second and at most ten.
	ColdStart time.Duration
	// Memory is what a sleeping pod takes, in MiB.
	Memory float64
	// MaxTime bounds for how long a pod is kept.
	MaxTime time.Duration
	// MaxPods bounds how many pods are kept, -1 for no bound.
	MaxPods int32
	// Always keeps every pod for MaxTime, whatever that is worth.
	Always bool
}

// History is since when the pods of one revision are idle, and for how long they were before. It
// has one owner and no lock.
type History struct {
	needed int32
	// idleSince is when each rank was needed last; zero for one that never was. The first is of
	// rank 1.
	idleSince []time.Time
	gaps      []*gaps // by slot
	// last is the newest decision and asked what it was made from. It holds until it is due or Need
	// changes something.
	last  Decision
	asked Config
	holds bool
}

// Decision is how many pods to keep asleep and why.
type Decision struct {
	Keep int32
	// Ahead is how many of them to wake now, because they are expected to be needed.
	Ahead int32
	// Until is when the decision may be another one although nothing happens, zero for never.
	Until  time.Time
	Reason string
}

// slot is the histogram of a rank.
func slot(rank int32) int {
	if rank <= exact {
		return int(rank) - 1
	}
	return exact - 1 + int(math.Ceil(8*math.Log2(float64(rank)/exact)))
}

// Begin records how many pods there are when nothing is known yet. They count as needed: somebody
// deployed the revision a moment ago.
func (k *History) Begin(pods int32, now time.Time) {
	if len(k.idleSince) == 0 {
		k.Need(pods, now)
	}
}

// Need records how many pods are needed from now on.
func (k *History) Need(pods int32, now time.Time) {
	pods = min(max(pods, 0), Ranks)
	if pods == k.needed {
		return
	}
	k.holds = false
	for rank := k.needed + 1; rank <= pods; rank++ {
		if int(rank) > len(k.idleSince) {
			k.idleSince = append(k.idleSince, time.Time{})
		} else if since := k.idleSince[rank-1]; now.After(since) {
			k.histogram(rank).add(now.Sub(since))
		}
	}
	for rank := pods + 1; rank <= k.needed; rank++ {
		k.idleSince[rank-1] = now
	}
	k.needed = pods
}

func (k *History) histogram(rank int32) *gaps {
	for i := slot(rank); len(k.gaps) <= i; {
		k.gaps = append(k.gaps, &gaps{})
	}
	return k.gaps[slot(rank)]
}

// State is what a History knows, for the process that decides next.
type State struct {
	Needed    int32
	IdleSince []time.Time
	// Gaps are the weights of each histogram.
	Gaps [][]float32
}

// Export returns what the History knows.
func (k *History) Export() State {
	s := State{Needed: k.needed, IdleSince: slices.Clone(k.idleSince)}
	for _, g := range k.gaps {
		s.Gaps = append(s.Gaps, slices.Clone(g.weight[:]))
	}
	return s
}

// Import makes a History of what an earlier process knew. behind is by how much its clock was
// behind. It reports false if the state cannot be right.
func Import(s State, behind time.Duration, now time.Time) (History, bool) {
	if s.Needed < 0 || len(s.IdleSince) > Ranks || int(s.Needed) > len(s.IdleSince) || len(s.Gaps) > slot(Ranks)+1 {
		return History{}, false
	}
	k := History{needed: s.Needed}
	for _, since := range s.IdleSince {
		if !since.IsZero() {
			if since = since.Add(behind); since.After(now) {
				since = now
			}
		}
		k.idleSince = append(k.idleSince, since)
	}
	for _, weights := range s.Gaps {
		g := &gaps{}
		if len(weights) != len(g.weight) {
			return History{}, false
		}
		for i, w := range weights {
			if !(w >= 0 && w <= memory) { // not NaN either
				return History{}, false
			}
			g.weight[i] = w
			g.total += w
		}
		k.gaps = append(k.gaps, g)
	}
	return k, true
}

// Decide says how many pods to keep asleep beside the needed ones.
func (k *History) Decide(c Config, now time.Time) Decision {
	if !k.holds || k.asked != c || !k.last.Until.IsZero() && !now.Before(k.last.Until) {
		k.last, k.asked, k.holds = k.decide(c, now), c, true
	}
	return k.last
}

func (k *History) decide(c Config, now time.Time) Decision {
	d := Decision{Reason: "no pod was needed within the last " + short(c.MaxTime)}
	price := c.Worth * min(max(c.ColdStart.Seconds(), 1), 10)
	for rank := int32(len(k.idleSince)); rank > k.needed; rank-- {
		since := k.idleSince[rank-1]
		idle := now.Sub(since)
		if since.IsZero() || idle >= c.MaxTime {
			continue
		}
		until, chance, held := k.histogram(rank).outlook(idle)
		cost := c.Memory * held.Seconds()
		worth := chance * price
		keep := worth >= cost || c.Always
		switch {
		case d.Keep > 0:
		case c.Always:
			d.Reason = fmt.Sprintf("pod %d, idle for %s, is kept for %s", rank, short(idle), short(c.MaxTime))
		default:
			d.Reason = reason(rank, idle, until, chance, keep, cost, worth)
		}
		// The outlook changes when the pod has been idle for one more bucket.
		next := since.Add(min(edge(bucketOf(idle)+1), c.MaxTime))
		if d.Until.IsZero() || next.Before(d.Until) {
			d.Until = next
		}
		if keep && d.Keep == 0 {
			d.Keep = rank - k.needed
		}
		if from, to, ok := k.histogram(rank).rhythm(); ok && idle < to {
			if next := since.Add(from); idle < from && next.Before(d.Until) {
				d.Until = next
			} else if end := since.Add(to); idle >= from && end.Before(d.Until) {
				d.Until = end
			}
			if idle >= from && d.Ahead == 0 {
				d.Ahead = rank - k.needed
			}
		}
	}
	d.Ahead = min(d.Ahead, d.Keep)
	if d.Ahead > 0 {
		d.Reason = fmt.Sprintf("%d awake, because requests come in a rhythm and the next one is due (%s)", d.Ahead, d.Reason)
	}
	if c.MaxPods >= 0 && d.Keep > c.MaxPods {
		d.Keep, d.Ahead = c.MaxPods, min(d.Ahead, c.MaxPods)
		d.Reason = fmt.Sprintf("at most %d pods may sleep (%s)", c.MaxPods, d.Reason)
	}
	return d
}

func reason(rank int32, idle, until time.Duration, chance float64, keep bool, cost, worth float64) string {
	verb, relation := "is kept", "at least"
	if !keep {
		verb, relation = "is not kept", "less than"
	}
	return fmt.Sprintf("pod %d, idle for %s, %s: it is needed within %s with a chance of %.0f%%, which is worth %.0f MiB·s, %s the %.0f MiB·s that it takes",
		rank, short(idle), verb, short(until-idle), 100*chance, worth, relation, cost)
}

// short is a duration in the two units that matter.
func short(d time.Duration) string {
	switch {
	case d >= time.Hour:
		return fmt.Sprintf("%.1fh", d.Hours())
	case d >= time.Minute:
		return fmt.Sprintf("%.0fm", d.Minutes())
	}
	return fmt.Sprintf("%.0fs", d.Seconds())
}
