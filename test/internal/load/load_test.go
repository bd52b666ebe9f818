package load

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// server counts requests, and answers every fourth with 503.
func server(t *testing.T) (url string, got *atomic.Int64, most *atomic.Int64) {
	got, most = &atomic.Int64{}, &atomic.Int64{}
	var now atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for overlap := now.Add(1); ; {
			before := most.Load()
			if overlap <= before || most.CompareAndSwap(before, overlap) {
				break
			}
		}
		defer now.Add(-1)
		n := got.Add(1)
		w.Header().Set("X-Pod-Name", fmt.Sprint("pod-", n%2))
		if n%4 == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, got, most
}

func TestALoopSendsAsManyRequestsAsToldAndNeverMoreAtATime(t *testing.T) {
	url, got, most := server(t)
	r := Loop{Client: http.DefaultClient, URL: url, Outstanding: 5, Requests: 200}.Run(context.Background())
	if got.Load() != 200 || r.Total != 200 || r.Failed != 50 {
		t.Errorf("the server got %d requests, the report has %d, %d failed; want 200, 200, 50", got.Load(), r.Total, r.Failed)
	}
	if most.Load() > 5 {
		t.Errorf("%d requests were in flight, want at most 5", most.Load())
	}
	if r.Failure.Status != http.StatusServiceUnavailable {
		t.Errorf("the first failure is %s", r.Failure)
	}
	if r.Pods["pod-0"] != 100 || r.Pods["pod-1"] != 100 || r.ServedBy(2) == nil || r.ServedBy(3) != nil {
		t.Errorf("pods are %v, served by two after %v", r.Pods, r.ServedBy(2))
	}
	sum := 0
	for _, n := range r.Seconds {
		sum += n
	}
	if sum != 150 {
		t.Errorf("the seconds have %d successes, want 150", sum)
	}
}

// takes answers each request after a time.
type takes time.Duration

func (d takes) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(time.Duration(d))
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
}

func TestALoopEndsAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &http.Client{Transport: takes(time.Millisecond)}
		r := Loop{Client: client, URL: "http://server", Outstanding: 2, Lasts: 50 * time.Millisecond, Body: "x"}.Run(t.Context())
		if r.Total != 100 || r.Late != 32 || r.Lasted != 50*time.Millisecond {
			t.Errorf("%d requests, %d late, lasted %s; want 100, 32, 50ms", r.Total, r.Late, r.Lasted)
		}
	})
}

func TestWhatIsInFlightAtTheEndIsNoPartOfTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &http.Client{Transport: takes(100 * time.Millisecond)}
		r := Loop{Client: client, URL: "http://server", Outstanding: 3, Lasts: 10 * time.Millisecond}.Run(t.Context())
		if r.Total != 3 || r.Failed != 0 || r.RPS() != 0 {
			t.Errorf("%d requests, %d failed, %v a second; want 3, 0, 0", r.Total, r.Failed, r.RPS())
		}
	})
}

func TestAnAnswerThatComesTooLateIsNeitherSuccessNorFailure(t *testing.T) {
	url, _, _ := server(t)
	r := Loop{Client: http.DefaultClient, URL: url, Outstanding: 1, Requests: 4, TooLate: 1}.Run(context.Background())
	if f := r.Fields(); f["failed"] != 1 || f["too_late"] != 3 || len(r.Seconds) > 0 || r.RPS() != 0 {
		t.Errorf("of four requests: %v, seconds %v", f, r.Seconds)
	}
}
