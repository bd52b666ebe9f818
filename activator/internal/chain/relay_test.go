package chain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/relay"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// fields answers with all fields of the request's header.
func fields(rw http.ResponseWriter, r *http.Request) {
	var lines []string
	for name, values := range r.Header {
		lines = append(lines, fmt.Sprint(name, ": ", values))
	}
	slices.Sort(lines)
	io.WriteString(rw, strings.Join(lines, "\n"))
}

// Wherever a gateway leads it, a request for a host that rests is counted by one of two activators,
// and the pod sees the same.
func TestRequestsOfARevisionGatherAtTwoActivators(t *testing.T) {
	f := newFleet(t, 4)
	f.revision(backends.Info{ContainerConcurrency: 5})
	f.pods(f.other.pod("p", fields))
	_, want := f.two[0].led("GET", "")
	for _, w := range f.all {
		for range 20 {
			if status, got := w.led("GET", "", wire.HeaderRelayed, "of the client"); status != 200 || got != want {
				t.Fatalf("got %d, and the pod saw\n%s\nof others\n%s", status, got, want)
			}
		}
	}
	f.counts(81)
	for _, w := range f.all {
		requests, relayed := w.counted()
		gathers := slices.Contains(f.two, w)
		if gathers && (requests < 21 || relayed > 0) || !gathers && (requests > 0 || relayed != 20) {
			t.Errorf("gathers %v: %d counted, %d relayed", gathers, requests, relayed)
		}
	}
}

// A queue is in two pieces, and whoever relays to it keeps account of the memory.
func TestRequestsAtZeroWaitAtTwoActivators(t *testing.T) {
	f := newFleet(t, 4)
	f.revision(backends.Info{})
	var group sync.WaitGroup
	for _, w := range f.all {
		for range 10 {
			group.Go(func() {
				body := strings.Repeat("x", 100_000)
				if status, answer := w.led("POST", body); status != 200 || answer != body {
					t.Errorf("got %d and %d bytes", status, len(answer))
				}
			})
		}
	}
	eventually.True(t, "all wait at two", func() bool { return f.two[0].budget.Held()+f.two[1].budget.Held() == 40 })
	for _, w := range f.all {
		waits, here := w.budget.Held(), w.table.Get(key).Load().Meter.Now()
		if gathers := slices.Contains(f.two, w); gathers && (waits < 10 || here != int(waits)) || !gathers && (waits+int64(here) > 0 || w.budget.HeldBytes() < 10*requestCost) {
			t.Errorf("gathers %v: %d wait, %d are here, with %d bytes", gathers, waits, here, w.budget.HeldBytes())
		}
	}
	f.pods(f.other.pod("p", echo))
	group.Wait()
	f.counts(40)
}

func TestWhatIsServedWhereItComes(t *testing.T) {
	limited := backends.Info{ContainerConcurrency: 1}
	for name, c := range map[string]struct {
		info   backends.Info
		change func(*fleet)
		header []string
	}{
		"pods without a limit":               {backends.Info{}, nil, nil},
		"pods that take more than two carry": {backends.Info{ContainerConcurrency: 201}, nil, nil},
		"TLS inside the cluster":             {limited, func(f *fleet) { f.other.handler.Relay.Off = func() bool { return true } }, nil},
		"two activators":                     {limited, func(f *fleet) { f.other.knows(f.two...) }, nil},
		"the gateway names the revision":     {limited, nil, []string{wire.HeaderRevision, "rev", wire.HeaderNamespace, "ns"}},
		"another activator has relayed it":   {limited, nil, []string{wire.HeaderRevision, "rev", wire.HeaderNamespace, "ns", wire.HeaderRelayed, "true"}},
		"its host names the revision":        {limited, nil, []string{wire.HeaderResting, "", "Host", "rev.ns"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 3)
			f.revision(c.info)
			f.pods(f.other.pod("p", fields))
			if c.change != nil {
				c.change(f)
			}
			status, seen := f.other.led("GET", "", c.header...)
			if status != 200 || strings.Contains(seen, wire.HeaderRelayed) {
				t.Errorf("got %d, and the pod saw %s", status, seen)
			}
			f.counts(1)
			if requests, relayed := f.other.counted(); requests != 1 || relayed != 0 {
				t.Errorf("%d are counted here, %d as relayed", requests, relayed)
			}
		})
	}
}

// A request takes memory where it is relayed, too, and without room there it goes no further.
func TestARequestWithoutRoomIsNotRelayed(t *testing.T) {
	f := newFleet(t, 3)
	f.revision(backends.Info{})
	share := f.other.table.Get(key).Queue().Share()
	if err := share.Take(hold.DefaultPerRevisionBytes); err != nil {
		t.Fatal(err)
	}
	if status, body := f.other.led("GET", ""); status != 503 || !strings.Contains(body, "queue full") {
		t.Errorf("got %d %q", status, body)
	}
	share.Give(hold.DefaultPerRevisionBytes)
	f.counts(1)
	if n := f.other.budget.Refusals(); n != 1 {
		t.Errorf("%d refusals are counted", n)
	}
	if requests, relayed := f.other.counted(); requests != 1 || relayed != 0 {
		t.Errorf("%d are counted here, %d as relayed", requests, relayed)
	}
}

// The timers are those of the activator that counts the request.
func TestATimeoutOfARelayedRequestIsCountedOnce(t *testing.T) {
	f := newFleet(t, 3)
	f.revision(backends.Info{Timeout: 100 * time.Millisecond})
	if status, body := f.other.led("GET", ""); status != 504 || !strings.Contains(body, "timeoutSeconds is 100ms") {
		t.Errorf("got %d %q", status, body)
	}
	f.counts(1)
	timedOut := func(w *world) int64 { return w.table.Get(key).Load().NotCompleted[forward.TimedOut].Load() }
	if n, m := timedOut(f.two[0])+timedOut(f.two[1]), timedOut(f.other); n != 1 || m != 0 {
		t.Errorf("%d are counted where it waited, %d where it was relayed", n, m)
	}
}

func TestAClientThatLeavesWhileItsRequestWaitsElsewhereLeavesNothing(t *testing.T) {
	f := newFleet(t, 3)
	f.revision(backends.Info{})
	ctx, leave := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, "GET", f.other.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "hello.example.com"
	request.Header.Set(wire.HeaderResting, "external")
	done := make(chan error, 1)
	go func() {
		_, err := f.other.client.Do(request)
		done <- err
	}()
	eventually.True(t, "it waits", func() bool { return f.two[0].budget.Held()+f.two[1].budget.Held() == 1 })
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	f.counts(1)
}

// What could not be sent is served where it came. After the first attempt nobody tries for a while.
func TestAnActivatorThatCannotBeReachedCostsNoRequest(t *testing.T) {
	for name, dead := range map[string]int{"one of the two": 1, "both": 2} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 3)
			f.revision(backends.Info{ContainerConcurrency: 2})
			f.pods(f.other.pod("p", echo))
			for _, w := range f.two[:dead] {
				w.die()
			}
			body := strings.Repeat("b", 100_000)
			for range 20 {
				if status, answer := f.other.led("POST", body); status != 200 || answer != body {
					t.Fatalf("got %d and %d bytes", status, len(answer))
				}
			}
			f.counts(20)
			if requests, relayed := f.other.counted(); dead == 2 && relayed > 0 || dead == 1 && relayed == 0 {
				t.Errorf("%d were served here, %d relayed", requests, relayed)
			}
		})
	}
}

// An activator that is behind does not know a revision that another one leads requests to.
func TestAnActivatorThatDoesNotKnowTheRevisionCostsNoRequest(t *testing.T) {
	f := newFleet(t, 3)
	f.revision(backends.Info{ContainerConcurrency: 2})
	f.pods(f.other.podH2("p", echo))
	for _, w := range f.two {
		w.table.DeleteRevision(key)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	over2 := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	defer over2.CloseIdleConnections()
	for _, client := range []*http.Client{f.other.client, over2} {
		f.other.client = client
		for _, size := range []int{0, 10, 500_000} {
			body := strings.Repeat("b", size)
			if status, answer := f.other.led("POST", body); status != 200 || answer != body {
				t.Errorf("%d bytes: got %d and %d bytes", size, status, len(answer))
			}
		}
	}
	f.counts(6)
	if requests, relayed := f.other.counted(); requests != 6 || relayed != 0 {
		t.Errorf("%d were served here, %d relayed", requests, relayed)
	}
}

// relaysOnlyTo has all that the outsider knows be one, wherever the revision's requests gather.
func (f *fleet) relaysOnlyTo(listener net.Listener) {
	only := netip.MustParseAddrPort(listener.Addr().String())
	var addresses []netip.AddrPort
	for i := range byte(3) {
		addresses = append(addresses, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 100 + i}), only.Port()))
	}
	open := f.other.handler.Relay.Open
	f.other.handler.Relay.Open = func(netip.AddrPort) *forward.Upstream { return open(only) }
	f.other.handler.Relay.SetSlice("s", addresses)
}

// One that takes a request and dies counts nothing, so who relayed it does.
func TestAnActivatorThatDiesWithARequest(t *testing.T) {
	f := newFleet(t, 3)
	f.revision(backends.Info{})
	listener, err := net.Listen("tcp", "127.0.0.9:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 4096))
			c.Close()
		}
	}()
	f.relaysOnlyTo(listener)
	if status, body := f.other.led("POST", "body"); status != 502 {
		t.Errorf("got %d %q", status, body)
	}
	f.counts(1)
	load := f.other.table.Get(key).Load()
	if requests, relayed := f.other.counted(); requests != 1 || relayed != 0 || load.NotCompleted[forward.UpstreamFailed].Load() != 1 {
		t.Errorf("%d are counted here, %d as relayed", requests, relayed)
	}
}

// One that accepts connections and does nothing: who relayed the request ends it, counts it, and
// relays no more there for a while.
func TestAnActivatorThatHangs(t *testing.T) {
	f := newFleet(t, 3)
	f.revision(backends.Info{Timeout: 100 * time.Millisecond})
	listener, err := net.Listen("tcp", "127.0.0.9:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	f.relaysOnlyTo(listener)
	if status, body := f.other.led("GET", ""); status != 504 {
		t.Errorf("got %d %q", status, body)
	}
	load, choice := f.other.table.Get(key).Load(), &f.other.table.Get(key).Relay
	eventually.True(t, "it is counted here", func() bool { return load.NotCompleted[forward.TimedOut].Load() == 1 })
	if requests, relayed := f.other.counted(); requests != 1 || relayed != 0 {
		t.Errorf("%d are counted here, %d as relayed", requests, relayed)
	}
	left := map[*relay.Activator]bool{}
	for range 50 {
		left[f.other.handler.Relay.For(choice, key.Name, time.Now())] = true
	}
	if len(left) != 1 {
		t.Errorf("the next requests are relayed to %d activators", len(left))
	}
}

// What a client says of being relayed is for those that name a revision, and gives it only another
// answer where nobody knows that.
func TestAClientThatSaysEbbRelayed(t *testing.T) {
	f := newFleet(t, 3)
	f.revision(backends.Info{ContainerConcurrency: 1})
	f.pods(f.other.pod("p", fields))
	for range 5 {
		if status, seen := f.other.led("GET", "", wire.HeaderRelayed, "true"); status != 200 || strings.Contains(seen, wire.HeaderRelayed) {
			t.Errorf("for a host that rests: got %d, and the pod saw %s", status, seen)
		}
	}
	eventually.True(t, "it is relayed all the same", func() bool { _, relayed := f.other.counted(); return relayed == 5 })
	unknown := []string{wire.HeaderRevision, "other", wire.HeaderRelayed, "true"}
	if status, header, _ := f.other.send("GET", "", unknown...); status != wire.RefusedStatus || header.Get(wire.HeaderRefused) != wire.RefusedRevision {
		t.Errorf("of a revision that nobody knows: got %d, %q", status, header.Get(wire.HeaderRefused))
	}
	w := newWorld(t, hold.Bounds{})
	if status, header, _ := w.send("GET", "", unknown...); status != 404 || header.Get(wire.HeaderRefused) != "" {
		t.Errorf("where nothing rests: got %d, %q", status, header.Get(wire.HeaderRefused))
	}
}

// While activators disagree, and some are dead or behind, each request is served once.
func TestActivatorsThatDisagreeServeEachRequestOnce(t *testing.T) {
	f := newFleet(t, 6)
	behind, dead, living := f.all[4], f.all[5], f.all[:4]
	f.revision(backends.Info{ContainerConcurrency: 3})
	var mutex sync.Mutex
	served := map[string]int{}
	serve := func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mutex.Lock()
		served[string(body)]++
		mutex.Unlock()
		rw.Write(body)
	}
	endpoints := []backends.Endpoint{f.other.pod("p", serve), f.other.pod("q", serve)}
	f.pods(endpoints...)
	behind.table.DeleteRevision(key)
	dead.die()
	stop := make(chan struct{})
	var changes, clients sync.WaitGroup
	changes.Go(func() {
		random := rand.New(rand.NewPCG(35, 2))
		for {
			select {
			case <-stop:
				return
			default:
			}
			order := random.Perm(len(f.all))
			var known []*world
			for _, i := range order[:random.IntN(len(order)+1)] {
				known = append(known, f.all[i])
			}
			living[random.IntN(len(living))].knows(known...)
			if random.IntN(10) == 0 { // to zero and back
				at := living[random.IntN(len(living))]
				at.pods()
				time.Sleep(time.Millisecond)
				at.pods(endpoints...)
			}
			time.Sleep(time.Millisecond)
		}
	})
	const each = 150
	var n atomic.Int64
	for i, w := range living {
		for range 4 {
			clients.Go(func() {
				for range each {
					id := fmt.Sprint(i, "-", n.Add(1))
					if status, answer := w.led("POST", id); status != 200 || answer != id {
						t.Errorf("%s: got %d %q", id, status, answer)
					}
				}
			})
		}
	}
	clients.Wait()
	close(stop)
	changes.Wait()
	f.counts(n.Load())
	for id, times := range served {
		if times != 1 {
			t.Errorf("%s was served %d times", id, times)
		}
	}
	var relayed int64
	for _, w := range living {
		_, here := w.counted()
		relayed += here
	}
	if len(served) != int(n.Load()) || relayed == 0 {
		t.Errorf("%d of %d were served, %d were relayed", len(served), n.Load(), relayed)
	}
}
