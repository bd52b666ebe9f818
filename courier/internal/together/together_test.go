package together

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/courier/internal/accept"
	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/callback"
	"ebb.dev/ebb/courier/internal/deliver"
	"ebb.dev/ebb/courier/internal/door"
	"ebb.dev/ebb/courier/internal/store"
	"ebb.dev/ebb/internal/egress"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// world is a courier without a cluster.
type world struct {
	t       *testing.T
	store   *store.Store
	deliver *deliver.Manager
	front   *httptest.Server
	accept  *accept.Handler
	stop    func()

	mu       sync.Mutex
	accepts  accept.Rules
	delivers deliver.Rules
	gone     bool          // the Route
	patience time.Duration // with a Route that is gone
	reads    func(size int64) time.Duration
}

func (w *world) Rules(call.Service) (deliver.Rules, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		rules := w.delivers
		rules.UID = ""
		return rules, false
	}
	return w.delivers, true
}

type acceptance struct{ *world }

func (a acceptance) Rules(t wire.AsyncTarget) (accept.Rules, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.accepts, t.UID == target.UID
}

var target = wire.AsyncTarget{Namespace: "ns", Route: "svc", UID: "uid", Host: "svc.ns.svc.cluster.local"}

// open starts a courier over a directory, or with the URL of a NATS server. Its calls reach the
// service.
func open(t *testing.T, dir string, service http.Handler, allowed egress.Rule, change func(*world)) *world {
	t.Helper()
	log := slog.New(slog.NewTextHandler(testLog{t}, nil))
	options := store.Options{Dir: dir, Bytes: 1 << 30, Queue: time.Hour, Results: time.Hour, Dead: time.Hour, Synced: true, Timeout: time.Minute, Log: log}
	if strings.HasPrefix(dir, "nats://") {
		options.Dir, options.URL, options.Timeout = "", dir, 0
	}
	kept, err := store.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	behind := httptest.NewServer(service)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, behind.Listener.Addr().String())
	}}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	w := &world{t: t, store: kept, accepts: accept.Rules{MaxBody: 11 << 20, Queue: 1000, Hops: 3, MayCallBack: func(host string) bool { return host != "forbidden.example" }},
		delivers: deliver.Rules{Concurrency: 10, Attempts: 4, Backoff: call.Backoff{First: 10 * time.Millisecond, Max: 50 * time.Millisecond},
			Timeout: time.Minute, Queue: time.Hour, MaxResult: 11 << 20, UID: target.UID}}
	if change != nil {
		change(w)
	}
	w.patience = max(w.patience, time.Millisecond)
	w.deliver = deliver.New(&deliver.Manager{Store: kept, Routes: w, Client: client, Log: log, Gone: w.patience})
	w.accept = accept.New(&accept.Handler{Store: kept, Routes: acceptance{w}, Queues: w.deliver, Log: log, Now: time.Now, Patience: w.reads})
	caller := &callback.Caller{Store: kept, Allowed: allowed, Counts: &w.deliver.Counts, Log: log,
		Rules: func() (int, call.Backoff, int) {
			return 3, call.Backoff{First: 10 * time.Millisecond, Max: 20 * time.Millisecond}, 3
		}}
	w.front = httptest.NewUnstartedServer(w.accept)
	w.front.Config = door.Server(w.accept)
	w.front.Listener = door.Listener(w.front.Listener)
	w.front.Start()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = w.deliver.Run(ctx) })
	group.Go(func() { _ = caller.Run(ctx) })
	var once sync.Once
	w.stop = func() {
		once.Do(func() {
			w.front.Close()
			cancel()
			group.Wait()
			kept.Close()
			behind.Close()
		})
	}
	t.Cleanup(w.stop)
	return w
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	if l.t.Context().Err() == nil {
		l.t.Logf("%s", bytes.TrimSpace(p))
	}
	return len(p), nil
}

// ask sends a request as the gateway does.
func (w *world) ask(method, path string, body io.Reader, headers ...string) (status int, h http.Header, text string) {
	w.t.Helper()
	r, err := http.NewRequest(method, w.front.URL+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Host = "svc.example"
	r.Header.Set(wire.HeaderAsyncTarget, target.String())
	r.Header.Set("Prefer", "respond-async")
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		} else {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(data)
}

// call has a call accepted and returns where its result will be.
func (w *world) call(body io.Reader, headers ...string) string {
	w.t.Helper()
	status, h, text := w.ask("POST", "/work?a=b", body, headers...)
	if status != http.StatusAccepted || !strings.HasPrefix(h.Get("Location"), wire.PathCalls) {
		w.t.Fatalf("%d %s %v", status, text, h)
	}
	return h.Get("Location")
}

// result waits for the result at a location.
func (w *world) result(at string) (status int, h http.Header, text string) {
	w.t.Helper()
	eventually.Seen(w.t, "there is a result at "+at, func() (string, bool) {
		if status, h, text = w.ask("GET", at, nil); status == http.StatusAccepted && h.Get("Retry-After") == "" {
			w.t.Error("a 202 does not say when to ask again")
		}
		return text, status != http.StatusAccepted
	})
	return status, h, text
}

func TestACallIsDeliveredAndItsResultIsKept(t *testing.T) {
	t.Parallel()
	w := open(t, t.TempDir(), http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		out.Header().Set("X-Answer", "yes")
		out.WriteHeader(http.StatusTeapot)
		fmt.Fprint(out, r.Method, " ", r.Host, r.RequestURI, " ", string(body), " ", r.Header.Get("Prefer"), r.Header.Get(wire.HeaderAsyncTarget), " ",
			r.Header.Get("X-Mine"), " ", r.Header.Get(wire.HeaderHops), r.Header.Get(wire.HeaderAttempt), r.Header.Get(wire.HeaderAsyncDelivery))
	}), nil, nil)
	at := w.call(strings.NewReader("hello"), "X-Mine", "mine")
	status, h, text := w.result(at)
	if want := "POST svc.ns.svc.cluster.local/work?a=b hello  mine 11uid"; status != http.StatusTeapot || h.Get("X-Answer") != "yes" || text != want {
		t.Errorf("%d %q %v", status, text, h)
	}
	for _, ask := range [][2]string{{at + "/record", ""}, {at, "application/json"}} {
		if status, _, text := w.ask("GET", ask[0], nil, "Accept", ask[1]); status != 200 || !strings.Contains(text, `"state":"completed"`) ||
			!strings.Contains(text, `"status":418`) || !strings.Contains(text, `"attempts":1`) {
			t.Errorf("record: %d %s", status, text)
		}
	}
	if status, _, _ := w.ask("GET", at, nil, "Host", "other.example"); status != http.StatusNotFound {
		t.Errorf("another host reads the result: %d", status)
	}
	if status, _, _ := w.ask("GET", wire.PathCalls+call.NewID(), nil); status != http.StatusNotFound {
		t.Errorf("an unknown ID: %d", status)
	}
}

func TestABodyOfTenMebibytesPassesBothWays(t *testing.T) {
	t.Parallel()
	w := open(t, t.TempDir(), http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(out, r.Body)
	}), nil, nil)
	body := strings.Repeat("0123456789abcdef", 10<<20/16)
	if status, _, text := w.result(w.call(strings.NewReader(body))); status != 200 || text != body {
		t.Errorf("%d, %d bytes", status, len(text))
	}
	// Without a length it is refused while it is read.
	if status, _, _ := w.ask("POST", "/", io.MultiReader(strings.NewReader(body), strings.NewReader(body))); status != http.StatusRequestEntityTooLarge {
		t.Errorf("20 MiB: %d", status)
	}
	if status, _, text := w.result(w.call(strings.NewReader("still"))); status != 200 || text != "still" {
		t.Errorf("afterwards: %d %q", status, text)
	}
}

func TestWhatIsTooMuchOrMalformedIsRefusedBeforeThe202(t *testing.T) {
	t.Parallel()
	w := open(t, t.TempDir(), http.NotFoundHandler(), nil, func(w *world) { w.accepts.MaxBody = 100 })
	for what, c := range map[string]struct {
		headers []string
		want    int
	}{
		"a target that no Route has set": {[]string{wire.HeaderAsyncTarget, "ns/svc/guess/svc.ns.svc.cluster.local"}, 404},
		"a target of three parts":        {[]string{wire.HeaderAsyncTarget, "ns/svc/uid"}, 404},
		"a large body":                   {[]string{"X", strings.Repeat("x", 10)}, 413},
		"large headers":                  {[]string{"X", strings.Repeat("x", 70<<10)}, 431},
		"a callback that is no URL":      {[]string{wire.HeaderCallback, "ftp://x"}, 400},
		"a callback with a password":     {[]string{wire.HeaderCallback, "http://a:b@x/"}, 400},
		"a callback at another host":     {[]string{wire.HeaderCallback, "http://forbidden.example/"}, 403},
		"a long key":                     {[]string{"Idempotency-Key", strings.Repeat("x", 300)}, 400},
		"an empty key":                   {[]string{"Idempotency-Key", ""}, 400},
		"a loop":                         {[]string{wire.HeaderHops, "3"}, 508},
		"hops that are no number":        {[]string{wire.HeaderHops, "-1"}, 400},
		"an upgrade":                     {[]string{"Upgrade", "websocket"}, 400},
	} {
		body := "x"
		if what == "a large body" {
			body = strings.Repeat("x", 101)
		}
		if status, _, text := w.ask("POST", "/", strings.NewReader(body), c.headers...); status != c.want {
			t.Errorf("%s: %d %s, want %d", what, status, text, c.want)
		}
	}
	if n := w.accept.Accepted.Load(); n != 0 {
		t.Errorf("%d were accepted", n)
	}
}

func TestAFullQueueAnswers429(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	w := open(t, t.TempDir(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }), nil, func(w *world) { w.accepts.Queue = 3 })
	defer close(release)
	for range 3 {
		w.call(nil)
	}
	if status, h, _ := w.ask("POST", "/", nil); status != http.StatusTooManyRequests || h.Get("Retry-After") == "" {
		t.Errorf("%d %v", status, h)
	}
}

func TestAKeyMakesARepetitionHarmless(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	hold := make(chan struct{})
	w := open(t, t.TempDir(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1); <-hold }), nil, nil)
	at := w.call(nil, "Idempotency-Key", "k")
	eventually.True(t, "it is delivered", func() bool { return reached.Load() == 1 })
	if again := w.call(nil, "Idempotency-Key", "k"); again != at {
		t.Errorf("while it runs: %s, then %s", at, again)
	}
	close(hold)
	w.result(at)
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			if again := w.call(nil, "Idempotency-Key", "k"); again != at {
				t.Errorf("afterwards: %s, then %s", at, again)
			}
		})
	}
	group.Wait()
	if other := w.call(nil, "Idempotency-Key", "other"); other == at {
		t.Error("another key has the same call")
	}
	eventually.True(t, "the other is delivered, too", func() bool { return reached.Load() >= 2 })
	if n := reached.Load(); n != 2 {
		t.Errorf("delivered %d times, want 2", n)
	}
}

// Somebody guesses a key: after its owner has used it, or before.
func TestAKeyIsItsSendersAndMeansOneRequest(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var reached []string
	w := open(t, t.TempDir(), http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		reached = append(reached, r.Header.Get("Authorization")+" "+r.URL.Path+" "+string(body))
		fmt.Fprint(out, "secret of ", r.Header.Get("Authorization"))
	}), nil, nil)
	owned := w.call(strings.NewReader("pay 100"), "Idempotency-Key", "order-17", "Authorization", "owner")
	for _, stranger := range []string{"", "stranger"} {
		if at := w.call(strings.NewReader("pay 100"), "Idempotency-Key", "order-17", "Authorization", stranger); at == owned {
			t.Errorf("%q is told where the result of the owner is", stranger)
		} else if _, _, text := w.result(at); strings.Contains(text, "owner") {
			t.Errorf("%q reads %q", stranger, text)
		}
	}
	w.result(owned)
	for what, c := range map[string]struct {
		method, path, body string
		want               int
	}{
		"the same":       {"POST", "/work?a=b", "pay 100", 202},
		"another body":   {"POST", "/work?a=b", "pay 999", 422},
		"a large body":   {"POST", "/work?a=b", strings.Repeat("x", 1<<20), 422},
		"another path":   {"POST", "/work?a=c", "pay 100", 422},
		"another method": {"PUT", "/work?a=b", "pay 100", 422},
	} {
		status, h, text := w.ask(c.method, c.path, strings.NewReader(c.body), "Idempotency-Key", "order-17", "Authorization", "owner")
		if status != c.want || (status == 202) != (h.Get("Location") == owned) || status == 422 && !strings.Contains(text, "use a new key") {
			t.Errorf("%s: %d %q %s", what, status, text, h.Get("Location"))
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(reached) != 3 {
		t.Errorf("the service got %q", reached)
	}
}

// The service is told the ID of a call, and who may view a namespace is shown it.
func TestTheIDOfACallIsNotTheRightToItsResult(t *testing.T) {
	t.Parallel()
	id := make(chan string, 1)
	w := open(t, t.TempDir(), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { id <- r.Header.Get(wire.HeaderCallID) }), nil, nil)
	at := w.call(nil)
	if status, _, text := w.result(at); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	known := <-id
	if !strings.HasPrefix(at, wire.PathCalls+known+".") {
		t.Errorf("the Location %s does not begin with the ID %s", at, known)
	}
	for _, path := range []string{known, known + "/record", known + "."} {
		if status, _, text := w.ask("GET", wire.PathCalls+path, nil); status != http.StatusNotFound {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

func TestAFailedCallIsTriedAgainAndThenDead(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	w := open(t, t.TempDir(), http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		n := reached.Add(1)
		if r.URL.Query().Get("a") != "b" || n < 3 {
			out.WriteHeader(http.StatusServiceUnavailable)
		}
	}), nil, nil)
	if status, _, _ := w.result(w.call(nil)); status != 200 || reached.Load() != 3 {
		t.Errorf("%d after %d attempts", status, reached.Load())
	}
	_, h, _ := w.ask("POST", "/poison", nil)
	at := h.Get("Location")
	status, h, text := w.result(at)
	if status != http.StatusBadGateway || h.Get(wire.HeaderResult) != "none" || !strings.Contains(text, "after 4 attempts the service answered 503") {
		t.Errorf("%d %q", status, text)
	}
	if _, _, text := w.ask("GET", at+"/record", nil); !strings.Contains(text, `"state":"dead"`) || !strings.Contains(text, `"attempts":4`) {
		t.Errorf("record: %s", text)
	}
	eventually.True(t, "it is counted", func() bool { return w.deliver.Counts.Dead.Load() == 1 })
}

func TestNoMoreCallsAreUnderWayThanThePodsTake(t *testing.T) {
	t.Parallel()
	var now, most, done atomic.Int64
	full := make(chan struct{}) // closed once as many are under way as the pods take
	w := open(t, t.TempDir(), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		select {
		case <-full:
		case <-r.Context().Done():
		}
		time.Sleep(3 * time.Millisecond)
		now.Add(-1)
		done.Add(1)
	}), nil, func(w *world) { w.delivers.Concurrency = 3 })
	for range 60 {
		w.call(nil)
	}
	eventually.True(t, "as many are under way as the pods take", func() bool { return now.Load() >= 3 })
	close(full)
	eventually.True(t, "all are delivered", func() bool { return done.Load() == 60 })
	if n := most.Load(); n != 3 {
		t.Errorf("%d at once, want 3", n)
	}
}

func TestAResultThatIsTooLargeIsToldAndTheCallNotRepeated(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	w := open(t, t.TempDir(), http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		for r.Context().Err() == nil { // it never ends
			if _, err := out.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}), nil, func(w *world) { w.delivers.MaxResult = 1 << 20 })
	status, _, text := w.result(w.call(nil))
	if status != http.StatusBadGateway || !strings.Contains(text, "more than 1048576 bytes") || reached.Load() != 1 || w.deliver.Counts.Oversized.Load() != 1 {
		t.Errorf("%d %q, reached %d times", status, text, reached.Load())
	}
}

func TestACallOfAServiceThatIsGoneIsDead(t *testing.T) {
	t.Parallel()
	w := open(t, t.TempDir(), http.NotFoundHandler(), nil, func(w *world) { w.gone = true })
	if status, _, text := w.result(w.call(nil)); status != http.StatusBadGateway || !strings.Contains(text, "no such service") {
		t.Errorf("%d %q", status, text)
	}
}

func TestWhatWasAcceptedOutlivesTheCourier(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// Every attempt of the first one fails, as while no pod is there.
	w := open(t, dir, http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(503) }), nil, func(w *world) { w.delivers.Attempts = 1 << 30 })
	body := strings.Repeat("x", 1<<20)
	small, large := w.call(strings.NewReader("small"), "Idempotency-Key", "k"), w.call(strings.NewReader(body))
	w.stop()
	w = open(t, dir, http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) { _, _ = io.Copy(out, r.Body) }), nil, func(w *world) { w.delivers.Attempts = 1 << 30 })
	if again := w.call(strings.NewReader("small"), "Idempotency-Key", "k"); again != small {
		t.Errorf("the key means another call after a restart: %s, %s", small, again)
	}
	if status, _, text := w.result(small); status != 200 || text != "small" {
		t.Errorf("small: %d %q", status, text)
	}
	if status, _, text := w.result(large); status != 200 || text != body {
		t.Errorf("large: %d, %d bytes", status, len(text))
	}
}

func TestACallbackGetsTheResult(t *testing.T) {
	t.Parallel()
	got := make(chan string, 10)
	var calls atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			out.WriteHeader(500) // it is called again
			return
		}
		body, _ := io.ReadAll(r.Body)
		got <- r.Method + " " + r.URL.Path + " " + r.Header.Get(wire.HeaderResult) + " " + r.Header.Get(wire.HeaderHops) + " " + string(body)
	}))
	defer receiver.Close()
	w := open(t, t.TempDir(), http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) { fmt.Fprint(out, "answer") }),
		func(context.Context, netip.Addr) error { return nil }, nil)
	w.call(nil, wire.HeaderCallback, receiver.URL+"/done")
	select {
	case text := <-got:
		if text != "POST /done 200 1 answer" {
			t.Errorf("got %q", text)
		}
	case <-time.After(time.Minute):
		t.Fatal("no callback")
	}
}

// The address that is dialled is judged, and no redirect is followed to another.
func TestACallbackIntoTheClusterIsRefused(t *testing.T) {
	t.Parallel()
	var inside atomic.Int64
	secret := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside.Add(1) }))
	defer secret.Close()
	w := open(t, t.TempDir(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), egress.NotLocal, nil)
	_, port, _ := net.SplitHostPort(secret.Listener.Addr().String())
	for i, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]"} {
		w.call(nil, wire.HeaderCallback, "http://"+host+":"+port+"/")
		eventually.True(t, host+" is given up", func() bool { return w.deliver.Counts.Uncalled.Load() == int64(i)+1 })
	}
	redirecting := httptest.NewServer(http.RedirectHandler(secret.URL, http.StatusTemporaryRedirect))
	defer redirecting.Close()
	client := callback.Client(func(context.Context, netip.Addr) error { return nil })
	response, err := client.Post(redirecting.URL, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if inside.Load() != 0 {
		t.Error("an address inside was reached")
	}
}

func TestAMessageThatCannotBeReadIsBuried(t *testing.T) {
	t.Parallel()
	w := open(t, t.TempDir(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil, nil)
	if _, err := w.store.Queue(t.Context(), call.Service{Namespace: "ns", Name: "svc"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Add(t.Context(), &call.Call{Service: call.Service{Namespace: "ns", Name: "svc"}, ID: "poison"}, nil); err != nil {
		t.Fatal(err)
	}
	at := w.call(nil)
	eventually.True(t, "the message is buried", func() bool { return w.deliver.Counts.Dead.Load() == 1 })
	if status, _, _ := w.result(at); status != 200 {
		t.Errorf("the call behind it: %d", status)
	}
}

func TestTheStoreRefusesWhatItHasNoRoomFor(t *testing.T) {
	t.Parallel()
	kept, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Bytes: 1 << 20, Queue: time.Hour, Results: time.Hour, Dead: time.Hour, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	of := call.Service{Namespace: "ns", Name: "svc"}
	var stored []string
	for range 1000 {
		c := &call.Call{Service: of, ID: call.NewID(), Host: "h", Method: "POST", Path: "/"}
		if _, err = kept.Add(t.Context(), c, make([]byte, 10<<10)); err != nil {
			break
		}
		stored = append(stored, c.ID)
	}
	if err == nil || len(stored) == 0 {
		t.Fatalf("%d calls of 10 KiB fit into 1 MiB: %v", len(stored), err)
	}
	for _, id := range stored {
		if _, err := kept.Call(t.Context(), of, id); err != nil {
			t.Errorf("call %s: %v", id, err)
		}
	}
	if _, err := kept.Call(t.Context(), of, call.NewID()); !errors.Is(err, store.ErrNone) {
		t.Errorf("a call that is not there: %v", err)
	}
}
