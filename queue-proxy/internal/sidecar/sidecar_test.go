package sidecar

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/testing/reserve"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// rig is a whole queue-proxy in front of a user container that is a handler.
type rig struct {
	*Sidecar
	t    *testing.T
	stop context.CancelFunc
	done chan error
	url  string
}

// quiet drops logs of goroutines that may outlive a test.
var quiet = slog.New(slog.DiscardHandler)

// startRig starts it, after before has seen it.
func startRig(t *testing.T, user http.HandlerFunc, change func(*wire.Sidecar), before ...func(*Sidecar)) *rig {
	t.Helper()
	backend := httptest.NewServer(user)
	t.Cleanup(backend.Close)
	cfg := &wire.Sidecar{
		Place:      wire.Place{Namespace: "ns", Revision: "rev-00001", Pod: "pod", PodIP: netip.MustParseAddr("127.0.0.1")},
		Ports:      wire.Ports{UserPort: backend.Listener.Addr().(*net.TCPAddr).Port},
		Secrets:    wire.Secrets{Token: "a-token", DrainToken: "drain-token"},
		Limits:     wire.Limits{Timeout: 30 * time.Second},
		DrainQuiet: 10 * time.Millisecond,
		Reports:    wire.Reports{WarmUp: wire.DefaultWarmUp},
		CertDir:    t.TempDir(),
	}
	if change != nil {
		change(cfg)
	}
	s, err := Listen(cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range before {
		f(s)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &rig{Sidecar: s, t: t, stop: stop, done: make(chan error, 1)}
	_, port, _ := net.SplitHostPort(s.Addr())
	r.url = "http://127.0.0.1:" + port
	go func() { r.done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-r.done; err != nil {
			t.Errorf("Run: %v", err)
		}
		r.done <- nil
	})
	return r
}

func (r *rig) get(path string, header ...string) (int, string, http.Header) {
	r.t.Helper()
	req, err := http.NewRequest("GET", r.url+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Errorf("GET %s: %v", path, err)
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), resp.Header
}

func hello(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }

func TestProbesAreAnsweredByTheirTable(t *testing.T) {
	r := startRig(t, hello, nil)
	for _, test := range []struct {
		name   string
		header []string
		status int
		body   string
		hash   string
	}{
		{"the kubelet through queue-proxy", []string{"User-Agent", "kube-probe/1.35", "K-Network-Probe", "queue"}, 200, "queue", ""},
		{"the activator's probe", []string{"User-Agent", "Knative-Activator-Probe", "K-Network-Probe", "queue"}, 200, "queue", ""},
		{"an ingress probe echoes its hash", []string{"K-Network-Probe", "probe", "K-Network-Hash", "h"}, 200, "", "h"},
		{"an ingress probe without a hash", []string{"K-Network-Probe", "probe"}, 400, "a probe needs K-Network-Hash", ""},
		{"a probe meant for somebody else", []string{"K-Network-Probe", "activator"}, 400, "unexpected probe header value: activator", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, body, header := r.get("/", test.header...)
			if status != test.status || body != test.body || header.Get("K-Network-Hash") != test.hash {
				t.Errorf("got %d %q, hash %q", status, body, header.Get("K-Network-Hash"))
			}
		})
	}
	if s := r.gate.PressureNow(time.Now()); s.Requests != 0 {
		t.Errorf("%v probes were counted as load", s.Requests)
	}
}

// KServe's agent listens before the container that the probe asks, and later.
func TestThePodIsReadyWhenTheAgentBeforeTheContainerListens(t *testing.T) {
	there := reserve.Port(t)
	r := startRig(t, hello, func(cfg *wire.Sidecar) {
		cfg.Probes = []wire.Probe{{TCPSocket: &wire.ProbeSocket{Port: wire.ProbePort(cfg.UserPort)}, SuccessThreshold: 1}}
		cfg.UserPort = int(there.Port())
	})
	ready := func(wait time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		return r.prober.Ready(ctx)
	}
	if ready(200*time.Millisecond) == nil {
		t.Error("it is ready, and nobody listens where requests go")
	}
	agent, err := net.Listen("tcp", there.String())
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(hello)}
	go server.Serve(agent)
	defer server.Close()
	if err := ready(20 * time.Second); err != nil {
		t.Error(err)
	}
	if status, body, _ := r.get("/"); status != 200 || body != "hello" {
		t.Errorf("the first request got %d %q", status, body)
	}
}

func TestTheContainerSeesTheClientsRequest(t *testing.T) {
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(wire.HeaderRefused, "forged")
		fmt.Fprintf(w, "%s|%s|%s", r.Host, r.Header.Get("Forwarded"), strings.Join([]string{
			r.Header.Get(wire.HeaderRevision), r.Header.Get(wire.HeaderNamespace), r.Header.Get(wire.HeaderOriginalHost),
			r.Header.Get(wire.HeaderProxyRequest), r.Header.Get(wire.HeaderNetworkHash)}, ""))
	}, nil)
	_, body, header := r.get("/", "Host", "inner", wire.HeaderOriginalHost, "outer.example", wire.HeaderRevision, "rev-00001", wire.HeaderNamespace, "ns",
		wire.HeaderProxyRequest, "activator", wire.HeaderNetworkHash, "h", "X-Forwarded-For", "10.0.0.1, fe80::1", "X-Forwarded-Proto", "https",
		"X-Forwarded-Host", "pub:80")
	if want := `outer.example|for=10.0.0.1;host="pub:80";proto=https, for="[fe80::1]"|`; body != want {
		t.Errorf("the container saw %q, want %q", body, want)
	}
	if header.Get(wire.HeaderRefused) != "" {
		t.Error("a container can forge a refusal")
	}
	for _, forged := range []string{"a b", "user@host", "host/path", "two,hosts/", "<script>", "\u00e4"} {
		if _, body, _ := r.get("/", "Host", "real.example", wire.HeaderOriginalHost, forged); body != "real.example||" {
			t.Errorf("with the original host %q the container saw %q", forged, body)
		}
	}
	_, body, _ = r.get("/", "Host", "plain", "Forwarded", "for=mine", "X-Forwarded-For", "10.0.0.1")
	if body != "plain|for=mine|" {
		t.Errorf("a Forwarded of the client's was changed: %q", body)
	}
}

// The address of a pod may belong to a pod of another revision, or of another tenant, before
// everybody has noticed.
func TestARequestForAnotherRevisionDoesNotReachTheContainer(t *testing.T) {
	for _, test := range []struct {
		name                string
		namespace, revision string
		status              int
	}{
		{"this revision", "ns", "rev-00001", 200},
		{"another revision", "ns", "rev-00002", wire.RefusedStatus},
		{"another namespace", "other", "rev-00001", wire.RefusedStatus},
		{"a revision of no namespace", "", "rev-00001", wire.RefusedStatus},
		{"no revision", "", "", 200},
	} {
		t.Run(test.name, func(t *testing.T) {
			var reached atomic.Int64
			r := startRig(t, func(http.ResponseWriter, *http.Request) { reached.Add(1) }, nil)
			var fields []string
			if test.revision != "" {
				fields = append(fields, wire.HeaderRevision, test.revision)
			}
			if test.namespace != "" {
				fields = append(fields, wire.HeaderNamespace, test.namespace)
			}
			status, body, header := r.get("/", fields...)
			if status != test.status {
				t.Errorf("got %d %q, want %d", status, body, test.status)
			}
			if refused := status != 200; refused != (header.Get(wire.HeaderRefused) == wire.RefusedRevision) || refused == (reached.Load() == 1) {
				t.Errorf("%s is %q, and %d requests reached the container", wire.HeaderRefused, header.Get(wire.HeaderRefused), reached.Load())
			}
		})
	}
}

// The limit, the load and the drain hold for everybody: a User-Agent proves nothing.
func TestARequestThatCallsItselfAProbeIsLimitedAndCounted(t *testing.T) {
	for _, agent := range []string{wire.AgentKubelet + "1.35", wire.AgentActivatorProbe, wire.AgentAutoscalerProbe} {
		t.Run(agent, func(t *testing.T) {
			var running, most atomic.Int64
			release := make(chan bool)
			r := startRig(t, func(w http.ResponseWriter, r *http.Request) {
				now := running.Add(1)
				for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
				}
				<-release
				running.Add(-1)
			}, func(c *wire.Sidecar) { c.Concurrency = 1 })
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if status, body, _ := r.get("/", "User-Agent", agent); status != 200 {
						t.Errorf("got %d %q", status, body)
					}
				})
			}
			for r.gate.Waiting() < 2 && running.Load() < 2 {
				time.Sleep(time.Millisecond) // as below
			}
			if inside := r.gate.Inside(); inside != 3 {
				t.Errorf("%d requests are counted, want 3", inside)
			}
			for range 3 {
				release <- true
			}
			wg.Wait()
			if most.Load() != 1 {
				t.Errorf("%d ran at once in a container that takes one", most.Load())
			}
		})
	}
}

func TestTheQueueIsBoundedAndInOrder(t *testing.T) {
	release := make(chan bool)
	var running, most int
	var mu sync.Mutex
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		<-release
		mu.Lock()
		running--
		mu.Unlock()
	}, func(c *wire.Sidecar) { c.Concurrency = 1 })
	var wg sync.WaitGroup
	statuses := make(chan string, 32)
	ask := func() {
		wg.Add(1)
		go func() {
			defer wg.Done()
			status, body, h := r.get("/")
			statuses <- fmt.Sprint(status, " ", body, h.Get("Retry-After"))
		}()
	}
	for range 11 { // one runs, ten wait
		ask()
	}
	for r.gate.Waiting() < 10 {
		time.Sleep(time.Millisecond) // waits for goroutines of net/http, which no clock of ours drives
	}
	if status, body, h := r.get("/"); status != 503 || body != "pending request queue full" || h.Get("Retry-After") == "" {
		t.Errorf("the twelfth request got %d %q", status, body)
	}
	for range 11 {
		release <- true
	}
	wg.Wait()
	close(statuses)
	for s := range statuses {
		if s != "200 " {
			t.Errorf("a queued request got %s", s)
		}
	}
	if most != 1 {
		t.Errorf("%d requests ran at once at concurrency 1", most)
	}
}

func TestInFlightReturnsToZeroAfterAnyMixOfEnds(t *testing.T) {
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hang":
			io.Copy(io.Discard, r.Body) // net/http notices a lost client only after the body
			<-r.Context().Done()
		case "/crash":
			panic(http.ErrAbortHandler)
		case "/half":
			io.Copy(io.Discard, r.Body)
			io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case "/read":
			io.Copy(io.Discard, r.Body)
		case "/switch": // though nobody asked
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
				io.Copy(io.Discard, c)
				c.Close()
			}
		case "/ws":
			echo(w, r)
		}
	}, func(c *wire.Sidecar) { c.Concurrency, c.Timeout = 2, 300*time.Millisecond })
	h2 := new(http.Protocols)
	h2.SetUnencryptedHTTP2(true)
	clients := []*http.Client{http.DefaultClient, {Transport: &http.Transport{Protocols: h2}}}
	var wg sync.WaitGroup
	for i := range 120 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			random := rand.New(rand.NewPCG(uint64(i), 7))
			ctx := context.Background()
			if random.IntN(2) == 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(100))*time.Millisecond)
				defer cancel()
			}
			path := []string{"/hang", "/crash", "/half", "/read", "/", "/ws", "/switch"}[random.IntN(7)]
			if path == "/ws" {
				// Left by the client, cut by the timer, or refused: whichever comes first.
				if ws, _, err := websocket.DefaultDialer.DialContext(ctx, "ws"+strings.TrimPrefix(r.url, "http")+path, nil); err == nil {
					for range random.IntN(20) {
						if ws.WriteMessage(websocket.TextMessage, []byte("x")) != nil {
							break
						}
						ws.ReadMessage()
					}
					ws.Close()
				}
				return
			}
			req, _ := http.NewRequestWithContext(ctx, "POST", r.url+path, strings.NewReader(strings.Repeat("x", random.IntN(200000))))
			if resp, err := clients[random.IntN(2)].Do(req); err == nil {
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
	}
	wg.Wait()
	// Connections end on their own goroutines.
	eventually.Seen(t, "no request is counted", func() (int, bool) {
		n := r.gate.Inside() + r.gate.Waiting()
		return n, n == 0
	})
	if status, _, _ := r.get("/"); status != 200 {
		t.Errorf("afterwards a request gets %d", status)
	}
	if s := r.gate.ClosePeriod(time.Now()); s.Queued != 0 {
		t.Errorf("the report says %+v", s)
	}
}

// echo is a container that speaks WebSocket.
func echo(w http.ResponseWriter, r *http.Request) {
	ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer ws.Close()
	for {
		kind, message, err := ws.ReadMessage()
		if err != nil || ws.WriteMessage(kind, message) != nil {
			return
		}
	}
}

// The pod waits for an open WebSocket as it does for requests, but does not wait for it before the
// container is told to end: it is the container that closes it.
func TestAnOpenWebSocketIsDrained(t *testing.T) {
	for name, agent := range map[string]string{"a user's": "browser", "one that says it is the kubelet's": wire.AgentKubelet + "1.35"} {
		t.Run(name, func(t *testing.T) { openWebSocketIsDrained(t, agent) })
	}
}

func openWebSocketIsDrained(t *testing.T, agent string) {
	r := startRig(t, echo, func(c *wire.Sidecar) { c.DrainQuiet = 10 * time.Millisecond })
	ws, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(r.url, "http"), http.Header{"User-Agent": {agent}})
	if err != nil {
		t.Fatal(err)
	}
	say := func() {
		t.Helper()
		if err := ws.WriteMessage(websocket.TextMessage, []byte("still here")); err != nil {
			t.Fatal(err)
		}
		if _, got, err := ws.ReadMessage(); err != nil || string(got) != "still here" {
			t.Fatalf("got %q %v", got, err)
		}
	}
	say()
	if inside, upgraded := r.gate.Inside(), r.server.Upgraded(); inside != 1 || upgraded != 1 {
		t.Errorf("%d requests in the pod and %d of them upgraded, want 1 and 1", inside, upgraded)
	}
	hook := make(chan error, 1)
	go func() {
		resp, err := callHook(t, r, "drain-token")
		if err == nil {
			resp.Body.Close()
		}
		hook <- err
	}()
	r.stop()
	if err := <-hook; err != nil {
		t.Errorf("the hook: %v", err)
	}
	say()
	select {
	case err := <-r.done:
		t.Fatalf("the process ended (%v) with an open WebSocket", err)
	case <-time.After(100 * time.Millisecond):
	}
	ws.Close()
	err = <-r.done
	r.done <- err
}

func TestTimersAreNamedInTheBody(t *testing.T) {
	hang := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begun" {
			io.WriteString(w, "begun")
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
	}
	for _, test := range []struct {
		name               string
		total, first, idle time.Duration
		path               string
		status             int
		body               string
		ends               string // how a response that has begun ends: "end", "cut"
	}{
		{"total", 50 * time.Millisecond, 0, 0, "/", 504, "request timeout: timeoutSeconds of 50ms passed", ""},
		{"response start", 10 * time.Second, 50 * time.Millisecond, 0, "/", 504, "request timeout: responseStartTimeoutSeconds of 50ms passed", ""},
		{"idle before a response", 10 * time.Second, 0, 50 * time.Millisecond, "/", 504, "request timeout: idleTimeoutSeconds of 50ms passed", ""},
		{"the earliest of all", 10 * time.Second, 9 * time.Second, 50 * time.Millisecond, "/", 504, "request timeout: idleTimeoutSeconds of 50ms passed", ""},
		{"total after the response began", 2 * time.Second, 0, 0, "/begun", 200, "begun", "end"},
		{"total after the response began, cut", 2 * time.Second, 0, 0, "/begun", 200, "begun", "cut"},
		{"idle after the response began", 10 * time.Second, 0, 2 * time.Second, "/begun", 200, "begun", "end"},
		{"response start is met by the head", 4 * time.Second, 3 * time.Second, 0, "/begun", 200, "begun", "end"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := startRig(t, hang, func(c *wire.Sidecar) {
				c.Timeout, c.ResponseStartTimeout, c.IdleTimeout = test.total, test.first, test.idle
				c.CutResponses = test.ends == "cut"
			})
			resp, err := http.Get(r.url + test.path)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != test.status || string(body) != test.body || (err != nil) != (test.ends == "cut") ||
				(resp.Trailer.Get(forward.TimeoutTrailer) != "") != (test.ends == "end") {
				t.Errorf("got %d %q %v, trailer %v", resp.StatusCode, body, err, resp.Trailer)
			}
		})
	}
}

func TestTimeInTheQueueCounts(t *testing.T) {
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		func(c *wire.Sidecar) { c.Concurrency, c.Timeout = 1, 200*time.Millisecond })
	var wg sync.WaitGroup
	for range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if status, body, _ := r.get("/"); status != 504 || !strings.HasPrefix(body, "request timeout") {
				t.Errorf("got %d %q", status, body)
			}
		}()
	}
	wg.Wait()
}

func TestDrainServesWhatStillComes(t *testing.T) {
	release := make(chan bool)
	arrived := make(chan bool, 8)
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- true
		if r.URL.Path == "/slow" {
			<-release
		}
		io.WriteString(w, "served")
	}, func(c *wire.Sidecar) { c.DrainQuiet, c.Activators = 300*time.Millisecond, "127.0.0.1:1" })
	slow := make(chan string, 1)
	go func() {
		_, body, _ := r.get("/slow")
		slow <- body
	}()
	<-arrived
	r.stop()
	for !r.drainer.Draining() {
		time.Sleep(time.Millisecond) // SIGTERM is handled on its own goroutine
	}
	if status, body, _ := r.get("/", "User-Agent", "kube-probe/1", "K-Network-Probe", "queue"); status != 503 || body != "shutting down" {
		t.Errorf("readiness while draining: %d %q", status, body)
	}
	// An activator that has another pod does not come here any more; one that has none is served.
	if status, body, _ := r.get("/", wire.HeaderNoQueue, "127.0.0.1:1"); status != 200 || body != "served" {
		t.Errorf("an activator's request while draining: %d %q", status, body)
	}
	if status, body, header := r.get("/late"); status != 200 || body != "served" || header.Get("Connection") == "keep-alive" {
		t.Errorf("a late request got %d %q", status, body)
	}
	select {
	case err := <-r.done:
		t.Fatalf("the process ended (%v) with a request in flight", err)
	case <-time.After(0):
	}
	close(release)
	if body := <-slow; body != "served" {
		t.Errorf("the request in flight got %q", body)
	}
	err := <-r.done
	r.done <- err
}

// An activator that has no other pod sends to one that left up to 30 s ago. By then its container
// may be told to end.
func TestWhatComesAfterTheDrainGoesToAnotherPod(t *testing.T) {
	var served atomic.Int32
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) { served.Add(1) },
		func(c *wire.Sidecar) { c.DrainQuiet = time.Millisecond })
	r.drainer.Terminate(t.Context())
	if status, body, header := r.get("/", wire.HeaderProxyRequest, wire.ProxyActivator); status != wire.RefusedStatus || header.Get(wire.HeaderRefused) != wire.RefusedDown {
		t.Errorf("an activator got %d %q, refused for %q", status, body, header.Get(wire.HeaderRefused))
	}
	if status, body, header := r.get("/"); status != 503 || body != "shutting down" || header.Get(wire.HeaderRefused) != "" {
		t.Errorf("a gateway got %d %q", status, body)
	}
	if n := served.Load(); n != 0 {
		t.Errorf("the container saw %d requests", n)
	}
}

func TestTheHookAloneIsTakenBack(t *testing.T) {
	r := startRig(t, hello, nil)
	resp, err := callHook(t, r, "drain-token")
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("the hook got %v %v", resp, err)
	}
	resp.Body.Close()
	if r.drainer.Draining() {
		t.Error("still draining although no SIGTERM came")
	}
	if status, _, _ := r.get("/", "K-Network-Probe", "queue"); status != 200 {
		t.Errorf("readiness afterwards: %d", status)
	}
}

// callHook does what the kubelet does before it ends the container.
func callHook(t *testing.T, r *rig, token string) (*http.Response, error) {
	t.Helper()
	request, err := http.NewRequest("GET", "http://127.0.0.1:"+strconv.Itoa(portOf(t, r.sideAddr("the drain hook")))+wire.PathDrain, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", wire.Bearer(token))
	}
	return http.DefaultClient.Do(request)
}

// A neighbour that asks for the hook again and again must not keep the pod out of service.
func TestOnlyThePodsOwnHookBeginsADrain(t *testing.T) {
	r := startRig(t, hello, nil)
	for _, token := range []string{"", "made-up", "a-token", wire.DrainToken("another"), wire.DrainToken("")} {
		resp, err := callHook(t, r, token)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 401 || r.drainer.Draining() {
			t.Errorf("token %q: got %d, draining %v", token, resp.StatusCode, r.drainer.Draining())
		}
	}
}

// sideAddr is where a server beside the data port listens.
func (s *Sidecar) sideAddr(name string) string {
	for _, b := range s.ports.side {
		if b.name == name {
			return b.listener.Addr().String()
		}
	}
	return ""
}

func portOf(t *testing.T, addr string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, _ := strconv.Atoi(port)
	return n
}

func TestTheTokenIsGivenOrMadeOfTheKey(t *testing.T) {
	key := string(wire.NamespaceKey([]byte("a key"), "ns"))
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, told := range map[string][]wire.Secrets{
		"given": {{Token: "given"}, {Token: "given", KeyFile: file}},
		wire.Token([]byte("a key"), "ns", "rev-00001"): {{Key: key}, {Key: key + "\n", Token: "given"}, {KeyFile: file}, {Key: "\n", KeyFile: file}},
		"": {{}, {KeyFile: "/nowhere"}},
	} {
		for _, secrets := range told {
			if got := tokenOf(&wire.Sidecar{Place: wire.Place{Revision: "rev-00001"}, Secrets: secrets})(); got != want {
				t.Errorf("%+v: token %q, want %q", secrets, got, want)
			}
		}
	}
}
