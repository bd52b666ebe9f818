package alive

import (
	"slices"
	"strings"
	"time"
)

// MaxNodes bounds the nodes that are watched. Of one more, nothing is decided.
const MaxNodes = 10_000

// Watch watches the nodes that have pods. It has one owner and no lock.
type Watch struct {
	// Self is the node that this autoscaler runs on.
	Self string

	nodes map[string]*Node
}

// Verdict is what is thought of a node, and why.
type Verdict struct {
	Node   string
	State  State
	Was    State
	Since  time.Duration
	Reason string
}

// Placed is for how long after its end a silent node is watched, whether or not it has pods. So
// long Kubernetes may place new ones there, of which nobody could tell that they do not start.
const Placed = 45 * time.Second

// proves is for how long before a Lease is seen to change it may have been renewed: there may be a
// gap between two reads that counts as none, and a read takes a second at most.
const proves = counts + AskTime

// Keep watches these nodes from now on, and no others but those that have just fallen silent.
func (w *Watch) Keep(nodes []string, now time.Duration) {
	kept := make(map[string]*Node, len(nodes))
	for _, name := range nodes {
		if n := w.nodes[name]; n != nil {
			kept[name] = n
		} else if name != "" && len(kept) < MaxNodes {
			one := Watched(now)
			kept[name] = &one
		}
	}
	for name, n := range w.nodes {
		if silence := n.silence(now); n.State >= Silent && silence > 0 && silence < Placed {
			kept[name] = n
		}
	}
	w.nodes = kept
}

// Spoke takes a sign of life of something on a node.
func (w *Watch) Spoke(node string, at time.Duration) {
	if n := w.nodes[node]; n != nil {
		n.Spoke(at)
	}
}

// Opened takes that the port of a node's agent is open, also if only to refuse. An agent has its
// node's own network, so this says nothing about that of pods.
func (w *Watch) Opened(node string, at time.Duration) {
	if n := w.nodes[node]; n != nil {
		n.opened(at)
	}
}

// Bare takes whether there is nothing on a node but an agent.
func (w *Watch) Bare(node string, is bool) {
	if n := w.nodes[node]; n != nil {
		n.bare = is
	}
}

// Unanswered takes a question that nobody answered: about which node, on which node runs who asked,
// and when that was. Whatever is said on a node of itself is a sign of life of that. One that
// runs where this autoscaler does is no other witness, and one that says not where it runs is none.
func (w *Watch) Unanswered(node, by string, asked, at time.Duration) {
	n := w.nodes[node]
	switch {
	case n == nil || by == "":
	case by == node && by != w.Self:
		n.Spoke(at)
	case by == w.Self:
		n.Unanswered(asked, "")
	default:
		n.Unanswered(asked, by)
	}
}

// Counts reports whether what the agent of a node says counts: something on another node has
// answered it. An agent has its node's own network. That may work where the network of pods does
// not, and policies for pods may forbid it to ask any.
func Counts(node string, answered []string) bool {
	return node != "" && slices.ContainsFunc(answered, func(other string) bool { return other != "" && other != node })
}

// Lease takes that a node's Lease was read, as Node.Lease does.
func (w *Watch) Lease(node string, at time.Duration, changed bool) {
	if n := w.nodes[node]; n != nil {
		n.Lease(at, changed)
	}
}

// Ask returns the nodes to ask now, by name: those that are not well, and those that nobody has
// heard of for the time of a question.
func (w *Watch) Ask(now time.Duration) (names []string) {
	for name, n := range w.nodes {
		if name != w.Self && (n.State != Well || n.silence(now) > 0 || now-n.spoke >= AskTime) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Forget voids the questions in vain about nodes that are not silent yet. After a pause of this
// process nobody knows whether they were answered.
func (w *Watch) Forget() {
	for _, n := range w.nodes {
		if n.State < Silent {
			n.first, n.began, n.own, n.other = 0, 0, 0, 0
		}
	}
}

// Step decides about all nodes. It returns those that are not well or have just become it, by name.
func (w *Watch) Step(now time.Duration) (all []Verdict) {
	silent, bare := 0, []*Node(nil)
	joined := make([]time.Duration, 0, len(w.nodes)) // of those that are not silent
	for name, n := range w.nodes {
		if name == w.Self {
			continue
		}
		if n.bare {
			bare = append(bare, n)
		}
		if n.silence(now) >= SilentAfter {
			silent++
		} else {
			joined = append(joined, n.joined)
		}
	}
	if silent > 0 {
		slices.Sort(joined)
	}
	for name, n := range w.nodes {
		if name == w.Self || n.State == Well && n.Ends == 0 && n.silence(now) == 0 {
			continue
		}
		// This autoscaler's own node answers.
		a := Around{Heard: 1}
		if n.silence(now) >= SilentAfter {
			since, _ := slices.BinarySearch(joined, n.first+1)
			a.Heard, a.Unheard = 1+len(joined)-since, silent-1
			for _, b := range bare {
				switch quiet := b.silence(now) >= SilentAfter; {
				case b == n:
				case quiet && b.lives > max(n.first, n.renewed)+proves:
					a.Unheard--
					a.Shut++
				case !quiet && b.spoke > n.first && b.joined <= n.first:
					a.Open++
				}
			}
		}
		was := n.State
		reason := n.Decide(a, now)
		if n.State != Well || was != Well {
			all = append(all, Verdict{Node: name, State: n.State, Was: was, Since: n.Since, Reason: "node " + name + ": " + reason})
		}
	}
	slices.SortFunc(all, func(a, b Verdict) int { return strings.Compare(a.Node, b.Node) })
	return all
}

// Node is what is known of a node; ok is false if it is not watched.
func (w *Watch) Node(name string) (n Node, ok bool) {
	if one := w.nodes[name]; one != nil {
		return *one, true
	}
	return Node{}, false
}

// Extra is how many pods a revision is to have beyond those that it wants, because some are on lost
// nodes: as many as are lost, and never more than double.
func Extra(wanted, lost int32) int32 { return max(min(wanted, lost), 0) }
