package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

// The pod that was there answers first, then nobody, then the new pod.
func TestTheFirstAnswerOfAnotherPod(t *testing.T) {
	begun := time.Now()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch n := asked.Add(1); {
		case n <= 2:
			w.Header().Set("X-Pod-Name", "old")
		case n <= 4:
			w.Header().Set("X-Pod-Name", "new")
			w.WriteHeader(http.StatusBadGateway)
		case n == 5: // an answer that no pod gave
		default:
			w.Header().Set("X-Pod-Name", "new")
		}
	}))
	defer server.Close()
	if at, ok := another(t.Context(), server.Client(), server.URL, "old", begun).(float64); !ok || at < 5*interval.Seconds() || asked.Load() < 6 {
		t.Errorf("after %v s and %d requests", at, asked.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if at := another(ctx, server.Client(), server.URL, "old", begun); at != nil {
		t.Errorf("%v although the time is over", at)
	}
}

func TestTheLastFailedRequestIsTheOneThatWasSentLast(t *testing.T) {
	begun := time.Now()
	ended := begun.Add(time.Minute)
	lost := func(seconds ...float64) (all []probe.Span) {
		for _, s := range seconds {
			from := begun.Add(time.Duration(s * float64(time.Second)))
			all = append(all, probe.Span{From: from, To: from.Add(tooLate)})
		}
		return all
	}
	for name, c := range map[string]struct {
		lost []probe.Span
		want any
	}{
		"none failed":                     {nil, 0.0},
		"in the order of their ends":      {lost(3, 7.5, 4), 7.5},
		"sent before the cut":             {lost(-1), 0.0},
		"they still fail":                 {lost(1, 58), nil},
		"the last ended just before that": {lost(1, 54), 54.0},
	} {
		if got := lastFailed(probe.Report{Lost: c.lost}, begun, ended); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
