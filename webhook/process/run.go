// Package process is the webhook as one process, or as a part of one.
package process

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"ebb.dev/ebb/internal/clusterdomain"
	"ebb.dev/ebb/internal/rewatch"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/webhook/internal/admit"
	"ebb.dev/ebb/webhook/internal/certs"
)

// Run is the webhook until ctx is done. env is its environment.
func Run(ctx context.Context, env func(string) string, stdout io.Writer) error {
	options, err := readOptions(env)
	if err != nil {
		return err
	}
	ports, err := telemetry.ReadPorts(env)
	if err != nil {
		return err
	}
	log, level := telemetry.NewLogger(stdout, "webhook")
	config, err := clientcmd.BuildConfigFromFlags("", env("KUBECONFIG"))
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
		telemetry.Server("profiles", ports.Address(ports.Profiling), telemetry.Profiles(profiling)),
		telemetry.Server("metrics", ports.Address(ports.Metrics), observe),
		telemetry.Exporter("webhook", options.namespace, env("POD_NAME"), registry, log, store.MetricsExport),
		telemetry.Server("probes", ports.Address(ports.Health), probes),
		run.Part{Name: "certificates", Run: keeper.Run},
		run.Part{Name: "admission", Run: serve(ports.Address(options.port), keeper, judge)}, // last, so that it stops first
	)
}
