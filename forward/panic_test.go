package forward

import (
	"bytes"
	"context"
	"errors"
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

// buggy is a Handler that panics where the request's path says.
type buggy struct {
	ledger
	up, nowhere *Upstream
}

func (p *buggy) decide(r *Request) Decision {
	switch r.Path() {
	case "/admit":
		panic("a bug in Admit")
	case "/waiting":
		<-waitFor(r.Context(), 2*patience)
		panic("a bug in Admit, after waiting")
	case "/rechoose":
		return Decision{Upstream: p.nowhere}
	case "/timeout":
		r.Timeouts.ResponseStart = 2 * patience
	}
	return Decision{Upstream: p.up}
}

func (p *buggy) Done(r *Request, res *Result) {
	p.ledger.Done(r, res)
	if r.Path() == "/done" {
		panic("a bug in Done")
	}
}

func (p *buggy) OnDialError(*Request, error) Decision { panic("a bug in OnDialError") }

func (p *buggy) OnResponse(r *Request, _ *Response) (Decision, bool) {
	switch r.Path() {
	case "/reconsider":
		panic("a bug in OnResponse")
	case "/reconsider-waiting":
		<-waitFor(r.Context(), 2*patience)
		panic("a bug in OnResponse, after waiting")
	}
	return Decision{}, false
}

func waitFor(ctx context.Context, d time.Duration) <-chan struct{} {
	ctx, cancel := context.WithTimeout(ctx, d)
	context.AfterFunc(ctx, cancel)
	return ctx.Done()
}

// A bug in the policy costs the request that meets it, and no other: not even those of the same
// HTTP/2 connection.
func TestAPanicEndsOneRequestOnly(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			backend, client := httpBackend, &http.Client{Transport: &http.Transport{}, Timeout: 30 * time.Second}
			if protocol == "HTTP/2" {
				backend, client = h2cBackend, h2cClient(t)
			}
			release := make(chan struct{})
			addr := backend(t, func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/held":
					w.WriteHeader(200)
					w.(http.Flusher).Flush()
					<-release
				case "/timeout":
					<-r.Context().Done()
				}
				io.WriteString(w, r.URL.Path)
			})
			nowhere := NewUpstream(reserve.Port(t).String(), UpstreamOptions{})
			p := &buggy{up: NewUpstream(addr, UpstreamOptions{}), nowhere: nowhere}
			p.admit = p.decide
			defer p.up.Close()
			var told atomic.Int64
			s := &Server{Handler: p,
				TimeoutReply: func(Timer, time.Duration) Reply { panic("a bug in TimeoutReply") },
				OnPanic: func(v any, stack []byte) {
					told.Add(1)
					if !strings.HasPrefix(fmt.Sprint(v), "a bug in ") || !bytes.Contains(stack, []byte("panic_test.go")) {
						t.Errorf("told of %v with the stack %s", v, stack)
					}
				},
			}
			front := start(t, s)
			get := func(path string) (int, string) {
				resp, err := client.Get("http://" + front + path)
				if err != nil {
					t.Errorf("%s: %v", path, err)
					return 0, ""
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Errorf("%s: %v", path, err)
				}
				return resp.StatusCode, string(body)
			}
			held := make(chan string, 1)
			begun := make(chan struct{})
			go func() {
				resp, err := client.Get("http://" + front + "/held")
				close(begun)
				if err != nil {
					held <- err.Error()
					return
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					body = []byte(err.Error())
				}
				held <- string(body)
			}()
			<-begun
			const rounds = 3
			bugs := 0
			for range rounds {
				for _, test := range []struct {
					path   string
					status int
				}{{"/admit", 500}, {"/waiting", 500}, {"/rechoose", 500}, {"/reconsider", 500}, {"/reconsider-waiting", 500}, {"/timeout", 500}, {"/done", 200}} {
					bugs++
					if status, body := get(test.path); status != test.status {
						t.Errorf("%s got %d %q, want %d", test.path, status, body, test.status)
					}
					if status, body := get("/well"); status != 200 || body != "/well" {
						t.Errorf("after %s another request got %d %q", test.path, status, body)
					}
				}
			}
			close(release)
			if body := <-held; body != "/held" {
				t.Errorf("a request that was there all the time ended with %q", body)
			}
			eventually.True(t, "every Admit has its Done", func() bool { return p.admits.Load() == p.dones.Load() })
			eventually.True(t, "all were told", func() bool { return told.Load() == int64(bugs) && s.Panics() == int64(bugs) })
			if n := p.twice.Load(); n != 0 {
				t.Errorf("%d requests were told done twice", n)
			}
			client.CloseIdleConnections()
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if err := s.Shutdown(ctx); err != nil {
				t.Errorf("something is still in flight: %v", err)
			}
		})
	}
}

// brokenConn panics in a read or a write that its functions choose.
type brokenConn struct {
	net.Conn
	read  func(n int64) bool
	write func(b []byte) bool
	reads atomic.Int64
}

func (c *brokenConn) Read(b []byte) (int, error) {
	if c.read != nil && c.read(c.reads.Add(1)) {
		panic("a bug in reading")
	}
	return c.Conn.Read(b)
}

func (c *brokenConn) Write(b []byte) (int, error) {
	if c.write != nil && c.write(b) {
		panic("a bug in writing")
	}
	return c.Conn.Write(b)
}

// brokenListener gives its first connection a bug.
type brokenListener struct {
	net.Listener
	first atomic.Bool
	read  func(n int64) bool
	write func(b []byte) bool
}

func (l *brokenListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil && (l.read != nil || l.write != nil) && l.first.CompareAndSwap(false, true) {
		return &brokenConn{Conn: c, read: l.read, write: l.write}, nil
	}
	return c, err
}

// A bug on a goroutine beside the connection's own ends the connection that it served.
func TestAPanicBesideTheHandlerEndsOneConnectionOnly(t *testing.T) {
	for name, test := range map[string]struct {
		h2     bool
		client func(n int64) bool // the client's connection breaks in this read
		dial   bool
		read   func(n int64) bool // so does the upstream's
		write  func(b []byte) bool
		waits  bool
	}{
		"the watcher":             {client: func(n int64) bool { return n == 2 }, waits: true},
		"the pump":                {write: func(b []byte) bool { return !bytes.HasPrefix(b, []byte("P")) }},
		"the reader, HTTP/1.1":    {client: func(n int64) bool { return n == 1 }},
		"the reader, HTTP/2":      {h2: true, client: func(n int64) bool { return n == 3 }},
		"the upstream's reader":   {h2: true, read: func(n int64) bool { return n == 2 }},
		"the upstream's writer":   {h2: true, write: func([]byte) bool { return true }},
		"a dial for HTTP/1.1":     {dial: true},
		"a dial for HTTP/2":       {h2: true, dial: true},
		"... while another waits": {h2: true, waits: true, client: func(n int64) bool { return n == 4 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := 1 << 20
			if name == "the watcher" {
				body = 0 // it reads only while there is room for what comes
			}
			addr := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
				n, _ := io.Copy(io.Discard, r.Body)
				if n == int64(body) {
					io.WriteString(w, "whole")
				}
			})
			var first atomic.Bool
			up := NewUpstream(addr, UpstreamOptions{Dial: func(ctx context.Context, addr string) (net.Conn, error) {
				broken := test.client == nil && first.CompareAndSwap(false, true)
				if broken && test.dial {
					panic("a bug in dialing")
				}
				c, err := dialTCP(ctx, addr)
				if err == nil && broken {
					c = &brokenConn{Conn: c, read: test.read, write: test.write}
				}
				return c, err
			}})
			defer up.Close()
			l := &ledger{}
			l.admit = func(r *Request) Decision {
				if test.waits && r.Path() == "/bug" {
					<-r.Context().Done()
				}
				return Decision{Upstream: up}
			}
			told := make(chan any, 10)
			s := &Server{Handler: l, OnPanic: func(v any, _ []byte) { told <- v }}
			inner := listenLocal(t)
			served := make(chan error, 1)
			go func() { served <- s.Serve(&brokenListener{Listener: inner, read: test.client}) }()
			post := func(path string) (string, error) {
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
				if test.h2 {
					client = h2cClient(t)
				}
				resp, err := client.Post("http://"+inner.Addr().String()+path, "text/plain", strings.NewReader(strings.Repeat("x", body)))
				if err != nil {
					return "", err
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				return string(text), err
			}
			if text, err := post("/bug"); err == nil && text == "whole" {
				t.Error("the connection was well")
			}
			select {
			case v := <-told:
				if !strings.HasPrefix(fmt.Sprint(v), "a bug in ") {
					t.Errorf("told of %v", v)
				}
			case <-time.After(30 * time.Second):
				t.Error("nobody was told")
			}
			if text, err := post("/"); err != nil || text != "whole" {
				t.Errorf("the next request got %q %v", text, err)
			}
			eventually.True(t, "every Admit has its Done", func() bool { return l.admits.Load() == l.dones.Load() })
			if len(told) > 0 {
				t.Errorf("told of another panic: %v", <-told)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if err := s.Shutdown(ctx); err != nil {
				t.Errorf("something is still in flight: %v", err)
			}
			if err := <-served; !errors.Is(err, ErrServerClosed) {
				t.Errorf("Serve returned %v", err)
			}
		})
	}
}

// wallet is a purse whose first Give panics, if it has a bug.
type wallet struct {
	purse
	buggy atomic.Bool
}

func (w *wallet) Give(n int64) {
	w.purse.Give(n)
	if w.buggy.CompareAndSwap(true, false) {
		panic("a bug in Give")
	}
}

// What a request holds of others', its account and its slot, comes back whatever panics at its end.
func TestAPanicAtTheEndOfARequestLosesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		write  func(b []byte) bool // the client's connection breaks in this write
		give   bool                // the account does
		direct bool                // the Handler answers itself
		cause  Cause
	}{
		"the answer of the Handler":        {write: func([]byte) bool { return true }, direct: true, cause: Replied},
		"the end of a request that failed": {write: func([]byte) bool { return true }, cause: UpstreamFailed},
		"the account":                      {give: true, direct: true, cause: Replied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			account := &wallet{}
			account.buggy.Store(test.give)
			causes := make(chan Cause, 2)
			nowhere := NewUpstream(reserve.Port(t).String(), UpstreamOptions{})
			defer nowhere.Close()
			told := make(chan any, 2)
			s := &Server{OnPanic: func(v any, _ []byte) { told <- v }, Handler: &telling{causes: causes, admit: func(r *Request) Decision {
				if err := r.Charge(account, 1000); err != nil {
					t.Error(err)
				}
				if test.direct {
					return Decision{Reply: Reply{Status: 200, Body: "well"}}
				}
				return Decision{Upstream: nowhere}
			}}}
			inner := listenLocal(t)
			served := make(chan error, 1)
			go func() { served <- s.Serve(&brokenListener{Listener: inner, write: test.write}) }()
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
			if resp, err := client.Post("http://"+inner.Addr().String(), "", nil); err == nil {
				resp.Body.Close()
			}
			if v := fmt.Sprint(<-told); !strings.HasPrefix(v, "a bug in ") {
				t.Errorf("told of %v", v)
			}
			eventually.True(t, "Admit has its Done", func() bool { return len(causes) > 0 })
			if cause := <-causes; cause != test.cause {
				t.Errorf("the request ended with %v, want %v", cause, test.cause)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if err := s.Shutdown(ctx); err != nil {
				t.Errorf("something is still in flight: %v", err)
			}
			if err := <-served; !errors.Is(err, ErrServerClosed) {
				t.Errorf("Serve returned %v", err)
			}
			if n := account.used.Load(); n != 0 || len(causes) > 0 || len(told) > 0 {
				t.Errorf("%d bytes were not given back; %d more ends, %d more panics", n, len(causes), len(told))
			}
		})
	}
}

// telling is a Handler that tells how its requests ended.
type telling struct {
	admit  func(r *Request) Decision
	causes chan<- Cause
}

func (e *telling) Admit(r *Request) Decision    { return e.admit(r) }
func (e *telling) Done(_ *Request, res *Result) { e.causes <- res.Cause }
