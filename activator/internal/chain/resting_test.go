package chain

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

const restingHash, restingAnswer = "0123456789abcdef", "0123456789abcdef.7"

// rests stores a plan of Route ns/hello: its targets, as they stand in a status.
func (w *world) rests(targets string) {
	w.t.Helper()
	w.handler.Plans.Follow()
	text := `{"uid":"u","hash":"` + restingHash + `","at":7,"byTag":true,"targets":[` + targets + `]}`
	if err := w.handler.Plans.Set("ns", "hello", "u", time.Unix(1, 0), text); err != nil {
		w.t.Fatal(err)
	}
}

// serves makes a revision with a pod that answers with its name.
func (w *world) serves(name string) {
	k := backends.Key{Namespace: "ns", Name: name}
	w.table.SetRevision(k, &backends.Info{UID: name})
	w.table.SetSlice(k, "s", []backends.Endpoint{w.pod(name, func(rw http.ResponseWriter, r *http.Request) {
		for _, h := range []string{wire.HeaderRevision, wire.HeaderNamespace, wire.HeaderTag, wire.HeaderDefaultRoute, wire.HeaderResting,
			wire.HeaderNetworkHash, wire.HeaderOriginalHost} {
			if v := r.Header.Get(h); v != "" {
				rw.Header().Set("Got-"+h, v)
			}
		}
		io.WriteString(rw, name)
	})})
}

// ask sends a request as a gateway with a common HTTPRoute does.
func (w *world) ask(host string, header ...string) (int, http.Header, string) {
	w.t.Helper()
	return w.send("GET", "", append([]string{wire.HeaderRevision, "", wire.HeaderNamespace, "", wire.HeaderResting, "external", "Host", host}, header...)...)
}

func TestAPlanLeadsARequest(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	w.rests(`{"host":"hello.example.com","to":[{"rev":"a"}]},{"tag":"v1","name":"v1-hello","host":"v1-hello.example.com","to":[{"rev":"b"}]},` +
		`{"tag":"gone","name":"gone-hello","host":"gone.example.com","to":[]},{"tag":"tls","name":"tls-hello","host":"tls.example.com","redirects":true,"to":[{"rev":"a"}]}`)
	for _, name := range []string{"a", "b", "rev"} {
		w.serves(name)
	}
	for _, c := range []struct {
		name   string
		host   string
		header []string
		status int
		body   string
		got    string // a field that the pod sees
		is     string
	}{
		{"the Route's own host", "hello.example.com", nil, 200, "a", wire.HeaderDefaultRoute, "true"},
		{"the pod is told the revision", "hello.example.com", nil, 200, "a", wire.HeaderRevision, "a"},
		{"and the host", "hello.example.com", nil, 200, "a", wire.HeaderOriginalHost, "hello.example.com"},
		{"and not how the request came", "hello.example.com", nil, 200, "a", wire.HeaderResting, ""},
		{"nor the hash of the common HTTPRoute", "hello.example.com", []string{wire.HeaderNetworkHash, "x"}, 200, "a", wire.HeaderNetworkHash, ""},
		{"a tag's host", "v1-hello.example.com", nil, 200, "b", wire.HeaderTag, "v1"},
		{"a tag by its header", "hello.example.com", []string{wire.HeaderTag, "v1"}, 200, "b", wire.HeaderTag, "v1"},
		{"inside the cluster", "hello.ns.svc.cluster.local", []string{wire.HeaderResting, "local"}, 200, "a", wire.HeaderRevision, "a"},
		{"a revision in headers counts first", "hello.example.com", []string{wire.HeaderRevision, "rev", wire.HeaderNamespace, "ns"}, 200, "rev", wire.HeaderRevision, "rev"},
		{"one that calls itself the kubelet", "hello.example.com", []string{"User-Agent", wire.AgentKubelet + "1.35"}, 200, "a", "", ""},
		{"a target without a revision", "gone.example.com", nil, 500, "the plan of the host leads to no revision", "", ""},
		{"https, behind a gateway that ends it", "tls.example.com", []string{"X-Forwarded-Proto", "https"}, 200, "a", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, header, body := w.ask(c.host, c.header...)
			if status != c.status || body != c.body || c.got != "" && header.Get("Got-"+c.got) != c.is {
				t.Errorf("got %d %q, %s %q", status, body, c.got, header.Get("Got-"+c.got))
			}
		})
	}
	t.Run("plain HTTP where https is wanted", func(t *testing.T) {
		w.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		if status, header, _ := w.ask("tls.example.com:80"); status != 301 || header.Get("Location") != "https://tls.example.com/path?q=1" {
			t.Errorf("got %d to %q", status, header.Get("Location"))
		}
	})
}

// A gateway that leads a host to its revision need not take off what a client says about resting:
// the headers of the gateway count first. So a client reaches nothing else, whatever it says.
func TestAClientThatSaysEbbResting(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	w.rests(`{"host":"hello.example.com","to":[{"rev":"a"}]}`)
	w.serves("a")
	w.serves("rev")
	secret := backends.Key{Namespace: "other", Name: "secret"}
	w.table.SetRevision(secret, &backends.Info{UID: "secret"})
	w.table.SetSlice(secret, "s", []backends.Endpoint{w.pod("secret", func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "secret") })})
	if err := w.handler.Plans.Set("other", "safe", "v", time.Unix(1, 0),
		`{"uid":"v","hash":"`+restingHash+`","at":7,"targets":[{"host":"safe.example.com","to":[{"rev":"secret"}]}]}`); err != nil {
		t.Fatal(err)
	}
	if _, _, body := w.ask("safe.example.com"); body != "secret" {
		t.Fatalf("got %q from a host that rests", body)
	}
	for _, host := range []string{"hello.example.com", "safe.example.com", "safe.other.svc.cluster.local", "secret.other", "nobody.example.com"} {
		for _, says := range []string{"external", "local", "unknown", "external, local", ""} {
			status, _, body := w.ask(host, wire.HeaderRevision, "rev", wire.HeaderNamespace, "ns", wire.HeaderResting, says)
			if status != 200 || body != "rev" {
				t.Errorf("host %s, %s %q: got %d %q, and the gateway named rev", host, wire.HeaderResting, says, status, body)
			}
		}
	}
}

// Each share gets about as many requests as it should: of 1000 a quarter, give or take six standard
// deviations.
func TestAPlanSplitsRequests(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	w.rests(`{"host":"hello.example.com","to":[{"rev":"a","pct":25},{"rev":"b","pct":75}]}`)
	w.serves("a")
	w.serves("b")
	got := map[string]int{}
	for range 1000 {
		_, _, body := w.ask("hello.example.com")
		got[body]++
	}
	if got["a"] < 168 || got["a"] > 332 || got["a"]+got["b"] != 1000 {
		t.Errorf("got %v", got)
	}
}

// A host that nobody knows is a 404 as the gateway's own, and not the name of a revision.
func TestAHostWithoutAPlan(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	w.serves("a")
	w.handler.Plans.Follow()
	for _, c := range []struct {
		host, from string
		waits      time.Duration
	}{{"a.ns", "local", time.Second / 2}, {"hello.example.com", "external", time.Second / 2}, {"a.ns", "nonsense", 0}} {
		began := time.Now()
		status, header, body := w.ask(c.host, wire.HeaderResting, c.from)
		if status != 404 || header.Get(wire.HeaderResting) != wire.RestingUnknown || time.Since(began) < c.waits {
			t.Errorf("%s from %s: got %d %q, %q after %v", c.host, c.from, status, body, header.Get(wire.HeaderResting), time.Since(began))
		}
	}
	// Within the next second nobody waits for it: 200 would take 200 seconds one after the other.
	for range 200 {
		if status, _, _ := w.ask("a.ns", wire.HeaderResting, "local"); status != 404 {
			t.Fatalf("got %d", status)
		}
	}
	if held, n := w.budget.HeldBytes(), w.handler.Unknown.Answered.Load(); held != 0 || n != 203 {
		t.Errorf("%d bytes are left, %d requests were counted", held, n)
	}
}

// Where no gateway leads requests by their hosts alone, a client may say what it wants.
func TestNobodyIsLedByPlansBeforeTheyAreFollowed(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	w.serves("a")
	for host, want := range map[string]string{"a.ns": "200 a", "hello.example.com": "404 Error getting active endpoint: the request names no revision, neither by headers nor by its host"} {
		status, header, body := w.ask(host)
		if got := fmt.Sprint(status, " ", body); got != want || header.Get(wire.HeaderResting) != "" {
			t.Errorf("%s: got %s, %q", host, got, header.Get(wire.HeaderResting))
		}
	}
}

// A client may be told that a Route is Ready before the activator is.
func TestARequestWaitsForItsPlan(t *testing.T) {
	for _, first := range []string{"plan", "revision"} {
		t.Run("the "+first+" comes first", func(t *testing.T) {
			w := newWorld(t, hold.Bounds{})
			w.handler.Plans.Follow()
			w.handler.Unknown.Patience = time.Minute
			comes := map[string]func(){"revision": func() { w.serves("a") }, "plan": func() { w.rests(`{"host":"hello.example.com","to":[{"rev":"a"}]}`) }}
			var group sync.WaitGroup
			for range 20 {
				group.Go(func() {
					if status, _, body := w.ask("hello.example.com"); status != 200 || body != "a" {
						t.Errorf("got %d %q", status, body)
					}
				})
			}
			eventually.True(t, "they wait", func() bool { return w.handler.Unknown.Waiting() == 20 })
			comes[first]()
			delete(comes, first)
			for _, next := range comes {
				next()
			}
			group.Wait()
			// A client may have its answer before the books are closed.
			eventually.True(t, "nothing is left", func() bool { return w.handler.Unknown.Waiting() == 0 && w.budget.HeldBytes() == 0 })
		})
	}
}

// The controller asks each activator whether it follows a plan. One that follows it and does not
// know a revision would not serve.
func TestAnActivatorTellsWhichPlanItFollows(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	probe := func(host, from string, header ...string) string {
		status, got, _ := w.ask(host, append([]string{wire.HeaderNetworkProbe, wire.ProbeIngress, wire.HeaderResting, from}, header...)...)
		return fmt.Sprint(status, " ", got.Get(wire.HeaderNetworkHash), got.Get(wire.HeaderResting))
	}
	expect := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	expect("that follows no plans", probe("hello.example.com", "external"), "400 ")
	w.handler.Plans.Follow()
	began := time.Now()
	expect("without a plan", probe("hello.example.com", "external"), "404 unknown")
	w.rests(`{"host":"hello.example.com","to":[{"rev":"a","pct":99},{"rev":"b","pct":1}]}`)
	w.serves("a")
	expect("without a revision", probe("hello.example.com", "external"), "404 unknown")
	if time.Since(began) > 30*time.Second {
		t.Error("a probe waits")
	}
	w.serves("b")
	expect("with both", probe("hello.example.com", "external"), "200 "+restingAnswer)
	expect("inside the cluster", probe("hello.ns", "local"), "200 "+restingAnswer)
	expect("at the other gateways", probe("hello.ns", "external"), "404 unknown")
	expect("through a common HTTPRoute, with its hash", probe("hello.example.com", "external", wire.HeaderNetworkHash, "abc"), "200 abc")
}
