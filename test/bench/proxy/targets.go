package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/internal/testing/process"
	"ebb.dev/ebb/test/internal/envoy"
	"ebb.dev/ebb/test/internal/loopback"
	"ebb.dev/ebb/test/internal/nginx"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/wire"
)

// target is where requests are sent and whose CPU time is counted. The target direct has no
// process.
type target struct {
	name       string
	http, grpc string
	headers    string    // additional header lines of the requests
	behind     []*target // other processes that every request passes; their CPU counts here, and they are stopped separately
	process    *process.Process
	listened   time.Duration // from the start until the first address accepts
}

const tick = 10 * time.Millisecond // of /proc/<pid>/stat: USER_HZ is 100 on Linux

func (t *target) cpu() time.Duration {
	var further time.Duration
	for _, b := range t.behind {
		further += b.cpu()
	}
	if t.process == nil {
		return further
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", t.process.Process.Pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system)*tick + further
}

// rss is in MiB.
func (t *target) rss() float64 {
	further := 0.0
	for _, b := range t.behind {
		further += b.rss()
	}
	if t.process == nil {
		return further
	}
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", t.process.Process.Pid))
	for text := range strings.Lines(string(data)) {
		if kib, ok := strings.CutPrefix(text, "VmRSS:"); ok {
			n, _ := strconv.Atoi(strings.Fields(kib)[0])
			return float64(n)/1024 + further
		}
	}
	return further
}

type tools struct{ nginx, envoy, queueProxy, activator string }

// build builds queue-proxy and the activator as they are shipped.
func build(ctx context.Context, dir string) (tools, error) {
	t := tools{queueProxy: filepath.Join(dir, "queue-proxy"), activator: filepath.Join(dir, "activator")}
	return t, process.Build(ctx, dir, "queue-proxy", "activator")
}

// find installs the other proxies if they are missing.
func (t *tools) find(ctx context.Context) (err error) {
	if t.nginx, err = nginx.Find(ctx); err != nil {
		return err
	}
	t.envoy, err = envoy.Find(ctx)
	return err
}

// startAll starts every proxy. If another process took a port meanwhile, it tries again with
// others.
func startAll(ctx context.Context, dir string, tools tools, b *backend) ([]*target, error) {
	targets := []*target{{name: "direct", http: b.http, grpc: b.grpc}}
	starts := []func() (*target, error){
		func() (*target, error) { return startNginx(ctx, dir, tools.nginx, b) },
		func() (*target, error) { return startEnvoy(ctx, dir, tools.envoy, b) },
		func() (*target, error) {
			return startQueueProxy(ctx, tools.queueProxy, "queue-proxy", 0, b.http, benchRevision)
		},
		func() (*target, error) {
			return startQueueProxy(ctx, tools.queueProxy, "queue-proxy-limit-100", 100, b.http, benchRevision)
		},
		// It is a process of its own, because it is in front of another container. Its HTTP/1.1 is
		// not measured.
		func() (*target, error) {
			t, err := startQueueProxy(ctx, tools.queueProxy, "queue-proxy-grpc", 0, b.grpc, benchRevision)
			if err == nil {
				t.http, t.grpc = "", t.http
			}
			return t, err
		},
	}
	for _, start := range starts {
		var err error
		for range 3 {
			var t *target
			if t, err = start(); err == nil {
				targets = append(targets, t)
				break
			}
		}
		if err != nil {
			return targets, err
		}
	}
	return targets, nil
}

func startNginx(ctx context.Context, dir, path string, b *backend) (*target, error) {
	addr := fmt.Sprintf("127.0.0.1:%d", freePort())
	arguments, err := nginx.Arguments(dir, addr, b.http)
	if err != nil {
		return nil, err
	}
	t, err := launch(ctx, "nginx", path, arguments, nil, addr)
	if err == nil {
		t.http = addr
	}
	return t, err
}

func startEnvoy(ctx context.Context, dir, path string, b *backend) (*target, error) {
	httpAddr, grpcAddr := fmt.Sprintf("127.0.0.1:%d", freePort()), fmt.Sprintf("127.0.0.1:%d", freePort())
	arguments, err := envoy.Arguments(dir, envoy.Proxy{Listen: httpAddr, Upstream: b.http}, envoy.Proxy{Listen: grpcAddr, Upstream: b.grpc, HTTP2: true})
	if err != nil {
		return nil, err
	}
	t, err := launch(ctx, "envoy", path, arguments, nil, httpAddr, grpcAddr)
	if err == nil {
		t.http, t.grpc = httpAddr, grpcAddr
	}
	return t, err
}

// queueProxyPorts are the ports that one queue-proxy opens, in this order.
type queueProxyPorts struct{ data, drain, stat, metrics int }

func newQueueProxyPorts() queueProxyPorts {
	return queueProxyPorts{freePort(), freePort(), freePort(), freePort()}
}

func (p queueProxyPorts) addresses() (all []string) {
	for _, port := range []int{p.data, p.drain, p.stat, p.metrics} {
		all = append(all, fmt.Sprintf("127.0.0.1:%d", port))
	}
	return all
}

// benchRevision is the revision of a queue-proxy that is measured alone.
const benchRevision = "bench-00001"

func queueProxyEnv(p queueProxyPorts, limit int, user, revision string) []string {
	told := wire.NewSidecar()
	told.Namespace, told.Service, told.Configuration, told.Revision, told.Pod = loopback.Namespace, "bench", "bench", revision, "bench"
	told.PodIP, told.Token = netip.MustParseAddr("127.0.0.1"), "bench"
	told.Port, told.DrainPort, told.StatPort, told.MetricsPort = p.data, p.drain, p.stat, p.metrics
	told.UserPort = int(netip.MustParseAddrPort(user).Port())
	told.Limits = wire.Limits{Concurrency: limit, Timeout: 300 * time.Second, ResponseStartTimeout: 300 * time.Second}
	told.Observability.RequestMetrics.Protocol = "prometheus"
	return told.Env()
}

// startQueueProxy starts a queue-proxy with its defaults (metrics, timers) and the given limit.
func startQueueProxy(ctx context.Context, path, name string, limit int, user, revision string) (*target, error) {
	p := newQueueProxyPorts()
	t, err := launch(ctx, name, path, nil, queueProxyEnv(p, limit, user, revision), p.addresses()...)
	if err == nil {
		t.http = p.addresses()[0]
		time.Sleep(300 * time.Millisecond) // wait until it is idle before reading its memory
	}
	return t, err
}

// listenTime returns the median time in ms from exec until the data port accepts.
func listenTime(ctx context.Context, _, path, user string) (float64, error) {
	var times []float64
	for range 7 {
		p := newQueueProxyPorts()
		t, err := launch(ctx, "queue-proxy", path, nil, queueProxyEnv(p, 0, user, benchRevision), p.addresses()...)
		if err != nil {
			return 0, err
		}
		times = append(times, float64(t.listened.Microseconds())/1000)
		stopAll([]*target{t})
	}
	return result.Median(times), nil
}

// atRest prints what queue-proxy uses before any request: memory, disk, and the time to its first
// connection.
func atRest(ctx context.Context, dir string, tools tools, targets []*target, b *backend) (result.Fields, error) {
	summary := result.Fields{}
	for _, t := range targets {
		if t.name == "queue-proxy" {
			summary["queue_proxy_rss_idle_mib"] = t.rss()
		}
	}
	if info, err := os.Stat(tools.queueProxy); err == nil {
		summary["queue_proxy_binary_mib"] = float64(info.Size()) / (1 << 20)
	}
	listen, err := listenTime(ctx, dir, tools.queueProxy, b.http)
	summary["queue_proxy_listen_ms"] = listen
	return summary, err
}
