// Command autoscaler measures what the autoscaler costs at the size of a large cluster, without one: it builds the
// autoscaler, runs it against an API server of its own that only holds what the autoscaler reads, lets pods on the
// loopback answer scrapes, and reports the rest of the load as activators do.
//
//	go run ./test/bench/autoscaler [-revisions 10000] [-pods 3] [-scraped 4000] [-lasts 30s]
//
// Each of the scraped revisions needs a connection per pod; the number of open files a process may have bounds them.
// The figures are the autoscaler's process alone: CPU from /proc, memory from /proc, and the time from a stat's
// arrival to the decision that counts it from its own histogram (the upper bound of the bucket that holds the quantile).
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/wire"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	b := bench{out: &result.Printer{Bench: "autoscaler", Out: os.Stdout}}
	flag.IntVar(&b.revisions, "revisions", 10_000, "revisions")
	flag.IntVar(&b.pods, "pods", 3, "pods of each revision")
	flag.IntVar(&b.scraped, "scraped", 4_000, "revisions whose pods are scraped; the others' stats are POSTed")
	flag.DurationVar(&b.lasts, "lasts", 30*time.Second, "how long to measure")
	flag.Parse()
	if err := b.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench autoscaler:", err)
		os.Exit(1)
	}
}

type bench struct {
	out                      *result.Printer
	revisions, pods, scraped int
	lasts                    time.Duration
}

// scrapePort is where the pods answer; the autoscaler's own metrics have the usual port.
const scrapePort = 9190

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

// settle is how long the load runs before it is measured: a stable window, so that the averages are what they stay.
const settle = 20 * time.Second

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// ready waits until the autoscaler knows everything and owns its bucket.
func (b *bench) ready(ctx context.Context) error {
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
		response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s%s/%s", wire.PortStats, wire.PathDecisions, "bench", revision(b.revisions-1)))
		if err != nil {
			continue
		}
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return nil
		}
	}
	return fmt.Errorf("the autoscaler does not decide for %s after two minutes", revision(b.revisions-1))
}

func revision(i int) string { return fmt.Sprintf("hello-%05d", i) }

func podName(revision, pod int) string {
	return fmt.Sprintf("hello-%05d-deployment-%04x", revision, pod)
}

// address is the pod's own on the loopback, from 127.1.0.0 on.
func address(n int) string { return fmt.Sprintf("127.%d.%d.%d", 1+n>>16, n>>8&255, n&255) }

func number(address string) int {
	var a, b, c int
	if _, err := fmt.Sscanf(strings.TrimPrefix(address, "127."), "%d.%d.%d", &a, &b, &c); err != nil {
		return -1
	}
	return (a-1)<<16 | b<<8 | c
}
