package link

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/standby"
)

// A compression stops at once when a pod wakes, whichever it is, and goes on when that has its
// answer.
func TestACompressionMakesRoomForPodsThatWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := NewPool(), time.Now()
		compressing := false
		var tries []time.Duration
		done := make(chan error, 1)
		go func() {
			done <- p.do(t.Context(), standby.Compress, func(ctx context.Context) error {
				tries, compressing = append(tries, time.Since(began)), true
				defer func() { compressing = false }()
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Second):
					return nil
				}
			})
		}()
		thaw := func() {
			_ = p.do(t.Context(), standby.ThawAll, func(context.Context) error {
				synctest.Wait()
				if compressing {
					t.Errorf("a pod is compressed while another one wakes, after %s", time.Since(began))
				}
				time.Sleep(time.Millisecond)
				return nil
			})
		}
		time.Sleep(10 * time.Millisecond)
		thaw()
		time.Sleep(50 * time.Millisecond)
		thaw()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if len(tries) != 2 || tries[0] != 0 || tries[1] != 62*time.Millisecond+calm {
			t.Errorf("it began after %v", tries)
		}
	})
}

// Pods that wake all the time do not keep others from being compressed for ever.
func TestACompressionYieldsForATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := NewPool(), time.Now()
		done := make(chan error, 1)
		go func() {
			done <- p.do(t.Context(), standby.Compress, func(ctx context.Context) error {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Second):
					return nil
				}
			})
		}()
		for range 200 {
			time.Sleep(calm / 2)
			_ = p.do(t.Context(), standby.ThawAll, func(context.Context) error { return nil })
			if len(done) > 0 {
				break
			}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < yields || took > yields+2*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// A pod that wakes while it waits to be compressed is not.
func TestACompressionThatYieldsEndsWithItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool()
		_ = p.do(t.Context(), standby.ThawAll, func(context.Context) error { return nil })
		ctx, cancel := context.WithTimeout(t.Context(), calm/2)
		defer cancel()
		err := p.do(ctx, standby.Compress, func(context.Context) error { t.Error("compressed"); return nil })
		if !errors.Is(err, errBusy) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// A pod that falls asleep does not compete with one that wakes.
func TestAFreezeWaitsForPodsThatWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := NewPool(), time.Now()
		go func() {
			_ = p.do(t.Context(), standby.ThawAll, func(context.Context) error { time.Sleep(5 * time.Millisecond); return nil })
		}()
		synctest.Wait()
		after := time.Duration(-1)
		err := p.do(t.Context(), standby.FreezeAll, func(context.Context) error { after = time.Since(began); return nil })
		if err != nil || after != 5*time.Millisecond+hush {
			t.Errorf("it began after %s: %v", after, err)
		}
		if began = time.Now(); p.do(t.Context(), standby.FreezeAll, func(context.Context) error { after = time.Since(began); return nil }) != nil || after != 0 {
			t.Errorf("on a quiet node it began after %s", after)
		}
	})
}

// An order that expires while it makes room is not carried out: its pod may have been told that its
// containers run.
func TestAFreezeThatMadeRoomForTooLongIsNone(t *testing.T) {
	p := NewPool()
	ctx, cancel := context.WithCancel(t.Context())
	p.mu.Lock() // the freeze stalls where it looks whether a pod wakes
	done := make(chan error, 1)
	go func() {
		done <- p.do(ctx, standby.FreezeAll, func(context.Context) error { t.Error("frozen"); return nil })
	}()
	time.Sleep(20 * time.Millisecond)
	cancel()
	p.mu.Unlock()
	if err := <-done; !errors.Is(err, errBusy) {
		t.Errorf("it ended with %v", err)
	}
}

// On a node where pods wake all the time, a crowd of pods falls asleep all the same, within the
// time for which their orders are valid, and few at once.
func TestAFreezeWaitsForATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := NewPool(), time.Now()
		ctx, stop := context.WithCancel(t.Context())
		var storm sync.WaitGroup
		storm.Go(func() {
			for ctx.Err() == nil {
				_ = p.do(ctx, standby.ThawAll, func(context.Context) error { time.Sleep(time.Millisecond); return nil })
			}
		})
		synctest.Wait()
		var mu sync.Mutex
		var all sync.WaitGroup
		now, most, frozen := 0, 0, 0
		for range 40 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, standby.OrderTime)
				defer cancel()
				if err := p.do(ctx, standby.FreezeAll, func(context.Context) error {
					mu.Lock()
					now++
					most, frozen = max(most, now), frozen+1
					mu.Unlock()
					time.Sleep(time.Millisecond)
					mu.Lock()
					now--
					mu.Unlock()
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took < patience || took >= standby.OrderTime || most > 2 || frozen != 40 {
			t.Errorf("%d pods froze in %s, %d of them at once", frozen, took, most)
		}
		stop()
		storm.Wait()
	})
}
