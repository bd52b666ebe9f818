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

// both is the target whose requests pass the activator and a queue-proxy, as those of a revision
// with little spare capacity do.
const both = "activator+queue-proxy"

// startActivator starts one activator with two revisions, one for each target: the pod of the first
// is the backend itself, the pod of the second a queue-proxy of its own; suffix tells its revisions
// from those of another activator. The targets follow one another, so they may share the activator.
func startActivator(ctx context.Context, tools tools, c *loopback.Cluster, b *backend, suffix string) ([]*target, error) {
	pod, err := startQueueProxy(ctx, tools.queueProxy, "queue-proxy-behind-activator", 0, b.http)
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
	// Its ports are fixed, so an address of loopback that nobody else has keeps it apart from
	// everything else.
	ip := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	addr := net.JoinHostPort(ip, strconv.Itoa(wire.PortHTTP1))
	memory, err := shipped.MemoryLimit(shipped.Activator)
	if err != nil {
		return targets, err
	}
	bare, err := launch(ctx, "activator", tools.activator, nil, []string{"KUBECONFIG=" + c.Kubeconfig, "LISTEN_IP=" + ip, "POD_IP=" + ip,
		"POD_NAME=activator-bench", "EBB_AUTOSCALER=" + c.Autoscaler, "SYSTEM_NAMESPACE=" + loopback.SystemNamespace, "GOMEMLIMIT=" + memory}, addr)
	if err != nil {
		return targets, err
	}
	bare.http, bare.headers = addr, revisionHeaders("bare"+suffix)
	targets = append(targets, bare, &target{name: both, http: addr, headers: revisionHeaders("queued" + suffix), behind: []*target{bare, pod}})
	if err := waitReady(ctx, addr, 15*time.Second); err != nil {
		stopAll([]*target{bare})
		return []*target{pod}, fmt.Errorf("%w\n%s", err, bare.output)
	}
	return targets, nil
}

// revisionHeaders are those with which the gateway names the revision.
func revisionHeaders(revision string) string {
	return wire.HeaderNamespace + ": " + loopback.Namespace + "\r\n" + wire.HeaderRevision + ": " + revision + "\r\n"
}

// waitReady waits until the activator says, as to the kubelet, that it knows the cluster's
// revisions.
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
			err = fmt.Errorf("it answers %s", response.Status)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the activator at %s does not become ready: %w", addr, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
