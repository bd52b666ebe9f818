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
		{"a third", 1700, 0, true},
		{"less than a third, none skipped", 1600, 0, false},
		{"less than a third, the rest skipped", 1500, 3500, true},
		{"a fifth, the rest skipped", 1000, 4000, false},
		{"a few skipped are no excuse", 1500, 100, false},
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
