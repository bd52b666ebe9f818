package load

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
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

func TestALoopEndsAfterItsTime(t *testing.T) {
	url, _, _ := server(t)
	began := time.Now()
	r := Loop{Client: http.DefaultClient, URL: url, Outstanding: 2, Lasts: 50 * time.Millisecond, Body: "x"}.Run(context.Background())
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	if r.Total == 0 || r.Late > r.Total || r.Lasted > 50*time.Millisecond {
		t.Errorf("%d requests, %d late, lasted %s", r.Total, r.Late, r.Lasted)
	}
}

func TestWhatIsInFlightAtTheEndIsNoPartOfTheRate(t *testing.T) {
	end := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
	defer s.Close()
	time.AfterFunc(100*time.Millisecond, func() { close(end) })
	r := Loop{Client: s.Client(), URL: s.URL, Outstanding: 3, Lasts: 10 * time.Millisecond}.Run(context.Background())
	if r.Total != 3 || r.Failed != 0 || r.RPS() != 0 {
		t.Errorf("%d requests, %d failed, %v a second; want 3, 0, 0", r.Total, r.Failed, r.RPS())
	}
}

func TestAnAnswerThatComesTooLateIsNeitherSuccessNorFailure(t *testing.T) {
	url, _, _ := server(t)
	r := Loop{Client: http.DefaultClient, URL: url, Outstanding: 1, Requests: 4, TooLate: 1}.Run(context.Background())
	if f := r.Fields(); f["failed"] != 1 || f["too_late"] != 3 || len(r.Seconds) > 0 || r.RPS() != 0 {
		t.Errorf("of four requests: %v, seconds %v", f, r.Seconds)
	}
}
