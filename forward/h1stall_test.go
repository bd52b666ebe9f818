package forward

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"ebb.dev/ebb/test/eventually"
)

// purse is an Account without room for amounts that full says.
type purse struct {
	used, lent, stalls atomic.Int64
	full               func(n int64) bool
}

func (p *purse) Take(n int64) error {
	if p.full != nil && p.full(n) {
		return errors.New("the purse is empty")
	}
	if n == stallBytes {
		p.stalls.Add(1)
	}
	p.used.Add(n)
	return nil
}
func (p *purse) Give(n int64)        { p.used.Add(-n) }
func (p *purse) Borrow(n int64) bool { p.lent.Add(n); return true }
func (p *purse) Return(n int64)      { p.lent.Add(-n) }

// A peer that does not read is charged for what the kernel keeps for it, and cut off if there is no
// room for that.
func TestAPeerThatDoesNotReadIsChargedOrCutOff(t *testing.T) {
	piece := bytes.Repeat([]byte("x"), 32<<10)
	endless := func(c net.Conn) {
		for {
			if _, err := c.Write(piece); err != nil {
				return
			}
		}
	}
	answers := func(head string) func(net.Conn) {
		return func(c net.Conn) {
			c.Read(make([]byte, 4<<10))
			io.WriteString(c, head)
			endless(c)
		}
	}
	const upgrade = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	const switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	for _, test := range []struct {
		name, request string
		upstream      func(net.Conn)
		sends         bool // the client sends without end
	}{
		{"a response of known length", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", answers("HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n"), false},
		{"a response until the end of the connection", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", answers("HTTP/1.1 200 OK\r\n\r\n"), false},
		{"a chunked response", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", func(c net.Conn) {
			c.Read(make([]byte, 4<<10))
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for {
				if _, err := fmt.Fprintf(c, "%x\r\n%s\r\n", len(piece), piece); err != nil {
					return
				}
			}
		}, false},
		{"a request body", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000000\r\n\r\n", func(net.Conn) {}, true},
		{"a tunnel to the client", upgrade, answers(switched), false},
		{"a tunnel to the upstream", upgrade, func(c net.Conn) {
			c.Read(make([]byte, 4<<10))
			io.WriteString(c, switched)
		}, true},
	} {
		for _, room := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, room %t", test.name, room), func(t *testing.T) {
				t.Parallel()
				quit := make(chan struct{})
				backend := rawBackend(t, func(_ int, c net.Conn, _ *bufio.Reader) {
					test.upstream(c)
					<-quit // open, and not read
				})
				end := sync.OnceFunc(func() { close(quit) })
				t.Cleanup(end)
				account := &purse{}
				if !room {
					account.full = func(n int64) bool { return n == stallBytes }
				}
				addr, p := proxyTo(t, backend, nil)
				p.done = make(chan Result, 1)
				forward := p.admit
				p.admit = func(r *Request) Decision {
					if err := r.Charge(account, 1000); err != nil {
						t.Error(err)
					}
					return forward(r)
				}
				client := dialTo(t, addr)
				io.WriteString(client, test.request)
				if test.sends {
					go endless(client)
				}
				if room {
					eventually.True(t, "the stall is charged", func() bool { return account.stalls.Load() == 1 })
					client.Close()
					if test.sends {
						end() // the client's end waits behind what it has sent
					}
				}
				res := <-p.done
				if room != (account.stalls.Load() == 1) {
					t.Errorf("%d stalls were charged", account.stalls.Load())
				}
				if !room && res.Cause != ClientGone {
					t.Errorf("the exchange ended with %v, %v; want that the client was cut off", res.Cause, res.Err)
				}
				eventually.True(t, "everything is given back", func() bool { return account.used.Load() == 0 && account.lent.Load() == 0 })
			})
		}
	}
}

// What an exchange needs later is charged, too. Without room it gets 503, and the next is served.
func TestAnExchangeThatCannotGrowIsRejected(t *testing.T) {
	large := strings.Repeat("x", 40<<10)
	backend := rawBackend(t, func(_ int, c net.Conn, _ *bufio.Reader) {
		buffer := make([]byte, 64<<10)
		for {
			n, err := c.Read(buffer)
			if err != nil {
				return
			}
			if bytes.Contains(buffer[:n], []byte("/large")) {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Large: "+large+"\r\n\r\n")
			} else {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
		}
	})
	account := &purse{}
	addr, p := proxyTo(t, backend, nil)
	p.done = make(chan Result, 1)
	forward := p.admit
	p.admit = func(r *Request) Decision {
		account.full = nil
		if err := r.Charge(account, 0); err != nil {
			t.Error(err)
		}
		account.full = func(int64) bool { return true }
		return forward(r)
	}
	for _, step := range []struct {
		path string
		want string
	}{{"/large", "HTTP/1.1 503 Service Unavailable"}, {"/small", "HTTP/1.1 200 OK"}} {
		client := dialTo(t, addr)
		io.WriteString(client, "GET "+step.path+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		answer, _ := io.ReadAll(client)
		status, rest, _ := strings.Cut(string(answer), "\r\n")
		if status != step.want {
			t.Errorf("%s: %q, want %q", step.path, status, step.want)
		}
		if strings.Contains(status, "503") && (!strings.Contains(rest, "Retry-After: 1\r\n") || !strings.HasSuffix(rest, "the purse is empty")) {
			t.Errorf("%s: the answer is %q", step.path, rest)
		}
		<-p.done
		eventually.True(t, "everything is given back", func() bool { return account.used.Load() == 0 })
	}
}

// A connection that waits for its next request keeps no large buffers.
func TestAnIdleConnectionKeepsNoLargeHead(t *testing.T) {
	backend := rawBackend(t, func(_ int, c net.Conn, _ *bufio.Reader) {
		buffer := make([]byte, 64<<10)
		got := 0
		for {
			n, err := c.Read(buffer[got:])
			if err != nil {
				return
			}
			if got += n; bytes.HasSuffix(buffer[:got], []byte("\r\n\r\n")) {
				got = 0
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Large: "+strings.Repeat("x", 40<<10)+"\r\n\r\n")
			}
		}
	})
	var server *Server
	addr, p := proxyTo(t, backend, func(s *Server, _ *policy) { server = s })
	p.done = make(chan Result, 1)
	client := dialTo(t, addr)
	io.WriteString(client, "GET / HTTP/1.1\r\nHost: a\r\nX-Large: "+strings.Repeat("x", 40<<10)+"\r\n\r\n")
	answer := make([]byte, 0, 64<<10)
	for !bytes.HasSuffix(answer, []byte("\r\n\r\n")) {
		n, err := client.Read(answer[len(answer):cap(answer)])
		if err != nil {
			t.Fatal(err)
		}
		answer = answer[:len(answer)+n]
	}
	<-p.done
	eventually.True(t, "the connection waits for a request", func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		for of := range server.conns {
			c := of.shell.(*conn)
			if c.idle.Load() > 0 { // after which it touches its buffers only for a request
				return cap(c.in)+cap(c.out)+cap(c.rb) <= 5*smallBuffer
			}
		}
		return false
	})
}

// A connection of HTTP/2 takes more memory than one of HTTP/1.1, so there may be fewer.
func TestAConnectionOfHTTP2CountsAsThree(t *testing.T) {
	backend := httpBackend(t, func(http.ResponseWriter, *http.Request) {})
	var server *Server
	addr, _ := proxyTo(t, backend, func(s *Server, _ *policy) { server, s.MaxConns = s, 4 })
	dialH2raw(t, addr)
	crowded := func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		return server.crowded()
	}
	eventually.True(t, "it is known to be one", func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		return server.heavy == h2Counts
	})
	if crowded() {
		t.Error("there is no room for one more")
	}
	dialTo(t, addr)
	eventually.True(t, "there is no room for a fifth", crowded)
}
