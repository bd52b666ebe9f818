package main

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

// bursty alternates ten seconds of 100 requests in flight with twenty seconds of none.
func (b *bench) bursty(ctx context.Context) error {
	floorFirst, floorTen, err := b.floor(ctx, 0, 10, false)
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	url, err := b.service(ctx, "bursty", map[string]string{"max-scale": "10", "target": "10", "target-utilization-percentage": "100", "window": "10s"})
	if err != nil {
		return err
	}
	for burst := range max(1, int(b.lasts/(30*time.Second))) {
		pods, err := b.watchPods(ctx, "serving.knative.dev/service=bursty")
		if err != nil {
			return err
		}
		report := b.load(ctx, url+work, 100, 10*time.Second)
		ready := pods.Ready()
		if err := pause(ctx, 20*time.Second); err != nil {
			return err
		}
		pods.Stop()
		fields := fields(report)
		fields["experiment"], fields["burst"] = "bursty", burst
		fields["pods_at_end"], fields["pods_after_idle"] = ready, pods.Ready()
		fields["served_first_s"], fields["served_ten_s"] = report.ServedBy(1), report.ServedBy(10)
		fields["floor_first_s"], fields["floor_ten_s"] = floorFirst, floorTen
		if err := b.out.Line(fields); err != nil {
			return err
		}
	}
	return b.removeService(ctx, "bursty")
}

// concurrency adds one client every few seconds, up to fifteen. Each pod handles one request at a
// time. The rate should stay proportional to the number of clients.
func (b *bench) concurrency(ctx context.Context) error {
	floorFirst, floorFifteen, err := b.floor(ctx, 1, 15, false)
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	url, err := b.function(ctx, "callers", map[string]string{"max-scale": "15", "target-utilization-percentage": "100", "window": "10s"},
		oneWorker, cluster.Object{"containerConcurrency": 1})
	if err != nil {
		return err
	}
	var one float64
	for callers := 1; callers <= 15; callers++ {
		report := b.load(ctx, url+"?sleep=100", callers, b.fixedLasts/2)
		if callers == 1 {
			one = report.LateRPS()
		}
		fields := fields(report)
		// Each new client causes a cold start; the last third shows the rate after it.
		fields["experiment"], fields["linear_share"] = "concurrency", report.LateRPS()/(one*float64(callers))
		fields["floor_first_s"], fields["floor_fifteen_s"] = floorFirst, floorFifteen
		if err := b.out.Line(fields); err != nil {
			return err
		}
	}
	return b.removeService(ctx, "callers")
}

// backoff makes single calls with longer and longer gaps. It shows when the last pod is deleted and
// what the next call then costs. In the paper the gaps are minutes; here the window is ten seconds,
// so seconds are enough.
func (b *bench) backoff(ctx context.Context) error {
	floor, _, err := b.floor(ctx, 0, 1, false)
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	url, err := b.service(ctx, "backoff", map[string]string{"window": "10s"})
	if err != nil {
		return err
	}
	client := b.Client(time.Minute)
	defer client.CloseIdleConnections()
	for _, gap := range []time.Duration{time.Second, 5 * time.Second, 20 * time.Second, 40 * time.Second} {
		if err := pause(ctx, gap); err != nil {
			return err
		}
		reply := probe.Get(ctx, client, url)
		if !reply.OK() {
			return fmt.Errorf("after %s: %s", gap, reply)
		}
		started, err := strconv.ParseInt(reply.Header.Get("X-Process-Start"), 10, 64)
		if err != nil {
			return fmt.Errorf("the image did not say when its process started: %w", err)
		}
		err = b.out.Line(result.Fields{"experiment": "backoff", "gap_s": gap.Seconds(), "took_ms": result.Milliseconds(reply.Took), "floor_s": floor,
			"cold": time.Unix(0, started).After(reply.Sent)})
		if err != nil {
			return err
		}
	}
	return b.removeService(ctx, "backoff")
}

// hpa uses the class of Kubernetes' HorizontalPodAutoscaler for the same service: a CPU target of
// 50 % of the request and at most ten pods.
func (b *bench) hpa(ctx context.Context) error {
	url, err := b.function(ctx, "hpa", map[string]string{"class": "hpa.autoscaling.knative.dev", "metric": "cpu", "target": "50",
		"min-scale": "1", "max-scale": "10"}, cluster.Object{"resources": cluster.Object{"requests": cluster.Object{"cpu": "50m"}}}, nil)
	if err != nil {
		return err
	}
	floorFirst, floorTen, err := b.floor(ctx, 1, 10, false)
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	// hpa needs as much time for its first decision as the other experiments need in all.
	return b.follow(ctx, "hpa", "hpa", url+"?prime=100000", 10, b.lasts*3/4, result.Fields{"floor_first_s": floorFirst, "floor_ten_s": floorTen})
}

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
		if err := b.follow(ctx, "adaptive", f.kind, url+f.work, 9, b.lasts/2, nil); err != nil {
			return err
		}
	}
	return nil
}

// follow loads a service and prints how its scale followed, with the other fields of the line.
func (b *bench) follow(ctx context.Context, experiment, service, url string, outstanding int, lasts time.Duration, beside result.Fields) error {
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
	maps.Copy(fields, beside)
	fields["experiment"], fields["service"], fields["pods_at_end"] = experiment, service, pods.Ready()
	fields["first_s"], fields["ten_s"] = pods.After(report.Begun, 2), pods.After(report.Begun, 10)
	fields["steps"], fields["late_steps"] = scale.Since(report.Begun, report.Begun.Add(report.Lasted*2/3))
	if err := b.out.Line(fields); err != nil {
		return err
	}
	return b.removeService(ctx, service)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
