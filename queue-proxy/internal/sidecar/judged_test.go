package sidecar

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"ebb.dev/ebb/internal/testing/reserve"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// judged is what the judge of rollouts counts, once no request is left.
func (r *rig) judged() wire.Judged {
	r.t.Helper()
	eventually.True(r.t, "no request is left", func() bool { return r.gate.Inside() == 0 })
	return r.gate.Judged()
}

// misbehaving is a program that fails in each way, by path.
func misbehaving(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/reset":
		panic(http.ErrAbortHandler)
	case "/cut":
		w.Header().Set("Content-Length", "10")
		io.WriteString(w, "short")
		panic(http.ErrAbortHandler)
	case "/hang":
		<-r.Context().Done()
	case "/grpc":
		w.Header().Set("Trailer", "Grpc-Status")
		w.WriteHeader(200)
		io.WriteString(w, "x")
		w.Header().Set("Grpc-Status", r.URL.RawQuery)
	case "/trailers-only":
		w.Header().Set("Grpc-Status", r.URL.RawQuery)
	case "/says":
		w.Header().Set(wire.HeaderFailed, r.URL.RawQuery)
	case "/ends-with":
		io.WriteString(w, "x")
		http.NewResponseController(w).Flush()
		w.Header().Set(http.TrailerPrefix+wire.HeaderFailed, r.URL.RawQuery)
	case "/sends-back":
		w.Header()[wire.HeaderFailed] = r.Header[wire.HeaderFailed]
	default:
		status, _ := strconv.Atoi(r.URL.Path[1:])
		w.WriteHeader(status)
	}
}

// Who is to blame: the table above chain.blame.
func TestWhatTheProgramIsToBlameForIsCounted(t *testing.T) {
	backend := httptest.NewUnstartedServer(http.HandlerFunc(misbehaving))
	backend.Config.Protocols = new(http.Protocols)
	backend.Config.Protocols.SetHTTP1(true)
	backend.Config.Protocols.SetUnencryptedHTTP2(true)
	backend.Start()
	defer backend.Close()
	r := startRig(t, hello, func(c *wire.Sidecar) {
		c.UserPort = backend.Listener.Addr().(*net.TCPAddr).Port
		c.ResponseStartTimeout = time.Second
	})
	streams := &http.Transport{Protocols: new(http.Protocols)}
	streams.Protocols.SetUnencryptedHTTP2(true)
	defer streams.CloseIdleConnections()
	h1, h2 := http.DefaultClient, &http.Client{Transport: streams}
	good, failed := wire.Judged{Good: 1}, wire.Judged{Failed: 1}
	for _, c := range []struct {
		name   string
		client *http.Client
		path   string
		header []string
		want   wire.Judged
	}{
		{"an answer", h1, "/200", nil, good},
		{"the client's mistake", h1, "/404", nil, good},
		{"an error", h1, "/500", nil, failed},
		{"an error, through an activator", h1, "/500", []string{wire.HeaderProxyRequest, wire.ProxyActivator}, failed},
		{"an answer, through an activator", h1, "/200", []string{wire.HeaderProxyRequest, wire.ProxyActivator}, good},
		{"the program says that it is full", h1, "/503", nil, failed},
		{"a reset", h1, "/reset", nil, failed},
		{"a response that is cut", h1, "/cut", nil, failed},
		{"no answer in time", h1, "/hang", nil, failed},
		{"a probe", h1, "/200", []string{wire.HeaderNetworkProbe, wire.ProbeQueue}, wire.Judged{}},
		{"a request for another revision", h1, "/500", []string{wire.HeaderRevision, "other", wire.HeaderNamespace, "ns"}, wire.Judged{}},
		{"a request by a tag", h1, "/500", []string{wire.HeaderTag, "next"}, wire.Judged{Tagged: wire.Sender{Failed: 1}}},
		{"an answer by a tag", h1, "/200", []string{wire.HeaderTag, "next"}, wire.Judged{Tagged: wire.Sender{Good: 1}}},
		{"a tag that does not exist", h1, "/500", []string{wire.HeaderTag, "none", wire.HeaderDefaultRoute, "true"}, failed},
		{"the Route's own host", h1, "/200", []string{wire.HeaderDefaultRoute, "true"}, good},
		{"the program says that it failed", h1, "/says?true", nil, failed},
		{"or, in its words", h1, "/says?True", nil, failed},
		{"that it did not", h1, "/says?false", nil, good},
		{"a client says so through the program", h1, "/sends-back", []string{wire.HeaderFailed, "true"}, good},
		{"the program says so by a tag", h1, "/says?true", []string{wire.HeaderTag, "next"}, wire.Judged{Tagged: wire.Sender{Failed: 1}}},
		{"over HTTP/2", h2, "/200", nil, good},
		{"an error over HTTP/2", h2, "/500", nil, failed},
		{"a reset over HTTP/2", h2, "/reset", nil, failed},
		{"no answer in time over HTTP/2", h2, "/hang", nil, failed},
		{"the program says that it failed, over HTTP/2", h2, "/says?true", nil, failed},
		{"that it did not, over HTTP/2", h2, "/says?false", nil, good},
		{"a client says so through the program, over HTTP/2", h2, "/sends-back", []string{wire.HeaderFailed, "true"}, good},
		{"the program says at the end that it failed", h2, "/ends-with?true", nil, failed},
		{"at the end that it did not", h2, "/ends-with?false", nil, good},
		{"gRPC: OK", h2, "/grpc?0", nil, good},
		{"gRPC: CANCELLED", h2, "/grpc?1", nil, good},
		{"gRPC: UNKNOWN", h2, "/grpc?2", nil, failed},
		{"gRPC: INVALID_ARGUMENT", h2, "/grpc?3", nil, good},
		{"gRPC: DEADLINE_EXCEEDED", h2, "/grpc?4", nil, failed},
		{"gRPC: RESOURCE_EXHAUSTED", h2, "/grpc?8", nil, good},
		{"gRPC: UNIMPLEMENTED", h2, "/grpc?12", nil, failed},
		{"gRPC: INTERNAL", h2, "/grpc?13", nil, failed},
		{"gRPC: UNAVAILABLE", h2, "/grpc?14", nil, failed},
		{"gRPC: DATA_LOSS", h2, "/grpc?15", nil, failed},
		{"gRPC: UNAUTHENTICATED", h2, "/grpc?16", nil, good},
		{"gRPC: a status that is none", h2, "/grpc?99", nil, failed},
		{"gRPC: a text for a status", h2, "/grpc?ok", nil, failed},
		{"gRPC: UNAVAILABLE without a message", h2, "/trailers-only?14", nil, failed},
		{"gRPC: NOT_FOUND without a message", h2, "/trailers-only?5", nil, good},
	} {
		before := r.judged()
		req, err := http.NewRequest("GET", r.url+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(c.header); i += 2 {
			req.Header.Set(c.header[i], c.header[i+1])
		}
		if resp, err := c.client.Do(req); err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if said := append(resp.Header[wire.HeaderFailed], resp.Trailer[wire.HeaderFailed]...); len(said) > 0 {
				t.Errorf("%s: the client got %s: %q", c.name, wire.HeaderFailed, said)
			}
		}
		now := r.judged()
		if got := now.Since(&before); got != c.want {
			t.Errorf("%s: counted as %+v, want %+v", c.name, got, c.want)
		}
	}

	before := r.judged()
	ctx, leave := context.WithCancel(context.Background())
	for _, client := range []*http.Client{h1, h2} {
		req, _ := http.NewRequestWithContext(ctx, "GET", r.url+"/hang", nil)
		go client.Do(req)
	}
	eventually.True(t, "both requests are in the pod", func() bool { return r.gate.Inside() == 2 })
	leave()
	now := r.judged()
	if got := now.Since(&before); got != (wire.Judged{}) {
		t.Errorf("clients that left: counted as %+v", got)
	}
}

// A sender is known by the last address, which the gateway wrote, whatever the client sends before
// it.
func TestASenderIsTheAddressThatTheGatewayWrote(t *testing.T) {
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/500" {
			w.WriteHeader(500)
		}
	}, nil)
	streams := &http.Transport{Protocols: new(http.Protocols)}
	streams.Protocols.SetUnencryptedHTTP2(true)
	defer streams.CloseIdleConnections()
	drawer := func(client *http.Client, path string, fields ...string) int {
		t.Helper()
		before := r.judged()
		req, _ := http.NewRequest("GET", r.url+path, nil)
		for _, field := range fields {
			req.Header.Add("X-Forwarded-For", field)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		now := r.judged()
		came := now.Since(&before)
		if came.Good+came.Failed != 1 {
			t.Fatalf("%q counted as %+v", fields, came)
		}
		for i, s := range came.Senders {
			if s == (wire.Sender{Good: came.Good, Failed: came.Failed}) {
				return i
			}
		}
		if came.Senders != [wire.SenderDrawers]wire.Sender{} {
			t.Fatalf("%q counted as %+v", fields, came.Senders)
		}
		return -1
	}
	for name, client := range map[string]*http.Client{"HTTP/1.1": http.DefaultClient, "HTTP/2": {Transport: streams}} {
		four, six := drawer(client, "/", "203.0.113.7"), drawer(client, "/", "2001:db8:1:2::1")
		if four < 0 || six < 0 {
			t.Fatalf("%s: %d and %d", name, four, six)
		}
		for _, c := range []struct {
			behaviour string
			fields    []string
			want      int
		}{
			{"nobody says who", nil, -1},
			{"what a client makes up stands before it", []string{"9.9.9.9, 1.2.3.4, 203.0.113.7"}, four},
			{"or in a field before it", []string{"1.2.3.4", "5.6.7.8,203.0.113.7"}, four},
			{"a port does not count", []string{"203.0.113.7:4711"}, four},
			{"nor how the address is written", []string{"::ffff:203.0.113.7"}, four},
			{"a client has 64 bits of its own", []string{"2001:db8:1:2:3:4:5:6"}, six},
			{"with a port", []string{"[2001:db8:1:2::9]:443"}, six},
			{"a name is no address", []string{"203.0.113.7, unknown"}, -1},
			{"nor is nothing", []string{"203.0.113.7, "}, -1},
		} {
			if got := drawer(client, "/", c.fields...); got != c.want {
				t.Errorf("%s, %s: drawer %d, want %d", name, c.behaviour, got, c.want)
			}
		}
		if got := drawer(client, "/500", "203.0.113.7"); got != four {
			t.Errorf("%s, an error: drawer %d, want %d", name, got, four)
		}
	}
	used := map[int]bool{}
	for i := range 64 {
		used[drawer(http.DefaultClient, "/", fmt.Sprintf("198.51.100.%d", i))] = true
	}
	if len(used) < 12 || used[-1] {
		t.Errorf("64 senders have the drawers %v", used)
	}
}

// A program that accepts no connection fails, unless the pod ends. An activator is told that the
// request did not reach it, and asks again: what becomes of the request counts, and no attempt.
func TestAProgramThatIsGoneIsToBlame(t *testing.T) {
	r := startRig(t, hello, func(c *wire.Sidecar) { c.UserPort, c.DrainQuiet = int(reserve.Port(t).Port()), time.Second })
	activator := []string{wire.HeaderProxyRequest, wire.ProxyActivator}
	ask := func(want int, refused string, fields ...string) {
		t.Helper()
		if status, body, header := r.get("/", fields...); status != want || header.Get(wire.HeaderRefused) != refused {
			t.Fatalf("got %d %q, %s=%q", status, body, wire.HeaderRefused, header.Get(wire.HeaderRefused))
		}
	}
	ask(502, "")
	for range 3 {
		ask(wire.RefusedStatus, wire.RefusedDown, activator...)
	}
	if got := r.judged(); got != (wire.Judged{Failed: 1}) {
		t.Errorf("counted as %+v", got)
	}
	atOnce, cancel := context.WithCancel(t.Context())
	cancel()
	r.drainer.Terminate(atOnce) // the drain goes on
	ask(502, "")
	ask(wire.RefusedStatus, wire.RefusedDown, activator...)
	if got := r.judged(); got != (wire.Judged{Failed: 1}) {
		t.Errorf("while the pod ends: counted as %+v", got)
	}
}

// A request that ends the program must not end those of other pods. An activator is not told to
// send it there, although no connection could be made when it was tried again.
func TestARequestThatEndsTheProgramGoesNowhereElse(t *testing.T) {
	program, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go http.Serve(program, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/end" {
			program.Close()
			panic(http.ErrAbortHandler)
		}
	}))
	r := startRig(t, hello, func(c *wire.Sidecar) { c.UserPort = program.Addr().(*net.TCPAddr).Port })
	activator := []string{wire.HeaderProxyRequest, wire.ProxyActivator}
	r.get("/", activator...)
	eventually.True(t, "the connection is kept", func() bool { return r.gate.Inside() == 0 })
	status, body, header := r.get("/end", activator...)
	if status != 502 || body != "the container does not accept connections" || header.Get(wire.HeaderRefused) != "" {
		t.Errorf("got %d %q, %s=%q", status, body, wire.HeaderRefused, header.Get(wire.HeaderRefused))
	}
	if got := r.judged(); got.Good != 1 || got.Failed != 1 {
		t.Errorf("counted as %+v", got)
	}
}

// A full queue, and a deadline that passes in it, are not the program's.
func TestAQueueIsNotJudged(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) { <-release }, func(c *wire.Sidecar) {
		c.Concurrency, c.Timeout = 1, 5*time.Second
	})
	done := make(chan int, 12)
	ask := func() { status, _, _ := r.get("/"); done <- status }
	go ask()
	eventually.True(t, "one request runs", func() bool { return r.gate.Inside() == 1 })
	for range 10 { // the queue of one slot
		go ask()
	}
	eventually.True(t, "the queue is full", func() bool { return r.gate.Waiting() == 10 })
	if status, _, _ := r.get("/"); status != 503 {
		t.Fatalf("a full queue: %d", status)
	}
	for range 11 { // their deadline passes
		if status := <-done; status != 504 {
			t.Errorf("got %d", status)
		}
	}
	close(release)
	if got := r.judged(); got != (wire.Judged{Failed: 1}) {
		t.Errorf("counted as %+v, want the one that ran", got)
	}
}

// The scrape has the counts of now for who asks for them, and the bytes of before for everybody
// else.
func TestOnlyWhoAsksIsToldWhatIsJudged(t *testing.T) {
	r := startRig(t, hello, nil)
	scrape := func(query string) wire.Stat {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s%s", portOf(t, r.sideAddr("load reports")), wire.PathMetrics, query))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		s, err := wire.DecodeStat("", body)
		if err != nil || s.PodName != "pod" {
			t.Fatalf("got %+v, %v", s, err)
		}
		return s
	}
	senders := func(field string) [wire.SenderDrawers]wire.Sender {
		req, _ := http.NewRequest("GET", fmt.Sprintf("http://127.0.0.1:%d%s?%s", portOf(t, r.sideAddr("load reports")), wire.PathMetrics, wire.QueryJudged), nil)
		if field != "" {
			req.Header.Set(wire.HeaderSenders, field)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		s, err := wire.DecodeStat("", body)
		if err != nil || s.Judged == nil {
			t.Fatalf("got %+v, %v", s, err)
		}
		return s.Judged.Senders
	}
	eventually.True(t, "a period is reported", func() bool { return time.Now().UnixMilli()-scrape("").Timestamp > 10 })
	for n := range uint32(3) {
		if s := scrape("?" + wire.QueryJudged); s.Judged == nil || *s.Judged != (wire.Judged{Good: n}) {
			t.Errorf("after %d requests: %+v", n, s.Judged)
		}
		r.get("/")
		r.judged() // the request has left
	}
	if s := scrape(""); s.Judged != nil {
		t.Errorf("nobody asked for %+v", s.Judged)
	}
	req, _ := http.NewRequest("GET", r.url, nil)
	req.Header.Set("X-Forwarded-For", "203.0.113.7")
	if resp, err := http.DefaultClient.Do(req); err != nil {
		t.Fatal(err)
	} else {
		resp.Body.Close()
	}
	r.judged()
	none := [wire.SenderDrawers]wire.Sender{}
	if got := senders(""); got != none {
		t.Errorf("nobody asked for the senders %v", got)
	}
	if got := senders("true"); got == none {
		t.Error("who asks for senders is told of none")
	}
}

func TestAWarmUpIsAsLongAsItIsSaid(t *testing.T) {
	for warmUp, want := range map[time.Duration]uint32{0: 1, time.Hour: 0} {
		r := startRig(t, hello, func(c *wire.Sidecar) { c.WarmUp = warmUp })
		r.get("/")
		timed := uint32(0)
		judged := r.judged()
		for _, n := range judged.Latency {
			timed += n
		}
		if timed != want || judged.Good != 1 {
			t.Errorf("a warm-up of %v: %d times of %d requests, want %d", warmUp, timed, judged.Good, want)
		}
	}
}
