package main

import (
	"context"
	"fmt"
	"slices"

	"ebb.dev/ebb/test/internal/load"
	"ebb.dev/ebb/test/internal/result"
)

// rounds measures every target once in each round and prints it. It returns the rates at 32
// connections by target, and the ratio of queue-proxy's rate to nginx's in each of these rounds.
func rounds(ctx context.Context, o options, targets []target, out *result.Printer) (rates map[string][]float64, vsNginx []float64, err error) {
	rates = map[string][]float64{}
	for _, connections := range o.parallel {
		for round := range o.rounds {
			rate := map[string]float64{}
			for _, t := range inRound(targets, round) {
				m, err := load.Sockets{Address: t.address, Host: t.host, Header: t.header, Path: o.path, Connections: connections, Lasts: o.lasts}.Run(ctx)
				if err != nil {
					return nil, nil, fmt.Errorf("%s: %w", t.name, err)
				}
				if err := out.Line(result.Fields{"target": t.name, "connections": connections, "round": round + 1,
					"rps": m.RPS, "p50_us": m.P50, "p99_us": m.P99, "failed": m.Failed,
					"cpu_us_per_request": m.CPU, "generator_cpu_us_per_request": m.Own}); err != nil {
					return nil, nil, err
				}
				rate[t.name] = m.RPS
			}
			if connections == 32 {
				for name, r := range rate {
					rates[name] = append(rates[name], r)
				}
				vsNginx = append(vsNginx, rate["queue-proxy"]/rate["nginx"])
			}
		}
	}
	return rates, vsNginx, nil
}

// inRound swaps nginx and queue-proxy in every second round, so that neither benefits from its
// position.
func inRound(targets []target, round int) []target {
	order := slices.Clone(targets)
	if round%2 == 1 {
		n := slices.IndexFunc(order, func(t target) bool { return t.name == "nginx" })
		q := slices.IndexFunc(order, func(t target) bool { return t.name == "queue-proxy" })
		order[n], order[q] = order[q], order[n]
	}
	return order
}
