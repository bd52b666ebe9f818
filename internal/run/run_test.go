package run

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestPartsStopInTheOppositeOrder(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var mutex sync.Mutex
	var stopped []string
	var started sync.WaitGroup
	part := func(name string) Part {
		started.Add(1)
		return Part{name, func(ctx context.Context) error {
			started.Done()
			<-ctx.Done()
			mutex.Lock()
			defer mutex.Unlock()
			stopped = append(stopped, name)
			return nil
		}}
	}
	parts := []Part{part("informers"), part("loop"), part("server")}
	go func() { started.Wait(); cancel() }()
	if err := All(ctx, parts...); err != nil {
		t.Fatal(err)
	}
	if want := []string{"server", "loop", "informers"}; !slices.Equal(stopped, want) {
		t.Fatalf("stopped %v, want %v", stopped, want)
	}
}

func TestAPartThatFailsStopsTheOthersAndIsNamed(t *testing.T) {
	err := All(t.Context(),
		Part{"waiter", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
		Part{"server", func(context.Context) error { return errors.New("port taken") }},
	)
	if err == nil || err.Error() != "server: port taken" {
		t.Fatalf("got %v", err)
	}
}

// Both may be known at the same moment.
func TestAPartThatEndsWithTheContextHasNotEndedEarly(t *testing.T) {
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		err := All(ctx, Part{"loop", func(context.Context) error { cancel(); return nil }})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestAPartThatEndsEarlyIsAnError(t *testing.T) {
	err := All(t.Context(), Part{"loop", func(context.Context) error { return nil }})
	if err == nil || !strings.Contains(err.Error(), "loop ended on its own") {
		t.Fatalf("got %v", err)
	}
}

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var calls []time.Duration
		full := errors.New("the disk is full")
		err := Every(t.Context(), time.Second, func(now time.Time) error {
			calls = append(calls, now.Sub(began))
			switch len(calls) {
			case 2:
				time.Sleep(2500 * time.Millisecond)
			case 4:
				return full
			}
			return nil
		})
		// The second one takes until after 4 s.
		if want := []time.Duration{1e9, 2e9, 3e9, 5e9}; err != full || !slices.Equal(calls, want) {
			t.Errorf("called after %v, %v", calls, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if err := Every(ctx, time.Hour, func(time.Time) error { cancel(); return nil }); err != nil {
			t.Errorf("it was told to end: %v", err)
		}
	})
}
