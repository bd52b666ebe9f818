package forward

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// A dial may take as long as its timeout, to a pod whose node is gone. The request of a client that
// left meanwhile ends at once.
func TestAClientThatLeavesDuringADialEndsIt(t *testing.T) {
	for protocol, send := range map[string]string{
		"HTTP/1.1":                           "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"HTTP/1.1 with a body on its way":    "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\nsome",
		"HTTP/1.1 with another request next": "GET / HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
	} {
		for _, waited := range []bool{false, true} {
			name := protocol
			if waited {
				name += ", after a wait"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				dials := make(chan context.Context, 1)
				up := NewUpstream("far:80", UpstreamOptions{DialTimeout: time.Hour, Dial: func(ctx context.Context, _ string) (net.Conn, error) {
					dials <- ctx
					<-ctx.Done()
					return nil, ctx.Err()
				}})
				defer up.Close()
				p := &policy{done: make(chan Result, 1), admit: func(r *Request) Decision {
					if waited {
						<-waitFor(r.Context(), time.Millisecond)
					}
					return Decision{Upstream: up}
				}}
				c := dialTo(t, start(t, &Server{Handler: p}))
				io.WriteString(c, send)
				dial := <-dials
				c.Close()
				if res := <-p.done; res.Cause != ClientGone || res.Status != 0 {
					t.Errorf("result %+v", res)
				}
				if dial.Err() == nil {
					t.Error("the dial goes on")
				}
			})
		}
	}
}

// What the client sends during a long dial is not lost, and its next request is answered too.
func TestALongDialLosesNothing(t *testing.T) {
	t.Parallel()
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close") // a dial for each
		io.Copy(w, r.Body)
	})
	sent := make(chan bool)
	up := NewUpstream(backend, UpstreamOptions{Dial: func(ctx context.Context, addr string) (net.Conn, error) {
		<-waitFor(ctx, 2*patience)
		<-sent
		return dialTCP(ctx, addr)
	}})
	defer up.Close()
	c := dialTo(t, start(t, &Server{Handler: &policy{admit: func(*Request) Decision { return Decision{Upstream: up} }}}))
	responses := bufio.NewReader(c)
	for range 3 {
		io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n01234")
		<-waitFor(t.Context(), patience)
		io.WriteString(c, "56789")
		sent <- true
		response, err := http.ReadResponse(responses, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(response.Body); string(body) != "0123456789" || err != nil {
			t.Errorf("the response is %q, %v", body, err)
		}
	}
}

// rests has every request wait for a place again when its dial failed for the third time.
type rests struct {
	policy
	waits chan context.Context
	tries int
}

func (p *rests) OnDialError(r *Request, err error) Decision {
	if p.tries++; p.tries < 3 {
		return p.admit(r)
	}
	ctx := r.Context()
	p.waits <- ctx
	<-ctx.Done()
	return Decision{Reply: Reply{Status: 503}}
}

// A request may wait several times: for a slot, and, when the pod could not be reached or refused
// it, for another. Its client is missed and its timers fire in each.
func TestALaterWaitEndsLikeTheFirst(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"the client leaves": 0, "a timer fires": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := NewUpstream("closed:80", UpstreamOptions{Dial: func(context.Context, string) (net.Conn, error) { return nil, errors.New("refused") }})
			defer up.Close()
			p := &rests{waits: make(chan context.Context, 1)}
			p.done = make(chan Result, 1)
			p.admit = func(r *Request) Decision {
				r.Timeouts.Total = timeout
				<-waitFor(r.Context(), time.Millisecond)
				return Decision{Upstream: up}
			}
			c := dialTo(t, start(t, &Server{Handler: p}))
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
			if timeout == 0 {
				wait := <-p.waits
				c.Close()
				if res := <-p.done; res.Cause != ClientGone || context.Cause(wait) != ErrClientGone {
					t.Errorf("result %+v, the wait ended with %v", res, context.Cause(wait))
				}
				return
			}
			if response, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || response.StatusCode != 504 {
				t.Errorf("got %v, %v", response, err)
			}
			if res := <-p.done; res.Cause != TimedOut || res.Timer != TotalTimer {
				t.Errorf("result %+v", res)
			}
		})
	}
}
