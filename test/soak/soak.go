package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"ebb.dev/ebb/test/internal/faults"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

// prepare makes a cluster that may lose nothing: alone, an activator that ends leaves nobody to
// send new requests to. No fault of a node ends the gateways, nor what there is one of.
func (s *soak) prepare(ctx context.Context, nodes faults.Nodes, list []faults.Fault) error {
	activators := 2
	if slices.ContainsFunc(list, func(f faults.Fault) bool { return f.Node }) {
		activators = len(nodes.All)
		if err := nodes.Clear(ctx, nodes.Spare()...); err != nil {
			return err
		}
	}
	if s.OneProcess() {
		return nil
	}
	restore, err := s.ScaleActivators(ctx, int32(activators))
	if restore != nil {
		s.Undo = append(s.Undo, restore)
	}
	return err
}

type soak struct {
	*trial.Place
	out          *result.Printer
	lasts, every time.Duration
	breaks       string
	longest      time.Duration
	rps          int
	image        string
	seed         uint64
	random       *rand.Rand
	rollouts     int
	hit          faults.Hit // of the last fault of a node
}

func (s *soak) run(ctx context.Context) (err error) {
	set, list := faults.Set{Cluster: s.Cluster, Namespace: s.Namespace, Longest: s.longest, Image: s.image}, []faults.Fault(nil)
	if s.breaks != "" {
		if set.Nodes, err = faults.NodesOf(ctx, s.Cluster); err != nil {
			return err
		}
		set.Ends = set.Nodes.Spare()
		set.Hit = func(h faults.Hit) { s.hit = h }
		if list, err = set.Choose(s.breaks); err != nil {
			return err
		}
		if err := s.prepare(ctx, set.Nodes, list); err != nil {
			return err
		}
	}
	probers := map[string]*probe.Prober{}
	began := map[string]time.Time{}
	var counts rude
	harassing, calm := context.WithCancel(ctx)
	defer calm()
	var harassed sync.WaitGroup
	for i, service := range services {
		url, err := s.apply(ctx, service)
		if err != nil {
			return err
		}
		began[service.name] = time.Now()
		probers[service.name] = probe.StartTagged(s.Client(time.Minute), url+service.query, s.interval(service), service.most, bodySize)
		if service.every == 0 { // the others' pods are to sleep
			harassed.Go(func() { s.harass(harassing, url, uint64(i), &counts) })
		}
	}
	watching, stopWatching := context.WithCancel(context.Background())
	defer stopWatching()
	var watched sync.WaitGroup
	watched.Go(func() { s.progress(watching, probers) })
	var disturbed, allowed int
	var lossy []probe.Span
	var disturbErr error
	if len(list) > 0 {
		disturbed, lossy, disturbErr = s.breakAll(ctx, set, list, probers)
	} else {
		disturbed, disturbErr = s.disturb(ctx)
	}
	calm()
	harassed.Wait()
	sent, failed, resets, skipped, stray := 0, 0, 0, 0, 0
	p99, longest := 0.0, time.Duration(0)
	pace := pace{asked: float64(s.rps)}
	for name, prober := range probers {
		lasted := time.Since(began[name])
		longest = max(longest, lasted)
		report := prober.Stop()
		pace.add(report, lasted)
		allowed += excused(report, lossy)
		sent, failed, resets, skipped = sent+report.Sent, failed+report.Failed, resets+report.Resets, skipped+report.Skipped
		stray += report.Stray
		p99 = max(p99, result.Milliseconds(report.Quantile(0.99)))
		line := result.Fields{"service": name, "requests": report.Sent, "failed": report.Failed, "resets": report.Resets, "stray": report.Stray, "not_sent": report.Skipped,
			"p50_ms": result.Milliseconds(report.Quantile(0.5)), "p99_ms": result.Milliseconds(report.Quantile(0.99)),
			"slowest_ms": result.Milliseconds(report.Slowest.Took), "slowest_sent": report.Slowest.Sent.UTC().Format("15:04:05.000")}
		if err := s.out.Line(line); err != nil {
			return err
		}
	}
	stopWatching()
	watched.Wait()
	if err := s.out.Summary(result.Fields{"requests": sent, "failed": failed, "may_be_lost": allowed, "resets": resets, "stray": stray, "not_sent": skipped, "p99_ms": p99,
		"left_early": counts.left.Load(), "left_unread": counts.unread.Load(), "heads_with_body": counts.heads.Load(),
		"achieved_rps": math.Round(pace.achieved), "disturbances": disturbed, "seed": s.seed, "seconds": math.Round(longest.Seconds())}); err != nil {
		return err
	}
	if failed > allowed {
		disturbErr = errors.Join(disturbErr, fmt.Errorf("%d of %d requests did not get a 2xx, %d of which may be lost", failed, sent, allowed))
	}
	if stray > 0 {
		disturbErr = errors.Join(disturbErr, fmt.Errorf("%d of %d requests got an answer that is not their own; no fault excuses that", stray, sent))
	}
	return errors.Join(disturbErr, pace.err())
}
