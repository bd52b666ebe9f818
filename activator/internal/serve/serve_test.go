package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/testing/reserve"
)

func TestDrainingEndsWhenNoRequestComesAnyMore(t *testing.T) {
	for _, c := range []struct {
		name string
		last time.Duration // the last request, after SIGTERM
		want time.Duration
	}{
		{"no request at all", -time.Hour, DrainLeast},
		{"requests until the endpoints are withdrawn", 2 * time.Second, DrainLeast},
		{"requests for longer than that", time.Minute, time.Minute + DrainQuiet},
		{"requests that never end", time.Hour, DrainMax},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				s := &Server{Departure: &Departure{}, Least: DrainLeast, Quiet: DrainQuiet, Max: DrainMax, LastRequest: func() time.Time {
					if last := began.Add(c.last); last.Before(time.Now()) {
						return last
					}
					return time.Now()
				}}
				s.waitForQuiet(began)
				if took := time.Since(began); took < c.want || took > c.want+time.Second {
					t.Errorf("drained for %s, want %s", took, c.want)
				}
			})
		})
	}
}

// slow answers after release, and tells when a request has come.
type slow struct {
	arrived, release chan struct{}
	done             atomic.Int64
}

func (h *slow) Admit(r *forward.Request) forward.Decision {
	h.arrived <- struct{}{}
	<-h.release
	return forward.Decision{Reply: forward.Reply{Status: 200, Body: "late"}}
}

func (h *slow) Done(*forward.Request, *forward.Result) { h.done.Add(1) }

func TestWhatIsHeldAtTheEndIsStillAnswered(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	handler := &slow{arrived: make(chan struct{}, 1), release: make(chan struct{})}
	s := &Server{Departure: &Departure{}, Forward: &forward.Server{Handler: handler}, Listeners: []net.Listener{listener},
		Least: 10 * time.Millisecond, Quiet: time.Millisecond, Max: time.Minute,
		LastRequest: func() time.Time { return time.Time{} }, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	answer := make(chan string, 1)
	go func() {
		response, err := http.Get("http://" + listener.Addr().String())
		if err != nil {
			answer <- err.Error()
			return
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		answer <- fmt.Sprintf("%d %s close=%t", response.StatusCode, body, response.Close)
	}()
	<-handler.arrived
	cancel()
	select {
	case err := <-ended:
		t.Fatalf("the server ended with a request in flight: %v", err)
	case <-time.After(300 * time.Millisecond): // beyond the drain: it waits for the request now
	}
	close(handler.release)
	if got := <-answer; got != "200 late close=true" {
		t.Errorf("the held request got %q", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Another activator that leaves is listed again when the last one that stayed is deleted too; by
// the time that it closes its ports, kubelet (two probes), EndpointSlices and gateways must know
// that it does not answer its probe any more.
func TestItEndsLongAfterItWasLastCountedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &Server{Departure: &Departure{}, Forward: &forward.Server{}, Log: slog.New(slog.DiscardHandler), LastRequest: func() time.Time { return began }}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		cancel()
		left := make(chan time.Time, 1)
		go func() {
			for !s.Departure.Leaving() {
				time.Sleep(100 * time.Millisecond)
			}
			left <- time.Now()
		}()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if last := <-left; time.Since(last) < 8*time.Second {
			t.Errorf("it ended %s after it first failed its probe", time.Since(last))
		}
	})
}

// A deleted activator that still takes requests says so, since it may be the only one; one that
// goes on beyond that does not.
func TestItCallsItselfReadyUntilNobodyShouldCountOnIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{Departure: &Departure{}, Forward: &forward.Server{}, Log: slog.New(slog.DiscardHandler), LastRequest: time.Now}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		synctest.Wait()
		time.Sleep(time.Hour)
		if s.Departure.Leaving() {
			t.Error("it leaves although nobody told it to")
		}
		cancel()
		time.Sleep(ReadyFor - time.Second)
		if s.Departure.Leaving() {
			t.Errorf("it leaves less than %s after SIGTERM", ReadyFor)
		}
		time.Sleep(2 * time.Second)
		if !s.Departure.Leaving() {
			t.Errorf("it does not leave %s after SIGTERM", ReadyFor)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestTheTLSPortOpensWithTheFirstCertificate(t *testing.T) {
	for _, known := range []bool{true, false} {
		server := httptest.NewTLSServer(nil) // for its certificate
		certificate := server.TLS.Certificates[0]
		server.Close()
		address := reserve.Port(t).String()
		handler := &slow{arrived: make(chan struct{}, 1), release: make(chan struct{})}
		close(handler.release)
		first := make(chan struct{})
		s := &Server{Departure: &Departure{}, Forward: &forward.Server{Handler: handler, TLS: &tls.Config{Certificates: []tls.Certificate{certificate}}},
			Least: time.Millisecond, Quiet: time.Millisecond, Max: time.Minute, TLSAddress: address, TLSKnown: first,
			LastRequest: func() time.Time { return time.Time{} }, Log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			t.Error("the port is open before there is a certificate")
		}
		if known {
			close(first)
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
			tick := time.NewTicker(5 * time.Millisecond)
			for {
				response, err := client.Get("https://" + address)
				if err == nil {
					response.Body.Close()
					client.CloseIdleConnections()
					break
				}
				<-tick.C
			}
			tick.Stop()
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("certificate known %t: %v", known, err)
		}
	}
}

// The requests of a process that was restarted in its pod come before it knows any revision.
func TestRequestsWaitUntilTheRevisionsAreKnown(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	handler := &slow{arrived: make(chan struct{}, 1), release: make(chan struct{})}
	close(handler.release)
	known := make(chan struct{})
	s := &Server{Departure: &Departure{}, Forward: &forward.Server{Handler: handler}, Listeners: []net.Listener{listener}, Known: known,
		Least: time.Millisecond, Quiet: time.Millisecond, Max: time.Minute,
		LastRequest: func() time.Time { return time.Time{} }, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	status := make(chan int, 1)
	go func() {
		response, err := http.Get("http://" + listener.Addr().String())
		if err != nil {
			t.Error(err)
			status <- 0
			return
		}
		response.Body.Close()
		status <- response.StatusCode
	}()
	select {
	case <-handler.arrived:
		t.Error("a request was taken before the revisions were known")
	case <-time.After(100 * time.Millisecond):
	}
	close(known)
	if got := <-status; got != 200 {
		t.Errorf("status %d", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestItEndsWhileNoRevisionIsKnown(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&Server{Listeners: []net.Listener{listener}, Known: make(chan struct{})}).Run(ctx); err != nil {
		t.Error(err)
	}
	if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("it still listens: %v", err)
	}
}
