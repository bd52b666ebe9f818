package ready

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/wire"
)

// gateway answers probes as one gateway pod with a backend behind it does.
type gateway struct {
	hash   atomic.Value // of the plan it follows
	status atomic.Int32 // instead of 200
	host   atomic.Value // it was last asked for
	asked  atomic.Int32
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.host.Store(r.Host)
	g.asked.Add(1)
	if r.Header.Get(wire.HeaderNetworkProbe) != wire.ProbeIngress {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	if s := g.status.Load(); s != 0 {
		w.Header().Set("Location", "https://"+r.Host+"/")
		w.WriteHeader(int(s))
		return
	}
	w.Header().Set(wire.HeaderNetworkHash, g.hash.Load().(string))
}

type pods map[string][]string

func (p pods) Addresses(_ context.Context, service string, _ int32) ([]string, error) {
	if len(p[service]) == 0 {
		return nil, &net.AddrError{Err: "no pod", Addr: service}
	}
	return p[service], nil
}

func start(t *testing.T) (*gateway, string) {
	g := &gateway{}
	g.hash.Store("old")
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	return g, strings.TrimPrefix(server.URL, "http://")
}

func run(t *testing.T, gateways Gateways) (*Prober, chan types.NamespacedName) {
	live := make(chan types.NamespacedName, 16)
	p := New(gateways, func(key types.NamespacedName) { live <- key })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	running := make(chan struct{})
	go func() { defer close(done); close(running); p.Run(ctx) }()
	<-running
	t.Cleanup(func() { cancel(); <-done })
	return p, live
}

// until asks Check, as a reconciler does each time it is woken, until the plan is live.
func until(t *testing.T, p *Prober, live chan types.NamespacedName, want Want) {
	t.Helper()
	for {
		if ok, _ := p.Check(key, want); ok {
			return
		}
		select {
		case <-live:
		case <-t.Context().Done():
			t.Fatal("never live")
		}
	}
}

var key = types.NamespacedName{Namespace: "ns", Name: "hello"}

func TestAPlanIsLiveOnceEveryPodFollowsIt(t *testing.T) {
	one, oneAddress := start(t)
	two, twoAddress := start(t)
	p, live := run(t, pods{"gw": {oneAddress, twoAddress}})
	want := Want{Hash: "new", Probes: []Probe{{Service: "gw", Port: 80, Host: "hello.ns.example.com"}}}
	if ok, _ := p.Check(key, want); ok {
		t.Fatal("live before anybody was asked")
	}
	one.hash.Store("new")
	for two.asked.Load() < 3 { // it is asked again and again, the other one no more
		if ok, why := p.Check(key, want); ok {
			t.Fatalf("live although a pod follows an older plan (%s)", why)
		}
	}
	if _, why := p.Check(key, want); !strings.Contains(why, twoAddress) || !strings.Contains(why, "older plan") {
		t.Errorf("the reason does not name the pod that lags: %s", why)
	}
	two.hash.Store("new")
	until(t, p, live, want)
	if got := two.host.Load(); got != "hello.ns.example.com" {
		t.Errorf("asked for host %v", got)
	}
	p.Forget(key)
	if p.Known(key) {
		t.Error("a forgotten plan is known")
	}
}

func TestANewerPlanReplacesTheOlder(t *testing.T) {
	g, address := start(t)
	p, live := run(t, pods{"gw": {address}})
	probes := []Probe{{Service: "gw", Port: 80, Host: "h"}}
	p.Check(key, Want{Hash: "first", Probes: probes})
	g.hash.Store("second")
	until(t, p, live, Want{Hash: "second", Probes: probes})
	if ok, _ := p.Check(key, Want{Hash: "first", Probes: probes}); ok {
		t.Error("the older plan counts as live")
	}
}

func TestAnAnswerWithoutTheWayBehindItIsNotEnough(t *testing.T) {
	g, address := start(t)
	g.hash.Store("new")
	g.status.Store(503)
	p, live := run(t, pods{"gw": {address}})
	want := Want{Hash: "new", Probes: []Probe{{Service: "gw", Port: 80, Host: "h"}}}
	p.Check(key, want)
	for g.asked.Load() < 2 {
		if ok, _ := p.Check(key, want); ok {
			t.Fatal("503 counts as live")
		}
	}
	g.status.Store(0)
	until(t, p, live, want)
}

func TestARedirectIsWhatARedirectedHostAnswers(t *testing.T) {
	g, address := start(t)
	g.status.Store(301)
	p, live := run(t, pods{"gw": {address}})
	until(t, p, live, Want{Hash: "new", Probes: []Probe{{Service: "gw", Port: 80, Host: "h", Redirect: true}}})
}

func TestNoGatewayPodIsAReason(t *testing.T) {
	p, _ := run(t, pods{})
	want := Want{Hash: "new", Probes: []Probe{{Service: "ns/gw", Port: 80, Host: "h"}}}
	for {
		if ok, why := p.Check(key, want); ok {
			t.Fatal("live without a pod")
		} else if strings.Contains(why, "ns/gw") {
			return
		}
	}
}

// The same plan at other gateways is another question.
func TestAnAnswerIsAboutTheGatewaysThatWereAsked(t *testing.T) {
	g, address := start(t)
	g.hash.Store("plan")
	at := func(service string) Want {
		return Want{Hash: "plan", Probes: []Probe{{Service: service, Port: 80, Host: "hello.example.com"}}}
	}
	p, live := run(t, pods{"right": {address}})
	if ok, _ := p.Check(key, at("misspelt")); ok {
		t.Fatal("live at a gateway that is not there")
	}
	until(t, p, live, at("right"))
	if ok, _ := p.Check(key, at("nowhere")); ok {
		t.Error("live at a gateway that was never asked")
	}
}

// Reconcilers still check plans when the process ends. No probe begins then that Run does not wait
// for, which the race detector sees.
func TestNoProbeBeginsAfterTheEnd(t *testing.T) {
	for range 3000 {
		p := New(pods{}, func(types.NamespacedName) {})
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { p.Run(ctx) })
		for running := false; !running; {
			p.mu.Lock()
			running = p.ctx != nil
			p.mu.Unlock()
		}
		all.Go(func() { p.Check(key, Want{Hash: "new"}) })
		cancel()
		all.Wait()
	}
}
