// Package alive decides which nodes have died, from who asked what is there and got an answer.
//
// Owns: for each node, whether its pods get new requests and whether they are replaced, with the
// reason. Reads: signs of life, questions that nobody answered, renewed Leases, and the time, all
// of one monotonic clock. Writes: nothing; Step returns what changed. Never: looks at a clock or a
// network, compares clocks of two machines, or decides about a pod whose node answers: the kubelet
// does that.
//
// A question is an attempt to connect. What the kernel of a node answers to it, also that the port
// is closed, is a sign of life; what a program answers later does not matter. So a pod that is
// frozen, slow or busy is alive.
//
// The states of a node, and what leads from one to the other:
//
//	Well     a question was not answered -> Doubted
//	Doubted  a sign of life -> Well; silent for SilentAfter, and all agree -> Silent
//	Silent   signs of life for BackAfter -> Well; silent for LostAfter, and all agree -> Lost
//	Lost     signs of life for BackAfter -> Well
//
// All agree if this autoscaler asked in vain, an activator or a node agent on a third node did,
// too, or else the node has neither renewed its Lease nor answered anybody for as long, and more
// nodes answer than are silent. Where they do not agree, a node stays what it is: nothing is taken
// back but for a sign of life.
package alive

import (
	"fmt"
	"strings"
	"time"
)

const (
	// AskTime bounds a question.
	AskTime = time.Second
	// SilentAfter is after which silence a node gets no new requests. It begins with the first
	// question that nobody answered, and takes two of this autoscaler's and one of another, so that
	// two lost packets decide nothing.
	SilentAfter = 1500 * time.Millisecond
	// LostAfter is after which silence its pods are replaced. It doubles with each end of a node
	// that comes back.
	LostAfter = 3 * time.Second
	// BackAfter is for how long a node has to answer until it gets requests again. It doubles, too.
	BackAfter = time.Second
	// MaxEnds bounds the doubling: to 48 s and 16 s.
	MaxEnds = 4
	// Forgets is after which time without an end the ends are forgotten.
	Forgets = 10 * time.Minute
	// LeaseAfter is the age of a Lease that says that a kubelet has died: it renews it every 10 s.
	LeaseAfter = 12 * time.Second
	// counts is for how long a question in vain counts. Those who ask do so at least each second.
	counts = 3 * time.Second
)

// State is what is thought of a node.
type State uint8

// The states; the package comment has the transitions.
const (
	Well    State = iota
	Doubted       // it is asked again, and others are
	Silent        // its pods get no new requests where there are others
	Lost          // they are replaced
)

func (s State) String() string { return [...]string{"well", "doubted", "silent", "lost"}[s] }

// Node is what is known of one node. It is comparable. Watched makes one.
type Node struct {
	State State
	// Since is when State began.
	Since time.Duration
	// Ends is how often it fell silent and came back.
	Ends uint8

	// by is the node of the activator, or of the agent, that asked in vain last.
	by string
	// spoke is the newest sign of life, joined the newest one that came through the network of
	// pods, steady the first one since a silence of SilentAfter.
	spoke, joined, steady time.Duration
	// first is the first question in vain after spoke, began this autoscaler's first one; own and
	// other are the newest ones: of this autoscaler, and from a third node. They count only if
	// they are after spoke.
	first, began, own, other time.Duration
	// read is when its Lease was last read, renewed when it was seen to have changed, or when it
	// was first read after a while.
	read, renewed time.Duration
	// bare says that nothing but an agent is there, lives when the Lease of such a node was last
	// seen to change between two reads.
	bare  bool
	lives time.Duration
}

// Watched is a node that is watched from now on. Nothing that was before counts against it.
func Watched(now time.Duration) Node {
	return Node{Since: now, spoke: now, steady: now, first: now, began: now, own: now, other: now, renewed: now}
}

// Spoke takes a sign of life.
func (n *Node) Spoke(at time.Duration) {
	n.opened(at)
	n.joined = max(n.joined, at)
}

// opened takes a sign of life from the node's own network alone.
func (n *Node) opened(at time.Duration) {
	if n.silence(at) >= SilentAfter {
		n.steady = at
	}
	n.spoke = max(n.spoke, at)
}

// Unanswered takes a question that nobody answered: when it was asked, and the node from which it
// was asked, "" for this autoscaler. One from before the last sign of life counts for
// nothing.
func (n *Node) Unanswered(asked time.Duration, by string) {
	if asked <= n.spoke {
		return
	}
	if n.first <= n.spoke || asked < n.first {
		n.first = asked
	}
	if by == "" {
		if n.began <= n.spoke || asked < n.began {
			n.began = asked
		}
		n.own = max(n.own, asked)
	} else {
		n.other, n.by = max(n.other, asked), by
	}
}

// Lease takes that the node's Lease was read, and whether it has changed since the last time. What
// happened between two reads that are long apart is not known.
func (n *Node) Lease(at time.Duration, changed bool) {
	if n.bare && changed && at-n.read <= counts {
		n.lives = max(n.lives, at)
	}
	if changed || at-n.read > counts {
		n.renewed = max(n.renewed, at)
	}
	n.read = max(n.read, at)
}

// silence is for how long nothing has answered, counted from the first question in vain.
func (n *Node) silence(now time.Duration) time.Duration {
	if n.first <= n.spoke {
		return 0
	}
	return now - n.first
}

// Around is what is known besides the node itself.
type Around struct {
	// Heard are the other nodes of which a sign of life came since this one fell silent, and which
	// are not silent themselves. This autoscaler's own node is one of them. Unheard are those that
	// are silent, too.
	Heard, Unheard int
	// Open and Shut are neither, nodes with an agent alone. Since this one fell silent, the port of
	// the agent was open, and nobody knows whether the network of pods goes there. Or it was not,
	// and the node has renewed its Lease.
	Open, Shut int
}

// Decide is what becomes of the node, and why.
func (n *Node) Decide(a Around, now time.Duration) (reason string) {
	was, silence := n.State, n.silence(now)
	why, agreed := "", false
	switch {
	case silence == 0 && n.State >= Silent:
		wait := BackAfter << n.Ends
		if n.spoke-n.steady < wait {
			return fmt.Sprintf("it answers again, and gets requests after %s of that", seconds(wait))
		}
		n.Ends = min(n.Ends+1, MaxEnds)
		n.State, why = Well, "it answers again"
	case silence == 0:
		n.State, why = Well, "it answers"
		if n.Ends > 0 && now-n.steady >= Forgets { // a lost packet meanwhile is no end
			n.Ends = 0
		}
	case silence < SilentAfter:
		n.State, why = max(n.State, Doubted), "a question was not answered"
	default:
		why, agreed = n.agree(a, now)
		switch wait := LostAfter << n.Ends; {
		case n.State == Lost: // also if those who agreed are gone by now
			if !agreed {
				why = "it counts as lost until it answers"
			}
		case !agreed:
			n.State = max(n.State, Doubted)
		case silence >= wait:
			n.State = Lost
		default:
			n.State = max(n.State, Silent)
			why += fmt.Sprintf("; its pods are replaced after %s", seconds(wait))
		}
		why = fmt.Sprintf("nothing there has answered for %s; %s", seconds(silence), why)
	}
	if n.State != was {
		n.Since = now
	}
	return why
}

// agree reports whether those who can know say that the node is silent, or what speaks against it.
func (n *Node) agree(a Around, now time.Duration) (why string, agreed bool) {
	own := n.own > n.spoke && n.own-n.began >= AskTime/2 && now-n.own <= counts
	other := n.other > n.spoke && now-n.other <= counts
	lease := now - n.renewed
	// Who answered meanwhile did so without a renewal, too, so that this says nothing.
	old := now-n.read <= counts && min(lease, n.silence(now)) >= LeaseAfter
	// Those that may be cut off together with this one count against a verdict. If only this one
	// does not renew its Lease, it is no cut that they share.
	heard, unheard, are := a.Heard, a.Unheard+1+a.Open+a.Shut, "are"
	switch {
	case old:
		heard, unheard = a.Heard+a.Open, a.Unheard+1
	case a.Open+a.Shut > 0:
		are = "are or may be"
	}
	var by []string
	if own {
		by = append(by, "this autoscaler")
	}
	if other {
		by = append(by, "from node "+n.by)
	}
	asked := "asked by " + strings.Join(by, " and ")
	switch {
	case !own:
		return "this autoscaler has not asked in vain twice in the last 3 s, at a pod that had answered it before", false
	case unheard >= heard:
		return fmt.Sprintf("%s, but %d of %d nodes %s silent, so it may be the one who asks that is cut off", asked, unheard, unheard+heard, are), false
	case other:
	case now-n.read > counts:
		return asked + " alone, and its Lease is not known", false
	case lease < LeaseAfter:
		return fmt.Sprintf("%s alone, and its Lease may be no older than %s", asked, seconds(lease)), false
	case !old:
		return fmt.Sprintf("%s alone, and its Lease, which is %s old, counts after as long a silence", asked, seconds(lease)), false
	default:
		asked += " alone, and its Lease is " + seconds(lease) + " old"
	}
	return fmt.Sprintf("%s; %d nodes answer", asked, heard), true
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
