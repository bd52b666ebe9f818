package sidecar

import (
	"net/http"
	"sync"
	"testing"

	"ebb.dev/ebb/queue-proxy/internal/config"
)

// Without a limit nothing waits, and a burst would be seen with the next scrape only.
func TestGrowthIsPushedWithoutALimit(t *testing.T) {
	got, autoscaler := pushed(t)
	release := make(chan bool)
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) { <-release }, func(c *config.Config) {
		c.Concurrency, c.Token, c.Autoscaler = 0, "secret", autoscaler
	})
	var wg sync.WaitGroup
	for range 20 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r.get("/")
		}()
	}
	m := <-got
	for m.Stat.AverageConcurrent < 19 { // the first push may leave before all are here; the rest, less than twice as many, follows
		m = <-got
	}
	if m.Namespace != "ns" || m.Revision != "rev-00001" || m.Stat.Queued != 0 || !m.Stat.OutOfTurn {
		t.Errorf("pushed %+v", m)
	}
	close(release)
	wg.Wait()
}
