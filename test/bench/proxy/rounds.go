package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"ebb.dev/ebb/test/internal/result"
)

// shape is one kind of load.
type shape struct {
	connections, bytes int
}

type plan struct {
	rounds int
	span   time.Duration
	pieces int // parts of a round at one connection, measured in turn like rounds
	shapes []shape
	grpc   []int // connections of unary calls
}

// of returns how often a shape is measured, and for how long. At one connection, the CPUs that
// client, proxy and server run on, and whether each wakes an idle one, are a matter of chance for
// the life of the connection: the median is 65 or 150 us. So it takes many short measurements.
func (p plan) of(s shape) (rounds int, span time.Duration) {
	if s.connections > 1 {
		return p.rounds, p.span
	}
	return p.rounds * p.pieces, p.span / time.Duration(p.pieces)
}

func planOf(quick bool) plan {
	if quick {
		return plan{rounds: 3, span: 500 * time.Millisecond, pieces: 3, shapes: []shape{{1, 13}, {32, 13}}, grpc: []int{8}}
	}
	p := plan{rounds: 3, span: 1500 * time.Millisecond, pieces: 5, grpc: []int{1, 32}}
	for _, connections := range []int{1, 32, 256} {
		for _, bytes := range []int{13, 1 << 10, 100 << 10} {
			p.shapes = append(p.shapes, shape{connections, bytes})
		}
	}
	return p
}

// figures of one target under one shape, one value per round.
type figures struct {
	rps, cpu, p50, p99, rss []float64
}

// round measures every target under every shape, in alternating rounds, and prints a line for each.
func round(ctx context.Context, printer *result.Printer, p plan, targets []*target, protocol string, shapes []shape,
	takes func(*target) bool, measure func(context.Context, *target, shape, time.Duration) (measured, error)) (map[string]map[shape]*figures, error) {
	all := map[string]map[shape]*figures{}
	targets = slices.DeleteFunc(slices.Clone(targets), func(t *target) bool { return !takes(t) })
	for _, s := range shapes {
		rounds, span := p.of(s)
		for range rounds {
			for _, t := range targets {
				m, err := measure(ctx, t, s, span)
				if err != nil {
					return nil, fmt.Errorf("%w%s", err, t.fate())
				}
				add(all, t.name, s, m)
			}
		}
		for _, t := range targets {
			if err := printer.Line(line(t.name, protocol, s, all[t.name][s])); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

func add(all map[string]map[shape]*figures, name string, s shape, m measured) {
	if all[name] == nil {
		all[name] = map[shape]*figures{}
	}
	f := all[name][s]
	if f == nil {
		f = &figures{}
		all[name][s] = f
	}
	f.rps = append(f.rps, m.rps)
	f.cpu = append(f.cpu, m.cpu)
	f.p50 = append(f.p50, m.p50)
	f.p99 = append(f.p99, m.p99)
	f.rss = append(f.rss, m.rss)
}

// ratio returns the median of the rounds' ratios of CPU time. The two are measured one after the
// other, so noise of the machine affects both.
func ratio(all map[string]map[shape]*figures, name, reference string, s shape) float64 {
	return paired(all[name][s].cpu, all[reference][s].cpu, func(a, b float64) float64 { return a / b })
}

// later returns the median difference of the rounds' median latencies, in us.
func later(all map[string]map[shape]*figures, name, reference string, s shape) float64 {
	return paired(all[name][s].p50, all[reference][s].p50, func(a, b float64) float64 { return a - b })
}

func paired(a, b []float64, compare func(a, b float64) float64) float64 {
	var all []float64
	for i := range a {
		all = append(all, compare(a[i], b[i]))
	}
	return result.Median(all)
}

func line(name, protocol string, s shape, f *figures) result.Fields {
	return result.Fields{
		"target": name, "protocol": protocol, "connections": s.connections, "reply_bytes": s.bytes, "rounds": len(f.rps),
		"rps": result.Median(f.rps), "cpu_us_per_request": result.Median(f.cpu), "p50_us": result.Median(f.p50),
		"p99_us": result.Median(f.p99), "rss_mib": slices.Max(f.rss),
	}
}
