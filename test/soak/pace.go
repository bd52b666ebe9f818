package main

import (
	"fmt"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

// bodySize is the body size of each POST: more than the forwarder's small buffer.
const bodySize = 8 << 10

// pace counts, per second, the requests that were wanted, sent, and skipped because too many were
// in flight.
type pace struct{ asked, achieved, skipped float64 }

func (p *pace) add(report probe.Report, lasted time.Duration) {
	p.achieved += float64(report.Sent) / lasted.Seconds()
	p.skipped += float64(report.Skipped) / lasted.Seconds()
}

// err returns an error if the run sent too few requests. A busy machine with two CPUs sends three
// quarters of the wanted requests, or half. While pods start or the machine pauses, the limit of
// requests in flight is reached and the rest is skipped: then a quarter is enough.
func (p *pace) err() error {
	least := p.asked / 3
	if p.achieved+p.skipped >= least {
		least = p.asked / 4
	}
	if p.achieved >= least {
		return nil
	}
	return fmt.Errorf("%.0f requests a second were sent (%.0f were skipped because too many were in flight), %.0f were wanted, at least %.0f are needed for the result to mean anything",
		p.achieved, p.skipped, p.asked, least)
}
