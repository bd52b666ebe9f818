// Command courier keeps calls for later: it accepts a request, answers 202, and delivers the
// request to its service when that has room, again until it is answered.
//
// Owns: the calls that it accepted, until they are answered or dead, and the schedules by which
// services are called. Reads: Routes, PodAutoscalers, the config-* ConfigMaps. Writes: calls and
// results to JetStream, requests to the local gateway, results to callbacks, stats to the
// autoscaler. Never: answers 202 for a call that is not kept; sends a call to another service than
// its Route named.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/internal/rewatch"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/secretvalue"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

func main() {
	version.Answer()
	ctx, stop := run.SignalContext(context.Background())
	defer stop()
	if err := start(ctx, os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "courier:", err)
		os.Exit(1)
	}
}

func start(ctx context.Context, env func(string) string, stdout io.Writer) error {
	options, err := readOptions(env)
	if err != nil {
		return err
	}
	log, level := telemetry.NewLogger(stdout, "courier")
	config, err := clientcmd.BuildConfigFromFlags("", env("KUBECONFIG"))
	if err != nil {
		return fmt.Errorf("read the cluster's access: %w", err)
	}
	rewatch.Soon(config)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("build client: %w", err)
	}
	ebb, err := versioned.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("build client: %w", err)
	}
	store := settings.NewStore(nil)
	if err := settings.Watch(ctx, kube, options.namespace, store, log); err != nil {
		return err
	}
	secret, err := secretvalue.Watch(ctx, kube, options.namespace, wire.CourierSecret)
	if err != nil {
		return err
	}
	c, err := build(ctx, options, kube, ebb, store, func() string { return string(secret.Load()[wire.CourierSecretToken]) }, log)
	if err != nil {
		return err
	}
	defer c.store.Close()
	profiling := func() bool { return store.Load().Observability.RuntimeProfiling }
	observe := http.NewServeMux()
	observe.Handle(wire.PathMetrics, telemetry.Metrics(c.registry))
	log.Info("courier is built", "version", version.Version, "pod", options.pod)
	return run.All(ctx,
		run.Part{Name: "log level", Run: store.FollowLevel("courier", level)},
		telemetry.Server("profiles", options.listen(wire.PortProfiling), telemetry.Profiles(profiling)),
		telemetry.Server("metrics", options.listen(wire.PortMetrics), observe),
		telemetry.Exporter("courier", options.namespace, options.pod, c.registry, log, store.MetricsExport),
		run.Part{Name: "settings of the start", Run: c.restart},
		run.Part{Name: "JetStream", Run: c.watchStore},
		run.Part{Name: "routes", Run: c.routes.Run},
		run.Part{Name: "lead", Run: c.lead},
		run.Part{Name: "requests", Run: c.serve}, // last, so that it stops first
	)
}
