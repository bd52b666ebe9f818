// Package process is the controller as one process, or as a part of one.
package process

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"knative.dev/pkg/network"

	"ebb.dev/ebb/controller/internal/certificate"
	"ebb.dev/ebb/controller/internal/configuration"
	"ebb.dev/ebb/controller/internal/digest"
	"ebb.dev/ebb/controller/internal/domainmapping"
	"ebb.dev/ebb/controller/internal/endpoints"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/gc"
	"ebb.dev/ebb/controller/internal/hpa"
	"ebb.dev/ebb/controller/internal/labeler"
	"ebb.dev/ebb/controller/internal/namespace"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/controller/internal/revision"
	"ebb.dev/ebb/controller/internal/route"
	"ebb.dev/ebb/controller/internal/service"
	"ebb.dev/ebb/controller/internal/tokenkey"
	"ebb.dev/ebb/internal/lease"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/settings"
)

// controllers lists the reconcilers, in the order in which a change of a spec passes through them.
func controllers(w *reconcile.World, tokenKey func() []byte) []*reconcile.Controller {
	return []*reconcile.Controller{
		service.New(w),
		configuration.New(w),
		revision.New(w, tokenKey, digest.New(w.Kube, digest.NewWay(w.Kube, os.Getenv))),
		route.New(w),
		domainmapping.New(w),
		gateway.New(w),
		hpa.New(w),
		endpoints.New(w),
		namespace.New(w),
		labeler.New(w),
		gc.New(w),
	}
}

// Run is the controller until ctx is done. env is its environment.
func Run(ctx context.Context, args []string, env func(string) string, stdout io.Writer) error {
	flags := flag.NewFlagSet("controller", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", env("KUBECONFIG"), "path of a kubeconfig; empty: the service account of the pod")
	timeout := flags.Duration("reconciliation-timeout", 30*time.Second, "the longest that one reconcile may take")
	alone := flags.Bool("alone", false, "work without Leases; for a single controller only")
	if err := flags.Parse(args); err != nil {
		return err
	}
	namespace, pod := env("SYSTEM_NAMESPACE"), env("POD_NAME")
	if namespace == "" {
		return fmt.Errorf("SYSTEM_NAMESPACE is not set; it names the namespace that Ebb runs in")
	}
	ports, err := telemetry.ReadPorts(env)
	if err != nil {
		return err
	}
	clients, err := reconcile.Connect(*kubeconfig)
	if err != nil {
		return err
	}
	log, level := telemetry.NewLogger(stdout, "controller")
	store := settings.NewStore(nil)
	if err := settings.Watch(ctx, clients.Kube, namespace, store, log); err != nil {
		return err
	}
	key, err := tokenkey.New(ctx, clients.Kube, namespace, func() time.Duration { return store.Load().Deployment.TokenKeyAge() }, log)
	if err != nil {
		return err
	}
	registry := telemetry.NewRegistry()
	world := reconcile.NewWorld(clients, store, nil, log, namespace, network.GetClusterDomainName())
	defer world.RecordEvents("ebb-controller")()
	registry.MustRegister(telemetry.CertificateEnds(certificate.Soonest(world)))
	list := controllers(world, key.Current)
	var synced atomic.Bool
	options := reconcile.Options{Timeout: *timeout, Identity: pod, Alone: *alone, SettingsWithin: 10 * time.Second,
		Leases: lease.Of(store.Leases("controller", "controller.")), Metrics: reconcile.NewMetrics(registry), Synced: func() { synced.Store(true) }}
	log.Info("controller starts", "version", version.Version, "namespace", namespace, "clusterDomain", world.ClusterDomain, "reconcilers", reconcile.Names(list))
	return run.All(ctx,
		telemetry.Server("metrics", ports.Address(ports.Metrics), telemetry.Metrics(registry)),
		telemetry.Exporter("controller", namespace, pod, registry, log, store.MetricsExport),
		telemetry.Server("profiles", ports.Address(ports.Profiling), telemetry.Profiles(func() bool { return store.Load().Observability.RuntimeProfiling })),
		telemetry.Server("health", ports.Address(ports.Health), reconcile.Health(&synced)),
		run.Part{Name: "log level", Run: store.FollowLevel("controller", level)},
		run.Part{Name: "token key", Run: func(ctx context.Context) error {
			return key.Run(ctx, func() { reconcile.EnqueueAllOf(list, "revision", tokenkey.Within) }) // pods get tokens of the new key
		}},
		run.Part{Name: "reconcilers", Run: func(ctx context.Context) error { return world.Run(ctx, list, options) }},
	)
}
