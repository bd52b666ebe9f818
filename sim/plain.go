package main

import (
	"math"
	"time"

	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/wire"
)

// plain is the baseline: the compatible formula, implemented a second time. It ticks every two
// seconds. The only report out of turn that it gets is the first request at zero pods.
type plain struct {
	allAwake
	w          Workload
	ready      int32
	next       time.Time
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
	return &plain{w: w, last: w.Initial, written: w.Initial, started: now, next: now}
}

func (p *plain) wanted() int32  { return p.last }
func (p *plain) proxied() bool  { return true }
func (p *plain) due() time.Time { return p.next }

func (p *plain) changed(_ time.Time, counts revision.Counts) int32 {
	p.ready = counts.Ready
	return noChange
}

func (p *plain) ring(now time.Time, _ func() []wire.Stat) int32 {
	p.next = now.Add(revision.TickPeriod)
	return p.tick(now)
}

func (p *plain) second(now time.Time, _, all load) int32 {
	if all.concurrency == 0 && p.ready == 0 {
		// There are no reports: an empty window forgets where it began.
		if now.Sub(p.lastLoad) >= p.w.Window {
			p.stable = nil
		}
		if now.Sub(p.lastLoad) >= p.panicWindow() {
			p.urgent = nil
		}
		return noChange
	}
	p.lastLoad = now
	push := func(values []float64, n int) []float64 {
		values = append(values, all.concurrency)
		if len(values) > n {
			values = values[len(values)-n:]
		}
		return values
	}
	p.stable = push(p.stable, int(p.w.Window/time.Second))
	p.urgent = push(p.urgent, int(p.panicWindow()/time.Second))
	return noChange
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

func (p *plain) pressed(now time.Time, pod string, _ load) int32 {
	if pod != "" || p.last != 0 || p.ready != 0 {
		return noChange
	}
	// The first request at zero: a stat of one, counted like any other.
	p.stable, p.urgent, p.lastLoad = append(p.stable, 1), append(p.urgent, 1), now
	return p.tick(now)
}

func (p *plain) tick(now time.Time) int32 {
	r := math.Max(1, float64(p.ready))
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
	if p.ready > 0 {
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
		return noChange
	}
	p.written = want
	return want
}
