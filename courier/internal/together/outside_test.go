package together

import (
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"ebb.dev/ebb/courier/internal/store"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// natsServer starts a server with JetStream that asks for a password, and returns its URL.
func natsServer(t *testing.T, dir string, port int) (*server.Server, *url.URL) {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, Username: "ebb", Password: "secret", NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the NATS server did not start")
	}
	return s, &url.URL{Scheme: "nats", User: url.UserPassword("ebb", "secret"), Host: s.Addr().String()}
}

// "We have a NATS server already." Calls are kept there, and a courier that starts later finds
// them, although it has no disk of its own.
func TestAServerThatExistsKeepsTheCalls(t *testing.T) {
	_, at := natsServer(t, t.TempDir(), server.RANDOM_PORT)
	held := make(chan struct{})
	w := open(t, at.String(), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-held:
		case <-r.Context().Done():
		}
	}), nil, nil)
	location := w.call(nil)
	w.stop()
	close(held)
	w = open(t, at.String(), http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("X-Attempt", r.Header.Get(wire.HeaderAttempt))
		out.WriteHeader(http.StatusTeapot)
	}), nil, nil)
	if status, _, text := w.result(location); status != http.StatusTeapot {
		t.Errorf("%d %s", status, text)
	}
}

// While that server is away nothing is accepted, and what was accepted before is there after it.
func TestNothingIsAcceptedWhileTheServerThatExistsIsAway(t *testing.T) {
	dir := t.TempDir()
	s, at := natsServer(t, dir, server.RANDOM_PORT)
	w := open(t, at.String(), http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(http.StatusTeapot) }), nil, nil)
	location := w.call(nil)
	if status, _, text := w.result(location); status != http.StatusTeapot {
		t.Fatalf("%d %s", status, text)
	}
	address, ok := s.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal(s.Addr())
	}
	s.Shutdown()
	s.WaitForShutdown()
	if status, _, text := w.ask("POST", "/work", nil); status != http.StatusServiceUnavailable {
		t.Errorf("with the server away: %d %s", status, text)
	}
	natsServer(t, dir, address.Port)
	eventually.True(t, "calls are accepted with the server back", func() bool {
		status, _, _ := w.ask("POST", "/work", nil)
		return status == http.StatusAccepted
	})
	if status, _, _ := w.ask("GET", location, nil); status != http.StatusTeapot {
		t.Errorf("the result of before: %d", status)
	}
}

func TestAWrongPasswordIsToldWithoutIt(t *testing.T) {
	_, at := natsServer(t, t.TempDir(), server.RANDOM_PORT)
	at.User = url.UserPassword("ebb", "guessed")
	kept, err := store.Open(t.Context(), store.Options{URL: at.String(), Bytes: 1 << 30, Queue: time.Hour, Results: time.Hour, Dead: time.Hour})
	if err == nil {
		kept.Close()
		t.Fatal("it connected")
	}
	if text := err.Error(); text != "connect to NATS: nats: Authorization Violation" {
		t.Error(text)
	}
}
