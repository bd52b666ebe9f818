package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"

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
	"ebb.dev/ebb/internal/clusterdomain"
	"ebb.dev/ebb/internal/egress"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// options is what the environment says.
type options struct {
	namespace, pod, listenIP string
	autoscaler               string // host:port for stats
	gateway                  string // host:port instead of the local gateway's Service, "" in a pod
	dir                      string // of JetStream
	credentials              string // of the NATS server that exists
}

// readOptions reads the environment: POD_NAME, SYSTEM_NAMESPACE and COURIER_DIR, the directory of
// JetStream; NATS_CREDENTIALS, a file for the server of nats-url, which need not exist. Outside a
// pod LISTEN_IP keeps the ports, which are fixed, to one address; EBB_AUTOSCALER is where stats go
// and COURIER_GATEWAY where calls go (host:port), instead of Services of the cluster.
func readOptions(env func(string) string) (options, error) {
	o := options{namespace: env("SYSTEM_NAMESPACE"), pod: env("POD_NAME"), listenIP: env("LISTEN_IP"), autoscaler: env("EBB_AUTOSCALER"),
		gateway: env("COURIER_GATEWAY"), dir: env("COURIER_DIR"), credentials: env("NATS_CREDENTIALS")}
	if o.namespace == "" || o.pod == "" || o.dir == "" {
		return o, errors.New("environment lacks SYSTEM_NAMESPACE, POD_NAME or COURIER_DIR")
	}
	if o.autoscaler == "" {
		o.autoscaler = fmt.Sprintf("autoscaler.%s.svc.%s.:%d", o.namespace, clusterdomain.Read(), wire.PortStats)
	}
	if _, err := os.Stat(o.credentials); err != nil {
		o.credentials = ""
	}
	return o, nil
}

func (o options) listen(port int) string { return net.JoinHostPort(o.listenIP, strconv.Itoa(port)) }

// courier is the parts of the process.
type courier struct {
	options  options
	settings *settings.Store
	began    settings.Courier
	log      *slog.Logger
	store    *store.Store
	routes   *routes.Table
	accept   *accept.Handler
	deliver  *deliver.Manager
	callback *callback.Caller
	load     *load.Reporter
	tick     *tick.Ticker
	listener net.Listener
	registry *prometheus.Registry
}

// build makes the parts, each after those that it uses.
func build(ctx context.Context, o options, kube kubernetes.Interface, ebb versioned.Interface, s *settings.Store, token func() string, log *slog.Logger) (*courier, error) {
	began := s.Load().Courier
	kept, err := store.Open(ctx, store.Options{Dir: o.dir, URL: began.NATS, Credentials: o.credentials, Bytes: began.Bytes, Queue: began.KeepQueued,
		Results: began.KeepResults, Dead: began.KeepDead, Replicas: int(began.Replicas), Synced: began.Synced, Log: log})
	if err != nil {
		return nil, err
	}
	c := &courier{options: o, settings: s, began: began, log: log, store: kept, registry: telemetry.NewRegistry()}
	c.routes = (&routes.Table{Ebb: ebb, Settings: s, ClusterDomain: clusterdomain.Read()}).Start()
	c.deliver = (&deliver.Manager{Store: kept, Routes: c.routes.Delivery(), Client: toGateway(o.gateway, s, clusterdomain.Read()), Log: log}).Start()
	c.accept = (&accept.Handler{Store: kept, Routes: c.routes.Acceptance(), Queues: c.deliver, Log: log, Now: time.Now}).Start()
	services := &egress.Services{Kube: kube, Server: os.Getenv("KUBERNETES_SERVICE_HOST")}
	c.callback = &callback.Caller{Store: kept, Counts: &c.deliver.Counts, Log: log,
		Allowed: egress.Rule(services.Public).Except(func() []netip.Prefix { return s.Load().Courier.Callbacks }),
		Rules: func() (int, call.Backoff, int) {
			now := s.Load().Courier
			return int(now.Attempts), call.Backoff{First: now.FirstBackoff, Longest: now.LongestBackoff}, int(now.Hops)
		}}
	c.load = &load.Reporter{Pod: o.pod, URL: "http://" + o.autoscaler + wire.PathStats, Token: token, Loads: c.deliver.Loads, Find: c.routes.Find, Log: log}
	c.tick = &tick.Ticker{Store: kept, Queues: c.deliver, Routes: c.routes.All, Most: func() int { return int(s.Load().Courier.QueueCalls) }, Log: log}
	if err := c.registry.Register(&metrics.Sources{Accept: c.accept, Deliver: c.deliver, Load: c.load, Tick: c.tick}); err != nil {
		return nil, err
	}
	if c.listener, err = net.Listen("tcp", o.listen(wire.PortHTTP1)); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return c, nil
}
