package together

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/deliver"
	"ebb.dev/ebb/courier/internal/store"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// A neighbour's clients send the head of a call, and never its body.
func TestSlowClientsOfANeighbourLeaveRoomForCalls(t *testing.T) {
	t.Parallel()
	w := open(t, t.TempDir(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil, nil)
	const attackers = 600 // more than there are slots
	answers := make(chan int, attackers)
	// One whose head a busy machine reads too late tries again.
	attack := func() {
		for t.Context().Err() == nil {
			body, _ := io.Pipe()
			r, err := http.NewRequestWithContext(t.Context(), "POST", w.front.URL, body)
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set(wire.HeaderAsyncTarget, neighbour.String())
			response, err := (&http.Client{Transport: &http.Transport{}}).Do(r)
			if err == nil {
				response.Body.Close()
				answers <- response.StatusCode
				return
			}
		}
	}
	for range attackers {
		go attack()
	}
	if status := <-answers; status != http.StatusServiceUnavailable {
		t.Errorf("a call that finds no slot: %d", status)
	}
	w.call(nil)
	status, _, text := w.ask("POST", "/", nil, wire.HeaderAsyncTarget, neighbour.String())
	if status != http.StatusServiceUnavailable {
		t.Errorf("another call of the neighbour: %d %s", status, text)
	}
}

// neighbour is a Route of another namespace.
var neighbour = wire.AsyncTarget{Namespace: "neighbour", Route: "svc", UID: target.UID, Host: "svc.neighbour.svc.cluster.local"}

// A neighbour's clients ask for a large result and do not read it.
func TestReadersOfANeighbourThatDoNotReadLeaveMemoryToOthers(t *testing.T) {
	t.Parallel()
	w := open(t, t.TempDir(), http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.Host == neighbour.Host {
			_, _ = out.Write(make([]byte, 10<<20))
		}
	}), nil, nil)
	at := w.call(nil, wire.HeaderAsyncTarget, neighbour.String())
	eventually.True(t, "the neighbour has a result", func() bool {
		status, _, _ := w.ask("HEAD", at, nil, wire.HeaderAsyncTarget, neighbour.String())
		return status == http.StatusOK
	})
	head := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: svc.example\r\n%s: %s\r\n\r\n", at, wire.HeaderAsyncTarget, neighbour)
	answers := make(chan string, 100)
	for range cap(answers) {
		c, err := net.Dial("tcp", w.front.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, head); err != nil {
			t.Fatal(err)
		}
		go func() {
			answer := make([]byte, 12)
			_, _ = io.ReadFull(c, answer)
			answers <- string(answer)
		}()
	}
	refused := 0
	for range cap(answers) {
		if <-answers == "HTTP/1.1 503" {
			refused++
		}
	}
	if refused < cap(answers)/2 {
		t.Errorf("%d of %d were refused", refused, cap(answers))
	}
	if status, _, text := w.result(w.call(nil)); status != http.StatusOK {
		t.Errorf("the result of another namespace: %d %s", status, text)
	}
}

// They hold their share until they are cut off, and no longer.
func TestReadersThatDoNotReadAreCutOff(t *testing.T) {
	t.Parallel()
	w := open(t, t.TempDir(), http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) { _, _ = out.Write(make([]byte, 10<<20)) }), nil,
		func(w *world) { w.reads = func(int64) time.Duration { return 30 * time.Second } })
	at := w.call(nil)
	eventually.True(t, "there is a result", func() bool {
		status, _, _ := w.ask("HEAD", at, nil)
		return status == http.StatusOK
	})
	head := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: svc.example\r\n%s: %s\r\n\r\n", at, wire.HeaderAsyncTarget, target)
	// Each holds a share for a moment while its result is found: of many that come together fewer
	// are let in than there is room for.
	eventually.True(t, "who does not read takes a share", func() bool {
		c, err := net.Dial("tcp", w.front.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := io.WriteString(c, head); err != nil {
			t.Fatal(err)
		}
		status, _, _ := w.ask("HEAD", at, nil)
		return status == http.StatusServiceUnavailable
	})
	eventually.True(t, "who does not read keeps others out no longer", func() bool {
		status, _, _ := w.ask("HEAD", at, nil)
		return status == http.StatusOK
	})
}

// JetStream hangs while queues that are empty are removed.
func TestTheManagerAnswersWhileQueuesAreRemoved(t *testing.T) {
	t.Parallel()
	_, at := natsServer(t, t.TempDir(), server.RANDOM_PORT)
	hung, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	at.Host = hangs(t, at.Host, "$JS.API.CONSUMER.DELETE.EBB_CALLS.", hung, release)
	kept, err := store.Open(t.Context(), store.Options{URL: at.String(), Bytes: 1 << 30, Queue: time.Hour, Results: time.Hour, Dead: time.Hour, Idle: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	for i := range 20 { // the removal of each is given up after 5 s
		if _, err := kept.Queue(t.Context(), call.Service{Namespace: "ns", Name: fmt.Sprint("svc-", i)}); err != nil {
			t.Fatal(err)
		}
	}
	m := deliver.New(&deliver.Manager{Store: kept, Routes: &world{}, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go m.Run(ctx)
	select {
	case <-hung:
	case <-time.After(time.Minute):
		t.Fatal("no queue is removed")
	}
	answered := make(chan struct{})
	go func() { m.Added(attacker); m.Running("id"); m.Loads(); close(answered) }()
	select {
	case <-answered:
	case <-time.After(4 * time.Second): // before the first removal is given up
		t.Error("a call waits for the removal of other queues")
	}
}

// hangs forwards connections to an address until a client sends the text. It returns its own
// address.
func hangs(t *testing.T, to, text string, hung chan<- struct{}, release <-chan struct{}) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	forward := func(client net.Conn) {
		defer client.Close()
		upstream, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer upstream.Close()
		go io.Copy(client, upstream)
		p := make([]byte, 64<<10)
		for {
			n, err := client.Read(p)
			if err != nil {
				return
			}
			if strings.Contains(string(p[:n]), text) {
				close(hung)
				<-release
				return
			}
			if _, err := upstream.Write(p[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go forward(c)
		}
	}()
	return l.Addr().String()
}

func TestTheCouriersOwnEndSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	dir, of := t.TempDir(), call.Service{Namespace: target.Namespace, Name: target.Route}
	c := &call.Call{Service: of, ID: call.NewID(), Host: target.Host, Asked: "svc.example", Method: "POST", Path: "/", Accepted: time.Now()}
	for i := range 3 { // couriers that end
		kept, err := store.Open(t.Context(), store.Options{Dir: dir, Bytes: 1 << 30, Queue: time.Hour, Results: time.Hour, Dead: time.Hour, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = kept.Queue(t.Context(), of); i == 0 && err == nil {
			_, err = kept.Add(t.Context(), c, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		kept.Close()
	}
	attempts := make(chan string, 10)
	w := open(t, dir, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { attempts <- r.Header.Get(wire.HeaderAttempt) }), nil,
		func(w *world) { w.delivers.Attempts, w.gone, w.patience = 1, true, time.Hour })
	queue, err := w.store.Queue(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	for handed := 0; handed < 3; { // what they had in hand
		messages, err := queue.Wait(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for m := range messages.Messages() {
			handed++
			if err := m.Nak(); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.mu.Lock()
	w.gone = false
	w.mu.Unlock()
	if status, _, text := w.result(wire.PathCalls + call.Ticket(w.store.Secret, c.ID)); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	} else if got := <-attempts; got != "4" {
		t.Errorf("the service was told attempt %s", got)
	}
}

func TestCallsWaitForARouteThatIsGoneForAMoment(t *testing.T) {
	t.Parallel()
	reached := make(chan string, 10)
	w := open(t, t.TempDir(), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { reached <- r.Header.Get("Authorization") }), nil, func(w *world) {
		w.gone, w.patience = true, time.Hour
	})
	at := w.call(nil)
	time.Sleep(50 * time.Millisecond) // it is fetched, or not
	if status, _, text := w.ask("GET", at, nil); status != http.StatusAccepted {
		t.Errorf("without a Route: %d %s", status, text)
	}
	w.mu.Lock()
	w.gone = false
	w.mu.Unlock()
	if status, _, text := w.result(at); status != http.StatusOK {
		t.Errorf("with the same Route again: %d %s", status, text)
	}
	<-reached
	w.mu.Lock()
	w.delivers.UID = "another"
	w.mu.Unlock()
	if status, _, text := w.result(w.call(nil, "Authorization", "Bearer secret")); status != http.StatusBadGateway || !strings.Contains(text, "another one has its name") {
		t.Errorf("with another Route: %d %s", status, text)
	}
	select {
	case secret := <-reached:
		t.Errorf("another service got %q", secret)
	default:
	}
}
