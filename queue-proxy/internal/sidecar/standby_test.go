package sidecar

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/standby"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

var podToken = wire.Token(podKey, "ns", "rev-00001")

// fakeAgent is the node's agent at the other end of the connection. While it says so, the container
// answers nothing.
type fakeAgent struct {
	conn   net.Conn
	frozen atomic.Bool
	silent atomic.Bool // orders are not answered
}

func dialAsAgent(t *testing.T, r *rig) *fakeAgent {
	t.Helper()
	conn, err := net.Dial("tcp", loopback(r.ports.agent))
	if err != nil {
		t.Fatal(err)
	}
	a := &fakeAgent{conn: conn}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "hello %d the-uid\n", standby.Version)
	lines := bufio.NewScanner(conn)
	if !lines.Scan() || lines.Text() != "hello 1 the-uid" {
		t.Fatalf("queue-proxy said %q", lines.Text())
	}
	go func() {
		for lines.Scan() {
			m, err := standby.Parse(lines.Text())
			if err != nil || a.silent.Load() {
				continue
			}
			answer := standby.Message{Verb: standby.Thawed, Number: m.Number}
			if m.Verb == standby.Freeze {
				answer.Verb, answer.Level = standby.Froze, m.Level
			}
			a.frozen.Store(m.Verb == standby.Freeze)
			conn.Write(answer.Append(nil))
		}
	}()
	return a
}

func order(t *testing.T, r *rig, level, token string) int {
	t.Helper()
	for _, b := range r.ports.side {
		if b.name != "load reports" {
			continue
		}
		req, err := http.NewRequest("POST", "http://"+loopback(b.listener)+wire.PathStandby+"?level="+level, nil)
		if err != nil {
			t.Fatal(err)
		}
		var signer wire.Signer
		if token != "" {
			if err := signer.Sign(req, token); err != nil {
				t.Fatal(err)
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	t.Fatal("no port for orders")
	return 0
}

func loopback(l net.Listener) string {
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return "127.0.0.1:" + port
}

func standbyRig(t *testing.T, more func(*wire.Sidecar)) (*rig, *fakeAgent, chan wire.Announcement) {
	activator, heard := fakeActivator(t)
	var agent atomic.Pointer[fakeAgent]
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) {
		if a := agent.Load(); a != nil && a.frozen.Load() {
			t.Errorf("%s %s reached a frozen container", r.Method, r.URL)
		}
		for _, busy := range append(r.URL.Query()["busy"], r.Header.Values(wire.HeaderBusy)...) {
			w.Header().Add(wire.HeaderBusy, busy)
		}
		io.WriteString(w, "hello")
	}, func(c *wire.Sidecar) {
		c.Activators, c.Token, c.Standby, c.PodUID = activator, podToken, new(standby.Compressed), "the-uid"
		c.NodeIPs = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
		probes, err := wire.ReadProbes(`{"httpGet":{"path":"/live"}}`, c.UserPort)
		if err != nil {
			t.Fatal(err)
		}
		c.LivenessProbes = map[string]wire.Probe{"user-container": probes[0]}
		if more != nil {
			more(c)
		}
	})
	if a := <-heard; !a.Ready || a.Asleep != "" {
		t.Fatalf("announced %+v", a)
	}
	a := dialAsAgent(t, r)
	agent.Store(a)
	return r, a, heard
}

// fallAsleep orders a level and waits until the pod has told the activators of it.
func fallAsleep(t *testing.T, r *rig, level string, heard chan wire.Announcement) {
	t.Helper()
	again := func() {
		if status := order(t, r, level, podToken); status != http.StatusNoContent {
			t.Fatalf("the order was answered %d", status)
		}
	}
	again()
	for a := range heard {
		switch {
		case a.Asleep == "":
		case !a.Ready:
			t.Fatalf("announced %+v", a)
		case a.Asleep == level:
			return
		default:
			again() // on a busy machine the agent did not answer in time
		}
	}
}

func TestARequestWakesAPodThatSleeps(t *testing.T) {
	r, agent, heard := standbyRig(t, nil)
	fallAsleep(t, r, "frozen", heard)
	if !agent.frozen.Load() {
		t.Fatal("announced as frozen before it was")
	}
	if status, _, _ := r.get("/", wire.HeaderNetworkProbe, wire.ProbeQueue); status != 503 {
		t.Errorf("the kubelet's readiness probe of a pod that sleeps: %d", status)
	}
	if !agent.frozen.Load() {
		t.Error("a probe woke the pod")
	}
	if status, body, _ := r.get("/"); status != 200 || body != "hello" {
		t.Errorf("got %d %q", status, body)
	}
	if a := <-heard; a.Asleep != "" || !a.Ready {
		t.Errorf("announced %+v", a)
	}
	if status, _, _ := r.get("/", wire.HeaderNetworkProbe, wire.ProbeQueue); status != 200 {
		t.Errorf("the kubelet's readiness probe of a pod that woke: %d", status)
	}
}

// One activator that does not answer keeps no word from the others.
func TestAnActivatorThatHangsHoldsUpNoWordToOthers(t *testing.T) {
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	t.Cleanup(hangs.Close)
	r, _, heard := standbyRig(t, func(c *wire.Sidecar) { c.Activators += "," + hangs.Listener.Addr().String() })
	begin := time.Now()
	fallAsleep(t, r, "frozen", heard)
	if status, _, _ := r.get("/"); status != 200 {
		t.Errorf("got %d", status)
	}
	for a := range heard {
		if a.Ready && a.Asleep == "" {
			break
		}
	}
	if took := time.Since(begin); took > 12*time.Second {
		t.Errorf("the other activator heard that the pod woke after %s; it rested for %s", took, restQuiet)
	}
}

// The program hears of the sleep before it is frozen, and of the wake before the next request. What
// the metrics count is what it heard.
func TestAProgramWithHooksIsCalled(t *testing.T) {
	var mu sync.Mutex
	var calls []string
	answer := http.StatusOK
	program := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, r.Method+" "+r.RequestURI)
		w.WriteHeader(answer)
	}))
	defer program.Close()
	port := int(netip.MustParseAddrPort(program.Listener.Addr().String()).Port())
	r, agent, heard := standbyRig(t, func(c *wire.Sidecar) {
		c.SleepHook = &standby.Hook{Method: "PUT", Port: port, Path: "/sleep?level=1", Bound: time.Minute}
		c.WakeHook = &standby.Hook{Method: "POST", Port: port, Path: "/wake", Bound: time.Minute}
	})
	fallAsleep(t, r, "frozen", heard)
	mu.Lock()
	if !slices.Equal(calls, []string{"PUT /sleep?level=1"}) || !agent.frozen.Load() {
		t.Errorf("asleep, and called %q", calls)
	}
	calls = nil
	mu.Unlock()
	if status, _, _ := r.get("/"); status != 200 {
		t.Errorf("got %d", status)
	}
	<-heard
	mu.Lock()
	if !slices.Equal(calls, []string{"POST /wake"}) {
		t.Errorf("awake, and called %q", calls)
	}
	answer = http.StatusInternalServerError
	mu.Unlock()
	if status := order(t, r, "frozen", podToken); status != http.StatusNoContent {
		t.Fatalf("the order was answered %d", status)
	}
	eventually.True(t, "the pod says that it stays awake", func() bool { return r.busy(time.Now()) == wire.BusyBalked })
	if status := order(t, r, "frozen", podToken); status != http.StatusConflict || agent.frozen.Load() {
		t.Errorf("a pod whose hook failed answered the order with %d, frozen %v", status, agent.frozen.Load())
	}
	text := httptest.NewRecorder()
	r.metrics.ServeHTTP(text, httptest.NewRequest("GET", wire.PathMetrics, nil))
	if !strings.Contains(text.Body.String(), `hook="sleep"} 1`) {
		t.Errorf("the metrics do not count the failure:\n%s", text.Body)
	}
}

func TestAPodWhoseProgramSaysThatItIsBusyDoesNotSleep(t *testing.T) {
	r, agent, heard := standbyRig(t, func(c *wire.Sidecar) { c.BusyFor = time.Hour })
	if r.get("/", wire.HeaderBusy, "1h"); r.busy(time.Now()) != wire.NotBusy {
		t.Error("a client's word counts where the program sends fields back")
	}
	if status, _, header := r.get("/?busy=1m&busy=8760h&busy=x&busy=2m"); status != 200 || header.Get(wire.HeaderBusy) != "" {
		t.Errorf("the client got %d %v", status, header)
	}
	if left := time.Until(r.work.Until()); left > time.Hour || left < 59*time.Minute {
		t.Errorf("busy for another %s", left)
	}
	if status := order(t, r, "frozen", podToken); status != http.StatusConflict {
		t.Errorf("the order was answered %d", status)
	}
	if stat := scrape(t, r); stat.Busy != wire.BusyTold || stat.Asleep != 0 {
		t.Errorf("the pod reports %+v", stat)
	}
	r.get("/?busy=soon")
	if r.busy(time.Now()) != wire.BusyTold {
		t.Error("a word that is not understood ended the time")
	}
	r.get("/?busy=0")
	fallAsleep(t, r, "frozen", heard)
	if !agent.frozen.Load() || r.busy(time.Now()) != wire.NotBusy {
		t.Error("the pod does not sleep after its program was done")
	}
}

// What a wake causes elsewhere must not compete with its answer: neither activators nor autoscaler
// hear of it before, also where the request fills the pod.
func TestNothingIsToldOfAWakeBeforeItsAnswer(t *testing.T) {
	for _, concurrency := range []int{0, 1} {
		told, autoscaler := pushed(t)
		r, _, heard := standbyRig(t, func(c *wire.Sidecar) { c.Concurrency, c.Autoscaler = concurrency, autoscaler })
		fallAsleep(t, r, "frozen", heard)
		for m := range told {
			if m.Stat.Asleep == 1+uint8(standby.Frozen) {
				break
			}
		}
		<-time.After(200 * time.Millisecond) // so that the last push does not hold up the next one
		begin := time.Now()
		if status, _, _ := r.get("/"); status != 200 {
			t.Errorf("got %d", status)
		}
		for announced, reported := false, false; !announced || !reported; {
			select {
			case a := <-heard:
				if announced = true; a.Asleep != "" || !a.Ready || time.Since(begin) < standby.SettleTime {
					t.Errorf("with concurrency %d the pod announced %+v after %s", concurrency, a, time.Since(begin))
				}
			case m := <-told:
				if reported = m.Stat.Asleep == 0; reported && time.Since(begin) < standby.SettleTime {
					t.Errorf("with concurrency %d the autoscaler heard of the wake after %s", concurrency, time.Since(begin))
				}
			}
		}
	}
}

// scrape waits until the pod has reported once, as it does each second.
func scrape(t *testing.T, r *rig) wire.Stat {
	t.Helper()
	return eventually.Seen(t, "the pod reports", func() (wire.Stat, bool) {
		resp, err := http.Get("http://127.0.0.1:" + strconv.Itoa(portOf(t, r.sideAddr("load reports"))) + wire.PathMetrics)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		stat, err := wire.DecodeStat("", text)
		return stat, err == nil && stat.Busy != wire.NotBusy
	})
}

func TestLivenessDoesNotKillAPodThatSleeps(t *testing.T) {
	r, agent, heard := standbyRig(t, nil)
	admin := ""
	for _, b := range r.ports.side {
		if b.name == "the drain hook" {
			admin = "http://" + loopback(b.listener)
		}
	}
	ask := func(container string) int {
		resp, err := http.Get(admin + wire.PathLiveness + container)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := ask("user-container"); got != 200 {
		t.Errorf("awake: %d", got)
	}
	if got := ask("another"); got != 404 {
		t.Errorf("a container without a probe: %d", got)
	}
	fallAsleep(t, r, "compressed", heard)
	if got := ask("user-container"); got != 200 || !agent.frozen.Load() {
		t.Errorf("asleep: %d, frozen %v", got, agent.frozen.Load())
	}
}

func TestAnActivatorIsSentElsewhereWhenThePodDoesNotWake(t *testing.T) {
	r, agent, heard := standbyRig(t, nil)
	fallAsleep(t, r, "frozen", heard)
	agent.silent.Store(true)
	r.announcer.Warm(t.Context())
	status, _, header := r.get("/", wire.HeaderNoQueue, r.cfg.Activators)
	if status != wire.RefusedStatus || header.Get(wire.HeaderRefused) != wire.RefusedAsleep {
		t.Errorf("got %d, %v", status, header)
	}
	// The connection ends, so the container runs again: the next request is served.
	agent.frozen.Store(false)
	agent.conn.Close()
	if status, body, _ := r.get("/"); status != 200 || body != "hello" {
		t.Errorf("got %d %q", status, body)
	}
}

func TestWhoMayTellAPodToSleep(t *testing.T) {
	r, _, _ := standbyRig(t, nil)
	for _, c := range []struct {
		level, token string
		want         int
	}{
		{"frozen", wire.Token(podKey, "ns", "another"), 401},
		{"frozen", "", 401},
		{"solid", podToken, 400},
		{"", podToken, 400},
		{"awake", podToken, 204},
	} {
		if got := order(t, r, c.level, c.token); got != c.want {
			t.Errorf("level %q with token %.6q: %d, want %d", c.level, c.token, got, c.want)
		}
	}
	off := startRig(t, hello, func(c *wire.Sidecar) { c.Token = podToken })
	if got := order(t, off, "frozen", podToken); got != 409 {
		t.Errorf("a revision that does not sleep: %d", got)
	}
}

func TestAStrangerIsNotTheAgent(t *testing.T) {
	r, _, _ := standbyRig(t, func(c *wire.Sidecar) {
		c.NodeIPs = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	})
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.9")}}
	conn, err := dialer.Dial("tcp", loopback(r.ports.agent))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	fmt.Fprintf(conn, "hello %d the-uid\n", standby.Version)
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("a stranger got %d bytes of an answer", n)
	}
	if r.sleeper.RejectedPeers() != 1 {
		t.Errorf("%d strangers were counted", r.sleeper.RejectedPeers())
	}
}

func TestAPodThatLeavesWakes(t *testing.T) {
	r, agent, heard := standbyRig(t, nil)
	fallAsleep(t, r, "frozen", heard)
	r.stop()
	if err := <-r.done; err != nil {
		t.Error(err)
	}
	r.done <- nil
	if agent.frozen.Load() {
		t.Error("the container is still frozen")
	}
}

// A pod that is deleted while it sleeps gets the call after the wake, however long that takes, and
// only then SIGTERM: the container's preStop hook lasts until then.
func TestAPodThatLeavesEndsItsHookFirst(t *testing.T) {
	called, goOn := make(chan bool, 1), make(chan bool)
	program := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		called <- true
		<-goOn
	}))
	defer program.Close()
	port := int(netip.MustParseAddrPort(program.Listener.Addr().String()).Port())
	r, _, heard := standbyRig(t, func(c *wire.Sidecar) {
		c.DrainToken = "drain-token"
		c.WakeHook = &standby.Hook{Method: "POST", Port: port, Path: "/wake", Bound: time.Minute}
	})
	fallAsleep(t, r, "frozen", heard)
	waited := make(chan int, 1)
	go func() {
		status, _, _ := r.get("/")
		waited <- status
	}()
	<-called
	r.stop()
	over := make(chan bool)
	go func() {
		defer close(over)
		if resp, err := callHook(t, r, "drain-token"); err == nil {
			resp.Body.Close()
		}
	}()
	select {
	case <-over:
		t.Error("the container gets SIGTERM while its hook is called")
	case err := <-r.done:
		t.Errorf("queue-proxy ended while a hook was called: %v", err)
		r.done <- err
	case <-time.After(300 * time.Millisecond):
	}
	close(goOn)
	if status := <-waited; status != 200 {
		t.Errorf("the request that waited for the hook got %d", status)
	}
	<-over
}

func TestGateways(t *testing.T) {
	// 10.244.0.1 as a little endian machine writes it.
	routes := "Iface\tDestination\tGateway \tFlags\neth0\t00000000\t0100F40A\t0003\neth0\t0000F40A\t00000000\t0001\n"
	want := []netip.Addr{netip.MustParseAddr("10.244.0.1")}
	if got := gateways(routes); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := gateways("nonsense\n\n"); got != nil {
		t.Errorf("got %v", got)
	}
}

// A container that hangs is killed, also in a pod that sleeps, if it is certain that it runs.
func TestLivenessKillsAContainerThatHangsInAPodThatSleepsWarm(t *testing.T) {
	var hangs atomic.Bool
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}, func(c *wire.Sidecar) {
		c.Token, c.Standby, c.PodUID = podToken, new(standby.Warm), "the-uid"
		probes, err := wire.ReadProbes(`{"httpGet":{"path":"/live"}}`, c.UserPort)
		if err != nil {
			t.Fatal(err)
		}
		c.LivenessProbes = map[string]wire.Probe{"user-container": probes[0]}
	})
	admin := ""
	for _, b := range r.ports.side {
		if b.name == "the drain hook" {
			admin = "http://" + loopback(b.listener)
		}
	}
	alive := func() bool {
		resp, err := http.Get(admin + wire.PathLiveness + "user-container")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
	if status := order(t, r, "warm", podToken); status != http.StatusNoContent {
		t.Fatalf("the order was answered %d", status)
	}
	eventually.True(t, "the pod falls asleep", func() bool { return r.sleeper.State() == standby.Dozing })
	if !alive() {
		t.Error("a container that answers is killed")
	}
	hangs.Store(true)
	if alive() {
		t.Error("a container that hangs lives on")
	}
}
