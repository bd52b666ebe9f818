package main

import (
	"container/heap"
	"math"
	"math/rand"
	"time"
)

// demand is where the requests of a workload come from: the minutes of a trace, or segments of an
// open or a closed load.
type demand struct {
	load         *rand.Rand
	minutes      []float64
	segment      int
	segmentBegan time.Duration
	target       int // of a closed load
	outstanding  int
}

// spread lets the arrivals of a trace's minutes come at random times in them, one minute ahead at a
// time.
func (w *world) spread() {
	for m, n := range w.minutes {
		for range int(n) {
			w.orders++
			at := time.Duration(m)*time.Minute + time.Duration(w.load.Int63n(int64(time.Minute)))
			w.queue = append(w.queue, event{at: at, order: w.orders, kind: arrive})
		}
	}
	heap.Init(&w.queue)
}

func (w *world) nextSegment() {
	if w.now > 0 {
		w.segment++
	}
	if w.segment >= len(w.w.Load) {
		return
	}
	s := w.w.Load[w.segment]
	w.segmentBegan = w.now
	w.schedule(s.For, event{kind: change})
	w.target = 0
	if s.Closed {
		w.target = int(s.From)
		for w.outstanding < w.target {
			w.outstanding++
			w.handle(event{kind: arrive, request: &request{}})
		}
	} else {
		w.nextArrival()
	}
}

// nextArrival draws the next arrival of an open load, by thinning where the rate changes.
func (w *world) nextArrival() {
	if w.segment >= len(w.w.Load) {
		return
	}
	s := w.w.Load[w.segment]
	most := math.Max(s.From, s.To)
	if s.Closed || most <= 0 {
		return
	}
	after := time.Duration(0)
	for {
		after += time.Duration(w.load.ExpFloat64() / most * float64(time.Second))
		in := w.now + after - w.segmentBegan
		if in >= s.For {
			return
		}
		if w.load.Float64()*most <= s.at(in) {
			break
		}
	}
	w.schedule(after, event{kind: arrive})
}
