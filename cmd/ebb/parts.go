package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	activator "ebb.dev/ebb/activator/process"
	autoscaler "ebb.dev/ebb/autoscaler/process"
	"ebb.dev/ebb/coap"
	controller "ebb.dev/ebb/controller/process"
	"ebb.dev/ebb/internal/lease"
	"ebb.dev/ebb/internal/rewatch"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/secretvalue"
	"ebb.dev/ebb/internal/telemetry"
	webhook "ebb.dev/ebb/webhook/process"
)

// Components that would listen on the same port have different ones here, which config/edge leads
// their Services to.
var environments = map[string]map[string]string{
	"coap":       {"METRICS_PORT": "9094"},
	"autoscaler": {"METRICS_PORT": "9091", "PROFILING_PORT": "8009"},
	"controller": {"METRICS_PORT": "9092", "PROFILING_PORT": "8010", "HEALTH_PORT": "8081"},
	"webhook":    {"METRICS_PORT": "9093", "PROFILING_PORT": "8011", "HEALTH_PORT": "8082", "WEBHOOK_PORT": "8444"},
}

// with is env with a component's own values before it.
func with(component string, env func(string) string) func(string) string {
	own := environments[component]
	return func(name string) string { return cmp.Or(own[name], env(name)) }
}

// keysSecret holds the keys of CoAP clients, by identity.
const keysSecret = "coap-keys"

func start(ctx context.Context, env func(string) string, stdout io.Writer) error {
	// A component stops as soon as ctx ends, not when its turn comes: the next process is to lead
	// while the activator of this one finishes its requests, which may take minutes. One that ends
	// because the number of buckets changed begins again without the others.
	component := func(name string, of func(ctx context.Context, env func(string) string, stdout io.Writer) error) run.Part {
		return part(name, func(turn context.Context) error {
			both, stop := context.WithCancel(turn)
			defer stop()
			defer context.AfterFunc(ctx, stop)()
			for {
				if err := of(both, with(name, env), stdout); !errors.Is(err, lease.ErrRenamed) {
					return err
				}
			}
		})
	}
	parts := []run.Part{
		component("webhook", webhook.Run),
		component("controller", func(ctx context.Context, env func(string) string, stdout io.Writer) error {
			return controller.Run(ctx, nil, env, stdout)
		}),
		component("autoscaler", autoscaler.Run),
		component("activator", activator.Run),
	}
	if env("COAP_ADDRESS") != "" || env("COAPS_ADDRESS") != "" {
		parts = append(parts, part("CoAP", func(ctx context.Context) error { return serveCoAP(ctx, env, stdout) }))
	}
	return run.All(ctx, parts...)
}

func part(name string, f func(context.Context) error) run.Part { return run.Part{Name: name, Run: f} }

// serveCoAP reads COAP_ADDRESS and COAPS_ADDRESS, where to listen for CoAP over UDP and over DTLS,
// and COAP_GATEWAY, the host and port that requests go to.
func serveCoAP(ctx context.Context, env func(string) string, stdout io.Writer) error {
	gateway, namespace := env("COAP_GATEWAY"), env("SYSTEM_NAMESPACE")
	if _, _, err := net.SplitHostPort(gateway); err != nil {
		return fmt.Errorf("environment COAP_GATEWAY is %q, want the host and port of the gateway: %w", gateway, err)
	}
	ports, err := telemetry.ReadPorts(with("coap", env))
	if err != nil {
		return err
	}
	log, _ := telemetry.NewLogger(stdout, "coap")
	config, err := clientcmd.BuildConfigFromFlags("", env("KUBECONFIG"))
	if err != nil {
		return fmt.Errorf("read the cluster's access: %w", err)
	}
	rewatch.Soon(config)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("build client: %w", err)
	}
	keys, err := secretvalue.Watch(ctx, kube, namespace, keysSecret)
	if err != nil {
		return err
	}
	registry := telemetry.NewRegistry()
	entry, err := coap.New(coap.Options{Plain: env("COAP_ADDRESS"), Secure: env("COAPS_ADDRESS"), Gateway: gateway, Keys: keys.Load, Log: log}, registry)
	if err != nil {
		return err
	}
	log.Info("CoAP entry is built", "udp", env("COAP_ADDRESS"), "dtls", env("COAPS_ADDRESS"), "gateway", gateway, "keys", namespace+"/"+keysSecret)
	return run.All(ctx,
		telemetry.Server("metrics", ports.Address(ports.Metrics), telemetry.Metrics(registry)),
		part("requests", entry.Run),
	)
}
