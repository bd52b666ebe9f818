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
	// period is the time between two rounds.
	period = alive.AskTime / 2
	// late is after which time without a round this process has been paused.
	late = 4 * period
	// maxKnown bounds the pods of a node that are known at a time, maxAtOnce those that are asked
	// in one question: one of them may just have gone. The others are asked if the first one takes
	// more than prompt. While no more than maxSlow nodes are slow to
	// answer, all of them are asked again: the first few may be of one tenant, whose NetworkPolicy
	// has them answer nobody.
	maxKnown, maxAtOnce, maxSlow = 32, 3, 16
	prompt                       = 100 * time.Millisecond
	// maxVouching bounds the agents that are asked at once whether their nodes live.
	maxVouching = 64
	// vouchAfter is for how long the agent of a lost node has to say that it lives, until it does.
	// vouchGap is for how long it may say nothing meanwhile.
	vouchAfter, vouchGap = 20 * time.Second, 5 * time.Second
	// maxFar bounds the addresses on other nodes by which an agent shows that its word counts.
	maxFar = 4
	// Agents ask some pods of each node where all is well, too, so that they know those that answer
	// them: acquaintPods of each, all nodes every acquaintPeriod while there are few, and never
	// more often than acquaintLeast.
	acquaintPods, acquaintPeriod, acquaintLeast = 3, 10 * time.Second, time.Second
	// maxInquiries bounds the questions to others that are under way, each about other nodes.
	maxInquiries = 2
	// settle is for how long a word of silence waits for other activators' signs of life, which
	// come at the same time.
	settle = 200 * time.Millisecond
	// maxOverlap bounds the questions to a node that are under way: one more each period.
	maxOverlap = 3
	// remembers is for how long at least it is known that a pod has answered, and for how long a
	// node is watched on which an activator has spoken.
	remembers = time.Minute
	// maxCalls bounds the nodes in doubt that are asked at once, the others, and those whose Leases
	// are read.
	maxCalls = 256
	// leasePeriod is the time between two reads of a Lease.
	leasePeriod = time.Second
	// undecided is for how long it is taken for granted that pods answer on a node that another
	// replica called silent: enough for a verdict of one's own, also by the age of a Lease.
	undecided = 30 * time.Second
)

// Watcher watches the nodes that have pods of services, or an activator.
type Watcher struct {
	// Self is the node that this process runs on. Without it nothing is decided.
	Self string
	// Pods lists addresses of pods by node, about maxEach of each. Where all are on Self, it may
	// list none.
	Pods func(maxEach int) map[string][]string
	// Dial connects to a pod.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Port is that of the pods that is asked; 0 means wire.PortMetrics.
	Port int
	// Activator, if set, reports whether an address is an activator's. That is asked at its port of
	// announcements: Ebb's NetworkPolicy closes the one for stats to all but who reads metrics.
	Activator func(ip string) bool
	// Others, if set, asks activators elsewhere at which of these pods somebody answers. It returns
	// when they have answered or their time is over.
	Others func(ctx context.Context, pods []netip.Addr, got func(wire.ReachAnswer))
	// Activators, if set, returns the address of one activator on each node that has one.
	Activators func() map[string]string
	// Agents, if set, does so with node agents: those on these nodes, or the witnesses if that is
	// nil. Each answers for its own node.
	Agents func(ctx context.Context, on []string, pods []netip.Addr, got func(wire.ReachAnswer))
	// Agent, if set, reports whether an address is a node agent's. That has no pod there: it says
	// only whether this autoscaler reaches the node.
	Agent func(ip string) bool
	// Lease reads when a node's Lease was renewed, as its clock says.
	Lease func(ctx context.Context, node string) (string, error)
	Clock func() time.Time
	// Tell receives each verdict that makes a node silent or lost, or well again after it.
	Tell func(alive.Verdict)
	// Judge, if set, receives the nodes that are silent, and whether they are lost, when that
	// changes. It must not block.
	Judge func(map[string]bool)
	Log   *slog.Logger

	// Silent, Lost and Back count verdicts.
	Silent, Lost, Back atomic.Int64

	mutex sync.Mutex
	watch alive.Watch
	began time.Time
	// last is when the last round was. epoch counts pauses: what was asked before one is void.
	last  time.Duration
	epoch int
	// asking are the questions that are under way, by node. doubted is the node that was asked last
	// of those in doubt, turn that of the others.
	asking        map[string]flight
	doubted, turn string
	// others is how many questions to them are under way, inquired the nodes that these are about.
	others   int
	inquired map[string]bool
	// vouching are the nodes whose agents are asked whether they live. acquainted is when agents
	// were asked last about nodes that are well, next the one after which it goes on.
	vouching map[string]bool
	// vouched are the lost nodes whose agents say that they live.
	vouched     map[string]spell
	acquainted  time.Duration
	acquainting bool
	next        string
	// about is when others were asked last about a node that does not answer.
	about map[string]time.Duration
	// answers are the addresses that have answered since a time, before those in the minute before
	// it. A pod that never answered proves nothing: a NetworkPolicy may forbid the question.
	answers, before map[string]struct{}
	since           time.Duration
	leases          map[string]lease
	// pods are those of the last round. told is since when it is known that another replica called
	// a node silent.
	pods map[string][]string
	told map[string]time.Duration
	// speak is when an activator or an agent on a node spoke last. Such a node answers, whether or
	// not it has pods of revisions.
	speak map[string]time.Duration
	// judged is what Judge received last. Only Round uses it.
	judged map[string]bool
	now    []alive.Verdict
}

// flight are questions to one node.
type flight struct {
	n           int
	first, last time.Duration
}

// lease is what is known of a node's Lease.
type lease struct {
	renewed string
	read    time.Duration
	busy    bool
}

// Run asks until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	if w.Self == "" {
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
		}
	}
}

// timeLocked is the time since a second before this began, so that 0 is never.
func (w *Watcher) timeLocked() time.Duration {
	if w.began.IsZero() {
		w.began, w.asking, w.leases, w.watch.Self = w.Clock().Add(-time.Second), map[string]flight{}, map[string]lease{}, w.Self
		w.speak, w.told, w.about = map[string]time.Duration{}, map[string]time.Duration{}, map[string]time.Duration{}
		w.inquired, w.vouching, w.vouched = map[string]bool{}, map[string]bool{}, map[string]spell{}
	}
	return w.Clock().Sub(w.began)
}

// noteLocked remembers that an address answers.
func (w *Watcher) noteLocked(ip string, now time.Duration) {
	if w.answers == nil || now-w.since >= remembers {
		w.before, w.answers, w.since = w.answers, map[string]struct{}{}, now
	}
	w.answers[ip] = struct{}{}
}

func (w *Watcher) answersLocked(ip string) bool {
	_, now := w.answers[ip]
	_, before := w.before[ip]
	return now || before
}

// chooseLocked returns so many of a node's pods to ask, first those that have answered before. It
// says whether one has.
func (w *Watcher) chooseLocked(all []string, most int) (chosen []string, answers bool) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b string) int {
		switch x, y := w.answersLocked(a), w.answersLocked(b); {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
	})
	return all[:min(most, len(all))], len(all) > 0 && w.answersLocked(all[0])
}

// Round decides by what is known, and asks. It does not wait for answers.
func (w *Watcher) Round(ctx context.Context) {
	pods := w.Pods(maxKnown)
	nodes := make([]string, 0, len(pods))
	for node := range pods {
		nodes = append(nodes, node)
	}
	w.mutex.Lock()
	now := w.timeLocked()
	if w.last > 0 && now-w.last > late {
		w.epoch++
		w.watch.Forget()
	}
	w.last, w.pods = now, pods
	for node, at := range w.told {
		if now-at > remembers {
			delete(w.told, node)
		}
	}
	maps.DeleteFunc(w.vouched, func(_ string, s spell) bool { return now-s.last > vouchGap })
	for node, at := range w.speak {
		_, listed := pods[node]
		switch {
		case now-at > remembers:
			delete(w.speak, node)
		case !listed:
			nodes = append(nodes, node)
		}
	}
	w.watch.Keep(nodes, now)
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
		if inDoubt(v.State) && w.Lease != nil {
			w.readLocked(ctx, v.Node, now)
		}
	}
	for node := range w.leases {
		if one, ok := w.watch.Node(node); !w.leases[node].busy && (!ok || !inDoubt(one.State)) {
			delete(w.leases, node)
		}
	}
	w.askOthersLocked(ctx, now)
	w.acquaintLocked(ctx, now)
	doubted, others := w.divideLocked(w.watch.Ask(now))
	w.askInTurnLocked(ctx, doubted, &w.doubted, now)
	w.askInTurnLocked(ctx, others, &w.turn, now)
	w.mutex.Unlock()
	if w.Judge != nil && !maps.Equal(silent, w.judged) {
		w.judged = silent
		w.Judge(maps.Clone(silent))
	}
	for _, v := range told {
		w.tell(v)
	}
}

// inDoubt reports whether more is to be found out about a node in this state. Of one that is lost
// only a sign of life counts.
func inDoubt(s alive.State) bool { return s == alive.Doubted || s == alive.Silent }

// divideLocked divides the nodes to ask. Those in doubt do not wait until all others were asked.
func (w *Watcher) divideLocked(names []string) (doubted, others []string) {
	for _, name := range names {
		if one, _ := w.watch.Node(name); inDoubt(one.State) {
			doubted = append(doubted, name)
		} else {
			others = append(others, name)
		}
	}
	return doubted, others
}

// askInTurnLocked asks nodes, by name, of which no more than maxCalls are being asked then. It
// begins after the one that it asked last, so each gets its turn, however many there are and
// however many are dead.
func (w *Watcher) askInTurnLocked(ctx context.Context, names []string, last *string, now time.Duration) {
	slow := 0
	for _, node := range names {
		if w.asking[node].n > 0 {
			slow++
		}
	}
	room := maxCalls - slow
	at, found := slices.BinarySearch(names, *last)
	if found {
		at++
	}
	for _, node := range slices.Concat(names[at:], names[:at]) {
		f, pods, most := w.asking[node], w.pods[node], maxAtOnce
		if one, _ := w.watch.Node(node); slow <= maxSlow && one.State != alive.Lost && (f.n > 0 || one.State != alive.Well) {
			most = maxKnown
		}
		switch {
		case room <= 0:
			return
		case len(pods) == 0, f.n == maxOverlap, f.n > 0 && now-f.last < period:
			continue
		case f.n == 0:
			f.first = now
			room--
		}
		w.asking[node] = flight{f.n + 1, f.first, now}
		chosen, answers := w.chooseLocked(pods, most)
		go w.ask(ctx, question{node, chosen, answers || w.openLocked(node, now), now, w.epoch})
		*last = node
	}
}

func (w *Watcher) tell(v alive.Verdict) {
	switch v.State {
	case alive.Silent:
		w.Silent.Add(1)
	case alive.Lost:
		w.Lost.Add(1)
	default:
		w.Back.Add(1)
	}
	w.Log.Warn("a node is "+v.State.String(), "node", v.Node, "was", v.Was.String(), "because", v.Reason)
	if w.Tell != nil {
		w.Tell(v)
	}
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
		renewed, err := w.Lease(limited, node)
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
	w.noteLocked(ip, now)
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
	if by != w.Self || w.answersLocked(ip) || w.openLocked(node, now) {
		w.watch.Unanswered(node, by, asked, now)
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
		if _, known := w.told[node]; !known {
			w.told[node] = now
		}
		if w.openLocked(node, now) {
			open = append(open, node)
		}
	}
	return open
}

func (w *Watcher) openLocked(node string, now time.Duration) bool {
	at, told := w.told[node]
	_, spoke := w.speak[node]
	return told && now-at < undecided && !spoke && !slices.ContainsFunc(w.pods[node], w.answersLocked)
}

// Since is when a verdict began to hold.
func (w *Watcher) Since(v alive.Verdict) time.Time {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.began.Add(v.Since)
}

// Now returns the nodes that are not well.
func (w *Watcher) Now() []alive.Verdict {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return slices.DeleteFunc(slices.Clone(w.now), func(v alive.Verdict) bool { return v.State == alive.Well })
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
