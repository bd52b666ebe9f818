package sidecar

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"ebb.dev/ebb/wire"
)

// signed reports whether a message of the pod is signed with its token.
func signed(r *http.Request, body []byte) bool {
	s, err := wire.ReadSignature(r)
	return err == nil && s.By(wire.Keys{Accepted: [][]byte{podKey}}, "ns", "rev-00001") && s.Covers(body)
}

var podKey = []byte("key")

// fakeActivator takes announcements.
func fakeActivator(t *testing.T) (hostPort string, heard chan wire.Announcement) {
	t.Helper()
	heard = make(chan wire.Announcement, 16)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !signed(r, body) {
			w.WriteHeader(401)
			return
		}
		a, err := wire.DecodeAnnouncement(body)
		if err != nil {
			t.Errorf("announcement: %v", err)
		}
		heard <- a
		w.WriteHeader(204)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), heard
}

func TestThePodAnnouncesItselfAndWithdraws(t *testing.T) {
	activator, heard := fakeActivator(t)
	up := make(chan bool)
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-up:
		default:
			w.WriteHeader(503)
		}
	}, func(c *wire.Sidecar) {
		c.Activators, c.Token = activator, wire.Token(podKey, "ns", "rev-00001")
		probes, err := wire.ReadProbes(`{"httpGet":{"path":"/ready"},"successThreshold":2}`, c.UserPort)
		if err != nil {
			t.Fatal(err)
		}
		c.Probes = probes
	})
	select {
	case a := <-heard:
		t.Fatalf("announced before the container was ready: %+v", a)
	default:
	}
	close(up)
	a := <-heard
	if !a.Ready || a.Revision != "rev-00001" || a.Namespace != "ns" || a.Pod != "pod" || a.Address.Port() != r.announcer.Base.Address.Port() {
		t.Errorf("announced %+v", a)
	}
	r.stop()
	b := <-heard
	if b.Ready || b.Sequence <= a.Sequence {
		t.Errorf("withdrawn with %+v after %+v", b, a)
	}
}

// A word that was about to be said when the pod began to leave comes after the withdrawal.
func TestAPodThatLeavesDoesNotAnnounceItself(t *testing.T) {
	activator, heard := fakeActivator(t)
	r := startRig(t, hello, func(c *wire.Sidecar) {
		c.Activators, c.Token = activator, wire.Token(podKey, "ns", "rev-00001")
	})
	if a := <-heard; !a.Ready {
		t.Fatalf("announced %+v", a)
	}
	r.drainer.Terminate(t.Context())
	last := <-heard
	r.announcer.Say(t.Context(), true, time.Now())
	r.announcer.SayAsleep(t.Context(), "frozen", time.Now())
	for range 2 {
		b := <-heard
		if b.Ready || b.Asleep != "" || b.Sequence <= last.Sequence {
			t.Errorf("it leaves, and says %+v after %+v", b, last)
		}
		last = b
	}
}

func TestARefusedActivatorGetsItsTurn(t *testing.T) {
	caller, heard := fakeActivator(t)
	release := make(chan bool)
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			<-release
		}
	}, func(c *wire.Sidecar) {
		c.Concurrency, c.Activators, c.Token = 1, caller, wire.Token(podKey, "ns", "rev-00001")
	})
	if a := <-heard; a.SlotFree {
		t.Fatalf("a slot is offered although nobody was refused: %+v", a)
	}
	done := make(chan bool)
	go func() {
		r.get("/hold")
		close(done)
	}()
	for r.gate.Inside() == 0 {
		time.Sleep(time.Millisecond) // the request is on its way through net/http
	}
	// Anybody else who sends the header waits like everybody, and is told nothing.
	stranger, overheard := fakeActivator(t)
	ordinary := make(chan int, 1)
	go func() {
		status, _, _ := r.get("/", wire.HeaderNoQueue, stranger)
		ordinary <- status
	}()
	for r.gate.Waiting() == 0 {
		time.Sleep(time.Millisecond) // as above
	}
	status, _, header := r.get("/", wire.HeaderNoQueue, caller)
	if status != wire.RefusedStatus || header.Get(wire.HeaderRefused) != wire.RefusedLimit {
		t.Fatalf("got %d, %s=%q", status, wire.HeaderRefused, header.Get(wire.HeaderRefused))
	}
	close(release)
	<-done
	if a := <-heard; !a.SlotFree || !a.Ready {
		t.Errorf("the caller heard %+v", a)
	}
	if status := <-ordinary; status != 200 {
		t.Errorf("the stranger got %d", status)
	}
	select {
	case a := <-overheard:
		t.Errorf("the stranger was told %+v", a)
	default:
	}
	if status, _, _ := r.get("/", wire.HeaderNoQueue, caller); status != 200 {
		t.Errorf("the second try got %d", status)
	}
}
