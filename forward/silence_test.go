package forward

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"ebb.dev/ebb/test/eventually"
)

// A program that says more than it announced: the next request gets its own answer, and from then
// on no connection is kept after such answers, while others are.
func TestWhatAnUpstreamSaysUnaskedReachesNobody(t *testing.T) {
	const unasked = "HTTP/1.1 299 Unasked\r\nContent-Length: 7\r\n\r\nunasked"
	length := func(body string) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	for name, test := range map[string]struct{ method, answer, kind string }{
		"HEAD":                {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 54\r\n\r\n", "HEAD"},
		"204":                 {"GET", "HTTP/1.1 204 No\r\n\r\n", "204"},
		"304":                 {"GET", "HTTP/1.1 304 Same\r\nContent-Length: 54\r\n\r\n", "304"},
		"no body":             {"GET", length(""), "Content-Length"},
		"a length":            {"GET", length("short"), "Content-Length"},
		"more than one read":  {"GET", length(strings.Repeat("long", 5000)), "Content-Length"},
		"as long as a buffer": {"GET", length(strings.Repeat("l", smallBuffer-len(length(""))-3)), "Content-Length"},
		"chunks":              {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "chunked"},
	} {
		for _, later := range []bool{false, true} { // in one write, or in a second one
			for _, encrypted := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, later %v, TLS %v", name, later, encrypted), func(t *testing.T) {
					t.Parallel()
					answered := make(chan bool)
					bad := func(c net.Conn) {
						if !later {
							io.WriteString(c, test.answer+unasked)
							return
						}
						io.WriteString(c, test.answer)
						<-answered // the client has its answer, and the connection may be in the pool
						io.WriteString(c, unasked)
						answered <- true
					}
					good := func(c net.Conn, conn int) { io.WriteString(c, length(fmt.Sprint("connection ", conn))) }
					var addr string
					options := UpstreamOptions{}
					if encrypted {
						addr, options.TLS = tlsBackend(t, func(conn, _ int, c net.Conn, req *http.Request) bool {
							if req.URL.Path == "/bad" {
								bad(c)
							} else {
								good(c, conn)
							}
							return true
						})
					} else {
						addr = rawBackend(t, func(i int, c net.Conn, r *bufio.Reader) {
							for {
								req, err := http.ReadRequest(r)
								if err != nil {
									return
								}
								if req.URL.Path == "/bad" {
									bad(c)
								} else {
									good(c, i)
								}
							}
						})
					}
					var mu sync.Mutex
					var told []string
					options.OnOverrun = func(answer string) {
						mu.Lock()
						defer mu.Unlock()
						told = append(told, answer)
					}
					up := NewUpstream(addr, options)
					ask := apart(t, up)
					for i := range 3 {
						ask(test.method, "/bad", "")
						if later {
							answered <- true
							<-answered
							if test.kind != "HEAD" && (i == 0 || encrypted) { // otherwise the connection is not kept
								eventually.True(t, "what is unasked arrives", func() bool { return !quiet(up) })
							}
						}
						if status, body := ask("GET", "/good", ""); status != 200 || !strings.HasPrefix(body, "connection ") {
							t.Errorf("an innocent request got %d %q", status, body)
						}
					}
					if test.kind != "Content-Length" { // then good answers are no reason to close
						_, first := ask("GET", "/good", "")
						if _, again := ask("GET", "/good", ""); again != first {
							t.Errorf("%q after %q: connections are not kept after good answers", again, first)
						}
					}
					mu.Lock()
					defer mu.Unlock()
					if test.kind == "HEAD" && later { // nobody was there to hear it
						if len(told) > 0 {
							t.Errorf("told of %q on a connection that is closed", told)
						}
						return
					}
					if want := []string{test.kind}; !slices.Equal(told, want) && !(encrypted && later) {
						t.Errorf("told of %q, want %q", told, want)
					}
					for answer, n := range up.Overruns() {
						if (n > 0) != (answer == test.kind) && !(encrypted && later) {
							t.Errorf("%d overruns after %s", n, answer)
						}
					}
				})
			}
		}
	}
}

// Bytes that arrive after the next request was sent, and are no response, are an earlier
// exchange's: a request that may be sent again gets its own answer, on another connection.
func TestLateBytesThatAreNoResponseCostASafeRequestNothing(t *testing.T) {
	addr := rawBackend(t, func(i int, c net.Conn, r *bufio.Reader) {
		for n := 0; ; n++ {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			if n > 0 {
				io.WriteString(c, "the rest of an answer that was longer than announced\n")
			}
			body := fmt.Sprint("connection ", i)
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		}
	})
	for method, want := range map[string]int{"GET": 200, "POST": 502} {
		ask := apart(t, NewUpstream(addr, UpstreamOptions{}))
		for _, status := range []int{200, want, 200} { // the third finds such answers distrusted
			if got, body := ask(method, "/", "x"); got != status {
				t.Errorf("%s: %d %q, want %d", method, got, body, status)
			}
		}
	}
}

// quiet reports whether nothing has arrived on idle connections.
func quiet(up *Upstream) bool {
	up.mu.Lock()
	defer up.mu.Unlock()
	for _, c := range up.idle {
		if c.peek() != peekQuiet {
			return false
		}
	}
	return true
}

// A server that says why it closes an idle connection has not sent more than it announced.
func TestAFarewellIsNoOverrun(t *testing.T) {
	end := make(chan bool)
	backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err != nil {
			return
		}
		answerWith(c, "ok")
		<-end
		io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n")
	})
	up := NewUpstream(backend, UpstreamOptions{OnOverrun: func(answer string) { t.Errorf("blamed %s", answer) }})
	t.Cleanup(up.Close)
	addr, _ := proxyTo(t, backend, func(_ *Server, p *policy) {
		p.admit = func(*Request) Decision { return Decision{Upstream: up} }
	})
	post := poster(t, addr)
	for range 3 {
		if status, text := post("/"); status != 200 || text != "ok" {
			t.Errorf("got %d %q", status, text)
		}
		awaitIdle(t, up)
		end <- true
		eventually.True(t, "the close arrives", func() bool {
			up.mu.Lock()
			defer up.mu.Unlock()
			return up.idle[0].peek() == peekClosed
		})
	}
}

// Whatever the pieces in which records come, TLS gets the bytes as they are, and never some of a
// second record with the first.
func TestTLSGetsOneRecordAtATime(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var sent []byte
		starts := map[int]bool{0: true}
		for range 1 + random.IntN(6) {
			body := make([]byte, random.IntN(20)*random.IntN(700))
			sent = append(sent, 23, 3, 3)
			sent = binary.BigEndian.AppendUint16(sent, uint16(len(body)))
			sent = append(sent, body...)
			starts[len(sent)] = true
		}
		for name, r := range map[string]io.Reader{
			"whole": bytes.NewReader(sent), "by bytes": iotest.OneByteReader(bytes.NewReader(sent)), "by halves": iotest.HalfReader(bytes.NewReader(sent)),
		} {
			b := &below{Conn: readerConn{r: r}}
			var got []byte
			for {
				p := make([]byte, 1+random.IntN(2000))
				n, err := b.Read(p)
				for at := len(got) + 1; at < len(got)+n; at++ {
					if starts[at] {
						t.Fatalf("%s: a read crossed the end of a record at %d", name, at)
					}
				}
				got = append(got, p[:n]...)
				if between := len(b.ahead) == 0 && b.head == 0 && b.body == 0; between && !starts[len(got)] {
					t.Fatalf("%s: silent in the middle of a record, at %d", name, len(got))
				}
				if err != nil {
					break
				}
			}
			if !bytes.Equal(got, sent) {
				t.Fatalf("%s: %d bytes came of %d", name, len(got), len(sent))
			}
		}
	}
}

// readerConn is a connection that only reads.
type readerConn struct {
	net.Conn
	r io.Reader
}

func (c readerConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// Large and small messages pass TLS as they do without it.
func TestTLSOverRecords(t *testing.T) {
	addr, config := tlsBackend(t, func(_, _ int, c net.Conn, req *http.Request) bool {
		answerWith(c, strings.Repeat(req.URL.Path, 1+len(req.URL.Path)*1000))
		return true
	})
	up := NewUpstream(addr, UpstreamOptions{TLS: config})
	t.Cleanup(up.Close)
	front, _ := proxyTo(t, addr, func(_ *Server, p *policy) {
		p.admit = func(*Request) Decision { return Decision{Upstream: up} }
	})
	post := poster(t, front)
	for n := range 20 {
		path := "/" + strings.Repeat("p", n)
		if status, text := post(path); status != 200 || text != strings.Repeat(path, 1+len(path)*1000) {
			t.Errorf("got %d and %d bytes for %s", status, len(text), path)
		}
	}
	up.mu.Lock()
	defer up.mu.Unlock()
	if len(up.idle) > 1 {
		t.Errorf("%d connections were made for one client", len(up.idle))
	}
}
