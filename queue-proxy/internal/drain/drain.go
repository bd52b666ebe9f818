// Package drain decides when a pod that is going away may go.
//
// Owns: whether this pod drains, and when it last took a request. Reads: how many requests are in
// flight. Writes: nothing. Never: ends a request.
//
// The sequence. SIGTERM, or the preStop hook of the user container, begins a drain: readiness fails
// at once and the pod withdraws its announcement. Requests that still come are served, each
// beginning the quiet time anew. The drain is over when no request came for the quiet time and none
// is in flight. From then on the container is told to end, and no request may come any more. A
// drain begun by the hook alone (the kubelet restarts the user container after a failed liveness
// probe) is taken back when no SIGTERM follows within three seconds, and not begun again for the
// next thirty.
package drain

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// hookAlone is how long the hook waits for the SIGTERM that tells a deleted pod from a restarted
// container. The kubelet sends it at the same time as it calls the hook, but on a node with more to
// do than it can the signal was seen to come more than a second later; a hook that returns before
// has the container killed while requests still come to the pod.
const hookAlone = 3 * time.Second

// rest is how long hooks are ignored after a drain was cancelled. The hook's token is in the pod's
// spec, because the kubelet sends only headers that are written there, and who may view the
// pod can show it. A real end does not need the hook to begin: SIGTERM comes with it.
const rest = 30 * time.Second

// look is how often a drain looks whether it is over.
const look = 50 * time.Millisecond

// Drainer is made by New.
type Drainer struct {
	quiet    time.Duration
	inFlight func() int
	changed  func(draining bool)

	draining atomic.Bool
	lastSeen atomic.Int64 // unix nanoseconds

	mu         sync.Mutex
	terminated chan struct{} // closed at SIGTERM
	isTerm     bool
	over       bool // the hook and SIGTERM end with it; it does not become false again
	takenBack  time.Time
}

// New makes a Drainer. inFlight is asked for the requests that must end first; changed is told of
// the beginning of a drain, and of its being taken back.
func New(quiet time.Duration, inFlight func() int, changed func(draining bool)) *Drainer {
	return &Drainer{quiet: quiet, inFlight: inFlight, changed: changed, terminated: make(chan struct{})}
}

// Draining reports whether the pod is going away.
func (d *Drainer) Draining() bool { return d.draining.Load() }

// Arrive notes an ordinary request. It reports false if the drain is over.
func (d *Drainer) Arrive() bool {
	if !d.draining.Load() {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Renew()
	return !d.over
}

// Renew begins the quiet time anew.
func (d *Drainer) Renew() { d.lastSeen.Store(time.Now().UnixNano()) }

// Terminate is SIGTERM. It returns when the drain is over or ctx ends.
func (d *Drainer) Terminate(ctx context.Context) {
	d.mu.Lock()
	if !d.isTerm {
		d.isTerm = true
		close(d.terminated)
	}
	d.mu.Unlock()
	d.begin()
	d.wait(ctx)
}

// Hook is the user container's preStop hook. It returns when the drain is over, ctx ends, or three
// seconds passed without SIGTERM.
func (d *Drainer) Hook(ctx context.Context) {
	d.mu.Lock()
	resting := !d.takenBack.IsZero() && time.Since(d.takenBack) < rest
	d.mu.Unlock()
	if !resting {
		d.begin()
	}
	t := time.NewTimer(hookAlone)
	defer t.Stop()
	select {
	case <-d.terminated:
		d.wait(ctx)
		return
	case <-ctx.Done():
	case <-t.C:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.isTerm && d.draining.CompareAndSwap(true, false) {
		d.takenBack = time.Now()
		d.changed(false)
	}
}

func (d *Drainer) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining.Load() {
		return
	}
	d.Renew()
	d.draining.Store(true)
	d.changed(true)
}

func (d *Drainer) wait(ctx context.Context) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		if d.isOver() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (d *Drainer) isOver() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.over && d.draining.Load() { // SIGTERM is told to a hook that began none before it begins one
		d.over = time.Since(time.Unix(0, d.lastSeen.Load())) >= d.quiet && d.inFlight() == 0
	}
	return d.over
}
