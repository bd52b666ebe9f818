package faults

import (
	"maps"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

func TestAWindowCountsWhatHappenedInIt(t *testing.T) {
	var w Window
	before := probe.Report{Sent: 100, Failed: 3, Resets: 1, Statuses: map[int]int{0: 1, 503: 2}}
	after := probe.Report{Sent: 150, Failed: 7, Resets: 2, Statuses: map[int]int{0: 2, 503: 2, 504: 3}}
	w.add(before, after, 2*time.Second)
	w.add(probe.Report{}, probe.Report{Sent: 10}, time.Second)
	if w.Requests != 60 || w.Failed != 4 || w.Resets != 1 || w.Gap != 2*time.Second {
		t.Errorf("%+v", w)
	}
	if want := map[string]int{"no response": 1, "504": 3}; !maps.Equal(w.ByStatus, want) {
		t.Errorf("by status %v, want %v", w.ByStatus, want)
	}
}
