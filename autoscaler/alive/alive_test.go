package alive

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// scene is an autoscaler on node a that asks others, and has activators ask them, every half
// second.
type scene struct {
	watch Watch
	now   time.Duration
	nodes []string
	// activators are the nodes that have one.
	activators []string
	// reaches says whether a question from one node to another is answered now, renews whether a
	// node renews its Lease, api whether the API server answers.
	reaches func(from, to string) bool
	renews  func(node string) bool
	api     bool
	// told are the verdicts that changed.
	told []Verdict
}

func newScene(nodes, activators string) *scene {
	s := &scene{watch: Watch{Self: "a"}, nodes: strings.Fields(nodes), activators: strings.Fields(activators), api: true,
		reaches: func(string, string) bool { return true }, renews: func(string) bool { return true }}
	s.pass(time.Minute)
	return s
}

// without power, a node answers nobody and asks nobody.
func (s *scene) dies(dead ...string) {
	s.reaches = func(from, to string) bool { return !slices.Contains(dead, from) && !slices.Contains(dead, to) }
	s.renews = func(node string) bool { return !slices.Contains(dead, node) }
}

func (s *scene) pass(d time.Duration) {
	for end := s.now + d; s.now < end; {
		s.now += AskTime / 2
		s.watch.Keep(s.nodes, s.now)
		for _, to := range s.nodes {
			s.ask("a", to)
			for _, by := range s.activators {
				if by == "a" || s.reaches("a", by) {
					s.ask(by, to)
				}
			}
			if node, _ := s.watch.Node(to); s.api && node.State != Well && s.now%time.Second == 0 {
				s.watch.Lease(to, s.now, s.renews(to) && s.now%(10*time.Second) == 0)
			}
		}
		for _, v := range s.watch.Step(s.now) {
			if v.State != v.Was {
				s.told = append(s.told, v)
			}
		}
	}
}

func (s *scene) ask(by, to string) {
	if by == to || s.reaches(by, to) {
		s.watch.Spoke(to, s.now)
	} else {
		s.watch.Unanswered(to, by, s.now-AskTime, s.now)
	}
}

// first is when a node was first said to be in a state, since a time; -1 is never.
func (s *scene) first(node string, state State, since time.Duration) time.Duration {
	for _, v := range s.told {
		if v.Node == node && v.State == state && v.Since >= since {
			return v.Since - since
		}
	}
	return -1
}

func (s *scene) count(state State) (n int) {
	for _, v := range s.told {
		if v.State == state {
			n++
		}
	}
	return n
}

func TestADeadNodeCostsSeconds(t *testing.T) {
	s := newScene("a b c", "a c")
	from := s.now
	s.dies("b")
	s.pass(10 * time.Second)
	if at := s.first("b", Silent, from); at < SilentAfter || at > 3*time.Second {
		t.Errorf("silent after %s", at)
	}
	if at := s.first("b", Lost, from); at < LostAfter || at > 5*time.Second {
		t.Errorf("lost after %s", at)
	}
	last := s.told[len(s.told)-1].Reason
	if want := "node b: nothing there has answered for 3.0 s; asked by this autoscaler and from node c; 2 nodes answer"; last != want {
		t.Errorf("got  %s\nwant %s", last, want)
	}
	from = s.now
	s.dies()
	s.pass(10 * time.Second)
	if at := s.first("b", Well, from); at < BackAfter || at > 3*time.Second {
		t.Errorf("back after %s", at)
	}
}

// Where nobody can ask but the autoscaler, the Lease is the second witness.
func TestWithoutAnActivatorElsewhereTheLeaseSpeaks(t *testing.T) {
	s := newScene("a b c", "a")
	from := s.now
	s.dies("b")
	s.pass(30 * time.Second)
	if at := s.first("b", Lost, from); at < LeaseAfter || at > LeaseAfter+4*time.Second {
		t.Errorf("lost after %s", at)
	}
	if got := s.told[len(s.told)-1].Reason; !strings.Contains(got, "asked by this autoscaler alone, and its Lease is 12.") {
		t.Error(got)
	}
}

func TestNoFalseAlarm(t *testing.T) {
	every := func(n int) func() bool {
		calls := 0
		return func() bool { calls++; return calls%n == 0 }
	}
	for name, c := range map[string]struct {
		nodes, activators string
		fault             func(s *scene)
	}{
		"a busy node answers one question of three": {"a b c", "a c", func(s *scene) {
			answers := every(3)
			s.reaches = func(from, to string) bool { return to != "b" || answers() }
		}},
		"the control plane is cut off from a node that serves": {"a b c", "a c", func(s *scene) {
			s.renews = func(node string) bool { return node != "b" }
		}},
		"the API server is away": {"a b c", "a c", func(s *scene) { s.api = false }},
		"the API server is away, and the way to a node is cut": {"a b c", "a", func(s *scene) {
			s.api = false
			s.reaches = func(from, to string) bool { return to != "b" }
		}},
		"one of three activators is cut off from the pods": {"a b c d", "a b c", func(s *scene) {
			s.reaches = func(from, to string) bool { return from != "c" }
		}},
		"this autoscaler is cut off from one node": {"a b c", "a c", func(s *scene) {
			s.reaches = func(from, to string) bool { return from != "a" || to != "b" }
		}},
		"this autoscaler is cut off from all": {"a b c d e", "a b c", func(s *scene) {
			s.reaches = func(from, to string) bool { return from != "a" && to != "a" }
		}},
		"half of the nodes are silent":           {"a b c d", "a d", func(s *scene) { s.dies("b", "c") }},
		"one of two nodes is silent":             {"a b", "a", func(s *scene) { s.dies("b") }},
		"all other nodes are silent":             {"a b c d e f", "a", func(s *scene) { s.dies("b", "c", "d", "e", "f") }},
		"the node renews its Lease, one asks":    {"a b c", "a", func(s *scene) { s.reaches = func(from, to string) bool { return to != "b" } }},
		"nobody knows where this autoscaler is":  {"a b c", "a c", func(s *scene) { s.watch.Self = ""; s.dies("b") }},
		"the node was deleted, and is no longer": {"a b c", "a c", func(s *scene) { s.nodes = []string{"a", "c"}; s.dies("b") }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(c.nodes, c.activators)
			c.fault(s)
			s.pass(2 * time.Minute)
			if s.count(Silent)+s.count(Lost) > 0 {
				t.Errorf("%+v", s.told)
			}
		})
	}
}

// A node that dies and comes back every 20 s has its pods replaced three times, not each time.
func TestANodeThatFlapsIsReplacedThreeTimes(t *testing.T) {
	s := newScene("a b c", "a c")
	for range 30 {
		s.dies("b")
		s.pass(20 * time.Second)
		s.dies()
		s.pass(20 * time.Second)
	}
	if n := s.count(Lost); n != 3 {
		t.Errorf("lost %d times", n)
	}
	if n := s.count(Well); n < 3 {
		t.Errorf("back %d times", n)
	}
	s.pass(Forgets + time.Minute)
	from := s.now
	s.dies("b")
	s.pass(10 * time.Second)
	if at := s.first("b", Lost, from); at < 0 || at > 5*time.Second {
		t.Errorf("after ten minutes of peace, it is lost after %s", at)
	}
}

// A packet that is lost now and then does not keep what a node did an hour ago alive.
func TestADoubtIsNoEnd(t *testing.T) {
	s := newScene("a b c", "a c")
	for range MaxEnds {
		s.dies("b")
		s.pass(time.Minute)
		s.dies()
		s.pass(30 * time.Second)
	}
	if b, _ := s.watch.Node("b"); b.Ends != MaxEnds {
		t.Fatalf("%d ends", b.Ends)
	}
	for range 2 * int(Forgets/time.Minute) {
		s.watch.Unanswered("b", "c", s.now+time.Millisecond, s.now+time.Millisecond)
		s.watch.Step(s.now + 2*time.Millisecond)
		if b, _ := s.watch.Node("b"); b.State != Doubted {
			t.Fatalf("b is %s", b.State)
		}
		s.pass(30 * time.Second)
	}
	if b, _ := s.watch.Node("b"); b.Ends != 0 {
		t.Errorf("still %d ends", b.Ends)
	}
}

// The pods of a dead node are deleted, and Kubernetes places others there, for a while.
func TestADeadNodeIsWatchedWithoutPods(t *testing.T) {
	s := newScene("a b c", "a c")
	s.dies("b")
	s.pass(10 * time.Second)
	s.nodes = []string{"a", "c"}
	s.pass(30 * time.Second)
	if b, _ := s.watch.Node("b"); b.State != Lost {
		t.Errorf("b is %s", b.State)
	}
	s.pass(10 * time.Second)
	if _, known := s.watch.Node("b"); known {
		t.Error("it is watched for ever")
	}
	// One that has answered is forgotten at once.
	s.nodes = []string{"a", "b", "c"}
	s.dies()
	s.pass(10 * time.Second)
	s.dies("b")
	s.pass(10 * time.Second)
	s.dies()
	s.pass(AskTime / 2)
	s.nodes = []string{"a", "c"}
	s.pass(AskTime / 2)
	if _, known := s.watch.Node("b"); known {
		t.Error("a node that answers is watched without pods")
	}
}

// While a node is silent, others die, and then this autoscaler is alone: what was decided stays.
func TestWhatWasDecidedStays(t *testing.T) {
	s := newScene("a b c", "a c")
	s.dies("b")
	s.pass(10 * time.Second)
	s.dies("b", "c")
	s.pass(time.Minute)
	if b, _ := s.watch.Node("b"); b.State != Lost {
		t.Errorf("b is %s", b.State)
	}
	if c, _ := s.watch.Node("c"); c.State != Doubted {
		t.Errorf("c is %s", c.State)
	}
}

func TestAQuestionFromBeforeTheLastSignOfLifeCountsForNothing(t *testing.T) {
	n := Watched(0)
	n.Spoke(10 * time.Second)
	n.Unanswered(10*time.Second, "")
	n.Unanswered(9*time.Second, "c")
	if got := n.silence(12 * time.Second); got != 0 {
		t.Errorf("silent for %s", got)
	}
	n.Unanswered(11*time.Second, "")
	n.Unanswered(10500*time.Millisecond, "c")
	if got := n.silence(12 * time.Second); got != 1500*time.Millisecond {
		t.Errorf("silent for %s", got)
	}
}

// What an activator says of its own node came from there.
func TestAMessageFromTheNodeIsASignOfLife(t *testing.T) {
	w := Watch{Self: "a"}
	w.Keep([]string{"a", "b"}, 0)
	w.Unanswered("b", "a", time.Second, 2*time.Second)
	w.Unanswered("b", "b", time.Second, 2*time.Second)
	w.Unanswered("b", "", 2500*time.Millisecond, 3*time.Second)
	if b, _ := w.Node("b"); b.silence(4*time.Second) != 0 {
		t.Errorf("%+v", b)
	}
}

func TestReasons(t *testing.T) {
	s := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	silent := func(own, other float64) Node {
		n := Watched(0)
		n.Spoke(s(90))
		for at := 91.; at <= own; at++ {
			n.Unanswered(s(at), "")
		}
		for at := 91.; at <= other; at++ {
			n.Unanswered(s(at), "c")
		}
		return n
	}
	both, alone, long := silent(94, 94), silent(94, 0), silent(103, 0)
	fresh, stale := alone, alone
	for at := 82.; at <= 95; at++ {
		fresh.Lease(s(at), at == 91)
		stale.Lease(s(at), false)
	}
	for at := 91.; at <= 104; at++ {
		long.Lease(s(at), false)
	}
	lost := both
	lost.State = Lost
	back := lost
	back.Spoke(s(95))
	twice := back
	twice.Spoke(s(96))
	for _, c := range []struct {
		node   Node
		around Around
		at     float64
		state  State
		want   string
	}{
		{silent(0, 0), Around{}, 95, Well, "it answers"},
		{silent(91, 0), Around{}, 92, Doubted, "a question was not answered"},
		{silent(92, 92), Around{Heard: 2}, 93, Silent, "nothing there has answered for 2.0 s; asked by this autoscaler and from node c; 2 nodes answer; its pods are replaced after 3.0 s"},
		{both, Around{Heard: 3, Unheard: 1}, 95, Lost, "nothing there has answered for 4.0 s; asked by this autoscaler and from node c; 3 nodes answer"},
		{both, Around{Heard: 2, Unheard: 1}, 95, Doubted, "nothing there has answered for 4.0 s; asked by this autoscaler and from node c, but 2 of 4 nodes are silent, so it may be the one who asks that is cut off"},
		{alone, Around{Heard: 2}, 95, Doubted, "nothing there has answered for 4.0 s; asked by this autoscaler alone, and its Lease is not known"},
		{fresh, Around{Heard: 2}, 95, Doubted, "nothing there has answered for 4.0 s; asked by this autoscaler alone, and its Lease may be no older than 4.0 s"},
		{stale, Around{Heard: 2}, 95, Doubted, "nothing there has answered for 4.0 s; asked by this autoscaler alone, and its Lease, which is 13.0 s old, counts after as long a silence"},
		{long, Around{Heard: 2}, 104, Lost, "nothing there has answered for 13.0 s; asked by this autoscaler alone, and its Lease is 13.0 s old; 2 nodes answer"},
		{long, Around{Heard: 1, Open: 1}, 104, Lost, "nothing there has answered for 13.0 s; asked by this autoscaler alone, and its Lease is 13.0 s old; 2 nodes answer"},
		{long, Around{Heard: 1, Shut: 1}, 104, Doubted, "nothing there has answered for 13.0 s; asked by this autoscaler, but 1 of 2 nodes are silent, so it may be the one who asks that is cut off"},
		{both, Around{Heard: 2, Open: 1}, 95, Doubted, "nothing there has answered for 4.0 s; asked by this autoscaler and from node c, but 2 of 4 nodes are or may be silent, so it may be the one who asks that is cut off"},
		{both, Around{Heard: 3, Shut: 1}, 95, Lost, "nothing there has answered for 4.0 s; asked by this autoscaler and from node c; 3 nodes answer"},
		{silent(0, 94), Around{Heard: 2}, 95, Doubted, "nothing there has answered for 4.0 s; this autoscaler has not asked in vain twice in the last 3 s, at a pod that had answered it before"},
		{both, Around{Heard: 2}, 99, Doubted, "nothing there has answered for 8.0 s; this autoscaler has not asked in vain twice in the last 3 s, at a pod that had answered it before"},
		{lost, Around{Heard: 2}, 95, Lost, "nothing there has answered for 4.0 s; asked by this autoscaler and from node c; 2 nodes answer"},
		{lost, Around{Heard: 2}, 200, Lost, "nothing there has answered for 109.0 s; it counts as lost until it answers"},
		{back, Around{Heard: 2}, 95.5, Lost, "it answers again, and gets requests after 1.0 s of that"},
		{back, Around{Heard: 2}, 97, Lost, "it answers again, and gets requests after 1.0 s of that"},
		{twice, Around{Heard: 2}, 96, Well, "it answers again"},
	} {
		if got := c.node.Decide(c.around, s(c.at)); got != c.want || c.node.State != c.state {
			t.Errorf("%s: %s\nwant %s: %s", c.node.State, got, c.state, c.want)
		}
	}
}

func TestExtraPodsAtMostDouble(t *testing.T) {
	for _, c := range []struct{ wanted, lost, want int32 }{{3, 1, 1}, {3, 3, 3}, {2, 5, 2}, {0, 4, 0}, {4, 0, 0}, {-1, 2, 0}} {
		if got := Extra(c.wanted, c.lost); got != c.want {
			t.Errorf("wanted %d, lost %d: %d more, want %d", c.wanted, c.lost, got, c.want)
		}
	}
}

// After a pause of this process nobody knows whether the questions before it were answered.
func TestAPauseOfThisProcessIsNobodysSilence(t *testing.T) {
	w := Watch{Self: "a"}
	w.Keep([]string{"a", "b", "c", "d"}, 0)
	for _, by := range []string{"a", "d"} {
		w.Unanswered("b", by, time.Second, 2*time.Second)
		w.Unanswered("b", by, 2*time.Second, 3*time.Second)
	}
	w.Spoke("d", 2500*time.Millisecond)
	w.Step(3 * time.Second)
	w.Unanswered("c", "a", 2600*time.Millisecond, 3600*time.Millisecond)
	w.Forget()
	if b, _ := w.Node("b"); b.State != Silent || b.silence(4*time.Second) != 3*time.Second {
		t.Errorf("b: %+v", b)
	}
	if c, _ := w.Node("c"); c.silence(4*time.Second) != 0 {
		t.Errorf("c: %+v", c)
	}
}

func TestWhoIsAsked(t *testing.T) {
	w := Watch{Self: "a"}
	w.Keep([]string{"a", "b", "c", "d"}, 0)
	w.Spoke("b", 1500*time.Millisecond)
	w.Spoke("c", 1500*time.Millisecond)
	w.Unanswered("c", "d", 1600*time.Millisecond, 1700*time.Millisecond)
	if got := w.Ask(2 * time.Second); !slices.Equal(got, []string{"c", "d"}) {
		t.Errorf("asked: %v", got)
	}
}

func TestOnlySoManyNodesAreWatched(t *testing.T) {
	var w Watch
	names := make([]string, 0, MaxNodes+1)
	for i := range MaxNodes + 1 {
		names = append(names, fmt.Sprint("n", i))
	}
	w.Keep(append(names, ""), 0)
	if len(w.nodes) != MaxNodes {
		t.Errorf("%d nodes", len(w.nodes))
	}
}

// A third of a large cluster dies at once.
func BenchmarkStep(b *testing.B) {
	w := Watch{Self: "n0"}
	var names []string
	for i := range 3000 {
		names = append(names, fmt.Sprint("n", i))
	}
	w.Keep(names, 0)
	for i, name := range names {
		if i%3 == 1 {
			w.Unanswered(name, "n0", time.Second, 2*time.Second)
			w.Unanswered(name, "n3", time.Second, 2*time.Second)
		} else {
			w.Spoke(name, 2*time.Second)
		}
	}
	for b.Loop() {
		w.Step(3 * time.Second)
	}
}
