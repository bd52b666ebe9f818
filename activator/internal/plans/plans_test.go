package plans

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/ingress/plan"
)

// text is the plan of a Route with a public host, with a rank, that leads to a revision.
func text(uid, host string, rank int, revision string) string {
	return fmt.Sprintf(`{"uid":%q,"hash":"0123456789abcdef","targets":[{"host":%q,"rank":%d,"to":[{"rev":%q}]}]}`, uid, host, rank, revision)
}

func at(seconds int64) time.Time { return time.Unix(seconds, 0) }

// owner says whose a host is: "namespace/name to revision".
func owner(t *Table, host string, from plan.Visibility) string {
	route := t.Find(host, from)
	if route == nil {
		return ""
	}
	c, ok := route.Plan().Choose(plan.Request{Host: host, Path: "/", From: from, Fields: func(func(string, string) bool) {}}, 0)
	if !ok {
		return route.Namespace + "/" + route.Name + " does not know it"
	}
	return route.Namespace + "/" + route.Name + " to " + c.Backend.Service
}

func TestWhoseAHostIs(t *testing.T) {
	table := NewTable("cluster.local")
	if err := table.Set("ns", "hello", "u", at(1), text("u", "hello.ns.example.com", 1, "hello-00001")); err != nil {
		t.Fatal(err)
	}
	const hello = "ns/hello to hello-00001"
	for _, row := range []struct {
		host string
		from plan.Visibility
		want string
	}{
		{"hello.ns.example.com", plan.External, hello},
		{"Hello.NS.example.com.:8080", plan.External, hello},
		{"hello.ns.example.com", plan.ClusterLocal, ""},
		{"hello.ns", plan.External, ""},
		{"hello.ns", plan.ClusterLocal, hello},
		{"hello.ns:80", plan.ClusterLocal, hello},
		{"hello.ns.svc", plan.ClusterLocal, hello},
		{"hello.ns.svc.cluster.local", plan.ClusterLocal, hello},
		{"HELLO.ns.svc.Cluster.Local.", plan.ClusterLocal, hello},
		{"hello.ns.svc.example.com", plan.ClusterLocal, ""},
		{"hello.ns.", plan.ClusterLocal, hello},
		{"hello", plan.ClusterLocal, ""},
		{".ns", plan.ClusterLocal, ""},
		{"", plan.ClusterLocal, ""},
		{"", plan.External, ""},
		{"hello.ns", "unknown", ""},
		{"hello.ns", "", ""},
	} {
		if got := owner(table, row.host, row.from); got != row.want {
			t.Errorf("%q from %q: got %q, want %q", row.host, row.from, got, row.want)
		}
	}
}

// Two Routes may have one host for a moment. All activators come to the same one, whichever plan
// came first.
func TestTwoRoutesWithOneHost(t *testing.T) {
	type route struct {
		namespace, name string
		created         int64
		rank            int
	}
	for name, routes := range map[string][2]route{ // the first one wins
		"by rank":      {{"z", "z", 9, 0}, {"a", "a", 1, 1}},
		"by age":       {{"z", "z", 1, 1}, {"a", "a", 9, 1}},
		"by namespace": {{"a", "z", 1, 1}, {"b", "a", 1, 1}},
		"by name":      {{"a", "a", 1, 1}, {"a", "b", 1, 1}},
	} {
		for first := range 2 {
			table := NewTable("cluster.local")
			for _, i := range []int{first, 1 - first} {
				r := routes[i]
				if err := table.Set(r.namespace, r.name, "u", at(r.created), text("u", "shared.example.com", r.rank, "rev")); err != nil {
					t.Fatal(err)
				}
			}
			if got, want := owner(table, "shared.example.com", plan.External), routes[0].namespace+"/"+routes[0].name+" to rev"; got != want {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
			table.Delete(routes[0].namespace, routes[0].name)
			if got, want := owner(table, "shared.example.com", plan.External), routes[1].namespace+"/"+routes[1].name+" to rev"; got != want {
				t.Errorf("%s, then the other: got %q, want %q", name, got, want)
			}
		}
	}
}

// A later version writes plans that this one cannot read. What is known goes on to count, but not
// for another Route with the same name.
func TestAPlanThatCannotBeRead(t *testing.T) {
	const host = "hello.example.com"
	table := NewTable("cluster.local")
	set := func(uid, text string) error { return table.Set("ns", "hello", uid, at(1), text) }
	if err := set("u", text("u", host, 0, "a")); err != nil {
		t.Fatal(err)
	}
	if err := set("u", `{"mirror":"x"}`); err == nil || !strings.Contains(err.Error(), "plan of Route ns/hello") {
		t.Errorf("a later version's: %v", err)
	}
	if got := owner(table, host, plan.External); got != "ns/hello to a" {
		t.Errorf("then %q", got)
	}
	if err := set("v", text("u", host, 0, "a")); err == nil || !strings.Contains(err.Error(), "UID u") {
		t.Errorf("a restored status: %v", err)
	}
	if got := owner(table, host, plan.External); got != "" || table.Len() != 0 {
		t.Errorf("then %q, of %d plans", got, table.Len())
	}
	if err := set("v", text("v", host, 0, "b")); err != nil || owner(table, host, plan.External) != "ns/hello to b" {
		t.Errorf("%v, %q", err, owner(table, host, plan.External))
	}
	if err := set("v", ""); err != nil || owner(table, host, plan.External) != "" {
		t.Errorf("without a plan: %v, %q", err, owner(table, host, plan.External))
	}
}

// Against a table that is made anew for each question, after any sequence of changes; and nothing
// is left in the end.
func TestAnyOrderOfChanges(t *testing.T) {
	type known struct {
		created int64
		rank    int
		host    string
	}
	random := rand.New(rand.NewPCG(35, 1))
	table, want := NewTable("cluster.local"), map[string]known{}
	put := func(to *Table, name string, k known) {
		if err := to.Set("ns", name, "u", at(k.created), text("u", k.host, k.rank, "rev")); err != nil {
			t.Fatal(err)
		}
	}
	for range 3000 {
		name := fmt.Sprintf("r%d", random.IntN(6))
		if random.IntN(3) == 0 {
			table.Delete("ns", name)
			delete(want, name)
		} else {
			k := known{random.Int64N(3), random.IntN(3), fmt.Sprintf("h%d.example.com", random.IntN(3))}
			put(table, name, k)
			want[name] = k
		}
		anew := NewTable("cluster.local")
		for name, k := range want {
			put(anew, name, k)
		}
		for i := range 3 {
			host := fmt.Sprintf("h%d.example.com", i)
			if got, want := owner(table, host, plan.External), owner(anew, host, plan.External); got != want {
				t.Fatalf("%s is of %q, want %q", host, got, want)
			}
		}
	}
	for name := range want {
		table.Delete("ns", name)
	}
	if len(table.routes)+len(table.public)+len(table.local) > 0 {
		t.Errorf("left: %+v", table)
	}
}

type account struct {
	used int64
	full bool
}

func (a *account) Take(n int64) error {
	if a.full {
		return errors.New("full")
	}
	a.used += n
	return nil
}
func (a *account) Give(n int64)      { a.used -= n }
func (a *account) Borrow(int64) bool { return false }
func (a *account) Return(int64)      {}

func TestHowManyMayWait(t *testing.T) {
	a := &account{}
	room := NewRoom(a)
	for i := range maxWaiting {
		if !room.Enter(fmt.Sprint("h", i), plan.External, at(0)) {
			t.Fatalf("%d wait, and no more may", i)
		}
	}
	if room.Enter("one-more", plan.External, at(0)) || room.Waiting() != maxWaiting {
		t.Errorf("one too many waits: %d", room.Waiting())
	}
	for i := range maxWaiting {
		room.Leave(fmt.Sprint("h", i), plan.External, at(1), i > 0)
	}
	if a.used != 0 || room.Waiting() != 0 {
		t.Errorf("%d bytes and %d requests are left", a.used, room.Waiting())
	}
	enters := func(host string, from plan.Visibility, at time.Time) bool {
		ok := room.Enter(host, from, at)
		if ok {
			room.Leave(host, from, at, false)
		}
		return ok
	}
	for _, row := range []struct {
		host string
		from plan.Visibility
		at   time.Time
		want bool
	}{
		{"h1", plan.External, at(1), false},
		{"H1.:80", plan.External, at(1), false},
		{"h1", plan.ClusterLocal, at(1), true},
		{"h1", plan.External, at(2), true},
		{"h0", plan.External, at(1), true}, // its plan came
		{strings.Repeat("h", maxHost+1), plan.External, at(1), false},
		{"h0", "nonsense", at(1), false},
	} {
		if got := enters(row.host, row.from, row.at); got != row.want {
			t.Errorf("%q from %s at %d may wait: %v", row.host, row.from, row.at.Unix(), got)
		}
	}
	a.full = true
	if enters("h1", plan.External, at(9)) {
		t.Error("a request waits for which there is no memory")
	}
}

// Whoever asks for a million hosts has a thousand remembered.
func TestRefusedHostsAreForgotten(t *testing.T) {
	room := NewRoom(&account{})
	for i := range 5 * maxRefused {
		host := fmt.Sprint("h", i)
		if !room.Enter(host, plan.External, at(0)) {
			t.Fatal(host)
		}
		room.Leave(host, plan.External, at(0), true)
		room.Enter(host, plan.External, at(2)) // it waits again, and again in vain
		room.Leave(host, plan.External, at(2), true)
	}
	if len(room.refused) != maxRefused {
		t.Errorf("%d hosts are remembered", len(room.refused))
	}
}
