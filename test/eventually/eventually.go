// Package eventually waits in tests for what other goroutines and processes bring about, without
// asserting how fast they do.
package eventually

import (
	"testing"
	"time"
)

// limit is far more than anything takes on a busy machine: a test that is right never sees it.
const limit = 2 * time.Minute

// True waits until something holds, and ends the test if it never does. It may be called in a
// bubble of testing/synctest.
func True(t testing.TB, what string, holds func() bool) {
	t.Helper()
	Seen(t, what, func() (any, bool) { return "it does not hold", holds() })
}

// Seen does the same, and says what was seen last.
func Seen[V any](t testing.TB, what string, look func() (V, bool)) V {
	t.Helper()
	deadline := time.Now().Add(limit)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		seen, ok := look()
		if ok {
			return seen
		}
		if time.Now().After(deadline) {
			t.Fatalf("never: %s; at last: %+v", what, seen)
		}
		time.Sleep(pause)
	}
}
