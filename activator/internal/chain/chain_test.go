package chain

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/plans"
	"ebb.dev/ebb/activator/internal/reach"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/otlp"
	"ebb.dev/ebb/internal/testing/reserve"
	"ebb.dev/ebb/internal/tracing"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// world is an activator on a loopback port with the pods that a test gives it.
type world struct {
	t       testing.TB
	table   *backends.Table
	handler *Handler
	budget  *hold.Budget
	url     string
	die     func() // at once
	healthy atomic.Pointer[string]
	pokes   atomic.Int64
	client  *http.Client
	// encrypt asks for TLS to the pods, with tls; encrypted says at which address which pod has it.
	encrypt   atomic.Bool
	tls       *tls.Config
	encrypted map[netip.AddrPort]netip.AddrPort
	secure    string // see tlsAddress
	// dial connects to pods; nil is over TCP.
	dial func(context.Context, string) (net.Conn, error)
}

var key = backends.Key{Namespace: "ns", Name: "rev"}

func newWorld(t testing.TB, bounds hold.Bounds) *world {
	return newWorldAt(t, bounds, "127.0.0.1")
}

func newWorldAt(t testing.TB, bounds hold.Bounds, address string) *world {
	w := &world{t: t, budget: hold.NewBudget(bounds), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}
	w.table = backends.NewTable(func(k backends.Key, info *backends.Info) *hold.Queue {
		return hold.New(info.ContainerConcurrency, w.budget.Share(k.Namespace), hold.Options{
			Pressure: func(int) { w.pokes.Add(1) },
			Open: func(b hold.Backend) *reach.Pod {
				return reach.NewAt(b.Address, w.encrypted[b.Address], reach.Options{
					Upstream: forward.UpstreamOptions{DialTimeout: 5 * time.Second, Dial: w.dial}, Encrypt: w.encrypt.Load, TLS: w.tls})
			},
		})
	})
	w.setHealth("")
	w.handler = &Handler{Table: w.table, Plans: plans.NewTable("cluster.local"), Unknown: plans.NewRoom(w.budget.Share("")), Domain: "cluster.local", Self: "10.9.9.9:8014",
		Healthy: func() string { return *w.healthy.Load() }, ReportNow: func(backends.Key) { w.pokes.Add(1) }}
	server := &forward.Server{Handler: w.handler, TimeoutReply: TimeoutReply, StripResponse: []string{wire.HeaderRefused}}
	listener, err := net.Listen("tcp", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(listener)
	w.url = "http://" + listener.Addr().String()
	w.die = func() {
		server.Close()
		listener.Close() // in case that nobody serves it yet
	}
	t.Cleanup(func() {
		w.client.CloseIdleConnections()
		server.Close()
	})
	return w
}

func (w *world) setHealth(why string) { w.healthy.Store(&why) }

func (w *world) revision(info backends.Info) *backends.Revision {
	info.UID = "u"
	w.table.SetRevision(key, &info)
	return w.table.Get(key)
}

// pod starts a pod and returns its endpoint.
func (w *world) pod(name string, handler http.HandlerFunc) backends.Endpoint {
	server := httptest.NewServer(handler)
	w.t.Cleanup(server.Close)
	return backends.Endpoint{Address: netip.MustParseAddrPort(server.Listener.Addr().String()), Pod: name, Ready: true}
}

func (w *world) pods(endpoints ...backends.Endpoint) { w.table.SetSlice(key, "s", endpoints) }

// send sends a request to the revision by headers and returns status, header and body.
func (w *world) send(method, body string, header ...string) (int, http.Header, string) {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), method, w.url+"/path?q=1", strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	request.Host = "hello.example.com"
	request.Header.Set(wire.HeaderRevision, "rev")
	request.Header.Set(wire.HeaderNamespace, "ns")
	for i := 0; i < len(header); i += 2 {
		switch {
		case header[i] == "Host":
			request.Host = header[i+1]
		case header[i+1] == "":
			request.Header.Del(header[i])
		default:
			request.Header.Set(header[i], header[i+1])
		}
	}
	response, err := w.client.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(text)
}

func TestProbesAreAnsweredHere(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	for _, c := range []struct {
		name    string
		header  []string
		health  string
		status  int
		body    string
		gotHash string
	}{
		{name: "kubelet", header: []string{"User-Agent", "kube-probe/1.35", wire.HeaderRevision, "", "Host", "10.0.0.1:8012"}, status: 200},
		{name: "a request that calls itself the kubelet's", header: []string{"User-Agent", "kube-probe/1.35"}, status: 404,
			body: "Error getting active endpoint: revision ns/rev is not known"},
		{name: "kubelet while draining", header: []string{"User-Agent", "kube-probe/1.35", wire.HeaderRevision, ""}, health: "shutting down", status: 500, body: "shutting down"},
		{name: "ingress", header: []string{wire.HeaderNetworkProbe, "probe", wire.HeaderNetworkHash, "abc"}, status: 200, gotHash: "abc"},
		{name: "ingress without hash", header: []string{wire.HeaderNetworkProbe, "probe"}, status: 400, body: "a probe without K-Network-Hash"},
		{name: "component", header: []string{wire.HeaderNetworkProbe, "activator"}, status: 200, body: "activator"},
		{name: "component while draining", header: []string{wire.HeaderNetworkProbe, "activator"}, health: "shutting down", status: 200, body: "activator"},
		{name: "another component's", header: []string{wire.HeaderNetworkProbe, "queue"}, status: 400, body: `unexpected probe header value: "queue"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.setHealth(c.health)
			status, header, body := w.send("GET", "", c.header...)
			if status != c.status || body != c.body || header.Get(wire.HeaderNetworkHash) != c.gotHash {
				t.Errorf("got %d %q, hash %q", status, body, header.Get(wire.HeaderNetworkHash))
			}
		})
	}
}

// A service at zero starts for every request to it, also for one that borrows a prober's name.
func TestARequestThatCallsItselfAProbeWakesItsRevision(t *testing.T) {
	for _, agent := range []string{wire.AgentKubelet + "1.35", wire.AgentActivatorProbe, wire.AgentAutoscalerProbe} {
		for name, header := range map[string][]string{"headers": nil, "host": {wire.HeaderRevision, "", "Host", "rev.ns.svc.cluster.local"}} {
			t.Run(agent+" by "+name, func(t *testing.T) {
				w := newWorld(t, hold.Bounds{})
				w.revision(backends.Info{})
				pod := w.pod("p", func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "awake") })
				answered := make(chan string)
				go func() {
					_, _, body := w.send("GET", "", append([]string{"User-Agent", agent}, header...)...)
					answered <- body
				}()
				eventually.True(t, "it waits for a pod", func() bool { return w.budget.Held() == 1 && w.pokes.Load() > 0 })
				w.pods(pod)
				if body := <-answered; body != "awake" {
					t.Errorf("got %q", body)
				}
			})
		}
	}
}

func TestTheRevisionIsFoundByHeadersOrHost(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	w.revision(backends.Info{})
	w.pods(w.pod("p", func(http.ResponseWriter, *http.Request) {}))
	for _, c := range []struct {
		name   string
		header []string
		status int
		body   string
	}{
		{"headers", nil, 200, ""},
		{"host", []string{wire.HeaderRevision, "", "Host", "rev.ns.svc.cluster.local"}, 200, ""},
		{"host with port", []string{wire.HeaderRevision, "", "Host", "rev.ns.svc.cluster.local:80"}, 200, ""},
		{"host with a final dot", []string{wire.HeaderRevision, "", "Host", "rev.ns.svc.cluster.local.:80"}, 200, ""},
		{"host in upper case", []string{wire.HeaderRevision, "", "Host", "Rev.NS.Svc.Cluster.Local"}, 200, ""},
		{"host in upper case with a final dot and a port", []string{wire.HeaderRevision, "", "Host", "REV.NS.:80"}, 200, ""},
		{"shortest host", []string{wire.HeaderRevision, "", "Host", "rev.ns"}, 200, ""},
		{"host without a namespace", []string{wire.HeaderRevision, "", "Host", "rev"}, 404, "names no revision"},
		{"short host", []string{wire.HeaderRevision, "", "Host", "rev.ns.svc"}, 200, ""},
		{"host of another domain", []string{wire.HeaderRevision, "", "Host", "rev.ns.svc.example.com"}, 404, "names no revision"},
		{"host outside", []string{wire.HeaderRevision, "", "Host", "hello.example.com"}, 404, "names no revision"},
		{"a revision that is not there", []string{wire.HeaderRevision, "other"}, 404, "Error getting active endpoint: revision ns/other is not known"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if status, _, body := w.send("GET", "", c.header...); status != c.status || !strings.Contains(body, c.body) {
				t.Errorf("got %d %q", status, body)
			}
		})
	}
}

func TestWhatThePodIsTold(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	var got *http.Request
	w.revision(backends.Info{ContainerConcurrency: 1})
	w.pods(w.pod("p", func(rw http.ResponseWriter, r *http.Request) {
		got = r
		rw.Header().Set(wire.HeaderRefused, "a user container lies")
		fmt.Fprint(rw, "hello")
	}))
	status, header, body := w.send("GET", "", wire.HeaderNetworkHash, "x", "X-Own", "kept")
	if status != 200 || body != "hello" || header.Get(wire.HeaderRefused) != "" {
		t.Fatalf("got %d %q %v", status, body, header)
	}
	for name, want := range map[string]string{
		wire.HeaderOriginalHost: "hello.example.com", wire.HeaderProxyRequest: "activator", wire.HeaderRevision: "rev",
		wire.HeaderNamespace: "ns", wire.HeaderNetworkHash: "", wire.HeaderNoQueue: "10.9.9.9:8014", "X-Own": "kept",
	} {
		if got.Header.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, got.Header.Get(name), want)
		}
	}
	if got.RequestURI != "/path?q=1" {
		t.Errorf("the path is %q", got.RequestURI)
	}
	w.send("GET", "", wire.HeaderOriginalHost, "first.example.com")
	if got.Header.Get(wire.HeaderOriginalHost) != "first.example.com" {
		t.Errorf("an original host that was there became %q", got.Header.Get(wire.HeaderOriginalHost))
	}
	w.send("GET", "", wire.HeaderOriginalHost, "user@host/path")
	if got.Header.Get(wire.HeaderOriginalHost) != "hello.example.com" {
		t.Errorf("an original host that is no host became %q", got.Header.Get(wire.HeaderOriginalHost))
	}
}

// In a service mesh a pod is known by its headless Service; queue-proxy gives the user container
// the Host of the client back.
func TestInAMeshAPodIsNamedByItsPrivateService(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	var mesh atomic.Bool
	w.handler.Mesh = mesh.Load
	var got *http.Request
	w.revision(backends.Info{})
	p := w.pod("p", func(_ http.ResponseWriter, r *http.Request) { got = r })
	w.pods(p)
	for _, on := range []bool{false, true, false} {
		mesh.Store(on)
		if status, _, body := w.send("GET", ""); status != 200 {
			t.Fatalf("got %d %q", status, body)
		}
		host, direct := p.Address.String(), ""
		if on {
			host, direct = "rev-private.ns", "true"
		}
		if got.Host != host || got.Header.Get(wire.HeaderDirectLB) != direct || got.Header.Get(wire.HeaderOriginalHost) != "hello.example.com" {
			t.Errorf("mesh %v: Host %q, headers %v", on, got.Host, got.Header)
		}
	}
}

// echo answers with the request's body, once it has it whole.
func echo(rw http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	rw.Write(body)
}

func TestRequestsAtZeroAreHeldAndAnswered(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	r := w.revision(backends.Info{})
	var group sync.WaitGroup
	var ok atomic.Int64
	for i := range 10 {
		group.Go(func() {
			body := strings.Repeat("x", i*30_000) // some fit the buffers, some do not
			if status, _, answer := w.send("POST", body); status == 200 && answer == body {
				ok.Add(1)
			}
		})
	}
	eventually.True(t, "ten requests wait", func() bool { return w.budget.Held() == 10 })
	if w.pokes.Load() == 0 {
		t.Error("nobody was told that requests wait")
	}
	w.pods(w.pod("p", echo))
	group.Wait()
	if ok.Load() != 10 {
		t.Errorf("%d of 10 were answered", ok.Load())
	}
	load := r.Load()
	eventually.True(t, "the accounts are zero", func() bool { _, flying := r.Queue().Load(); return load.Meter.Now() == 0 && flying == 0 })
	if load.Held.Load() != 10 || load.Requests[2].Load() != 10 {
		t.Errorf("%d were held, %d got 2xx; want 10", load.Held.Load(), load.Requests[2].Load())
	}
}

// The header is for measurements: its times tell strangers about the inside, so nobody gets it who
// did not ask for it.
func TestOnlyColdStartsTellTheirTimesAndOnlyIfAskedTo(t *testing.T) {
	for name, c := range map[string]struct {
		asked func() bool
		told  bool
	}{
		"by default":   {nil, false},
		"switched off": {func() bool { return false }, false},
		"switched on":  {func() bool { return true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			const own = "db;dur=53" // what a container sends stays
			w := newWorld(t, hold.Bounds{})
			w.handler.ColdStartHeader = c.asked
			w.revision(backends.Info{})
			began := time.Now()
			var status int
			var header http.Header
			var group sync.WaitGroup
			group.Go(func() { status, header, _ = w.send("GET", "") })
			eventually.True(t, "one waits", func() bool { return w.budget.Held() == 1 })
			w.pods(w.pod("p", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(wire.HeaderServerTiming, own) }))
			group.Wait()
			values := header.Values(wire.HeaderServerTiming)
			if status != 200 || !slices.Contains(values, own) || (len(values) > 1) != c.told {
				t.Fatalf("got %d and %s: %q, want it told: %v", status, wire.HeaderServerTiming, values, c.told)
			}
			if c.told {
				steps, err := wire.ParseColdStart(values)
				if err != nil || steps.Received.Before(began) || steps.Announced.Before(steps.Received) || steps.Forwarded.Before(steps.Announced) || steps.Via == "" {
					t.Errorf("%q: %+v, %v; began %s", values, steps, err, began)
				}
			}
			// There is a pod now, so nothing waits from zero.
			if status, header, _ := w.send("GET", ""); status != 200 || len(header.Values(wire.HeaderServerTiming)) != 1 {
				t.Errorf("a request that found a pod got %d and %q", status, header.Values(wire.HeaderServerTiming))
			}
		})
	}
}

func TestARefusedRequestGoesToThePodWithAFreeSlot(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	r := w.revision(backends.Info{ContainerConcurrency: 1})
	refusing := func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set(wire.HeaderRefused, wire.RefusedLimit)
		rw.WriteHeader(wire.RefusedStatus)
	}
	endpoints := []backends.Endpoint{w.pod("full-1", refusing), w.pod("free", echo), w.pod("full-2", refusing)}
	w.pods(endpoints...)
	for _, size := range []int{0, 10, 500_000} {
		body := strings.Repeat("b", size)
		if status, _, answer := w.send("POST", body); status != 200 || answer != body {
			t.Fatalf("%d bytes: got %d and %d bytes", size, status, len(answer))
		}
	}
	eventually.True(t, "the slots are back", func() bool { _, flying := r.Queue().Load(); return flying == 0 })
}

// A pod that has taken over the address of another one refuses what is not for its revision, and
// one whose container has ended refuses everything. The request goes to another pod, or waits for
// one.
func TestARequestThatMeetsAnotherRevisionsPodGoesToItsOwn(t *testing.T) {
	for _, why := range []string{wire.RefusedRevision, wire.RefusedDown} {
		for _, limit := range []int{0, 1} {
			meetsAnother(t, why, limit)
		}
	}
}

func meetsAnother(t *testing.T, why string, limit int) {
	w := newWorld(t, hold.Bounds{})
	r := w.revision(backends.Info{ContainerConcurrency: limit})
	var met atomic.Int64
	other := w.pod("other", func(rw http.ResponseWriter, r *http.Request) {
		met.Add(1)
		rw.Header().Set(wire.HeaderRefused, why)
		rw.WriteHeader(wire.RefusedStatus)
	})
	w.pods(other)
	answered := make(chan string)
	go func() {
		status, _, body := w.send("POST", "body")
		answered <- fmt.Sprint(status, body)
	}()
	eventually.True(t, "the other pod refuses the request", func() bool { return met.Load() > 1 })
	own := w.pod("own", func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprint(rw, r.Header.Get(wire.HeaderNamespace), "/", r.Header.Get(wire.HeaderRevision))
	})
	w.pods(other, own)
	if got := <-answered; got != "200ns/rev" {
		t.Errorf("%s, limit %d: got %q", why, limit, got)
	}
	eventually.True(t, "the slots are back", func() bool { _, flying := r.Queue().Load(); return flying == 0 })
}

// A request whose body has been sent cannot go to another pod. The next ones do.
func TestAPodThatCannotTakeAnyRequestIsLeftAloneAfterTheFirst(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	r := w.revision(backends.Info{})
	var met atomic.Int64
	down := w.pod("down", func(rw http.ResponseWriter, r *http.Request) {
		met.Add(1)
		rw.Header().Set(wire.HeaderRefused, wire.RefusedDown)
		rw.WriteHeader(wire.RefusedStatus)
	})
	w.pods(down, w.pod("up", func(rw http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	const requests = 50
	refused := 0
	for range requests {
		if status, _, _ := w.send("POST", strings.Repeat("b", 1<<18)); status == wire.RefusedStatus {
			refused++
		}
	}
	if n := int(met.Load()); n != refused || n > requests/4 {
		t.Errorf("%d of %d requests met the pod, %d were refused", n, requests, refused)
	}
	eventually.True(t, "the slots are back", func() bool { _, flying := r.Queue().Load(); return flying == 0 })
}

func TestADeadPodIsPassedOver(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	r := w.revision(backends.Info{ContainerConcurrency: 1})
	live := w.pod("live", func(rw http.ResponseWriter, r *http.Request) {})
	w.pods(backends.Endpoint{Address: reserve.Port(t), Pod: "dead", Ready: true}, live)
	for range 20 {
		if status, _, body := w.send("GET", ""); status != 200 {
			t.Fatalf("got %d %q", status, body)
		}
	}
	eventually.True(t, "the slots are back", func() bool { _, flying := r.Queue().Load(); return flying == 0 })
}

// A pod whose node's kernel answers, also by refusing, is no dead node's.
func TestOnlySilenceIsToldOf(t *testing.T) {
	connect := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"nobody answers in time":    {connect(os.ErrDeadlineExceeded), true},
		"nobody has the address":    {connect(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), true},
		"it is refused":             {connect(os.NewSyscallError("connect", syscall.ECONNREFUSED)), false},
		"there is no route":         {connect(os.NewSyscallError("connect", syscall.ENETUNREACH)), false},
		"no file is left":           {connect(os.NewSyscallError("socket", syscall.EMFILE)), false},
		"the handshake hangs":       {context.DeadlineExceeded, false},
		"a read of it takes long":   {&net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}, false},
		"the connection is dropped": {io.ErrUnexpectedEOF, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, hold.Bounds{})
			var told atomic.Pointer[string]
			w.handler.Unreached = func(x *Exchange) {
				pod := x.Pod
				told.Store(&pod)
			}
			lives := w.pod("lives", func(http.ResponseWriter, *http.Request) {})
			dead := backends.Endpoint{Address: netip.MustParseAddrPort("192.0.2.1:8012"), Pod: "dead", Ready: true}
			w.dial = func(ctx context.Context, address string) (net.Conn, error) {
				if address == dead.Address.String() {
					return nil, c.err
				}
				return new(net.Dialer).DialContext(ctx, "tcp", address)
			}
			w.revision(backends.Info{Timeout: time.Minute, ContainerConcurrency: 1})
			w.pods(dead)
			answered := make(chan int, 1)
			go func() { status, _, _ := w.send("GET", ""); answered <- status }()
			eventually.True(t, "the request waits", func() bool { return w.table.Get(key).Queued() > 0 })
			w.pods(dead, lives)
			if status := <-answered; status != 200 {
				t.Errorf("status %d", status)
			}
			if pod := told.Load(); (pod != nil) != c.want || pod != nil && *pod != "dead" {
				t.Errorf("told of %v", pod)
			}
		})
	}
}

func TestAUserContainersOwn503IsPassedOn(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	w.revision(backends.Info{ContainerConcurrency: 1})
	w.pods(w.pod("p", func(rw http.ResponseWriter, r *http.Request) { http.Error(rw, "mine", http.StatusServiceUnavailable) }))
	if status, _, body := w.send("GET", ""); status != 503 || body != "mine\n" {
		t.Errorf("got %d %q", status, body)
	}
}

func TestBeyondTheBoundTheAnswerComesAtOnce(t *testing.T) {
	w := newWorld(t, hold.Bounds{PerRevision: 1})
	w.revision(backends.Info{})
	var group sync.WaitGroup
	group.Go(func() { w.send("GET", "") })
	eventually.True(t, "one waits", func() bool { return w.budget.Held() == 1 })
	status, header, body := w.send("GET", "")
	if status != 503 || header.Get("Retry-After") == "" || !strings.HasPrefix(body, "pending request queue full") {
		t.Errorf("got %d %q, Retry-After %q", status, body, header.Get("Retry-After"))
	}
	w.pods(w.pod("p", func(http.ResponseWriter, *http.Request) {}))
	group.Wait()
}

func TestATimeoutWhileHeldNamesItsTimer(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	w.revision(backends.Info{Timeout: time.Hour, ResponseStartTimeout: 50 * time.Millisecond})
	status, _, body := w.send("GET", "")
	if status != 504 || !strings.HasPrefix(body, "activator request timeout") || !strings.Contains(body, "responseStartTimeoutSeconds") {
		t.Errorf("got %d %q", status, body)
	}
	eventually.True(t, "nothing waits", func() bool { return w.budget.Held() == 0 })
}

func TestAClientThatLeavesWhileHeldLeavesNothingBehind(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	r := w.revision(backends.Info{})
	ctx, cancel := context.WithCancel(t.Context())
	request, _ := http.NewRequestWithContext(ctx, "GET", w.url, nil)
	request.Header.Set(wire.HeaderRevision, "rev")
	request.Header.Set(wire.HeaderNamespace, "ns")
	done := make(chan error, 1)
	go func() {
		_, err := w.client.Do(request)
		done <- err
	}()
	eventually.True(t, "it waits", func() bool { return w.budget.Held() == 1 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	eventually.True(t, "its place is free", func() bool { return w.budget.Held() == 0 && r.Load().Meter.Now() == 0 })
}

func TestARevisionThatCannotStartTellsWhy(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	w.revision(backends.Info{Failure: "ImagePullBackOff: no such image"})
	began := time.Now()
	status, header, body := w.send("GET", "")
	if status != 503 || !strings.Contains(body, "ImagePullBackOff: no such image") || header.Get("Retry-After") == "" {
		t.Errorf("got %d %q", status, body)
	}
	if took := time.Since(began); took < hold.FailAfter {
		t.Errorf("answered after %s, although the condition may be stale", took)
	}
	before := w.pokes.Load()
	if status, _, _ := w.send("GET", ""); status != 503 || w.pokes.Load() == before {
		t.Errorf("the next got %d; poked %v", status, w.pokes.Load() > before)
	}
}

// Pods without a limit take whatever comes, so that nothing waits and only growth tells of a burst.
func TestABurstToPodsWithoutALimitIsReportedAtOnce(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	r := w.revision(backends.Info{})
	release := make(chan struct{})
	w.pods(w.pod("p", func(http.ResponseWriter, *http.Request) { <-release }))
	var all sync.WaitGroup
	for n := range 12 {
		all.Go(func() { w.send("GET", "") })
		eventually.True(t, "it is here", func() bool { return r.Load().Meter.Now() == n+1 })
		want := int64(0)
		switch {
		case n+1 >= 10:
			want = 2
		case n+1 >= 5:
			want = 1
		}
		eventually.True(t, fmt.Sprintf("%d reports out of turn at %d requests", want, n+1), func() bool { return w.pokes.Load() == want })
	}
	if waiting, _ := r.Queue().Load(); waiting != 0 {
		t.Errorf("%d requests wait", waiting)
	}
	close(release)
	all.Wait()
}

func TestAHeldRequestsTraceReachesThePod(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	var spans bytes.Buffer // Done comes before the client has the whole response
	tracer, err := tracing.New(tracing.Options{Target: otlp.Target{Protocol: tracing.Stdout}, Rate: 1, Stdout: &spans})
	if err != nil {
		t.Fatal(err)
	}
	w.handler.Tracer = func() *tracing.Tracer { return tracer }
	w.revision(backends.Info{Early: true, Service: "svc"})
	seen := make(chan string, 1)
	ended := make(chan bool, 1)
	w.handler.Ended = func(*Exchange, *forward.Request, *forward.Result) { ended <- true }
	w.pods(w.pod("a", func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header.Get("Traceparent") }))
	if status, _, _ := w.send("GET", ""); status != 200 {
		t.Fatalf("got %d", status)
	}
	<-ended
	parent := <-seen
	if len(parent) != 55 || !strings.Contains(spans.String(), parent[3:35]) || !strings.Contains(spans.String(), parent[36:52]) ||
		!strings.Contains(spans.String(), `"kn.service.name":"svc"`) || strings.Count(spans.String(), "\n") != 2 {
		t.Errorf("the pod was told %q, the spans are %s", parent, spans.String())
	}
}
