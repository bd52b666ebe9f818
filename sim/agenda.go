package main

import (
	"container/heap"
	"time"
)

type happening uint8

const (
	arrive happening = iota
	finish           // a request leaves its worker, or ends its wait
	ready            // a pod becomes ready
	second           // a second ends
	ring             // the autoscaler's clock
	apply            // a scale reaches the cluster
	change           // the next segment of the load begins
)

type event struct {
	at       time.Duration
	order    int // of creation, for events at the same time
	kind     happening
	pod      *pod
	request  *request
	replicas int32
	work     time.Duration // of an arrival, 0 to draw it
}

type events []event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].order < h[j].order
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)   { *h = append(*h, x.(event)) }
func (h *events) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

// agenda is what is about to happen, in virtual time.
type agenda struct {
	now    time.Duration
	queue  events
	orders int
}

// schedule lets it happen after a time.
func (a *agenda) schedule(after time.Duration, e event) {
	a.orders++
	e.at, e.order = a.now+after, a.orders
	heap.Push(&a.queue, e)
}
