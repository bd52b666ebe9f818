package main

import (
	"errors"
	"fmt"

	"ebb.dev/ebb/wire"
)

// Metric is a number that each pod tells: running, the requests that it works on, or waiting, those
// that wait in it.
type Metric struct {
	Name   string
	Target float64
}

func (m Metric) of(p *pod) float64 {
	if m.Name == "waiting" {
		return float64(len(p.queue))
	}
	return float64(p.working)
}

func (p *parser) setMetric(values []string) error {
	if len(values) != 2 || values[0] != "running" && values[0] != "waiting" {
		return errors.New("a metric is: running|waiting TARGET")
	}
	if len(p.Metrics) == wire.MaxTold {
		return fmt.Errorf("there are more than %d metrics", wire.MaxTold)
	}
	target, err := positive(values[1])
	p.Metrics = append(p.Metrics, Metric{values[0], target})
	return err
}
