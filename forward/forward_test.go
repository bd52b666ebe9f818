package forward

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"ebb.dev/ebb/forward/forwardtest"
	"ebb.dev/ebb/internal/testing/reserve"
)

// policy is a Handler out of functions, and a ledger of what it was told.
type policy struct {
	admit  func(r *Request) Decision
	mu     sync.Mutex
	admits int
	done   chan Result
	itself bool // charges requests itself
}

func (p *policy) charges() bool { return p.itself }

func (p *policy) Admit(r *Request) Decision {
	p.mu.Lock()
	p.admits++
	p.mu.Unlock()
	return p.admit(r)
}

func (p *policy) Done(r *Request, res *Result) {
	if p.done != nil {
		p.done <- *res
	}
}

// start serves h on a port of its own until the test ends.
func start(t testing.TB, s *Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	books := keepBooks(s)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-served; !errors.Is(err, ErrServerClosed) {
			t.Errorf("Serve returned %v", err)
		}
		books.closed(t)
	})
	return l.Addr().String()
}

// Clients of a listener that Serve got too late do not wait in its backlog.
func TestServeAfterCloseClosesTheListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := &Server{Handler: &policy{}}
	s.Close()
	if err := s.Serve(l); !errors.Is(err, ErrServerClosed) {
		t.Errorf("Serve returned %v", err)
	}
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		c.Close()
		t.Error("the listener is open")
	}
}

// proxyTo starts a forwarder to addr and returns its address and policy.
func proxyTo(t testing.TB, addr string, change func(*Server, *policy)) (string, *policy) {
	t.Helper()
	up := NewUpstream(addr, UpstreamOptions{})
	t.Cleanup(up.Close)
	p := &policy{admit: func(*Request) Decision { return Decision{Upstream: up} }}
	s := &Server{Handler: p}
	if change != nil {
		change(s, p)
	}
	return start(t, s), p
}

// httpBackend serves h with net/http.
func httpBackend(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	b := httptest.NewServer(h)
	t.Cleanup(b.Close)
	return b.Listener.Addr().String()
}

// rawBackend runs script for every accepted connection.
func rawBackend(t testing.TB, script func(i int, c net.Conn, r *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	wg.Add(1)
	go func() {
		defer wg.Done()
		for i := 0; ; i++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			wg.Add(1)
			go func() {
				defer wg.Done()
				defer c.Close()
				script(i, c, bufio.NewReader(c))
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}

// readHeadOf reads one request head, as text.
func readHeadOf(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		b.WriteString(line)
		if err != nil {
			return b.String(), err
		}
		if line == "\r\n" {
			return b.String(), nil
		}
	}
}

// listenLocal is a listener on a port of its own.
func listenLocal(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// dialTo opens a client connection with a generous deadline, so that a hang fails the test instead
// of stopping it.
func dialTo(t testing.TB, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(30 * time.Second))
	t.Cleanup(func() { c.Close() })
	return c
}

func TestForwardsRequestsAndResponses(t *testing.T) {
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read body: %v", err)
		}
		w.Header().Set("X-Method", r.Method)
		w.Header().Set("X-Uri", r.RequestURI)
		w.Header().Set("X-Host", r.Host)
		w.Header()["X-Hop"] = r.Header["X-Hop"]
		w.Header().Set("X-Te", strings.Join(r.TransferEncoding, ","))
		if r.URL.Query().Get("flush") != "" {
			w.(http.Flusher).Flush()
		}
		w.Write(body)
	})
	addr, p := proxyTo(t, backend, nil)
	large := strings.Repeat("0123456789abcdef", 20000)
	for _, test := range []struct {
		name, method, path, body string
		chunked                  bool
	}{
		{"a plain GET", "GET", "/a?b=c", "", false},
		{"HEAD has no body", "HEAD", "/a", "", false},
		{"a small POST", "POST", "/p", "hello", false},
		{"a large POST", "POST", "/p", large, false},
		{"a large chunked POST", "POST", "/p", large, true},
		{"a small chunked POST", "POST", "/p", "x", true},
		{"a chunked response", "PUT", "/p?flush=1", large, true},
		{"an unknown method", "BREW", "/tea", "x", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var body io.Reader
			if test.body != "" {
				body = strings.NewReader(test.body)
				if test.chunked {
					body = io.MultiReader(body)
				}
			}
			req, _ := http.NewRequest(test.method, "http://"+addr+test.path, body)
			req.Host = "example.test"
			req.Header.Set("X-Hop", "seen")
			for range 3 { // the connections are used again
				if test.body != "" {
					r := io.Reader(strings.NewReader(test.body))
					if test.chunked {
						r = io.MultiReader(r)
					}
					req.Body = io.NopCloser(r)
				}
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || string(got) != test.body {
					t.Fatalf("body: %d bytes, %v; want %d bytes", len(got), err, len(test.body))
				}
				for name, want := range map[string]string{"X-Method": test.method, "X-Uri": test.path, "X-Host": "example.test", "X-Hop": "seen"} {
					if resp.Header.Get(name) != want {
						t.Errorf("%s = %q, want %q", name, resp.Header.Get(name), want)
					}
				}
			}
		})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.admits == 0 {
		t.Error("Admit was never asked")
	}
}

func TestLocalReply(t *testing.T) {
	addr, p := proxyTo(t, "127.0.0.1:1", func(s *Server, p *policy) {
		p.done = make(chan Result, 2)
		p.admit = func(r *Request) Decision {
			return Decision{Reply: Reply{Status: 503, Body: "no", Header: []Header{{"Retry-After", "1"}}}}
		}
	})
	for range 2 {
		resp, err := http.Post("http://"+addr, "text/plain", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 503 || string(body) != "no" || resp.Header.Get("Retry-After") != "1" {
			t.Errorf("got %v %q", resp, body)
		}
	}
	for range 2 {
		if res := <-p.done; res.Cause != Replied || res.Status != 503 {
			t.Errorf("result: %+v", res)
		}
	}
}

func TestNoUpstreamIs502(t *testing.T) {
	addr, _ := proxyTo(t, reserve.Port(t).String(), nil)
	resp, err := http.Get("http://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 502 || string(body) != "the upstream does not accept connections" { // no address: clients do not need it
		t.Errorf("got %d %q", resp.StatusCode, body)
	}
}

func TestHeaderEdits(t *testing.T) {
	heads := make(chan string, 1)
	backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
		head, err := readHeadOf(r)
		if err != nil {
			return
		}
		heads <- head
		io.WriteString(c, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
	})
	up := NewUpstream(backend, UpstreamOptions{})
	addr, _ := proxyTo(t, backend, func(s *Server, p *policy) {
		p.admit = func(r *Request) Decision {
			r.SetHost("inner")
			r.SetHeader("x-set", "1\r\nEvil: yes")
			r.DelHeader("X-Del")
			return Decision{Upstream: up}
		}
	})
	c := dialTo(t, addr)
	io.WriteString(c, "GET http://outer/x HTTP/1.1\r\nHost: other\r\nX-Set: 0\r\nX-DEL: 0\r\nX-Multi: a\r\n"+
		"Connection: keep-alive, X-Named\r\nX-Named: 0\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\nTE: gzip\r\nX-Empty:  \r\n\r\n")
	want := "GET /x HTTP/1.1\r\nHost: inner\r\nx-set: 1  Evil: yes\r\nX-Multi: a\r\nX-Empty:\r\n\r\n"
	if got := <-heads; got != want {
		t.Errorf("the upstream got\n%q, want\n%q", got, want)
	}
}

func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s:%s", r.URL.Path, b)
	})
	addr, _ := proxyTo(t, backend, nil)
	c := dialTo(t, addr)
	var all bytes.Buffer
	const n = 50
	for i := range n {
		switch i % 3 {
		case 0:
			fmt.Fprintf(&all, "GET /%d HTTP/1.1\r\nHost: h\r\n\r\n", i)
		case 1:
			fmt.Fprintf(&all, "POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody", i)
		case 2:
			fmt.Fprintf(&all, "POST /%d HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n", i)
		}
	}
	// In pieces that cut heads and bodies anywhere.
	go func() {
		b := all.Bytes()
		for i := 0; len(b) > 0; i++ {
			k := min(len(b), 1+i*37%311)
			if _, err := c.Write(b[:k]); err != nil {
				return
			}
			b = b[k:]
		}
	}()
	r := bufio.NewReader(c)
	for i := range n {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("response %d: %v", i, err)
		}
		body, _ := io.ReadAll(resp.Body)
		want := fmt.Sprintf("/%d:", i)
		if i%3 != 0 {
			want += "body"
		}
		if string(body) != want {
			t.Fatalf("response %d is %q, want %q", i, body, want)
		}
	}
}

func TestShutdownFinishesInFlight(t *testing.T) {
	arrived, release := make(chan bool), make(chan bool)
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- true
		<-release
		io.WriteString(w, "whole")
	})
	var server *Server
	addr, _ := proxyTo(t, backend, func(s *Server, _ *policy) { server = s })
	idle := dialTo(t, addr)
	got := make(chan string, 1)
	go func() {
		resp, err := http.Get("http://" + addr)
		if err != nil {
			got <- err.Error()
			return
		}
		b, _ := io.ReadAll(resp.Body)
		got <- fmt.Sprint(string(b), " close=", resp.Close)
	}()
	<-arrived
	down := make(chan error, 1)
	go func() { down <- server.Shutdown(context.Background()) }()
	if _, err := idle.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("an idle connection ended with %v, want EOF", err)
	}
	select {
	case err := <-down:
		t.Fatalf("Shutdown returned %v before the exchange was over", err)
	default:
	}
	close(release)
	if s := <-got; s != "whole close=true" {
		t.Errorf("the exchange in flight got %q", s)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
}

func BenchmarkForward(b *testing.B) {
	backend := forwardtest.Hello(b).String()
	addr, _ := proxyTo(b, backend, nil)
	c := dialTo(b, addr)
	c.SetDeadline(time.Time{})
	req := []byte("GET /x HTTP/1.1\r\nHost: example.test\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n")
	buf := make([]byte, 4096)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, err := c.Write(req); err != nil {
			b.Fatal(err)
		}
		if _, err := c.Read(buf); err != nil {
			b.Fatal(err)
		}
	}
}
