package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	"ebb.dev/ebb/test/internal/loopback"
	"ebb.dev/ebb/test/internal/shipped"
	"ebb.dev/ebb/wire"
)

// both is the target whose requests pass the activator and a queue-proxy, like those of a revision
// with little spare capacity.
const both = "activator+queue-proxy"

// startActivator starts one activator with two revisions, one for each target. The pod of the first
// is the backend itself, the pod of the second is a queue-proxy. The suffix distinguishes its
// revisions from those of another activator. The targets are measured one after another, so they
// can share the activator.
func startActivator(ctx context.Context, tools tools, c *loopback.Cluster, b *backend, suffix string) ([]*target, error) {
	pod, err := startQueueProxy(ctx, tools.queueProxy, "queue-proxy-behind-activator", 0, b.http, "queued"+suffix)
	if err != nil {
		return nil, err
	}
	podAddr := pod.http
	pod.http = "" // measured through the activator only
	targets := []*target{pod}
	for name, addr := range map[string]string{"bare" + suffix: b.http, "queued" + suffix: podAddr} {
		if err := c.Revision(name, 0, addr); err != nil {
			return targets, err
		}
	}
	// Its ports are fixed, so it gets an unused loopback address.
	ip := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	addr := net.JoinHostPort(ip, strconv.Itoa(wire.PortHTTP1))
	memory, err := shipped.MemoryLimit(shipped.Activator)
	if err != nil {
		return targets, err
	}
	bare, err := launch(ctx, "activator", tools.activator, nil, []string{"KUBECONFIG=" + c.Kubeconfig, "EBB_LISTEN_IP=" + ip, "POD_IP=" + ip,
		"LISTEN_IP=" + ip, // of activators that are older than the prefix, with -before
		"POD_NAME=activator-bench", "EBB_AUTOSCALER=" + c.Autoscaler, "SYSTEM_NAMESPACE=" + loopback.SystemNamespace, "GOMEMLIMIT=" + memory}, addr)
	if err != nil {
		return targets, err
	}
	bare.http, bare.headers = addr, revisionHeaders("bare"+suffix)
	targets = append(targets, bare, &target{name: both, http: addr, headers: revisionHeaders("queued" + suffix), behind: []*target{bare, pod}})
	if err := waitReady(ctx, addr, 15*time.Second); err != nil {
		stopAll([]*target{bare})
		return []*target{pod}, fmt.Errorf("%w\n%s", err, bare.process.Output())
	}
	return targets, nil
}

// revisionHeaders returns the headers with which the gateway names the revision.
func revisionHeaders(revision string) string {
	return wire.HeaderNamespace + ": " + loopback.Namespace + "\r\n" + wire.HeaderRevision + ": " + revision + "\r\n"
}

// waitReady waits until the activator's readiness probe succeeds: it knows the cluster's revisions.
func waitReady(ctx context.Context, addr string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+wire.PathHealth, nil)
		if err != nil {
			return err
		}
		request.Header.Set("User-Agent", wire.AgentKubelet+"bench")
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("the probe returned %s", response.Status)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the activator at %s did not become ready: %w", addr, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
