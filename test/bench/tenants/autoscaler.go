package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"ebb.dev/ebb/internal/testing/process"
	"ebb.dev/ebb/test/internal/loopback"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/shipped"
	"ebb.dev/ebb/wire"
)

// wakeEvery is how often one of the steady tenant's services is asked for while it has no pod.
const wakeEvery = 50 * time.Millisecond

// measureAutoscaler measures what floods of stats cost another tenant: the time from an activator's
// word that a request waits for a service without pods to the scale that the autoscaler writes.
func (b *bench) measureAutoscaler(ctx context.Context, dir string, cluster *loopback.Cluster) (result.Fields, error) {
	limit, err := shipped.ContainerMemory(shipped.Autoscaler)
	if err != nil {
		return nil, err
	}
	services := int(b.lasts / wakeEvery)
	for i := range 2 * services {
		if err := cluster.Asleep(steadyNamespace, service(i)); err != nil {
			return nil, err
		}
	}
	if err := cluster.Asleep(floodNamespace, floodRevision); err != nil {
		return nil, err
	}
	s := &system{}
	defer s.stop()
	if err := s.startAutoscaler(ctx, dir, cluster, service(2*services-1)); err != nil {
		return nil, err
	}
	alone := s.wake(ctx, cluster, 0, services)
	if err := b.out.Line(alone.line("autoscaler_alone")); err != nil {
		return nil, err
	}
	flood, err := s.startFlood(roleStats, b)
	if err != nil {
		return nil, err
	}
	before := cpu(s.Process)
	beside := s.wake(ctx, cluster, services, 2*services)
	fields := beside.line("autoscaler_beside_flood")
	fields["autoscaler_cores"] = (cpu(s.Process) - before) / b.lasts.Seconds()
	if err := b.endFlood(flood, s, fields); err != nil {
		return nil, err
	}
	return result.Fields{"decision_p99_alone_ms": alone.p99(), "decision_p99_beside_flood_ms": beside.p99(), "decisions_failed": beside.failed,
		"autoscaler_rss_peak_mib": memory(s.Process, "VmHWM"), "autoscaler_limit_mib": float64(limit) / (1 << 20)}, nil
}

func service(i int) string { return fmt.Sprintf("%s-%05d", steadyNamespace, i) }

// startAutoscaler builds and starts the autoscaler, and waits until it decides for a revision.
func (s *system) startAutoscaler(ctx context.Context, dir string, cluster *loopback.Cluster, last string) error {
	if err := process.Build(ctx, dir, "autoscaler"); err != nil {
		return err
	}
	soft, err := shipped.MemoryLimit(shipped.Autoscaler)
	if err != nil {
		return err
	}
	s.ip = fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	if s.Process, err = launch([]string{filepath.Join(dir, "autoscaler")}, nil, "KUBECONFIG="+cluster.Kubeconfig,
		"SYSTEM_NAMESPACE="+loopback.SystemNamespace, "POD_NAME=autoscaler-bench", "POD_IP="+s.ip, "EBB_LISTEN_IP="+s.ip, "GOMEMLIMIT="+soft); err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline) && s.Alive() && sleep(ctx, 50*time.Millisecond); {
		response, err := http.Get("http://" + s.stats() + wire.PathViews + "?namespace=" + steadyNamespace + "&service=" + last)
		if err != nil {
			continue
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err == nil && response.StatusCode == http.StatusOK && bytes.Contains(text, []byte(last)) {
			return nil
		}
	}
	return fmt.Errorf("the autoscaler does not decide:%s", logged(s.Process))
}

// stats is the address of the autoscaler's port for stats.
func (s *system) stats() string { return net.JoinHostPort(s.ip, strconv.Itoa(wire.PortStats)) }

// wake asks for the services from one to another, each once, as an activator does.
func (s *system) wake(ctx context.Context, cluster *loopback.Cluster, from, to int) *outcome {
	all := &outcome{}
	var mutex sync.Mutex
	var group sync.WaitGroup
	var signer wire.Signer
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: to - from}}
	defer client.CloseIdleConnections()
	token := wire.Token(loopback.TokenKey, "", wire.ActivatorSubject)
	began := time.Now()
	for i := from; i < to; i++ {
		due := began.Add(time.Duration(i-from) * wakeEvery)
		if !sleep(ctx, time.Until(due)) {
			break
		}
		group.Go(func() {
			err := s.wakeOne(ctx, cluster, client, &signer, token, service(i))
			mutex.Lock()
			defer mutex.Unlock()
			if err != nil {
				all.failed, all.last = all.failed+1, err
				return
			}
			all.ms = append(all.ms, result.Milliseconds(time.Since(due)))
		})
	}
	group.Wait()
	return all
}

func (s *system) wakeOne(ctx context.Context, cluster *loopback.Cluster, client *http.Client, signer *wire.Signer, token, revision string) error {
	body := wire.EncodeStats([]wire.StatMessage{{Namespace: steadyNamespace, Revision: revision,
		Stat: wire.Stat{PodName: "activator-bench", Timestamp: time.Now().UnixMilli(), AverageConcurrent: 1, Queued: 1, OutOfTurn: true}}})
	status, err := post(ctx, client, signer, "http://"+s.stats()+wire.PathStats, token, body)
	if err != nil {
		return err
	}
	if status != http.StatusNoContent {
		return fmt.Errorf("the stats were answered %d", status)
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && sleep(ctx, time.Millisecond); {
		if cluster.Replicas(steadyNamespace, revision) > 0 {
			return nil
		}
	}
	return fmt.Errorf("revision %s got no pod", revision)
}

// post sends signed stats.
func post(ctx context.Context, client *http.Client, signer *wire.Signer, url, token string, body []byte) (status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	response, err := signer.Do(client, request, token)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}
