package main

import (
	"fmt"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

// bodySize is how much each POST carries: more than a forwarder's small buffer.
const bodySize = 8 << 10

// pace is how many requests a second were asked for, how many were sent, and how many were due but
// would have been too many at once.
type pace struct{ asked, achieved, skipped float64 }

func (p *pace) add(report probe.Report, lasted time.Duration) {
	p.achieved += float64(report.Sent) / lasted.Seconds()
	p.skipped += float64(report.Skipped) / lasted.Seconds()
}

// err is not nil when the run has shown too little. A noisy machine with two processors sends three
// quarters of what is asked for, or half. While pods start or a machine stands still, all that may
// be open is open and the rest is not sent: then a quarter is enough.
func (p *pace) err() error {
	least := p.asked / 3
	if p.achieved+p.skipped >= least {
		least = p.asked / 4
	}
	if p.achieved >= least {
		return nil
	}
	return fmt.Errorf("%.0f requests a second were sent (%.0f more would have been too many at once), %.0f were asked for, at least %.0f are needed for the result to mean anything",
		p.achieved, p.skipped, p.asked, least)
}
