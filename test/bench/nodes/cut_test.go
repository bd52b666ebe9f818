package main

import (
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

func TestTheLastFailedRequestIsTheOneThatWasSentLast(t *testing.T) {
	begun := time.Now()
	ended := begun.Add(time.Minute)
	lost := func(seconds ...float64) (all []probe.Span) {
		for _, s := range seconds {
			from := begun.Add(time.Duration(s * float64(time.Second)))
			all = append(all, probe.Span{From: from, To: from.Add(tooLate)})
		}
		return all
	}
	for name, c := range map[string]struct {
		lost []probe.Span
		want any
	}{
		"none failed":                     {nil, 0.0},
		"in the order of their ends":      {lost(3, 7.5, 4), 7.5},
		"sent before the cut":             {lost(-1), 0.0},
		"they still fail":                 {lost(1, 58), nil},
		"the last ended just before that": {lost(1, 54), 54.0},
	} {
		if got := lastFailed(probe.Report{Lost: c.lost}, begun, ended); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
