package forward

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// h2cBackend serves h with prior-knowledge HTTP/2.
func h2cBackend(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	p.SetHTTP1(true)
	s := &http.Server{Handler: h, Protocols: p}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

func h2cClient(t testing.TB) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}

func TestHTTP2PassesBodiesAndTrailers(t *testing.T) {
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("the upstream got %s", r.Proto)
		}
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Host", r.Host)
		w.Header().Set("X-Edit", r.Header.Get("X-Edit")+r.Header.Get("X-Del"))
		w.Write(body)
		w.Header().Set("X-Sum", fmt.Sprint(len(body), r.Trailer.Get("X-In")))
		w.Header().Set(http.TrailerPrefix+"X-Late", "yes")
	})
	addr, p := proxyTo(t, backend, func(s *Server, p *policy) {
		inner := p.admit
		p.done = make(chan Result, 1)
		p.admit = func(r *Request) Decision {
			if r.Proto() != "HTTP/2.0" || r.Method() != "POST" || r.Path() != "/x" || r.Header("x-del") != "d" {
				t.Errorf("Admit saw %s %s %s", r.Proto(), r.Method(), r.Path())
			}
			r.SetHeader("X-Edit", "e")
			r.DelHeader("X-Del")
			return inner(r)
		}
	})
	body := bytes.Repeat([]byte("x"), 300000)
	req, _ := http.NewRequest("POST", "http://"+addr+"/x?y", io.MultiReader(bytes.NewReader(body)))
	req.Host = "example.test"
	req.Header.Set("X-Del", "d")
	req.Trailer = http.Header{"X-In": []string{"in"}}
	resp, err := h2cClient(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(got, body) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if h := resp.Header; h.Get("X-Host") != "example.test" || h.Get("X-Edit") != "e" {
		t.Errorf("header: %v", h)
	}
	if tr := resp.Trailer; tr.Get("X-Sum") != "300000in" || tr.Get("X-Late") != "yes" {
		t.Errorf("trailer: %v", tr)
	}
	res := <-p.done
	if res.Status != 200 || res.Cause != Completed || res.RequestBytes != 300000 || res.ResponseBytes != 300000 {
		t.Errorf("result: %+v", res)
	}
}

func TestHTTP2Deadlines(t *testing.T) {
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/early" {
			io.WriteString(w, "begun")
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
	})
	addr, p := proxyTo(t, backend, func(s *Server, p *policy) {
		inner := p.admit
		p.done = make(chan Result, 1)
		p.admit = func(r *Request) Decision {
			r.Timeouts.Total = time.Second
			if r.Path() == "/early" {
				r.Timeouts.Total = 50 * time.Millisecond
			}
			if r.Path() == "/cut" {
				r.Timeouts.Action = CutResponse
			}
			return inner(r)
		}
	})
	c := h2cClient(t)
	resp, err := c.Get("http://" + addr + "/early")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 504 || string(body) != "request timeout" {
		t.Errorf("got %d %q", resp.StatusCode, body)
	}
	if res := <-p.done; res.Cause != TimedOut || res.Timer != TotalTimer {
		t.Errorf("result: %+v", res)
	}
	resp, err = c.Get("http://" + addr + "/late")
	if err != nil {
		t.Fatal(err)
	}
	body, err = io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 200 || string(body) != "begun" || err != nil || resp.Trailer.Get(TimeoutTrailer) != "timeoutSeconds" {
		t.Errorf("got %d %q %v %v, want a clean end with a trailer", resp.StatusCode, body, err, resp.Trailer)
	}
	<-p.done
	if resp, err = c.Get("http://" + addr + "/cut"); err != nil {
		t.Fatal(err)
	}
	body, err = io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 200 || string(body) != "begun" || err == nil {
		t.Errorf("got %d %q %v; a response cut in the middle must look cut", resp.StatusCode, body, err)
	}
	<-p.done
}

func TestHTTP2ClientLeavesWhileHeld(t *testing.T) {
	held := make(chan error, 1)
	addr, _ := proxyTo(t, "127.0.0.1:1", func(s *Server, p *policy) {
		p.admit = func(r *Request) Decision {
			held <- nil
			<-r.Context().Done()
			held <- context.Cause(r.Context())
			return Decision{Reply: Reply{Status: 503}}
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://"+addr, nil)
	go func() {
		<-held
		cancel()
	}()
	if _, err := h2cClient(t).Do(req); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("the client got %v", err)
	}
	if err := <-held; err == nil {
		t.Error("Admit was not told")
	}
}

// While the server drains, an HTTP/2 client is told to go elsewhere, and loses nothing.
func TestHTTP2DrainingSendsClientsAway(t *testing.T) {
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	var server *Server
	addr, p := proxyTo(t, backend, func(s *Server, p *policy) { server = s; p.done = make(chan Result, 16) })
	c := h2cClient(t)
	remotes := map[string]bool{}
	inner := p.admit
	p.admit = func(r *Request) Decision {
		remotes[r.RemoteAddr().String()] = true
		return inner(r)
	}
	ask := func() {
		t.Helper()
		resp, err := c.Get("http://" + addr)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); string(body) != "ok" || err != nil {
			t.Fatalf("got %q %v", body, err)
		}
		<-p.done
	}
	ask()
	ask()
	if len(remotes) != 1 {
		t.Fatalf("%d connections for two requests", len(remotes))
	}
	server.SetDraining(true)
	for range 5 {
		ask()
	}
	if len(remotes) < 2 {
		t.Error("the client stays on its connection")
	}
}
