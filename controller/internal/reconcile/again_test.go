package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A cause that nothing tells of must not keep an object waiting after it is gone.
func TestWhenAFailureIsTriedAgain(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "hello", errors.New("exceeded quota"))
	for what, c := range map[string]struct {
		err     error
		atMost  time.Duration // between two reconciles, after ten minutes
		atLeast time.Duration
	}{
		"somebody has the name":         {Foreign(errors.New("NotOwned")), 31 * time.Second, 29 * time.Second},
		"a quota refuses":               {refused, 61 * time.Second, 59 * time.Second},
		"a quota refuses one of two":    {errors.Join(nil, refused), 61 * time.Second, 59 * time.Second},
		"the API server fails for long": {errors.New("unavailable"), 61 * time.Second, 59 * time.Second},
		"a bad annotation":              {Permanent(errors.New("InvalidAnnotation")), 0, 0},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var times []time.Time
				controller := &Controller{Name: "fails", Workers: 1, Reconcile: func(context.Context, Key) (time.Duration, error) {
					times = append(times, time.Now())
					return 0, c.err
				}}
				leases := NewLeases()
				leases.win("", t.Context())
				r := runner{timeout: time.Minute, leases: leases, metrics: NewMetrics(prometheus.NewRegistry()), log: slog.New(slog.DiscardHandler), mgr: &Manager{}}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { r.work(ctx, controller); close(ended) }()
				controller.Enqueue(Key{Name: "a"})
				time.Sleep(time.Hour)
				cancel()
				<-ended
				if c.atMost == 0 {
					if len(times) != 1 {
						t.Errorf("tried %d times", len(times))
					}
					return
				}
				last := times[len(times)-1].Sub(times[len(times)-2])
				if last < c.atLeast || last > c.atMost {
					t.Errorf("after an hour it is tried again after %v, not within %v and %v", last, c.atLeast, c.atMost)
				}
			})
		})
	}
}

// What a replica found out about a key counts no more when another one works on it.
func TestAKeyOfAnotherReplicaIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var others []Key
		controller := &Controller{Name: "others", Workers: 1, Others: func(key Key) { others = append(others, key) },
			Reconcile: func(context.Context, Key) (time.Duration, error) {
				t.Error("reconciled without the lease")
				return 0, nil
			}}
		r := runner{timeout: time.Minute, leases: NewLeases(), metrics: NewMetrics(prometheus.NewRegistry()), log: slog.New(slog.DiscardHandler), mgr: &Manager{}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { r.work(ctx, controller); close(ended) }()
		controller.Enqueue(Key{Name: "a"})
		time.Sleep(time.Second)
		cancel()
		<-ended
		if len(others) != 1 || others[0].Name != "a" {
			t.Errorf("told of %v", others)
		}
	})
}
