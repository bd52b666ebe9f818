package pods

import (
	"time"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
)

// group holds the pods of one revision. The counts and lists are derived on demand.
type group struct {
	pods   []*small
	known  bool
	counts revision.Counts
	ready  []Pod
	lapsed []Pod
	asleep []Pod
}

// Count counts a revision's pods, see stateOf.
func (i *Index) Count(k loop.Key) revision.Counts {
	return i.look(k).counts
}

// Ready lists a revision's ready pods. The caller must not change the list.
func (i *Index) Ready(k loop.Key) []Pod {
	return i.look(k).ready
}

// Starting returns since when the slowest of a revision's pods has been starting: it has a node
// that is not lost, nor is it itself, and was never ready. It is zero if no pod is.
func (i *Index) Starting(k loop.Key) (since time.Time) {
	i.mutex.RLock()
	defer i.mutex.RUnlock()
	r := i.revisions[k]
	if r == nil {
		return since
	}
	for _, p := range r.pods {
		if (p.state == pending || p.state == notReady) && !i.silent[p.node] && !p.lost(i.silent) && !p.started.IsZero() && (since.IsZero() || p.started.Before(since)) {
			since = p.started
		}
	}
	return since
}

// NotReady lists the pods that sleep, and those that may: they were ready before. The caller must
// not change the lists.
func (i *Index) NotReady(k loop.Key) (asleep, lapsed []Pod) {
	g := i.look(k)
	return g.asleep, g.lapsed
}

// ToScrape lists the pods that know a revision's load: the ready ones or, if there are none, those
// that were ready before. These may still handle long requests. The caller must not change the
// list.
func (i *Index) ToScrape(k loop.Key) []Pod {
	g := i.look(k)
	if len(g.ready) == 0 {
		return g.lapsed
	}
	return g.ready
}

// look returns a copy of the group, derived.
func (i *Index) look(k loop.Key) group {
	i.mutex.RLock()
	r := i.revisions[k]
	if r == nil || r.known {
		defer i.mutex.RUnlock()
		if r == nil {
			return group{}
		}
		return *r
	}
	i.mutex.RUnlock()
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if !r.known {
		r.derive(i.silent)
	}
	return *r
}

// derive computes the counts and new lists. Lists that were returned before do not change.
func (r *group) derive(silent map[string]bool) {
	r.known, r.counts, r.ready, r.lapsed, r.asleep = true, revision.Counts{}, nil, nil, nil
	for _, p := range r.pods {
		r.counts.Memory = max(r.counts.Memory, p.memory)
		pod, state := Pod{Name: p.name, IP: p.ip, Node: p.node, Started: p.started, Depth: p.said.depth, Since: p.said.since, Shrunk: p.shrunk}, p.state
		if p.startup != nil {
			p.startup.count(&r.counts.Startup)
		}
		switch running := state == ready || state == lapsed; {
		case p.lost(silent):
			r.counts.Lost++
			if state != pending {
				state = notReady
			}
		case running && p.said.depth > 0:
			r.counts.Asleep++
			r.counts.Deep[min(int(p.said.depth), revision.Levels)-1]++
			switch failure := p.said.failure; {
			case p.said.alone:
				r.counts.Alone++
			case failure != "":
				r.counts.Unfrozen++
				if r.counts.FreezeFailure == "" || failure < r.counts.FreezeFailure {
					r.counts.FreezeFailure = failure
				}
			}
			r.asleep = append(r.asleep, pod)
			continue
		case state == lapsed && p.said.woke && time.Since(p.said.since) < noticed:
			state, r.known = ready, false // until the kubelet has noticed
		}
		switch state {
		case pending:
			r.counts.Pending++
			r.counts.NotReady++
		case terminating:
			r.counts.Terminating++
			r.counts.NotReady++
		case notReady:
			r.counts.NotReady++
		case lapsed:
			r.counts.NotReady++
			if p.ip != "" {
				r.counts.Lapsed++
				r.lapsed = append(r.lapsed, pod)
			}
		case ready:
			r.counts.Ready++
			if p.ip != "" {
				r.ready = append(r.ready, pod)
				if p.shrunk != "" {
					r.counts.Shrunk++
				}
			}
		}
	}
}
