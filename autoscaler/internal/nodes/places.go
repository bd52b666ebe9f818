package nodes

import (
	"maps"
	"slices"
	"time"

	"ebb.dev/ebb/autoscaler/alive"
)

const (
	// remembers is for how long at least it is known that a pod has answered, and for how long a
	// node is watched on which an activator has spoken.
	remembers = time.Minute
	// undecided is for how long it is taken for granted that pods answer on a node that another
	// replica called silent: enough for a verdict of one's own, also by the age of a Lease.
	undecided = 30 * time.Second
)

// places are what is known of nodes and of the addresses there. It has no lock.
type places struct {
	// pods are those of the last round.
	pods map[string][]string
	// answers are the addresses that have answered since a time, before those in the minute before
	// it. A pod that never answered proves nothing: a NetworkPolicy may forbid the question.
	answers, before map[string]struct{}
	since           time.Duration
	// told is since when it is known that another replica called a node silent.
	told map[string]time.Duration
	// speak is when an activator or an agent on a node spoke last. Such a node answers, whether or
	// not it has pods of revisions.
	speak map[string]time.Duration
}

// list takes the pods that there are now, and returns the nodes to watch.
func (p *places) list(pods map[string][]string, now time.Duration) (nodes []string) {
	p.pods = pods
	for node := range pods {
		nodes = append(nodes, node)
	}
	maps.DeleteFunc(p.told, func(_ string, at time.Duration) bool { return now-at > remembers })
	for node, at := range p.speak {
		_, listed := pods[node]
		switch {
		case now-at > remembers:
			delete(p.speak, node)
		case !listed:
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// note remembers that an address answers.
func (p *places) note(ip string, now time.Duration) {
	if now-p.since >= remembers {
		p.before, p.answers, p.since = p.answers, map[string]struct{}{}, now
	}
	p.answers[ip] = struct{}{}
}

func (p *places) answered(ip string) bool {
	_, now := p.answers[ip]
	_, before := p.before[ip]
	return now || before
}

// speaks remembers that an activator or an agent on a node spoke.
func (p *places) speaks(node string, now time.Duration) {
	if _, known := p.speak[node]; node != "" && (known || len(p.speak) < alive.MaxNodes) {
		p.speak[node] = now
	}
}

// hear takes that another replica called a node silent.
func (p *places) hear(node string, now time.Duration) {
	if _, known := p.told[node]; !known {
		p.told[node] = now
	}
}

// open reports whether another replica called a node silent, and nobody there has answered since.
func (p *places) open(node string, now time.Duration) bool {
	at, told := p.told[node]
	_, spoke := p.speak[node]
	return told && now-at < undecided && !spoke && !slices.ContainsFunc(p.pods[node], p.answered)
}

// choose returns so many of these pods to ask, first those that have answered before. It says
// whether one has.
func (p *places) choose(all []string, most int) (chosen []string, answers bool) {
	for _, known := range []bool{true, false} {
		for _, ip := range all {
			if p.answered(ip) == known {
				chosen = append(chosen, ip)
			}
		}
	}
	return chosen[:min(most, len(all))], len(all) > 0 && p.answered(chosen[0])
}
