package chain

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// floodBounds are the defaults, scaled so that a test reaches them with a few hundred connections.
var floodBounds = hold.Bounds{TotalBytes: 24 << 20}

const floodConns = 600

// flood is a tenant that attacks, and the tenant beside it.
type flood struct {
	*world
	t     *testing.T
	share *hold.Share
	// closePods closes the connections to the attacker's pods.
	closePods func()
}

func newFlood(t *testing.T, info backends.Info, pod func(net.Conn)) *flood {
	w := newWorld(t, floodBounds)
	revision := w.revision(info)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mutex sync.Mutex
	var accepted []net.Conn
	closePods := func() {
		listener.Close()
		mutex.Lock()
		defer mutex.Unlock()
		for _, c := range accepted {
			c.Close()
		}
	}
	t.Cleanup(closePods)
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			c.(*net.TCPConn).SetReadBuffer(4 << 10)
			mutex.Lock()
			accepted = append(accepted, c)
			mutex.Unlock()
			go pod(c)
		}
	}()
	w.pods(backends.Endpoint{Address: netip.MustParseAddrPort(listener.Addr().String()), Pod: "flooded", Ready: true})
	neighbour := backends.Key{Namespace: "neighbours", Name: "quick"}
	w.table.SetRevision(neighbour, &backends.Info{UID: "n", Early: true})
	w.table.SetSlice(neighbour, "s", []backends.Endpoint{w.pod("quick", answer("quick"))})
	return &flood{w, t, revision.Queue().Share(), closePods}
}

// silent is a pod that reads and does not answer.
func silent(c net.Conn) {
	defer c.Close()
	io.Copy(io.Discard, c)
}

// dial opens a connection that the attacker does not read unless it wants to.
func (f *flood) dial() net.Conn {
	f.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		f.t.Fatal(err)
	}
	c.(*net.TCPConn).SetReadBuffer(4 << 10)
	f.t.Cleanup(func() { c.Close() })
	return c
}

func (f *flood) head(method string) string {
	return fmt.Sprintf("%s / HTTP/1.1\r\nHost: a\r\n%s: ns\r\n%s: rev\r\n", method, wire.HeaderNamespace, wire.HeaderRevision)
}

// holds waits until what the attacker uses no longer grows.
func (f *flood) holds() (bytes int64) {
	f.t.Helper()
	last, since := int64(-1), time.Now()
	eventually.True(f.t, "the flood holds what it can get", func() bool {
		if now := f.budget.HeldBytes(); now != last {
			last, since = now, time.Now()
		}
		return last > 0 && time.Since(since) > 300*time.Millisecond
	})
	return last
}

// check is made while the flood lasts: the budget holds, and the neighbour is served as always.
func (f *flood) check(before uint64) {
	f.t.Helper()
	held := f.holds()
	used := memory() - min(before, memory())
	f.t.Logf("the flood holds %d KiB of the budget; the process has %d KiB more; %d refusals", held>>10, used>>10, f.budget.Refusals())
	if slack := int64(runtime.GOMAXPROCS(0)) * 256 << 10; held > floodBounds.TotalBytes/2+slack {
		f.t.Errorf("one tenant holds %d bytes, more than half of %d", held, floodBounds.TotalBytes)
	}
	for range 20 {
		began := time.Now()
		status, _, body := f.send("GET", "", wire.HeaderNamespace, "neighbours", wire.HeaderRevision, "quick")
		if status != 200 || body != "quick" {
			f.t.Fatalf("the neighbour got %d %q", status, body)
		}
		if took := time.Since(began); took > 5*time.Second {
			f.t.Errorf("the neighbour waited %s", took)
		}
	}
	// The pods and the clients of the test are in the same process: a goroutine and a socket each.
	if most := uint64(floodBounds.TotalBytes/2)*3/2 + floodConns*48<<10; used > most {
		f.t.Errorf("the process uses %d KiB more than before, want at most %d", used>>10, most>>10)
	}
}

// ends is called after the attacker's connections were closed: nothing may be left of them.
func (f *flood) ends() {
	f.t.Helper()
	eventually.True(f.t, "nothing is left of the flood", func() bool {
		return f.budget.HeldBytes() == 0 && f.share.Bytes() == 0 && f.budget.Held() == 0
	})
}

func memory() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// status reads what an HTTP/1.1 attacker is answered.
func status(t *testing.T, c net.Conn) (int, http.Header) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(30 * time.Second))
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Error(err)
		return 0, nil
	}
	return response.StatusCode, response.Header
}

// Requests in flight of a revision without a limit, whose clients do not read, or do not send.
func TestStalledRequestsOfOneTenantStayInTheBudget(t *testing.T) {
	endless := bytes.Repeat([]byte("x"), 16<<10)
	for _, test := range []struct {
		name    string
		request func(f *flood) string
		pod     func(net.Conn)
		unread  bool // the pod does not read the body
	}{
		{"downloads that nobody reads", func(f *flood) string { return f.head("GET") + "\r\n" }, func(c net.Conn) {
			c.Read(make([]byte, 4<<10))
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
			for {
				if _, err := c.Write(endless); err != nil {
					return
				}
			}
		}, false},
		{"chunked downloads that nobody reads", func(f *flood) string { return f.head("GET") + "\r\n" }, func(c net.Conn) {
			c.Read(make([]byte, 4<<10))
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for {
				if _, err := fmt.Fprintf(c, "%x\r\n%s\r\n", len(endless), endless); err != nil {
					return
				}
			}
		}, false},
		{"uploads that the pod does not read", func(f *flood) string {
			return f.head("POST") + "Content-Length: 1000000\r\n\r\n" + strings.Repeat("x", 500_000)
		}, func(net.Conn) {}, true},
		{"responses that do not come, to large heads", func(f *flood) string {
			return f.head("GET") + "X-Large: " + strings.Repeat("x", 50<<10) + "\r\n\r\n"
		}, silent, false},
		{"large response heads that nobody reads", func(f *flood) string { return f.head("GET") + "\r\n" }, func(c net.Conn) {
			c.Read(make([]byte, 4<<10))
			io.WriteString(c, "HTTP/1.1 200 OK\r\nX-Large: "+strings.Repeat("x", 50<<10)+"\r\nContent-Length: 10000000000\r\n\r\n")
			for {
				if _, err := c.Write(endless); err != nil {
					return
				}
			}
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFlood(t, backends.Info{Early: true}, test.pod)
			before := memory()
			request := []byte(test.request(f))
			conns := make([]net.Conn, floodConns)
			var writes sync.WaitGroup
			for i := range conns {
				conns[i] = f.dial()
				conns[i].SetWriteDeadline(time.Now().Add(20 * time.Second))
				writes.Go(func() { conns[i].Write(request) })
			}
			f.check(before)
			if f.budget.Refusals() == 0 {
				t.Error("no request was rejected, so the bound was not reached")
			}
			for i := range conns {
				conns[i].Close()
			}
			writes.Wait()
			if test.unread {
				f.closePods() // a client's end waits behind what it has sent
			}
			f.ends()
		})
	}
}

// A request beyond the budget is told when to come again, and gets its answer once there is room.
func TestARequestBeyondTheBudgetIsAskedToComeAgain(t *testing.T) {
	f := newFlood(t, backends.Info{Early: true}, silent)
	var conns []net.Conn
	for f.budget.Refusals() == 0 {
		c := f.dial()
		conns = append(conns, c)
		io.WriteString(c, f.head("GET")+"\r\n")
		eventually.True(t, "it is in flight, or rejected", func() bool {
			_, flying := f.table.Get(key).Queue().Load()
			return int(flying)+int(f.budget.Refusals()) >= len(conns)
		})
	}
	code, header := status(t, conns[len(conns)-1])
	if code != 503 || header.Get("Retry-After") == "" {
		t.Errorf("beyond the budget: %d, Retry-After %q", code, header.Get("Retry-After"))
	}
	for _, c := range conns {
		c.Close()
	}
	f.ends()
}

// h2Attacker is a client of HTTP/2 that reads frames but opens no window.
type h2Attacker struct {
	conn   net.Conn
	framer *http2.Framer
	block  bytes.Buffer
	enc    *hpack.Encoder
}

func (f *flood) dialH2(window uint32) *h2Attacker {
	f.t.Helper()
	a := &h2Attacker{conn: f.dial()}
	io.WriteString(a.conn, http2.ClientPreface)
	a.framer = http2.NewFramer(a.conn, a.conn)
	a.enc = hpack.NewEncoder(&a.block)
	a.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	return a
}

func (a *h2Attacker) request(stream uint32, method string, end bool) {
	a.block.Reset()
	for _, field := range [][2]string{{":method", method}, {":scheme", "http"}, {":path", "/"}, {":authority", "a"},
		{strings.ToLower(wire.HeaderNamespace), "ns"}, {strings.ToLower(wire.HeaderRevision), "rev"}} {
		a.enc.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	a.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: a.block.Bytes(), EndHeaders: true, EndStream: end})
}

// oneConn is a listener of one connection.
type oneConn chan net.Conn

func (l oneConn) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l oneConn) Close() error   { return nil }
func (l oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// Streams of HTTP/2 whose windows stay closed, on either side.
func TestStalledStreamsOfOneTenantStayInTheBudget(t *testing.T) {
	endless := bytes.Repeat([]byte("x"), 16<<10)
	// serve is a pod that speaks HTTP/2.
	serve := func(handler http.HandlerFunc) func(net.Conn) {
		return func(c net.Conn) {
			ended := make(chan struct{})
			server := &http.Server{Handler: handler, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 250},
				ConnState: func(_ net.Conn, state http.ConnState) {
					if state == http.StateClosed {
						close(ended)
					}
				}}
			server.Protocols.SetUnencryptedHTTP2(true)
			l := make(oneConn, 1)
			l <- c
			close(l)
			_ = server.Serve(l) // it has taken the connection
			<-ended
		}
	}
	download := serve(func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := w.Write(endless); err != nil {
				return
			}
		}
	})
	for _, test := range []struct {
		name    string
		conns   int
		streams int // of each connection
		attack  func(a *h2Attacker, stream uint32)
		reads   bool // the attacker reads frames, but opens no window
		window  uint32
		pod     func(net.Conn)
	}{
		{"downloads without a window", 4, 100, func(a *h2Attacker, id uint32) { a.request(id, "GET", true) }, true, 0, download},
		{"downloads on connections that nobody reads", 400, 1, func(a *h2Attacker, id uint32) { a.request(id, "GET", true) }, false, 1 << 20, download},
		{"uploads that the pod does not read", 40, 8, func(a *h2Attacker, id uint32) {
			a.request(id, "POST", false)
			for range 15 {
				a.framer.WriteData(id, false, endless)
			}
		}, true, 65535, serve(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })},
		{"requests that are not answered", 300, 3, func(a *h2Attacker, id uint32) { a.request(id, "GET", true) }, true, 65535,
			serve(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFlood(t, backends.Info{Early: true, H2C: true}, test.pod)
			before := memory()
			attackers := make([]*h2Attacker, test.conns)
			var group sync.WaitGroup
			for i := range attackers {
				a := f.dialH2(test.window)
				attackers[i] = a
				a.conn.SetWriteDeadline(time.Now().Add(20 * time.Second))
				if test.reads {
					group.Go(func() { io.Copy(io.Discard, a.conn) })
				}
				group.Go(func() {
					for n := range test.streams {
						test.attack(a, uint32(2*n+1))
					}
				})
			}
			f.check(before)
			if f.budget.Refusals() == 0 {
				t.Error("nothing was rejected, so the bound was not reached")
			}
			for _, a := range attackers {
				a.conn.Close()
			}
			group.Wait()
			f.ends()
		})
	}
}
