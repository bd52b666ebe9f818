package revision

import (
	"fmt"
	"testing"
	"time"
)

func TestABudgetIsOfOneService(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	b, one := &ScaleUps{}, Rate{PerSecond: 1, Burst: 1}
	for _, c := range []struct {
		behaviour, service string
		wanted             int32
		rate               Rate
		after              time.Duration
		want               int32
	}{
		{"a bucket of one grants one", "a", 5, one, 0, 1},
		{"and then none", "a", 5, one, 0, 0},
		{"another service has its own", "b", 1, one, 0, 1},
		{"a larger bucket is not full at once", "a", 5, Rate{PerSecond: 1, Burst: 100}, 0, 0},
		{"it fills at its rate", "a", 5, Rate{PerSecond: 1, Burst: 100}, 3 * time.Second, 3},
		{"no rate is no limit", "a", 5, Rate{}, 0, 5},
	} {
		now = now.Add(c.after)
		if got := b.Grant(c.service, c.wanted, c.rate, now); got != c.want {
			t.Errorf("%s: %d, want %d", c.behaviour, got, c.want)
		}
	}
}

// Full buckets are dropped now and then. The one that causes it is about to be used.
func TestWhoComesWhenFullBucketsAreDroppedPaysAsWell(t *testing.T) {
	now, one := time.Unix(1_000_000, 0), Rate{PerSecond: 1, Burst: 1}
	b := &ScaleUps{}
	for i := range 3 * 1024 {
		service := fmt.Sprint(i)
		if first, next := b.Grant(service, 5, one, now), b.Grant(service, 5, one, now); first != 1 || next != 0 {
			t.Fatalf("service %d was granted %d and %d", i, first, next)
		}
	}
	now = now.Add(time.Second) // all are full
	for i := range 1025 {
		b.Grant(fmt.Sprint("later ", i), 1, one, now)
	}
	if n := len(b.buckets); n > 1025 {
		t.Errorf("%d buckets are kept", n)
	}
}
