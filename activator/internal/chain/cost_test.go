package chain

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/forward/forwardtest"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// The bound in bytes is only as good as the account of what waiting requests take, small ones,
// large ones, and those that grow while they wait.
func TestAWaitingRequestCostsAboutWhatIsAccounted(t *testing.T) {
	idle := runtime.NumGoroutine()
	field := "X-Large: " + strings.Repeat("x", 60<<10) + "\r\n"
	for _, c := range []struct {
		name string
		many int
		send func(t *testing.T, w *world, many int)
		// least is what one must be accounted with at least.
		least int64
	}{
		{"small heads", 300, func(t *testing.T, w *world, many int) { waitHTTP1(t, w, many, "", false) }, 12 << 10},
		{"heads of 60 KiB", 100, func(t *testing.T, w *world, many int) { waitHTTP1(t, w, many, field, false) }, 60 << 10},
		{"small heads over TLS", 200, func(t *testing.T, w *world, many int) { waitHTTP1(t, w, many, "", true) }, 12 << 10},
		{"heads of 60 KiB over TLS", 100, func(t *testing.T, w *world, many int) { waitHTTP1(t, w, many, field, true) }, 60 << 10},
		{"HTTP/2 with 60 KiB of body", 100, func(t *testing.T, w *world, many int) { waitHTTP2(t, w, many, 50, 60<<10, false) }, 60 << 10},
		{"HTTP/2, a connection each", 200, func(t *testing.T, w *world, many int) { waitHTTP2(t, w, many, 1, 0, false) }, 12 << 10},
		{"HTTP/2 over TLS, a connection each", 200, func(t *testing.T, w *world, many int) { waitHTTP2(t, w, many, 1, 0, true) }, 12 << 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, hold.Bounds{})
			w.revision(backends.Info{})
			usage := func() int64 {
				runtime.GC()
				runtime.GC() // pools give up what they keep at the second
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return int64(m.HeapAlloc + m.StackInuse)
			}
			eventually.True(t, "the connections of the last case are gone", func() bool { return runtime.NumGoroutine() < idle+20 })
			before := usage()
			c.send(t, w, c.many)
			eventually.True(t, "all wait, with all that they sent", func() bool {
				return w.budget.Held() == int64(c.many) && w.budget.HeldBytes() >= int64(c.many)*c.least
			})
			each, accounted := (usage()-before)/int64(c.many), w.budget.HeldBytes()/int64(c.many)
			t.Logf("one waiting request takes %d bytes, accounted are %d", each, accounted)
			if each > 3*accounted/2 {
				t.Errorf("one waiting request takes %d bytes, accounted are %d", each, accounted)
			}
		})
	}
}

// connect returns a new connection to the activator, with its own end of TLS if that is wanted.
func connect(t *testing.T, w *world, encrypted bool) io.ReadWriter {
	address := w.url[len("http://"):]
	if encrypted {
		address = w.tlsAddress()
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if !encrypted {
		return conn
	}
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
}

// tlsAddress is where the activator answers over TLS, from the first call on.
func (w *world) tlsAddress() string {
	if w.secure != "" {
		return w.secure
	}
	donor := httptest.NewUnstartedServer(nil)
	donor.StartTLS() // only for its certificate
	donor.Close()
	server := &forward.Server{Handler: w.handler, TLS: donor.TLS}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	go server.ServeTLS(listener)
	w.t.Cleanup(server.Close)
	w.secure = listener.Addr().String()
	return w.secure
}

// waitHTTP1 sends requests that wait, each on a connection of its own. The clients' ends of TLS are
// forgotten.
func waitHTTP1(t *testing.T, w *world, many int, field string, encrypted bool) {
	for range many {
		if _, err := io.WriteString(connect(t, w, encrypted), "GET / HTTP/1.1\r\nHost: h\r\n"+wire.HeaderRevision+": rev\r\n"+wire.HeaderNamespace+": ns\r\n"+field+"\r\n"); err != nil {
			t.Fatal(err)
		}
	}
}

// waitHTTP2 sends requests that wait and so much of the body of each, some on each connection. It
// returns what reads each connection that is not encrypted.
func waitHTTP2(t *testing.T, w *world, many, each, size int, encrypted bool) (framers []*http2.Framer) {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/"}, {":authority", "h"},
		{strings.ToLower(wire.HeaderRevision), "rev"}, {strings.ToLower(wire.HeaderNamespace), "ns"}} {
		// Never indexed, so that the block is the same each time.
		if err := encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true}); err != nil {
			t.Fatal(err)
		}
	}
	piece := make([]byte, 10<<10)
	var framer *http2.Framer
	for i := range many {
		if i%each == 0 {
			conn := connect(t, w, encrypted)
			framer = http2.NewFramer(conn, conn)
			if !encrypted {
				framers = append(framers, framer)
			}
			if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
				t.Fatal(err)
			}
			if err := framer.WriteSettings(); err != nil {
				t.Fatal(err)
			}
		}
		id := uint32(2*(i%each) + 1)
		if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
		for sent := 0; sent < size; sent += len(piece) {
			if err := framer.WriteData(id, false, piece); err != nil {
				t.Fatal(err)
			}
		}
	}
	return framers
}

// What arrives while a request waits counts as well: a request that grows beyond the bound is
// turned away, and its place is free.
func TestABodyThatArrivesWhileItsRequestWaitsIsBounded(t *testing.T) {
	w := newWorld(t, hold.Bounds{PerRevisionBytes: 1 << 20})
	w.revision(backends.Info{})
	framers := waitHTTP2(t, w, 50, 50, 60<<10, false) // a stream that waits has a window of 64 KiB
	answered, decoder := map[uint32]bool{}, hpack.NewDecoder(4096, nil)
	for framer := framers[0]; len(answered) < 20; {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("after %d answers: %v", len(answered), err)
		}
		if head, ok := frame.(*http2.HeadersFrame); ok {
			fields, err := decoder.DecodeFull(head.HeaderBlockFragment())
			if err != nil || fields[0].Value != "503" {
				t.Errorf("stream %d got %v (%v)", head.StreamID, fields, err)
			}
			answered[head.StreamID] = true
		}
		if held := w.budget.HeldBytes(); held > 1<<20 {
			t.Fatalf("%d bytes wait, the bound is %d", held, 1<<20)
		}
	}
}

// BenchmarkForwardedRequest is a request through the activator to a pod with a free slot.
func BenchmarkForwardedRequest(b *testing.B) {
	w := newWorld(b, hold.Bounds{})
	w.revision(backends.Info{ContainerConcurrency: 100, Timeout: time.Minute})
	w.pods(backends.Endpoint{Address: forwardtest.Hello(b), Pod: "p", Ready: true})
	c, err := net.Dial("tcp", w.url[len("http://"):])
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	raw, buf := []byte("GET /x HTTP/1.1\r\nHost: h\r\nKnative-Serving-Revision: rev\r\nKnative-Serving-Namespace: ns\r\n\r\n"), make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(raw); err != nil {
			b.Fatal(err)
		}
		if _, err := c.Read(buf); err != nil {
			b.Fatal(err)
		}
	}
}

// A request that finds a pod at once costs no allocation in the activator.
func TestAForwardedRequestAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	upstream := forwardtest.Hello(t)
	requests := map[string]string{
		"GET": "GET /x HTTP/1.1\r\nHost: hello.example.com\r\nUser-Agent: bench\r\nAccept: */*\r\nX-Forwarded-For: 10.0.0.1\r\n" +
			"Knative-Serving-Revision: rev\r\nKnative-Serving-Namespace: ns\r\nK-Network-Hash: abc\r\n\r\n",
		"a client that says how it came": "GET /x HTTP/1.1\r\nHost: h\r\nEbb-Resting: external\r\nKnative-Serving-Revision: rev\r\nKnative-Serving-Namespace: ns\r\n\r\n",
		"POST":                           "POST /x HTTP/1.1\r\nHost: h\r\nKnative-Serving-Revision: rev\r\nKnative-Serving-Namespace: ns\r\nContent-Length: 5\r\n\r\nhello",
	}
	for name, info := range map[string]backends.Info{
		"no limit":  {Timeout: time.Minute, ResponseStartTimeout: time.Minute, IdleTimeout: time.Minute},
		"limit 100": {ContainerConcurrency: 100, Timeout: time.Minute},
		"rules for when it is cold": {Timeout: time.Minute, Cold: rulesOf(names.WaitingPageAnnotation, "soon", names.FallbackServiceAnnotation, "spare",
			names.NeverWakePathsAnnotation, "/a,*b", names.NeverWakeAgentsAnnotation, "bot,BENCH")},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, hold.Bounds{})
			w.revision(info)
			w.pods(backends.Endpoint{Address: upstream, Pod: "p", Ready: true})
			for name, request := range requests {
				allocs := forwardtest.Allocations(t, w.url[len("http://"):], request)
				if allocs > 0 {
					t.Errorf("%s: %v allocations", name, allocs)
				}
			}
			w.rests(`{"host":"hello.example.com","to":[{"rev":"rev"}]}`)
			for name, request := range requests {
				if allocs := forwardtest.Allocations(t, w.url[len("http://"):], request); allocs > 0 {
					t.Errorf("%s, where hosts rest: %v allocations", name, allocs)
				}
			}
			request := "GET /x HTTP/1.1\r\nHost: hello.example.com\r\nEbb-Resting: external\r\n\r\n"
			if allocs := forwardtest.Allocations(t, w.url[len("http://"):], request); allocs > 0 {
				t.Errorf("for a host that rests: %v allocations", allocs)
			}
		})
	}
}

// Nor does one cost any that is relayed, in both activators together.
func TestARelayedRequestAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	f := newFleet(t, 3)
	f.revision(backends.Info{ContainerConcurrency: 100, Timeout: time.Minute})
	f.pods(backends.Endpoint{Address: forwardtest.Hello(t), Pod: "p", Ready: true})
	for name, w := range map[string]*world{"relayed": f.other, "served by one of two": f.two[0]} {
		request := "GET /x HTTP/1.1\r\nHost: hello.example.com\r\nEbb-Resting: external\r\n\r\n"
		if allocs := forwardtest.Allocations(t, w.url[len("http://"):], request); allocs > 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}
