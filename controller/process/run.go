// Package process is the controller as one process, or as a part of one.
//
// Owns: its environment and flag, which reconcilers there are, and the order in which its parts
// start and stop. Reads: the environment. Writes: nothing. Never: decides about an object.
package process

import (
	"context"
	"flag"
	"io"
	"runtime/debug"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/api/names"
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
	"ebb.dev/ebb/controller/internal/resting"
	"ebb.dev/ebb/controller/internal/revision"
	"ebb.dev/ebb/controller/internal/route"
	"ebb.dev/ebb/controller/internal/service"
	"ebb.dev/ebb/controller/internal/tokenkey"
	"ebb.dev/ebb/internal/component"
	"ebb.dev/ebb/internal/lease"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/version"
)

// controllers lists the reconcilers, in the order in which a change of a spec passes through them.
func controllers(mgr *reconcile.Manager, tokenKey func() []byte, registries digest.Options) []*reconcile.Controller {
	withoutNamespaces(mgr)
	seen := resting.NewSeen(mgr)
	return []*reconcile.Controller{
		service.New(mgr),
		configuration.New(mgr),
		revision.New(mgr, tokenKey, digest.New(mgr.Kube, digest.NewWay(mgr.Kube, registries))),
		route.New(mgr, seen),
		domainmapping.New(mgr),
		gateway.New(mgr),
		resting.New(mgr, seen),
		hpa.New(mgr),
		endpoints.New(mgr),
		namespace.New(mgr),
		labeler.New(mgr),
		gc.New(mgr),
	}
}

// withoutNamespaces spares an index by namespace for the kinds of which each service has one, but
// for Revisions, which are listed.
func withoutNamespaces(mgr *reconcile.Manager) {
	serving, made := mgr.EbbInformers.Serving().V1(), mgr.Kubernetes("", revision.Selector)
	published, placeholders := mgr.Kubernetes("", names.ServerlessServiceLabel), mgr.Kubernetes("", names.RouteLabel)
	reconcile.WithoutNamespaces(serving.Services().Informer(), serving.Configurations().Informer(), serving.Routes().Informer(),
		mgr.EbbInformers.Autoscaling().V1alpha1().PodAutoscalers().Informer(), made.Apps().V1().Deployments().Informer(),
		published.Core().V1().Services().Informer(), published.Discovery().V1().EndpointSlices().Informer(), placeholders.Core().V1().Services().Informer())
}

// Run is the controller until ctx is done. env is its environment.
func Run(ctx context.Context, args []string, env func(string) string, stdout io.Writer) error {
	flags := flag.NewFlagSet("controller", flag.ContinueOnError)
	timeout := flags.Duration("reconciliation-timeout", 30*time.Second, "the longest that one reconcile may take")
	if err := flags.Parse(args); err != nil {
		return err
	}
	c := component.New("controller", env, stdout)
	registries := digest.ReadOptions(c.Env)
	if err := c.Start(ctx); err != nil {
		return err
	}
	clients, err := reconcile.ConnectTo(c.Config)
	if err != nil {
		return err
	}
	key, err := tokenkey.New(ctx, clients.Kube, c.Namespace, func() time.Duration { return c.Settings.Load().Deployment.TokenKeyAge() }, c.Log)
	if err != nil {
		return err
	}
	mgr := reconcile.NewManager(clients, c.Settings, nil, c.Log, c.Namespace, c.ClusterDomain)
	defer mgr.RecordEvents("ebb-controller")()
	c.Registry.MustRegister(telemetry.CertificateEnds(certificate.Soonest(mgr)), route.Rollouts(mgr), route.Resting(mgr))
	list := controllers(mgr, key.Current, registries)
	var synced atomic.Bool
	options := reconcile.Options{Timeout: *timeout, Identity: c.Pod, SettingsWithin: 10 * time.Second,
		Leases: c.Settings.Leases("controller", "controller."), Metrics: reconcile.NewMetrics(c.Registry), Synced: func() {
			synced.Store(true)
			debug.FreeOSMemory() // what the lists were decoded with is as much as what is kept of them
		},
		Fate: lease.OfPod(clients.Kube, c.Namespace, func(node string) bool { return mgr.SilentNodes().Has(node) })}
	c.Log.Info("controller starts", "version", version.Version, "namespace", c.Namespace, "clusterDomain", mgr.ClusterDomain, "reconcilers", reconcile.Names(list))
	return c.Run(ctx,
		telemetry.Server("health", c.Address(c.Ports.Health), reconcile.Health(&synced)),
		run.Part{Name: "token key", Run: func(ctx context.Context) error {
			return key.Run(ctx, func() { reconcile.EnqueueAllOf(list, "revision", tokenkey.Within) }) // pods get tokens of the new key
		}},
		run.Part{Name: "reconcilers", Run: func(ctx context.Context) error { return mgr.Run(ctx, list, options) }},
	)
}
