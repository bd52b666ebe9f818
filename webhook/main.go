// Command webhook defaults and judges what people write into the cluster, before it is stored.
//
// Owns: the certificate it serves with (Secret webhook-certs) and its three registrations. Reads:
// the config-* ConfigMaps. Writes: that Secret and those registrations. Never: decides what is
// right (the rules are in api/ and settings/), or stands in the way of pods: while it is down, what
// is stored keeps running.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"ebb.dev/ebb/internal/clusterdomain"
	"ebb.dev/ebb/internal/rewatch"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/webhook/internal/admit"
	"ebb.dev/ebb/webhook/internal/certs"
)

func main() {
	version.Answer()
	ctx, stop := run.SignalContext(context.Background())
	defer stop()
	if err := start(ctx, os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "webhook:", err)
		os.Exit(1)
	}
}

func start(ctx context.Context, env func(string) string, stdout io.Writer) error {
	options, err := readOptions(env)
	if err != nil {
		return err
	}
	log, level := telemetry.NewLogger(stdout, "webhook")
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("read the cluster's access: %w", err)
	}
	rewatch.Soon(config)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("build client: %w", err)
	}
	// Dry runs have a client of their own, so that many of them do not delay the rest, such as
	// renewing the certificate.
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 50, 100
	dry, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("build client of dry runs: %w", err)
	}
	store := settings.NewStore(nil)
	if err := settings.Watch(ctx, client, options.namespace, store, log); err != nil {
		return err
	}
	registry := telemetry.NewRegistry()
	keeper := certs.New(client, options.namespace, options.service, log)
	registry.MustRegister(telemetry.CertificateEnds(keeper.Ends))
	rules := store.Load
	domain := clusterdomain.Read()
	judge := admit.New(admit.Options{
		Rules:   func() *admit.Rules { return rules().Rules(domain) },
		DryRun:  admit.PodDryRun(dry),
		Metrics: admit.NewMetrics(registry),
		Log:     log,
	})
	probes := http.NewServeMux()
	probes.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	probes.Handle("/readiness", readiness(ctx, keeper))
	observe := http.NewServeMux()
	observe.Handle("/metrics", telemetry.Metrics(registry))
	profiling := func() bool { return store.Load().Observability.RuntimeProfiling }

	log.Info("webhook is built", "version", version.Version, "namespace", options.namespace, "service", options.service, "port", options.port, "clusterDomain", domain)
	return run.All(ctx,
		run.Part{Name: "log level", Run: store.FollowLevel("webhook", level)},
		telemetry.Server("profiles", ":8008", telemetry.Profiles(profiling)),
		telemetry.Server("metrics", ":9090", observe),
		telemetry.Exporter("webhook", options.namespace, env("POD_NAME"), registry, log, store.MetricsExport),
		telemetry.Server("probes", ":8080", probes),
		run.Part{Name: "certificates", Run: keeper.Run},
		run.Part{Name: "admission", Run: serve(options.port, keeper, judge)}, // last, so that it stops first
	)
}
