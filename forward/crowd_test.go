package forward

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/test/eventually"
)

// crowd is a server of few connections in front of a backend that answers at once, or when it is
// let.
type crowd struct {
	t       *testing.T
	server  *Server
	addr    string
	let     chan struct{}
	once    sync.Once
	working atomic.Int64 // requests that wait to be let
	told    chan int
}

func newCrowd(t *testing.T, most int, change func(*Server)) *crowd {
	w := &crowd{t: t, let: make(chan struct{}), told: make(chan int, 1)}
	backend := httpBackend(t, func(rw http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/work" {
			w.working.Add(1)
			<-w.let
			w.working.Add(-1)
		}
		io.WriteString(rw, "done")
	})
	t.Cleanup(w.end) // before the backend waits for its requests
	w.addr, _ = proxyTo(t, backend, func(s *Server, _ *policy) {
		s.MaxConns, s.idleEnough = most, time.Nanosecond
		s.OnConnLimit = func(conns int) { w.told <- conns }
		if change != nil {
			change(s)
		}
		w.server = s
	})
	return w
}

// end lets all requests go that work.
func (w *crowd) end() { w.once.Do(func() { close(w.let) }) }

func (w *crowd) conns() int {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	return len(w.server.conns)
}

// client is a client's connection.
type client struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func (w *crowd) client() *client {
	c := dialTo(w.t, w.addr)
	return &client{w.t, c, bufio.NewReader(c)}
}

func (c *client) send(path string) *client {
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", path)
	return c
}

// answered reads a response and reports whether another request may follow it.
func (c *client) answered() (again bool) {
	c.t.Helper()
	response, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "done" || response.StatusCode != 200 {
		c.t.Fatalf("got %d %q, %v", response.StatusCode, body, err)
	}
	return !response.Close
}

// ended waits for the end of the connection.
func (c *client) ended() {
	c.t.Helper()
	if n, err := c.r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		c.t.Fatalf("read %d bytes, %v; want the end of the connection", n, err)
	}
}

func TestANewConnectionTakesThePlaceOfTheOneIdleForLongest(t *testing.T) {
	t.Parallel()
	w := newCrowd(t, 4, nil)
	busy := w.client().send("/work")
	eventually.True(t, "it works", func() bool { return w.working.Load() == 1 })
	var idle []*client
	for range 3 {
		c := w.client().send("/")
		c.answered()
		idle = append(idle, c)
		eventually.True(t, "it is idle", func() bool {
			w.server.mu.Lock()
			defer w.server.mu.Unlock()
			n := 0
			for c := range w.server.conns {
				if c.shell.idleSince(time.Now()) > 0 {
					n++
				}
			}
			return n == len(idle)
		})
	}
	for range 2 {
		idle[0].send("/").answered() // now the second is idle for longest
	}
	w.client().send("/").answered()
	idle[1].ended()
	w.client().send("/").answered()
	idle[2].ended()
	idle[0].send("/").answered()
	w.end()
	busy.answered()
	busy.send("/").answered()
	if n := w.conns(); n != 4 {
		t.Errorf("%d connections are open, want 4", n)
	}
	if n := w.server.Evicted(); n != 2 {
		t.Errorf("%d connections are counted as closed for others, want 2", n)
	}
}

func TestANewConnectionWaitsWhileAllOthersWork(t *testing.T) {
	t.Parallel()
	w := newCrowd(t, 2, func(s *Server) { s.idleEnough = time.Hour })
	first, second := w.client().send("/work"), w.client().send("/work")
	eventually.True(t, "both work", func() bool { return w.working.Load() == 2 })
	third := w.client().send("/")
	if n := <-w.told; n != 2 {
		t.Errorf("told of %d connections, want 2", n)
	}
	w.let <- struct{}{}
	w.let <- struct{}{}
	a, b := first.answered(), second.answered()
	if third.answered(); a && b {
		t.Error("no connection made room for the one that waited")
	}
	ended := map[bool]int64{false: 1}
	if n := w.server.Evicted(); n != ended[a]+ended[b] {
		t.Errorf("%d connections are counted as closed for the one that waited, want %d", n, ended[a]+ended[b])
	}
	if !a {
		first.ended()
	}
	if !b {
		second.ended()
	}
}

func TestIdleHTTP2ConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	backend := h2cBackend(t, func(http.ResponseWriter, *http.Request) {})
	var server *Server
	addr, _ := proxyTo(t, backend, func(s *Server, _ *policy) { server, s.MaxConns, s.idleEnough = s, 2, time.Nanosecond })
	for n := range 5 {
		// Each client has connections of its own, and keeps them.
		response, err := h2cClient(t).Post("http://"+addr, "text/plain", strings.NewReader("x"))
		if err != nil {
			t.Fatalf("client %d: %v", n, err)
		}
		response.Body.Close()
	}
	if n := server.Evicted(); n < 3 || n > 4 { // one that is idle may begin to go before there is another
		t.Errorf("%d connections are counted as closed for others, want 3", n)
	}
}

// Ten times more clients than there may be connections, each with several requests that must not be
// sent twice: none is lost.
func TestACrowdLosesNoRequest(t *testing.T) {
	t.Parallel()
	w := newCrowd(t, 8, func(s *Server) { s.idleEnough, s.OnConnLimit = time.Hour, nil })
	var clients sync.WaitGroup
	for range 80 {
		clients.Go(func() {
			transport := &http.Transport{MaxConnsPerHost: 1}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport, Timeout: time.Minute}
			for range 5 {
				response, err := client.Post("http://"+w.addr, "text/plain", io.MultiReader(strings.NewReader("a"), strings.NewReader("body")))
				if err != nil {
					t.Error(err)
					return
				}
				if body, err := io.ReadAll(response.Body); err != nil || string(body) != "done" {
					t.Errorf("got %q, %v", body, err)
				}
				response.Body.Close()
				if n := w.conns(); n > 8 {
					t.Errorf("%d connections, the bound is 8", n)
				}
			}
		})
	}
	clients.Wait()
}

func TestACrowdedServerStops(t *testing.T) {
	t.Parallel()
	w := newCrowd(t, 1, nil)
	w.client().send("/work")
	eventually.True(t, "it works", func() bool { return w.working.Load() == 1 })
	w.client()
	<-w.told // the second waits
	w.end()
	if err := w.server.Shutdown(t.Context()); err != nil && !errors.Is(err, t.Context().Err()) {
		t.Error(err)
	}
}
