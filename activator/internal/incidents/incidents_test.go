package incidents

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
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
	teller := &Teller{Pod: "activator-1", URL: server.URL + wire.PathIncidents, Keys: keys, Failed: func(err error) { failed <- err }}
	at := time.Unix(1000, 0)
	revision := backends.Key{Namespace: "default", Name: "hello-00001"}
	for i := range 1000 {
		teller.refuse(refusal{revision, 503, "full"}, at.Add(time.Duration(i)), 1)
	}
	for range wire.MaxIncidents + 7 {
		teller.ColdStart(wire.ColdStarted{Namespace: "default", Revision: "hello-00001", At: at})
	}
	if n := teller.Dropped.Load(); n != 7 {
		t.Errorf("%d dropped, want 7", n)
	}
	done := make(chan struct{})
	go func() { teller.Run(t.Context()); close(done) }()
	<-failed
	away.Store(false)
	all := <-told
	if len(all.ColdStarts) != wire.MaxIncidents || len(all.Refusals) != 1 || all.Refusals[0].Count != 1000 || !all.Refusals[0].At.Equal(at.Add(999)) ||
		all.Refusals[0].By != "activator-1" {
		t.Errorf("told of %d cold starts and %+v", len(all.ColdStarts), all.Refusals)
	}
}
