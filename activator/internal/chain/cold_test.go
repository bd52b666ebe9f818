package chain

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/activator/bind"
	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/cold"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

// rulesOf are the rules of annotations, of which the controller knows what they name.
func rulesOf(annotations ...string) *cold.Rules {
	given := map[string]string{}
	for i := 0; i < len(annotations); i += 2 {
		given[annotations[i]] = annotations[i+1]
	}
	m, _ := names.Of(given, &rules.Config{})
	return cold.Of(m.Cold, map[string]string{names.FallbackRevisionAnnotation: "spare-00001"})
}

var spareKey = backends.Key{Namespace: "ns", Name: "spare-00001"}

// spare makes the revision of the fallback Service, with these pods.
func (w *world) spare(info backends.Info, pods ...backends.Endpoint) *backends.Revision {
	info.UID = "spare"
	w.table.SetRevision(spareKey, &info)
	w.table.SetSlice(spareKey, "spare", pods)
	return w.table.Get(spareKey)
}

// bothProtocols runs a test with a client of HTTP/1.1 and with one of HTTP/2.
func bothProtocols(t *testing.T, test func(t *testing.T, w *world)) {
	t.Run("HTTP/1.1", func(t *testing.T) { test(t, newWorld(t, hold.Bounds{})) })
	t.Run("HTTP/2", func(t *testing.T) {
		w := newWorld(t, hold.Bounds{})
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		w.client.Transport = &http.Transport{Protocols: protocols}
		test(t, w)
	})
}

func TestABrowserGetsTheWaitingPageAndWakesTheRevision(t *testing.T) {
	bothProtocols(t, func(t *testing.T, w *world) {
		r := w.revision(backends.Info{Cold: rulesOf(names.WaitingPageAnnotation, "<h1>soon</h1>", names.WaitingPageAfterAnnotation, "0s")})
		for _, method := range []string{"GET", "HEAD"} {
			w.pokes.Store(0)
			status, header, body := w.send(method, "", "Accept", browser)
			if status != 503 || method == "GET" && body != "<h1>soon</h1>" || method == "HEAD" && body != "" {
				t.Errorf("%s got %d %q", method, status, body)
			}
			for name, want := range map[string]string{"Content-Type": "text/html; charset=utf-8", "Content-Length": "13", "Cache-Control": "no-store",
				"X-Content-Type-Options": "nosniff", "Refresh": "2", "Retry-After": "2"} {
				if header.Get(name) != want {
					t.Errorf("%s: %s is %q, want %q", method, name, header.Get(name), want)
				}
			}
			if w.pokes.Load() == 0 {
				t.Error("nobody was told that the revision is wanted")
			}
		}
		load := r.Load()
		eventually.True(t, "both are over", func() bool { return load.Meter.Now() == 0 })
		if load.Answers[bind.AnswerPage].Load() != 2 || w.budget.Held() != 0 || w.budget.HeldBytes() != 0 {
			t.Errorf("%d pages; %d requests wait with %d bytes", load.Answers[bind.AnswerPage].Load(), w.budget.Held(), w.budget.HeldBytes())
		}
		if stat, ok := load.Meter.Take(time.Now()); !ok || stat.Requests != 2 {
			t.Errorf("the load is %+v", stat)
		}
	})
}

func TestWhoIsNoBrowserWaits(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	w.revision(backends.Info{Cold: rulesOf(names.WaitingPageAnnotation, "soon", names.WaitingPageAfterAnnotation, "0s")})
	answers := make(chan string)
	for _, request := range [][]string{{"GET"}, {"GET", "Accept", "*/*"}, {"POST", "Accept", browser}, {"GET", "Accept", "application/json"}} {
		go func() {
			_, _, body := w.send(request[0], "", request[1:]...)
			answers <- body
		}()
	}
	eventually.True(t, "all wait", func() bool { return w.budget.Held() == 4 })
	w.pods(w.pod("p", func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "the pod") }))
	for range 4 {
		if body := <-answers; body != "the pod" {
			t.Errorf("got %q", body)
		}
	}
}

func TestABrowserWaitsAWhileForThePod(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	page := func(after string) *cold.Rules {
		return rulesOf(names.WaitingPageAnnotation, "soon", names.WaitingPageAfterAnnotation, after, names.WaitingPageStatusAnnotation, "200")
	}
	w.revision(backends.Info{Cold: page("50ms")})
	if status, header, body := w.send("GET", "", "Accept", browser); status != 200 || body != "soon" || header.Get("Retry-After") != "" {
		t.Errorf("got %d %q %v", status, body, header)
	}
	w.revision(backends.Info{Cold: page("1h")})
	answer := make(chan string)
	go func() {
		_, _, body := w.send("GET", "", "Accept", browser)
		answer <- body
	}()
	eventually.True(t, "it waits", func() bool { return w.budget.Held() == 1 })
	w.pods(w.pod("p", func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "the pod") }))
	if body := <-answer; body != "the pod" {
		t.Errorf("got %q", body)
	}
}

// A client that does not read keeps the page in memory, so it counts from the start.
func TestTheWaitingPageIsAccounted(t *testing.T) {
	bothProtocols(t, func(t *testing.T, w *world) {
		w.revision(backends.Info{Cold: rulesOf(names.WaitingPageAnnotation, strings.Repeat("x", names.MaxPageBytes), names.WaitingPageAfterAnnotation, "1h")})
		answered := make(chan int)
		go func() {
			status, _, _ := w.send("GET", "", "Accept", browser)
			answered <- status
		}()
		eventually.True(t, "it waits", func() bool { return w.budget.Held() == 1 })
		if held := w.budget.HeldBytes(); held < requestCost+names.MaxPageBytes {
			t.Errorf("%d bytes are accounted", held)
		}
		w.pods(w.podH2("p", func(http.ResponseWriter, *http.Request) {}))
		if status := <-answered; status != 200 {
			t.Errorf("got %d", status)
		}
	})
}

// A pod that is busy is a pod: its service is not cold. Nor does a page hide that no pod can start.
func TestThePageIsOnlyForWhatStarts(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	info := backends.Info{ContainerConcurrency: 1, Timeout: time.Minute,
		Cold: rulesOf(names.WaitingPageAnnotation, "soon", names.WaitingPageAfterAnnotation, "0s", names.FallbackServiceAnnotation, "spare", names.FallbackAfterAnnotation, "0s")}
	w.revision(info)
	w.spare(backends.Info{}, w.pod("s", func(http.ResponseWriter, *http.Request) {}))
	release, arrived, done := make(chan bool), make(chan bool, 2), make(chan bool)
	defer func() { close(release); <-done }()
	w.pods(w.pod("busy", func(http.ResponseWriter, *http.Request) { arrived <- true; <-release }))
	go func() {
		defer close(done)
		w.send("GET", "")
	}()
	<-arrived
	info.Timeout = 100 * time.Millisecond
	w.revision(info)
	if status, _, body := w.send("GET", "", "Accept", browser); status != 504 {
		t.Errorf("got %d %q, want the timeout", status, body)
	}
	w.pods()
	info.Failure = "ImagePullBackOff"
	info.Cold = rulesOf(names.WaitingPageAnnotation, "soon", names.WaitingPageAfterAnnotation, "0s")
	info.Timeout = time.Minute
	w.revision(info)
	if status, _, body := w.send("GET", "", "Accept", browser); status != 503 || !strings.Contains(body, "ImagePullBackOff") {
		t.Errorf("got %d %q, want the reason", status, body)
	}
}

func TestAfterAWhileTheFallbackServiceAnswers(t *testing.T) {
	bothProtocols(t, func(t *testing.T, w *world) {
		first := w.revision(backends.Info{ContainerConcurrency: 1, Cold: rulesOf(names.FallbackServiceAnnotation, "spare", names.FallbackAfterAnnotation, "50ms")})
		seen := make(chan http.Header, 1)
		second := w.spare(backends.Info{}, w.podH2("s", func(rw http.ResponseWriter, r *http.Request) {
			seen <- r.Header
			text, _ := io.ReadAll(r.Body)
			io.WriteString(rw, "spare got "+string(text))
		}))
		status, header, body := w.send("POST", strings.Repeat("b", 100_000))
		if status != 200 || body != "spare got "+strings.Repeat("b", 100_000) || header.Get(wire.HeaderFallback) != "spare" {
			t.Errorf("got %d %.50q, %d bytes, %v", status, body, len(body), header)
		}
		got := <-seen
		for name, want := range map[string]string{wire.HeaderRevision: "spare-00001", wire.HeaderNamespace: "ns", wire.HeaderOriginalHost: "hello.example.com",
			wire.HeaderProxyRequest: wire.ProxyActivator, wire.HeaderNoQueue: "", "Expect": ""} {
			if got.Get(name) != want || len(got.Values(name)) > 1 {
				t.Errorf("the pod sees %s: %q, want %q", name, got.Values(name), want)
			}
		}
		one, other := first.Load(), second.Load()
		eventually.True(t, "the request is over", func() bool { return other.Requests[2].Load() == 1 })
		if one.Fallbacks.Load() != 1 || one.Requests[2].Load() != 0 || one.Meter.Now() != 0 || other.Meter.Now() != 0 {
			t.Errorf("%d fell back; %d and %d requests are here", one.Fallbacks.Load(), one.Meter.Now(), other.Meter.Now())
		}
		if w.budget.Held() != 0 || w.budget.HeldBytes() != 0 {
			t.Errorf("%d requests wait with %d bytes", w.budget.Held(), w.budget.HeldBytes())
		}
	})
}

// A fallback with a limit of its own refuses, and gets the body only when it has taken the request.
func TestAFallbackKeepsItsLimit(t *testing.T) {
	bothProtocols(t, func(t *testing.T, w *world) {
		w.revision(backends.Info{Cold: rulesOf(names.FallbackServiceAnnotation, "spare", names.FallbackAfterAnnotation, "0s")})
		w.spare(backends.Info{ContainerConcurrency: 1},
			w.podH2("full", func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set(wire.HeaderRefused, wire.RefusedLimit)
				rw.WriteHeader(wire.RefusedStatus)
			}),
			w.podH2("free", func(rw http.ResponseWriter, r *http.Request) {
				text, _ := io.ReadAll(r.Body)
				rw.Write(text)
			}))
		for range 4 {
			status, header, body := w.send("POST", strings.Repeat("b", 1_000_000))
			if status != 200 || len(body) != 1_000_000 || len(header.Values(wire.HeaderFallback)) != 1 {
				t.Errorf("got %d, %d bytes, %q", status, len(body), header.Values(wire.HeaderFallback))
			}
		}
	})
}

func TestAFallbackThatHasNoPodIsSaidAndWoken(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	first := w.revision(backends.Info{Cold: rulesOf(names.FallbackServiceAnnotation, "spare", names.FallbackAfterAnnotation, "0s")})
	reject := func(want string) {
		t.Helper()
		status, header, body := w.send("GET", "")
		if status != 503 || body != want || header.Get("Retry-After") == "" {
			t.Errorf("got %d %q", status, body)
		}
	}
	reject("revision ns/rev has no pod, and its fallback Service spare has no revision that gets requests")
	// One that falls back to the first, or to itself, makes no loop.
	second := w.spare(backends.Info{Cold: rulesOf(names.FallbackServiceAnnotation, "rev", names.FallbackAfterAnnotation, "0s")})
	reject("revision ns/rev has no pod, and its fallback Service spare has none either")
	eventually.True(t, "both are over", func() bool { return first.Load().Meter.Now() == 0 && second.Load().Meter.Now() == 0 })
	if stat, ok := second.Load().Meter.Take(time.Now()); !ok || stat.Requests != 1 {
		t.Errorf("the fallback's load is %+v", stat)
	}
	if n := first.Load().Answers[bind.AnswerNoFallback].Load() + second.Load().Answers[bind.AnswerNoFallback].Load(); n != 2 {
		t.Errorf("%d were counted", n)
	}
}

func TestARevisionThatCannotStartFallsBack(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	w.revision(backends.Info{Failure: "ExitCode1", Cold: rulesOf(names.FallbackServiceAnnotation, "spare", names.FallbackAfterAnnotation, "1h")})
	w.spare(backends.Info{}, w.pod("s", func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "spare") }))
	if status, _, body := w.send("GET", ""); status != 200 || body != "spare" {
		t.Errorf("got %d %q", status, body)
	}
}

func TestSomeRequestsWakeNoPod(t *testing.T) {
	bothProtocols(t, func(t *testing.T, w *world) {
		never := func(status string) *cold.Rules {
			return rulesOf(names.NeverWakePathsAnnotation, "/path", names.NeverWakeAgentsAnnotation, "kube-probe/", names.NeverWakeStatusAnnotation, status)
		}
		r := w.revision(backends.Info{Cold: never("503")})
		load := r.Load()
		if status, header, _ := w.send("GET", ""); status != 503 || header.Get("Retry-After") != "60" {
			t.Errorf("got %d %v", status, header)
		}
		w.revision(backends.Info{Cold: never("204")})
		status, header, body := w.send("POST", "x", "User-Agent", "kube-probe/1.35")
		if _, length := header["Content-Length"]; status != 204 || body != "" || length {
			t.Errorf("got %d %q %v", status, body, header)
		}
		// The kubelet's own probe names no revision, and is answered as before.
		if status, _, _ := w.send("GET", "", "User-Agent", "kube-probe/1.35", wire.HeaderRevision, ""); status != 200 {
			t.Errorf("the kubelet got %d", status)
		}
		asleep := w.podH2("asleep", func(http.ResponseWriter, *http.Request) { t.Error("the pod was woken") })
		asleep.Ready = false
		w.pods(asleep)
		w.table.Announce(wire.Announcement{Namespace: "ns", Revision: "rev", Pod: "asleep", Address: asleep.Address, Ready: true, Asleep: "frozen"})
		eventually.True(t, "the pod is known to sleep", func() bool { return len(r.Snapshot().Pods) == 1 && !r.Snapshot().Awake() })
		if status, _, _ := w.send("GET", ""); status != 204 {
			t.Errorf("got %d", status)
		}
		if _, ok := load.Meter.Take(time.Now()); ok || load.Meter.Now() != 0 || w.pokes.Load() > 0 {
			t.Error("requests that wake no pod are load")
		}
		eventually.True(t, "three are counted", func() bool {
			return load.Answers[bind.AnswerNotWoken].Load() == 3 && load.Requests[2].Load() == 2 && load.Requests[5].Load() == 1
		})
		w.pods(w.podH2("awake", func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "the pod") }))
		if status, _, body := w.send("GET", ""); status != 200 || body != "the pod" {
			t.Errorf("a pod is there, got %d %q", status, body)
		}
		eventually.True(t, "it was load", func() bool { stat, _ := load.Meter.Take(time.Now()); return stat.Requests == 1 })
	})
}

func TestAServiceLimitsWhatWaitsForIt(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	r := w.revision(backends.Info{Cold: rulesOf(names.MaxWaitingAnnotation, "2", names.MaxWaitAnnotation, "1h")})
	answers := make(chan int)
	for range 2 {
		go func() {
			status, _, _ := w.send("GET", "")
			answers <- status
		}()
	}
	eventually.True(t, "two wait", func() bool { return w.budget.Held() == 2 })
	status, header, body := w.send("GET", "")
	if status != 503 || header.Get("Retry-After") != "1" || !strings.Contains(body, "2 requests of this service wait already, the most it allows") {
		t.Errorf("got %d %q", status, body)
	}
	w.pods(w.pod("p", func(http.ResponseWriter, *http.Request) {}))
	for range 2 {
		if status := <-answers; status != 200 {
			t.Errorf("one that waited got %d", status)
		}
	}
	w.pods()
	w.revision(backends.Info{Cold: rulesOf(names.MaxWaitAnnotation, "1s")})
	began := time.Now()
	status, header, body = w.send("GET", "")
	if status != 503 || header.Get("Retry-After") == "" || body != "revision ns/rev: no pod took the request within 1s" || time.Since(began) < time.Second {
		t.Errorf("got %d %q after %v", status, body, time.Since(began))
	}
	load := r.Load()
	if load.Answers[bind.AnswerMaxWaiting].Load() != 1 || load.Answers[bind.AnswerMaxWait].Load() != 1 {
		t.Errorf("%d and %d were counted", load.Answers[bind.AnswerMaxWaiting].Load(), load.Answers[bind.AnswerMaxWait].Load())
	}
}
