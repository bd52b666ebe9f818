package coap

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/message/pool"

	"ebb.dev/ebb/test/eventually"
)

// theEnd is the event that ends a stream.
const theEnd = ""

// streamer is a service with a stream of the events that it is given.
type streamer struct {
	events chan string
	gone   chan struct{} // one for each client that left
}

func newStreamer() *streamer { return &streamer{make(chan string), make(chan struct{}, 10)} }

func (s *streamer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.Contains(r.Header.Get("Accept"), "text/event-stream") && r.URL.Path != "/plain" {
		http.Error(w, "no stream", http.StatusNotAcceptable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			s.gone <- struct{}{}
			return
		case e := <-s.events:
			if e == theEnd {
				return
			}
			fmt.Fprintf(w, "data: %s\n\n", e)
			w.(http.Flusher).Flush()
		}
	}
}

type notification struct {
	code codes.Code
	body string
}

func readNotification(m *pool.Message) notification {
	body, _ := m.ReadBody()
	return notification{m.Code(), string(body)}
}

func TestEachEventOfAStreamIsANotification(t *testing.T) {
	t.Parallel()
	service := newStreamer()
	e := start(t, service.ServeHTTP, nil)
	c := dial(t, e)
	got := make(chan notification, 100)
	go func() { service.events <- "first" }()
	observation, err := c.Observe(within(t), "/", func(m *pool.Message) { got <- readNotification(m) }, toHello)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"first"}
	for i := range 20 {
		event := fmt.Sprintf(`{"n":%d}`, i)
		service.events <- event
		want = append(want, event)
	}
	long := strings.Repeat("long ", 600) // three blocks
	service.events <- long
	for _, event := range append(want, long[:len(long)-1]) {
		if n := <-got; n.code != codes.Content || strings.TrimSpace(n.body) != event {
			t.Fatalf("got %v %.40q, want %.40q", n.code, n.body, event)
		}
	}
	if err := observation.Cancel(within(t)); err != nil {
		t.Fatal(err)
	}
	<-service.gone // the service is told that nobody listens
	eventually.True(t, "all memory is given back", func() bool { return e.memory.Used() == 0 })
}

func TestAnObserverIsToldWhenTheStreamEnds(t *testing.T) {
	t.Parallel()
	service := newStreamer()
	c := dial(t, start(t, service.ServeHTTP, nil))
	got := make(chan notification, 100)
	go func() { service.events <- "only" }()
	if _, err := c.Observe(within(t), "/", func(m *pool.Message) { got <- readNotification(m) }, toHello); err != nil {
		t.Fatal(err)
	}
	service.events <- theEnd
	if n := <-got; n.body != "only" {
		t.Errorf("got %v", n)
	}
	if n := <-got; n.code != codes.ServiceUnavailable {
		t.Errorf("got %v at the end", n)
	}
}

// A peer that has forgotten that it observes resets the next notification.
func TestAResetEndsAnObservation(t *testing.T) {
	t.Parallel()
	service := newStreamer()
	e := start(t, service.ServeHTTP, nil)
	raw := rawConn(t, e)
	// CON GET, message ID 7, token 1, Uri-Host "a", Observe 0.
	raw.Write([]byte{0x41, 0x01, 0x00, 0x07, 0x01, 0x31, 'a', 0x30})
	service.events <- "one"
	readRaw(t, raw)
	service.events <- "two"
	notification := readRaw(t, raw)
	raw.Write([]byte{0x70, 0, notification[2], notification[3]})
	<-service.gone
	eventually.True(t, "all memory is given back", func() bool { return e.memory.Used() == 0 })
}

func TestAGetWithoutObserveOfAStreamGetsOneEvent(t *testing.T) {
	t.Parallel()
	service := newStreamer()
	c := dial(t, start(t, service.ServeHTTP, nil))
	go func() { service.events <- "now" }()
	if code, got, _ := call(t, c, codes.GET, "/plain", nil); code != codes.Content || string(got) != "now" {
		t.Errorf("got %v %q", code, got)
	}
	<-service.gone
}

func TestObservationsAreBounded(t *testing.T) {
	t.Parallel()
	service := newStreamer()
	e := start(t, service.ServeHTTP, nil)
	raw := rawConn(t, e)
	for i := range observationsOfOne + 1 {
		raw.Write([]byte{0x41, 0x01, 0x00, byte(i), byte(i), 0x31, 'a', 0x30})
	}
	refused := false
	for !refused {
		refused = codes.Code(readRaw(t, raw)[1]) == codes.ServiceUnavailable
	}
	raw.Close()
}
