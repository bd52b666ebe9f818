package telemetry

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// get asks over a connection of its own from the given address and leaves the connection open.
func get(t *testing.T, from string, to net.Addr) (net.Conn, error) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	conn, err := dialer.Dial("tcp", to.String())
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { conn.Close() })
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	_, err = io.ReadFull(conn, make([]byte, len("HTTP/1.1 200")))
	return conn, err
}

func TestOneAddressTakesOnlyItsShareOfTheConnections(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go server.Serve(Bound(plain, 5, 3))
	defer server.Close()
	var held []net.Conn
	for range 3 {
		conn, err := get(t, "127.0.0.1", plain.Addr())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	if _, err := get(t, "127.0.0.1", plain.Addr()); err == nil {
		t.Error("a fourth connection from the same address was served")
	}
	for range 2 {
		if _, err := get(t, "127.0.0.2", plain.Addr()); err != nil {
			t.Errorf("another address is kept out: %v", err)
		}
	}
	if _, err := get(t, "127.0.0.3", plain.Addr()); err == nil {
		t.Error("more connections were served than there may be")
	}
	held[0].Close()
	for {
		if _, err := get(t, "127.0.0.3", plain.Addr()); err == nil {
			break // the place of the closed connection
		}
	}
}

// pipes is a listener of connections in memory, for virtual time.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// serve runs Serve until stop is called, which waits for its end: a synctest bubble must not leave
// a goroutine behind.
func serve(t *testing.T, listener net.Listener, handler http.Handler) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Serve(ctx, listener, handler)
	}()
	return func() {
		cancel()
		<-ended
	}
}

func TestASlowRequestIsCutOff(t *testing.T) {
	for what, sent := range map[string]string{
		"the head": "POST / HTTP/1.1\r\nHost: x\r\n",
		"the body": "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener := make(pipes, 1)
				ours, theirs := net.Pipe()
				listener <- theirs
				stop := serve(t, listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
				began := time.Now()
				stopped := make(chan struct{})
				go func() {
					defer close(stopped)
					io.WriteString(ours, sent)
					for {
						time.Sleep(time.Second)
						if _, err := io.WriteString(ours, "x"); err != nil {
							return
						}
					}
				}()
				io.Copy(io.Discard, ours)
				if took := time.Since(began); took > 2*requestMustArriveWithin {
					t.Errorf("the connection was kept for %v", took)
				}
				ours.Close()
				<-stopped
				close(listener)
				stop()
			})
		})
	}
}

func TestAProfileMayTakeLongerThanItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener := make(pipes, 1)
		ours, theirs := net.Pipe()
		listener <- theirs
		stop := serve(t, listener, Profiles(func() bool { return true }))
		go io.WriteString(ours, "GET /debug/pprof/heap?seconds=25 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		began := time.Now()
		answer, err := io.ReadAll(ours)
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") || time.Since(began) < 25*time.Second {
			t.Errorf("after %v: %.60q, %v", time.Since(began), answer, err)
		}
		close(listener)
		stop()
	})
}
