package forward

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// An upgraded connection meets responseStartTimeoutSeconds with the container's first byte after
// the 101, bytes in either direction renew idleTimeoutSeconds, and timeoutSeconds ends it whatever
// it does.
func TestTimersOfAnUpgradedConnection(t *testing.T) {
	const timer = 10 * time.Second
	for name, test := range map[string]struct {
		timeouts Timeouts
		up, down bool // who talks, all the time
		cutBy    Timer
	}{
		"the 101 is no start of the response":  {timeouts: Timeouts{ResponseStart: timer}, up: true, cutBy: ResponseStartTimer},
		"the first byte after it is":           {timeouts: Timeouts{ResponseStart: timer}, down: true},
		"the client's bytes feed idle":         {timeouts: Timeouts{Idle: timer}, up: true},
		"the container's bytes feed idle":      {timeouts: Timeouts{Idle: timer}, down: true},
		"silence does not":                     {timeouts: Timeouts{Idle: timer}, cutBy: IdleTimer},
		"the total ends it though both talk":   {timeouts: Timeouts{Total: timer, Idle: timer}, up: true, down: true, cutBy: TotalTimer},
		"the total ends it though it is quiet": {timeouts: Timeouts{Total: timer}, cutBy: TotalTimer},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all sync.WaitGroup
				defer all.Wait()
				// talk writes now and then, if it is to, until the connection is closed.
				talk := func(c net.Conn, on bool) {
					for on {
						<-time.After(timer / 3)
						if _, err := io.WriteString(c, "x"); err != nil {
							return
						}
					}
				}
				up := NewUpstream("container", UpstreamOptions{Dial: func(context.Context, string) (net.Conn, error) {
					near, far := net.Pipe()
					all.Go(func() {
						defer far.Close()
						r := bufio.NewReader(far)
						if _, err := http.ReadRequest(r); err != nil {
							t.Error(err)
							return
						}
						io.WriteString(far, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: talk\r\n\r\n")
						all.Go(func() { talk(far, test.down) })
						io.Copy(io.Discard, r)
					})
					return near, nil
				}})
				p := &policy{done: make(chan Result, 1), admit: func(r *Request) Decision {
					r.Timeouts = test.timeouts
					return Decision{Upstream: up}
				}}
				s := &Server{Handler: p}
				s.init()
				near, far := net.Pipe()
				c := newConn(s, far, nil)
				s.track(&c.clientConn)
				all.Go(c.serve)
				begun := time.Now()
				io.WriteString(near, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: talk\r\n\r\n")
				r := bufio.NewReader(near)
				if resp, err := http.ReadResponse(r, nil); err != nil || resp.StatusCode != 101 {
					t.Errorf("got %v %v", resp, err)
				}
				all.Go(func() { talk(near, test.up) })
				all.Go(func() { io.Copy(io.Discard, r) })
				var res Result
				select {
				case res = <-p.done:
				case <-time.After(6 * timer):
					near.Close()
					res = <-p.done
				}
				lived := time.Since(begun)
				near.Close()
				s.Close()
				up.Close()
				if !res.Upgraded || res.Status != 101 || res.Timer != test.cutBy || (res.Cause == TimedOut) != (test.cutBy != NoTimer) {
					t.Errorf("result %+v, want the end by %s", res, test.cutBy)
				}
				if early := lived < 6*timer; early != (test.cutBy != NoTimer) || lived < timer {
					t.Errorf("it lived for %s, with timers of %s", lived, timer)
				}
			})
		})
	}
}
