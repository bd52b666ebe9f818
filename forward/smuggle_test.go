package forward

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Every malformed request is answered here, with the connection closed, and never reaches the
// upstream.
func TestMalformedRequestsAreRefused(t *testing.T) {
	var reached atomic.Int64
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) { reached.Add(1) })
	addr, _ := proxyTo(t, backend, func(s *Server, _ *policy) { s.MaxHeaderBytes = 8 << 10 })
	const h = "Host: h\r\n"
	for name, test := range map[string]struct {
		request string
		status  int
	}{
		"Content-Length with Transfer-Encoding":      {"POST / HTTP/1.1\r\n" + h + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"two different Content-Lengths":              {"POST / HTTP/1.1\r\n" + h + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
		"two equal Content-Lengths":                  {"POST / HTTP/1.1\r\n" + h + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
		"a list of Content-Lengths":                  {"POST / HTTP/1.1\r\n" + h + "Content-Length: 3, 3\r\n\r\nabc", 400},
		"a negative Content-Length":                  {"POST / HTTP/1.1\r\n" + h + "Content-Length: -1\r\n\r\n", 400},
		"a signed Content-Length":                    {"POST / HTTP/1.1\r\n" + h + "Content-Length: +1\r\n\r\na", 400},
		"a huge Content-Length":                      {"POST / HTTP/1.1\r\n" + h + "Content-Length: 99999999999999999999\r\n\r\n", 400},
		"an unknown Transfer-Encoding":               {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
		"Transfer-Encoding identity":                 {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: identity\r\n\r\n", 501},
		"Transfer-Encoding with a control character": {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400},
		"two Transfer-Encodings":                     {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"Transfer-Encoding in HTTP/1.0":              {"POST / HTTP/1.0\r\n" + h + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"a folded field":                             {"GET / HTTP/1.1\r\n" + h + "X: a\r\n b\r\n\r\n", 400},
		"a bare LF":                                  {"GET / HTTP/1.1\n" + "Host: h\n\n", 400},
		"a bare LF in the fields":                    {"GET / HTTP/1.1\r\n" + h + "X: y\nEvil: z\r\n\r\n", 400},
		"a bare CR in a value":                       {"GET / HTTP/1.1\r\n" + h + "X: y\rEvil: z\r\n\r\n", 400},
		"a NUL in a value":                           {"GET / HTTP/1.1\r\n" + h + "X: y\x00\r\n\r\n", 400},
		"a space before the colon":                   {"GET / HTTP/1.1\r\n" + h + "Content-Length : 3\r\n\r\nabc", 400},
		"a field without a name":                     {"GET / HTTP/1.1\r\n" + h + ": x\r\n\r\n", 400},
		"a field without a colon":                    {"GET / HTTP/1.1\r\n" + h + "junk\r\n\r\n", 400},
		"a name with a space":                        {"GET / HTTP/1.1\r\n" + h + "X Y: z\r\n\r\n", 400},
		"no Host":                                    {"GET / HTTP/1.1\r\n\r\n", 400},
		"two Hosts":                                  {"GET / HTTP/1.1\r\n" + h + h + "\r\n", 400},
		"a Host with a slash":                        {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
		"a Host with user info":                      {"GET / HTTP/1.1\r\nHost: u@h\r\n\r\n", 400},
		"a Host with a port that is no number":       {"GET / HTTP/1.1\r\nHost: h:80x\r\n\r\n", 400},
		"a Host with two ports":                      {"GET / HTTP/1.1\r\nHost: h:80:81\r\n\r\n", 400},
		"a Host with a port alone":                   {"GET / HTTP/1.1\r\nHost: :80\r\n\r\n", 400},
		"a Host with text behind an address":         {"GET / HTTP/1.1\r\nHost: [::1]x\r\n\r\n", 400},
		"a Host with an open bracket":                {"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 400},
		"a Host with an address without brackets":    {"GET / HTTP/1.1\r\nHost: ::1\r\n\r\n", 400},
		"a target with user info":                    {"GET http://u@h/ HTTP/1.1\r\n" + h + "\r\n", 400},
		"a target whose host is encoded":             {"GET http://%68/ HTTP/1.1\r\n" + h + "\r\n", 400},
		"a relative target":                          {"GET a HTTP/1.1\r\n" + h + "\r\n", 400},
		"a target with a control character":          {"GET /\x01 HTTP/1.1\r\n" + h + "\r\n", 400},
		"two spaces in the request line":             {"GET  / HTTP/1.1\r\n" + h + "\r\n", 400},
		"no version":                                 {"GET /\r\n\r\n", 400},
		"an invalid method":                          {"G(T / HTTP/1.1\r\n" + h + "\r\n", 400},
		"a lower-case version":                       {"GET / http/1.1\r\n" + h + "\r\n", 400},
		"HTTP/2.0 in a request line":                 {"GET / HTTP/2.0\r\n" + h + "\r\n", 505},
		"HTTP/1.2":                                   {"GET / HTTP/1.2\r\n" + h + "\r\n", 505},
		"CONNECT":                                    {"CONNECT h:80 HTTP/1.1\r\n" + h + "\r\n", 405},
		"the asterisk without OPTIONS":               {"GET * HTTP/1.1\r\n" + h + "\r\n", 400},
		"a chunk size that is no number":             {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: chunked\r\n\r\nx\r\n", 400},
		"a chunk size with a sign":                   {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n", 400},
		"a chunk size with 0x":                       {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n", 400},
		"a chunk size that overflows":                {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: chunked\r\n\r\n10000000000000001\r\na\r\n0\r\n\r\n", 400},
		"a chunk ended by LF":                        {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n", 400},
		"a chunk longer than its size":               {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", 400},
		"an extension with an open quote":            {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: chunked\r\n\r\n1;a=\"\r\na\r\n0\r\n\r\n", 400},
		"an extension with a backslash":              {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: chunked\r\n\r\n1;a=\"\\\"\r\na\r\n0\r\n\r\n", 400},
		"Content-Length in a trailer":                {"POST / HTTP/1.1\r\n" + h + "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n", 400},
		"a head that is too large":                   {"GET / HTTP/1.1\r\n" + h + "X: " + strings.Repeat("x", 9<<10) + "\r\n\r\n", 431},
		"a target that is too large":                 {"GET /" + strings.Repeat("x", 9<<10) + " HTTP/1.1\r\n" + h + "\r\n", 431},
		"too many fields":                            {"GET / HTTP/1.1\r\n" + h + strings.Repeat("a:b\r\n", 600) + "\r\n", 431},
	} {
		t.Run(name, func(t *testing.T) {
			c := dialTo(t, addr)
			go io.WriteString(c, test.request)
			r := bufio.NewReader(c)
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			if resp.StatusCode != test.status {
				t.Errorf("status %d, want %d", resp.StatusCode, test.status)
			}
			if _, err := r.ReadByte(); err == nil {
				t.Error("more than one response")
			}
		})
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d malformed requests reached the upstream", n)
	}
}

// What an upstream sends wrong becomes 502 with the reason, or a cut when the response has begun.
func TestUpstreamGarbageIs502(t *testing.T) {
	for name, test := range map[string]struct {
		response string
		reason   string
	}{
		"not HTTP":                 {"hello\r\n\r\n", "malformed status line"},
		"another protocol":         {"RTSP/1.0 200 OK\r\n\r\n", "malformed status line"},
		"no status":                {"HTTP/1.1 OK\r\n\r\n", "malformed status line"},
		"a status below 100":       {"HTTP/1.1 099 X\r\n\r\n", "malformed status line"},
		"a broken field":           {"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "malformed header field name"},
		"a folded field":           {"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "folded"},
		"two lengths":              {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "more than one Content-Length"},
		"a bad length":             {"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "malformed Content-Length"},
		"an unknown coding":        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "Transfer-Encoding"},
		"an upgrade nobody wanted": {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "switched protocols unasked"},
		"nothing":                  {"", "closed the connection without a response"},
		"half a head":              {"HTTP/1.1 200 OK\r\nContent-", "unexpected EOF"},
		"an endless head":          {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 70<<10), "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
				if _, err := readHeadOf(r); err == nil {
					io.WriteString(c, test.response)
				}
			})
			addr, _ := proxyTo(t, backend, nil)
			resp, err := http.Post("http://"+addr, "", nil)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != 502 || !strings.Contains(string(body), test.reason) {
				t.Errorf("got %d %q, want 502 with %q", resp.StatusCode, body, test.reason)
			}
		})
	}
}

func TestATruncatedResponseLooksTruncated(t *testing.T) {
	for name, response := range map[string]string{
		"by length":        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
		"by chunks":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
		"by broken chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
				if _, err := readHeadOf(r); err == nil {
					io.WriteString(c, response)
				}
			})
			addr, _ := proxyTo(t, backend, nil)
			resp, err := http.Get("http://" + addr)
			if err != nil {
				return // cut before the head is as good
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err == nil && resp.StatusCode != 502 {
				t.Errorf("%d %q looks whole", resp.StatusCode, body)
			}
		})
	}
}

// A connection that the upstream closes between requests costs no request.
func TestDeadPooledConnectionsAreRetried(t *testing.T) {
	for name, close := range map[string]func(c net.Conn){
		"closed":    func(c net.Conn) { c.Close() },
		"reset":     func(c net.Conn) { c.(*net.TCPConn).SetLinger(0); c.Close() },
		"both ways": func(c net.Conn) { c.(*net.TCPConn).CloseRead(); c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			// Every second request on a connection finds it dead after it was sent.
			backend := rawBackend(t, func(i int, c net.Conn, r *bufio.Reader) {
				for n := 0; ; n++ {
					if _, err := readHeadOf(r); err != nil {
						return
					}
					if n == 1 {
						close(c)
						return
					}
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				}
			})
			addr, p := proxyTo(t, backend, func(s *Server, p *policy) { p.done = make(chan Result, 100) })
			c := dialTo(t, addr)
			r := bufio.NewReader(c)
			retried := 0
			for range 20 {
				fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
				resp, err := http.ReadResponse(r, nil)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(resp.Body)
				if resp.StatusCode != 200 || string(body) != "ok" {
					t.Fatalf("got %d %q", resp.StatusCode, body)
				}
				if (<-p.done).Retried {
					retried++
				}
			}
			if retried == 0 {
				t.Error("nothing was retried; the test does not test")
			}
		})
	}
}

func TestAPostIsNotSentTwice(t *testing.T) {
	var seen atomic.Int64
	backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			if _, err := readHeadOf(r); err != nil || seen.Add(1) == 2 {
				return
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	addr, _ := proxyTo(t, backend, nil)
	for i, want := range []int{200, 502} {
		resp, err := http.Post("http://"+addr, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("POST %d got %d, want %d", i, resp.StatusCode, want)
		}
	}
	if n := seen.Load(); n != 2 {
		t.Errorf("the upstream saw %d POSTs, want 2", n)
	}
}

// A pod that ends while the way to it is cut closes connections whose requests it never got, fresh
// ones among them.
func TestAPostThatACertainlyUnseeingUpstreamClosedIsSentAgain(t *testing.T) {
	var conns, seen atomic.Int64
	backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if conns.Add(1) <= 2 {
			return // its FIN is there before the request
		}
		for {
			if _, err := readHeadOf(r); err != nil {
				return
			}
			seen.Add(1)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	up := NewUpstream(backend, UpstreamOptions{Dial: func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := dialTCP(ctx, addr)
		time.Sleep(patience)
		return c, err
	}})
	defer up.Close()
	h := &policy{admit: func(*Request) Decision { return Decision{Upstream: up} }}
	resp, err := http.Post("http://"+start(t, &Server{Handler: h}), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 || conns.Load() != 3 || seen.Load() != 1 {
		t.Errorf("got %d over %d connections, of which the upstream saw %d requests", resp.StatusCode, conns.Load(), seen.Load())
	}
}

func TestValidHost(t *testing.T) {
	for host, want := range map[string]bool{
		"h": true, "a.b-c_d.example": true, "h:80": true, "h:": true, "127.0.0.1:8080": true, "[::1]": true, "[::1]:80": true, "[fe80::1%25lo]:80": true,
		"": false, ":80": false, "h:x": false, "h:80:81": false, "[]": false, "[::1": false, "::1]": false, "[::1]80": false, "[[::1]]": false,
		"a/b": false, "u@h": false, "a b": false, "a\x00": false, "h:+80": false,
	} {
		if ValidHost(host) != want {
			t.Errorf("%q: %v", host, !want)
		}
	}
}
