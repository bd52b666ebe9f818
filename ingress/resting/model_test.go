package resting

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// form is what one HTTPRoute is. The plan changes once, so there are rules of two plans.
type form int8

const (
	missing form = iota
	spare0
	spare1
	full0
	full1
)

func (f form) full() bool { return f >= full0 }

// names reports whether gateways that have the HTTPRoute know the backends of a plan.
func (f form) names(version int8) bool {
	return f == spare0+form(version) || f == full0+form(version)
}

func (f form) version() int8 { return int8(f-1) % 2 }

// objects is what the API server has at one moment: two HTTPRoutes of one host, the first of which
// has a rule for a header, the bridge and the common HTTPRoute.
type objects struct {
	common bool
	bridge Bridge
	// stamp tells the bridge from all that it was before. fresh says that it was written after the
	// HTTPRoutes.
	stamp  int8
	fresh  bool
	routes [2]form
	// wins says that the bridge's rule counts where both match alike: it is older, or made in the
	// same second and before the HTTPRoute by its name.
	wins [2]bool
}

const (
	pods       = 2
	activators = 2
	longest    = 10 // writes that some gateway pod has not seen
)

// pod is a gateway pod: how many of the writes in the log it has seen, and whether it knows the
// backends that each HTTPRoute names in each plan.
type pod struct {
	at    int8
	knows [2][2]bool
}

// world is a target with the gateways and activators that serve it. The model test visits every
// world that any order of events can lead to.
type world struct {
	log  [longest]objects
	n    int8 // the newest entry of the log
	pods [pods]pod
	// told is what the plan in the status said, one bit for each write, the newest first. seen is
	// which of them each activator has.
	told    uint16
	tells   int8
	seen    [activators]int8
	want    Want
	version int8
	// services are those that the rules of each plan name, and marked those of them that have the
	// mark. Who deletes Services does so at any time with one that has none.
	services, marked [2]bool

	asked  Question
	passed [pods]bool

	// sure says that gateway pods always know what the first HTTPRoute names, so that there are
	// fewer worlds.
	sure bool
	// cached says that the controller reads the objects from a cache, which has the entry reads of
	// the log.
	cached bool
	reads  int8
	// without leaves a step out, to show that the model finds what is wrong then.
	without without

	changes, plans, births, losses int8 // how often each may still happen
	broken                         string
}

func (w *world) knows(p *pod, route int, version int8) bool {
	return w.sure && route == 0 || p.knows[route][version]
}

func (w *world) now() *objects { return &w.log[w.n] }

// write appends a state of the objects. What was answered before says nothing any more.
func (w *world) write(change func(o *objects)) {
	w.asked, w.passed = Nothing, [pods]bool{}
	next := *w.now()
	if change(&next); next == *w.now() {
		return
	}
	if w.n+1 == longest {
		if w.cached {
			return // it does the same again and again until its cache sees it
		}
		panic("the log is too short")
	}
	w.n++
	w.log[w.n] = next
	w.trim()
}

// read returns the objects as the controller sees them.
func (w *world) read() *objects {
	if w.cached {
		return &w.log[w.reads]
	}
	return w.now()
}

// trim forgets what every gateway pod has passed, so that equal worlds are equal.
func (w *world) trim() {
	least := w.n
	for _, p := range w.pods {
		least = min(least, p.at)
	}
	if w.cached {
		least = min(least, w.reads)
	}
	if least > 0 {
		copy(w.log[:], w.log[least:w.n+1])
		for i := range least {
			w.log[w.n-i] = objects{}
		}
		w.n -= least
		for i, first := 0, w.log[0].stamp; i <= int(w.n); i++ {
			w.log[i].stamp -= first
		}
		for i := range w.pods {
			w.pods[i].at -= least
		}
		if w.cached {
			w.reads -= least
		}
	}
	old := w.tells
	for _, s := range w.seen {
		old = min(old, s)
	}
	w.tells -= old
	for i := range w.seen {
		w.seen[i] -= old
	}
	w.told &= 1<<(w.tells+1) - 1
}

func (w *world) tell(is bool) {
	w.told <<= 1
	if is {
		w.told |= 1
	}
	w.tells++
	w.asked, w.passed = Nothing, [pods]bool{}
	w.trim()
}

func (w *world) isTold() bool { return w.told&1 != 0 }

// knowsHost reports whether an activator has a plan for the host.
func (w *world) knowsHost(activator int) bool {
	return w.told>>(w.tells-w.seen[activator])&1 != 0
}

// rules says what the controller sees of the HTTPRoutes.
func (w *world) rules() (out Rules) {
	for _, f := range w.read().routes {
		switch {
		case f == missing:
			out |= Missing
		case f.full():
			out |= Full
		case f.version() == w.version:
			out |= Spare
		default:
			out |= Old
		}
	}
	return out
}

// follow is the controller: it does the first write of the next step, or asks. bridgeWins decides
// about two HTTPRoutes of one age.
func (w *world) follow(bridgeWins bool) {
	s := Seen{Want: w.want, Bridge: w.read().bridge, Fresh: w.read().fresh, Rules: w.rules(), Told: w.isTold(), Followed: w.isTold(), Common: true}
	for i := range w.seen {
		s.Followed = s.Followed && w.seen[i] == w.tells
	}
	for _, p := range w.pods {
		s.Common = s.Common && w.log[p.at].common
	}
	if !slices.Contains(w.passed[:], false) {
		s.Answered = w.asked
	}
	s.Needs, s.Marks = w.services[w.version] && w.marked[w.version], w.marked != [2]bool{}
	switch w.without {
	case theMark:
		s.Needs, s.Marks = w.services[w.version], false
	case theServices:
		s.Needs = true
	case theWait:
		if s.Want == Rest && s.State() == Prepared && s.Marks {
			w.marked = [2]bool{}
			return
		}
	}
	if s.State() == New {
		w.broken = "nobody knows the target"
		return
	}
	step := Next(s)
	if step.Ask != w.asked && step.Do == Wait {
		w.asked, w.passed = step.Ask, [pods]bool{}
	}
	// put writes the first HTTPRoute that is not as it should be, in the order that Do says.
	put := func(order []int, to func(f form) form) {
		for _, i := range order {
			was := w.read().routes[i]
			is := to(was)
			if is == was {
				continue
			}
			w.write(func(o *objects) {
				switch {
				case is == missing:
					o.wins[i] = false
				case o.routes[i] == missing:
					o.wins[i] = bridgeWins && o.bridge == Serving
				}
				o.routes[i], o.fresh = is, false
			})
			return
		}
	}
	switch step.Do {
	case Need:
		w.services[w.version], w.marked[w.version] = true, w.without != theMark
	case Release:
		w.marked = [2]bool{}
	case Tell, Untell:
		w.tell(step.Do == Tell)
	case WriteBridge:
		w.write(func(o *objects) {
			if o.bridge != Serving {
				for i, f := range o.routes {
					o.wins[i] = bridgeWins && f != missing
				}
			}
			o.bridge, o.fresh = Serving, true
			o.stamp++
		})
	case MoveBridge:
		w.write(func(o *objects) {
			o.bridge, o.fresh, o.wins = Moved, false, [2]bool{}
			o.stamp++
		})
	case DeleteBridge:
		w.write(func(o *objects) { o.bridge, o.fresh, o.wins = NoBridge, false, [2]bool{} })
	case WriteSpares:
		put([]int{1, 0}, func(f form) form {
			if f.full() {
				return f
			}
			return spare0 + form(w.version)
		})
	case Withdraw:
		put([]int{1, 0}, func(f form) form {
			if f.full() {
				return f - full0 + spare0
			}
			return f
		})
	case WriteRules:
		put([]int{0, 1}, func(f form) form {
			if f.full() {
				return f
			}
			return full0 + form(w.version)
		})
	case DeleteRoutes:
		put([]int{0, 1}, func(form) form { return missing })
	}
}

// where says which rule of a gateway pod counts: "0" and "1" are the HTTPRoutes, "bridge",
// "common", or "" is a 404. tagged is a request with the header.
func (o *objects) where(tagged bool) string {
	if tagged && o.routes[0].full() {
		return "0"
	}
	switch full := o.routes[1].full(); {
	case full && o.bridge == Serving && o.wins[1]:
		return "bridge"
	case full:
		return "1"
	case o.bridge == Serving:
		return "bridge"
	case o.routes[0] != missing || o.routes[1] != missing:
		return "" // the host is known, and the common HTTPRoute is not looked at
	case o.common:
		return "common"
	}
	return ""
}

// wrong says what must never be: a request that has no way, or goes to another revision.
func (w *world) wrong() string {
	if w.broken != "" {
		return w.broken
	}
	for i, p := range w.pods {
		o := &w.log[p.at]
		for _, tagged := range []bool{false, true} {
			switch way := o.where(tagged); way {
			case "":
				return fmt.Sprintf("gateway pod %d answers 404", i)
			case "0", "1":
				r := way[0] - '0'
				if tagged && r == 1 {
					return fmt.Sprintf("gateway pod %d leads a tagged request to another revision", i)
				}
				if !w.services[o.routes[r].version()] {
					return fmt.Sprintf("gateway pod %d leads to a Service that is not there", i)
				}
				if !w.knows(&p, int(r), o.routes[r].version()) {
					return fmt.Sprintf("gateway pod %d does not know the backend", i)
				}
			default:
				for a := range w.seen {
					if !w.knowsHost(a) {
						return fmt.Sprintf("gateway pod %d leads to activator %d, which does not know the host", i, a)
					}
				}
			}
		}
	}
	return ""
}

// answers reports whether a gateway pod says yes.
func (w *world) answers(i int) bool {
	p := &w.pods[i]
	o := &w.log[p.at]
	switch w.asked {
	case BridgeAnswers:
		return o.where(false) == "bridge" && o.stamp == w.now().stamp
	case BridgeGone:
		return o.bridge == Moved && o.stamp == w.now().stamp
	case PlanAnswers:
		r := o.routes[1]
		return o.where(false) == "1" && p.knows[1][r.version()] && w.services[r.version()]
	case SparesAnswer:
		if o.where(false) != "bridge" || o.stamp != w.now().stamp {
			return false
		}
		for r, f := range o.routes {
			if now := w.now().routes[r]; now.full() {
				continue
			}
			if f.full() || !f.names(w.version) || !w.knows(p, r, w.version) || !w.services[w.version] {
				return false
			}
		}
		return true
	}
	return false
}

// named reports whether a gateway pod may know a backend, or must: istiod may send what it knows of
// Services before the HTTPRoutes of the same moment, so any entry that the pod has or will have may
// say so.
func (w *world) named(i, r int, version int8) (may, must bool) {
	must = true
	for at := w.pods[i].at; at <= w.n; at++ {
		is := w.log[at].routes[r].names(version)
		may, must = may || is, must && is
	}
	return may, must
}

type step struct {
	name   string
	happen func(w *world)
}

func (w world) after(s step) world {
	s.happen(&w)
	return w
}

// steps lists everything that can happen in w.
func (w *world) steps() (out []step) {
	can := func(name string, is bool, happen func(w *world)) {
		if is {
			out = append(out, step{name, happen})
		}
	}
	can("controller", true, func(w *world) { w.follow(false) })
	can("controller, and the bridge wins", true, func(w *world) { w.follow(true) })
	for i := range w.pods {
		can(fmt.Sprintf("gateway pod %d sees a write", i), w.pods[i].at < w.n, func(w *world) { w.pods[i].at++; w.trim() })
		for r := range 2 {
			for v := range int8(2) {
				if w.sure && r == 0 {
					continue
				}
				may, must := w.named(i, r, v)
				knows := w.pods[i].knows[r][v]
				can(fmt.Sprintf("gateway pod %d learns of HTTPRoute %d's backend in plan %d", i, r, v), may && w.services[v] && !knows, func(w *world) { w.pods[i].knows[r][v] = true })
				can(fmt.Sprintf("gateway pod %d forgets HTTPRoute %d's backend in plan %d", i, r, v), (!must || !w.services[v]) && knows, func(w *world) { w.pods[i].knows[r][v] = false })
			}
		}
		can(fmt.Sprintf("gateway pod %d answers", i), !w.passed[i] && w.answers(i), func(w *world) { w.passed[i] = true })
		can(fmt.Sprintf("gateway pod %d is replaced", i), w.births > 0, func(w *world) {
			w.births--
			// It begins with all of what some gateway pod has seen already, or with more.
			newest := max(w.pods[0].at, w.pods[1].at)
			w.pods[i] = pod{at: newest}
			for r := range 2 {
				for v := range int8(2) {
					w.pods[i].knows[r][v] = w.log[newest].routes[r].names(v)
				}
			}
			w.trim()
		})
	}
	can("the cache sees a write", w.cached && w.reads < w.n, func(w *world) { w.reads++; w.trim() })
	for v := range int8(2) {
		can(fmt.Sprintf("the Service of plan %d is deleted", v), w.services[v] && (!w.marked[v] || w.without == thePrecondition), func(w *world) { w.services[v] = false })
	}
	for a := range w.seen {
		can(fmt.Sprintf("activator %d sees the status", a), w.seen[a] < w.tells, func(w *world) { w.seen[a]++; w.trim() })
	}
	for _, want := range []Want{Rest, Busy, Apart} {
		can("it is to be "+want.String(), w.changes > 0 && want != w.want, func(w *world) { w.changes--; w.want = want })
	}
	can("the plan changes", w.plans > 0, func(w *world) {
		w.plans--
		w.version = 1
		w.asked, w.passed = Nothing, [pods]bool{}
		if w.isTold() {
			w.tell(true)
		}
	})
	can("the controller dies", w.losses > 0, func(w *world) { w.losses--; w.asked, w.passed = Nothing, [pods]bool{} })
	return out
}

// begun is a world at its beginning.
func begun(want Want, may world) world {
	w := may
	w.want = want
	w.log[0].common = true
	switch want {
	case Rest:
		w.told = 1
	case Busy, Apart:
		w.log[0].routes = [2]form{full0, full0}
		w.services[0], w.marked[0] = true, true
		if want == Busy {
			w.told = 1
		}
		for i := range w.pods {
			w.pods[i].knows = [2][2]bool{{true}, {true}}
		}
	}
	return w
}

// ended says why a world is not yet what is wanted, or "".
func (w *world) ended() string {
	o := w.now()
	none, full := o.routes == [2]form{}, o.routes[0].full() && o.routes[1].full()
	switch {
	case w.n > 0 || w.tells > 0:
		return "somebody is behind"
	case o.bridge != NoBridge:
		return "the bridge stays"
	case w.want == Rest && !none, w.want != Rest && !full:
		return "the HTTPRoutes are not as wanted"
	case w.want == Apart == w.isTold():
		return "activators are not told as wanted"
	case w.want == Rest && w.services != [2]bool{}:
		return "a Service stays that nobody needs"
	}
	return ""
}

// settles lets everything happen that is nobody's will, and says what is not as wanted then. known
// has the results of earlier calls.
func settles(w world, known map[world]string) string {
	w.changes, w.plans, w.births, w.losses = 0, 0, 0, 0
	var passed []world
	why, found := "it never ends", false
	for range 200 {
		if why, found = known[w]; found {
			break
		}
		passed = append(passed, w)
		steps := slices.DeleteFunc(w.steps(), func(s step) bool {
			return strings.Contains(s.name, "forgets") || s.name == "controller, and the bridge wins"
		})
		next := w
		for _, s := range slices.Backward(steps) { // the controller last
			if next = w.after(s); next != w {
				break
			}
		}
		if next == w {
			why = w.ended()
			break
		}
		w, why = next, "it never ends"
	}
	for _, w := range passed {
		known[w] = why
	}
	return why
}

func describe(w *world) string {
	return fmt.Sprintf("want %s plan %d; %+v; pods %+v; told %b of %d, seen %v; asked %s, passed %v; Services %v, marked %v", w.want, w.version, w.log[:w.n+1], w.pods,
		w.told, w.tells+1, w.seen, w.asked, w.passed, w.services, w.marked)
}

func TestEveryInterleaving(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]world{
		"to own":                         begun(Rest, world{changes: 1}),
		"to own and back":                begun(Rest, world{changes: 2}),
		"to rest":                        begun(Busy, world{changes: 1}),
		"to rest and back":               begun(Busy, world{changes: 2}),
		"an older version's HTTPRoutes":  begun(Apart, world{changes: 2}),
		"another plan on the way":        begun(Rest, world{changes: 1, plans: 1, sure: true}),
		"another plan on the way back":   begun(Busy, world{changes: 1, plans: 1, sure: true}),
		"a gateway pod is replaced":      begun(Rest, world{changes: 1, births: 1}),
		"one is on the way back":         begun(Busy, world{changes: 1, births: 1}),
		"the controller dies":            begun(Rest, world{changes: 1, losses: 2}),
		"the controller dies on the way": begun(Busy, world{changes: 1, losses: 2}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			visit(t, first)
		})
	}
}

// A controller that reads the objects from a cache deletes the bridge while there are spare rules
// that it does not see.
func TestACacheIsNotEnough(t *testing.T) {
	t.Parallel()
	if fault, _ := explore(begun(Rest, world{changes: 2, cached: true})); !strings.HasPrefix(fault, "gateway pod 0 answers 404") {
		t.Errorf("it is: %s", fault)
	}
}

// visit goes through every world that what may happen leads to.
func visit(t *testing.T, first world) {
	fault, states := explore(first)
	if fault != "" {
		t.Fatal(fault)
	}
	for _, s := range []State{Bridged, Prepared, Both, Parting, Own, Resting} {
		if states[s] == 0 && (s != Parting || first.want == Rest) {
			t.Errorf("no world is %s", s)
		}
	}
	t.Logf("worlds: %v", states)
}

// explore visits the worlds, and says what is wrong in the first one where anything is, and how it
// came to be. It counts the worlds of each state.
func explore(first world) (fault string, states map[State]int) {
	type origin struct {
		from world
		name string
	}
	seen := map[world]origin{first: {}}
	story := func(w world) string {
		names := []string{describe(&w)}
		for w != first {
			o := seen[w]
			names = append(names, o.name)
			w = o.from
		}
		slices.Reverse(names)
		return strings.Join(names, "\n  ")
	}
	ends := map[world]string{}
	states = map[State]int{}
	for todo := []world{first}; len(todo) > 0; {
		w := todo[0]
		todo = todo[1:]
		s := Seen{Bridge: w.now().bridge, Rules: w.rules(), Told: w.isTold()}
		states[s.State()]++
		if what := w.wrong(); what != "" {
			return what + ": " + story(w), states
		}
		if why := settles(w, ends); why != "" && !w.without.requests() {
			return why + ": " + story(w), states
		}
		for _, s := range w.steps() {
			next := w.after(s)
			if _, was := seen[next]; !was {
				seen[next] = origin{w, s.name}
				todo = append(todo, next)
			}
		}
	}
	return "", states
}

// A target turns round thousands of times, by any order of events and with every mishap again
// and again.
func TestThousandsOfTurns(t *testing.T) {
	t.Parallel()
	w := begun(Rest, world{})
	random := rand.New(rand.NewPCG(35, 3))
	var last []string
	for turns, n := 0, 0; turns < 3000; n++ {
		if n%60 == 0 {
			w.changes, w.births, w.losses = 1, 1, 1
		}
		steps := w.steps()
		if w.n > longest-3 || w.tells > 8 {
			// Somebody who is that far behind gets on.
			steps = slices.DeleteFunc(steps, func(s step) bool { return !strings.Contains(s.name, " sees ") })
		}
		s := steps[random.IntN(len(steps))]
		if strings.HasPrefix(s.name, "it is to be") {
			turns++
		}
		s.happen(&w)
		last = append(last[max(0, len(last)-40):], s.name)
		if what := w.wrong(); what != "" {
			t.Fatalf("%s after %d turns: %s\n%s", what, turns, strings.Join(last, ", "), describe(&w))
		}
	}
}

// What somebody else writes is repaired: from whatever is there, the next steps lead to what is
// wanted.
func TestEveryStateLeadsToWhatIsWanted(t *testing.T) {
	for _, want := range []Want{Rest, Busy, Apart} {
		for rules := Missing; rules < 1<<4; rules++ {
			for _, bridge := range []Bridge{NoBridge, Serving, Moved} {
				for _, told := range []bool{false, true} {
					s := Seen{Want: want, Bridge: bridge, Rules: rules, Told: told, Common: true}
					var went []string
					for range 30 {
						step := Next(s)
						went = append(went, step.Do.String())
						if step.Do == Wait && (step.Ask == s.Answered || step.Ask == Nothing) && s.Followed {
							break
						}
						s.Answered, s.Followed = step.Ask, s.Told
						switch step.Do {
						case Need:
							s.Needs, s.Marks = true, true
						case Release:
							s.Needs, s.Marks = false, false
						case Tell, Untell:
							s.Told, s.Followed = step.Do == Tell, true
						case WriteBridge:
							s.Bridge, s.Fresh = Serving, true
						case MoveBridge:
							s.Bridge = Moved
						case DeleteBridge:
							s.Bridge = NoBridge
						case WriteSpares:
							s.Rules, s.Fresh = s.Rules&Full|Spare, false
						case Withdraw:
							s.Rules, s.Fresh = s.Rules&^Full|Spare, false
						case WriteRules:
							s.Rules, s.Fresh = Full, false
						case DeleteRoutes:
							s.Rules, s.Fresh = Missing, false
						}
					}
					wanted := Full
					if want == Rest {
						wanted = Missing
					}
					if s.Bridge != NoBridge || s.Rules != wanted || s.Told == (want == Apart) || s.Needs != (want != Rest) || s.Marks != s.Needs {
						t.Errorf("from %s, %s, told %t, to %s: %s leads to %+v", rules, bridge, told, want, strings.Join(went, ", "), s)
					}
				}
			}
		}
	}
}
