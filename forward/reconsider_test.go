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

	"ebb.dev/ebb/internal/testing/reserve"
	"ebb.dev/ebb/test/eventually"
)

// twoTries sends to the first upstream, and to the second when that refuses.
type twoTries struct {
	policy
	second     *Upstream
	replayable []bool
}

func (p *twoTries) OnResponse(r *Request, resp *Response) (Decision, bool) {
	if resp.Status == 503 && resp.Header("ebb-refused") != "" {
		p.replayable = append(p.replayable, resp.Replayable)
		return Decision{Upstream: p.second}, true
	}
	return Decision{}, false
}

func TestARefusedRequestGoesElsewhereWithItsBody(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		backend := httpBackend
		client := http.DefaultClient
		if protocol == "HTTP/2" {
			backend, client = h2cBackend, h2cClient(t)
		}
		refuses := backend(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Ebb-Refused", "limit")
			w.WriteHeader(503)
		})
		accepts := backend(t, func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			w.Header().Set("X-Secret", "inner")
			fmt.Fprint(w, n, " ", err)
		})
		for _, size := range []int{0, 10, 1 << 20} {
			t.Run(fmt.Sprintf("%s, %d bytes", protocol, size), func(t *testing.T) {
				first := NewUpstream(refuses, UpstreamOptions{})
				defer first.Close()
				p := &twoTries{second: NewUpstream(accepts, UpstreamOptions{})}
				defer p.second.Close()
				p.admit = func(r *Request) Decision {
					r.DeferBody(time.Second)
					r.AddResponseHeader("X-Added", "1")
					return Decision{Upstream: first}
				}
				secrets := make(chan string, 2)
				addr := start(t, &Server{Handler: p, StripResponse: []string{"X-Secret"}, Stripped: func(_, value string, _ time.Time) bool { secrets <- strings.Clone(value); return false }})
				for range 2 {
					resp, err := client.Post("http://"+addr, "text/plain", strings.NewReader(strings.Repeat("x", size)))
					if err != nil {
						t.Fatal(err)
					}
					body, _ := io.ReadAll(resp.Body)
					resp.Body.Close()
					if want := fmt.Sprint(size, " <nil>"); resp.StatusCode != 200 || string(body) != want {
						t.Errorf("got %d %q, want %q", resp.StatusCode, body, want)
					}
					if resp.Header.Get("X-Secret") != "" || resp.Header.Get("X-Added") != "1" {
						t.Errorf("header: %v", resp.Header)
					}
					if secret := <-secrets; secret != "inner" {
						t.Errorf("the removed field was told as %q", secret)
					}
				}
			})
		}
	}
}

// A body waits for an upstream's word for a while after the head was sent to it, not after the
// request came: one that waited for its turn has its body for the next upstream, too.
func TestABodyIsHeldForEachUpstreamAnew(t *testing.T) {
	t.Parallel()
	const size, held = 1 << 20, 3 * time.Second
	refuses := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		<-time.After(2 * patience)
		w.Header().Set("Ebb-Refused", "limit")
		w.WriteHeader(503)
	})
	accepts := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, " ", err)
	})
	first := NewUpstream(refuses, UpstreamOptions{})
	defer first.Close()
	p := &twoTries{second: NewUpstream(accepts, UpstreamOptions{})}
	defer p.second.Close()
	p.admit = func(r *Request) Decision {
		r.DeferBody(held)
		select {
		case <-r.Context().Done():
		case <-time.After(held + 2*patience):
		}
		return Decision{Upstream: first}
	}
	resp, err := http.Post("http://"+start(t, &Server{Handler: p}), "text/plain", strings.NewReader(strings.Repeat("x", size)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if want := fmt.Sprint(size, " <nil>"); resp.StatusCode != 200 || string(body) != want {
		t.Errorf("got %d %q, want %q; replayable: %v", resp.StatusCode, body, want, p.replayable)
	}
}

// While the body is held only the head has left, so a pooled connection that dies costs a large
// upload as little as a small one.
func TestAHeldBodyIsSentAgain(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	var heads atomic.Int64
	backend := rawBackend(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for n := 0; ; n++ {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			heads.Add(1)
			if n > 0 {
				return // a connection that was used before dies without a word
			}
			if req.Header.Get("Expect") != "" {
				io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
			}
			got, _ := io.Copy(io.Discard, req.Body)
			text := fmt.Sprint(got)
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		}
	})
	up := NewUpstream(backend, UpstreamOptions{})
	defer up.Close()
	p := &policy{admit: func(r *Request) Decision {
		r.DeferBody(time.Second)
		return Decision{Upstream: up}
	}}
	addr := start(t, &Server{Handler: p})
	for _, method := range []string{"GET", "PUT"} {
		var body io.Reader
		want := "0"
		if method == "PUT" {
			body, want = strings.NewReader(strings.Repeat("x", size)), fmt.Sprint(size)
		}
		req, _ := http.NewRequest(method, "http://"+addr, body)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || string(text) != want {
			t.Errorf("%s got %d %q, want %q", method, resp.StatusCode, text, want)
		}
		awaitIdle(t, up)
	}
	if n := heads.Load(); n != 3 {
		t.Errorf("the container read %d heads, want 3: the second died with its connection", n)
	}
}

func TestContinueIsAnsweredHere(t *testing.T) {
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s expect=%q", b, r.Header.Get("Expect"))
	})
	up := NewUpstream(backend, UpstreamOptions{})
	addr, _ := proxyTo(t, backend, func(s *Server, p *policy) {
		p.admit = func(r *Request) Decision {
			r.Continue()
			return Decision{Upstream: up}
		}
	})
	c := dialTo(t, addr)
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
	r := bufio.NewReader(c)
	if head, err := readHeadOf(r); err != nil || head != "HTTP/1.1 100 Continue\r\n\r\n" {
		t.Fatalf("got %q %v", head, err)
	}
	io.WriteString(c, "ok")
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	if string(body) != `ok expect=""` {
		t.Errorf("got %q", body)
	}
}

// A client over HTTP/2, which may be a Server that keeps the body back, waits as one over HTTP/1.1
// does.
func TestContinueIsAnsweredHereOverHTTP2(t *testing.T) {
	behind := NewUpstream(h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s expect=%q", b, r.Header.Get("Expect"))
	}), UpstreamOptions{})
	defer behind.Close()
	addr, _ := proxyTo(t, behind.Addr(), func(s *Server, p *policy) {
		p.admit = func(r *Request) Decision {
			r.Continue()
			return Decision{Upstream: behind}
		}
	})
	front, _ := proxyTo(t, addr, func(s *Server, p *policy) {
		admit := p.admit
		p.admit = func(r *Request) Decision {
			r.DeferBody(time.Hour)
			r.Timeouts.Total = 10 * time.Second
			return admit(r)
		}
	})
	body, write := io.Pipe()
	go func() {
		time.Sleep(10 * time.Millisecond) // so that the request has a connection before its body
		io.WriteString(write, "ok")
		write.Close()
	}()
	resp, err := h2cClient(t).Post("http://"+front, "text/plain", body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); string(text) != `ok expect=""` {
		t.Errorf("got %d %q", resp.StatusCode, text)
	}
}

// A client that is not told to go on can send its request elsewhere.
func TestNoContinueIsSaidWithoutAConnection(t *testing.T) {
	addr, _ := proxyTo(t, reserve.Port(t).String(), func(s *Server, p *policy) {
		admit := p.admit
		p.admit = func(r *Request) Decision {
			r.Continue()
			return admit(r)
		}
	})
	c := dialTo(t, addr)
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
	if head, err := readHeadOf(bufio.NewReader(c)); err != nil || !strings.HasPrefix(head, "HTTP/1.1 502") {
		t.Errorf("got %q %v", head, err)
	}
}

// waitsAgain has each request wait again after its response; before is called first.
type waitsAgain struct {
	policy
	before func(r *Request)
	waited chan error
}

func (p *waitsAgain) OnResponse(r *Request, resp *Response) (Decision, bool) {
	p.before(r)
	ctx := r.Context()
	select {
	case <-ctx.Done():
		p.waited <- context.Cause(ctx)
	case <-time.After(10 * time.Second):
		p.waited <- nil
	}
	return Decision{Reply: Reply{Status: 503}}, true
}

// A client may leave at the very moment in which its refused request begins to wait again. It must
// not keep its place.
func TestAClientThatLeavesAsItsRequestWaitsAgain(t *testing.T) {
	t.Parallel()
	leaving := make(chan net.Conn, 1)
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		<-time.After(4 * patience) // the forwarder begins to watch the client meanwhile
		w.WriteHeader(503)
	})
	for name, before := range map[string]func(r *Request){
		"a moment before": func(r *Request) {
			r.carrier.(*conn).startWatch() // where a busy machine has not come to it
			(<-leaving).Close()
			eventually.True(t, "the client is missed", r.client.gone.Load)
		},
		"at the same moment": func(r *Request) { (<-leaving).Close() },
		"a moment after":     func(r *Request) { c := <-leaving; time.AfterFunc(time.Millisecond, func() { c.Close() }) },
	} {
		t.Run(name, func(t *testing.T) {
			up := NewUpstream(backend, UpstreamOptions{})
			defer up.Close()
			p := &waitsAgain{before: before, waited: make(chan error, 1)}
			p.admit = func(*Request) Decision { return Decision{Upstream: up} }
			p.done = make(chan Result, 1)
			c := dialTo(t, start(t, &Server{Handler: p}))
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
			leaving <- c
			if why := <-p.waited; why != ErrClientGone {
				t.Errorf("the wait ended with %v", why)
			}
			if res := <-p.done; res.Cause != ClientGone {
				t.Errorf("result %+v", res)
			}
		})
	}
}

// redirectedTries is twoTries whose first choice cannot be reached.
type redirectedTries struct {
	twoTries
	next *Upstream
}

func (p *redirectedTries) OnDialError(r *Request, _ error) Decision {
	r.DeferBody(time.Minute)
	return Decision{Upstream: p.next}
}

// What a Handler wants of the second upstream counts for that one.
func TestTheNextUpstreamMayRefuseBeforeTheBody(t *testing.T) {
	const size = 1 << 20
	refuses := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Ebb-Refused", "limit")
		w.WriteHeader(503)
	})
	accepts := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, " ", err)
	})
	away := NewUpstream(reserve.Port(t).String(), UpstreamOptions{})
	p := &redirectedTries{twoTries: twoTries{second: NewUpstream(accepts, UpstreamOptions{})}, next: NewUpstream(refuses, UpstreamOptions{})}
	for _, up := range []*Upstream{away, p.second, p.next} {
		defer up.Close()
	}
	p.admit = func(*Request) Decision { return Decision{Upstream: away} }
	addr := start(t, &Server{Handler: p})
	response, err := http.Post("http://"+addr, "text/plain", strings.NewReader(strings.Repeat("x", size)))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); response.StatusCode != 200 || string(body) != fmt.Sprint(size, " <nil>") {
		t.Errorf("got %d %q", response.StatusCode, body)
	}
}
