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

	world := newWorld(b.revisions, b.pods, b.scraped)
	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: world}
	go server.Serve(api)
	defer server.Close()
	pods, err := net.Listen("tcp", fmt.Sprintf(":%d", scrapePort))
	if err != nil {
		return fmt.Errorf("listen for scrapes: %w", err)
	}
	defer pods.Close()
	go world.answerScrapes(pods)

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
	process.Env = append(os.Environ(), "KUBECONFIG="+config, "SYSTEM_NAMESPACE="+namespace, "POD_NAME=autoscaler-bench", "POD_IP=127.0.0.1",
		fmt.Sprintf("SCRAPE_PORT=%d", scrapePort), "GOMEMLIMIT=360MiB")
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

	sent := make(chan int, 1)
	go func() { sent <- world.report(ctx, b.lasts+settle) }()
	if err := pause(ctx, settle); err != nil {
		return err
	}
	before, err := read(process.Process.Pid)
	if err != nil {
		return err
	}
	scrapesBefore := world.scrapes.Load()
	if err := pause(ctx, b.lasts); err != nil {
		return err
	}
	after, err := read(process.Process.Pid)
	if err != nil {
		return err
	}
	seconds := after.at.Sub(before.at).Seconds()
	scrapes := float64(world.scrapes.Load()-scrapesBefore) / seconds
	posted := float64(<-sent) / (b.lasts + settle).Seconds()
	decided := after.decisions(before)
	if err := b.out.Line(result.Fields{"phase": "measure", "scrapes_per_s": scrapes, "posted_per_s": posted, "counted_per_s": float64(decided.total) / seconds,
		"rss_peak_mib": after.peak, "scale_writes": world.writes.Load(), "status_writes": world.statuses.Load()}); err != nil {
		return err
	}
	return b.out.Summary(result.Fields{"revisions": b.revisions, "stats_per_s": scrapes + posted,
		"cores": (after.cpu - before.cpu).Seconds() / seconds, "rss_mib": after.rss, "p99_ms": decided.quantile(0.99)})
}
