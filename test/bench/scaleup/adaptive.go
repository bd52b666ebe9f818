package main

import (
	"context"
	"time"
)

// adaptive puts a constant load on two more kinds of functions with a learned target; nine has the
// single-threaded kind. A scale that keeps changing back and forth oscillates.
func (b *bench) adaptive(ctx context.Context) error {
	for _, f := range []struct{ kind, work string }{
		{"io-bound", "?sleep=50"},
		{"cpu-bound", "?prime=100000"},
	} {
		url, err := b.function(ctx, f.kind, map[string]string{"min-scale": "1", "max-scale": "10", "target": "10", "window": "10s",
			"ebb/target": "auto"}, nil, nil)
		if err != nil {
			return err
		}
		if err := b.follow(ctx, "adaptive", f.kind, url+f.work, 9, b.lasts/2); err != nil {
			return err
		}
	}
	return nil
}

// follow loads a service and prints how its scale followed.
func (b *bench) follow(ctx context.Context, experiment, service, url string, outstanding int, lasts time.Duration) error {
	pods, err := b.watchPods(ctx, "serving.knative.dev/service="+service)
	if err != nil {
		return err
	}
	scale, err := b.watchScale(ctx, "serving.knative.dev/service="+service)
	if err != nil {
		return err
	}
	report := b.load(ctx, url, outstanding, lasts)
	pods.Stop()
	scale.Stop()
	fields := fields(report)
	fields["experiment"], fields["service"], fields["pods_at_end"] = experiment, service, pods.Ready()
	fields["first_s"], fields["ten_s"] = pods.After(report.Begun, 2), pods.After(report.Begun, 10)
	fields["steps"], fields["late_steps"] = scale.Since(report.Begun, report.Begun.Add(report.Lasted*2/3))
	if err := b.out.Line(fields); err != nil {
		return err
	}
	return b.removeService(ctx, service)
}
