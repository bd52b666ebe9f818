package forward

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// However a request ends for its client, it ends for the Handler when the upstream has ended: until
// then it has its place in the container.
func TestARequestIsOverWhenItsUpstreamHasEnded(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n"
	answers := func(answer string) func(c net.Conn, r *bufio.Reader) {
		return func(c net.Conn, r *bufio.Reader) { io.WriteString(c, answer) }
	}
	ok := answers("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	for name, test := range map[string]struct {
		request string
		begins  string                               // what the upstream sends before the client's end
		ends    func(c net.Conn, r *bufio.Reader)    // what it does last
		client  func(t *testing.T, c net.Conn) error // what the client does
		cause   Cause
		total   time.Duration
	}{
		"the client leaves, the upstream answers":  {ends: ok, client: leaves, cause: ClientGone},
		"the client leaves, the upstream closes":   {ends: func(c net.Conn, r *bufio.Reader) { c.Close() }, client: leaves, cause: ClientGone},
		"... by chunks":                            {ends: answers(head + "0\r\n\r\n"), client: leaves, cause: ClientGone},
		"... after an interim head":                {ends: answers("HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 204 No\r\n\r\n"), client: leaves, cause: ClientGone},
		"... to HEAD":                              {request: "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n", ends: answers("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"), client: leaves, cause: ClientGone},
		"the client leaves in the response":        {begins: head, ends: answers("0\r\n\r\n"), client: leaves, cause: ClientGone},
		"... in one with a length":                 {begins: "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nbegun", ends: answers("ended"), client: leaves, cause: ClientGone},
		"... in one that nothing but a close ends": {begins: "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbegun", ends: func(c net.Conn, r *bufio.Reader) { c.Close() }, client: leaves, cause: ClientGone},
		"the client leaves in its body":            {request: "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf", ends: ok, client: leaves, cause: ClientGone},
		"the client's body is broken":              {request: "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", ends: ok, client: says("nonsense\r\n", "HTTP/1.1 400 "), cause: BadRequest},
		"a timer fires before the response":        {ends: ok, total: 2 * time.Second, client: says("", "HTTP/1.1 504 "), cause: TimedOut},
		"... in the response":                      {begins: head, ends: answers("0\r\n\r\n"), total: 2 * time.Second, client: says("", "Ebb-Timeout: "), cause: TimedOut},
		"... in one that can only be cut":          {begins: "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nbegun", ends: answers("ended"), total: 2 * time.Second, client: says("", "begun"), cause: TimedOut},
		"the client leaves a tunnel":               {request: "GET / HTTP/1.1\r\nHost: h\r\n" + offer + "lines\r\n\r\n", begins: "HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: lines\r\n\r\nbegun", ends: func(c net.Conn, r *bufio.Reader) { c.Close() }, client: resets, cause: ClientGone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ended atomic.Bool
			arrived, told, end := make(chan bool), make(chan error, 1), make(chan bool)
			backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
				req, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				close(arrived)
				io.WriteString(c, test.begins)
				_, err = io.Copy(io.Discard, req.Body)
				if err == nil {
					_, err = io.Copy(io.Discard, r)
				}
				told <- err
				<-end
				ended.Store(true)
				test.ends(c, r)
			})
			addr, p := proxyTo(t, backend, func(s *Server, p *policy) {
				inner := p.admit
				p.done = make(chan Result, 1)
				p.admit = func(r *Request) Decision {
					r.Timeouts.Total = test.total
					if test.total > 0 && test.begins == "" {
						r.Timeouts = Timeouts{ResponseStart: test.total}
					}
					return inner(r)
				}
			})
			c := dialTo(t, addr)
			io.WriteString(c, valueOr(test.request, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"))
			<-arrived
			if test.begins != "" {
				await(t, c, "begun")
			}
			if err := test.client(t, c); err != nil {
				t.Fatal(err)
			}
			<-told // the upstream sees the end of what the client sends
			select {
			case res := <-p.done:
				t.Fatalf("it is over while the upstream works: %+v", res)
			case <-time.After(50 * time.Millisecond):
			}
			close(end)
			res := <-p.done
			if !ended.Load() || res.Cause != test.cause || res.Parted <= 0 {
				t.Errorf("the upstream has ended: %v; result %+v", ended.Load(), res)
			}
		})
	}
}

func valueOr(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func leaves(_ *testing.T, c net.Conn) error { return c.Close() }

func resets(_ *testing.T, c net.Conn) error {
	resetOnClose(c)
	return c.Close()
}

// says sends something and waits for an answer with these words.
func says(what, want string) func(t *testing.T, c net.Conn) error {
	return func(t *testing.T, c net.Conn) error {
		io.WriteString(c, what)
		got, err := io.ReadAll(c)
		if err == nil && want != "begun" && !strings.Contains(string(got), want) {
			err = fmt.Errorf("got %q, want %q", got, want)
		}
		return err
	}
}

// await reads until it has these words.
func await(t *testing.T, c net.Conn, words string) {
	t.Helper()
	var got []byte
	for b := make([]byte, 1); !strings.Contains(string(got), words); {
		n, err := c.Read(b)
		if got = append(got, b[:n]...); err != nil {
			t.Fatalf("got %q: %v", got, err)
		}
	}
}

// An upstream that goes on sending to nobody, or that never ends, is cut, and the request is over.
func TestAnUpstreamThatNeverEndsIsCut(t *testing.T) {
	for name, test := range map[string]struct {
		total time.Duration
		serve func(c net.Conn, over chan bool) error
	}{
		"it streams on": {serve: func(c net.Conn, _ chan bool) (err error) {
			for err == nil {
				_, err = io.WriteString(c, "5\r\nevent\r\n")
				<-time.After(10 * time.Millisecond)
			}
			return err
		}},
		"it says nothing more": {total: 2 * time.Second, serve: func(c net.Conn, over chan bool) error {
			<-over
			_, err := io.WriteString(c, "late")
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cut, over := make(chan error, 1), make(chan bool)
			backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
				if _, err := http.ReadRequest(r); err != nil {
					return
				}
				io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n")
				cut <- test.serve(c, over)
			})
			addr, p := proxyTo(t, backend, func(s *Server, p *policy) {
				inner := p.admit
				p.done = make(chan Result, 1)
				p.admit = func(r *Request) Decision { r.Timeouts.Total = test.total; return inner(r) }
			})
			c := dialTo(t, addr)
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
			await(t, c, "begun")
			c.Close()
			if res := <-p.done; res.Cause != ClientGone && res.Cause != TimedOut {
				t.Errorf("result %+v", res)
			}
			close(over)
			if err := <-cut; err == nil {
				t.Error("the upstream was not cut")
			}
		})
	}
}

// A client that does not read its answer has a second for it, and then its request is over.
func TestAClientThatDoesNotReadKeepsNothing(t *testing.T) {
	backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for {
			if _, err := io.WriteString(c, "64\r\n"+strings.Repeat("e", 100)+"\r\n"); err != nil {
				return
			}
		}
	})
	addr, p := proxyTo(t, backend, func(s *Server, p *policy) {
		inner := p.admit
		p.done = make(chan Result, 1)
		p.admit = func(r *Request) Decision { r.Timeouts.Total = 500 * time.Millisecond; return inner(r) }
	})
	c := dialTo(t, addr)
	c.(*net.TCPConn).SetReadBuffer(4096)
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	select {
	case res := <-p.done:
		if res.Cause != TimedOut {
			t.Errorf("result %+v", res)
		}
	case <-time.After(20 * time.Second):
		t.Error("the request is not over")
	}
}

// The time that an earlier answer had is not that of a later refusal on the connection.
func TestARefusalHasATimeOfItsOwn(t *testing.T) {
	s := &Server{Handler: &policy{}}
	s.init()
	client, server := net.Pipe()
	defer client.Close()
	c := newConn(s, server, nil)
	c.prepare()
	c.endBy = past
	go func() {
		defer server.Close()
		c.reject(errSlowHead)
	}()
	await(t, client, "HTTP/1.1 408 ")
}

// Its node has lost power: nobody will ever say that the program has ended, or acknowledge a byte.
func TestAnUpstreamWhoseKernelIsDeadIsNotSeenOut(t *testing.T) {
	arrived := make(chan bool)
	backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err != nil {
			return
		}
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Error(err)
		}
		// From here on the kernel drops all that comes.
		drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
		raw.Control(func(fd uintptr) {
			err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
		})
		if err != nil {
			t.Error(err)
		}
		close(arrived)
		<-t.Context().Done()
	})
	addr, p := proxyTo(t, backend, func(s *Server, p *policy) {
		up := NewUpstream(backend, UpstreamOptions{DeadAfter: time.Second})
		t.Cleanup(up.Close)
		p.admit = func(*Request) Decision { return Decision{Upstream: up} }
		p.done = make(chan Result, 1)
	})
	c := dialTo(t, addr)
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	<-arrived
	c.Close()
	select {
	case res := <-p.done:
		if res.Cause != ClientGone {
			t.Errorf("%+v", res)
		}
	case <-time.After(30 * time.Second):
		t.Error("it is seen out for 30 s")
	}
}
