//go:build e2e

package e2e

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

// roundTrip makes a function an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// "The new model answers every prompt with 200, and one in three with nonsense." A program that
// knows says so of the answer, and its clients do not see that.
func TestARevisionThatSaysThatItsAnswersAreBadGoesBack(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.ready("frank", guarded("frank", "10m", map[string]string{"TEXT": "good"}))
	var marked atomic.Int64
	client := s.client()
	next := client.Transport
	client.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil && response.Header.Get("Ebb-Failed") != "" {
			marked.Add(1)
		}
		return response, err
	})
	prober := probe.Start(client, url, 10*time.Millisecond)
	s.apply(guarded("frank", "10m", map[string]string{"TEXT": "bad", "MARK_PERCENT": "30"}))
	why := s.wentBack("frank")
	during := prober.Stop()
	if err := during.Err(200); err != nil || during.Bodies["bad\n"] == 0 || !strings.Contains(why, "requests to the new revision failed") {
		t.Errorf("it went back because %s: %v, %v", why, err, during.Bodies)
	}
	if n := marked.Load(); n > 0 {
		t.Errorf("%d of %d answers told clients that they failed", n, during.Sent)
	}
	if seen := count(probe.Burst(s.ctx, s.client(), url, 200)); seen["good\n"] != 200 {
		t.Errorf("200 requests after it went back: %v", seen)
	}
}
