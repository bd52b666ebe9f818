package slots

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestARequestBeyondTheWorkersWaitsAndOneBeyondTheQueueIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(1, 1, time.Minute)
		release, err := s.Take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		second := make(chan error)
		go func() {
			release, err := s.Take(t.Context())
			if err == nil {
				release()
			}
			second <- err
		}()
		synctest.Wait()
		if _, err := s.Take(t.Context()); !errors.Is(err, ErrFull) {
			t.Errorf("the third request: %v, want %v", err, ErrFull)
		}
		release()
		if err := <-second; err != nil {
			t.Errorf("the second request: %v", err)
		}
	})
}

func TestARequestWaitsNoLongerThanItMayOrItsClientDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(1, 10, time.Minute)
		release, _ := s.Take(t.Context())
		began := time.Now()
		if _, err := s.Take(t.Context()); !errors.Is(err, ErrLong) || time.Since(began) != time.Minute {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		gone, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Take(gone); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a client that is gone: %v", err)
		}
		release()
		if release, err := s.Take(t.Context()); err != nil {
			t.Errorf("after both have left: %v", err)
		} else {
			release()
		}
	})
}

func TestWithoutALimitNobodyWaits(t *testing.T) {
	s := New(0, 0, 0)
	for range 3 {
		if _, err := s.Take(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
