package drain

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Who has the token of a pod's hook calls it all the time. The pod stays in service nearly all the
// time, and a real end still waits for its requests.
func TestAHookThatIsCalledAgainAndAgainDoesNotKeepThePodOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var began time.Time
		var out time.Duration
		inFlight := 0
		d := New(time.Second, func() int { return inFlight }, func(draining bool) {
			if draining {
				began = time.Now()
			} else {
				out += time.Since(began)
			}
		})
		attack, stop := context.WithCancel(t.Context())
		for range 3 {
			go func() {
				for attack.Err() == nil {
					d.Hook(attack)
				}
			}()
			time.Sleep(time.Second)
		}
		const lasts = 5 * time.Minute
		time.Sleep(lasts)
		if out == 0 || out > lasts/8 {
			t.Errorf("out of service for %s of %s", out, lasts)
		}
		inFlight = 1
		ended := make(chan struct{})
		go func() { d.Hook(t.Context()); close(ended) }()
		go d.Terminate(t.Context())
		synctest.Wait()
		if !d.Draining() {
			t.Error("SIGTERM beside a hook begins no drain")
		}
		time.Sleep(time.Minute)
		select {
		case <-ended:
			t.Error("the hook returned while a request was in flight")
		default:
		}
		inFlight = 0
		<-ended
		stop()
		synctest.Wait()
	})
}
