package link

import (
	"context"
	"errors"
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
