package standby

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// world is a pod, its agent, the guard, what lies between them, and the requests. The model test
// visits every world that any order of events can lead to.
//
// Time is in the order of events alone: expired says that an order of a connection that ended is
// not carried out any more. That is when the agent is not in the middle of work: one that stalls
// there for longer than StallTime is killed.
type world struct {
	pod   Pod
	agent Agent

	agentAlive bool
	connected  bool // the two talk; false once either side knows that it has ended
	podKnows   bool // the pod has seen the end of the connection
	agentKnows bool // the agent has
	expired    bool
	probing    bool

	toAgent, toPod queue

	frozen bool // the containers are, or may be any moment

	held, flying int8 // requests that wait, and that are with the container

	// calling is the hook that is called now, CallSleep or CallWake. told: the program was called
	// before it slept, and not after it woke. dark: it slept since it last was called after a wake.
	calling    Do
	told, dark bool
	broken     string // what was done that must not be

	said Do // what the activators heard last

	// How often each event may still come.
	sleeps, wakes, requests, deaths, cuts, failures, crashes, lates, balks, busies int8
	ended                                                                          bool
}

type queue struct {
	m [3]Message
	n int8
}

func (q *queue) put(m Message) {
	q.m[q.n] = m // more than three is a defect: the pod waits for an answer
	q.n++
}

func (q *queue) take() Message {
	m := q.m[0]
	copy(q.m[:], q.m[1:])
	q.n--
	q.m[q.n] = Message{}
	return m
}

// tell gives the pod an event and does what it says.
func (w *world) tell(e Event) {
	if e.Kind == Idle {
		e.At = 0
	}
	was := w.pod
	do := w.pod.Step(e)
	if w.pod.Settling() && !was.Settling() && !do.Has(Settle) {
		w.broken = "nobody will say Settled"
	}
	if w.pod.Reason != "" && was.Reason == "" && !do.Has(Retry) {
		w.broken = "a pod whose freeze failed stays warm for ever"
	}
	if do.Has(SayAwake) && w.said == SayAsleep && (e.Kind == Request || w.held > 0) {
		w.broken = "a wake is announced before its answer"
	}
	if word := do & (SayAwake | SayAsleep | SayGone); word != 0 {
		w.said = word
	}
	if do.Has(Send) && w.connected && !w.podKnows {
		w.toAgent.put(w.pod.Order)
	}
	if do.Has(Release) {
		w.flying += w.held
		w.held = 0
	}
	if do.Has(Refuse) {
		w.held = 0
	}
	if do.Has(Probe) {
		w.probing = true
	}
	if hook := do & (CallSleep | CallWake); hook != 0 {
		switch {
		case w.calling != 0:
			w.broken = "two hooks are called at once"
		case hook == CallSleep && w.told:
			w.broken = "the program is called before a sleep again, and was not called after the last one"
		case hook == CallWake && !w.told && !w.dark:
			w.broken = "the program is called after a sleep that was not"
		}
		w.calling, w.told = hook, true
	}
	switch w.pod.State {
	case Dozing:
		w.dark = true
	case Awake:
		w.told = w.told && w.pod.Hooks.Wake
	}
	if w.pod.State != Lost {
		w.probing = false
	}
}

// work begins the agent's work. From now on the containers are in the state that it brings, or in
// the one before: frozen is the worse of both.
func (w *world) work(work Work) {
	if work == FreezeAll {
		w.frozen, w.dark = true, true
	}
}

// hooked ends the hook that is called.
func (w *world) hooked(e Event) {
	if w.calling == CallWake {
		w.told, w.dark = false, false
	}
	w.calling = 0
	w.tell(e)
	if e.Kind == Balked && w.pod.State != Awake && w.pod.State != Rousing {
		w.broken = "a pod whose hook failed sleeps"
	}
}

func (w *world) answer(m *Message) {
	if m != nil && w.connected {
		w.toPod.put(*m)
	}
}

// now is the agent's clock: orders are fresh until expired.
func (w *world) now() time.Duration {
	if w.expired {
		return 2 * OrderTime
	}
	return OrderTime / 2
}

// step is one thing that can happen.
type step struct {
	name   string
	happen func(w *world)
}

// after returns the world after a step.
func (w world) after(s step) world {
	s.happen(&w)
	return w
}

// steps lists everything that can happen in w.
func (w world) steps() (out []step) {
	can := func(name string, is bool, happen func(w *world)) {
		if is {
			out = append(out, step{name, happen})
		}
	}
	can("sleep", w.sleeps > 0, func(w *world) { w.sleeps--; w.tell(Event{Kind: Sleep, Level: Frozen}) })
	can("sleep deeply", w.sleeps > 0, func(w *world) { w.sleeps--; w.tell(Event{Kind: Sleep, Level: Compressed}) })
	can("wake", w.wakes > 0, func(w *world) { w.wakes--; w.tell(Event{Kind: Wake}) })
	can("request", w.requests > 0, func(w *world) {
		w.requests--
		w.tell(Event{Kind: Request})
		if !w.pod.Holds() {
			w.flying++
		} else if !w.pod.Refuses() {
			w.held++
		}
	})
	can("response", w.flying > 0 && !w.frozen, func(w *world) { w.flying-- })
	can("response that says busy", w.flying > 0 && !w.frozen && w.busies > 0, func(w *world) {
		w.busies--
		w.tell(Event{Kind: Busy, For: 1})
		w.flying--
	})
	can("response that says done", w.flying > 0 && !w.frozen && w.pod.BusyUntil > 0, func(w *world) {
		w.tell(Event{Kind: Busy})
		w.flying--
	})
	can("it settles", w.pod.Settling(), func(w *world) { w.tell(Event{Kind: Settled}) })
	can("it tries again", w.pod.State == Dozing && w.pod.Reason != "", func(w *world) { w.tell(Event{Kind: Again}) })
	can("busy ends", w.pod.BusyUntil > 0, func(w *world) { w.pod.BusyUntil = 0 })
	can("idle", w.flying == 0 && w.held == 0 && w.pod.State == Resting, func(w *world) { w.tell(Event{Kind: Idle}) })
	can("hook ends", w.calling != 0, func(w *world) { w.hooked(Event{Kind: Called}) })
	can("hook fails", w.calling != 0 && w.balks > 0, func(w *world) { w.balks--; w.hooked(Event{Kind: Balked}) })
	can("pause ends", w.pod.Unwilling > 0, func(w *world) { w.pod.Unwilling = 0 })
	can("overdue", w.held > 0 && !w.pod.overdue && (w.pod.State >= Thawing || w.pod.State == Leaving), func(w *world) { w.tell(Event{Kind: Overdue}) })
	can("end", !w.ended, func(w *world) { w.ended = true; w.tell(Event{Kind: End}) })

	talk := w.agentAlive && !w.agentKnows
	reads := func(w *world, at time.Duration) {
		m := w.toAgent.take()
		if m.Verb == Hello {
			return
		}
		work, answer, ok := w.agent.Receive(m, at)
		if !ok {
			panic("the pod broke the protocol")
		}
		w.work(work)
		w.answer(answer)
	}
	can("agent reads", talk && w.toAgent.n > 0, func(w *world) { reads(w, w.now()) })
	can("agent reads late", talk && w.toAgent.n > 0 && w.lates > 0, func(w *world) { w.lates--; reads(w, 2*OrderTime) })
	ends := func(w *world, at time.Duration) {
		if w.agent.busy == ThawAll {
			w.frozen = false
		}
		work, answer := w.agent.Done("", at)
		w.work(work)
		w.answer(answer)
	}
	can("agent ends its work", w.agentAlive && w.agent.busy != Nothing, func(w *world) { ends(w, w.now()) })
	can("agent ends its work late", w.agentAlive && w.agent.busy != Nothing && w.lates > 0, func(w *world) { w.lates--; ends(w, 2*OrderTime) })
	can("agent is interrupted", w.agentAlive && w.agent.Hurry(), func(w *world) {
		work, answer := w.agent.Done("no such cgroup", w.now())
		w.work(work)
		w.answer(answer)
	})
	can("agent fails", w.agentAlive && w.agent.busy != Nothing && w.failures > 0, func(w *world) {
		w.failures--
		work, answer := w.agent.Done("no such cgroup", w.now())
		w.work(work)
		w.answer(answer)
	})
	can("pod reads", !w.podKnows && w.toPod.n > 0, func(w *world) {
		m := w.toPod.take()
		if m.Verb == Hello {
			w.tell(Event{Kind: Connected})
			return
		}
		w.tell(Event{Kind: Received, Message: m})
	})

	// The connection ends: what lies in it may still be read, or be lost.
	can("cut", w.connected && w.cuts > 0, func(w *world) { w.cuts--; w.connected = false })
	can("pod sees the end", !w.connected && !w.podKnows, func(w *world) {
		w.podKnows, w.toPod = true, queue{}
		w.tell(Event{Kind: Disconnected})
	})
	can("agent sees the end", w.agentAlive && !w.connected && !w.agentKnows, func(w *world) {
		w.agentKnows, w.toAgent = true, queue{}
		w.work(w.agent.Close(w.now()))
	})
	can("orders expire", !w.connected && !w.expired && w.agent.busy == Nothing, func(w *world) { w.expired = true })
	can("agent dies", w.agentAlive && w.deaths > 0, func(w *world) {
		w.deaths--
		w.agentAlive, w.connected, w.agent, w.toAgent = false, false, Agent{Swap: true}, queue{}
	})
	can("guard thaws", !w.agentAlive && w.frozen, func(w *world) { w.frozen = false })
	can("agent starts", !w.agentAlive, func(w *world) {
		w.agentAlive, w.agentKnows, w.frozen, w.agent = true, true, false, Agent{Swap: true, closed: true}
	})
	can("agent dials", w.agentAlive && !w.connected && w.podKnows && w.agentKnows && w.agent.Gone(), func(w *world) {
		w.agent = Agent{Swap: true}
		w.connected, w.podKnows, w.agentKnows, w.expired = true, false, false, false
		w.toAgent, w.toPod = queue{}, queue{}
		w.toPod.put(Message{Verb: Hello, Number: Version})
	})

	// A probe is answered by containers that run. It begins after Risk: when orders have expired.
	can("probe answered", w.probing && !w.frozen && (w.pod.Risk == 0 || w.expired), func(w *world) { w.tell(Event{Kind: Answered}) })

	// queue-proxy dies. Its successor serves once the container answers a probe. The kernel ends
	// the connection, and the agent sees that before: a restart takes longer than a stall that the
	// guard tolerates.
	can("queue-proxy dies", w.crashes > 0, func(w *world) {
		w.crashes--
		w.connected, w.podKnows, w.toPod = false, true, queue{}
		w.flying, w.held = 0, 0
		// The successor knows nothing of calls, as docs/standby.md says, and announces the pod.
		w.pod = Pod{State: Lost, Hooks: w.pod.Hooks, wanted: true, Order: Message{Number: w.pod.Order.Number + 10}, Risk: 1}
		w.probing, w.said, w.calling, w.told, w.dark = true, SayGone, 0, false, false
	})
	return out
}

// wrong says what must never be.
func (w world) wrong() string {
	switch {
	case w.flying > 0 && w.frozen:
		return "a request was sent into a frozen container"
	case !w.pod.Holds() && w.frozen:
		return "the pod would forward to a frozen container"
	case w.flying > 0 && w.pod.State >= Dozing:
		return "a request is in flight in a pod that rests"
	case w.pod.BusyUntil > 0 && w.pod.State != Awake:
		return "a pod whose program is busy falls asleep"
	case w.broken != "":
		return w.broken
	case w.pod.State == Awake && w.said != SayAwake && !(w.said == SayAsleep && w.pod.Settling()) && !w.pod.ending:
		return "a pod is awake, and the activators do not hear of it"
	case w.pod.State > Resting && w.pod.State < Lost && w.said == SayAwake && !w.pod.ending:
		return "a pod sleeps, and the activators take it for awake"
	case w.flying > 0 && w.calling != 0:
		return "a request is in flight while a hook is called"
	case w.flying > 0 && w.pod.Hooks.Wake && (w.told || w.dark):
		return "a request is in flight in a program that slept and was not called"
	case w.calling != 0 && w.frozen:
		return "a frozen container is called"
	case w.held > 0 && !w.pod.Holds():
		return "a request waits for nothing"
	case w.pod.State == Awake && w.pod.Level == Frozen && w.pod.overdue:
		return "an awake pod refuses"
	}
	return ""
}

// settles lets everything happen that is nobody's will: no new order, request or fault. It reports
// whether all requests end and only a pod that is asleep keeps its containers frozen. known has the
// results of earlier calls.
func settles(w world, known map[world]bool) bool {
	w.sleeps, w.wakes, w.requests, w.deaths, w.cuts, w.failures, w.crashes, w.lates, w.balks, w.busies, w.ended = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, true
	var passed []world
	well, found := false, false
	for len(passed) < 100 {
		if well, found = known[w]; found {
			break
		}
		passed = append(passed, w)
		steps := w.steps()
		steps = slices.DeleteFunc(steps, func(s step) bool {
			return s.name == "overdue" || s.name == "idle" || s.name == "pause ends" || s.name == "busy ends"
		})
		if len(steps) == 0 {
			well = w.held == 0 && w.flying == 0 && (!w.frozen || w.pod.State == Asleep)
			break
		}
		w = w.after(steps[0])
	}
	for _, w := range passed {
		known[w] = well
	}
	return well
}

func TestEveryInterleaving(t *testing.T) {
	t.Parallel()
	both := Pod{Hooks: Hooks{Sleep: true, Wake: true}}
	for name, may := range map[string]world{
		"nothing fails":           {sleeps: 2, wakes: 2, requests: 3},
		"the agent fails":         {sleeps: 2, wakes: 1, requests: 1, failures: 2},
		"the agent is late":       {sleeps: 3, wakes: 1, requests: 2, lates: 2},
		"the agent dies":          {sleeps: 2, requests: 2, deaths: 2},
		"the connection ends":     {sleeps: 2, wakes: 1, requests: 2, cuts: 2},
		"queue-proxy dies":        {sleeps: 2, requests: 2, crashes: 2},
		"hooks":                   {pod: both, sleeps: 2, wakes: 1, requests: 3},
		"a hook before sleep":     {pod: Pod{Hooks: Hooks{Sleep: true}}, sleeps: 2, wakes: 1, requests: 2, balks: 2, failures: 1},
		"a hook after wake":       {pod: Pod{Hooks: Hooks{Wake: true}}, sleeps: 2, wakes: 1, requests: 2, balks: 2, failures: 1},
		"hooks fail":              {pod: both, sleeps: 2, wakes: 1, requests: 2, balks: 2, failures: 1},
		"hooks and lost agents":   {pod: both, sleeps: 1, requests: 2, deaths: 1, cuts: 1, balks: 1},
		"a program is busy":       {sleeps: 3, wakes: 1, requests: 3, busies: 2},
		"hooks and busy programs": {pod: both, sleeps: 2, wakes: 1, requests: 3, busies: 2, balks: 1},
		"busy, and a lost agent":  {sleeps: 2, requests: 2, busies: 1, cuts: 1},
		"one fault after another": {sleeps: 1, requests: 1, deaths: 1, cuts: 1, failures: 1, crashes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			visit(t, may)
		})
	}
}

// begun is a world at its beginning.
func (w world) begun() world {
	w.agentAlive, w.agentKnows, w.podKnows, w.agent = true, true, true, Agent{Swap: true, closed: true}
	w.said = SayAwake
	return w
}

// A pod with hooks sleeps and wakes a hundred thousand times, by any order of events and with every
// fault again and again. No request reaches the program between the freeze and the end of the hook
// after the wake.
func TestAHundredThousandWakes(t *testing.T) {
	t.Parallel()
	again := world{sleeps: 2, wakes: 1, requests: 2, deaths: 1, cuts: 1, failures: 1, lates: 1, balks: 1, busies: 1}
	w := world{pod: Pod{Hooks: Hooks{Sleep: true, Wake: true}}}.begun()
	random := rand.New(rand.NewPCG(38, 3))
	var last []string
	var steps []step
	for wakes, n := 0, 0; wakes < 100_000; n++ {
		if n%50 == 0 || len(steps) == 0 {
			w.sleeps, w.wakes, w.requests = again.sleeps, again.wakes, again.requests
			w.deaths, w.cuts, w.failures, w.lates, w.balks, w.busies = again.deaths, again.cuts, again.failures, again.lates, again.balks, again.busies
		}
		if steps = slices.DeleteFunc(w.steps(), func(s step) bool { return s.name == "end" }); len(steps) == 0 {
			continue
		}
		s := steps[random.IntN(len(steps))]
		was := w.pod.State
		s.happen(&w)
		last = append(last[max(0, len(last)-30):], s.name)
		if what := w.wrong(); what != "" {
			t.Fatalf("%s after %d wakes: %s\n%s", what, wakes, strings.Join(last, ", "), describe(w))
		}
		if was == Rousing && w.pod.State == Awake {
			wakes++
		}
	}
}

// visit goes through every world that what may happen leads to.
func visit(t *testing.T, may world) {
	first := may.begun()
	type origin struct {
		from world
		name string
	}
	seen := map[world]origin{first: {}}
	story := func(w world) string {
		names := []string{describe(w)}
		for w != first {
			o := seen[w]
			names = append(names, o.name)
			w = o.from
		}
		slices.Reverse(names)
		return strings.Join(names, "\n  ")
	}
	ends := map[world]bool{}
	states := map[State]int{}
	for todo := []world{first}; len(todo) > 0; {
		w := todo[0]
		todo = todo[1:]
		states[w.pod.State]++
		if what := w.wrong(); what != "" {
			t.Fatalf("%s: %s", what, story(w))
		}
		if !settles(w, ends) {
			t.Fatalf("a request never ends, or the containers stay frozen: %s", story(w))
		}
		for _, s := range w.steps() {
			next := w.after(s)
			if _, was := seen[next]; !was {
				seen[next] = origin{w, s.name}
				todo = append(todo, next)
			}
		}
	}
	t.Logf("%d worlds: %v", len(seen), states)
	hooks := map[State]bool{Leaving: may.pod.Hooks.Sleep, Rousing: may.pod.Hooks.Wake}
	for s := Awake; s <= Rousing; s++ {
		if hooked, of := hooks[s]; s != Lost && states[s] == 0 && (!of || hooked) {
			t.Errorf("no world has a pod that is %s", s)
		}
	}
}

func describe(w world) string {
	return fmt.Sprintf("pod %s order %+v connected=%v risk=%v overdue=%v; agent %+v alive=%v; frozen=%v held=%d flying=%d connected=%v expired=%v",
		w.pod.State, w.pod.Order, w.pod.connected, w.pod.Risk, w.pod.overdue, w.agent, w.agentAlive, w.frozen, w.held, w.flying, w.connected, w.expired)
}
