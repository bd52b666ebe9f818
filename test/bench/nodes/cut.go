package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/faults"
	"ebb.dev/ebb/test/internal/follow"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

const (
	// tooLate is when a client gives up.
	tooLate  = 5 * time.Second
	interval = 50 * time.Millisecond
	before   = 5 * time.Second // of load, so that all connections are there
)

// wakes are the times after the cut at which one more service at zero is called.
var wakes = []time.Duration{200 * time.Millisecond, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second, 6 * time.Second,
	8 * time.Second, 12 * time.Second, 18 * time.Second, 25 * time.Second, 35 * time.Second, 45 * time.Second}

type bench struct {
	*cluster.Cluster
	namespace, image string
	place            places
	targets          []target
	asleep           []string // URLs of services at zero
}

// target is a service under load.
type target struct {
	name, url, labels string
	pods              int
}

// services makes them, each with one pod on the node that ends.
func (b *bench) services(ctx context.Context) error {
	ends := b.place.ends
	add := func(name, scale, capacity string, pods int) error {
		url, err := b.ApplyFunction(ctx, b.namespace, cluster.Function{Name: name, Image: b.image, Annotations: map[string]string{
			"autoscaling.knative.dev/min-scale": scale, "autoscaling.knative.dev/target-burst-capacity": capacity}})
		b.targets = append(b.targets, target{name, url, "serving.knative.dev/service=" + name, pods})
		return err
	}
	if err := b.place.Only(ctx, ends); err != nil {
		return err
	}
	if err := errors.Join(add("only", "1", "-1", 1), b.plain(ctx, "plain-only", 1)); err != nil {
		return err
	}
	if err := b.place.Only(ctx, ends, b.place.stay()[0]); err != nil {
		return err
	}
	if err := errors.Join(add("activator", "2", "-1", 2), add("direct", "2", "0", 2)); err != nil {
		return err
	}
	if err := b.plain(ctx, "plain", 2); err != nil {
		return err
	}
	if err := b.place.Only(ctx, b.place.All...); err != nil {
		return err
	}
	for i := range wakes {
		url, err := b.ApplyFunction(ctx, b.namespace, cluster.Function{Name: fmt.Sprintf("zero-%d", i), Image: b.image,
			Annotations: map[string]string{"autoscaling.knative.dev/window": "6s", "autoscaling.knative.dev/initial-scale": "0"}})
		if err != nil {
			return err
		}
		b.asleep = append(b.asleep, url)
	}
	for i := range wakes {
		if err := b.AwaitNoPods(ctx, b.namespace, fmt.Sprintf("zero-%d", i)); err != nil {
			return err
		}
	}
	for _, t := range b.targets {
		pods, err := b.place.on(ctx, b.namespace, t.labels)
		if err != nil {
			return err
		}
		if len(pods) != 1 {
			return fmt.Errorf("%d pods of %s are on node %s, want 1", len(pods), t.name, ends)
		}
	}
	return nil
}

// plain makes a Deployment and a Service of Kubernetes alone, which wait until it answers.
func (b *bench) plain(ctx context.Context, name string, pods int) error {
	host := name + "." + b.namespace + ".ebb.test" // one of its own: the oldest HTTPRoute of a host counts
	if err := b.ApplyPlain(ctx, b.namespace, cluster.Plain{Name: name, Image: b.image, Host: host, Replicas: pods}); err != nil {
		return err
	}
	b.targets = append(b.targets, target{name, "http://" + host, "app=" + name, pods})
	return b.AwaitAnswer(ctx, "http://"+host)
}

// cut ends the node under load and returns the summary.
func (b *bench) cut(ctx context.Context, name string, lasts time.Duration, out *result.Printer) (result.Fields, error) {
	activators, err := b.place.on(ctx, cluster.System, "app=activator")
	if err != nil {
		return nil, err
	}
	ends, err := b.place.on(ctx, cluster.System, "app=autoscaler")
	if err != nil {
		return nil, err
	}
	leaders := map[string]bool{}
	for _, pod := range ends {
		leaders[pod.Name] = true
	}
	probers, pods, only := map[string]*probe.Prober{}, map[string]*follow.Pods{}, map[string]string{}
	for _, t := range b.targets {
		there, err := b.place.on(ctx, b.namespace, t.labels)
		if err != nil {
			return nil, err
		}
		if len(there) > 0 {
			only[t.name] = there[0].Name
		}
		p, err := follow.PodsOf(ctx, b.Kube, b.namespace, t.labels)
		if err != nil {
			return nil, err
		}
		defer p.Stop()
		if err := p.Await(ctx, t.pods); err != nil {
			return nil, err
		}
		pods[t.name] = p
		probers[t.name] = probe.Start(b.Client(tooLate), t.url, interval)
	}
	err = cluster.Pause(ctx, before)
	begun := time.Now()
	err = errors.Join(err, faults.Node(ctx, name, "off"))
	var leads any
	replies := make([]probe.Reply, len(wakes))
	var all sync.WaitGroup
	for i, at := range wakes {
		all.Go(func() {
			if cluster.Pause(ctx, time.Until(begun.Add(at))) == nil {
				replies[i] = probe.Get(ctx, b.Client(tooLate), b.asleep[i])
			}
		})
	}
	until, cancel := context.WithDeadline(ctx, begun.Add(lasts))
	defer cancel()
	if len(leaders) > 0 {
		all.Go(func() { leads = b.place.led(until, begun, leaders) })
	}
	first := make([]any, len(b.targets))
	for i, t := range b.targets {
		if t.pods == 1 {
			all.Go(func() { first[i] = another(until, b.Client(tooLate), t.url, only[t.name], begun) })
		}
	}
	err = errors.Join(err, cluster.Pause(ctx, time.Until(begun.Add(lasts))))
	ended := time.Now()
	rows := result.Fields{"lasted_s": ended.Sub(begun).Seconds(), "activators_lost": len(activators)}
	for _, t := range b.targets {
		report := probers[t.name].Stop()
		last := lastFailed(report, begun, ended)
		replaced := pods[t.name].After(begun, t.pods+1)
		fields := result.Fields{"service": t.name, "sent": report.Sent, "failed": report.Failed, "skipped": report.Skipped,
			"last_failed_s": last, "replaced_s": replaced}
		if len(report.Failures) > 0 {
			fields["first_failure"] = report.Failures[0].String()
		}
		if e := out.Line(fields); e != nil {
			return nil, e
		}
		row := rowOf(t)
		rows[row+"_failed"], rows[row+"_last_failed_s"], rows[row+"_replaced_s"] = report.Failed, last, replaced
	}
	all.Wait()
	for i, t := range b.targets {
		if t.pods == 1 {
			rows[rowOf(t)+"_pod_answered_s"] = first[i]
		}
	}
	zero := 0.0
	for i, reply := range replies {
		fields := result.Fields{"service": "zero", "called_s": wakes[i].Seconds(), "answered": reply.OK(), "took_s": reply.Took.Seconds()}
		if !reply.OK() {
			zero = wakes[i].Seconds()
			fields["failure"] = reply.String()
		}
		if e := out.Line(fields); e != nil {
			return nil, e
		}
	}
	rows["zero_s"] = zero
	if len(leaders) > 0 {
		rows["leader_s"] = leads
	}
	return rows, err
}

// rowOf is the beginning of the names of a service's rows.
func rowOf(t target) string { return strings.ReplaceAll(t.name, "-", "_") }

// another is when a pod other than the one that was there gave the first answer, nil if none did.
func another(ctx context.Context, client *http.Client, url, pod string, begun time.Time) any {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	at := make(chan time.Time, 1)
	var open sync.WaitGroup
	defer open.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case first := <-at:
			return first.Sub(begun).Seconds()
		case <-tick.C:
		}
		open.Go(func() {
			reply := probe.Get(ctx, client, url)
			if from := reply.Header.Get("X-Pod-Name"); !reply.OK() || from == "" || from == pod {
				return
			}
			select {
			case at <- reply.Sent.Add(reply.Took):
			default: // one that was earlier, or at the same time
			}
		})
	}
}

// lastFailed is when the last request that failed was sent, 0 if none failed, nil if they still
// fail.
func lastFailed(report probe.Report, begun, ended time.Time) any {
	last := begun
	for _, lost := range report.Lost {
		if lost.From.After(last) {
			last = lost.From
		}
	}
	if last.After(ended.Add(-tooLate)) {
		return nil
	}
	return last.Sub(begun).Seconds()
}
