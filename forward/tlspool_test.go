package forward

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"ebb.dev/ebb/test/eventually"
)

// tlsBackend runs serve for every request that comes over TLS; conn counts connections, n the
// requests of one. Each connection whose serving ended is closed.
func tlsBackend(t *testing.T, serve func(conn, n int, c net.Conn, req *http.Request) (keep bool)) (addr string, config *tls.Config) {
	t.Helper()
	known := httptest.NewTLSServer(http.NotFoundHandler()) // it has a certificate that its client knows
	t.Cleanup(known.Close)
	config = known.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.ServerName = "example.com"
	own := &tls.Config{Certificates: known.TLS.Certificates}
	addr = rawBackend(t, func(i int, c net.Conn, _ *bufio.Reader) {
		tc := tls.Server(c, own)
		defer tc.Close()
		r := bufio.NewReader(tc)
		for n := 0; ; n++ {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			if !serve(i, n, tc, req) {
				return
			}
		}
	})
	return addr, config
}

// poster sends POSTs on one connection to addr.
func poster(t *testing.T, addr string) func(path string) (int, string) {
	c := dialTo(t, addr)
	r := bufio.NewReader(c)
	return func(path string) (int, string) {
		t.Helper()
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody", path)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
}

func answerWith(c net.Conn, text string) {
	fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
}

// An idle connection over TLS is looked at before use as a plain one is: what its upstream closed
// is not given a POST. And the tickets that a server sends after the handshake do not keep a
// connection from being used again.
func TestAClosedTLSConnectionCostsNoPost(t *testing.T) {
	t.Parallel()
	end := make(chan bool)
	addr, config := tlsBackend(t, func(conn, n int, c net.Conn, req *http.Request) bool {
		answerWith(c, fmt.Sprint(conn, " ", n))
		return req.URL.Path != "/last" || <-end
	})
	var up *Upstream
	front, _ := proxyTo(t, addr, func(_ *Server, p *policy) {
		up = NewUpstream(addr, UpstreamOptions{TLS: config})
		p.admit = func(*Request) Decision { return Decision{Upstream: up} }
	})
	t.Cleanup(up.Close)
	post := poster(t, front)
	for n := range 3 {
		if status, text := post("/kept"); status != 200 || text != fmt.Sprint("0 ", n) {
			t.Errorf("got %d %q, want request %d of the first connection", status, text, n)
		}
	}
	for i := range 20 {
		if status, text := post("/last"); status != 200 {
			t.Errorf("POST %d got %d %s", i, status, text)
		}
		awaitIdle(t, up)
		end <- false
		eventually.True(t, "the close arrives", func() bool {
			up.mu.Lock()
			defer up.mu.Unlock()
			for _, c := range up.idle {
				if c.raw == nil || c.peek() != peekClosed {
					return false
				}
			}
			return true
		})
	}
}

// A POST that meets the close is sent again where the kernel proves that nobody can have seen it,
// over TLS too.
func TestAPostThatMeetsACloseOverTLS(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sees   bool // the upstream reads the POST before it closes
		status int
	}{"before it arrives": {status: 200}, "after it was read": {sees: true, status: 502}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var armed, seen atomic.Bool
			closeNow := make(chan struct{})
			addr, config := tlsBackend(t, func(conn, n int, c net.Conn, req *http.Request) bool {
				if conn == 0 && n == 1 {
					seen.Store(true)
					return false
				}
				answerWith(c, "ok")
				if conn == 0 && !test.sees {
					<-closeNow
					return false
				}
				return true
			})
			var up *Upstream
			front, _ := proxyTo(t, addr, func(_ *Server, p *policy) {
				up = NewUpstream(addr, UpstreamOptions{TLS: config, Dial: func(ctx context.Context, addr string) (net.Conn, error) {
					nc, err := dialTCP(ctx, addr)
					if err != nil {
						return nil, err
					}
					tcp := nc.(*net.TCPConn)
					raw, err := tcp.SyscallConn()
					return &meddledConn{TCPConn: tcp, write: func(write func() (int, error), b []byte) (int, error) {
						if armed.CompareAndSwap(true, false) && !test.sees {
							close(closeNow)
							eventually.True(t, "the close arrives", func() bool { return tcpClosing(raw) })
						}
						return write()
					}}, err
				}})
				p.admit = func(*Request) Decision { return Decision{Upstream: up} }
			})
			t.Cleanup(up.Close)
			post := poster(t, front)
			if status, text := post("/"); status != 200 {
				t.Fatalf("got %d %s", status, text)
			}
			awaitIdle(t, up)
			armed.Store(true)
			if status, text := post("/"); status != test.status {
				t.Errorf("got %d %s, want %d", status, text, test.status)
			}
			if seen.Load() != test.sees {
				t.Errorf("the first connection's second POST was read: %v", seen.Load())
			}
		})
	}
}
