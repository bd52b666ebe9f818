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

	"ebb.dev/ebb/internal/testing/process"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/shipped"
)

// autoscaler is the process under test.
type autoscaler struct {
	*process.Process
	memory string // its GOMEMLIMIT
}

// start runs the autoscaler against the API server at api. It builds it first unless a binary was
// given.
func (b *bench) start(ctx context.Context, dir string, api net.Addr) (*autoscaler, error) {
	binary := b.binary
	if binary == "" {
		binary = filepath.Join(dir, "autoscaler")
		if err := process.Build(ctx, dir, "autoscaler"); err != nil {
			return nil, err
		}
	}
	memory, err := shipped.MemoryLimit(shipped.Autoscaler)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(config, fmt.Appendf(nil, "apiVersion: v1\nkind: Config\nclusters: [{name: x, cluster: {server: \"http://%s\"}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\nusers: [{name: x}]\ncurrent-context: x\n", api), 0o600); err != nil {
		return nil, err
	}
	p, err := process.Start(exec.CommandContext(ctx, binary), "KUBECONFIG="+config, "SYSTEM_NAMESPACE="+namespace, "POD_NAME=autoscaler-bench",
		"POD_IP="+autoscalerIP, "EBB_LISTEN_IP="+autoscalerIP, fmt.Sprintf("EBB_SCRAPE_PORT=%d", scrapePort), "GOMEMLIMIT="+memory)
	return &autoscaler{p, memory}, err
}

func (b *bench) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dir, err := os.MkdirTemp("", "bench-autoscaler")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
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

	a, err := b.start(ctx, dir, api.Addr())
	if err != nil {
		return err
	}
	defer a.Finish(syscall.SIGTERM)
	defer cancel()
	began := time.Now()
	if err := b.ready(ctx); err != nil {
		return fmt.Errorf("%w; it logged:\n%.4000s", err, a.Output())
	}
	if err := b.out.Line(result.Fields{"phase": "start", "revisions": b.revisions, "pods": b.revisions * b.pods, "seconds": time.Since(began).Seconds()}); err != nil {
		return err
	}
	var sent posted
	go b.post(ctx, &sent)
	if err := pause(ctx, settle); err != nil {
		return err
	}
	return b.measure(ctx, a, world, pods, &sent)
}

// measure takes two readings, b.lasts apart, and prints the difference.
func (b *bench) measure(ctx context.Context, a *autoscaler, world *world, pods *pods, sent *posted) error {
	// Read the generator's own counts first: fetching the metrics takes a while.
	count := func() counts {
		return counts{scrapes: pods.scrapes.Load(), taken: sent.taken.Load(), offered: sent.offered.Load(), late: sent.late.Load(), own: own()}
	}
	countedBefore := count()
	before, err := read(a.Process.Process.Pid)
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
	after, err := read(a.Process.Process.Pid)
	if err != nil {
		return err
	}
	seconds := after.at.Sub(before.at).Seconds()
	perSecond := func(now, before int64) float64 { return float64(now-before) / seconds }
	scrapes, taken := perSecond(counted.scrapes, countedBefore.scrapes), perSecond(counted.taken, countedBefore.taken)
	if err := <-profiled; err != nil {
		return err
	}
	decided := after.decisions(before)
	if err := b.out.Line(result.Fields{"phase": "measure", "scrapes_per_s": scrapes, "posted_per_s": taken,
		"offered_posts_per_s": perSecond(counted.offered, countedBefore.offered), "late_posts_per_s": perSecond(counted.late, countedBefore.late),
		"generator_cores": (counted.own - countedBefore.own).Seconds() / seconds, "counted_per_s": float64(decided.total) / seconds,
		"p50_ms": decided.quantile(0.5), "rss_mib": after.rss, "rss_peak_mib": after.peak, "gomemlimit": a.memory,
		"scale_writes": world.writes.Load(), "status_writes": world.statuses.Load()}); err != nil {
		return err
	}
	return b.out.Summary(result.Fields{"revisions": b.revisions, "stats_per_s": scrapes + taken,
		"cores": (after.cpu - before.cpu).Seconds() / seconds, "anon_mib": after.anon, "p99_ms": decided.quantile(0.99)})
}
