// Package process is the autoscaler as one process, or as a part of one.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"ebb.dev/ebb/internal/rewatch"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/secretvalue"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// identity is who this process is. Outside a pod listenIP keeps its ports, which are fixed, to one
// address, and scrapePort is the pods' port for stats if not the usual one.
type identity struct{ namespace, pod, ip, listenIP, scrapePort string }

func (i identity) listen(port int) string { return net.JoinHostPort(i.listenIP, strconv.Itoa(port)) }

// Run is the autoscaler until ctx is done. env is its environment.
func Run(ctx context.Context, env func(string) string, stdout io.Writer) error {
	who := identity{namespace: env("SYSTEM_NAMESPACE"), pod: env("POD_NAME"), ip: env("POD_IP"), listenIP: env("LISTEN_IP"), scrapePort: env("SCRAPE_PORT")}
	if who.namespace == "" || who.pod == "" || who.ip == "" {
		return errors.New("environment lacks SYSTEM_NAMESPACE, POD_NAME or POD_IP")
	}
	ports, err := telemetry.ReadPorts(env)
	if err != nil {
		return err
	}
	log, level := telemetry.NewLogger(stdout, "autoscaler")
	// Outside a pod (benchmarks, debugging) KUBECONFIG says where the cluster is.
	config, err := clientcmd.BuildConfigFromFlags("", env("KUBECONFIG"))
	if err != nil {
		return fmt.Errorf("read the cluster's access: %w", err)
	}
	rewatch.Soon(config)
	config.QPS, config.Burst = callsPerSecond, callsAtOnce
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("build client: %w", err)
	}
	store := settings.NewStore(nil)
	if err := settings.Watch(ctx, kube, who.namespace, store, log); err != nil {
		return err
	}
	keys, err := secretvalue.Watch(ctx, kube, who.namespace, wire.TokenSecret)
	if err != nil {
		return err
	}
	p, err := build(config, kube, func() wire.Keys { return wire.KeysOf(keys.Load()) }, store, who, log)
	if err != nil {
		return err
	}
	defer p.events.Shutdown()
	defer p.scraper.Close()
	log.Info("autoscaler is built", "version", version.Version, "pod", who.pod, "buckets", store.Load().LeaderElection.Buckets, "class", store.Load().Autoscaler.Class)

	profiling := func() bool { return store.Load().Observability.RuntimeProfiling }
	observe := http.NewServeMux()
	observe.Handle(wire.PathMetrics, telemetry.Metrics(p.metrics))
	return run.All(ctx,
		run.Part{Name: "log level", Run: store.FollowLevel("autoscaler", level)},
		telemetry.Server("profiles", ports.Address(ports.Profiling), telemetry.Profiles(profiling)),
		telemetry.Server("metrics", ports.Address(ports.Metrics), observe),
		telemetry.Exporter("autoscaler", who.namespace, who.pod, p.metrics, log, store.MetricsExport),
		run.Part{Name: "orders", Run: func(ctx context.Context) error { return p.writer.Run(ctx, p.engine.Found) }},
		run.Part{Name: "decisions", Run: p.engine.Run},
		run.Part{Name: "memory of sleeping pods", Run: p.memory.Run},
		run.Part{Name: "informers", Run: p.follow},
		run.Part{Name: "memory of load", Run: func(ctx context.Context) error { return p.records.Run(ctx, p.engine.Each) }},
		run.Part{Name: "API server's front proxy", Run: p.door.Run},
		run.Part{Name: "certificate of the API", Run: p.keeper.Run},
		run.Part{Name: "API", Run: (&viewServer{p.keeper.Certificate, p.door.Verify, p.view}).listen(who.listen(wire.PortView))},
		run.Part{Name: "streams of the API", Run: p.view.Run}, // they end before their server
		telemetry.Server("stats", who.listen(wire.PortStats), p.stats),
		// Stopping, it gives its leases up, tells its successors what it knows, and forwards to
		// them what still comes here.
		run.Part{Name: "handing over", Run: p.handover.Linger},
		run.Part{Name: "election", Run: p.elect},
	)
}
