package forward

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ebb.dev/ebb/test/eventually"
)

// Containers that close idle connections, close at random after a response, or say Connection:
// close must cost no request: 0 x 502.
func TestClosingUpstreamsCostNoRequest(t *testing.T) {
	for name, test := range map[string]struct {
		idle  time.Duration // how long the container keeps an idle connection
		pause func() time.Duration
		post  bool // what must not be sent twice is sent, too: the container closes in time to be noticed
		alone bool // one client, which waits until a container that means to close has closed
		reply func(n int) (text string, close bool)
	}{
		"keep-alive of 100 ms, asked when it ends": {
			idle:  100 * time.Millisecond,
			pause: func() time.Duration { return time.Duration(90+rand.IntN(20)) * time.Millisecond },
			reply: func(int) (string, bool) { return "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", false },
		},
		"closed at random after a response, asked afterwards": {
			post:  true,
			alone: true,
			pause: func() time.Duration { return time.Duration(rand.IntN(8)) * time.Millisecond },
			reply: func(int) (string, bool) { return "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", rand.IntN(2) == 0 },
		},
		"closed at random after a response": {
			pause: func() time.Duration { return time.Duration(rand.IntN(4)) * time.Millisecond },
			reply: func(int) (string, bool) { return "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", rand.IntN(5) == 0 },
		},
		"Connection: close": {
			post:  true,
			pause: func() time.Duration { return 0 },
			reply: func(int) (string, bool) {
				return "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", true
			},
		},
		"Connection: close now and then": {
			post:  true,
			pause: func() time.Duration { return 0 },
			reply: func(int) (string, bool) {
				if rand.IntN(3) == 0 {
					return "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", true
				}
				return "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", false
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var served, closing atomic.Int64
			backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
				for n := 0; ; n++ {
					if test.idle > 0 && n > 0 { // a keep-alive time begins with the first response
						c.SetReadDeadline(time.Now().Add(test.idle))
					}
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					io.Copy(io.Discard, req.Body)
					served.Add(1)
					text, closes := test.reply(n)
					if closes {
						closing.Add(1)
					}
					_, err = io.WriteString(c, text)
					if closes {
						c.Close()
						closing.Add(-1)
					}
					if err != nil || closes {
						return
					}
				}
			})
			addr, _ := proxyTo(t, backend, nil)
			var wg sync.WaitGroup
			var failed atomic.Int64
			clients := 8
			if test.alone {
				clients = 1
			}
			for range clients {
				wg.Add(1)
				go func() {
					defer wg.Done()
					c := dialTo(t, addr)
					r := bufio.NewReader(c)
					for i := range 60 {
						method, body := "GET", ""
						switch {
						case i%3 == 1:
							method, body = "PUT", "put" // may be sent twice, body and all
						case i%3 == 2 && test.post:
							method, body = "POST", "post"
						}
						fmt.Fprintf(c, "%s / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", method, len(body), body)
						resp, err := http.ReadResponse(r, nil)
						if err != nil {
							t.Error(err)
							return
						}
						if text, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 {
							failed.Add(1)
							t.Logf("%s got %d %s", method, resp.StatusCode, text)
						}
						<-time.After(test.pause())
						for test.alone && closing.Load() > 0 {
							runtime.Gosched()
						}
					}
				}()
			}
			wg.Wait()
			if n := failed.Load(); n > 0 {
				t.Errorf("%d of %d requests failed", n, clients*60)
			}
		})
	}
}

// A POST cannot be sent twice. So a container whose idle time was learned is not given one on a
// connection that it is about to close.
func TestTheIdleTimeOfAContainerIsLearned(t *testing.T) {
	const idle = 300 * time.Millisecond
	closed := make(chan bool, 10)
	backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				c.Close()
				closed <- true
				return
			}
			io.Copy(io.Discard, req.Body)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			c.SetReadDeadline(time.Now().Add(idle))
		}
	})
	var up *Upstream
	addr, _ := proxyTo(t, backend, func(_ *Server, p *policy) {
		up = NewUpstream(backend, UpstreamOptions{})
		p.admit = func(*Request) Decision { return Decision{Upstream: up} }
	})
	defer up.Close()
	put := func() { // which may be sent again when it meets the close
		t.Helper()
		req, _ := http.NewRequest("PUT", "http://"+addr, nil)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Fatalf("got %d", resp.StatusCode)
		}
	}
	put()
	// The container closes; the next request finds that out, and for how long it had been idle.
	awaitIdle(t, up)
	since := time.Now()
	<-time.After(2 * idle)
	<-closed
	put()
	learned := up.lesson.Load().idle
	if most := time.Since(since) + idle; learned < idle || learned > most {
		t.Fatalf("learned %s of a container that keeps connections for %s and was left alone for %s", learned, idle, most)
	}
	// An idle connection of nearly that age is not used for a POST any more, alive or not.
	now := up.lesson.Load().at
	for _, test := range []struct {
		age     time.Duration
		careful bool
		use     bool
	}{
		{learned / 2, true, true},
		{learned - learned/20, true, false},
		{learned - learned/20, false, true},
		{2 * learned, true, false},
	} {
		c := &upConn{up: up, since: now.Add(-test.age)} // no socket that could be looked at
		if up.usable(c, now, test.careful) != test.use {
			t.Errorf("idle for %s of %s, careful %v: want use %v", test.age, learned, test.careful, test.use)
		}
	}
}

// A container that was restarted closes connections of any age. What that seems to teach is
// forgotten bit by bit, and learned again where it is true.
func TestWhatWasLearnedOfAContainerAges(t *testing.T) {
	up := NewUpstream("127.0.0.1:1", UpstreamOptions{})
	start := time.Unix(1e9, 0)
	usable := func(after, idle time.Duration) bool {
		now := start.Add(after)
		return up.usable(&upConn{up: up, since: now.Add(-idle)}, now, true)
	}
	if !usable(0, 80*time.Second) {
		t.Error("a connection is not used although nothing was learned")
	}
	up.learn(20*time.Millisecond, start) // the restart
	for _, test := range []struct {
		after, idle time.Duration
		use         bool
	}{
		{0, 5 * time.Millisecond, true}, // too young to be about to be closed by an idle timeout
		{0, 10 * time.Millisecond, false},
		{59 * time.Second, 10 * time.Millisecond, false},
		{5 * time.Minute, 400 * time.Millisecond, true}, // 20 ms doubled five times, less a tenth and 50 ms
		{5 * time.Minute, 600 * time.Millisecond, false},
		{9 * time.Minute, 8 * time.Second, true},
		{9 * time.Minute, 10 * time.Second, false},
		{13 * time.Minute, 80 * time.Second, true}, // forgotten
		{10 * 365 * 24 * time.Hour, 80 * time.Second, true},
	} {
		if got := usable(test.after, test.idle); got != test.use {
			t.Errorf("%s after the restart a connection idle for %s is used: %v, want %v", test.after, test.idle, got, test.use)
		}
	}
	// By now ten seconds are believed to be safe; the container's own idle timeout of two says no.
	up.learn(2*time.Second, start.Add(9*time.Minute))
	if usable(9*time.Minute, 3*time.Second) || !usable(9*time.Minute, time.Second) {
		t.Error("a shorter idle time was not learned anew")
	}
	// A longer one teaches nothing.
	up.learn(3*time.Second, start.Add(9*time.Minute))
	if usable(9*time.Minute, 2500*time.Millisecond) {
		t.Error("a longer idle time took the place of a shorter one")
	}
}

// A connection that was idle for longer than any timer of its last exchange is used again.
func TestAQuietConnectionIsUsedAgain(t *testing.T) {
	backend := rawBackend(t, func(i int, c net.Conn, r *bufio.Reader) {
		for {
			if _, err := http.ReadRequest(r); err != nil {
				return
			}
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n%02d", i)
		}
	})
	var up *Upstream
	addr, _ := proxyTo(t, backend, func(_ *Server, p *policy) {
		up = NewUpstream(backend, UpstreamOptions{})
		p.admit = func(*Request) Decision { return Decision{Upstream: up} }
	})
	defer up.Close()
	for _, method := range []string{"GET", "GET", "POST", "POST"} {
		req, _ := http.NewRequest(method, "http://"+addr, nil)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(text) != "00" {
			t.Errorf("%s came on connection %s", method, text)
		}
		awaitIdle(t, up)
		<-time.After(3 * patience)
	}
	if l := up.lesson.Load(); l != nil {
		t.Errorf("learned that a connection was closed after %s, and none was", l.idle)
	}
}

// A POST that meets a close is sent again where the kernel proves that the container cannot have
// seen it, and nowhere else.
func TestPostThatMeetsAClose(t *testing.T) {
	for name, test := range map[string]struct {
		before bool // the container closes before the POST is sent, but after the look at the connection; else afterwards
		reads  bool // ... and has read the POST by then
		reset  bool // it closes with a reset at once
		status int
		times  int64 // how often containers read the POST
	}{
		"closed before it arrives":       {before: true, status: 200, times: 1},
		"reset before it arrives":        {before: true, reset: true, status: 200, times: 1},
		"closed with the POST unread":    {status: 502, times: 0},
		"closed after the POST was read": {reads: true, status: 502, times: 1},
		"reset after the POST was read":  {reads: true, reset: true, status: 502, times: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var posts atomic.Int64
			closeNow, closed := make(chan struct{}), make(chan struct{})
			backend := rawBackend(t, func(i int, c net.Conn, r *bufio.Reader) {
				for served := ""; ; {
					if served == "GET" {
						if !test.before {
							awaitData(c)
						}
						if test.reads {
							if _, err := http.ReadRequest(r); err == nil {
								posts.Add(1)
							}
						}
						<-closeNow
						if test.reset {
							c.(*net.TCPConn).SetLinger(0)
						}
						c.Close()
						close(closed)
						return
					}
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					served = req.Method
					if served == "POST" {
						posts.Add(1)
					}
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			})
			var up *Upstream
			addr, _ := proxyTo(t, backend, func(_ *Server, p *policy) {
				up = NewUpstream(backend, UpstreamOptions{Dial: func(ctx context.Context, addr string) (net.Conn, error) {
					c, err := dialTCP(ctx, addr)
					if err != nil {
						return nil, err
					}
					return &meddledConn{TCPConn: c.(*net.TCPConn), write: func(write func() (int, error), b []byte) (int, error) {
						if !bytes.HasPrefix(b, []byte("POST")) {
							return write()
						}
						select {
						case <-closed: // the second attempt
							return write()
						default:
						}
						if test.before {
							close(closeNow)
							<-closed
							return write()
						}
						n, err := write()
						close(closeNow)
						<-closed
						return n, err
					}}, nil
				}})
				t.Cleanup(up.Close)
				p.admit = func(*Request) Decision { return Decision{Upstream: up} }
			})
			for _, method := range []string{"GET", "POST"} {
				req, _ := http.NewRequest(method, "http://"+addr, strings.NewReader("x"))
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if want := map[string]int{"GET": 200, "POST": test.status}[method]; resp.StatusCode != want {
					t.Errorf("%s got %d, want %d", method, resp.StatusCode, want)
				}
				if method == "GET" {
					awaitIdle(t, up)
				}
			}
			if n := posts.Load(); n != test.times {
				t.Errorf("containers read the POST %d times, want %d", n, test.times)
			}
		})
	}
}

// awaitIdle returns when up has an idle connection: a client has its answer a moment before. None
// may become idle if the client has closed its own connection by then; see apart.
func awaitIdle(t *testing.T, up *Upstream) {
	t.Helper()
	eventually.True(t, "a connection is idle", func() bool {
		up.mu.Lock()
		defer up.mu.Unlock()
		return len(up.idle) > 0
	})
}

// apart makes a Server for an Upstream, and returns a client of it with a connection for each
// request. The connection stays open until the Server is done with the request, so what the request
// used of the Upstream is idle or closed when the client returns.
func apart(t *testing.T, up *Upstream) (ask func(method, path, body string) (status int, text string)) {
	t.Helper()
	t.Cleanup(up.Close)
	front, p := proxyTo(t, up.Addr(), func(_ *Server, p *policy) {
		p.admit = func(*Request) Decision { return Decision{Upstream: up} }
		p.done = make(chan Result, 1)
	})
	return func(method, path, body string) (int, string) {
		t.Helper()
		own := &http.Transport{}
		defer own.CloseIdleConnections()
		req, _ := http.NewRequest(method, "http://"+front+path, strings.NewReader(body))
		resp, err := own.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		<-p.done
		return resp.StatusCode, string(text)
	}
}

// meddledConn does something around each write.
type meddledConn struct {
	*net.TCPConn
	write func(write func() (int, error), b []byte) (int, error)
}

func (c *meddledConn) Write(b []byte) (int, error) {
	return c.write(func() (int, error) { return c.TCPConn.Write(b) }, b)
}

// awaitData returns when there is something to read on a connection, and leaves it there.
func awaitData(c net.Conn) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return
	}
	raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return err != syscall.EAGAIN
	})
}
