// Command soak keeps several services under load while it disturbs them in the ways that happen in
// a cluster, and counts each request that did not get a 2xx. It prints JSON lines and a summary. It
// exits with status 1 if a request was lost, or if it sent too few to mean anything. Half of the
// requests are POSTs with a body.
//
// Owns: its own namespace. Reads: objects and responses. Writes: Services and annotations of
// Revisions; it deletes pods of these services and of the activator. Never: sends a request twice,
// nor lets net/http do so.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

func main() {
	s := soak{out: &result.Printer{Bench: "soak", Out: os.Stdout}}
	flag.DurationVar(&s.lasts, "lasts", 3*time.Minute, "duration of the load")
	flag.IntVar(&s.rps, "rps", 500, "requests a second, of all services together")
	flag.DurationVar(&s.every, "every", 4*time.Second, "time between two disturbances")
	flag.StringVar(&s.image, "image", "dev.local/ebb-test/autoscale:dev", "the test image autoscale")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of the disturbances; it is printed, to repeat a run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	s.random = rand.New(rand.NewPCG(*seed, 0))
	s.seed = *seed
	if err := s.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		stop()
		os.Exit(1)
	}
}

type soak struct {
	*cluster.Cluster
	out          *result.Printer
	lasts, every time.Duration
	rps          int
	image        string
	seed         uint64
	random       *rand.Rand
	namespace    string
	rollouts     int
}

func (s *soak) run(ctx context.Context) (err error) {
	if s.Cluster, err = cluster.Connect(ctx); err != nil {
		return err
	}
	var undo cluster.Undo
	defer func() { err = errors.Join(err, undo.Run()) }()
	restore, err := s.SetConfig(ctx, "config-autoscaler", map[string]string{"stable-window": "10s", "scale-to-zero-grace-period": "6s"})
	if err != nil {
		return err
	}
	undo = append(undo, restore)
	var remove func(context.Context) error
	if s.namespace, remove, err = s.Namespace(ctx, "soak"); err != nil {
		return err
	}
	undo = append(undo, remove)
	probers := map[string]*probe.Prober{}
	began := map[string]time.Time{}
	for _, service := range services {
		url, err := s.apply(ctx, service)
		if err != nil {
			return err
		}
		interval := time.Duration(float64(time.Second) / (float64(s.rps) * service.share))
		began[service.name] = time.Now()
		probers[service.name] = probe.StartOnce(s.Client(time.Minute), url+service.query, interval, service.most, bodySize)
	}
	watching, stopWatching := context.WithCancel(context.Background())
	defer stopWatching()
	var watched sync.WaitGroup
	watched.Go(func() { s.progress(watching, probers) })
	disturbed, disturbErr := s.disturb(ctx)
	sent, failed, resets, skipped := 0, 0, 0, 0
	p99, longest := 0.0, time.Duration(0)
	pace := pace{asked: float64(s.rps)}
	for name, prober := range probers {
		lasted := time.Since(began[name])
		longest = max(longest, lasted)
		report := prober.Stop()
		pace.add(report, lasted)
		sent, failed, resets, skipped = sent+report.Sent, failed+report.Failed, resets+report.Resets, skipped+report.Skipped
		p99 = max(p99, result.Milliseconds(report.Quantile(0.99)))
		line := result.Fields{"service": name, "requests": report.Sent, "failed": report.Failed, "resets": report.Resets, "not_sent": report.Skipped,
			"p50_ms": result.Milliseconds(report.Quantile(0.5)), "p99_ms": result.Milliseconds(report.Quantile(0.99)),
			"slowest_ms": result.Milliseconds(report.Slowest.Took), "slowest_sent": report.Slowest.Sent.UTC().Format("15:04:05.000")}
		if err := s.out.Line(line); err != nil {
			return err
		}
	}
	stopWatching()
	watched.Wait()
	if err := s.out.Summary(result.Fields{"requests": sent, "failed": failed, "resets": resets, "not_sent": skipped, "p99_ms": p99,
		"achieved_rps": math.Round(pace.achieved), "disturbances": disturbed, "seed": s.seed, "seconds": math.Round(longest.Seconds())}); err != nil {
		return err
	}
	if failed > 0 {
		disturbErr = errors.Join(disturbErr, fmt.Errorf("%d of %d requests did not get a 2xx", failed, sent))
	}
	return errors.Join(disturbErr, pace.err())
}
