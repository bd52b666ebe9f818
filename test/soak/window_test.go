package main

import (
	"maps"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

func TestAWindowCountsWhatHappenedInIt(t *testing.T) {
	var w window
	before := probe.Report{Sent: 100, Failed: 3, Resets: 1, Statuses: map[int]int{0: 1, 503: 2}}
	after := probe.Report{Sent: 150, Failed: 7, Resets: 2, Statuses: map[int]int{0: 2, 503: 2, 504: 3}}
	w.add(before, after, 2*time.Second)
	w.add(probe.Report{}, probe.Report{Sent: 10}, time.Second)
	if w.requests != 60 || w.failed != 4 || w.resets != 1 || w.gap != 2*time.Second {
		t.Errorf("%+v", w)
	}
	if want := map[string]int{"no response": 1, "504": 3}; !maps.Equal(w.byStatus, want) {
		t.Errorf("by status %v, want %v", w.byStatus, want)
	}
}
