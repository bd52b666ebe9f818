package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/courier/internal/accept"
	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/callback"
	"ebb.dev/ebb/courier/internal/deliver"
	"ebb.dev/ebb/courier/internal/load"
	"ebb.dev/ebb/courier/internal/metrics"
	"ebb.dev/ebb/courier/internal/routes"
	"ebb.dev/ebb/courier/internal/store"
	"ebb.dev/ebb/courier/internal/tick"
	"ebb.dev/ebb/internal/component"
	"ebb.dev/ebb/internal/egress"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// options is what the environment says to the courier alone.
type options struct {
	autoscaler  string // host:port for stats
	gateway     string // host:port instead of the local gateway's Service, "" in a pod
	apiServer   string // address of its Service
	dir         string // of JetStream
	credentials string // of the NATS server that exists
}

func readOptions(c *component.Component) options {
	e := c.Env
	o := options{
		autoscaler:  c.Autoscaler(),
		gateway:     e.Text("EBB_COURIER_GATEWAY", "", "Host and port that calls go to, instead of the Service of the local gateway."),
		apiServer:   e.Text("KUBERNETES_SERVICE_HOST", "", "Address of the API server's Service, which nobody may have Ebb call."),
		dir:         e.Needed("EBB_COURIER_DIR", "Directory of JetStream."),
		credentials: e.Text("EBB_NATS_CREDENTIALS", "", "File with the credentials for nats-url of config-courier; it need not exist."),
	}
	if _, err := os.Stat(o.credentials); err != nil {
		o.credentials = ""
	}
	return o
}

// courier is the parts of the process.
type courier struct {
	settings      *settings.Store
	startSettings settings.Courier
	log           *slog.Logger
	store         *store.Store
	routes        *routes.Table
	accept        *accept.Handler
	deliver       *deliver.Manager
	callback      *callback.Caller
	load          *load.Reporter
	tick          *tick.Ticker
	listener      net.Listener
}

// build makes the parts, each after those that it uses.
func build(ctx context.Context, of *component.Component, o options, ebb versioned.Interface, token func() string) (*courier, error) {
	s, log := of.Settings, of.Log
	start := s.Load().Courier
	kept, err := store.Open(ctx, store.Options{Dir: o.dir, URL: start.NATS, Credentials: o.credentials, Bytes: start.Bytes, Queue: start.KeepQueued,
		Results: start.KeepResults, Dead: start.KeepDead, Replicas: int(start.Replicas), Synced: start.Synced, Log: log})
	if err != nil {
		return nil, err
	}
	c := &courier{settings: s, startSettings: start, log: log, store: kept}
	c.routes = routes.New(&routes.Table{Ebb: ebb, Settings: s, ClusterDomain: of.ClusterDomain})
	c.deliver = deliver.New(&deliver.Manager{Store: kept, Routes: c.routes.Delivery(), Client: toGateway(o.gateway, s, of.ClusterDomain), Log: log})
	c.accept = accept.New(&accept.Handler{Store: kept, Routes: c.routes.Acceptance(), Queues: c.deliver, Log: log, Now: time.Now})
	services := &egress.Services{Kube: of.Kube, Server: o.apiServer}
	c.callback = &callback.Caller{Store: kept, Counts: &c.deliver.Counts, Log: log,
		Allowed: egress.Rule(services.Public).Except(func() []netip.Prefix { return s.Load().Courier.Callbacks }),
		Rules: func() (int, call.Backoff, int) {
			now := s.Load().Courier
			return int(now.Attempts), call.Backoff{First: now.FirstBackoff, Max: now.MaxBackoff}, int(now.Hops)
		}}
	c.load = &load.Reporter{Pod: of.Pod, URL: "http://" + o.autoscaler + wire.PathStats, Token: token, Loads: c.deliver.Loads, Find: c.routes.Find, Log: log}
	c.tick = &tick.Ticker{Store: kept, Queues: c.deliver, Routes: c.routes.All, MaxCalls: func() int { return int(s.Load().Courier.QueueCalls) }, Log: log}
	if err := of.Registry.Register(&metrics.Sources{Accept: c.accept, Deliver: c.deliver, Load: c.load, Tick: c.tick}); err != nil {
		return nil, err
	}
	if c.listener, err = net.Listen("tcp", of.Address(wire.PortHTTP1)); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return c, nil
}
