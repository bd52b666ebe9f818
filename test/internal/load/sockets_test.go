package load

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestSocketsSendAtTheRateAndCountFailures(t *testing.T) {
	url, got, _ := server(t)
	s := Sockets{Address: strings.TrimPrefix(url, "http://"), Host: "a.test", Path: "/", Connections: 4, Lasts: time.Second, Rate: 100}
	m, err := s.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if n := int(got.Load()); n != m.Requests+m.Failed || n > 100 || n == 0 || m.Failed != n/4 {
		t.Errorf("the server got %d requests in a second, and the load counts %d and %d failed ones; want at most 100, a fourth of them failed", n, m.Requests, m.Failed)
	}
	s.Rate = 0
	if m, err = s.Run(context.Background()); err != nil || m.RPS <= 0 || m.P99 < m.P50 {
		t.Errorf("without a rate it was %+v, %v", m, err)
	}
}

func TestTheWaitForAPreviousAnswerCounts(t *testing.T) {
	now := time.Now()
	p := pace{first: now.Add(-time.Second), every: 100 * time.Millisecond}
	if from, want := p.next(5), now.Add(-500*time.Millisecond); !from.Equal(want) {
		t.Errorf("a request that was due at %s counts from %s", want, from)
	}
	for what, p := range map[string]pace{"in time": {first: now.Add(time.Millisecond), every: time.Millisecond}, "in a closed loop": {first: now.Add(-time.Second)}} {
		if from := p.next(1); from.Before(now) {
			t.Errorf("%s, a request counts from %s before it was sent", what, now.Sub(from))
		}
	}
}
