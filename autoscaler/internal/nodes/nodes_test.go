package nodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/autoscaler/alive"
	"ebb.dev/ebb/wire"
)

// lingering is a connection that counts those that are closed with a reset.
type lingering struct {
	net.Conn
	c *cluster
}

func (l lingering) SetLinger(seconds int) error {
	if seconds == 0 {
		l.c.set(func() { l.c.resets++ })
	}
	return nil
}

// cluster has a pod on each of its nodes, whose address is the node's name.
type cluster struct {
	mutex sync.Mutex
	// says is what an attempt to connect to a node ends with, errSilent after its time. A node that
	// is missing connects.
	says map[string]error
	// renews says that Leases are renewed, lost that they cannot be read.
	renews, lost bool
	told         []alive.Verdict

	dials, resets, reads int
	dialled              map[string]int
	Config
	*Watcher // of Config, since the cluster is live
}

var errSilent = &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}

func newCluster(t *testing.T, nodes ...string) *cluster {
	c := &cluster{says: map[string]error{}, renews: true, dialled: map[string]int{}}
	c.Config = Config{Self: "a", Clock: time.Now, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Activator: func(string) bool { return false }, Agent: func(string) bool { return false }, Activators: func() map[string]string { return nil },
		Others: func(context.Context, []netip.Addr, func(wire.ReachAnswer)) {}, SetSilent: func(map[string]bool) {},
		Agents: func(context.Context, []string, []netip.Addr, func(wire.ReachAnswer)) {},
		Pods: func(int) map[string][]string {
			all := map[string][]string{}
			for _, node := range nodes {
				all[node] = []string{node}
			}
			return all
		},
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			node, port, err := net.SplitHostPort(address)
			want := "9090"
			switch {
			case c.Activator(node):
				want = "8014"
			case c.Agent(node):
				want = "9395"
			}
			if err != nil || port != want {
				t.Errorf("dials %s: %v", address, err)
			}
			c.mutex.Lock()
			c.dials++
			c.dialled[node]++
			said := c.says[node]
			c.mutex.Unlock()
			switch {
			case said == errSilent:
				<-ctx.Done()
				return nil, said
			case said != nil:
				return nil, said
			}
			near, far := net.Pipe()
			far.Close()
			return lingering{near, c}, nil
		},
		Lease: func(_ context.Context, node string) (string, error) {
			c.mutex.Lock()
			defer c.mutex.Unlock()
			c.reads++
			if c.lost {
				return "", errors.New("no API server")
			}
			if c.renews {
				return time.Now().Truncate(10 * time.Second).String(), nil
			}
			return "long ago", nil
		},
		Tell: func(v alive.Verdict) {
			c.mutex.Lock()
			defer c.mutex.Unlock()
			c.told = append(c.told, v)
		}}
	return c
}

func (c *cluster) set(change func()) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	change()
}

// states are the verdicts that were told, as "b silent".
func (c *cluster) states() (all []string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, v := range c.told {
		all = append(all, v.Node+" "+v.State.String())
	}
	return all
}

// live runs a cluster in virtual time.
func live(t *testing.T, c func() *cluster, happen func(c *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := c()
		c.Watcher = New(c.Config)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(10 * time.Second)
		happen(c)
		cancel()
		<-done
	})
}

// An activator on node c says every second that it does not reach b either.
func (c *cluster) activator(from, to string, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
		c.Unreached(to, to, &wire.Unreached{Pod: to, By: "activator-" + from, Node: from, Ago: alive.AskTime})
	}
}

func TestANodeThatDiesIsToldOfAndOneThatReturns(t *testing.T) {
	live(t, func() *cluster { return newCluster(t, "a", "b", "c") }, func(c *cluster) {
		c.set(func() { c.says["b"] = errSilent })
		began := time.Now()
		c.activator("c", "b", 6*time.Second)
		if got := c.states(); !slices.Equal(got, []string{"b silent", "b lost"}) {
			t.Fatalf("told of %v", got)
		}
		if now := c.Now(); len(now) != 1 || now[0].State != alive.Lost || !strings.Contains(now[0].Reason, "from node c") {
			t.Errorf("%+v", now)
		}
		if took := c.told[1].Since - 10*time.Second; took > 6*time.Second || c.Count(alive.Lost) != 1 {
			t.Errorf("after %s, at %s", took, time.Since(began))
		}
		c.set(func() { delete(c.says, "b") })
		time.Sleep(5 * time.Second)
		if got := c.states(); !slices.Equal(got, []string{"b silent", "b lost", "b well"}) || len(c.Now()) != 0 {
			t.Errorf("told of %v", got)
		}
		if c.Silent.Load() != 1 || c.Lost.Load() != 1 || c.Back.Load() != 1 {
			t.Errorf("counted %d %d %d", c.Silent.Load(), c.Lost.Load(), c.Back.Load())
		}
	})
}

// A node without pods of revisions answers, too, if an activator there does.
func TestAnActivatorSpeaksForItsNodeWithoutPods(t *testing.T) {
	live(t, func() *cluster { return newCluster(t, "a", "b") }, func(c *cluster) {
		c.set(func() { c.says["b"] = errSilent })
		c.activator("c", "b", 6*time.Second)
		if got := c.states(); !slices.Equal(got, []string{"b silent", "b lost"}) {
			t.Errorf("told of %v", got)
		}
		time.Sleep(2 * remembers)
		c.set(func() { delete(c.says, "b") })
		time.Sleep(5 * time.Second)
		c.set(func() { c.says["b"] = errSilent; c.renews = false })
		time.Sleep(time.Minute)
		if got := c.states(); len(got) != 3 {
			t.Errorf("told of %v, although nobody on another node speaks any more", got)
		}
	})
}

// An activator elsewhere is asked before the own question has failed, and its word decides.
func TestActivatorsAreAsked(t *testing.T) {
	b, d := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.4")
	for name, c := range map[string]struct {
		answer wire.ReachAnswer
		want   []string
	}{
		"it does not reach it either": {wire.ReachAnswer{Node: "c", Silent: []netip.Addr{b}}, []string{"10.0.0.2 silent", "10.0.0.2 lost"}},
		"it reaches it":               {wire.ReachAnswer{Node: "c", Life: []netip.Addr{b}}, nil},
		"it reaches another pod":      {wire.ReachAnswer{Node: "c", Silent: []netip.Addr{b}, Life: []netip.Addr{b}}, nil},
		"it knows of another pod":     {wire.ReachAnswer{Node: "c", Silent: []netip.Addr{d}}, nil},
		"it does not know the pod":    {wire.ReachAnswer{Node: "c"}, nil},
		"it does not say where it is": {wire.ReachAnswer{Silent: []netip.Addr{b}}, nil},
		"it runs where this one does": {wire.ReachAnswer{Node: "a", Silent: []netip.Addr{b}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			live(t, func() *cluster {
				l := newCluster(t, "a", b.String(), "c")
				l.Others = func(ctx context.Context, pods []netip.Addr, got func(wire.ReachAnswer)) {
					if asked.Add(1); !slices.Equal(pods, []netip.Addr{b}) {
						t.Errorf("asks for %v", pods)
					}
					select {
					case <-ctx.Done():
					case <-time.After(alive.AskTime):
						got(c.answer)
					}
				}
				return l
			}, func(l *cluster) {
				if n := asked.Load(); n > 0 {
					t.Errorf("asked %d times while all is well", n)
				}
				l.set(func() { l.says[b.String()] = errSilent })
				time.Sleep(5 * time.Second)
				if got := l.states(); !slices.Equal(got, c.want) {
					t.Errorf("told of %v", got)
				}
			})
			if asked.Load() == 0 {
				t.Error("nobody is asked")
			}
		})
	}
}

func TestWhatIsNoSilence(t *testing.T) {
	for name, said := range map[string]error{
		"a port that is closed":         &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
		"no file left in this process":  &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)},
		"no route from this node":       &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ENETUNREACH)},
		"a reset":                       &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNRESET)},
		"an error that nobody knows of": errors.New("unknown"),
	} {
		t.Run(name, func(t *testing.T) {
			live(t, func() *cluster { return newCluster(t, "a", "b", "c") }, func(c *cluster) {
				c.set(func() { c.says["b"] = said; c.renews = false })
				time.Sleep(time.Minute)
				if got := c.Now(); len(got) != 0 {
					t.Errorf("%+v", got)
				}
			})
		})
	}
}

// Scrapes show that nodes live, so these are not asked.
func TestANodeThatIsHeardIsNotAsked(t *testing.T) {
	live(t, func() *cluster { return newCluster(t, "a", "b", "c") }, func(c *cluster) {
		c.set(func() { c.dials = 0 })
		for range 100 {
			c.Heard("b", "b")
			c.Heard("c", "c")
			time.Sleep(500 * time.Millisecond)
		}
		c.set(func() {
			if c.dials > 2 || c.reads > 0 {
				t.Errorf("%d dials, %d reads of Leases", c.dials, c.reads)
			}
		})
	})
}

func TestTheLeaseIsReadOfNodesThatDoNotAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		renews, lost bool
		want         []string
	}{
		"it is renewed":     {renews: true},
		"it is not":         {want: []string{"b lost"}},
		"nobody can see it": {lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			live(t, func() *cluster { return newCluster(t, "a", "b", "c") }, func(l *cluster) {
				l.set(func() { l.says["b"], l.renews, l.lost, l.reads = errSilent, c.renews, c.lost, 0 })
				time.Sleep(30 * time.Second)
				if got := l.states(); !slices.Equal(got, c.want) {
					t.Errorf("told of %v", got)
				}
				if l.set(func() {}); l.reads < 10 || l.reads > 35 {
					t.Errorf("%d reads in 30 s", l.reads)
				}
			})
		})
	}
}

// The control plane does not see b either, which is no sign while an activator reaches it. That is
// asked seldom, because another one, which is gone, has its time each time. Meanwhile requests
// through the one beside this autoscaler fail at once.
func TestAnActivatorSpeaksAgainstAnOldLease(t *testing.T) {
	b := netip.MustParseAddr("10.0.0.2")
	live(t, func() *cluster {
		c := newCluster(t, "a", b.String(), "c")
		c.Others = func(ctx context.Context, pods []netip.Addr, got func(wire.ReachAnswer)) {
			got(wire.ReachAnswer{Node: "c", Life: pods})
			takes(ctx, answersWithin)
		}
		return c
	}, func(c *cluster) {
		c.set(func() {
			c.says[b.String()], c.renews = &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)}, false
		})
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			c.Unreached(b.String(), b.String(), &wire.Unreached{Node: "a"})
		}
		if got := c.states(); len(got) > 0 {
			t.Errorf("told of %v", got)
		}
	})
}

// A NetworkPolicy may forbid the autoscaler to connect to the only pod of a node.
func TestAPodThatNeverAnsweredProvesNothing(t *testing.T) {
	live(t, func() *cluster {
		c := newCluster(t, "a", "b", "c")
		c.says["b"] = errSilent
		return c
	}, func(c *cluster) {
		c.set(func() { c.renews = false })
		c.activator("c", "b", time.Minute)
		if got := c.states(); len(got) != 0 {
			t.Errorf("told of %v", got)
		}
	})
}

// takes waits, and reports whether the time was over before ctx was done.
func takes(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// So it does if it does not answer activators either, of which one runs where this autoscaler does
// and so speaks for it.
func TestAPodThatNeverAnsweredProvesNothingBesideAnActivator(t *testing.T) {
	b := netip.MustParseAddr("10.0.0.2")
	for name, others := range map[string]bool{"they are asked": true, "they say so themselves": false} {
		t.Run(name, func(t *testing.T) {
			live(t, func() *cluster {
				c := newCluster(t, "a", b.String(), "c")
				c.says[b.String()] = errSilent
				if others {
					c.Others = func(ctx context.Context, _ []netip.Addr, got func(wire.ReachAnswer)) {
						if takes(ctx, alive.AskTime) {
							got(wire.ReachAnswer{Node: "a", Silent: []netip.Addr{b}})
							got(wire.ReachAnswer{Node: "c", Silent: []netip.Addr{b}})
						}
					}
				}
				return c
			}, func(c *cluster) {
				c.set(func() { c.renews = false })
				if others {
					time.Sleep(time.Minute)
				} else {
					var both sync.WaitGroup
					both.Go(func() { c.activator("a", b.String(), time.Minute) })
					both.Go(func() { c.activator("c", b.String(), time.Minute) })
					both.Wait()
				}
				if got := c.states(); len(got) != 0 {
					t.Errorf("told of %v", got)
				}
			})
		})
	}
}

// What an activator beside this autoscaler says counts as its own question, where the pod has
// answered that.
func TestAnActivatorBesideThisAutoscalerAsksForIt(t *testing.T) {
	live(t, func() *cluster { return newCluster(t, "a", "b", "c") }, func(c *cluster) {
		for ip, want := range map[string]int{"unknown": 0, "": 0, "b": 1} {
			time.Sleep(time.Second + 100*time.Millisecond)
			c.Unreached("b", ip, &wire.Unreached{Node: "a"})
			time.Sleep(time.Millisecond)
			c.Watcher.mutex.Lock()
			if got := c.watch.Step(c.timeLocked()); len(got) != want {
				t.Errorf("after a question to %q: %+v", ip, got)
			}
			c.Watcher.mutex.Unlock()
		}
	})
}

// The policy of activators lets nobody connect to their port for stats.
func TestAnActivatorIsAskedWhereItIsOpen(t *testing.T) {
	live(t, func() *cluster {
		c := newCluster(t, "a", "b", "c")
		c.Activator = func(ip string) bool { return ip == "c" }
		return c
	}, func(c *cluster) {
		time.Sleep(100 * time.Millisecond)
		c.set(func() {
			if c.dialled["b"] == 0 || c.dialled["c"] == 0 || c.resets != c.dials {
				t.Errorf("asked: %v, closed with %d resets", c.dialled, c.resets)
			}
		})
	})
}

// A tenant with several namespaces has most of the pods of a node, and keeps all but its own from
// them as soon as they have answered once. Others' pods there speak for the node.
func TestATenantCannotMakeANodeSilent(t *testing.T) {
	hostile, victim := numbered("10.3.%d.%d", 12), "10.4.0.1"
	live(t, func() *cluster {
		l := newCluster(t, "a", "c")
		l.Pods = func(most int) map[string][]string {
			b := append([]string{victim}, hostile...)
			rand.Shuffle(len(b), func(i, j int) { b[i], b[j] = b[j], b[i] })
			return map[string][]string{"a": {"a"}, "b": b[:min(most, len(b))], "c": {"c"}}
		}
		l.Others = func(ctx context.Context, pods []netip.Addr, got func(wire.ReachAnswer)) {
			answer := wire.ReachAnswer{Node: "c"}
			for _, pod := range pods {
				if pod.String() == victim {
					answer.Life = append(answer.Life, pod)
				} else {
					answer.Silent = append(answer.Silent, pod)
				}
			}
			if takes(ctx, alive.AskTime) {
				got(answer)
			}
		}
		return l
	}, func(l *cluster) {
		time.Sleep(20 * time.Second) // until each has answered
		l.set(func() {
			for _, pod := range hostile {
				l.says[pod] = errSilent
			}
		})
		time.Sleep(time.Minute)
		if got := l.states(); len(got) > 0 {
			t.Errorf("told of %v", got)
		}
	})
}

func numbered(format string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf(format, i>>8, i&255))
	}
	return names
}

// More nodes than can be asked at a time, of which nobody hears otherwise.
func TestEachNodeIsAskedInItsTurn(t *testing.T) {
	nodes := numbered("n%03d-%03d", 5*maxCalls)
	live(t, func() *cluster { return newCluster(t, append(nodes, "a")...) }, func(c *cluster) {
		c.set(func() {
			for _, node := range nodes {
				if n := c.dialled[node]; n < 3 || n > 10 {
					t.Errorf("%s was asked %d times in 10 s", node, n)
					return
				}
			}
		})
	})
}

// Many nodes die at once: more than activators can be asked about in one question, or than can be
// asked and have their Leases read at once. Those whose names come last are replaced, too.
func TestManyNodesDieAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		dead, alive int
		others      bool
		within      time.Duration
	}{
		"activators are asked": {2 * wire.MaxReach, 3 * wire.MaxReach, true, 15 * time.Second},
		"Leases are read":      {maxCalls + 50, 2 * maxCalls, false, 45 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			dead, living := numbered("10.1.%d.%d", c.dead), numbered("10.2.%d.%d", c.alive)
			live(t, func() *cluster {
				l := newCluster(t, slices.Concat(dead, living, []string{"a"})...)
				if c.others {
					l.Others = func(ctx context.Context, pods []netip.Addr, got func(wire.ReachAnswer)) {
						if len(pods) > wire.MaxReach {
							t.Errorf("asks for %d", len(pods))
						}
						if takes(ctx, alive.AskTime) {
							got(wire.ReachAnswer{Node: living[0], Silent: pods})
						}
					}
				}
				return l
			}, func(l *cluster) {
				l.set(func() {
					l.renews = c.others
					for _, node := range dead {
						l.says[node] = errSilent
					}
				})
				time.Sleep(c.within)
				lost := map[string]bool{}
				for _, said := range l.states() {
					node, state, _ := strings.Cut(said, " ")
					if lost[node] = state == "lost"; !slices.Contains(dead, node) {
						t.Errorf("told of %s", said)
					}
				}
				n := 0
				for _, node := range dead {
					if lost[node] {
						n++
					}
				}
				if n != len(dead) {
					t.Errorf("%d of %d are lost", n, len(dead))
				}
			})
		})
	}
}

// This replica has started after the end of b, of which another one told. It decides by itself, as
// if b had answered it before.
func TestANodeThatWasSilentBeforeTheStart(t *testing.T) {
	start := func() *cluster {
		c := newCluster(t, "a", "b", "c")
		c.says["b"] = errSilent
		return c
	}
	live(t, start, func(c *cluster) {
		c.set(func() { c.renews = false })
		if got := c.Undecided([]string{"b", "c", "unknown"}); !slices.Equal(got, []string{"b", "unknown"}) {
			t.Errorf("undecided: %v", got)
		}
		c.activator("c", "b", 6*time.Second)
		if got := c.states(); !slices.Contains(got, "b lost") {
			t.Errorf("told of %v", got)
		}
		c.set(func() { delete(c.says, "b") })
		time.Sleep(5 * time.Second)
		if got := c.Undecided([]string{"b"}); len(got) > 0 {
			t.Errorf("undecided, although it answers: %v", got)
		}
	})
	// Nobody agrees, and then what was told counts no longer.
	live(t, start, func(c *cluster) {
		c.Undecided([]string{"b"})
		time.Sleep(undecided + 5*time.Second) // the last question that counts does so for some time
		if got := c.Undecided([]string{"b"}); len(got) > 0 {
			t.Errorf("still undecided: %v", got)
		}
		c.set(func() { c.renews = false })
		c.activator("c", "b", time.Minute)
		if got := c.states(); len(got) != 0 {
			t.Errorf("told of %v", got)
		}
	})
}

// This process is stopped for a minute while a question is under way.
func TestAPauseIsNobodysSilence(t *testing.T) {
	var now atomic.Int64
	c := newCluster(t, "a", "b", "c")
	c.Clock = func() time.Time { return time.Unix(1000, now.Load()) }
	c.Watcher = New(c.Config)
	pass := func(d time.Duration) { now.Add(int64(d)) }
	c.Round(t.Context())
	c.Heard("c", "c")
	pass(500 * time.Millisecond)
	c.Unreached("b", "b", &wire.Unreached{Node: "c", Ago: 100 * time.Millisecond})
	pass(time.Minute)
	c.Round(t.Context())
	if got := c.Now(); len(got) > 0 {
		t.Errorf("%+v", got)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.epoch != 1 {
		t.Errorf("%d pauses", c.epoch)
	}
}

// Of pods whose node is not known, and by activators that do not say where they are, nothing is
// learned.
func TestWhoSaysNotWhereIsNoWitness(t *testing.T) {
	live(t, func() *cluster { return newCluster(t, "a", "b", "c") }, func(c *cluster) {
		c.set(func() { c.says["b"] = errSilent })
		for range 10 {
			c.Unreached("", "", &wire.Unreached{Node: "c"})
			c.Unreached("b", "b", &wire.Unreached{})
			time.Sleep(time.Second)
		}
		if got := c.Now(); len(got) != 1 || got[0].State != alive.Doubted {
			t.Errorf("%+v", got)
		}
	})
}

func TestWithoutANameNobodyIsAsked(t *testing.T) {
	live(t, func() *cluster { c := newCluster(t, "a", "b"); c.Self = ""; return c }, func(c *cluster) {
		c.set(func() {
			if c.dials > 0 {
				t.Errorf("%d dials", c.dials)
			}
		})
	})
}

// A quiet node costs one connection a second, to a pod that has answered before.
func TestOnePodOfAQuietNodeIsAsked(t *testing.T) {
	for name, says := range map[string]error{
		"all answer":        nil,
		"one does not":      errSilent,
		"one fails at once": &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ENETUNREACH)},
	} {
		t.Run(name, func(t *testing.T) {
			live(t, func() *cluster {
				l := newCluster(t, "a", "c")
				l.says["b1"] = says
				l.Pods = func(int) map[string][]string { return map[string][]string{"b": {"b1", "b2", "b3"}} }
				return l
			}, func(l *cluster) {
				now := l.Now()
				l.set(func() {
					if n := l.dialled["b1"] + l.dialled["b2"] + l.dialled["b3"]; n < 8 || n > 16 || len(now) > 0 || says != nil && l.dialled["b1"] > 1 {
						t.Errorf("%d connections in 10 s: %v, %+v", n, l.dialled, now)
					}
				})
				// All those that answered have gone since.
				l.set(func() { l.says["b2"], l.says["b3"], l.says["b1"] = errSilent, errSilent, nil })
				time.Sleep(10 * time.Second)
				if got := l.states(); len(got) > 0 {
					t.Errorf("told of %v", got)
				}
			})
		})
	}
}
