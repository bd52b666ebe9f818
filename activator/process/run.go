// Package process is the activator as one process, or as a part of one.
package process

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"ebb.dev/ebb/activator/internal/identity"
	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/internal/rewatch"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/secretvalue"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// Run is the activator until ctx is done. env is its environment.
func Run(ctx context.Context, env func(string) string, stdout io.Writer) error {
	options, err := readOptions(env)
	if err != nil {
		return err
	}
	ports, err := telemetry.ReadPorts(env)
	if err != nil {
		return err
	}
	log, level := telemetry.NewLogger(stdout, "activator")
	// Outside a pod (benchmarks, debugging) KUBECONFIG says where the cluster is.
	config, err := clientcmd.BuildConfigFromFlags("", env("KUBECONFIG"))
	if err != nil {
		return fmt.Errorf("read the cluster's access: %w", err)
	}
	rewatch.Soon(config)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("build client: %w", err)
	}
	// Ebb's own kinds have no protobuf encoding, so the client asks for JSON.
	ebb, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("build client: %w", err)
	}
	store := settings.NewStore(nil)
	if err := settings.Watch(ctx, kube, options.namespace, store, log); err != nil {
		return err
	}
	secret, err := secretvalue.Watch(ctx, kube, options.namespace, wire.TokenSecret)
	if err != nil {
		return err
	}
	who, err := identity.Watch(ctx, kube, options.namespace, log)
	if err != nil {
		return err
	}
	a, err := build(options, kube, ebb, store, func() wire.Keys { return wire.KeysOf(secret.Load()) }, who, stdout, log)
	if err != nil {
		return err
	}
	profiling := func() bool { return store.Load().Observability.RuntimeProfiling }
	observe := http.NewServeMux()
	observe.Handle(wire.PathMetrics, telemetry.Metrics(a.registry))
	log.Info("activator is built", "version", version.Version, "pod", options.pod, "autoscaler", a.report.URL, "bounds", options.bounds)
	return run.All(ctx,
		run.Part{Name: "log level", Run: store.FollowLevel("activator", level)},
		telemetry.Server("profiles", ports.Address(ports.Profiling), telemetry.Profiles(profiling)),
		telemetry.Server("metrics", ports.Address(ports.Metrics), observe),
		telemetry.Exporter("activator", options.namespace, options.pod, a.registry, log, store.MetricsExport),
		run.Part{Name: "request log and spans", Run: a.observe.Run},
		run.Part{Name: "report", Run: func(ctx context.Context) error { return a.report.Run(ctx, a.table) }},
		run.Part{Name: "cold starts", Run: a.coldStarts.Run},
		run.Part{Name: "incidents", Run: a.incidents.Run},
		run.Part{Name: "probe", Run: func(ctx context.Context) error { return a.probe.Run(ctx, a.table) }},
		run.Part{Name: "watch", Run: a.watch.Run},
		telemetry.Server("announcements", options.listen(wire.PortAnnounce), a.announce),
		run.Part{Name: "requests", Run: a.serve.Run}, // last, so that it stops first
	)
}
