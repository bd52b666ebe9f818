package main

import (
	"math"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/window"
	"ebb.dev/ebb/autoscaler/zero"
)

// seen is what an autoscaler is told about the last second.
type seen struct {
	concurrency, arrivals float64
	queued                int
	completed, busy       float64
	ready                 int32
}

// scaler is one kind of autoscaler: the production code, or the plain baseline.
type scaler interface {
	// second tells of a second that ended, tick asks for a decision, pressed tells of a queue that formed now. The
	// latter two return the replicas to write, or -1 for no change.
	second(now time.Time, s seen)
	tick(now time.Time, ready int32) int32
	pressed(now time.Time, concurrency float64, queued int, ready int32) int32
	// wanted is the scale decided last.
	wanted() int32
}

func decideConfig(w Workload) decide.Config {
	return decide.Config{Total: w.Total, Target: w.Target, ContainerConcurrency: float64(w.Concurrency), TargetBurstCapacity: w.BurstCapacity,
		ActivatorCapacity: 100, MaxScaleUpRate: 1000, MaxScaleDownRate: 2, PanicThreshold: w.PanicThreshold, StableWindow: w.Window, Reachable: true}
}

// ebb runs the production packages.
type ebb struct {
	config   decide.Config
	zero     zero.Config
	series   *decide.Series
	state    decide.State
	toZero   zero.State
	adaptive decide.Adaptive
	learns   bool
	last     int32
	written  int32
}

func newEbb(w Workload, learns bool, now time.Time) *ebb {
	c := decideConfig(w)
	return &ebb{config: c, learns: learns, written: w.Initial, last: w.Initial,
		zero: zero.Config{Min: w.Min, Max: w.Max, Initial: w.Initial, ScaleToZero: true, StableWindow: w.Window, Grace: 30 * time.Second,
			ProgressDeadline: 10 * time.Minute, PathHold: min(w.Window, time.Minute)},
		series: decide.NewSeries(w.Window, decide.PanicWindow(w.Window, w.PanicPercentage)),
		state:  decide.Start(c, 0, decide.NoDecision, now), toZero: zero.State{ActiveSince: now}}
}

func (e *ebb) wanted() int32 { return e.last }

func (e *ebb) second(now time.Time, s seen) {
	if s.concurrency > 0 || s.arrivals > 0 || s.ready > 0 {
		e.series.Add(now, "activator", decide.Report{Concurrency: s.concurrency, RequestsPerSecond: s.arrivals, Queued: float64(s.queued)})
	}
	if e.learns {
		e.adaptive = e.adaptive.Learn(now, e.config.Target, e.config.Share(), decide.Work{Completed: s.completed, BusySeconds: s.busy, Ready: s.ready, Wanted: e.written})
	}
}

func (e *ebb) tick(now time.Time, ready int32) int32 { return e.decide(now, ready, false) }

func (e *ebb) pressed(now time.Time, concurrency float64, queued int, ready int32) int32 {
	e.series.Press(now, "activator", decide.Report{Concurrency: concurrency, Queued: float64(queued)})
	return e.decide(now, ready, true)
}

func (e *ebb) decide(now time.Time, ready int32, between bool) int32 {
	o := e.series.Observe(now, decide.Concurrency, window.Linear, ready, true)
	o.BetweenTicks = between
	c := e.config
	if e.learns {
		c = e.adaptive.Config(c)
	}
	var d decide.Decision
	d, e.state = decide.Decide(c, e.state, o, now)
	var step zero.Step
	// Activators answer at the public service as soon as they are asked for.
	step, e.toZero = zero.Decide(e.zero, e.toZero, zero.Input{Desired: d.Desired, ExcessBurst: d.ExcessBurst, Ready: ready, Probe: zero.ProbedActivator}, now)
	if step.Want >= 0 {
		e.last = step.Want
	}
	if !step.Apply || step.Replicas == e.written {
		return -1
	}
	e.written = step.Replicas
	return step.Replicas
}

// plain is the baseline: the compatible formula written down a second time, ticking every two seconds, told of
// a request at zero pods and of nothing else out of turn.
type plain struct {
	w          Workload
	stable     []float64 // one value a second, newest last
	urgent     []float64
	panicSince time.Time
	panicMax   float64
	lastLoad   time.Time
	idleSince  time.Time
	last       int32
	written    int32
	started    time.Time
	everReady  bool
}

func newPlain(w Workload, now time.Time) *plain {
	return &plain{w: w, last: w.Initial, written: w.Initial, started: now}
}

func (p *plain) wanted() int32 { return p.last }

func (p *plain) second(now time.Time, s seen) {
	if s.concurrency == 0 && s.ready == 0 {
		// Nobody reports: an empty window forgets where it began.
		if now.Sub(p.lastLoad) >= p.w.Window {
			p.stable = nil
		}
		if now.Sub(p.lastLoad) >= p.panicWindow() {
			p.urgent = nil
		}
		return
	}
	p.lastLoad = now
	push := func(values []float64, n int) []float64 {
		values = append(values, s.concurrency)
		if len(values) > n {
			values = values[len(values)-n:]
		}
		return values
	}
	p.stable = push(p.stable, int(p.w.Window/time.Second))
	p.urgent = push(p.urgent, int(p.panicWindow()/time.Second))
}

func (p *plain) panicWindow() time.Duration {
	return max(time.Second, (time.Duration(float64(p.w.Window)*p.w.PanicPercentage/100) + time.Second/2).Truncate(time.Second))
}

func mean(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

func (p *plain) pressed(now time.Time, concurrency float64, queued int, ready int32) int32 {
	if p.last != 0 || ready != 0 {
		return -1
	}
	// The poke of the first request at zero: a stat of one, counted like any other.
	p.stable, p.urgent, p.lastLoad = append(p.stable, 1), append(p.urgent, 1), now
	return p.tick(now, ready)
}

func (p *plain) tick(now time.Time, ready int32) int32 {
	r := math.Max(1, float64(ready))
	up, down := math.Ceil(1000*r), math.Floor(r/2)
	stableRaw, panicRaw := math.Ceil(mean(p.stable)/p.w.Target), math.Ceil(mean(p.urgent)/p.w.Target)
	stable, urgent := math.Max(down, math.Min(up, stableRaw)), math.Max(down, math.Min(up, panicRaw))
	if panicRaw/r >= p.w.PanicThreshold {
		p.panicSince = now
	} else if !p.panicSince.IsZero() && now.Sub(p.panicSince) > p.w.Window {
		p.panicSince, p.panicMax = time.Time{}, 0
	}
	desired := stable
	if !p.panicSince.IsZero() {
		p.panicMax = math.Max(p.panicMax, math.Max(stable, urgent))
		desired = p.panicMax
	}
	low := p.w.Min
	if ready > 0 {
		p.everReady = true
	}
	if !p.everReady {
		low = max(low, p.w.Initial)
	}
	want := max(int32(desired), low)
	if p.w.Max > 0 {
		want = min(want, p.w.Max)
	}
	if want > 0 {
		p.idleSince = time.Time{}
	} else {
		// One window of being active before zero is reported, then the hand-over to the activators.
		if p.idleSince.IsZero() {
			p.idleSince = now
		}
		if now.Sub(p.started) < p.w.Window || now.Sub(p.idleSince) < 2*time.Second {
			want = min(1, max(p.written, 0))
		}
	}
	p.last = want
	if want == p.written {
		return -1
	}
	p.written = want
	return want
}
