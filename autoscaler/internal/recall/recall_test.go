package recall

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/wire"
)

var hello = loop.Key{Namespace: "default", Name: "hello-00001"}

// world is Records with a clock.
type world struct {
	Records
	now time.Time
	// known are the revisions of the loop.
	known []loop.View
}

func newWorld() *world {
	w := &world{now: time.Unix(1000, 0), known: []loop.View{{Key: hello, Status: revision.Status{Desired: 3}, Counts: revision.Counts{Ready: 2, Asleep: 1}}}}
	w.Clock = func() time.Time { return w.now }
	w.Known = func(key loop.Key) bool { return key.Namespace == "default" }
	return w
}

func (w *world) step() {
	w.now = w.now.Add(step)
	w.Step(func(visit func(loop.View)) {
		for _, v := range w.known {
			visit(v)
		}
	})
}

func ended(status int, took time.Duration, n int) *wire.Outcomes {
	var o wire.Outcomes
	for range n {
		o.End(status, took)
	}
	return &o
}

func TestLoadIsWhatPodsAndActivatorsSayTogether(t *testing.T) {
	w := newWorld()
	for range 10 {
		for range 5 {
			w.Scraped(hello, revision.Scrape{Report: decide.Report{Concurrency: 4, RequestsPerSecond: 40}}, ended(200, 100*time.Millisecond, 40), nil)
			w.Reported(hello, &wire.Stat{AverageConcurrent: 1, Requests: 10, Queued: 1, Ended: ended(503, time.Second, 10)})
			w.Reported(hello, &wire.Stat{AverageConcurrent: 1, Requests: 10})
		}
		w.step()
	}
	got := w.Get(hello, 100)
	if got.Load != (Load{60, 6, 1}) || got.Ended.Ended() != 250 || got.Ended.Statuses[5] != 50 {
		t.Errorf("%+v, %d ended", got.Load, got.Ended.Ended())
	}
	if n := len(got.Points); n != 10 || got.Points[9] != (Point{Load: 6, RequestsPerSecond: 60, P50Ms: got.Points[0].P50Ms, P99Ms: got.Points[0].P99Ms, Wanted: 3, Ready: 2, Asleep: 1}) {
		t.Errorf("%d points, the last is %+v", n, got.Points[n-1])
	}
	if p := got.Points[0]; p.P50Ms < 81 || p.P50Ms > 119 || p.P99Ms < 810 || p.P99Ms > 1190 {
		t.Errorf("percentiles %v and %v", p.P50Ms, p.P99Ms)
	}
	if n := len(w.Get(hello, 3).Points); n != 3 {
		t.Errorf("%d points, want the newest 3", n)
	}
	w.now = w.now.Add(2 * time.Second)
	w.Reported(hello, &wire.Stat{Requests: 70})
	if got := w.Get(hello, 0).Load.RequestsPerSecond; math.Abs(got-(40+170/7.)) > 1e-9 {
		t.Errorf("%v requests per second within a step", got)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	w := newWorld()
	for range 3 * v1alpha1.MaxPoints {
		w.step()
	}
	for i := range 100 {
		w.ColdStart(&wire.ColdStarted{Namespace: "default", Revision: hello.Name, At: w.now.Add(time.Duration(i) * time.Minute)})
		w.Refused(&wire.Refused{Namespace: "default", Revision: hello.Name, At: w.now.Add(time.Duration(i) * time.Minute), Count: 1})
	}
	w.Reported(loop.Key{Namespace: "elsewhere", Name: "x"}, &wire.Stat{Requests: 1})
	got := w.Get(hello, 1000)
	if len(got.Points) != v1alpha1.MaxPoints || len(got.ColdStarts) != v1alpha1.MaxColdStarts || len(got.Refusals) != v1alpha1.MaxRefusals || len(w.all) != 1 {
		t.Errorf("%d points, %d cold starts, %d refusals, %d revisions", len(got.Points), len(got.ColdStarts), len(got.Refusals), len(w.all))
	}
	if newest := got.ColdStarts[len(got.ColdStarts)-1].At; !newest.Equal(w.now.Add(99 * time.Minute)) {
		t.Errorf("the newest cold start is of %v", newest)
	}

	// One that is at zero for ten minutes needs no points; one that is deleted is forgotten.
	w.known[0] = loop.View{Key: hello}
	for range v1alpha1.MaxPoints {
		w.step()
	}
	if got := w.Get(hello, 1000); got.Points != nil || w.series != 0 {
		t.Errorf("%d points of a revision at zero, %d series", len(got.Points), w.series)
	}
	w.known[0].Counts.Ready = 1
	w.step()
	w.known = nil
	w.step()
	w.step()
	if len(w.all) != 0 || w.series != 0 {
		t.Errorf("%d revisions and %d series are left", len(w.all), w.series)
	}

	// More revisions than there is room for have no series.
	for i := range maxSeries + 5 {
		w.known = append(w.known, loop.View{Key: loop.Key{Namespace: "default", Name: strconv.Itoa(i)}, Counts: revision.Counts{Ready: 1}})
	}
	w.step()
	if w.series != maxSeries || len(w.all) != maxSeries+5 {
		t.Errorf("%d series of %d revisions", w.series, len(w.all))
	}
}

func TestEqualRefusalsOfAMomentAreOne(t *testing.T) {
	w := newWorld()
	for i := range 10 {
		w.Scraped(hello, revision.Scrape{}, nil, map[string]uint32{"p-1": 7})
		w.Refused(&wire.Refused{Namespace: "default", Revision: hello.Name, At: w.now.Add(time.Duration(i) * 100 * time.Millisecond), By: "a-1", Status: 503, Reason: "full", Count: 2})
	}
	w.Refused(&wire.Refused{Namespace: "default", Revision: hello.Name, At: w.now.Add(time.Minute), By: "a-1", Status: 503, Reason: "full", Count: 2})
	got := w.Get(hello, 0).Refusals
	if len(got) != 3 || got[0].Count != 70 || got[0].By != "pod" || got[1].Count != 20 || got[2].Count != 2 {
		t.Errorf("%+v", got)
	}
}

type owners struct{ self bool }

func (o owners) Owns(loop.Key) bool    { return o.self }
func (o owners) Owner(loop.Key) string { return "127.0.0.1" }

func TestAPodTellsOfItsOwnRevisionsRequestsOnly(t *testing.T) {
	key := []byte("0123456789abcdef0123456789abcdef")
	keys := func() wire.Keys { return wire.Keys{Current: key, Accepted: [][]byte{key}} }
	w := newWorld()
	r := NewReceiver(&w.Records, keys, owners{true}, func(err error) { t.Error(err) })
	pod, other, activator := wire.Token(key, "default", hello.Name), wire.Token(key, "default", "other"), wire.Token(key, "", wire.ActivatorSubject)
	called := func(revision string, n int) (all wire.Incidents) {
		for i := range n {
			all.Calls = append(all.Calls, wire.Called{Namespace: "default", Revision: revision, Pod: "p", At: w.now.Add(time.Minute), Accepted: w.now,
				Waited: time.Second, Ran: 2 * time.Second, Path: "/" + strconv.Itoa(i), Method: "GET", Status: 200})
		}
		return all
	}
	cold := wire.Incidents{ColdStarts: []wire.ColdStarted{{Namespace: "default", Revision: hello.Name, At: w.now}}}
	unreached := wire.Incidents{Unreached: []wire.Unreached{{Namespace: "default", Revision: hello.Name, Pod: "p", Node: "b"}}}
	r.Unreached = func(u *wire.Unreached) { t.Errorf("believes a pod: %+v", u) }
	for name, c := range map[string]struct {
		token, query string
		all          wire.Incidents
		status       int
	}{
		"its own":                 {pod, wire.QueryOf("default", hello.Name), called(hello.Name, wire.MaxCalls), 204},
		"of another revision":     {pod, wire.QueryOf("default", hello.Name), called("other", 1), 400},
		"in another's name":       {other, wire.QueryOf("default", hello.Name), called(hello.Name, 1), 401},
		"a cold start":            {pod, wire.QueryOf("default", hello.Name), cold, 400},
		"that another is silent":  {pod, wire.QueryOf("default", hello.Name), unreached, 400},
		"too many":                {pod, wire.QueryOf("default", hello.Name), called(hello.Name, wire.MaxCalls+1), 400},
		"an activator's requests": {activator, "", called(hello.Name, 1), 400},
	} {
		body, _ := json.Marshal(c.all)
		request, err := http.NewRequest("POST", "http://autoscaler"+wire.PathIncidents+"?"+c.query, strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		if err := new(wire.Signer).Sign(request, c.token); err != nil {
			t.Fatal(err)
		}
		answer := httptest.NewRecorder()
		if r.ServeHTTP(answer, request); answer.Code != c.status {
			t.Errorf("%s: %d %s, want %d", name, answer.Code, answer.Body, c.status)
		}
	}
	got := w.Get(hello, 0).Calls
	if len(got) != v1alpha1.MaxCalls || got[0].WaitedMs != 61000 || got[0].RanMs != 2000 || !got[0].At.Equal(w.now) {
		t.Errorf("took %d: %+v", len(got), got)
	}
}

func TestRecordsOfCallsAreKeptOfSoManyRevisionsOnly(t *testing.T) {
	w := newWorld()
	tell := func(revision string) {
		w.Called(&wire.Called{Namespace: "default", Revision: revision, At: w.now})
	}
	for i := range maxCalled + 5 {
		tell(strconv.Itoa(i))
	}
	if n := len(w.Get(loop.Key{Namespace: "default", Name: strconv.Itoa(maxCalled / 2)}, 0).Calls); n != 0 || w.called.Load().Held("default") != maxCalled/2 {
		t.Errorf("%d calls of one too many; %d revisions", n, w.called.Load().Held("default"))
	}
	w.Known = func(loop.Key) bool { return true }
	for i := range maxCalled / 10 { // who records a thousand revisions takes no place of others
		w.Called(&wire.Called{Namespace: "another", Revision: strconv.Itoa(i), At: w.now})
		if n := len(w.Get(loop.Key{Namespace: "another", Name: strconv.Itoa(i)}, 0).Calls); n != 1 {
			t.Fatalf("revision %d of another namespace has %d records", i, n)
		}
	}
	w.step()
	w.step() // the loop knows none of them
	tell(hello.Name)
	if n := len(w.Get(hello, 0).Calls); n != 1 {
		t.Errorf("%d calls after the others were forgotten", n)
	}
}

func TestOnlyActivatorsTellOfIncidents(t *testing.T) {
	key := []byte("0123456789abcdef0123456789abcdef")
	keys := func() wire.Keys { return wire.Keys{Current: key, Accepted: [][]byte{key}} }
	w := newWorld()
	r := NewReceiver(&w.Records, keys, owners{true}, func(err error) { t.Error(err) })
	body, _ := json.Marshal(wire.Incidents{ColdStarts: []wire.ColdStarted{{Namespace: "default", Revision: hello.Name, At: w.now, Pod: "p", Complete: true, Pulled: true,
		Phases: []wire.Phase{{Name: "decide", Took: 20 * time.Millisecond}, {Name: "start", Took: 30 * time.Millisecond}}}}})
	post := func(token, text string) int {
		request, err := http.NewRequest("POST", "http://autoscaler"+wire.PathIncidents, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			if err := new(wire.Signer).Sign(request, token); err != nil {
				t.Fatal(err)
			}
		}
		answer := httptest.NewRecorder()
		r.ServeHTTP(answer, request)
		return answer.Code
	}
	activator := wire.Token(key, "", wire.ActivatorSubject)
	for name, c := range map[string]struct {
		token, body string
		status      int
	}{
		"without a signature": {"", string(body), 401}, "a pod": {wire.Token(key, "default", hello.Name), string(body), 401},
		"made up": {"x", string(body), 401}, "no JSON": {activator, "x", 400}, "too much": {activator, strings.Repeat(" ", wire.MaxIncidentsBytes+1), 413},
	} {
		if got := post(c.token, c.body); got != c.status {
			t.Errorf("%s: %d, want %d", name, got, c.status)
		}
	}
	if got := w.Get(hello, 0); len(got.ColdStarts) > 0 {
		t.Errorf("took %+v", got.ColdStarts)
	}
	if got := post(activator, string(body)); got != 204 {
		t.Errorf("an activator: %d", got)
	}
	got := w.Get(hello, 0).ColdStarts
	if len(got) != 1 || !got[0].Pulled || got[0].TotalMs != 50 || got[0].Phases[1] != (v1alpha1.Phase{Name: "start", StartMs: 20, DurationMs: 30}) {
		t.Errorf("took %+v", got)
	}
}

// What an activator could not reach goes to whoever decides for the revision.
func TestPodsThatWereNotReachedGoToTheOwner(t *testing.T) {
	w := newWorld()
	var told []wire.Unreached
	all := wire.Incidents{Unreached: []wire.Unreached{{Namespace: "default", Revision: hello.Name, Pod: "p", By: "activator-1", Node: "c", Ago: time.Second}}}
	for _, c := range []struct {
		self, forwarded bool
		told, others    int
	}{{true, false, 1, 0}, {true, true, 1, 0}, {false, false, 0, 1}, {false, true, 0, 0}} {
		told = nil
		r := NewReceiver(&w.Records, nil, owners{c.self}, nil)
		r.Unreached = func(u *wire.Unreached) { told = append(told, *u) }
		others := r.take(all, c.forwarded)
		n := 0
		for _, o := range others {
			n += len(o.Unreached)
		}
		if len(told) != c.told || n != c.others || n > 0 && others["127.0.0.1"].Unreached[0] != all.Unreached[0] {
			t.Errorf("%+v: told of %v, %v go on", c, told, others)
		}
	}
	NewReceiver(&w.Records, nil, owners{true}, nil).take(all, false) // nobody asked for it
}

func TestARequestThatIsToldTwiceIsKeptOnce(t *testing.T) {
	w := newWorld()
	w.step()
	for _, path := range []string{"/a", "/b", "/a", "/b", "/c"} {
		w.Called(&wire.Called{Namespace: "default", Revision: hello.Name, At: w.now, Path: path})
	}
	if got := w.Get(hello, 0).Calls; len(got) != 3 {
		t.Errorf("got %+v", got)
	}
}
