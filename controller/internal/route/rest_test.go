package route

import (
	"testing"
	"time"

	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/resting"
)

// A Route at a time: what it is, and what it shall be.
func TestWhatARouteShallBeByItsLoad(t *testing.T) {
	start := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		served, own, covered, between bool
		was                           resting.Want
		long                          time.Duration
		want                          resting.Want
		again                         time.Duration
	}{
		"new":                                     {covered: true, want: resting.Rest},
		"at rest":                                 {covered: true, long: time.Hour, want: resting.Rest},
		"at rest, and served for a moment":        {served: true, covered: true, long: 4 * time.Second, want: resting.Rest, again: 6 * time.Second},
		"at rest, and served for long":            {served: true, covered: true, long: 10 * time.Second, want: resting.Busy},
		"own, and quiet for a while":              {own: true, covered: true, long: 2 * time.Minute, want: resting.Busy, again: 3 * time.Minute},
		"own, and quiet for long":                 {own: true, covered: true, long: 5 * time.Minute, want: resting.Rest},
		"own, quiet, without a common HTTPRoute":  {own: true, long: 5 * time.Minute, want: resting.Busy},
		"own and served":                          {served: true, own: true, covered: true, long: time.Hour, want: resting.Busy},
		"on the way down, and served for a while": {served: true, own: true, covered: true, between: true, was: resting.Rest, long: time.Second, want: resting.Rest, again: 9 * time.Second},
		"on the way down, and served for long":    {served: true, own: true, covered: true, between: true, was: resting.Rest, long: time.Minute, want: resting.Busy},
		"on the way up, and quiet for a while":    {own: true, covered: true, between: true, was: resting.Busy, long: time.Minute, want: resting.Busy, again: 4 * time.Minute},
		"on the way up for a reason that is gone": {own: true, covered: true, between: true, was: resting.Apart, long: time.Minute, want: resting.Busy, again: 4 * time.Minute},
	} {
		one := &course{want: c.was, between: c.between}
		one.look(c.served, start)
		one.look(c.served, start.Add(c.long))
		want, again := one.whatItShallBe(c.own, c.covered, start.Add(c.long))
		if want != c.want || again != c.again {
			t.Errorf("%s: got %v, again after %v; want %v, %v", name, want, again, c.want, c.again)
		}
	}
}

// So that gateways are not told of everything at once.
func TestFewRoutesAreBetweenAtATime(t *testing.T) {
	r := &rests{courses: map[reconcile.Key]*course{}}
	for i := range switchesAtOnce + 1 {
		c := r.course(reconcile.Key{Name: string(rune('a' + i))})
		if got := r.begin(c); got != (i < switchesAtOnce) {
			t.Errorf("Route %d may begin: %v", i, got)
		}
	}
	first := r.course(reconcile.Key{Name: "a"})
	if !r.begin(first) {
		t.Error("one that has begun may not go on")
	}
	r.end(first)
	if !r.begin(r.course(reconcile.Key{Name: string(rune('a' + switchesAtOnce))})) {
		t.Error("the next one may not begin")
	}
}
