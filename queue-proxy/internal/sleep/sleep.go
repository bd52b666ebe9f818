// Package sleep lets the pod fall asleep and wakes it: the shell around standby.Pod.
//
// Owns: the state of the pod's sleep, the connection of the node agent, the requests that wait for
// the pod to wake. Reads: orders of the autoscaler, messages of the agent. Writes: messages to the
// agent, announcements. Never: forwards a request; the gate does once it is open again.
package sleep

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"ebb.dev/ebb/standby"
)

// Gate keeps requests from the user container. While it is shut, a request that comes calls Await
// and then tries again.
type Gate interface {
	// Shut shuts the gate if no request is inside. It reports whether the gate is shut.
	Shut() bool
	Open()
}

// Word is what the pod tells the activators of itself.
type Word uint8

// The words.
const (
	Awake Word = iota
	Asleep
	Gone
)

// Options are what a Sleeper is made of.
type Options struct {
	Gate Gate
	// Announce tells the activators. It is called with one word at a time. When a word is
	// overtaken, its context ends, and Announce returns soon.
	Announce func(ctx context.Context, w Word)
	// Probe asks the user container once whether it answers.
	Probe func(ctx context.Context) error
	// Woke, if set, is told how long requests waited for a pod that slept at level.
	Woke func(level standby.Level, waited time.Duration)
	// SleepHook and WakeHook call the program before it sleeps and after it woke, nil for no call.
	// They bound themselves.
	SleepHook, WakeHook func(ctx context.Context) error
	// PodUID is told to the agent, Node are the addresses that the agent may call from.
	PodUID string
	Node   []netip.Addr
	// Quiet is how long no request may have come before a pod that was told to sleep does.
	Quiet time.Duration
	// Clock is the time since boot. It replaces the kernel's clock in tests.
	Clock func() time.Duration
	Log   *slog.Logger
}

// Sleeper is made by New.
type Sleeper struct {
	o     Options
	ctx   context.Context // of the process
	state atomic.Uint32   // of pod, for State

	mu      sync.Mutex
	pod     standby.Pod
	conn    net.Conn      // of the agent, nil for none
	changed chan struct{} // closed when those that wait are to look again
	overdue *time.Timer
	again   *time.Timer   // of the last freeze that failed
	called  time.Duration // when the pod was to wake
	settles time.Duration // until when the pod does not say that it woke
	failure string        // of the last freeze since the pod was awake
	ticking bool
	losses  int // how often the agent's connection was lost when that mattered
	words   chan Word

	newest  net.Conn   // of those that proved to be the agent's
	talking sync.Mutex // held by the connection that counts
	lostAt  atomic.Int64

	refused atomic.Int64 // connections of strangers
}

// New makes a Sleeper of a pod that is awake. Its goroutines end with ctx.
func New(ctx context.Context, o Options) *Sleeper {
	if o.Clock == nil {
		o.Clock = sinceBoot
	}
	s := &Sleeper{o: o, ctx: ctx, changed: make(chan struct{}), words: make(chan Word, 1)}
	s.pod.Hooks = standby.Hooks{Sleep: o.SleepHook != nil, Wake: o.WakeHook != nil}
	go s.speak()
	return s
}

// State is the state of the pod.
func (s *Sleeper) State() standby.State { return standby.State(s.state.Load()) }

// MayBeFrozen reports whether the containers may be frozen now, so that one that does not answer is
// not broken for that. Of a pod that lost its agent it does so for lostTime: the guard thaws within
// seconds, and a container that hangs must not be taken for a frozen one for ever.
func (s *Sleeper) MayBeFrozen() bool {
	switch s.State() {
	case standby.Freezing, standby.Asleep, standby.Thawing:
		return true
	case standby.Lost:
		return s.o.Clock()-time.Duration(s.lostAt.Load()) < lostTime
	}
	return false
}

// Waking reports whether a pod that is to be awake is not yet: it thaws, or a hook is called. That
// has an end: a hook has a bound, and MayBeFrozen has one.
func (s *Sleeper) Waking() bool {
	state := s.State()
	return state == standby.Leaving || state == standby.Rousing || s.MayBeFrozen()
}

// Depth is the level at which the pod sleeps, or would.
func (s *Sleeper) Depth() standby.Level {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pod.State != standby.Asleep {
		return standby.Warm
	}
	return s.pod.Depth
}

// Failure says why a pod that sleeps warm was not frozen, "" if that did not fail. It stands while
// the freeze is tried again.
func (s *Sleeper) Failure() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.pod.State {
	case standby.Dozing:
		return s.pod.Reason
	case standby.Freezing:
		return s.failure
	}
	return ""
}

// RejectedPeers is how many connections were refused.
func (s *Sleeper) RejectedPeers() int64 { return s.refused.Load() }

// Sleep is the order to fall asleep as deeply as level. The error says why the pod does not.
func (s *Sleeper) Sleep(level standby.Level) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch now := s.o.Clock(); {
	case now < s.pod.Unwilling:
		return errors.New("the pod stays awake for " + standby.HookPause.String() + ": " + s.pod.Balk)
	case now < s.pod.BusyUntil:
		return errors.New("the pod stays awake: its program says that it is busy for another " + (s.pod.BusyUntil - now).Round(time.Millisecond).String())
	}
	s.stepLocked(standby.Event{Kind: standby.Sleep, Level: level})
	return nil
}

// Settling is for how long the pod does not say yet that it woke.
func (s *Sleeper) Settling() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.pod.Settling() {
		return 0
	}
	return max(s.settles-s.o.Clock(), 0)
}

// Balked reports whether the pod stays awake because a hook failed.
func (s *Sleeper) Balked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.o.Clock() < s.pod.Unwilling
}

// Busy tells that the program says that it is busy for so long, 0 for no longer.
func (s *Sleeper) Busy(long time.Duration) { s.tell(standby.Event{Kind: standby.Busy, For: long}) }

// Wake is the order to wake.
func (s *Sleeper) Wake() { s.tell(standby.Event{Kind: standby.Wake}) }

// End is called before the pod goes away. It wakes the pod for good.
func (s *Sleeper) End() { s.tell(standby.Event{Kind: standby.End}) }

// Await wakes the pod for a request that found the gate shut. It reports true when the request may
// try the gate again. It reports false when ctx has ended, or when the pod does not wake in time
// and the request is not patient: then another pod is to take it.
func (s *Sleeper) Await(ctx context.Context, patient bool) bool {
	s.mu.Lock()
	s.stepLocked(standby.Event{Kind: standby.Request})
	for {
		switch {
		case !s.pod.Holds():
			s.mu.Unlock()
			return true
		case s.pod.Refuses() && !patient:
			s.mu.Unlock()
			return false
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
		s.mu.Lock()
	}
}

func (s *Sleeper) tell(e standby.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stepLocked(e)
}

// sinceBoot is the clock that queue-proxy and the agent share: they run on one kernel.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0 // an order without a time has expired already
	}
	return time.Duration(t.Nano())
}
