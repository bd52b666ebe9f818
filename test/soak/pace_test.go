package main

import (
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

func TestASoakThatSentTooLittleFails(t *testing.T) {
	for _, c := range []struct {
		name          string
		sent, skipped int // in 10 s, at 500 a second
		ok            bool
	}{
		{"all", 5000, 0, true},
		{"three quarters", 3750, 0, true},
		{"half", 2500, 0, true},
		{"less than half for no reason", 2400, 0, false},
		{"less than half, as more would have been too many at once", 2000, 3000, true},
		{"a fifth, as more would have been too many at once", 1000, 4000, false},
		{"a few skipped are no excuse", 2000, 100, false},
		{"nothing", 0, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := pace{asked: 500}
			// Two services share the load.
			p.add(probe.Report{Sent: c.sent / 2, Skipped: c.skipped / 2}, 10*time.Second)
			p.add(probe.Report{Sent: c.sent, Skipped: c.skipped}, 20*time.Second)
			if err := p.err(); (err == nil) != c.ok {
				t.Errorf("%.0f of 500 a second: %v", p.achieved, err)
			}
		})
	}
}
