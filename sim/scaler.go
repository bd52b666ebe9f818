package main

import (
	"math"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/keep"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
	"ebb.dev/ebb/wire"
)

// noChange is the result of a decision that writes nothing.
const noChange = -1

// load is what one reporter sees: the activator, one pod, or all requests.
type load struct {
	concurrency, arrivals float64
	queued                int
}

func (l load) report() decide.Report {
	return decide.Report{Concurrency: l.concurrency, RequestsPerSecond: l.arrivals, Queued: float64(l.queued)}
}

// scaler is one kind of autoscaler: the production code, or the plain baseline. Each call may
// return the replicas to write, or noChange.
type scaler interface {
	// second takes what was seen in a second that ended: by the activator, and in all.
	second(now time.Time, activator, all load) int32
	// pressed takes a report that the activator, or the pod of that name, sends out of turn.
	pressed(now time.Time, pod string, l load) int32
	// changed takes new pod counts.
	changed(now time.Time, counts revision.Counts) int32
	// ring is called at due. stats returns what the pods answer to a scrape.
	ring(now time.Time, stats func() []wire.Stat) int32
	due() time.Time
	// wanted is the scale decided last, proxied whether requests go through the activator, awake
	// how many of the pods are to be awake.
	wanted() int32
	proxied() bool
	awake() int32
}

// allAwake is for autoscalers whose pods never sleep.
type allAwake struct{}

func (allAwake) awake() int32 { return math.MaxInt32 }

// ebb runs the production code.
type ebb struct {
	revision *revision.Revision
	budget   *revision.Budget
	counts   revision.Counts
	status   revision.Status
	stand    *revision.Standby
	active   int32 // pods to be awake
	// reported says that the activator's last report had load: it reports one last zero.
	reported bool
}

// features are what Ebb does not do by default.
type features struct{ adaptive, standby, metrics bool }

func newEbb(w Workload, with features, now time.Time) *ebb {
	e := &ebb{active: math.MaxInt32, budget: &revision.Budget{}, counts: revision.Counts{NotReady: w.Initial}, status: revision.Status{Desired: w.Initial, Proxied: true}}
	if with.standby {
		e.stand = &revision.Standby{After: 10 * time.Second, Config: keep.Config{
			Worth: keep.DefaultWorth, ColdStart: w.Start, Memory: w.Memory * w.Compressed, MaxTime: keep.MaxTime, MaxPods: -1}}
	}
	var others []decide.Other
	if with.metrics {
		for place, m := range w.Metrics {
			others = append(others, decide.Other{Name: m.Name, Metric: decide.Told, Place: place, Target: m.Target})
		}
	}
	e.revision = revision.New(&revision.Config{Rules: &revision.Rules{Standby: e.stand,
		Formula: decide.Config{Others: others, Total: w.Total, Target: w.Target, ContainerConcurrency: float64(w.Concurrency),
			TargetBurstCapacity: w.BurstCapacity, ActivatorCapacity: 100, MaxScaleUpRate: 1000, MaxScaleDownRate: 2,
			PanicThreshold: w.PanicThreshold, StableWindow: w.Window, Reachable: true},
		Zero: zero.Config{Min: w.Min, Max: w.Max, Initial: w.Initial, ScaleToZero: true, AlwaysProxied: w.BurstCapacity == -1,
			StableWindow: w.Window, Grace: 30 * time.Second, ProgressDeadline: 10 * time.Minute, PathHold: min(w.Window, time.Minute)},
		PanicWindow: decide.PanicWindow(w.Window, w.PanicPercentage), Scraped: w.BurstCapacity != -1, Adaptive: with.adaptive,
		ScaleUp: revision.Rate{PerSecond: 50, Burst: 500}}}, e.counts, now)
	return e
}

func (e *ebb) awake() int32   { return e.active }
func (e *ebb) wanted() int32  { return e.status.Desired }
func (e *ebb) proxied() bool  { return e.status.Proxied }
func (e *ebb) due() time.Time { return e.revision.Due() }

func (e *ebb) second(now time.Time, activator, _ load) int32 {
	busy := activator != load{}
	if !busy && !e.reported {
		return noChange
	}
	e.reported = busy
	return e.record(now, revision.Sample{Reporter: "activator", Report: activator.report()})
}

func (e *ebb) pressed(now time.Time, pod string, l load) int32 {
	s := revision.Sample{Reporter: "activator", Report: l.report(), OutOfTurn: true}
	if pod != "" {
		s.Reporter, s.Report.OnePod = pod, true
	}
	return e.record(now, s)
}

func (e *ebb) record(now time.Time, s revision.Sample) int32 {
	s.Timestamp = now.UnixMilli()
	if e.revision.Record(s, now) != revision.Accepted {
		return noChange
	}
	return e.decide(now, true)
}

func (e *ebb) changed(now time.Time, counts revision.Counts) int32 {
	e.counts = counts
	e.revision.SetCounts(counts)
	return e.decide(now, true)
}

func (e *ebb) ring(now time.Time, stats func() []wire.Stat) int32 {
	scrape, decide := e.revision.Ring(now, now)
	result := int32(noChange)
	if scrape {
		e.revision.Scraped(revision.Extrapolate(stats(), int(e.counts.Ready)), now)
		result = e.decide(now, true)
	}
	if decide {
		if replicas := e.decide(now, false); replicas != noChange {
			result = replicas
		}
	}
	e.revision.Rest(now)
	return result
}

func (e *ebb) decide(now time.Time, between bool) int32 {
	out := e.revision.Decide(now, between, e.budget)
	if out.Probe {
		// The activator answers at the public Service as soon as it is asked for.
		if e.revision.Probed(zero.ProbedActivator, out.Epoch) {
			if replicas := e.decide(now, false); replicas != noChange {
				return replicas
			}
		}
	}
	e.status = out.Status
	if out.Keep != nil {
		e.active = out.Awake + out.Keep.Ahead
	}
	e.revision.Rest(now)
	if !out.Scale {
		return noChange
	}
	return out.Replicas
}
