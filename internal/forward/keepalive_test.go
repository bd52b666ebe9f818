package forward

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Containers that close idle connections, close at random after a response, or say Connection: close must cost no request: 0 x 502.
func TestClosingUpstreamsCostNoRequest(t *testing.T) {
	for name, test := range map[string]struct {
		idle  time.Duration // how long the container keeps an idle connection
		pause func() time.Duration
		post  bool // what must not be sent twice is sent, too: the container closes in time to be noticed
		reply func(n int) (text string, close bool)
	}{
		"keep-alive of 100 ms, asked when it ends": {
			idle:  100 * time.Millisecond,
			pause: func() time.Duration { return time.Duration(90+rand.IntN(20)) * time.Millisecond },
			reply: func(int) (string, bool) { return "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", false },
		},
		"closed at random after a response, asked 50 ms later": {
			post:  true,
			pause: func() time.Duration { return 50 * time.Millisecond },
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
			var served atomic.Int64
			backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
				for n := 0; ; n++ {
					if test.idle > 0 {
						c.SetReadDeadline(time.Now().Add(test.idle))
					}
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					io.Copy(io.Discard, req.Body)
					served.Add(1)
					text, closes := test.reply(n)
					if _, err := io.WriteString(c, text); err != nil || closes {
						return
					}
				}
			})
			addr, _ := proxyTo(t, backend, nil)
			var wg sync.WaitGroup
			var failed atomic.Int64
			for range 8 {
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
					}
				}()
			}
			wg.Wait()
			if n := failed.Load(); n > 0 {
				t.Errorf("%d of %d requests failed", n, 8*60)
			}
		})
	}
}

// A POST cannot be sent twice. So a container whose idle time was learned is not given one on a connection that it is about to close.
func TestTheIdleTimeOfAContainerIsLearned(t *testing.T) {
	const idle = 300 * time.Millisecond
	var conns atomic.Int64
	backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
		conns.Add(1)
		for {
			c.SetReadDeadline(time.Now().Add(idle))
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	var up *Upstream
	addr, _ := proxyTo(t, backend, func(_ *Server, p *policy) {
		up = NewUpstream(backend, UpstreamOptions{})
		p.admit = func(*Request) Verdict { return Verdict{Upstream: up} }
	})
	defer up.Close()
	post := func() {
		t.Helper()
		resp, err := http.Post("http://"+addr, "text/plain", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Fatalf("got %d", resp.StatusCode)
		}
	}
	post()
	post()
	if n := conns.Load(); n != 1 {
		t.Fatalf("%d connections for two requests", n)
	}
	// The container closes; the next request finds that out, and for how long it had been idle.
	<-time.After(2 * idle)
	post()
	learned := time.Duration(up.learned.Load())
	if learned < idle || learned > 20*idle {
		t.Fatalf("learned %s of a container that keeps connections for %s", learned, idle)
	}
	// An idle connection of nearly that age is not used for a POST any more, dead or alive.
	c := onlyIdle(t, up)
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
		if test.use && up.usable(c, test.age, test.careful) != true || !test.use && up.usable(c, test.age, test.careful) {
			t.Errorf("idle for %s of %s, careful %v: want use %v", test.age, learned, test.careful, test.use)
		}
	}
}

// onlyIdle waits for the one idle connection of up: the client has its answer a moment before the connection is idle.
func onlyIdle(t *testing.T, up *Upstream) *upConn {
	t.Helper()
	var idle []*upConn
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		up.mu.Lock()
		idle = slices.Clone(up.idle)
		up.mu.Unlock()
		if len(idle) == 1 {
			return idle[0]
		}
	}
	t.Fatalf("%d idle connections", len(idle))
	return nil
}
