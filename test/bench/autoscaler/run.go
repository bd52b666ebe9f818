package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/shipped"
)

func (b *bench) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dir, err := os.MkdirTemp("", "bench-autoscaler")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "autoscaler")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "./autoscaler").CombinedOutput(); err != nil {
		return fmt.Errorf("build the autoscaler: %w\n%s", err, out)
	}

	memory, err := shipped.MemoryLimit(shipped.Autoscaler)
	if err != nil {
		return err
	}
	world := newWorld(b)
	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: world}
	go server.Serve(api)
	defer server.Close()
	pods, err := newPods(b.pods)
	if err != nil {
		return err
	}
	defer pods.close()
	go pods.answer()

	config := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(config, fmt.Appendf(nil, "apiVersion: v1\nkind: Config\nclusters: [{name: x, cluster: {server: \"http://%s\"}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\nusers: [{name: x}]\ncurrent-context: x\n", api.Addr()), 0o600); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	process := exec.CommandContext(ctx, binary)
	process.Env = append(os.Environ(), "KUBECONFIG="+config, "SYSTEM_NAMESPACE="+namespace, "POD_NAME=autoscaler-bench", "POD_IP="+autoscalerIP, "LISTEN_IP="+autoscalerIP,
		fmt.Sprintf("SCRAPE_PORT=%d", scrapePort), "GOMEMLIMIT="+memory)
	process.Stdout, process.Stderr = log, log
	process.Cancel = func() error { return process.Process.Signal(syscall.SIGTERM) }
	process.WaitDelay = 10 * time.Second
	if err := process.Start(); err != nil {
		return err
	}
	defer process.Wait()
	defer cancel()
	began := time.Now()
	if err := b.ready(ctx); err != nil {
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%w; it logged:\n%.4000s", err, text)
	}
	if err := b.out.Line(result.Fields{"phase": "start", "revisions": b.revisions, "pods": b.revisions * b.pods, "seconds": time.Since(began).Seconds()}); err != nil {
		return err
	}

	var sent posted
	go b.post(ctx, &sent)
	if err := pause(ctx, settle); err != nil {
		return err
	}
	// The generator's own counts are taken at the beginning of a reading, from which seconds are
	// counted: fetching metrics takes a while.
	count := func() counts {
		return counts{scrapes: pods.scrapes.Load(), taken: sent.taken.Load(), offered: sent.offered.Load(), late: sent.late.Load(), own: own()}
	}
	countedBefore := count()
	before, err := read(process.Process.Pid)
	if err != nil {
		return err
	}
	profiled := make(chan error, 1)
	go func() {
		if b.profile == "" {
			profiled <- nil
			return
		}
		profiled <- b.keepProfile(ctx)
	}()
	if err := pause(ctx, b.lasts); err != nil {
		return err
	}
	counted := count()
	after, err := read(process.Process.Pid)
	if err != nil {
		return err
	}
	seconds := after.at.Sub(before.at).Seconds()
	perSecond := func(now, before int64) float64 { return float64(now-before) / seconds }
	scrapes, taken := perSecond(counted.scrapes, countedBefore.scrapes), perSecond(counted.taken, countedBefore.taken)
	generator := (counted.own - countedBefore.own).Seconds() / seconds
	if err := <-profiled; err != nil {
		return err
	}
	decided := after.decisions(before)
	if err := b.out.Line(result.Fields{"phase": "measure", "scrapes_per_s": scrapes, "posted_per_s": taken,
		"offered_posts_per_s": perSecond(counted.offered, countedBefore.offered), "late_posts_per_s": perSecond(counted.late, countedBefore.late),
		"generator_cores": generator, "counted_per_s": float64(decided.total) / seconds,
		"p50_ms": decided.quantile(0.5), "rss_peak_mib": after.peak, "gomemlimit": memory, "scale_writes": world.writes.Load(), "status_writes": world.statuses.Load()}); err != nil {
		return err
	}
	return b.out.Summary(result.Fields{"revisions": b.revisions, "stats_per_s": scrapes + taken,
		"cores": (after.cpu - before.cpu).Seconds() / seconds, "rss_mib": after.rss, "p99_ms": decided.quantile(0.99)})
}
