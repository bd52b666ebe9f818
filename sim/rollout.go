package main

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/ingress/rollout"
	"ebb.dev/ebb/judge"
	"ebb.dev/ebb/wire"
)

const (
	// gatewaysFollow is how long it takes until the first percent reaches the new revision.
	gatewaysFollow = time.Second
	// maxRollout is after which time a rollout counts as one that stands still.
	maxRollout = time.Hour
	// maxHeld is the same if one client holds it up, who does so as long as it likes.
	maxHeld = 10 * time.Minute
	oldPods = 10
)

// traffic is a shape of load, and how requests fail whatever revision they come to.
type traffic struct {
	name string
	// rate is the mean of the requests in a second.
	rate  func(second int) float64
	takes time.Duration   // the rollout
	steps []rollout.Stage // even ones without
	// bursts makes failures come together: senders of nothing but bad requests, outages of what
	// both revisions need, and pods that answer nothing for half a second.
	bursts bool
	blind  bool // nobody tells of senders
}

var traffics = []traffic{
	{name: "low", takes: 2 * time.Minute, rate: func(int) float64 { return 1 }},
	{name: "low, slowly", takes: 20 * time.Minute, rate: func(int) float64 { return 1 }},
	{name: "steady", takes: 2 * time.Minute, rate: func(int) float64 { return 100 }},
	{name: "bursty", takes: 2 * time.Minute, bursts: true,
		rate: func(second int) float64 {
			if second%20 < 5 {
				return 380
			}
			return 7
		}},
	{name: "steady, 5 % first", takes: 2 * time.Minute, rate: func(int) float64 { return 100 },
		steps: []rollout.Stage{{Percent: 5, For: 30 * time.Second}, {Percent: 25, For: 30 * time.Second}, {Percent: 50, For: time.Minute}}},
}

// fault is what is wrong with the new revision.
type fault struct {
	name     string
	alike    bool    // nothing is
	failing  float64 // the share of the requests that both revisions fail
	worse    float64 // the share that the new one fails besides
	slowed   float64 // the share of its requests that take longer
	slowness float64 // by what factor
	from     int     // the second from which on something is wrong
	client   float64 // so many more requests, for a part of those of all others, have one sender, and only the new one fails them
}

const usual = 0.001

var faults = []fault{
	{name: "alike", alike: true, failing: usual},
	{name: "alike, both fail 10 %", alike: true, failing: 0.1},
	{name: "fails all", failing: usual, worse: 1},
	{name: "fails 20 % more", failing: usual, worse: 0.2},
	{name: "fails 20 % more from 60 s on", failing: usual, worse: 0.2, from: 60},
	{name: "fails 5 % more", failing: usual, worse: 0.05},
	{name: "fails 2 % more", failing: usual, worse: 0.02},
	{name: "3 times as long", failing: usual, slowed: 1, slowness: 3},
	{name: "p99 3 times as long", failing: usual, slowed: 0.05, slowness: 7.3},
	{name: "alike, fails one client", alike: true, failing: usual, client: 0.2},
}

// rolledOut is how one rollout ended.
type rolledOut struct {
	back     bool
	waited   bool          // for a time
	took     time.Duration // from the first percent
	requests int
	bad      int // failed or slowed by the new revision alone
}

// latencyTable has a bucket for each of many equally likely times: lognormal, with a median of
// 30 ms and a 99th percentile of 120 ms.
func latencyTable(factor float64) (table [1 << 12]uint8) {
	for i := range table {
		p := (float64(i) + 0.5) / float64(len(table))
		took := time.Duration(30e6 * factor * math.Exp(0.6*math.Sqrt2*math.Erfinv(2*p-1)))
		var l wire.Latency
		l.Add(took)
		table[i] = uint8(slices.Index(l[:], 1))
	}
	return table
}

// told splits what ended in a second: pods close their periods at any time within it, so a part is
// told with the next second.
type told struct {
	phase     float64
	now, next judge.Counts
}

func (t *told) end(drawer int, failed bool, bucket uint8, late float64) {
	c := &t.now
	if late < t.phase {
		c = &t.next
	}
	c.Latency[bucket]++
	for _, into := range []*judge.Tally{&c.Tally, &c.Senders[drawer]} {
		into.Requests++
		if failed {
			into.Errors++
		}
	}
}

func (t *told) close() judge.Counts {
	c := t.now
	t.now, t.next = t.next, judge.Counts{}
	return c
}

// play is one rollout under way.
type play struct {
	shape        traffic
	fault        fault
	normal, slow *[1 << 12]uint8
	r            *rand.Rand
	outage       int // it lasts so many seconds more
	old, fresh   told
	out          rolledOut
}

// moment is the requests of one second, and what befalls them whatever is wrong with the new
// revision.
type moment struct {
	usual, sick, hostile int     // sick are of a sender of nothing but bad ones, hostile of fault.client
	breaks               float64 // the share that both revisions fail
	stalls, stalled      float64 // the share that a pod of the old or the new one does not answer
}

// moment returns the requests of a second in which the new revision has so much of them.
func (p *play) moment(second int, percent int64) moment {
	m := moment{usual: poisson(p.r, p.shape.rate(second)), breaks: p.fault.failing}
	if p.fault.client > 0 {
		m.hostile = poisson(p.r, p.fault.client*p.shape.rate(second))
	}
	if p.shape.bursts {
		if p.r.Float64() < 1.0/20 {
			m.sick = 20
		}
		if p.outage--; p.r.Float64() < 1.0/60 {
			p.outage = 2
		}
		m.stalls = 0.5 / 300 // one of the many pods of the old revision
		// The new revision has its share of the pods; each stalls once in five minutes.
		if pods := math.Ceil(oldPods * float64(percent) / 100); p.r.Float64() < pods/300 {
			m.stalled = 0.5 / pods
		}
	}
	if p.outage > 0 {
		m.breaks = 0.5
	}
	return m
}

// end lets the requests of a second end, at the one revision or the other.
func (p *play) end(m moment, second int, percent int64) {
	r, f := p.r, &p.fault
	for i := range m.usual + m.sick + m.hostile {
		p.out.requests++
		ofSick, ofHostile := i >= m.usual && i < m.usual+m.sick, i >= m.usual+m.sick
		failed := ofSick || r.Float64() < m.breaks
		chance := r.Uint64()
		drawer := int(chance * 0x9E3779B97F4A7C15 >> 60) // many senders
		switch {
		case ofSick:
			drawer = 1
		case ofHostile:
			drawer = 0
		}
		bucket, late := p.normal[chance%uint64(len(p.normal))], float64(chance>>44)/(1<<20)
		if int64(chance>>12%100) >= percent {
			p.old.end(drawer, failed || m.stalls > 0 && r.Float64() < m.stalls, bucket, late)
			continue
		}
		bad := f.worse > 0 && second >= f.from && r.Float64() < f.worse
		failed = failed || bad || ofHostile || m.stalled > 0 && r.Float64() < m.stalled
		if f.slowed > 0 && r.Float64() < f.slowed {
			bucket, bad = p.slow[r.IntN(len(p.slow))], true
		}
		if bad {
			p.out.bad++
		}
		p.fresh.end(drawer, failed, bucket, late)
	}
}

// input is what the judge is told of the second.
func (p *play) input(percent int64, last bool) judge.Input {
	in := judge.Input{Told: true, Share: int(percent), Last: last, Old: p.old.close(), New: p.fresh.close()}
	if p.shape.blind {
		in.Old.Senders, in.New.Senders = [wire.SenderDrawers]judge.Tally{}, [wire.SenderDrawers]judge.Tally{}
	}
	return in
}

// rollOut plays one rollout: the judge and the shares are the code of production.
func rollOut(g judge.Guard, shape traffic, f fault, normal, slow *[1 << 12]uint8, r *rand.Rand) rolledOut {
	began := time.Unix(1e9, 0)
	share := func(revisions ...rollout.Share) rollout.State {
		return rollout.State{Configurations: []rollout.Configuration{{Name: "c", Percent: 100, Revisions: revisions}}}
	}
	want := share(rollout.Share{Revision: "new", Percent: 100})
	want.Configurations[0].Stages = shape.steps
	split, _ := rollout.Advance(share(rollout.Share{Revision: "old", Percent: 100}), want, shape.takes, began)
	split, _ = rollout.Observe(split, shape.takes, began.Add(gatewaysFollow))
	p := &play{shape: shape, fault: f, normal: normal, slow: slow, r: r}
	p.old.phase, p.fresh.phase = r.Float64(), r.Float64()
	lasts := maxRollout
	if f.client > 0 {
		lasts = maxHeld
	}
	var s judge.State
	stood := began
	for second := 0; time.Duration(second)*time.Second < lasts; second++ {
		now := began.Add(gatewaysFollow + time.Duration(second+1)*time.Second)
		c := split.Configurations[0]
		percent := c.Revisions[len(c.Revisions)-1].Percent
		p.end(p.moment(second, percent), second, percent)
		// Steps come when they are due, or at the end of a wait.
		after := split
		for next := time.Unix(0, c.Step.Next); after.InProgress() && !next.After(now); next = time.Unix(0, after.Configurations[0].Step.Next) {
			if next.Before(stood) {
				next = stood
			}
			after, _ = rollout.Advance(after, want, shape.takes, next)
		}
		var d judge.Decision
		d, s = judge.Decide(g, s, p.input(percent, !after.InProgress()), now)
		p.out.took = time.Duration(second+1) * time.Second
		switch d.Verdict {
		case judge.GoBack:
			p.out.back = true
			return p.out
		case judge.Wait:
			p.out.waited, stood = true, now
		case judge.GoOn:
			if split = after; !split.InProgress() {
				return p.out
			}
		}
	}
	return p.out
}

func poisson(r *rand.Rand, mean float64) int {
	if mean > 50 {
		return max(0, int(math.Round(mean+math.Sqrt(mean)*r.NormFloat64())))
	}
	n, product := 0, r.Float64()
	for product > math.Exp(-mean) {
		product *= r.Float64()
		n++
	}
	return n
}

// rollouts are many of one kind.
type rollouts struct {
	traffic traffic
	fault   fault
	all     []rolledOut
}

// simulateRollouts plays n of each kind on all CPUs. The result does not depend on how many there
// are.
func simulateRollouts(n int, g judge.Guard, seed int64) (out []rollouts) {
	normal := latencyTable(1)
	for i, shape := range traffics {
		for j, f := range faults {
			slow := latencyTable(f.slowness)
			kind := rollouts{shape, f, make([]rolledOut, n)}
			var next atomic.Int64
			var all sync.WaitGroup
			for range runtime.GOMAXPROCS(0) {
				all.Go(func() {
					for k := int(next.Add(1)) - 1; k < n; k = int(next.Add(1)) - 1 {
						kind.all[k] = rollOut(g, shape, f, &normal, &slow, rand.New(rand.NewPCG(uint64(seed), uint64((i*100+j)*1_000_000+k))))
					}
				})
			}
			all.Wait()
			out = append(out, kind)
		}
	}
	return out
}
