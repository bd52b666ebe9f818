package nodes

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/autoscaler/alive"
	"ebb.dev/ebb/wire"
)

// way is from one node to another.
type way struct{ from, to int }

// truth is what is true of some nodes and of the ways between them. The autoscaler is on node 0.
// The address of a pod on node 3 is 10.0.3.1.
type truth struct {
	mutex sync.Mutex
	// off are the nodes without power, dark those whose Leases the API server does not get. away
	// says that there is none.
	off, dark []bool
	away      bool
	cut       map[way]bool
	renewed   []time.Time
	// shut are the nodes whose pods are kept from answering by a NetworkPolicy.
	shut []bool
	// activators and agents are the nodes that have one.
	activators, agents []int
	// answered is when a pod of a node last answered the agent of another one.
	answered map[way]time.Time
	// reached is when a way was last found to lead somewhere, steady since when it always did.
	reached, steady map[way]time.Time
}

func newTruth(r *rand.Rand) *truth {
	n := 3 + r.IntN(6)
	w := &truth{off: make([]bool, n), dark: make([]bool, n), shut: make([]bool, n), renewed: make([]time.Time, n), cut: map[way]bool{}, answered: map[way]time.Time{},
		reached: map[way]time.Time{}, steady: map[way]time.Time{}}
	agents := r.IntN(2) == 0
	for node := range n {
		if r.IntN(2) == 0 {
			w.activators = append(w.activators, node)
		}
		if agents && r.IntN(4) > 0 {
			w.agents = append(w.agents, node)
		}
	}
	return w
}

// nodeItself is added to a node whose agent is tried, and none of its pods.
const nodeItself = 100

// tries asks a pod of a node, or a node itself.
func (w *truth) tries(from, to int) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	one, now := way{from, to}, time.Now()
	pod := to < nodeItself
	to %= nodeItself
	if !w.leadsLocked(from, to) || pod && w.shut[to] && from != to {
		delete(w.steady, one)
		return false
	}
	w.reached[one] = now
	if _, known := w.steady[one]; !known {
		w.steady[one] = now
	}
	return true
}

// asked is tries for an activator. What one beside the autoscaler finds is not known to that yet.
func (w *truth) asked(by, to int) bool {
	if by != 0 {
		return w.tries(by, to)
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.leadsLocked(by, to) && (!w.shut[to] || to == by)
}

// leads reports whether a node is reached from another one.
func (w *truth) leads(from, to int) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.leadsLocked(from, to)
}

func (w *truth) leadsLocked(from, to int) bool {
	return !w.off[from] && !w.off[to] && !w.cut[way{from, to}] && !w.cut[way{to, from}]
}

func address(node int) string { return netip.AddrFrom4([4]byte{10, 0, byte(node), 1}).String() }

func nodeOf(address string) int { return int(netip.MustParseAddr(address).As4()[2]) }

// asks is an activator's answer.
func (w *truth) asks(ctx context.Context, by int, pods []netip.Addr, got func(wire.ReachAnswer)) {
	if !w.leads(0, by) {
		takes(ctx, answersWithin)
		return
	}
	answer, took := wire.ReachAnswer{Node: strconv.Itoa(by)}, time.Duration(0)
	for _, pod := range pods {
		if w.asked(by, nodeOf(pod.String())) {
			answer.Life = append(answer.Life, pod)
		} else {
			answer.Silent, took = append(answer.Silent, pod), alive.AskTime
		}
	}
	if takes(ctx, took) && w.leads(0, by) {
		got(answer)
	}
}

// says is an agent's answer.
func (w *truth) says(ctx context.Context, by int, pods []netip.Addr, got func(wire.ReachAnswer)) {
	if !w.tries(0, by+nodeItself) {
		takes(ctx, answersWithin)
		return
	}
	answer, took := wire.ReachAnswer{Node: strconv.Itoa(by)}, time.Duration(0)
	for _, pod := range pods {
		one := way{by, nodeOf(pod.String())}
		life := w.tries(one.from, one.to)
		w.mutex.Lock()
		switch {
		case life:
			answer.Life = append(answer.Life, pod)
			w.answered[one] = time.Now()
		case !w.answered[one].IsZero() && time.Since(w.answered[one]) < time.Minute:
			answer.Silent, took = append(answer.Silent, pod), alive.AskTime
		default:
			took = alive.AskTime
		}
		w.mutex.Unlock()
	}
	if takes(ctx, took) && w.tries(0, by+nodeItself) {
		got(answer)
	}
}

func (w *truth) lease(name string) (string, error) {
	node, err := strconv.Atoi(name)
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.away || err != nil {
		return "", errors.New("no API server")
	}
	if !w.off[node] && !w.dark[node] && time.Since(w.renewed[node]) >= 10*time.Second {
		w.renewed[node] = time.Now()
	}
	return w.renewed[node].String(), nil
}

// happens breaks or mends something.
func (w *truth) happens(r *rand.Rand) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	n := len(w.off)
	node, one := 1+r.IntN(n-1), way{r.IntN(n), r.IntN(n)}
	switch r.IntN(7) {
	case 6:
		w.shut[node] = !w.shut[node]
	case 0, 1:
		w.off[node] = !w.off[node]
	case 2:
		w.cut[one] = !w.cut[one]
	case 3:
		w.dark[node] = !w.dark[node]
	case 4:
		w.away = !w.away
	case 5:
		for to := 1; to < n; to++ {
			w.cut[way{0, to}] = r.IntN(3) == 0
		}
	}
}

// alarm says what is wrong with a verdict.
func (w *truth) alarm(v *alive.Verdict) string {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	node, _ := strconv.Atoi(v.Node)
	lately := func(one way, within time.Duration) bool {
		ago := time.Since(w.reached[one])
		return ago > 0 && ago < within // what is answered in this moment is not known yet
	}
	long := func(one way) bool {
		since, known := w.steady[one]
		return known && time.Since(since) >= 4*time.Second
	}
	if v.State >= alive.Silent && lately(way{0, node}, alive.SilentAfter-100*time.Millisecond) {
		return "this autoscaler reaches it"
	}
	for _, by := range w.activators {
		if one := (way{by, node}); v.State == alive.Lost && by != node && lately(one, 2500*time.Millisecond) && long(one) && long(way{0, by}) {
			return "the activator on node " + strconv.Itoa(by) + " reaches it"
		}
	}
	for _, by := range w.agents {
		// What it says counts if it reaches an activator elsewhere, whichever is tried.
		others := slices.DeleteFunc(slices.Clone(w.activators), func(to int) bool { return to == by || to == node })
		one, counts := way{by, node}, by != 0 && len(others) > 0 && long(way{0, by + nodeItself})
		for _, to := range others {
			counts = counts && long(way{by, to}) && lately(way{by, to}, 2500*time.Millisecond) && (to == 0 || long(way{0, to}))
		}
		switch {
		case v.State != alive.Lost || !counts:
		case by == node && lately(way{0, by + nodeItself}, 2500*time.Millisecond):
			return "its agent says that it lives"
		case by != node && lately(one, 2500*time.Millisecond) && long(one):
			return "the agent on node " + strconv.Itoa(by) + " reaches it"
		}
	}
	return ""
}

func (w *truth) watcher(told func(alive.Verdict)) *Watcher {
	return New(Config{Self: "0", Clock: time.Now, Log: slog.New(slog.DiscardHandler), Tell: told, SetSilent: func(map[string]bool) {},
		Activator: func(string) bool { return false }, Agent: func(string) bool { return false },
		Pods: func(int) map[string][]string {
			all := map[string][]string{}
			for node := range w.off {
				all[strconv.Itoa(node)] = []string{address(node)}
			}
			return all
		},
		Dial: func(ctx context.Context, to string) (net.Conn, error) {
			host, _, _ := net.SplitHostPort(to)
			if w.tries(0, nodeOf(host)) {
				return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
			}
			<-ctx.Done()
			return nil, errSilent
		},
		Others: func(ctx context.Context, pods []netip.Addr, got func(wire.ReachAnswer)) {
			var all sync.WaitGroup
			for _, by := range w.activators {
				all.Go(func() { w.asks(ctx, by, pods, got) })
			}
			all.Wait()
		},
		Activators: func() map[string]string {
			all := map[string]string{}
			for _, node := range w.activators {
				all[strconv.Itoa(node)] = address(node)
			}
			return all
		},
		Agents: func(ctx context.Context, on []string, pods []netip.Addr, got func(wire.ReachAnswer)) {
			var all sync.WaitGroup
			for _, by := range w.agents {
				if by != 0 && (on == nil || slices.Contains(on, strconv.Itoa(by))) {
					all.Go(func() { w.says(ctx, by, pods, got) })
				}
			}
			all.Wait()
		},
		Lease: func(_ context.Context, node string) (string, error) { return w.lease(node) }})
}

// requests come to an activator, each for a pod of the next node.
func (w *truth) requests(ctx context.Context, by int, to *Watcher) {
	for next := 0; takes(ctx, 300*time.Millisecond); next++ {
		node := next % len(w.off)
		if began := time.Now(); node != by && !w.asked(by, node) && takes(ctx, alive.AskTime) && w.leads(0, by) {
			to.Unreached(strconv.Itoa(node), address(node), &wire.Unreached{Node: strconv.Itoa(by), Ago: time.Since(began)})
		}
	}
}

var sequences = flag.Uint64("sequences", 60, "how many sequences of faults are played")

// Nodes die and return, ways are cut, Leases are not renewed, the API server is away: whatever
// comes in whatever order, no node is lost that somebody reaches who can say so. When all is
// mended, all nodes are well, and a minority that dies then is lost.
func TestFaultsInRandomOrder(t *testing.T) {
	verdicts := map[alive.State]int{}
	for seed := uint64(0); seed < *sequences && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 36))
			w := newTruth(r)
			n := len(w.off)
			wrong := func(what string, v any) {
				t.Errorf("sequence %d, %d nodes, activators on %v, agents on %v: %s: %+v", seed, n, w.activators, w.agents, what, v)
			}
			watcher := w.watcher(func(v alive.Verdict) {
				verdicts[v.State]++
				if why := w.alarm(&v); why != "" {
					wrong(why, v)
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { watcher.Run(ctx) })
			for _, by := range w.activators {
				running.Go(func() { w.requests(ctx, by, watcher) })
			}
			time.Sleep(10 * time.Second)
			for range 6 {
				for range 1 + r.IntN(4) {
					w.happens(r)
					time.Sleep(time.Duration(r.IntN(4000)) * time.Millisecond)
				}
				time.Sleep(time.Duration(r.IntN(30)) * time.Second)
			}
			w.mutex.Lock()
			clear(w.off)
			clear(w.dark)
			clear(w.cut)
			clear(w.shut)
			w.away = false
			w.mutex.Unlock()
			time.Sleep(20 * time.Second)
			if now := watcher.Now(); len(now) > 0 {
				wrong("all is mended", now)
			}
			time.Sleep(alive.Forgets + time.Minute)
			dead := (n - 1) / 2
			w.mutex.Lock()
			for _, node := range r.Perm(n - 1)[:dead] {
				w.off[node+1] = true
			}
			w.mutex.Unlock()
			time.Sleep(40 * time.Second)
			if lost := watcher.Count(alive.Lost); lost != dead {
				wrong(strconv.Itoa(dead)+" are dead", watcher.Now())
			}
			cancel()
			running.Wait()
		})
	}
	t.Logf("verdicts: %v", verdicts)
	if verdicts[alive.Lost] == 0 || verdicts[alive.Well] == 0 {
		t.Error("nothing was ever lost, or came back")
	}
}
