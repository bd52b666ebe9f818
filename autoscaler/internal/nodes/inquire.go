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
	for node, f := range w.asking {
		if now-f.first >= period && kind[node] < 2 {
			kind[node] = 0
		}
	}
	maps.DeleteFunc(w.about, func(node string, _ time.Duration) bool { _, doubted := kind[node]; return !doubted })
	return slices.SortedFunc(maps.Keys(kind), func(a, b string) int {
		return cmp.Or(cmp.Compare(kind[a], kind[b]), cmp.Compare(w.about[a], w.about[b]), cmp.Compare(a, b))
	})
}

// askOthersLocked has others ask the nodes that are not well, and those that take so long for an
// answer that they may not give one. It asks agents on these nodes, too, whether they live.
func (w *Watcher) askOthersLocked(ctx context.Context, now time.Duration) {
	if w.Others == nil && w.Agents == nil {
		return
	}
	doubted := w.doubtedLocked(now)
	if len(doubted) == 0 {
		return
	}
	far := w.farLocked(doubted)
	w.vouchLocked(ctx, doubted, far)
	if w.others == maxInquiries {
		return
	}
	nodes := map[netip.Addr]string{}
	var all []netip.Addr
	most := min(max(wire.MaxReach/len(doubted), maxAtOnce), maxKnown)
	for _, node := range doubted {
		if w.inquired[node] {
			continue
		}
		chosen, _ := w.chooseLocked(w.podsOf(node), most)
		for _, ip := range chosen {
			if address, err := netip.ParseAddr(ip); err == nil && len(all) < wire.MaxReach {
				all, nodes[address] = append(all, address), node
				w.about[node] = now
			}
		}
	}
	if len(all) == 0 {
		return
	}
	w.others++
	for _, node := range nodes {
		w.inquired[node] = true
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
		if w.Others != nil {
			asking.Go(func() { w.Others(ctx, all, func(a wire.ReachAnswer) { answered(a, activator) }) })
		}
		if w.Agents != nil {
			asking.Go(func() { w.askAgents(ctx, nil, all, nodes, far, func(a wire.ReachAnswer) { answered(a, agent) }) })
		}
		asking.Wait()
		w.mutex.Lock()
		defer w.mutex.Unlock()
		w.others--
		for _, node := range nodes {
			delete(w.inquired, node)
		}
	}()
}

// podsOf are the pods of a node. Where it has none, an agent's address may be listed.
func (w *Watcher) podsOf(node string) []string {
	if all := w.pods[node]; len(all) != 1 || !w.isAgent(all[0]) {
		return all
	}
	return nil
}

func (w *Watcher) isAgent(ip string) bool { return w.Agent != nil && w.Agent(ip) }

// askAgents asks agents about pods, and about some on other nodes: got receives the answers that
// count, without what they say of these.
func (w *Watcher) askAgents(ctx context.Context, on []string, pods []netip.Addr, nodes, far map[netip.Addr]string, got func(wire.ReachAnswer)) {
	all := slices.Concat(slices.Collect(maps.Keys(far)), pods)
	w.Agents(ctx, on, all[:min(len(all), wire.MaxReach)], func(a wire.ReachAnswer) {
		var answered []string
		for _, pod := range a.Life {
			answered = append(answered, cmp.Or(nodes[pod], far[pod]))
		}
		if !alive.Counts(a.Node, answered) {
			w.Log.Debug("the word of a node agent does not count: nothing on another node answers it", "node", a.Node)
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
	far := map[netip.Addr]string{}
	if w.Agents == nil {
		return far
	}
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
	activators := map[string]string{}
	if w.Activators != nil {
		activators = w.Activators()
	}
	for node, ip := range activators {
		add(node, ip)
	}
	for node := range w.pods {
		if len(far) == maxFar {
			break
		}
		if chosen, answers := w.chooseLocked(w.podsOf(node), 1); answers && activators[node] == "" {
			add(node, chosen[0])
		}
	}
	return far
}

// vouchLocked asks agents on nodes in doubt whether they live. Pods there may be kept from
// answering by a NetworkPolicy of their own, and an agent is not.
func (w *Watcher) vouchLocked(ctx context.Context, doubted []string, far map[netip.Addr]string) {
	if w.Agents == nil || len(far) == 0 {
		return
	}
	on := slices.DeleteFunc(slices.Clone(doubted), func(node string) bool { return w.vouching[node] })
	on = on[:min(len(on), maxVouching-len(w.vouching))]
	for _, node := range on {
		w.vouching[node] = true
		go func() {
			w.askAgents(ctx, []string{node}, nil, nil, far, func(a wire.ReachAnswer) { w.takeLife(&a, nil, agent) })
			w.mutex.Lock()
			defer w.mutex.Unlock()
			delete(w.vouching, node)
		}()
	}
}

// acquaintLocked has agents ask pods of nodes that are well, now and then, some nodes after the
// others. An agent calls no pod silent that has not answered it.
func (w *Watcher) acquaintLocked(ctx context.Context, now time.Duration) {
	const atOnce = (wire.MaxReach - maxFar) / acquaintPods // nodes
	every := max(acquaintPeriod*atOnce/time.Duration(max(len(w.pods), atOnce)), acquaintLeast)
	if w.Agents == nil || w.acquainting || w.acquainted > 0 && now-w.acquainted < every {
		return
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(w.pods)), func(node string) bool {
		one, ok := w.watch.Node(node)
		return !ok || node == w.Self || one.State != alive.Well || len(w.podsOf(node)) == 0
	})
	if len(names) == 0 {
		return
	}
	at, found := slices.BinarySearch(names, w.next)
	if found {
		at++
	}
	nodes := map[netip.Addr]string{}
	for _, node := range slices.Concat(names[at:], names[:at])[:min(len(names), atOnce)] {
		w.next = node
		chosen, _ := w.chooseLocked(w.podsOf(node), acquaintPods)
		for _, ip := range chosen {
			if address, err := netip.ParseAddr(ip); err == nil {
				nodes[address] = node
			}
		}
	}
	far := w.farLocked(nil)
	w.acquainted, w.acquainting = now, true
	go func() {
		w.askAgents(ctx, nil, slices.Collect(maps.Keys(nodes)), nodes, far, func(a wire.ReachAnswer) { w.takeLife(&a, nodes, agent) })
		w.mutex.Lock()
		defer w.mutex.Unlock()
		w.acquainting = false
	}()
}

// speaker is who answers a question about pods.
type speaker uint8

const (
	activator speaker = iota
	agent
)

// vouchedLocked reports whether the word of a node's agent is a sign of life. Of a lost node it is
// after a time: an agent starts before the pods of its node, which Kubernetes may call ready yet
// although they have ended.
func (w *Watcher) vouchedLocked(node string, now time.Duration) bool {
	if one, _ := w.watch.Node(node); one.State != alive.Lost {
		delete(w.vouched, node)
		return true
	}
	since, known := w.vouched[node]
	if !known || now-since.last > vouchGap {
		since.first = now
	}
	w.vouched[node] = spell{since.first, now}
	return now-since.first >= vouchAfter
}

// spell is when somebody spoke first and last, without a gap.
type spell struct{ first, last time.Duration }

// spokeLocked takes that an activator or an agent on a node spoke.
func (w *Watcher) spokeLocked(node string, now time.Duration) {
	if _, known := w.speak[node]; node != "" && (known || len(w.speak) < alive.MaxNodes) {
		w.speak[node] = now
	}
	w.watch.Spoke(node, now)
}

// takeLife takes the signs of life in an answer.
func (w *Watcher) takeLife(a *wire.ReachAnswer, nodes map[netip.Addr]string, of speaker) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	now := w.timeLocked()
	if of == activator || w.vouchedLocked(a.Node, now) {
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
