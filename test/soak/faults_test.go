package main

import (
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

func TestWhatIsUnderWayWhileRequestsMayBeLostIsExcused(t *testing.T) {
	at := func(from, to int) probe.Span {
		return probe.Span{From: time.Unix(int64(from), 0), To: time.Unix(int64(to), 0)}
	}
	for _, c := range []struct {
		name string
		lost probe.Span
		want int
	}{
		{"before", at(1, 9), 0},
		{"sent before, lost meanwhile", at(1, 15), 1},
		{"meanwhile", at(12, 15), 1},
		{"sent meanwhile, given up afterwards", at(19, 79), 1},
		{"afterwards", at(21, 81), 0},
	} {
		if got := excused(probe.Report{Lost: []probe.Span{c.lost}}, []probe.Span{at(10, 20), at(100, 110)}); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
