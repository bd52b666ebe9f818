package nodes

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"ebb.dev/ebb/autoscaler/alive"
	"ebb.dev/ebb/wire"
)

const (
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
)

// inquiries are the questions to others.
type inquiries struct {
	// running is how many are under way, of the nodes that these are about.
	running int
	of      map[string]bool
	// about is when others were asked last about a node that does not answer.
	about map[string]time.Duration
	// vouching are the nodes whose agents are asked whether they live, vouched the lost nodes whose
	// agents say so.
	vouching map[string]bool
	vouched  map[string]spell
	// acquainted is when agents were asked last about nodes that are well, acquainting that they
	// are, next the node after which it goes on.
	acquainted  time.Duration
	acquainting bool
	next        string
}

// spell is when somebody spoke first and last, without a gap.
type spell struct{ first, last time.Duration }

// speaker is who answers a question about pods.
type speaker uint8

const (
	activator speaker = iota
	agent
)

// doubtedLocked returns the nodes that are not well, and those that take so long for an answer that
// they may not give one: first those that are not lost and have not answered this autoscaler, each
// in its turn. Of many there is room for some at a time.
func (w *Watcher) doubtedLocked(now time.Duration) (nodes []string) {
	kind := map[string]int{}
	for _, v := range w.now {
		switch {
		case v.State == alive.Lost:
			kind[v.Node] = 2
		case v.State != alive.Well:
			kind[v.Node] = 1
		}
	}
	for node, f := range w.own.asking {
		if now-f.first >= minPeriod && kind[node] < 2 {
			kind[node] = 0
		}
	}
	maps.DeleteFunc(w.inquiry.about, func(node string, _ time.Duration) bool { _, doubted := kind[node]; return !doubted })
	return slices.SortedFunc(maps.Keys(kind), func(a, b string) int {
		return cmp.Or(cmp.Compare(kind[a], kind[b]), cmp.Compare(w.inquiry.about[a], w.inquiry.about[b]), cmp.Compare(a, b))
	})
}

// askOthersLocked has others ask the nodes that are not well, and those that take so long for an
// answer that they may not give one. It asks agents on these nodes, too, whether they live.
func (w *Watcher) askOthersLocked(ctx context.Context, now time.Duration) {
	doubted, in := w.doubtedLocked(now), &w.inquiry
	if len(doubted) == 0 {
		return
	}
	far := w.farLocked(doubted)
	w.vouchLocked(ctx, doubted, far)
	if in.running == maxInquiries {
		return
	}
	each := min(max(wire.MaxReach/len(doubted), maxAtOnce), maxKnown)
	all, nodes := w.someLocked(slices.DeleteFunc(doubted, func(node string) bool { return in.of[node] }), each)
	if len(all) == 0 {
		return
	}
	in.running++
	for _, node := range nodes {
		in.of[node], in.about[node] = true, now
	}
	epoch := w.epoch
	answered := func(a wire.ReachAnswer, of speaker) {
		w.takeLife(&a, nodes, of)
		select {
		case <-ctx.Done():
		case <-time.After(settle):
			w.takeSilence(&a, nodes, now, epoch)
		}
	}
	go func() {
		var asking sync.WaitGroup
		asking.Go(func() { w.config.Others(ctx, all, func(a wire.ReachAnswer) { answered(a, activator) }) })
		asking.Go(func() { w.askAgents(ctx, nil, all, nodes, far, func(a wire.ReachAnswer) { answered(a, agent) }) })
		asking.Wait()
		w.mutex.Lock()
		defer w.mutex.Unlock()
		in.running--
		for _, node := range nodes {
			delete(in.of, node)
		}
	}()
}

// someLocked returns some pods of each of these nodes, as far as they fit into one question.
func (w *Watcher) someLocked(names []string, each int) (pods []netip.Addr, nodes map[netip.Addr]string) {
	nodes = map[netip.Addr]string{}
	for _, node := range names {
		chosen, _ := w.places.choose(w.podsOf(node), each)
		for _, ip := range chosen {
			if address, err := netip.ParseAddr(ip); err == nil && len(pods) < wire.MaxReach {
				pods, nodes[address] = append(pods, address), node
			}
		}
	}
	return pods, nodes
}

// podsOf are the pods of a node. Where it has none, an agent's address may be listed.
func (w *Watcher) podsOf(node string) []string {
	if all := w.places.pods[node]; len(all) != 1 || !w.config.Agent(all[0]) {
		return all
	}
	return nil
}

// askAgents asks agents about pods, and about some on other nodes: got receives the answers that
// count, without what they say of these.
func (w *Watcher) askAgents(ctx context.Context, on []string, pods []netip.Addr, nodes, far map[netip.Addr]string, got func(wire.ReachAnswer)) {
	all := slices.Concat(slices.Collect(maps.Keys(far)), pods)
	w.config.Agents(ctx, on, all[:min(len(all), wire.MaxReach)], func(a wire.ReachAnswer) {
		var answered []string
		for _, pod := range a.Life {
			answered = append(answered, cmp.Or(nodes[pod], far[pod]))
		}
		if !alive.Counts(a.Node, answered) {
			w.config.Log.Debug("the word of a node agent does not count: nothing on another node answers it", "node", a.Node)
			return
		}
		unasked := func(pod netip.Addr) bool { return nodes[pod] == "" }
		a.Life, a.Silent = slices.DeleteFunc(a.Life, unasked), slices.DeleteFunc(a.Silent, unasked)
		got(a)
	})
}

// farLocked returns some addresses: of activators, which no tenant can close, and else of pods that
// have answered this autoscaler. They are on nodes other than these, if there are any.
func (w *Watcher) farLocked(but []string) map[netip.Addr]string {
	far, activators := map[netip.Addr]string{}, w.config.Activators()
	add := func(node, ip string) {
		if address, err := netip.ParseAddr(ip); err == nil && len(far) < maxFar && !slices.Contains(but, node) {
			far[address] = node
		}
	}
	defer func() {
		if len(far) == 0 && len(but) > 0 {
			maps.Copy(far, w.farLocked(nil))
		}
	}()
	for node, ip := range activators {
		add(node, ip)
	}
	for node := range w.places.pods {
		if len(far) == maxFar {
			break
		}
		if chosen, answers := w.places.choose(w.podsOf(node), 1); answers && activators[node] == "" {
			add(node, chosen[0])
		}
	}
	return far
}

// vouchLocked asks agents on nodes in doubt whether they live. Pods there may be kept from
// answering by a NetworkPolicy of their own, and an agent is not.
func (w *Watcher) vouchLocked(ctx context.Context, doubted []string, far map[netip.Addr]string) {
	if len(far) == 0 {
		return
	}
	vouching := w.inquiry.vouching
	on := slices.DeleteFunc(slices.Clone(doubted), func(node string) bool { return vouching[node] })
	on = on[:min(len(on), maxVouching-len(vouching))]
	for _, node := range on {
		vouching[node] = true
		go func() {
			w.askAgents(ctx, []string{node}, nil, nil, far, func(a wire.ReachAnswer) { w.takeLife(&a, nil, agent) })
			w.mutex.Lock()
			defer w.mutex.Unlock()
			delete(vouching, node)
		}()
	}
}

// acquaintLocked has agents ask pods of nodes that are well, now and then, some nodes after the
// others. An agent calls no pod silent that has not answered it.
func (w *Watcher) acquaintLocked(ctx context.Context, now time.Duration) {
	const atOnce = (wire.MaxReach - maxFar) / acquaintPods // nodes
	all, in := w.places.pods, &w.inquiry
	every := max(acquaintPeriod*atOnce/time.Duration(max(len(all), atOnce)), acquaintLeast)
	if in.acquainting || in.acquainted > 0 && now-in.acquainted < every {
		return
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(node string) bool {
		one, ok := w.watch.Node(node)
		return !ok || node == w.config.Self || one.State != alive.Well || len(w.podsOf(node)) == 0
	})
	if len(names) == 0 {
		return
	}
	names = after(in.next, names)[:min(len(names), atOnce)]
	pods, nodes := w.someLocked(names, acquaintPods)
	far := w.farLocked(nil)
	in.next, in.acquainted, in.acquainting = names[len(names)-1], now, true
	go func() {
		w.askAgents(ctx, nil, pods, nodes, far, func(a wire.ReachAnswer) { w.takeLife(&a, nodes, agent) })
		w.mutex.Lock()
		defer w.mutex.Unlock()
		in.acquainting = false
	}()
}

// vouches reports whether the word of the agent of a node in this state is a sign of life. Of a
// lost node it is after a time: an agent starts before the pods of its node, which Kubernetes may
// call ready yet although they have ended.
func (in *inquiries) vouches(node string, state alive.State, now time.Duration) bool {
	if state != alive.Lost {
		delete(in.vouched, node)
		return true
	}
	since, known := in.vouched[node]
	if !known || now-since.last > vouchGap {
		since.first = now
	}
	in.vouched[node] = spell{since.first, now}
	return now-since.first >= vouchAfter
}

// spokeLocked takes that an activator or an agent on a node spoke.
func (w *Watcher) spokeLocked(node string, now time.Duration) {
	w.places.speaks(node, now)
	w.watch.Spoke(node, now)
}

// takeLife takes the signs of life in an answer.
func (w *Watcher) takeLife(a *wire.ReachAnswer, nodes map[netip.Addr]string, of speaker) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	now := w.timeLocked()
	if one, _ := w.watch.Node(a.Node); of == activator || w.inquiry.vouches(a.Node, one.State, now) {
		w.spokeLocked(a.Node, now)
	}
	for _, pod := range a.Life {
		w.watch.Spoke(nodes[pod], now)
	}
}

// takeSilence takes at which pods nobody answered the one who was asked. A node where one of its
// pods did, or that has answered anybody since, is alive. What is said on a node of itself is no
// more than takeLife has taken.
func (w *Watcher) takeSilence(a *wire.ReachAnswer, nodes map[netip.Addr]string, asked time.Duration, epoch int) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	now := w.timeLocked()
	lives := map[string]bool{}
	for _, pod := range a.Life {
		lives[nodes[pod]] = true
	}
	for _, pod := range a.Silent {
		if node := nodes[pod]; node != a.Node && !lives[node] && epoch == w.epoch && now-asked <= late+settle {
			w.unansweredLocked(node, pod.String(), a.Node, asked, now)
		}
	}
}
