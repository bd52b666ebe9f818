package records

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"ebb.dev/ebb/wire"
)

func TestATextOfAClientIsMadeValid(t *testing.T) {
	for given, want := range map[string]string{
		"/a": "/a", "/\x01\t\n\x7f": "/\x7f", "/\xff": "/\uFFFD",
	} {
		if got := plain(given); got != want {
			t.Errorf("%q became %q, want %q", given, got, want)
		}
	}
	if got := plain(strings.Repeat("ü", 500)); got != wire.Clip(got) || !utf8.ValidString(got) {
		t.Errorf("%q", got)
	}
}

func TestARecordThatCouldNotBeToldIsToldOnceMore(t *testing.T) {
	told := make(chan []wire.Called)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		all, err := wire.DecodeIncidents(body)
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		told <- all.Calls
	}))
	defer server.Close()
	k := &Recorder{Namespace: "n", Revision: "r", Pod: "p", Autoscaler: server.Listener.Addr().String(), Token: func() string { return "token" }, Failed: func(error) {}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); k.Run(ctx) }()
	defer func() { stop(); <-ended }()
	for _, row := range []struct{ new, want string }{{"/first", "/first"}, {"", "/first"}, {"/second", "/second"}, {"/third", "/second /third"}, {"/fourth", "/third /fourth"}} {
		if row.new != "" {
			k.mutex.Lock()
			k.newest = append(k.newest, wire.Called{Namespace: "n", Revision: "r", Pod: "p", At: time.Now(), Method: "GET", Path: row.new})
			k.mutex.Unlock()
		}
		var paths []string
		for _, c := range <-told {
			paths = append(paths, c.Path)
		}
		if got := strings.Join(paths, " "); got != row.want {
			t.Fatalf("told %q, want %q", got, row.want)
		}
	}
	stop()
	select {
	case <-told: // the last time
	case <-ended:
	}
}
