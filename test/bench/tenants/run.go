package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/internal/testing/process"
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
	if err := b.out.Line(result.Fields{"phase": "start", "connections_asked": asked, "connections": b.connections, "files_allowed": allowed}); err != nil {
		return err
	}
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
	summary := result.Fields{}
	for _, part := range []struct {
		name    string
		measure func(context.Context, string, *loopback.Cluster) (result.Fields, error)
	}{{"activator", b.measureActivator}, {"autoscaler", b.measureAutoscaler}} {
		if b.only != "" && b.only != part.name {
			continue
		}
		fields, err := part.measure(ctx, dir, cluster)
		if err != nil {
			return err
		}
		maps.Copy(summary, fields)
	}
	return b.out.Summary(summary)
}

// measureActivator measures what floods of requests cost another tenant.
func (b *bench) measureActivator(ctx context.Context, dir string, cluster *loopback.Cluster) (result.Fields, error) {
	limit, err := shipped.ContainerMemory(shipped.Activator)
	if err != nil {
		return nil, err
	}
	activator, err := start(ctx, dir, cluster)
	if err != nil {
		return nil, err
	}
	defer activator.stop()
	front := net.JoinHostPort(activator.ip, strconv.Itoa(wire.PortHTTP1))
	alone := compare(ctx, front, activator.steady, b.lasts)
	if err := b.out.Line(alone.line("alone")); err != nil {
		return nil, err
	}
	flood, err := activator.startFlood(roleFlood, b)
	if err != nil {
		return nil, err
	}
	kernel, before := kernelMemory(), cpu(activator.Process)
	beside := compare(ctx, front, activator.steady, b.lasts)
	fields := beside.line("beside_flood")
	fields["activator_cores"] = (cpu(activator.Process) - before) / b.lasts.Seconds()
	fields["tcp_peak_mib"] = kernel()
	if err := b.endFlood(flood, activator, fields); err != nil {
		return nil, err
	}
	return result.Fields{"p99_alone_ms": alone.through.p99(), "p99_beside_flood_ms": beside.through.p99(),
		"p99_direct_alone_ms": alone.direct.p99(), "p99_direct_beside_flood_ms": beside.direct.p99(),
		"rss_peak_mib": memory(activator.Process, "VmHWM"), "limit_mib": float64(limit) / (1 << 20), "connections": b.connections, "failed": beside.through.failed}, nil
}

// endFlood ends a flood, prints what it counted with the other fields, and checks that the
// component survived it.
func (b *bench) endFlood(flood *process.Process, s *system, fields result.Fields) error {
	var counts result.Fields
	if err := json.Unmarshal([]byte(finish(flood)), &counts); err != nil {
		return fmt.Errorf("the flood failed: %w%s", err, logged(flood))
	}
	maps.Copy(fields, counts)
	if err := b.out.Line(fields); err != nil {
		return err
	}
	if !s.Alive() {
		return fmt.Errorf("the component ended:%s", logged(s.Process))
	}
	return nil
}

// system is the activator, or the autoscaler, and the processes around it.
type system struct {
	*process.Process
	others []*process.Process
	ip     string // of the activator, or the autoscaler
	steady string // the address of the steady tenant's queue-proxy
}

func (s *system) stop() {
	for _, p := range append([]*process.Process{s.Process}, s.others...) {
		if p != nil {
			p.Stop()
		}
	}
}

// start builds and starts the pods of both tenants and the activator, and waits until both answer
// through it.
func start(ctx context.Context, dir string, cluster *loopback.Cluster) (s *system, err error) {
	if err := process.Build(ctx, dir, "queue-proxy", "activator"); err != nil {
		return nil, err
	}
	s = &system{}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	steadyPod, err := s.startPod(nil)
	if err != nil {
		return s, err
	}
	floodPod, err := s.startPod(polite)
	if err != nil {
		return s, err
	}
	if s.steady, err = s.startQueueProxy(ctx, dir, steadyPod); err != nil {
		return s, err
	}
	if err = cluster.RevisionIn(steadyNamespace, steadyRevision, 0, s.steady); err != nil {
		return s, err
	}
	if err = cluster.RevisionIn(floodNamespace, floodRevision, 0, floodPod); err != nil {
		return s, err
	}
	// Its ports are fixed, so it gets an unused loopback address.
	s.ip = fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	soft, err := shipped.MemoryLimit(shipped.Activator)
	if err != nil {
		return s, err
	}
	s.Process, err = launch([]string{filepath.Join(dir, "activator")}, nil, "KUBECONFIG="+cluster.Kubeconfig, "EBB_LISTEN_IP="+s.ip, "POD_IP="+s.ip,
		"POD_NAME=activator-bench", "EBB_AUTOSCALER="+cluster.Autoscaler, "SYSTEM_NAMESPACE="+loopback.SystemNamespace, "GOMEMLIMIT="+soft)
	if err != nil {
		return s, err
	}
	for _, tenant := range [][2]string{{steadyNamespace, steadyRevision}, {floodNamespace, floodRevision}} {
		if err = s.answers(ctx, tenant); err != nil {
			return s, err
		}
	}
	return s, nil
}

// startFlood starts this program as the hostile tenant's clients.
func (s *system) startFlood(role string, b *bench) (*process.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the own program: %w", err)
	}
	p, err := launch(append(slices.Clone(polite), self, "-role="+role, "-ip="+s.ip,
		"-connections="+strconv.Itoa(b.connections), "-kind="+strconv.Itoa(b.kind)), nil)
	if err == nil {
		s.others = append(s.others, p)
	}
	return p, err
}

// startPod starts this program as the container of a tenant and returns its address.
func (s *system) startPod(priority []string) (string, error) {
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
	p, err := launch(append(slices.Clone(priority), self, "-role="+rolePod), []*os.File{file})
	if err != nil {
		return "", err
	}
	s.others = append(s.others, p)
	return l.Addr().String(), nil
}

// startQueueProxy starts the steady tenant's queue-proxy and returns its address.
func (s *system) startQueueProxy(ctx context.Context, dir, pod string) (string, error) {
	user, err := netip.ParseAddrPort(pod)
	if err != nil {
		return "", err
	}
	told := wire.Sidecar{
		Place: wire.Place{Namespace: steadyNamespace, Revision: steadyRevision, Pod: "steady", PodIP: user.Addr()},
		Ports: wire.Ports{UserPort: int(user.Port())}, Limits: wire.Limits{Timeout: 300 * time.Second}, CertDir: "/nowhere",
	}
	p, err := launch([]string{filepath.Join(dir, "queue-proxy")}, nil, told.Env()...)
	if err != nil {
		return "", err
	}
	s.others = append(s.others, p)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline) && p.Alive() && sleep(ctx, 10*time.Millisecond); {
		for line := range strings.Lines(p.Output()) {
			var fields struct{ Msg, Message, Address string }
			if json.Unmarshal([]byte(line), &fields) == nil && (fields.Msg == "queue-proxy serves" || fields.Message == "queue-proxy serves") {
				_, port, err := net.SplitHostPort(fields.Address)
				return net.JoinHostPort("127.0.0.1", port), err
			}
		}
	}
	return "", fmt.Errorf("queue-proxy does not serve:%s", logged(p))
}

// answers waits until the tenant's revision answers through the activator.
func (s *system) answers(ctx context.Context, tenant [2]string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(s.ip, strconv.Itoa(wire.PortHTTP1))+"/", nil)
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
		if !s.Alive() || ctx.Err() != nil {
			text := ""
			for _, p := range append([]*process.Process{s.Process}, s.others...) {
				text += logged(p)
			}
			return fmt.Errorf("revision %s did not answer: %w%s", tenant[1], err, text)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
