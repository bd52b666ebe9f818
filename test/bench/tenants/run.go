package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/test/internal/loopback"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/shipped"
	"ebb.dev/ebb/wire"
)

// The two tenants' namespaces and revisions.
const (
	steadyNamespace, steadyRevision = "steady", "steady-00001"
	floodNamespace, floodRevision   = "flood", "flood-00001"
)

// ramp is how long the flood takes to open its connections.
const ramp = 5 * time.Second

func (b *bench) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	allowed, err := files(b.connections)
	if err != nil {
		return err
	}
	// The activator's own bound: two files for each connection, three times that for HTTP/2.
	asked := b.connections
	b.connections = min(b.connections, (allowed-2000)/2*kinds/(kinds+2))
	dir, err := os.MkdirTemp("", "bench-tenants-")
	if err != nil {
		return fmt.Errorf("make a directory for the processes: %w", err)
	}
	defer os.RemoveAll(dir)
	cluster, err := loopback.Start(dir)
	if err != nil {
		return err
	}
	defer cluster.Stop()
	activator, ip, err := start(ctx, dir, cluster)
	if err != nil {
		return err
	}
	defer activator.stop()
	limit, err := shipped.ContainerMemory(shipped.Activator)
	if err != nil {
		return err
	}
	if err := b.out.Line(result.Fields{"phase": "start", "connections_asked": asked, "connections": b.connections,
		"files_allowed": allowed, "rss_mib": activator.memory("VmRSS")}); err != nil {
		return err
	}

	front := net.JoinHostPort(ip, strconv.Itoa(wire.PortHTTP1))
	alone := steady(ctx, front, b.lasts)
	if err := b.out.Line(alone.line("alone")); err != nil {
		return err
	}
	flood := startFlood(ctx, ip, b.connections, b.kind)
	before := activator.cpu()
	beside := steady(ctx, front, b.lasts)
	fields := flood.line()
	fields["activator_cores"] = (activator.cpu() - before) / b.lasts.Seconds()
	cancel()
	flood.done.Wait()
	for name, value := range beside.line("beside_flood") {
		fields[name] = value
	}
	if err := b.out.Line(fields); err != nil {
		return err
	}
	if !activator.alive() {
		return fmt.Errorf("the activator ended:%s", activator.logged())
	}
	return b.out.Summary(result.Fields{"p99_alone_ms": result.Quantile(alone.ms, 0.99), "p99_beside_flood_ms": result.Quantile(beside.ms, 0.99),
		"rss_peak_mib": activator.memory("VmHWM"), "limit_mib": float64(limit) / (1 << 20), "connections": b.connections, "failed": beside.failed})
}

// process is a component that the benchmark started.
type process struct {
	*exec.Cmd
	log   string // the file
	ended chan struct{}
}

func launch(log, path string, args []string, files []*os.File, env ...string) (*process, error) {
	p := &process{Cmd: exec.Command(path, args...), log: log, ended: make(chan struct{})}
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.Env, p.ExtraFiles, p.Stdout, p.Stderr = append(os.Environ(), env...), files, out, out
	if err := p.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	go func() {
		defer close(p.ended)
		p.Wait()
	}()
	return p, nil
}

// logged returns the end of what the process logged.
func (p *process) logged() string {
	text, _ := os.ReadFile(p.log)
	return fmt.Sprintf("\n%s:\n%s", p.Path, text[max(0, len(text)-3000):])
}

func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (p *process) stop() {
	p.Process.Kill()
	<-p.ended
}

// memory returns a field of /proc/PID/status in MiB: VmRSS is now, VmHWM the peak.
func (p *process) memory(field string) float64 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	for text := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(text, field+":"); ok {
			kib, _ := strconv.Atoi(strings.Fields(value)[0])
			return float64(kib) / 1024
		}
	}
	return 0
}

// cpu returns the seconds of CPU time that the process has used.
func (p *process) cpu() float64 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return float64(user+system) / 100 // USER_HZ is 100 on Linux
}

// system is the activator and the processes behind it.
type system struct {
	*process
	behind []*process
}

func (s *system) stop() {
	for _, p := range append([]*process{s.process}, s.behind...) {
		if p != nil {
			p.stop()
		}
	}
}

// start builds and starts the pods of both tenants and the activator, and waits until both answer
// through it.
func start(ctx context.Context, dir string, cluster *loopback.Cluster) (s *system, ip string, err error) {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir+"/", "ebb.dev/ebb/queue-proxy", "ebb.dev/ebb/activator")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, "", fmt.Errorf("build queue-proxy and the activator: %w\n%s", err, out)
	}
	s = &system{}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	steadyPod, err := s.startPod(dir, "steady-pod")
	if err != nil {
		return s, "", err
	}
	floodPod, err := s.startPod(dir, "flood-pod")
	if err != nil {
		return s, "", err
	}
	queue, err := s.startQueueProxy(ctx, dir, steadyPod)
	if err != nil {
		return s, "", err
	}
	if err = cluster.RevisionIn(steadyNamespace, steadyRevision, 0, queue); err != nil {
		return s, "", err
	}
	if err = cluster.RevisionIn(floodNamespace, floodRevision, 0, floodPod); err != nil {
		return s, "", err
	}
	// Its ports are fixed, so it gets an unused loopback address.
	ip = fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	soft, err := shipped.MemoryLimit(shipped.Activator)
	if err != nil {
		return s, "", err
	}
	s.process, err = launch(filepath.Join(dir, "activator.log"), filepath.Join(dir, "activator"), nil, nil, "KUBECONFIG="+cluster.Kubeconfig, "LISTEN_IP="+ip, "POD_IP="+ip,
		"POD_NAME=activator-bench", "EBB_AUTOSCALER="+cluster.Autoscaler, "SYSTEM_NAMESPACE="+loopback.SystemNamespace, "GOMEMLIMIT="+soft)
	if err != nil {
		return s, "", err
	}
	for _, tenant := range [][2]string{{steadyNamespace, steadyRevision}, {floodNamespace, floodRevision}} {
		if err = s.answers(ctx, ip, tenant); err != nil {
			return s, "", err
		}
	}
	return s, ip, nil
}

// startPod starts this program as the container of a tenant and returns its address.
func (s *system) startPod(dir, name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the own program: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return "", err
	}
	defer file.Close()
	p, err := launch(filepath.Join(dir, name+".log"), self, []string{"-pod"}, []*os.File{file})
	if err != nil {
		return "", err
	}
	s.behind = append(s.behind, p)
	return l.Addr().String(), nil
}

// startQueueProxy starts the steady tenant's queue-proxy and returns its address.
func (s *system) startQueueProxy(ctx context.Context, dir, pod string) (string, error) {
	_, port, err := net.SplitHostPort(pod)
	if err != nil {
		return "", err
	}
	p, err := launch(filepath.Join(dir, "queue-proxy.log"), filepath.Join(dir, "queue-proxy"), nil, nil, "SERVING_NAMESPACE="+steadyNamespace,
		"SERVING_REVISION="+steadyRevision, "SERVING_POD=steady", "SERVING_POD_IP=127.0.0.1", "USER_PORT="+port, "QUEUE_SERVING_PORT=0",
		"EBB_DRAIN_PORT=0", "EBB_STAT_PORT=0", "EBB_METRICS_PORT=0", "CONTAINER_CONCURRENCY=0", "REVISION_TIMEOUT_SECONDS=300", "EBB_CERT_DIR=/nowhere")
	if err != nil {
		return "", err
	}
	s.behind = append(s.behind, p)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline) && p.alive() && sleep(ctx, 10*time.Millisecond); {
		text, _ := os.ReadFile(p.log)
		for line := range bytes.Lines(text) {
			var fields struct{ Msg, Message, Address string }
			if json.Unmarshal(line, &fields) == nil && (fields.Msg == "queue-proxy serves" || fields.Message == "queue-proxy serves") {
				_, port, err := net.SplitHostPort(fields.Address)
				return net.JoinHostPort("127.0.0.1", port), err
			}
		}
	}
	return "", fmt.Errorf("queue-proxy does not serve:%s", p.logged())
}

// answers waits until the tenant's revision answers through the activator.
func (s *system) answers(ctx context.Context, ip string, tenant [2]string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(ip, strconv.Itoa(wire.PortHTTP1))+"/", nil)
		if err != nil {
			return err
		}
		request.Header.Set(wire.HeaderNamespace, tenant[0])
		request.Header.Set(wire.HeaderRevision, tenant[1])
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("it answered %s", response.Status)
		}
		if !s.alive() || ctx.Err() != nil {
			text := ""
			for _, p := range append([]*process{s.process}, s.behind...) {
				text += p.logged()
			}
			return fmt.Errorf("revision %s did not answer: %w%s", tenant[1], err, text)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
