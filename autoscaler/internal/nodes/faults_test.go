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
	// activators are the nodes that have one.
	activators []int
	// reached is when a way was last found to lead somewhere, steady since when it always did.
	reached, steady map[way]time.Time
}

func newTruth(r *rand.Rand) *truth {
	n := 3 + r.IntN(6)
	w := &truth{off: make([]bool, n), dark: make([]bool, n), renewed: make([]time.Time, n), cut: map[way]bool{},
		reached: map[way]time.Time{}, steady: map[way]time.Time{}}
	for node := range n {
		if r.IntN(2) == 0 {
			w.activators = append(w.activators, node)
		}
	}
	return w
}

func (w *truth) tries(from, to int) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	one, now := way{from, to}, time.Now()
	if w.off[from] || w.off[to] || w.cut[one] || w.cut[way{to, from}] {
		delete(w.steady, one)
		return false
	}
	w.reached[one] = now
	if _, known := w.steady[one]; !known {
		w.steady[one] = now
	}
	return true
}

func address(node int) string { return netip.AddrFrom4([4]byte{10, 0, byte(node), 1}).String() }

func nodeOf(address string) int { return int(netip.MustParseAddr(address).As4()[2]) }

// asks is an activator's answer.
func (w *truth) asks(ctx context.Context, by int, pods []netip.Addr, got func(wire.ReachAnswer)) {
	if !w.tries(0, by) {
		takes(ctx, answersWithin)
		return
	}
	answer, took := wire.ReachAnswer{Node: strconv.Itoa(by)}, time.Duration(0)
	for _, pod := range pods {
		if w.tries(by, nodeOf(pod.String())) {
			answer.Life = append(answer.Life, pod)
		} else {
			answer.Silent, took = append(answer.Silent, pod), alive.AskTime
		}
	}
	if takes(ctx, took) && w.tries(0, by) {
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
	switch r.IntN(6) {
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
	return ""
}

func (w *truth) watcher(told func(alive.Verdict)) *Watcher {
	return &Watcher{Self: "0", Clock: time.Now, Log: slog.New(slog.DiscardHandler), Tell: told,
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
		Lease: func(_ context.Context, node string) (string, error) { return w.lease(node) }}
}

// requests come to an activator, each for a pod of the next node.
func (w *truth) requests(ctx context.Context, by int, to *Watcher) {
	for next := 0; takes(ctx, 300*time.Millisecond); next++ {
		node := next % len(w.off)
		if began := time.Now(); node != by && !w.tries(by, node) && takes(ctx, alive.AskTime) && w.tries(0, by) {
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
				t.Errorf("sequence %d, %d nodes, activators on %v: %s: %+v", seed, n, w.activators, what, v)
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
