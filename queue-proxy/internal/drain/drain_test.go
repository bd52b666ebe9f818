package drain

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Who has the token of a pod's hook calls it all the time. The pod stays in service nearly all the
// time, and a real end still waits for its requests.
func TestAHookThatIsCalledAgainAndAgainDoesNotKeepThePodOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var began, out atomic.Int64
		var inFlight atomic.Int64
		d := New(time.Second, func() int { return int(inFlight.Load()) }, func(draining bool) {
			if now := time.Now().UnixNano(); draining {
				began.Store(now)
			} else {
				out.Add(now - began.Load())
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
		if out := time.Duration(out.Load()); out == 0 || out > lasts/8 {
			t.Errorf("out of service for %s of %s", out, lasts)
		}
		inFlight.Store(1)
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
		stop() // a hook that returns at once would be called without a pause
		inFlight.Store(0)
		<-ended
	})
}
