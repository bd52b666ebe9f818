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

// The hook and SIGTERM end with the same decision: no request is let in that the container, which
// is told to end by then, may not answer.
func TestNoRequestComesInWhenTheDrainIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const quiet = time.Second
		d := New(quiet, func() int { return 0 }, func(bool) {})
		if !d.Arrive() {
			t.Error("no request may come before the drain")
		}
		var last atomic.Int64 // when a request was let in
		ended := make(chan struct{})
		go func() { d.Hook(t.Context()); close(ended) }()
		synctest.Wait()
		go d.Terminate(t.Context())
		for i := range 3 {
			time.Sleep(quiet - time.Millisecond)
			if !d.Arrive() {
				t.Errorf("request %d was not let in while the drain lasted", i)
			}
			last.Store(time.Now().UnixNano())
		}
		<-ended
		if waited := time.Since(time.Unix(0, last.Load())); waited < quiet {
			t.Errorf("the hook ended %s after a request", waited)
		}
		if d.Arrive() {
			t.Error("a request was let in after the drain")
		}
		time.Sleep(2 * look)
	})
}

// SIGTERM may find a hook that waits and has begun no drain, because one was taken back. That hook
// may look before the drain begins.
func TestADrainIsNotOverBeforeItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(time.Second, func() int { return 0 }, func(bool) {})
		if d.isOver() {
			t.Error("a drain that nobody began is over")
		}
		d.Hook(t.Context()) // nobody terminates the pod
		time.Sleep(time.Second)
		if d.isOver() {
			t.Error("a drain that was taken back is over")
		}
		if !d.Arrive() {
			t.Error("no request comes in after a drain that was taken back")
		}
		terminated := time.Now()
		d.Terminate(t.Context())
		if took := time.Since(terminated); took < time.Second {
			t.Errorf("the drain lasted %s", took)
		}
	})
}
