//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

// A program answers HEAD with a body, or 204 with one, or sends more than it announced. Other
// clients get their own answers.
func TestAnAnswerWithAnUnaskedBodyReachesNobodyElse(t *testing.T) {
	for capacity, mode := range map[string]string{"0": "Serve", "-1": "Proxy"} {
		t.Run(mode, func(t *testing.T) {
			s := begin(t, 3*time.Minute)
			url := s.ready("talker", service{name: "talker", annotations: map[string]string{"autoscaling.knative.dev/min-scale": "1",
				"autoscaling.knative.dev/max-scale": "1", "autoscaling.knative.dev/target-burst-capacity": capacity}}.manifest())
			s.awaitMode("talker", mode)
			faulty, innocent := s.client(), s.client()
			for _, c := range []struct{ name, method, query string }{
				{"HEAD", http.MethodHead, "/?tag=faulty"},
				{"204", http.MethodGet, "/?tag=faulty&status=204"},
				{"304", http.MethodGet, "/?tag=faulty&status=304"},
				{"more than Content-Length", http.MethodGet, "/?tag=faulty"},
			} {
				for i := range 20 {
					request, err := http.NewRequestWithContext(s.ctx, c.method, url+c.query+"&unasked=1", nil)
					if err != nil {
						t.Fatal(err)
					}
					probe.Do(faulty, request) // what becomes of it does not matter
					pause(s.ctx, 10*time.Millisecond)
					want := fmt.Sprintf("mine-%d", i)
					if reply := probe.Get(s.ctx, innocent, url+"/?tag="+want); !reply.OK() || reply.Body != want+"\n" {
						t.Errorf("after %s, round %d: %v, want %q", c.name, i, reply, want)
					}
				}
			}
		})
	}
}

// The container may have one request at a time, and the program does not notice that clients leave.
// They give up after 0.3 s of the two that it takes.
func TestAContainerOfOneRequestHasOneWhenClientsGiveUp(t *testing.T) {
	for capacity, mode := range map[string]string{"0": "Serve", "-1": "Proxy"} {
		t.Run(mode, func(t *testing.T) {
			s := begin(t, 3*time.Minute)
			url := s.ready("single", service{name: "single", concurrency: 1, annotations: map[string]string{"autoscaling.knative.dev/min-scale": "1",
				"autoscaling.knative.dev/max-scale": "1", "autoscaling.knative.dev/target-burst-capacity": capacity}}.manifest())
			s.awaitMode("single", mode)
			hasty := s.Client(300 * time.Millisecond)
			t.Cleanup(hasty.CloseIdleConnections)
			for range 3 {
				probe.Get(s.ctx, hasty, url+"/?sleep=2000&deaf=1")
			}
			if reply := probe.Get(s.ctx, s.client(), url+"/?sleep=2000&deaf=1"); !reply.OK() {
				t.Errorf("the client that waits got %v", reply)
			}
			reply := probe.Get(s.ctx, s.client(), url+"/count")
			var count struct{ OverlapMost, Requests int64 }
			if err := json.Unmarshal([]byte(reply.Body), &count); err != nil {
				t.Fatalf("%v: %v", reply, err)
			}
			if count.OverlapMost != 1 || count.Requests < 2 {
				t.Errorf("of %d requests the container had up to %d at once, want 1", count.Requests, count.OverlapMost)
			}
		})
	}
}

// pause lets time pass in which a fault would spread.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
