package incidents

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/chain"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/wire"
)

func keys() wire.Keys {
	key := []byte("0123456789abcdef0123456789abcdef")
	return wire.Keys{Current: key, Accepted: [][]byte{key}}
}

func TestOnlyWhatEbbAnsweredInPlaceOfAPodIsARefusal(t *testing.T) {
	for name, c := range map[string]struct {
		x      chain.Exchange
		result forward.Result
		want   string
	}{
		"a pod's own 503":              {chain.Exchange{Pod: "p"}, forward.Result{Status: 503}, ""},
		"a full queue":                 {chain.Exchange{Why: "pending request queue full"}, forward.Result{Status: 503, Cause: forward.Replied}, "pending request queue full"},
		"a client that left the queue": {chain.Exchange{Why: "the client is gone"}, forward.Result{Cause: forward.ClientGone}, ""},
		"no pod in time":               {chain.Exchange{}, forward.Result{Status: 504, Cause: forward.TimedOut, Timer: forward.TotalTimer}, "request timeout (timeoutSeconds) while it waited for a pod"},
		"a pod that is silent": {chain.Exchange{Pod: "p"}, forward.Result{Status: 504, Cause: forward.TimedOut, Timer: forward.ResponseStartTimer},
			"request timeout (responseStartTimeoutSeconds) in pod p"},
		"a response that stopped": {chain.Exchange{Pod: "p"}, forward.Result{Status: 200, Cause: forward.TimedOut}, ""},
		"a pod that died":         {chain.Exchange{Pod: "p"}, forward.Result{Status: 502, Cause: forward.UpstreamFailed, Err: errors.New("x")}, "pod p: " + forward.FailureText(errors.New("x"))},
	} {
		if got := reason(&c.x, &c.result); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestWhatCouldNotBeToldIsToldLaterAndWhatIsTooMuchIsCounted(t *testing.T) {
	var away atomic.Bool
	away.Store(true)
	told := make(chan wire.Incidents, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		signature, err := wire.ReadSignature(r)
		body, _ := io.ReadAll(r.Body)
		if err != nil || !signature.By(keys(), "", wire.ActivatorSubject) || !signature.Covers(body) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		all, err := wire.DecodeIncidents(body)
		if err != nil {
			t.Error(err)
		}
		told <- all
	}))
	defer server.Close()
	failed := make(chan error, 100)
	reporter := &Reporter{Pod: "activator-1", URL: server.URL + wire.PathIncidents, Keys: keys, Failed: func(err error) { failed <- err }}
	at := time.Unix(1000, 0)
	revision := backends.Key{Namespace: "default", Name: "hello-00001"}
	for i := range 1000 {
		reporter.refuse(refusal{revision, 503, "full"}, at.Add(time.Duration(i)), 1)
	}
	for range wire.MaxIncidents + 7 {
		reporter.ColdStart(wire.ColdStarted{Namespace: "default", Revision: "hello-00001", At: at})
	}
	if n := reporter.Dropped.Load(); n != 7 {
		t.Errorf("%d dropped, want 7", n)
	}
	done := make(chan struct{})
	go func() { reporter.Run(t.Context()); close(done) }()
	<-failed
	away.Store(false)
	all := <-told
	if len(all.ColdStarts) != wire.MaxIncidents || len(all.Refusals) != 1 || all.Refusals[0].Count != 1000 || !all.Refusals[0].At.Equal(at.Add(999)) ||
		all.Refusals[0].By != "activator-1" {
		t.Errorf("told of %d cold starts and %+v", len(all.ColdStarts), all.Refusals)
	}
}

// Pods that do not answer are told of soon, with the age of the newest attempt. What could not be
// told grows older, and is dropped when it proves nothing any more.
func TestPodsThatDoNotAnswerAreToldOfSoon(t *testing.T) {
	reporter := &Reporter{Pod: "activator-1", Node: "c", Keys: keys}
	revision := backends.Key{Namespace: "default", Name: "hello-00001"}
	now := time.Unix(1000, 0)
	reporter.Unreached(revision, "hello-1", now.Add(-time.Second))
	reporter.Unreached(revision, "hello-1", now.Add(-2*time.Second))
	reporter.Unreached(revision, "hello-2", now.Add(-9*time.Second))
	select {
	case <-reporter.hurried():
	default:
		t.Error("nobody hurries")
	}
	all := reporter.take(now)
	if len(all.Unreached) != 2 {
		t.Fatalf("%+v", all.Unreached)
	}
	reporter.putBack(all, now)
	all = reporter.take(now.Add(1500 * time.Millisecond))
	want := wire.Unreached{Namespace: "default", Revision: "hello-00001", Pod: "hello-1", By: "activator-1", Node: "c", Ago: 2500 * time.Millisecond}
	if len(all.Unreached) != 1 || all.Unreached[0] != want {
		t.Errorf("%+v", all.Unreached)
	}
	if all = reporter.take(now); len(all.Unreached) != 0 {
		t.Errorf("told again: %+v", all.Unreached)
	}
	for i := range wire.MaxIncidents + 3 {
		reporter.Unreached(revision, strconv.Itoa(i), now)
	}
	if n := reporter.Dropped.Load(); n != 3 {
		t.Errorf("%d dropped, want 3", n)
	}
}

// Attempts that fail all the time do not put the report off.
func TestAReportIsNotPutOffByThoseThatFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reporter := &Reporter{Keys: func() wire.Keys { return keys() }, URL: "http://127.0.0.1:0", Failed: func(error) {}}
		failed := make(chan time.Time, 100)
		reporter.Failed = func(error) { failed <- time.Now() }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { reporter.Run(ctx); close(done) }()
		began := time.Now()
		for range 30 {
			reporter.Unreached(backends.Key{Namespace: "default", Name: "hello-00001"}, "hello-1", time.Now())
			time.Sleep(soon / 10)
		}
		if at := <-failed; at.Sub(began) > 2*soon {
			t.Errorf("told after %s", at.Sub(began))
		}
		cancel()
		<-done
	})
}
