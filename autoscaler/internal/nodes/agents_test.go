package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/alive"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

var (
	podB = netip.MustParseAddr("10.0.0.2")
	far  = netip.MustParseAddr("10.0.0.9") // an activator on node a
)

// word is what the agent of a node answers about podB, and about far.
type word struct {
	b, far byte // 'y' answers, 'n' does not, else nothing is said
}

func (s word) of(pods []netip.Addr) (a wire.ReachAnswer) {
	for _, pod := range pods {
		said := s.far
		if pod == podB {
			said = s.b
		}
		switch said {
		case 'y':
			a.Life = append(a.Life, pod)
		case 'n':
			a.Silent = append(a.Silent, pod)
		}
	}
	return a
}

// Node b is named by its pod's address, and does not answer this autoscaler on node a.
func TestANodeAgentIsAWitness(t *testing.T) {
	for name, c := range map[string]struct {
		agents map[string]word
		others byte // what an activator on node d says of b
		want   []string
	}{
		"nobody has one":                                   {},
		"one does not reach it either":                     {agents: map[string]word{"c": {'n', 'y'}}, want: []string{"10.0.0.2 silent", "10.0.0.2 lost"}},
		"one reaches nobody else":                          {agents: map[string]word{"c": {'n', 'n'}}},
		"one reaches it":                                   {agents: map[string]word{"c": {'y', 'y'}}},
		"one was never answered by it":                     {agents: map[string]word{"c": {'-', 'y'}}},
		"one does not reach it, another one does":          {agents: map[string]word{"c": {'n', 'y'}, "d": {'y', 'y'}}},
		"one does not reach it, an activator does":         {agents: map[string]word{"c": {'n', 'y'}}, others: 'y'},
		"an activator does not reach it":                   {others: 'n', want: []string{"10.0.0.2 silent", "10.0.0.2 lost"}},
		"an activator does not, and its own agent answers": {agents: map[string]word{podB.String(): {'n', 'y'}}, others: 'n'},
		"an activator does not, and its own agent reaches nobody elsewhere": {agents: map[string]word{podB.String(): {'y', 'n'}}, others: 'n',
			want: []string{"10.0.0.2 silent", "10.0.0.2 lost"}},
	} {
		t.Run(name, func(t *testing.T) {
			live(t, func() *cluster {
				l := newCluster(t, "a", podB.String(), "c", "d")
				l.Activators = func() map[string]string { return map[string]string{"a": far.String()} }
				l.Agents = func(ctx context.Context, on []string, pods []netip.Addr, got func(wire.ReachAnswer)) {
					if on == nil {
						on = slices.Collect(maps.Keys(c.agents))
					}
					if len(pods) > wire.MaxReach {
						t.Errorf("asks about %d", len(pods))
					}
					for _, node := range on {
						said, has := c.agents[node]
						if answer := said.of(pods); has && (len(answer.Silent) == 0 || takes(ctx, alive.AskTime)) {
							answer.Node = node
							got(answer)
						}
					}
				}
				l.Others = func(ctx context.Context, pods []netip.Addr, got func(wire.ReachAnswer)) {
					if answer := (word{b: c.others}).of(pods); c.others != 0 && takes(ctx, alive.AskTime) {
						answer.Node = "d"
						got(answer)
					}
				}
				return l
			}, func(l *cluster) {
				l.set(func() { l.says[podB.String()] = errSilent })
				time.Sleep(30 * time.Second)
				if got := l.states(); !slices.Equal(got, c.want) {
					t.Errorf("told of %v: %+v", got, l.Now())
				}
			})
		})
	}
}

// staysLost has a node die, and its agent come back: that speaks for the node, and not long enough.
func staysLost(t *testing.T, l *cluster, back *atomic.Bool) {
	l.set(func() { l.says[podB.String()] = errSilent })
	time.Sleep(10 * time.Second)
	back.Store(true)
	time.Sleep(vouchAfter - time.Second)
	if got := l.states(); !slices.Equal(got, []string{"10.0.0.2 silent", "10.0.0.2 lost"}) {
		t.Errorf("told of %v", got)
	}
}

// A node that was lost has an agent again before it has pods. If it never gets any that answer, the
// agent speaks for it in the end.
func TestTheAgentOfALostNodeSpeaksForItLater(t *testing.T) {
	var back atomic.Bool
	live(t, func() *cluster {
		l := newCluster(t, "a", podB.String(), "c", "d")
		l.Activators = func() map[string]string { return map[string]string{"a": far.String()} }
		l.Agents = func(ctx context.Context, on []string, pods []netip.Addr, got func(wire.ReachAnswer)) {
			if on == nil {
				if answer := (word{'n', 'y'}).of(pods); takes(ctx, alive.AskTime) {
					answer.Node = "c"
					got(answer)
				}
			} else if slices.Contains(on, podB.String()) && back.Load() {
				answer := (word{'n', 'y'}).of(pods)
				answer.Node = podB.String()
				got(answer)
			}
		}
		return l
	}, func(l *cluster) {
		staysLost(t, l, &back)
		time.Sleep(5 * time.Second)
		if got := l.states(); len(got) < 3 || got[2] != "10.0.0.2 well" {
			t.Errorf("later told of %v", got)
		}
		time.Sleep(time.Minute)
		if got := l.states(); len(got) > 3 {
			t.Errorf("at last told of %v", got)
		}
	})
}

// Also if it is a witness, and says of the pods of its own node that they do not answer.
func TestTheAgentOfALostNodeIsNoWitnessForIt(t *testing.T) {
	var back atomic.Bool
	live(t, func() *cluster {
		l := newCluster(t, "a", podB.String(), "c", "d")
		l.Activators = func() map[string]string { return map[string]string{"a": far.String()} }
		l.Agents = func(ctx context.Context, on []string, pods []netip.Addr, got func(wire.ReachAnswer)) {
			if on != nil {
				return
			}
			answer := (word{'n', 'y'}).of(pods)
			if len(answer.Silent) > 0 && !takes(ctx, alive.AskTime) {
				return
			}
			answer.Node = "c"
			got(answer)
			if back.Load() {
				answer = (word{'n', 'y'}).of(pods)
				answer.Node = podB.String()
				got(answer)
			}
		}
		return l
	}, func(l *cluster) {
		staysLost(t, l, &back)
	})
}

// While all is well, agents are asked about some pods of each node, so that they know them.
func TestAgentsLearnWhichPodsAnswer(t *testing.T) {
	for n, often := range map[int]int{3: 6, 200: 30} {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("10.1.%d.1", i))
		}
		asked, questions := map[netip.Addr]int{}, 0
		live(t, func() *cluster {
			l := newCluster(t, append(names, "a")...)
			l.Agents = func(_ context.Context, on []string, pods []netip.Addr, _ func(wire.ReachAnswer)) {
				if on != nil || len(pods) > wire.MaxReach {
					t.Errorf("asks on %v about %d", on, len(pods))
				}
				l.set(func() {
					questions++
					for _, pod := range pods {
						asked[pod]++
					}
				})
			}
			return l
		}, func(l *cluster) {
			time.Sleep(time.Minute)
			l.set(func() {
				if len(asked) != n || questions < often || questions > 3*often {
					t.Errorf("%d of %d pods in %d questions", len(asked), n, questions)
				}
			})
		})
	}
}

// A node that has an agent alone answers at that agent's port, and is nobody to ask others about.
func TestANodeWithAnAgentAlone(t *testing.T) {
	live(t, func() *cluster {
		c := newCluster(t, "a", "10.0.0.2", "10.0.0.3", "10.0.0.4")
		c.Agent = func(ip string) bool { return ip == "10.0.0.3" }
		c.Others = func(_ context.Context, pods []netip.Addr, _ func(wire.ReachAnswer)) {
			t.Errorf("asks others about %v", pods)
		}
		return c
	}, func(c *cluster) {
		c.set(func() { c.says["10.0.0.3"], c.renews = errSilent, false })
		time.Sleep(20 * time.Second)
		got := c.states()
		c.set(func() {
			if c.dialled["10.0.0.3"] == 0 || !slices.Contains(got, "10.0.0.3 lost") {
				t.Errorf("dialled %v, told of %v", c.dialled, got)
			}
		})
	})
}

func TestWitnessesStayTheSame(t *testing.T) {
	found := map[string]netip.Addr{}
	for i := range 3 * maxAgents {
		found[fmt.Sprint(i)] = netip.AddrFrom4([4]byte{192, 168, 0, byte(i)})
	}
	a := &Agents{Self: "0"}
	a.choose(found)
	first := a.Nodes()
	if len(first) != maxAgents || first["0"] != "" {
		t.Fatalf("%v", first)
	}
	for node, ip := range first {
		if found[node].String() != ip || !a.Has(ip) {
			t.Errorf("%s: %s", node, ip)
		}
	}
	if a.choose(found); !maps.Equal(a.Nodes(), first) {
		t.Errorf("later: %v", a.Nodes())
	}
	gone := slices.Collect(maps.Keys(first))[0]
	delete(found, gone)
	a.choose(found)
	if got := a.Nodes(); len(got) != maxAgents || got[gone] != "" || a.Has(first[gone]) || a.Has("x") {
		t.Errorf("without %s: %v", gone, got)
	}
	if a.choose(nil); len(a.Nodes()) != 0 {
		t.Errorf("without any: %v", a.Nodes())
	}
}

// Agents share a token, so one that is somebody else's could speak for all nodes.
func TestAnAgentSpeaksForItsOwnNode(t *testing.T) {
	for says, counts := range map[string]bool{"c": true, "d": false, "": false} {
		answer, _ := json.Marshal(wire.ReachAnswer{Node: says})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			signature, err := wire.ReadSignature(r)
			if err != nil || !signature.ByToken(keys().Token("", wire.NodeAgentSubject)) {
				t.Errorf("%s: %v", r.URL, err)
				return
			}
			w.Header().Set(wire.HeaderReachProof, signature.Answer(answer))
			w.Write(answer)
		}))
		at := netip.MustParseAddrPort(server.Listener.Addr().String())
		var away atomic.Bool
		a := &Agents{Self: "a", Port: int(at.Port()), Keys: keys, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Find: func(context.Context) (map[string]netip.Addr, error) {
				if away.Load() {
					return nil, errors.New("no API server")
				}
				return map[string]netip.Addr{"a": at.Addr(), "c": at.Addr()}, nil
			}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { a.Run(ctx); close(done) }()
		eventually.True(t, "agents are found", func() bool { return len(a.Nodes()) == 1 })
		away.Store(true)
		for _, on := range [][]string{nil, {"c"}, {"a", "x"}} {
			n := 0
			a.Ask(t.Context(), on, nil, func(wire.ReachAnswer) { n++ })
			if want := counts && !slices.Contains(on, "x"); n == 1 != want {
				t.Errorf("it says %q: %d answers on %v", says, n, on)
			}
		}
		cancel()
		<-done
		server.Close()
	}
}

// Node u has an agent alone, at its own address. Activators on a and d are all that asks besides
// this autoscaler on a, and b does not answer these.
func TestWhereANodeWithAnAgentAloneCounts(t *testing.T) {
	const u, d = "10.0.0.3", "10.0.0.4"
	old := func(node string) bool { return node == podB.String() }
	for name, c := range map[string]struct {
		closed bool // the port of the agent on u, since long
		far    byte // what the agent on u says of the activator on a
		dark   func(node string) bool
		within time.Duration
		want   bool
	}{
		"its agent reaches others":                      {far: 'y', within: 6 * time.Second, want: true},
		"it may be on the other side of a split":        {far: 'n', within: time.Minute},
		"its agent says nothing":                        {within: time.Minute},
		"its agent says nothing, and the Lease is old":  {dark: old, within: 20 * time.Second, want: true},
		"its port is closed":                            {closed: true, within: time.Minute},
		"its port is closed, and the Lease is old":      {closed: true, dark: old, within: 20 * time.Second, want: true},
		"its port is closed, and both Leases are old":   {closed: true, dark: func(string) bool { return true }, within: time.Minute},
		"it is on the other side, and its Lease is old": {far: 'n', dark: func(node string) bool { return node == u }, within: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			live(t, func() *cluster {
				l := newCluster(t, "a", podB.String(), u, d)
				l.Agent = func(ip string) bool { return ip == u }
				l.Activators = func() map[string]string { return map[string]string{"a": far.String()} }
				l.Agents = func(_ context.Context, on []string, pods []netip.Addr, got func(wire.ReachAnswer)) {
					if answer := (word{far: c.far}).of(pods); c.far != 0 && on == nil {
						answer.Node = u
						got(answer)
					}
				}
				l.Others = func(ctx context.Context, pods []netip.Addr, got func(wire.ReachAnswer)) {
					if takes(ctx, alive.AskTime) {
						got(wire.ReachAnswer{Node: d, Silent: pods})
					}
				}
				lease := l.Lease
				l.Lease = func(ctx context.Context, node string) (string, error) {
					var dark bool
					if l.set(func() { dark = l.says[podB.String()] != nil && c.dark != nil && c.dark(node) }); dark {
						return "long ago", nil
					}
					return lease(ctx, node)
				}
				return l
			}, func(l *cluster) {
				if c.closed {
					l.set(func() { l.says[u] = errSilent })
					time.Sleep(time.Minute)
				}
				l.set(func() { l.says[podB.String()] = errSilent })
				time.Sleep(c.within)
				if lost := slices.Contains(l.states(), podB.String()+" lost"); lost != c.want || !c.want && len(l.states()) > 0 {
					t.Errorf("told of %v: %+v", l.states(), l.Now())
				}
			})
		})
	}
}

// Two of four nodes are cut off from all others, so that no Lease of theirs is renewed. One packet
// of the agent's gets through. That its Lease is read anew after that is no renewal, which would
// set it apart from the other one.
func TestALeaseThatIsReadAnewIsNotRenewed(t *testing.T) {
	for at := 5 * time.Second; at < 9*time.Second; at += 500 * time.Millisecond {
		t.Run(at.String(), func(t *testing.T) {
			live(t, func() *cluster {
				c := newCluster(t, "a", "b", "c", "u")
				c.Agent = func(ip string) bool { return ip == "u" }
				return c
			}, func(c *cluster) {
				c.set(func() { c.says["b"], c.says["u"], c.renews = errSilent, errSilent, false })
				time.Sleep(at)
				c.set(func() { delete(c.says, "u") })
				time.Sleep(period)
				c.set(func() { c.says["u"] = errSilent })
				time.Sleep(time.Minute)
				if got := c.states(); len(got) > 0 {
					t.Errorf("told of %v because %s", got, c.told[0].Reason)
				}
			})
		})
	}
}
