package main

import (
	"math"
	"slices"
	"time"

	"ebb.dev/ebb/wire"
)

// compressAfter is how long a pod is frozen before it is compressed, on average: the autoscaler
// looks every 15 s whether it has been for 20 s.
const compressAfter = 30 * time.Second

// stand brings the pods that are awake to a number. Only idle pods fall asleep.
func (w *world) stand(awake int32) {
	for int32(len(w.pods))-w.asleep < awake && w.wake() {
	}
	for i := len(w.pods) - 1; i >= 0 && int32(len(w.pods))-w.asleep > awake; i-- {
		if p := w.pods[i]; p.ready && p.inFlight == 0 {
			p.ready, p.asleep, p.since = false, true, w.now
			w.ready--
			w.asleep++
		}
	}
}

// wake wakes the pod that fell asleep last. It reports false if none sleeps.
func (w *world) wake() bool {
	var last *pod
	for _, p := range w.pods {
		if p.asleep && (last == nil || p.since > last.since) {
			last = p
		}
	}
	if last == nil {
		return false
	}
	takes := w.w.Wake
	if w.now-last.since > compressAfter {
		takes = w.w.WakeCompressed
	}
	last.asleep, last.waking = false, true
	w.asleep--
	w.waking++
	w.schedule(takes, event{kind: ready, pod: last})
	return true
}

// remember adds what the pods took in the second that ended.
func (w *world) remember() {
	for _, p := range w.pods {
		switch {
		case !p.asleep:
			w.result.Awake += w.w.Memory
		case w.now-p.since <= compressAfter:
			w.result.Frozen += w.w.Memory
		default:
			w.result.Compressed += w.w.Memory * w.w.Compressed
		}
	}
}

// keepAlive is the compatible formula with pods that stay for a fixed time after they were wanted.
type keepAlive struct {
	*plain
	recent  []int32 // wanted, a value a second
	written int32
}

const keepAliveTime = 10 * time.Minute

func newKeepAlive(w Workload, now time.Time) *keepAlive {
	return &keepAlive{plain: newPlain(w, now), written: w.Initial}
}

func (k *keepAlive) second(now time.Time, activator, all load) int32 {
	k.plain.second(now, activator, all)
	k.recent = append(k.recent, k.plain.last)
	if n := len(k.recent) - int(keepAliveTime/time.Second); n > 0 {
		k.recent = k.recent[n:]
	}
	return k.keep()
}

func (k *keepAlive) ring(now time.Time, stats func() []wire.Stat) int32 {
	k.plain.ring(now, stats)
	return k.keep()
}

func (k *keepAlive) pressed(now time.Time, pod string, l load) int32 {
	k.plain.pressed(now, pod, l)
	return k.keep()
}

func (k *keepAlive) keep() int32 {
	replicas := k.plain.last
	if len(k.recent) > 0 {
		replicas = max(replicas, slices.Max(k.recent))
	}
	if replicas == k.written {
		return noChange
	}
	k.written = replicas
	return replicas
}

// hybrid is the hybrid histogram policy (Shahrad et al., USENIX ATC 2020) over the compatible
// formula: an application is unloaded when it falls idle, loaded again before the 5th percentile of
// its idle times and kept until the 99th. Where the histogram says too little, it is kept for the
// whole range.
type hybrid struct {
	*plain
	minutes   [240]int // idle times
	total     int
	beyond    int // idle times above the range
	idleSince time.Time
	last      int32 // pods when it fell idle
	written   int32
}

func newHybrid(w Workload, now time.Time) *hybrid {
	return &hybrid{plain: newPlain(w, now), written: w.Initial, last: w.Initial}
}

func (h *hybrid) second(now time.Time, activator, all load) int32 {
	h.plain.second(now, activator, all)
	return h.keep(now)
}

func (h *hybrid) ring(now time.Time, stats func() []wire.Stat) int32 {
	h.plain.ring(now, stats)
	return h.keep(now)
}

func (h *hybrid) pressed(now time.Time, pod string, l load) int32 {
	h.plain.pressed(now, pod, l)
	return h.keep(now)
}

func (h *hybrid) keep(now time.Time) int32 {
	replicas := h.plain.last
	if replicas > 0 {
		if !h.idleSince.IsZero() {
			if m := int(now.Sub(h.idleSince).Minutes()); m < len(h.minutes) {
				h.minutes[m]++
				h.total++
			} else {
				h.beyond++
			}
			h.idleSince = time.Time{}
		}
		h.last = replicas
	} else {
		if h.idleSince.IsZero() {
			h.idleSince = now
		}
		if from, to := h.window(); now.Sub(h.idleSince) >= from && now.Sub(h.idleSince) < to {
			replicas = min(h.last, 1)
		}
	}
	if replicas == h.written {
		return noChange
	}
	h.written = replicas
	return replicas
}

// window is when an idle application is to be loaded. Both ends have the margin of a tenth that the
// paper gives them.
func (h *hybrid) window() (from, to time.Duration) {
	mean := float64(h.total) / float64(len(h.minutes))
	variance := 0.0
	for _, n := range h.minutes {
		variance += (float64(n) - mean) * (float64(n) - mean)
	}
	cv := math.Sqrt(variance/float64(len(h.minutes))) / mean
	if h.total < 10 || h.beyond > h.total || cv < 2 {
		return 0, time.Duration(len(h.minutes)) * time.Minute
	}
	percentile := func(q float64) (minute int) {
		seen := 0
		for m, n := range h.minutes {
			if seen += n; float64(seen) >= q*float64(h.total) {
				return m
			}
		}
		return len(h.minutes)
	}
	from = time.Duration(0.9 * float64(percentile(0.05)) * float64(time.Minute))
	to = time.Duration(1.1 * float64(percentile(0.99)+1) * float64(time.Minute))
	return from, to
}
