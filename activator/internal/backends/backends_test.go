package backends

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/wire"
)

func address(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8012)
}

// The table above merge, row by row.
func TestMerge(t *testing.T) {
	now := time.Unix(1000, 0)
	ready := Endpoint{Address: address(1), Pod: "p", Ready: true}
	notReady := Endpoint{Address: address(1), Pod: "p"}
	terminating := Endpoint{Address: address(1), Pod: "p", Terminating: true}
	serving := Endpoint{Address: address(1), Pod: "p", Terminating: true, Serving: true}
	other := Endpoint{Address: address(2), Pod: "other", Ready: true}
	said := func(ready bool, age time.Duration, listed bool) *announcement {
		return &announcement{pod: "p", ready: ready, at: now.Add(-age), first: now.Add(-age), listed: listed}
	}
	asleep := said(true, time.Hour, true)
	asleep.asleep = true
	for _, c := range []struct {
		name  string
		slice []Endpoint
		said  *announcement
		want  string
	}{
		{"ready, silent", []Endpoint{ready}, nil, "p"},
		{"ready, announced", []Endpoint{ready}, said(true, 0, false), "p"},
		{"ready, withdrawn", []Endpoint{ready, other}, said(false, 0, true), "other"},
		{"ready, withdrawn, and nobody else", []Endpoint{ready}, said(false, 0, true), "p"},
		{"ready, withdrawn long ago, and nobody else", []Endpoint{ready}, said(false, leavingFor, true), ""},
		{"terminating, withdrawn, and nobody else", []Endpoint{terminating}, said(false, 0, true), "p"},
		{"terminating, withdrawn long ago, and nobody else", []Endpoint{serving}, said(false, leavingFor, true), ""},
		{"terminating, silent, still serving", []Endpoint{serving, other}, nil, "other"},
		{"terminating, silent, still serving, and nobody else", []Endpoint{serving}, nil, "p"},
		{"not ready, silent", []Endpoint{notReady}, nil, ""},
		{"not ready yet, announced", []Endpoint{notReady}, said(true, 0, true), "p"},
		{"not ready yet, announced long ago", []Endpoint{notReady}, said(true, time.Hour, true), "p"},
		{"not ready, asleep", []Endpoint{notReady, other}, asleep, "p asleep,other"},
		{"still ready, asleep", []Endpoint{ready}, asleep, "p asleep"},
		{"terminating, asleep", []Endpoint{terminating}, asleep, ""},
		{"listed no more, asleep", nil, asleep, ""},
		{"another pod is at the address of one that slept", []Endpoint{{Address: address(1), Pod: "new", Ready: true}}, asleep, "new"},
		{"terminating, announced", []Endpoint{terminating}, said(true, 0, false), ""},
		{"not listed yet, announced", nil, said(true, time.Second, false), "p"},
		{"never listed, announced long ago", nil, said(true, announcedFor, false), ""},
		{"listed no more, announced", nil, said(true, 0, true), ""},
		{"not listed, withdrawn", nil, said(false, 0, false), ""},
		{"another pod announced itself at the address just now", []Endpoint{{Address: address(1), Pod: "old", Ready: true}}, said(true, 0, false), "p"},
		{"another pod withdrew at the address", []Endpoint{{Address: address(1), Pod: "new", Ready: true}}, said(false, 0, true), "new"},
	} {
		t.Run(c.name, func(t *testing.T) {
			announcements := map[netip.AddrPort]announcement{}
			if c.said != nil {
				announcements[address(1)] = *c.said
			}
			sources := map[string][]Endpoint{}
			if c.slice != nil {
				sources["s"] = c.slice
			}
			var got []string
			for _, b := range merge(sources, announcements, true, lastResort(5*time.Minute), now) {
				if b.Asleep {
					b.Pod += " asleep"
				}
				got = append(got, b.Pod)
			}
			if strings.Join(got, ",") != c.want {
				t.Errorf("got %v, want %q", got, c.want)
			}
			again := maps.Clone(announcements)
			merge(sources, again, true, lastResort(5*time.Minute), now)
			if !maps.Equal(announcements, again) {
				t.Errorf("a second look changes what is remembered: %v, %v", announcements, again)
			}
		})
	}
}

func newTable() *Table {
	budget := hold.NewBudget(hold.Bounds{})
	return NewTable(func(k Key, info *Info) *hold.Queue {
		return hold.New(info.ContainerConcurrency, budget.Share("ns"), hold.Options{})
	})
}

func pods(r *Revision) string {
	var names []string
	for _, b := range r.Snapshot().Pods {
		names = append(names, b.Pod)
	}
	return strings.Join(names, ",")
}

var key = Key{"ns", "rev"}

func announced(i int, ready bool, sequence uint64) wire.Announcement {
	return wire.Announcement{Namespace: "ns", Revision: "rev", Pod: fmt.Sprintf("p%d", i), Address: address(i), Ready: ready, Sequence: sequence}
}

func TestALifeOfAPodInItsOwnAndKubernetesWords(t *testing.T) {
	table := newTable()
	table.SetRevision(key, &Info{UID: "u", Early: true})
	r := table.Get(key)
	step := func(what, want string) {
		t.Helper()
		if got := pods(r); got != want {
			t.Errorf("%s: pods are %q, want %q", what, got, want)
		}
	}
	step("nothing there", "")
	changed := r.Snapshot().Changed
	table.Announce(announced(1, true, 1))
	step("announced", "p1")
	select {
	case <-changed:
	default:
		t.Error("the first snapshot does not say that a newer one exists")
	}
	slice := func(ready, terminating bool) {
		table.SetSlice(key, "s", []Endpoint{{Address: address(1), Pod: "p1", Ready: ready, Terminating: terminating}})
	}
	slice(false, false)
	step("listed as not ready yet", "p1")
	slice(true, false)
	step("ready", "p1")
	slice(false, false)
	step("its readiness probe fails", "")
	slice(true, false)
	step("ready again", "p1")
	table.Announce(announced(1, false, 2))
	step("withdrawn before the slices know", "")
	if table.Announce(announced(1, true, 1)) {
		t.Error("an announcement that was overtaken was taken")
	}
	step("an old announcement arrives late", "")
	slice(true, true)
	step("terminating", "")
	table.SetSlice(key, "s", nil)
	step("gone", "")
	if e := table.entries[key]; e != nil {
		t.Errorf("%+v is still remembered", e)
	}
}

func TestAPodOfARevisionWithKubeletsProbesWaitsForKubernetes(t *testing.T) {
	table := newTable()
	table.SetRevision(key, &Info{UID: "u"})
	r := table.Get(key)
	table.Announce(announced(1, true, 1))
	table.SetSlice(key, "s", []Endpoint{{Address: address(1), Pod: "p1"}})
	if got := r.Snapshot(); len(got.Pods)+len(got.NotReady) != 0 {
		t.Errorf("before Kubernetes calls it ready: %+v", got)
	}
	table.SetSlice(key, "s", []Endpoint{{Address: address(1), Pod: "p1", Ready: true}})
	if pods(r) != "p1" {
		t.Errorf("ready: pods are %q", pods(r))
	}
	table.Announce(announced(1, false, 2))
	if pods(r) != "" {
		t.Errorf("its withdrawal counts all the same: pods are %q", pods(r))
	}
}

func TestAPodThatAnswersOurProbeIsUsed(t *testing.T) {
	table := newTable()
	table.SetRevision(key, &Info{UID: "u", Early: true})
	r := table.Get(key)
	table.SetSlice(key, "s", []Endpoint{{Address: address(1), Pod: "p1"}})
	table.ProbeSucceeded(key, r.Snapshot().NotReady[0])
	if pods(r) != "p1" {
		t.Errorf("pods are %q", pods(r))
	}
	table.Announce(announced(1, false, 1))
	table.ProbeSucceeded(key, hold.Backend{Address: address(1), Pod: "p1"})
	if pods(r) != "" {
		t.Errorf("after its withdrawal: pods are %q", pods(r))
	}
}

func TestAnAnnouncementMayComeBeforeTheRevisionIsSeen(t *testing.T) {
	table := newTable()
	table.Announce(announced(1, true, 1))
	if table.Get(key) != nil || table.unknown != 1 {
		t.Fatalf("revision %v, %d unknown", table.Get(key), table.unknown)
	}
	table.SetRevision(key, &Info{UID: "u", Early: true})
	if r := table.Get(key); pods(r) != "p1" || table.unknown != 0 {
		t.Fatalf("pods are %q, %d unknown", pods(r), table.unknown)
	}
	if _, err := table.Get(key).Queue().Acquire(t.Context(), &hold.Ticket{}); err != nil {
		t.Fatal(err)
	}
}

func TestADeletedRevisionLeavesNothing(t *testing.T) {
	table := newTable()
	table.SetRevision(key, &Info{UID: "u", Early: true})
	r := table.Get(key)
	answer := make(chan error, 1)
	go func() {
		_, err := r.Queue().Acquire(context.Background(), &hold.Ticket{})
		answer <- err
	}()
	table.Announce(wire.Announcement{Namespace: "ns", Revision: "other", Pod: "x", Address: address(9), Ready: true})
	table.DeleteRevision(key)
	if err := <-answer; !errors.Is(err, hold.ErrDeleted) {
		t.Errorf("what waited got %v", err)
	}
	if len(table.entries) != 1 || table.unknown != 1 {
		t.Errorf("%d entries, %d unknown remain, want the other one", len(table.entries), table.unknown)
	}
	table.Sweep(time.Now().Add(2 * announcedFor))
	if len(table.entries) != 0 || table.unknown != 0 {
		t.Errorf("%d entries, %d unknown remain after a sweep", len(table.entries), table.unknown)
	}
}

func TestARevisionMadeAgainUnderItsNameIsAnother(t *testing.T) {
	table := newTable()
	table.SetRevision(key, &Info{UID: "u", ContainerConcurrency: 1})
	first := table.Get(key)
	table.SetRevision(key, &Info{UID: "v", ContainerConcurrency: 5})
	if table.Get(key) == first {
		t.Fatal("the queue of the deleted revision is used on")
	}
	if _, err := first.Queue().Acquire(t.Context(), &hold.Ticket{}); !errors.Is(err, hold.ErrDeleted) {
		t.Errorf("the old queue answers %v", err)
	}
}

// The clock stands still: a machine that takes a minute for this would see the first ones go.
func TestWhatAnnouncementsMayFillIsBounded(t *testing.T) {
	synctest.Test(t, testWhatAnnouncementsMayFillIsBounded)
}

func testWhatAnnouncementsMayFillIsBounded(t *testing.T) {
	table := newTable()
	taken := 0
	for i := range MaxAnnouncements + 100 {
		a := wire.Announcement{Namespace: "ns", Revision: "rev", Pod: "p", Ready: true,
			Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 8012)}
		if table.Announce(a) {
			taken++
		}
	}
	if taken != MaxAnnouncements {
		t.Errorf("%d announcements of one revision were taken, want %d", taken, MaxAnnouncements)
	}
}

func TestPodsThatOnlyKubernetesCallsNotReadyAreUnproven(t *testing.T) {
	table := newTable()
	table.SetRevision(key, &Info{UID: "u", Early: true})
	table.SetSlice(key, "s", []Endpoint{{Address: address(1), Pod: "p1"}, {Address: address(2), Pod: "p2", Ready: true}, {Address: address(3), Pod: "p3", Terminating: true}})
	if got := table.Get(key).Snapshot().NotReady; len(got) != 1 || got[0].Pod != "p1" {
		t.Errorf("notReady are %v, want p1", got)
	}
	table.Announce(announced(1, true, 1))
	if got := table.Get(key).Snapshot(); len(got.NotReady) != 0 || len(got.Pods) != 2 {
		t.Errorf("after its word: %+v", got)
	}
}

// How long that is good for follows from the revision's timeout, which is the time that Kubernetes
// gives a pod to end.
func TestTheOnlyPodServesWhileItLeaves(t *testing.T) {
	for _, c := range []struct {
		timeout, age time.Duration
		want         string
	}{
		{5 * time.Minute, 20 * time.Second, "p1"},
		{5 * time.Minute, 40 * time.Second, ""},
		{20 * time.Second, 4 * time.Second, "p1"},
		{20 * time.Second, 6 * time.Second, ""},
		{0, 0, ""},
	} {
		table := newTable()
		table.SetRevision(key, &Info{UID: "u", Early: true, Timeout: c.timeout})
		table.SetSlice(key, "s", []Endpoint{{Address: address(1), Pod: "p1", Ready: true}})
		table.Announce(announced(1, false, 1))
		table.Sweep(time.Now().Add(c.age))
		if got := pods(table.Get(key)); got != c.want {
			t.Errorf("timeout %s, withdrawn %s ago: pods are %q, want %q", c.timeout, c.age, got, c.want)
		}
		table.SetSlice(key, "t", []Endpoint{{Address: address(2), Pod: "p2", Ready: true}})
		if got := pods(table.Get(key)); got != "p2" {
			t.Errorf("beside another pod: pods are %q, want p2", got)
		}
	}
}

// What one pod of a node says counts for all pods there, of whatever revision.
func TestSilenceIsOfANode(t *testing.T) {
	table := NewTable(func(Key, *Info) *hold.Queue {
		return hold.New(1, hold.NewBudget(hold.Bounds{}).Share("ns"), hold.Options{})
	})
	on := func(i int, node string) Endpoint {
		return Endpoint{Address: address(i), Pod: fmt.Sprint(i), Ready: true, Node: node}
	}
	add := func(name string, endpoints ...Endpoint) *Revision {
		key := Key{"ns", name}
		table.SetRevision(key, &Info{Timeout: time.Minute})
		table.SetSlice(key, name, endpoints)
		return table.Get(key)
	}
	both := add("both", on(1, "b"), on(2, "c"))
	add("asked", on(3, "b"), on(4, "c"), on(5, ""))
	// Of no revision: activators.
	table.SetSlice(Key{Namespace: "system"}, "activators", []Endpoint{on(6, "b"), on(7, "c")})
	if !table.Knows(address(7).Addr()) || table.Knows(address(8).Addr()) {
		t.Error("it does not know who is an activator")
	}
	chosen := func() string {
		slot, ok := both.Queue().Try()
		if !ok {
			return "none"
		}
		defer slot.Release(false)
		return slot.Pod()
	}
	if got := chosen(); got != "1" {
		t.Fatalf("at first a request goes to %s", got)
	}
	for _, c := range []struct {
		name             string
		silent, answered []int
		want             string
	}{
		{"a pod that nobody knows", []int{8}, nil, "1"},
		{"a pod whose node nobody knows", []int{5}, nil, "1"},
		{"another pod of the node answers", []int{3}, []int{1}, "1"},
		{"an activator answers there", []int{3}, []int{6}, "1"},
		{"another revision's pod there", []int{3}, []int{4}, "2"},
		{"an activator does not there", []int{7}, []int{6}, "1"},
	} {
		list := func(all []int) (out []netip.Addr) {
			for _, i := range all {
				out = append(out, address(i).Addr())
			}
			return out
		}
		table.Silent(list(c.silent), list(c.answered))
		if got := chosen(); got != c.want {
			t.Errorf("%s: a request goes to %s, want %s", c.name, got, c.want)
		}
	}
}

// An activator learns its zone from pods on its node. Pods of other zones are far, if there are
// others, and one whose zone nobody knows is not.
func TestPodsOfOtherZonesAreFar(t *testing.T) { synctest.Test(t, testPodsOfOtherZonesAreFar) }

func testPodsOfOtherZonesAreFar(t *testing.T) {
	table := NewTable(func(Key, *Info) *hold.Queue {
		return hold.New(1, hold.NewBudget(hold.Bounds{}).Share("ns"), hold.Options{})
	})
	table.Node = "node-a"
	in := func(i int, zone string) Endpoint {
		return Endpoint{Address: address(i), Pod: fmt.Sprint(i), Ready: true, Node: "node-" + zone, Zone: zone}
	}
	hello, other := Key{"ns", "hello"}, Key{"ns", "other"}
	for _, key := range []Key{hello, other} {
		table.SetRevision(key, &Info{Timeout: time.Minute})
	}
	expect := func(when, want string) {
		t.Helper()
		var far []string
		for _, b := range table.Get(hello).Snapshot().Pods {
			if b.Far {
				far = append(far, b.Pod)
			}
		}
		if got := strings.Join(far, " "); got != want {
			t.Errorf("%s: far are %q, want %q", when, got, want)
		}
	}
	table.SetSlice(hello, "x", []Endpoint{in(1, "b"), in(2, "a"), in(3, "c"), {Address: address(4), Pod: "4", Ready: true}})
	expect("at once", "1 3")
	slot, _ := table.Get(hello).Queue().Try()
	if slot.Pod() != "2" {
		t.Errorf("a request goes to %s", slot.Pod())
	}
	slot.Release(true)
	table.SetSlice(hello, "x", []Endpoint{in(1, "b"), in(3, "c")})
	expect("without a pod in this zone", "")
	table.SetSlice(hello, "x", []Endpoint{in(1, "b"), in(3, "c"), {Address: address(5), Pod: "5", Ready: true, Zone: "a", Node: "another"}})
	expect("with one on another node of this zone", "1 3")
	moved := in(9, "a")
	for _, zone := range []string{"b", "", "a", "b"} {
		moved.Zone = zone
		table.SetSlice(other, "y", []Endpoint{moved})
		expect("at first, when some say that the node's label has changed", "1 3")
	}
	time.Sleep(placePeriod)
	table.SetSlice(other, "y", []Endpoint{moved})
	expect("after the node's label has changed", "3 5")
	time.Sleep(placePeriod)
	moved.Zone = ""
	table.SetSlice(other, "y", []Endpoint{moved})
	expect("after it was removed", "")
	moved.Zone = "a"
	table.SetSlice(other, "y", []Endpoint{moved})
	expect("when it is there again", "1 3")
}
