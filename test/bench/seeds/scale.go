package main

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/follow"
	"ebb.dev/ebb/test/internal/load"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

// Each request takes six milliseconds of a worker, and each pod has one worker: 167 requests a
// second is what a pod can do, whatever the CPUs do.
const work = "?size=4&sleep=6"

var oneWorker = env("WORKERS", 1)

// scaled are the annotations of the papers' autoscaling experiments: one to ten pods, a target of
// ten and a window of ten seconds.
func scaled(more ...string) map[string]string {
	all := map[string]string{"autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/max-scale": "10", "autoscaling.knative.dev/target": "10",
		"autoscaling.knative.dev/window": "10s"}
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

// exactly makes ten requests in flight a full pod, as in the papers, and not seven.
const exactly = "autoscaling.knative.dev/target-utilization-percentage"

// timeline loads an arm and prints how its pods and its rate followed. begin runs with the load.
func (b *bench) timeline(ctx context.Context, a arm, loop load.Loop, begin func() error, more result.Fields) error {
	pods, err := follow.PodsOf(ctx, b.Kube, b.namespace, a.selector)
	if err != nil {
		return err
	}
	defer pods.Stop()
	begun := make(chan error, 1)
	go func() {
		if begin == nil {
			begun <- nil
			return
		}
		begun <- begin()
	}()
	loop.Client = a.client
	report := loop.Run(ctx)
	a.client.CloseIdleConnections()
	if err := <-begun; err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	fields := merge(fieldsOf(a, report), more)
	var curve [][]float64
	for _, step := range pods.Steps(report.Begun) {
		curve = append(curve, []float64{rounded(step.At.Sub(report.Begun).Seconds()), float64(step.N)})
	}
	fields["pods_curve"], fields["rps_curve"] = curve, report.Seconds
	fields["late_rps"], fields["pods_at_end"] = report.LateRPS(), pods.Ready()
	fields["two_s"], fields["five_s"], fields["ten_s"] = pods.After(report.Begun, 2), pods.After(report.Begun, 5), pods.After(report.Begun, 10)
	fields["served_ten_s"] = report.ServedBy(10)
	fields["pods_served_late"], fields["least_share"] = len(report.LatePods), leastShare(report.LatePods, pods.Ready())
	return b.line(fields)
}

// leastShare is the share of the requests that the pod with the fewest of them got, divided by an
// even share. It is 0 if a pod got none.
func leastShare(of map[string]int, pods int) float64 {
	if pods == 0 || len(of) < pods {
		return 0
	}
	least, sum := math.MaxInt, 0
	for _, n := range of {
		least, sum = min(least, n), sum+n
	}
	return float64(least) * float64(len(of)) / float64(sum)
}

func rounded(f float64) float64 { return math.Round(f*1000) / 1000 }

// steady keeps a hundred requests in flight. The floor is told to scale to ten pods when its load
// begins: no autoscaler can know sooner.
func (b *bench) steady(ctx context.Context) error {
	ebb, err := b.ebb(ctx, "ebb", scaled(exactly, "100"), oneWorker, nil)
	if err != nil {
		return err
	}
	floor, err := b.floor(ctx, "floor", 1, oneWorker)
	if err != nil {
		return err
	}
	loop := func(a arm) load.Loop {
		return load.Loop{URL: a.url + work, Outstanding: 100, Lasts: b.span(time.Minute, 30*time.Second)}
	}
	if err := b.timeline(ctx, ebb, loop(ebb), nil, nil); err != nil {
		return err
	}
	return b.timeline(ctx, floor, loop(floor), func() error { return b.ScalePlain(ctx, b.namespace, "floor", 10) }, nil)
}

// bursty alternates bursts with pauses. The floor has ten pods all the time. While the one pauses
// the other has its burst.
func (b *bench) bursty(ctx context.Context) error {
	ebb, err := b.ebb(ctx, "ebb", scaled(exactly, "100"), oneWorker, nil)
	if err != nil {
		return err
	}
	floor, err := b.floor(ctx, "floor", 10, oneWorker)
	if err != nil {
		return err
	}
	lasts := b.span(30*time.Second, 10*time.Second)
	for burst := range either(b, make([]int, 5), make([]int, 2)) {
		for _, a := range []arm{ebb, floor} {
			loop := load.Loop{URL: a.url + work, Outstanding: 100, Lasts: lasts}
			if err := b.timeline(ctx, a, loop, nil, result.Fields{"burst": burst + 1}); err != nil {
				return err
			}
		}
		if err := cluster.Pause(ctx, lasts); err != nil {
			return err
		}
		list, err := b.Pods(ctx, b.namespace, "ebb", false)
		if err != nil {
			return err
		}
		if err := b.line(result.Fields{"burst": burst + 1, "idle_s": 2 * lasts.Seconds(), "pods_after_idle": len(list)}); err != nil {
			return err
		}
	}
	return nil
}

// nine keeps nine requests in flight where the target is ten: with that target, with a learned one,
// and on one and ten pods of a plain Deployment.
func (b *bench) nine(ctx context.Context) error {
	fixed, err := b.ebb(ctx, "ebb", scaled(exactly, "100"), oneWorker, nil)
	if err != nil {
		return err
	}
	learned, err := b.ebb(ctx, "ebb-auto", scaled("autoscaling.ebb.dev/target", "auto"), oneWorker, nil)
	if err != nil {
		return err
	}
	one, err := b.floor(ctx, "floor-1", 1, oneWorker)
	if err != nil {
		return err
	}
	ten, err := b.floor(ctx, "floor-10", 10, oneWorker)
	if err != nil {
		return err
	}
	for _, a := range []arm{fixed, learned, one, ten} {
		if err := b.timeline(ctx, a, load.Loop{URL: a.url + work, Outstanding: 9, Lasts: b.span(time.Minute, 20*time.Second)}, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// sticky asks whether pods that come later get requests of clients whose connections are old.
// Beside the floor behind the gateway it has the same pods behind a Service's address alone, which
// chooses a pod for each connection.
func (b *bench) sticky(ctx context.Context) error {
	ebb, err := b.ebb(ctx, "ebb", scaled(exactly, "100", "autoscaling.knative.dev/target", "4", "autoscaling.knative.dev/max-scale", "5"), oneWorker, nil)
	if err != nil {
		return err
	}
	floor, err := b.floor(ctx, "floor", 1, oneWorker)
	if err != nil {
		return err
	}
	service, err := b.Kube.CoreV1().Services(b.namespace).Get(ctx, "floor", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the address of the plain Service: %w", err)
	}
	past := arm{name: "floor-service", url: floor.url, client: b.ClientOf(service.Spec.ClusterIP+":80", answerTime), selector: floor.selector}
	for _, a := range []arm{ebb, floor, past} {
		grow := func() error { return b.ScalePlain(ctx, b.namespace, "floor", 5) }
		if a.name == "ebb" {
			grow = nil
		} else {
			if err := b.ScalePlain(ctx, b.namespace, "floor", 1); err != nil {
				return err
			}
			if err := b.awaitPods(ctx, floor.selector, 1); err != nil {
				return err
			}
		}
		if err := b.timeline(ctx, a, load.Loop{URL: a.url + work, Outstanding: 20, Lasts: b.span(time.Minute, 15*time.Second)}, grow, nil); err != nil {
			return err
		}
	}
	return nil
}

// hpa scales by CPU with Kubernetes' HorizontalPodAutoscaler: Ebb's class of it, and one of a plain
// Deployment. It keeps pods for five minutes after the load, so Ebb's Service goes before the node
// needs their room.
func (b *bench) hpa(ctx context.Context) error {
	small := object{"resources": object{"requests": object{"cpu": "50m"}}}
	ebb, err := b.ebb(ctx, "ebb", map[string]string{"autoscaling.knative.dev/class": "hpa.autoscaling.knative.dev", "autoscaling.knative.dev/metric": "cpu",
		"autoscaling.knative.dev/target": "50", "autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/max-scale": "10"}, small, nil)
	if err != nil {
		return err
	}
	floor, err := b.floor(ctx, "floor", 1, small)
	if err != nil {
		return err
	}
	if err := b.Apply(ctx, b.namespace, `{"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "floor"}, "spec": {
"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "floor"}, "minReplicas": 1, "maxReplicas": 10, "metrics": [
{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]}}`); err != nil {
		return err
	}
	grow := func(a arm) error {
		return b.timeline(ctx, a, load.Loop{URL: a.url + "?prime=100000", Outstanding: 10, Lasts: b.span(2*time.Minute, 50*time.Second)}, nil, nil)
	}
	if err := grow(ebb); err != nil {
		return err
	}
	if err := b.Dynamic.Resource(cluster.Services).Namespace(b.namespace).Delete(ctx, "ebb", metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("remove Ebb's Service: %w", err)
	}
	if err := b.awaitPods(ctx, ebb.selector, 0); err != nil {
		return err
	}
	return grow(floor)
}

// concurrency adds a client every few seconds. A pod works on one request at a time, so that every
// client needs a pod. The floor has all fifteen from the beginning. Each arm climbs without a break
// because one that rests while the other is measured has a lower average than its clients make.
func (b *bench) concurrency(ctx context.Context) error {
	ebb, err := b.ebb(ctx, "ebb", map[string]string{"autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/max-scale": "15",
		"autoscaling.knative.dev/window": "10s", exactly: "100"}, oneWorker, object{"containerConcurrency": 1})
	if err != nil {
		return err
	}
	floor, err := b.floor(ctx, "floor", 15, oneWorker)
	if err != nil {
		return err
	}
	const wait = 100 // milliseconds
	for _, a := range []arm{ebb, floor} {
		for clients := 1; clients <= 15; clients++ {
			loop := load.Loop{URL: a.url + fmt.Sprint("?size=4&sleep=", wait), Outstanding: clients, Lasts: b.span(10*time.Second, 6*time.Second)}
			if err := b.timeline(ctx, a, loop, nil, result.Fields{"x": clients, "ideal_rps": float64(clients) * 1000 / wait}); err != nil {
				return err
			}
		}
	}
	return nil
}

// backoff makes single calls with longer and longer gaps. The floor always has its pod.
func (b *bench) backoff(ctx context.Context) error {
	minutes := []time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 20 * time.Minute, 25 * time.Minute, 30 * time.Minute}
	window := "60s"
	if !b.full() {
		window = "10s"
	}
	ebb, err := b.ebb(ctx, "ebb", map[string]string{"autoscaling.knative.dev/window": window}, nil, nil)
	if err != nil {
		return err
	}
	sleeping, err := b.ebb(ctx, "ebb-standby", map[string]string{"autoscaling.knative.dev/window": window, "autoscaling.ebb.dev/standby": "1"}, nil, nil)
	if err != nil {
		return err
	}
	floor, err := b.floor(ctx, "floor", 1, nil)
	if err != nil {
		return err
	}
	for _, gap := range either(b, minutes, []time.Duration{time.Second, 5 * time.Second, 20 * time.Second, 45 * time.Second}) {
		if err := cluster.Pause(ctx, gap); err != nil {
			return err
		}
		for _, a := range []arm{ebb, sleeping, floor} {
			reply := probe.Get(ctx, a.client, a.url+"?size=4")
			a.client.CloseIdleConnections()
			if !reply.OK() {
				return fmt.Errorf("%s after %s: %s", a.name, gap, reply)
			}
			started, err := strconv.ParseInt(reply.Header.Get("X-Process-Start"), 10, 64)
			if err != nil {
				return fmt.Errorf("the image does not tell when its process started: %w", err)
			}
			if err := b.line(result.Fields{"arm": a.name, "x": gap.Seconds(), "window": window, "took_ms": result.Milliseconds(reply.Took),
				"cold": time.Unix(0, started).After(reply.Sent)}); err != nil {
				return err
			}
		}
	}
	return nil
}
