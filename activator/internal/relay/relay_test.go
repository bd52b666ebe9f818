package relay

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"ebb.dev/ebb/forward"
)

// at makes addresses of the last numbers of IPv4 ones.
func at(numbers ...byte) (out []netip.AddrPort) {
	for _, n := range numbers {
		out = append(out, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 8012))
	}
	return out
}

// newTable is the table of the activator with a number, which knows of others.
func newTable(self byte, others ...byte) *Table {
	t := &Table{Self: at(self)[0].Addr(), Capacity: func() float64 { return 100 },
		Open: func(a netip.AddrPort) *forward.Upstream {
			return forward.NewUpstream(a.String(), forward.UpstreamOptions{})
		}}
	t.SetSlice("s", at(others...))
	return t
}

// to says where a request of a revision goes: to the activator at an address, or "" if it stays.
func (t *Table) to(revision string) string {
	if a := t.For(&Choice{}, revision, time.Time{}); a != nil {
		return a.Upstream().Addr()
	}
	return ""
}

// Of activators that know the same others, two keep what they get of a revision, and all others
// relay to these two.
func TestAllGatherAtTheSameTwo(t *testing.T) {
	for total := byte(3); total < 12; total++ {
		var all []byte
		for i := range total {
			all = append(all, i+1)
		}
		kept := map[byte]int{}
		for i := range 300 {
			revision, keep, reached := fmt.Sprintf("rev-%05d", i), sets.New[string](), sets.New[string]()
			for _, self := range all {
				table := newTable(self, all...)
				if table.to(revision) == "" {
					keep.Insert(at(self)[0].String())
					kept[self]++
					continue
				}
				for range 20 {
					reached.Insert(table.to(revision))
				}
			}
			if len(keep) != two || !keep.IsSuperset(reached) {
				t.Fatalf("of %d, %s: %v keep what they get, others relay to %v", total, revision, sets.List(keep), sets.List(reached))
			}
		}
		if len(kept) != int(total) {
			t.Errorf("of %d activators only %d have revisions: %v", total, len(kept), kept)
		}
	}
}

func TestWhenSomethingIsRelayed(t *testing.T) {
	for _, row := range []struct {
		why    string
		self   byte
		others []byte
		off    bool
		want   bool // to relay, for some revision
	}{
		{"before any activator is known", 1, nil, false, false},
		{"one", 1, []byte{1}, false, false},
		{"two", 1, []byte{1, 2}, false, false},
		{"two, and this one is not listed", 1, []byte{2, 3}, false, false},
		{"three", 1, []byte{1, 2, 3}, false, true},
		{"three, and this one is not listed: it leaves, or is new", 1, []byte{2, 3, 4}, false, true},
		{"an address twice", 1, []byte{1, 2, 2}, false, false},
		{"switched off", 1, []byte{1, 2, 3}, true, false},
	} {
		t.Run(row.why, func(t *testing.T) {
			table := newTable(row.self, row.others...)
			table.Off = func() bool { return row.off }
			relays := false
			for i := range 100 {
				relays = relays || table.to(fmt.Sprint("rev-", i)) != ""
			}
			if got := table.Relays() && relays; got != row.want {
				t.Errorf("got %v, want %v", got, row.want)
			}
		})
	}
	if (*Table)(nil).Relays() {
		t.Error("without a table something is relayed")
	}
}

func TestWhichRevisionsGather(t *testing.T) {
	for _, row := range []struct {
		why         string
		pods, limit int
		want        bool
	}{
		{"no pod: all wait", 0, 0, true},
		{"no pod, and a limit", 0, 10, true},
		{"pods without a limit: nobody waits", 3, 0, false},
		{"pods with a limit", 3, 1, true},
		{"as much as two activators carry", 20, 10, true},
		{"more than that", 21, 10, false},
		{"a limit beyond that", 1, 1000, false},
	} {
		if got := newTable(1).Gathers(row.pods, row.limit); got != row.want {
			t.Errorf("%s: got %v", row.why, got)
		}
	}
}

func TestActivatorsComeAndGo(t *testing.T) {
	table := newTable(1, 1, 2, 3, 4)
	var choice Choice
	rev := "rev" // that is relayed from 1
	for i := 0; table.to(rev) == ""; i++ {
		rev = fmt.Sprint("rev-", i)
	}
	first, before := table.For(&choice, rev, time.Time{}), table.list.Load()
	if before == nil || first == nil {
		t.Fatal("nothing is relayed")
	}
	table.SetSlice("s", at(4, 3, 2, 1))
	if table.list.Load() != before {
		t.Error("the same activators in another order are a new list")
	}
	table.SetSlice("six", []netip.AddrPort{netip.MustParseAddrPort("[fd00::2]:8012"), netip.MustParseAddrPort("[fd00::3]:8012")})
	if table.list.Load() != before {
		t.Error("addresses of the other kind are activators more")
	}
	kept := table.others[at(2)[0]]
	table.SetSlice("s", at(1, 2, 3))
	table.SetSlice("more", at(5))
	if table.others[at(2)[0]] != kept || table.others[at(4)[0]] != nil || table.others[at(5)[0]] == nil {
		t.Errorf("2 has a new way to it, or 4 still has one, or 5 has none: %v", table.others)
	}
	for range 50 {
		a := table.For(&choice, rev, time.Time{})
		if a != nil && a.Upstream().Addr() == at(4)[0].String() {
			t.Fatal("something is relayed to one that is gone")
		}
	}
	table.SetSlice("more", nil)
	table.SetSlice("s", at(1, 2))
	if table.Relays() || len(table.others) > 0 || table.For(&choice, rev, time.Time{}) != nil {
		t.Error("something is relayed between two")
	}
	table.SetSlice("s", nil)
	table.SetSlice("six", nil)
	if len(table.slices) > 0 {
		t.Errorf("left: %v", table.slices)
	}
}

// A dead activator costs the time of an attempt to connect: once in a while, and not each request.
func TestWhoCannotBeReachedRests(t *testing.T) {
	table, now := newTable(1, 1, 2, 3), time.Unix(1000, 0)
	rev := "rev"
	for i := 0; table.to(rev) == ""; i++ {
		rev = fmt.Sprint("rev-", i)
	}
	var choice Choice
	dead, alive := table.others[at(2)[0]], table.others[at(3)[0]]
	count := func(now time.Time) (toDead, toAlive, stay int) {
		for range 200 {
			switch table.For(&choice, rev, now) {
			case dead:
				toDead++
			case alive:
				toAlive++
			case nil:
				stay++
			}
		}
		return toDead, toAlive, stay
	}
	if toDead, toAlive, stay := count(now); toDead < 40 || toAlive < 40 || stay > 0 {
		t.Errorf("at first: %d, %d, %d", toDead, toAlive, stay)
	}
	dead.Failed(now)
	if toDead, toAlive, stay := count(now.Add(restFor - 1)); toDead > 0 || toAlive != 200 || stay > 0 {
		t.Errorf("after a failure: %d, %d, %d", toDead, toAlive, stay)
	}
	if toDead, toAlive, _ := count(now.Add(restFor)); toDead != 1 || toAlive != 199 {
		t.Errorf("after its rest one tries again: %d, %d", toDead, toAlive)
	}
	alive.Failed(now.Add(restFor))
	if _, _, stay := count(now.Add(restFor)); stay != 200 {
		t.Errorf("of two that rest: %d stay", stay)
	}
	dead.Answered()
	if toDead, toAlive, _ := count(now.Add(restFor)); toDead != 200 || toAlive > 0 {
		t.Errorf("after an answer: %d, %d", toDead, toAlive)
	}
}

func TestAChoiceAllocatesOnce(t *testing.T) {
	table := newTable(9, 1, 2, 3, 4, 5)
	var choice Choice
	now := time.Now()
	table.For(&choice, "rev", now)
	if allocs := testing.AllocsPerRun(100, func() { table.For(&choice, "rev", now) }); allocs > 0 {
		t.Errorf("a request costs %v allocations", allocs)
	}
}

// Each activator may know other activators, and some may be dead. Wherever a request comes, it is
// served by one that lives, after one hop at most; and where all know the same and live, by one of
// the two.
func FuzzDisagreement(f *testing.F) {
	f.Add([]byte{0b11111, 0b11111, 0b11111, 0b11111, 0b11111}, uint8(0b11111), "rev")
	f.Add([]byte{0b00111, 0b11100, 0b10101, 0b11111, 0}, uint8(0b10110), "hello-00001")
	random := rand.New(rand.NewPCG(35, 3))
	for i := range 500 {
		knows := make([]byte, 5)
		for i := range knows {
			knows[i] = byte(random.Uint32())
		}
		f.Add(knows, uint8(random.Uint32()), fmt.Sprint("rev-", i))
	}
	f.Fuzz(func(t *testing.T, knows []byte, alive uint8, revision string) {
		const all = 5
		if len(knows) < all {
			t.Skip()
		}
		tables, same := make([]*Table, all), true
		for self := range tables {
			var others []byte
			for i := range byte(all) {
				if knows[self]&(1<<i) != 0 {
					others = append(others, i+1)
				}
			}
			tables[self] = newTable(byte(self)+1, others...)
			same = same && knows[self] == knows[0]
		}
		served := map[int]bool{}
		for self, table := range tables {
			if alive&(1<<self) == 0 {
				continue
			}
			var choice Choice
			now := time.Unix(1, 0)
			for range 10 {
				by, a := self, table.For(&choice, revision, now)
				if a != nil {
					to := int(netip.MustParseAddrPort(a.Upstream().Addr()).Addr().As4()[3]) - 1
					if to == self || knows[self]&(1<<to) == 0 {
						t.Fatalf("%d relays to %d, and knows %b", self, to, knows[self])
					}
					// Who gets it never asks its own table.
					if by = to; alive&(1<<to) == 0 {
						a.Failed(now)
						by = self
					}
				}
				served[by] = true
			}
		}
		if known := knows[0] & (1<<all - 1); same && alive&(1<<all-1) == 1<<all-1 && known == 1<<all-1 && len(served) != two {
			t.Fatalf("%s is served by %v", revision, served)
		}
	})
}
