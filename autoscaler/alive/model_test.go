package alive

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// tick is the time between two rounds of questions in a world. A question takes two ticks at most.
const tick = AskTime / 2

// present is the time of every world: a tick makes all that was before older. What is older than
// that is as old as if it were never.
const present = 20 * time.Second

// world is what is true of three nodes, what lies between them, and what the autoscaler on x knows
// of y and z. There is an activator on z, and an agent on each node or on none. There may be a
// fourth node u, which is bare. The model test visits every world that any order of events
// can lead to.
type world struct {
	y, z, u Node

	// lone: there is no activator on z, only a pod. agents: y and z have one, and that on z has
	// been answered by y unless it is a stranger there. shut: a NetworkPolicy has pods on y answer
	// nobody. stuck are the nodes whose agents say nothing.
	lone, agents, stranger, shut bool
	stuck                        [2]bool
	// closed: a firewall closes the port of the agent on u. split: the network of pods is two, of x
	// and z, and of y and u, whose agent's port is open for x.
	closed, split bool
	mute          int8 // for how many ticks nobody has answered at u, at most two
	// off are the nodes without power, cut the ways that lead nowhere: x to y, x to z, z to y.
	// Nodes in the dark renew no Lease for the API server, although they have power. away: nobody
	// does.
	off, dark [3]bool
	cut       [3]bool
	away      bool
	gone      int8 // for how many ticks it has been away, at most one more than counts has
	// leases are how many ticks old the Leases are, news those that were renewed since they were
	// read. Nodes renew them each tick, or as late as they may.
	leases [3]int8
	news   [3]bool
	late   bool

	asks [5]ask
	// reach is for how many ticks each way has led to a pod without a break, or x to y itself;
	// apart for how many x has reached nobody, at most long.
	reach [4]int8
	apart int8

	// How often each event may still come.
	deaths, returns, cuts, heals, losses, darkens, outages, shuts, stops, halves int8
	broken                                                                       string
}

const (
	y = 0
	z = 1
	u = 2

	xy = 0
	xz = 1
	zy = 2
	// The agent on z is asked about y, and that on y about itself.
	zyAgent = 3
	yAgent  = 4

	// host is of what is reached: y itself, whether or not its pods answer.
	host = 3

	long = int8(2 * time.Second / tick)
)

// ask is a question that is under way.
type ask struct {
	on, lost bool
	// astray: z was not reached with the question whether it reaches y.
	astray bool
	ticks  int8
}

func (a ask) at() time.Duration { return present - time.Duration(a.ticks)*tick }
func (a ask) due() bool         { return a.on && a.ticks >= 2 }

// answered reports whether a pod answers a question that goes this way now.
func (w *world) answered(way int) bool { return w.leads(way) && (way == xz || !w.shut) }

// reached and vouched report what the agent on z says of y, and that on y of itself.
func (w *world) reached() bool {
	return w.agents && !w.stuck[z] && w.leads(xz) && w.answered(zy)
}
func (w *world) vouched() bool { return w.agents && !w.stuck[y] && w.leads(xy) }

// witness reports whether somebody on z can say that y does not answer.
func (w *world) witness() bool { return !w.lone || w.agents && !w.stranger && !w.stuck[z] }

// leads reports whether a question that goes this way now arrives at a node.
func (w *world) leads(way int) bool {
	switch way {
	case xy:
		return !w.cut[xy] && !w.off[y]
	case xz:
		return !w.cut[xz] && !w.off[z]
	}
	return !w.cut[zy] && !w.off[y] && !w.off[z]
}

// halved reports whether x and z are no more than half of the nodes that are known to answer.
func (w *world) halved() bool { return w.closed || w.split }

// older is a node's knowledge a tick later.
func (n Node) older() Node {
	first, own, other := n.first > n.spoke, n.own > n.spoke, n.other > n.spoke
	down := func(t time.Duration, counts bool) time.Duration {
		if counts {
			return max(t-tick, 1) // it is after spoke
		}
		return 0
	}
	n.first, n.began, n.own, n.other = down(n.first, first), down(n.began, own), down(n.own, own), down(n.other, other)
	n.Since, n.spoke, n.steady, n.renewed = max(n.Since-tick, 0), max(n.spoke-tick, 0), max(n.steady-tick, 0), max(n.renewed-tick, 0)
	n.read, n.joined, n.lives = max(n.read-tick, 0), max(n.joined-tick, 0), max(n.lives-tick, 0)
	if !other {
		n.by = ""
	}
	return n
}

// decide has the autoscaler decide, and looks whether it may.
func (w *world) decide() {
	was := [2]State{w.y.State, w.z.State}
	watch := Watch{Self: "x", nodes: map[string]*Node{"y": &w.y, "z": &w.z}}
	if w.u.bare {
		watch.nodes["u"] = &w.u
	}
	watch.Step(present)
	for i, n := range []*Node{&w.y, &w.z} {
		if n.State < Silent || n.State <= was[i] {
			continue
		}
		name, other := [...]string{"y", "z"}[i], [...]*Node{&w.z, &w.y}[i]
		bad := func(why string) { w.broken = fmt.Sprintf("node %s is called %s although %s", name, n.State, why) }
		switch {
		case w.reach[i] >= long && w.answered(i):
			bad("this autoscaler reaches it")
		case i == y && (!w.lone && w.answered(zy) && w.leads(xz) || w.reached()) && w.reach[zy] >= long && w.reach[xz] >= long:
			bad("somebody on z reaches it and says so")
		case w.halved() && (time.Duration(w.leases[i])*tick < LeaseAfter-AskTime || w.leases[u] >= w.leases[i]):
			bad("half of the nodes are cut off")
		case i == y && w.vouched() && w.reach[host] >= long:
			bad("its agent says that it lives")
		case w.apart >= long:
			bad("this autoscaler reaches nobody")
		case other.silence(present) >= SilentAfter:
			bad("only this autoscaler's own node answers")
		case (i == z || w.lone && (!w.agents || w.stranger)) && (time.Duration(w.gone)*tick > counts || time.Duration(w.leases[i])*tick < LeaseAfter-AskTime):
			bad("nobody but this autoscaler says so")
		case n.State == Lost && present-n.first < LostAfter<<n.Ends:
			bad("it has not been silent for long")
		}
	}
}

type step struct {
	name   string
	happen func(w *world)
}

func (w world) after(s step) world {
	s.happen(&w)
	w.decide()
	return w
}

// steps lists everything that can happen in w. Nobody's will comes first.
func (w world) steps() (out []step) {
	can := func(name string, is bool, happen func(w *world)) {
		if is {
			out = append(out, step{name, happen})
		}
	}
	for way, n := range []func(*world) *Node{(*world).ofY, (*world).ofZ} {
		name := [...]string{"y", "z"}[way]
		a := w.asks[way]
		answers := a.on && !a.lost && w.answered(way)
		can(name+" answers", answers, func(w *world) { w.asks[way] = ask{}; n(w).Spoke(present) })
		can(name+" does not answer", a.due() && (!answers || w.losses > 0), func(w *world) {
			if answers {
				w.losses--
			}
			n(w).Unanswered(w.asks[way].at(), "")
			w.asks[way] = ask{}
		})
	}
	vouch := w.asks[yAgent]
	vouches := vouch.on && !vouch.lost && w.vouched()
	// A word of silence waits for signs of life that were asked for at the same time.
	settled := func(a ask) bool { return !vouches || vouch.ticks < a.ticks }
	a, heard := w.asks[zy], !w.asks[zy].astray && w.leads(xz)
	answers := a.on && heard && !a.lost && w.answered(zy)
	can("z says that y answers", answers, func(w *world) {
		w.asks[zy] = ask{}
		w.y.Spoke(present)
		w.z.Spoke(present)
	})
	can("z says that y does not answer", a.due() && settled(a) && heard && (!answers || w.losses > 0), func(w *world) {
		if answers {
			w.losses--
		}
		w.y.Unanswered(w.asks[zy].at(), "z")
		w.z.Spoke(present)
		w.asks[zy] = ask{}
	})
	can("z says nothing", a.due() && !heard, func(w *world) { w.asks[zy] = ask{} })
	// What the agent on z says counts: x has pods, and z is heard there.
	agent, hears := w.asks[zyAgent], !w.asks[zyAgent].astray && w.leads(xz) && !w.stuck[z]
	says := agent.on && hears && !agent.lost && w.answered(zy)
	can("the agent on z says that y answers", says, func(w *world) {
		w.asks[zyAgent] = ask{}
		w.y.Spoke(present)
		w.z.Spoke(present)
	})
	can("the agent on z says that y does not answer", agent.due() && settled(agent) && hears && !says && !w.stranger, func(w *world) {
		w.y.Unanswered(w.asks[zyAgent].at(), "z")
		w.z.Spoke(present)
		w.asks[zyAgent] = ask{}
	})
	can("the agent on z says nothing of y", agent.due() && hears && !says && w.stranger, func(w *world) {
		w.z.Spoke(present)
		w.asks[zyAgent] = ask{}
	})
	can("the agent on z says nothing", agent.due() && !hears, func(w *world) { w.asks[zyAgent] = ask{} })
	can("the agent on y answers", vouches, func(w *world) {
		w.asks[yAgent] = ask{}
		if w.y.State != Lost { // of a lost node it counts when it has said so for long
			w.y.Spoke(present)
		}
	})
	can("the agent on y does not answer", vouch.due() && !vouches, func(w *world) { w.asks[yAgent] = ask{} })
	can("tick", !slices.ContainsFunc(w.asks[:], ask.due), (*world).tick)

	for i, name := range []string{"y", "z"} {
		can(name+" dies", !w.off[i] && w.deaths > 0, func(w *world) { w.deaths--; w.off[i] = true })
		can(name+" returns", w.off[i] && w.returns > 0, func(w *world) { w.returns--; w.off[i] = false })
		can(name+" loses the control plane", !w.dark[i] && w.darkens > 0, func(w *world) { w.darkens--; w.dark[i] = true })
	}
	for way, name := range []string{"x-y", "x-z", "z-y"} {
		can("cut "+name, !w.cut[way] && w.cuts > 0, func(w *world) { w.cuts--; w.cut[way] = true })
		can("heal "+name, w.cut[way] && w.heals > 0, func(w *world) { w.heals--; w.cut[way] = false })
	}
	halve := func(name string, how func(w *world)) {
		can(name, w.halves > 0, func(w *world) { w.halves--; w.split, w.cut[xy], w.cut[zy] = true, true, true; how(w) })
	}
	halve("the network of pods splits", func(*world) {})
	halve("y and u are cut off", func(w *world) { w.closed, w.dark[y], w.dark[u] = true, true, true })
	can("x is cut off", !w.cut[xy] && !w.cut[xz] && w.cuts > 1, func(w *world) { w.cuts -= 2; w.cut[xy], w.cut[xz] = true, true })
	can("pods on y are shut", !w.shut && w.shuts > 0, func(w *world) { w.shuts--; w.shut = true })
	for i, name := range []string{"y", "z"} {
		can("the agent on "+name+" stops", w.agents && !w.stuck[i] && w.stops > 0, func(w *world) { w.stops--; w.stuck[i] = true })
	}
	can("the API server goes away", !w.away && w.outages > 0, func(w *world) { w.outages--; w.away = true })
	can("the API server is back", w.away, func(w *world) { w.away = false })
	return out
}

func (w *world) ofY() *Node { return &w.y }
func (w *world) ofZ() *Node { return &w.z }

// tick lets time pass, and asks.
func (w *world) tick() {
	w.y, w.z, w.u = w.y.older(), w.z.older(), w.u.older()
	for way := range w.asks {
		if w.asks[way].on {
			w.asks[way].ticks++
		}
	}
	for way := range w.reach {
		if way == host && w.leads(xy) || way != host && w.answered(way) {
			w.reach[way] = min(w.reach[way]+1, long)
		} else {
			w.reach[way] = 0
		}
	}
	if w.leads(xy) || w.leads(xz) {
		w.apart = 0
	} else if w.cut[xy] && w.cut[xz] {
		w.apart = min(w.apart+1, long)
	}
	if w.gone = min(w.gone+1, int8(counts/tick)+1); !w.away {
		w.gone = 0
	}
	nodes := []*Node{&w.y, &w.z}
	if w.u.bare {
		nodes = append(nodes, &w.u)
	}
	for i, n := range nodes {
		w.leases[i] = min(w.leases[i]+1, int8(LeaseAfter/tick))
		if !w.off[i] && !w.dark[i] && !w.away && (!w.late || w.leases[i] >= int8(10*time.Second/tick)) {
			w.leases[i], w.news[i] = 0, true
		}
		if n.State != Well && !w.away {
			n.Lease(present, w.news[i])
			w.news[i] = false
		}
	}
	doubted := w.y.State != Well || w.y.silence(present) > 0
	switch w.mute = min(w.mute+1, 2); {
	case !w.u.bare:
		w.mute = 0
	case !w.closed:
		w.mute = 0
		if w.u.opened(present); doubted && !w.split {
			w.u.Spoke(present)
		}
	case w.mute == 2:
		w.u.Unanswered(present-AskTime, "")
	}
	for way := range w.asks {
		if w.asks[way].on {
			continue
		}
		switch {
		case way == xy, way == xz:
			w.asks[way] = ask{on: true, lost: !w.answered(way)}
		case way == zy && doubted && !w.lone, way == zyAgent && doubted && w.agents:
			w.asks[way] = ask{on: true, lost: !w.answered(zy), astray: !w.leads(xz)}
		case way == yAgent && doubted && w.agents:
			w.asks[way] = ask{on: true, lost: !w.leads(xy)}
		}
	}
}

// settles lets time pass without a fault, and says what is wrong then. known has the results of
// earlier calls.
func settles(w world, known map[world]string) string {
	w.deaths, w.returns, w.cuts, w.heals, w.losses, w.darkens, w.outages, w.shuts, w.stops, w.halves = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
	var passed []world
	wrong, found := "", false
	for len(passed) < 1000 {
		if wrong, found = known[w]; found {
			break
		}
		passed = append(passed, w)
		steps := w.steps()
		s := steps[0]
		if back := slices.IndexFunc(steps, func(s step) bool { return s.name == "the API server is back" }); back >= 0 {
			s = steps[back]
		}
		w = w.after(s)
	}
	if !found {
		wrong = w.unsettled()
	}
	for _, w := range passed {
		known[w] = wrong
	}
	return wrong
}

// unsettled says what is wrong in a world in which nothing has changed for long.
func (w world) unsettled() string {
	dead := func(i int) bool { return w.off[i] || w.dark[i] && !w.dark[u] }
	seen := w.answered(xy) || w.answered(zy) && w.leads(xz) && !w.lone || w.reached()
	switch {
	case seen && w.y.State >= Silent:
		return "y is reached, and gets no requests"
	case w.vouched() && w.y.State == Silent:
		return "the agent on y answers, and it gets no requests"
	case w.answered(xy) && w.y.State != Well:
		return "y answers, and is doubted"
	case w.leads(xz) && w.z.State != Well:
		return "z answers, and is doubted"
	case !seen && !w.vouched() && w.leads(xz) && w.y.State != Lost && (w.witness() && !w.halved() || dead(y)):
		return "y is dead, and its pods are not replaced"
	case w.off[z] && w.leads(xy) && w.z.State != Lost:
		return "z is dead, and its pods are not replaced"
	}
	return ""
}

// every has TestEveryInterleaving visit the worlds with several faults, too: two million, which
// takes minutes with the race detector.
var every = flag.Bool("every", false, "visit the worlds with several faults, too")

func TestEveryInterleaving(t *testing.T) {
	t.Parallel()
	one := map[string]world{
		"nothing fails":           {late: true},
		"packets are lost":        {losses: 2},
		"a node dies and returns": {deaths: 1, returns: 1},
		"a node dies and returns, and there is no activator": {deaths: 1, returns: 1, lone: true},
		"a way is cut":                         {cuts: 1, heals: 1},
		"two ways are cut":                     {cuts: 2},
		"the control plane loses a node":       {darkens: 1},
		"no API server, and a way that is cut": {outages: 1, cuts: 1, lone: true},

		"a dark node, and a way that is cut":         {darkens: 1, cuts: 1},
		"four: a node dies":                          {deaths: 1, u: Node{bare: true}},
		"four: a node dies, and a port is closed":    {deaths: 1, u: Node{bare: true}, closed: true},
		"four: half are cut off, or from pods alone": {halves: 1, u: Node{bare: true}, late: true},

		"agents: packets are lost":                    {losses: 1, agents: true, lone: true},
		"agents: a node dies and returns":             {deaths: 1, returns: 1, agents: true, lone: true},
		"agents: a node dies beside an activator":     {deaths: 1, agents: true},
		"agents: a way is cut":                        {cuts: 1, heals: 1, agents: true, lone: true},
		"agents: pods are shut":                       {shuts: 1, agents: true},
		"agents: one stops":                           {stops: 1, agents: true, lone: true},
		"agents: no pod of y ever answered that of z": {cuts: 1, agents: true, lone: true, stranger: true},
		"agents: one stops, and a node dies":          {stops: 1, deaths: 1, agents: true, lone: true},
	}
	several := map[string]world{
		"two nodes die":                        {deaths: 2},
		"a way is cut, and a node dies":        {cuts: 1, deaths: 1},
		"a packet is lost, and a node dies":    {losses: 1, deaths: 1},
		"no activator":                         {lone: true, deaths: 1, cuts: 1},
		"a packet is lost, and a node is dark": {darkens: 1, losses: 1},
		"a dark node, a cut, and no activator": {darkens: 1, cuts: 1, lone: true, late: true},
		"no API server, a death, no activator": {outages: 1, deaths: 1, lone: true},

		"four: half are cut off, and a node is dark":          {halves: 1, darkens: 1, u: Node{bare: true}},
		"four: a node dies, and a port is closed, late Lease": {deaths: 1, u: Node{bare: true}, closed: true, late: true},

		"agents: a way is cut, and one stops":            {cuts: 1, stops: 1, agents: true},
		"agents: two ways are cut":                       {cuts: 2, agents: true, lone: true},
		"agents: pods are shut, and a node dies":         {shuts: 1, deaths: 1, agents: true, lone: true},
		"agents: pods are shut, and a way is cut":        {shuts: 1, cuts: 1, agents: true},
		"agents: a packet is lost, and a node dies":      {losses: 1, deaths: 1, agents: true},
		"agents: no pod of y ever answered, and it died": {deaths: 1, agents: true, lone: true, stranger: true},
	}
	if *every {
		maps.Copy(one, several)
	}
	for name, may := range one {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			visit(t, may)
		})
	}
}

// visit goes through every world that what may happen leads to.
func visit(t *testing.T, may world) {
	type origin struct {
		from int32
		name string
	}
	worlds, origins, seen := []world{may}, []origin{{-1, ""}}, map[world]struct{}{may: {}}
	story := func(i int32) string {
		names := []string{fmt.Sprintf("y %+v\n  z %+v\n  %+v", worlds[i].y, worlds[i].z, worlds[i])}
		for ; i > 0; i = origins[i].from {
			names = append(names, origins[i].name)
		}
		slices.Reverse(names)
		return strings.Join(names, "\n  ")
	}
	ends := map[world]string{}
	states := map[State]int{}
	for i := int32(0); int(i) < len(worlds); i++ {
		w := worlds[i]
		states[w.y.State]++
		if w.broken != "" {
			t.Fatalf("%s: %s", w.broken, story(i))
		}
		if what := settles(w, ends); what != "" {
			t.Fatalf("%s: %s", what, story(i))
		}
		for _, s := range w.steps() {
			next := w.after(s)
			if _, was := seen[next]; !was {
				seen[next] = struct{}{}
				worlds, origins = append(worlds, next), append(origins, origin{i, s.name})
			}
		}
	}
	t.Logf("%d worlds: %v", len(worlds), states)
	if may.deaths > 0 && states[Lost] == 0 {
		t.Error("no world has a node that is lost")
	}
}
