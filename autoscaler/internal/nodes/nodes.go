// Package nodes watches which nodes are alive, and tells.
//
// Owns: the questions to nodes, and what they and others say (package alive). Reads: the index of
// pods; answers to scrapes; what activators and node agents tell; Leases of nodes that do not
// answer. Writes: the Lease that has the silent ones. Never: sends a byte to a pod; decides.
package nodes

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/autoscaler/alive"
	"ebb.dev/ebb/wire"
)

const (
	// period is the time between two rounds. A round may come a little early, so minPeriod is what
	// has passed in any case.
	period    = alive.AskTime / 2
	minPeriod = period * 9 / 10
	// late is after which time without a round this process has been paused.
	late = 4 * period
	// maxKnown bounds the pods of a node that are known at a time.
	maxKnown = 32
	// maxCalls bounds the nodes in doubt that are asked at once, the others, and those whose Leases
	// are read.
	maxCalls = 256
	// leasePeriod is the time between two reads of a Lease.
	leasePeriod = time.Second
	// leaseKept is for how long a Lease is remembered that is not read any more. One that is read
	// anew sooner than alive takes for a gap, because a single question was answered, must not seem
	// to have changed.
	leaseKept = 5 * time.Second
)

// Config is what a Watcher is made of: whom it may ask, and whom it tells. All of it is needed, but
// for Port.
type Config struct {
	// Self is the node that this process runs on. If it is empty, nothing is decided.
	Self string
	// Pods lists addresses of pods by node, about maxEach of each. Where all are on Self, it may
	// list none.
	Pods func(maxEach int) map[string][]string
	// Dial connects to a pod.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Port is that of the pods that is asked; 0 means wire.PortMetrics.
	Port int
	// Activator reports whether an address is an activator's. That is asked at its port of
	// announcements: Ebb's NetworkPolicy closes the one for stats to all but who reads metrics.
	Activator func(ip string) bool
	// Others asks activators elsewhere at which of these pods somebody answers. It returns when
	// they have answered or their time is over.
	Others func(ctx context.Context, pods []netip.Addr, got func(wire.ReachAnswer))
	// Activators returns the address of one activator on each node that has one.
	Activators func() map[string]string
	// Agents does as Others with node agents: those on these nodes, or the witnesses if that is
	// nil. Each answers for its own node.
	Agents func(ctx context.Context, on []string, pods []netip.Addr, got func(wire.ReachAnswer))
	// Agent reports whether an address is a node agent's. That has no pod there: it says only
	// whether this autoscaler reaches the node.
	Agent func(ip string) bool
	// Lease reads when a node's Lease was renewed, as its clock says.
	Lease func(ctx context.Context, node string) (string, error)
	Clock func() time.Time
	// Tell receives each verdict that makes a node silent or lost, or well again after it.
	Tell func(alive.Verdict)
	// SetSilent receives the nodes that are silent, and whether they are lost, when that
	// changes. It must not block.
	SetSilent func(map[string]bool)
	Log       *slog.Logger
}

// Counts are how many verdicts there were.
type Counts struct{ Silent, Lost, Back atomic.Int64 }

// Watcher watches the nodes that have pods of services, or an activator. New makes one.
type Watcher struct {
	Counts
	config Config

	mutex sync.Mutex
	watch alive.Watch
	began time.Time
	// last is when the last round was. epoch counts pauses: what was asked before one is void.
	last    time.Duration
	epoch   int
	places  places
	own     questions
	inquiry inquiries
	leases  map[string]lease
	now     []alive.Verdict
	// judged is what SetSilent received last. Only decide uses it.
	judged map[string]bool
	// news says that a question was not answered, so that something may be decided.
	news chan struct{}
}

// lease is what is known of a node's Lease.
type lease struct {
	renewed string
	read    time.Duration
	busy    bool
}

// New makes a Watcher, which asks nobody before it runs.
func New(c Config) *Watcher {
	times := func() map[string]time.Duration { return map[string]time.Duration{} }
	return &Watcher{config: c, watch: alive.Watch{Self: c.Self}, began: c.Clock().Add(-time.Second), leases: map[string]lease{}, news: make(chan struct{}, 1),
		places: places{answers: map[string]struct{}{}, told: times(), speak: times()}, own: questions{asking: map[string]flight{}},
		inquiry: inquiries{of: map[string]bool{}, about: times(), vouching: map[string]bool{}, vouched: map[string]spell{}}}
}

// Run asks until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	if w.config.Self == "" {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			w.Round(ctx)
		case <-w.news:
			w.decide(ctx)
		}
	}
}

// timeLocked is the time since a second before this began, so that 0 is never.
func (w *Watcher) timeLocked() time.Duration { return w.config.Clock().Sub(w.began) }

// Round decides by what is known, and asks. It does not wait for answers.
func (w *Watcher) Round(ctx context.Context) {
	w.look(w.config.Pods(maxKnown))
	w.decide(ctx)
	w.mutex.Lock()
	defer w.mutex.Unlock()
	now := w.timeLocked()
	w.askOthersLocked(ctx, now)
	w.acquaintLocked(ctx, now)
	w.askLocked(ctx, now)
}

// look takes which pods there are now, and notices a pause.
func (w *Watcher) look(pods map[string][]string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	now := w.timeLocked()
	if w.last > 0 && now-w.last > late {
		w.epoch++
		w.watch.Forget()
	}
	w.last = now
	maps.DeleteFunc(w.inquiry.vouched, func(_ string, s spell) bool { return now-s.last > vouchGap })
	w.watch.Keep(w.places.list(pods, now), now)
	for node := range pods {
		w.watch.Bare(node, len(w.podsOf(node)) == 0)
	}
}

// decide decides by what is known, and tells.
func (w *Watcher) decide(ctx context.Context) {
	w.mutex.Lock()
	now := w.timeLocked()
	w.now = w.watch.Step(now)
	var told []alive.Verdict
	silent := map[string]bool{}
	for _, v := range w.now {
		if v.State != v.Was && (v.State >= alive.Silent || v.Was >= alive.Silent) {
			told = append(told, v)
		}
		if v.State >= alive.Silent {
			silent[v.Node] = v.State == alive.Lost
		}
		if inDoubt(v.State) {
			w.readLocked(ctx, v.Node, now)
		}
	}
	maps.DeleteFunc(w.leases, func(_ string, l lease) bool { return !l.busy && now-l.read > leaseKept })
	w.mutex.Unlock()
	if !maps.Equal(silent, w.judged) {
		w.judged = silent
		w.config.SetSilent(maps.Clone(silent))
	}
	for _, v := range told {
		w.tell(v)
	}
}

// hasNews has Run decide.
func (w *Watcher) hasNews() {
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// inDoubt reports whether more is to be found out about a node in this state. Of one that is lost
// only a sign of life counts.
func inDoubt(s alive.State) bool { return s == alive.Doubted || s == alive.Silent }

func (w *Watcher) tell(v alive.Verdict) {
	switch v.State {
	case alive.Silent:
		w.Silent.Add(1)
	case alive.Lost:
		w.Lost.Add(1)
	default:
		w.Back.Add(1)
	}
	w.config.Log.Warn("a node is "+v.State.String(), "node", v.Node, "was", v.Was.String(), "because", v.Reason)
	w.config.Tell(v)
}

// readLocked reads the Lease of a node that does not answer, now and then.
func (w *Watcher) readLocked(ctx context.Context, node string, now time.Duration) {
	before, reads := w.leases[node]
	if before.busy || reads && now-before.read < leasePeriod || !reads && len(w.leases) >= maxCalls {
		return
	}
	w.leases[node] = lease{before.renewed, now, true}
	go func() {
		limited, cancel := context.WithTimeout(ctx, leasePeriod)
		defer cancel()
		renewed, err := w.config.Lease(limited, node)
		w.mutex.Lock()
		defer w.mutex.Unlock()
		at := w.timeLocked()
		if err != nil {
			w.leases[node] = lease{before.renewed, at, false}
			return
		}
		w.leases[node] = lease{renewed, at, false}
		w.watch.Lease(node, at, renewed != before.renewed)
	}()
}

// Heard takes a sign of life of a pod on a node.
func (w *Watcher) Heard(node, ip string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	now := w.timeLocked()
	w.places.note(ip, now)
	w.watch.Spoke(node, now)
}

// Unreached takes that an activator did not reach a pod, which has this address on this node. That
// it says so is a sign of life of its own node.
func (w *Watcher) Unreached(node, ip string, u *wire.Unreached) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	now := w.timeLocked()
	w.spokeLocked(u.Node, now)
	w.unansweredLocked(node, ip, u.Node, now-u.Ago, now)
}

// unansweredLocked takes that an activator did not reach a pod. What one on this node says counts
// as a question of this autoscaler's own, and proves as little where the pod never answered that.
func (w *Watcher) unansweredLocked(node, ip, by string, asked, now time.Duration) {
	if by != w.config.Self || w.places.answered(ip) || w.places.open(node, now) {
		w.watch.Unanswered(node, by, asked, now)
		w.hasNews()
	}
}

// Undecided takes the nodes that another replica called silent before it ended, and returns those
// about which this one cannot decide yet: nothing there has answered it so far. From now on its
// questions to these count all the same, for a time.
func (w *Watcher) Undecided(nodes []string) (open []string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	now := w.timeLocked()
	for _, node := range nodes {
		if w.places.hear(node, now); w.places.open(node, now) {
			open = append(open, node)
		}
	}
	return open
}

// Since is when a verdict began to hold.
func (w *Watcher) Since(v alive.Verdict) time.Time { return w.began.Add(v.Since) }

// Now returns the nodes that are not well.
func (w *Watcher) Now() []alive.Verdict {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return slices.DeleteFunc(slices.Clone(w.now), func(v alive.Verdict) bool { return v.State == alive.Well })
}

// Calls is what a node is called: well also if it is not watched.
func (w *Watcher) Calls(node string) alive.State {
	for _, v := range w.Now() {
		if v.Node == node {
			return v.State
		}
	}
	return alive.Well
}

// Count returns how many nodes are in a state other than well.
func (w *Watcher) Count(state alive.State) (n int) {
	for _, v := range w.Now() {
		if v.State == state {
			n++
		}
	}
	return n
}
