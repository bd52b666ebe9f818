package revision

import (
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
