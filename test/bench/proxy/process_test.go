package main

import "testing"

func TestNoPortIsHandedOutTwice(t *testing.T) {
	seen := map[int]bool{}
	for range 100 {
		p := freePort()
		if p == 0 || seen[p] {
			t.Fatalf("port %d (returned before: %t)", p, seen[p])
		}
		seen[p] = true
	}
}
