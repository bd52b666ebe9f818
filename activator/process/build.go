package process

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"knative.dev/pkg/network"

	"ebb.dev/ebb/activator/internal/announce"
	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/chain"
	"ebb.dev/ebb/activator/internal/coldstart"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/identity"
	"ebb.dev/ebb/activator/internal/incidents"
	"ebb.dev/ebb/activator/internal/metrics"
	"ebb.dev/ebb/activator/internal/observe"
	"ebb.dev/ebb/activator/internal/probe"
	"ebb.dev/ebb/activator/internal/reach"
	"ebb.dev/ebb/activator/internal/report"
	"ebb.dev/ebb/activator/internal/serve"
	"ebb.dev/ebb/activator/internal/watch"
	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/tlsoptions"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// options is what the environment says.
type options struct {
	namespace, pod string
	ip             netip.Addr
	listenIP       string // "" is every address
	autoscaler     string // host:port for stats
	idlePerPod     int    // idle connections kept to one pod
	bounds         hold.Bounds
	tls            *tls.Config // of port 8112, without a certificate
}

const tlsVariables = "ACTIVATOR_TLS_"

// dialTimeout is how long a connection to a pod may take: enough for slow networks, little enough
// that a request that met a dead node goes to another pod soon.
const dialTimeout = time.Second

// readOptions reads the environment: POD_NAME, POD_IP and SYSTEM_NAMESPACE;
// MAX_IDLE_PROXY_CONNS_PER_HOST (100); the limits of requests: HOLD_REQUESTS and HOLD_BYTES for all
// revisions together, HOLD_REQUESTS_PER_REVISION and HOLD_BYTES_PER_REVISION for one
// (hold.Bounds); ACTIVATOR_TLS_MIN_VERSION, _MAX_VERSION, _CIPHER_SUITES and
// _CURVE_PREFERENCES. Outside a pod LISTEN_IP keeps the ports, which are fixed, to one address, and
// EBB_AUTOSCALER is where stats go (host:port) instead of the Service of the namespace.
func readOptions(env func(string) string) (options, error) {
	o := options{namespace: env("SYSTEM_NAMESPACE"), pod: env("POD_NAME"), idlePerPod: 100, tls: &tls.Config{}}
	if o.namespace == "" || o.pod == "" {
		return o, errors.New("environment lacks SYSTEM_NAMESPACE or POD_NAME")
	}
	var err error
	if o.ip, err = netip.ParseAddr(env("POD_IP")); err != nil {
		return o, fmt.Errorf("environment POD_IP: %w", err)
	}
	if o.autoscaler = env("EBB_AUTOSCALER"); o.autoscaler == "" {
		// The dot at the end spares the resolver its search list: one look-up instead of four or
		// five.
		o.autoscaler = fmt.Sprintf("autoscaler.%s.svc.%s.:%d", o.namespace, network.GetClusterDomainName(), wire.PortStats)
	}
	if o.listenIP = env("LISTEN_IP"); o.listenIP != "" {
		if _, err := netip.ParseAddr(o.listenIP); err != nil {
			return o, fmt.Errorf("environment LISTEN_IP: %w", err)
		}
	}
	number := func(name string, into *int64) {
		text := env(name)
		if text == "" {
			return
		}
		n, e := strconv.ParseInt(text, 10, 64)
		if e != nil || n < 1 {
			err = errors.Join(err, fmt.Errorf("environment %s is %q, want a number of at least 1", name, text))
		}
		*into = n
	}
	idle := int64(o.idlePerPod)
	number("MAX_IDLE_PROXY_CONNS_PER_HOST", &idle)
	o.idlePerPod = int(idle)
	number("HOLD_REQUESTS", &o.bounds.Total)
	number("HOLD_BYTES", &o.bounds.TotalBytes)
	number("HOLD_REQUESTS_PER_REVISION", &o.bounds.PerRevision)
	number("HOLD_BYTES_PER_REVISION", &o.bounds.PerRevisionBytes)
	if e := tlsoptions.Read(env, tlsVariables).Apply(o.tls, tlsVariables); e != nil {
		err = errors.Join(err, fmt.Errorf("environment %w", e))
	}
	return o, err
}

// listen is the address to listen on at a port.
func (o options) listen(port int) string { return net.JoinHostPort(o.listenIP, strconv.Itoa(port)) }

// activator is the parts of the process.
type activator struct {
	table    *backends.Table
	watch    *watch.Watch
	report   *report.Reporter
	probe    *probe.Prober
	announce *announce.Server
	serve    *serve.Server
	observe  *observe.Observer
	registry *prometheus.Registry

	coldStarts *coldstart.Accounts
	incidents  *incidents.Teller
}

// newTable makes the table of revisions. A queue that forms is told to the autoscaler, and has pods
// asked that may be ready.
func newTable(o options, budget *hold.Budget, store *settings.Store, who *identity.Identity, reporter *report.Reporter, prober *probe.Prober) *backends.Table {
	// Until an authority is known no pod can have a certificate of it.
	encrypt := func() bool { return store.Load().Network.SystemInternalTLS && who.CanVerify() }
	return backends.NewTable(func(k backends.Key, info *backends.Info) *hold.Queue {
		pods := reach.Options{Encrypt: encrypt, TLS: who.Client(k.Namespace),
			Upstream: forward.UpstreamOptions{MaxIdle: o.idlePerPod, DialTimeout: dialTimeout}}
		return hold.New(info.ContainerConcurrency, budget.Share(k.Namespace), hold.Options{
			Pressure: func(int) {
				reporter.ReportNow(k)
				prober.Want(k)
			},
			Open: func(b hold.Backend) *reach.Pod { return reach.New(b.Address, pods) },
		})
	})
}

// build makes the parts, each after those that it uses.
func build(o options, kube kubernetes.Interface, ebb versioned.Interface, store *settings.Store, keys func() wire.Keys, who *identity.Identity, stdout io.Writer, log *slog.Logger) (*activator, error) {
	mesh := func() bool { return store.Load().Network.MeshAddressing() }
	budget := hold.NewBudget(o.bounds)
	reporter := (&report.Reporter{Pod: o.pod, URL: "http://" + o.autoscaler + wire.PathStats, Keys: keys, Log: log}).Start()
	prober := probe.New(mesh)
	table := newTable(o, budget, store, who, reporter, prober)
	watcher := &watch.Watch{Kube: kube, Ebb: ebb, Table: table, Settings: store, Log: log, Known: make(chan struct{})}
	announcements := &announce.Server{Backends: table, Keys: keys}
	observer := &observe.Observer{Settings: store, Namespace: o.namespace, Pod: o.pod, PodIP: o.ip.String(), Stdout: stdout, Log: log}
	coldStarts := coldstart.New(coldstart.Ask(o.autoscaler, keys))
	told := &incidents.Teller{Pod: o.pod, URL: "http://" + o.autoscaler + wire.PathIncidents, Keys: keys,
		Failed: func(err error) { log.Warn("cold starts and refusals are told later", "error", err) }}
	coldStarts.Told = told.ColdStart
	departure := &serve.Departure{}
	handler := &chain.Handler{
		Table:  table,
		Mesh:   mesh,
		Domain: network.GetClusterDomainName(),
		Self:   netip.AddrPortFrom(o.ip, wire.PortAnnounce).String(),
		Healthy: func() string {
			if departure.Leaving() {
				return "shutting down"
			}
			return ""
		},
		ReportNow:       reporter.ReportNow,
		ColdStartHeader: func() bool { return store.Load().Observability.ColdStartHeader },
		Tracer:          observer.Tracer,
		Ended: func(x *chain.Exchange, r *forward.Request, result *forward.Result) {
			coldStarts.Ended(x, r, result)
			told.Ended(x, r, result)
			observer.Ended(x, r, result)
		},
	}
	requests := newServer(handler, o, log)
	requests.TLS.GetCertificate = who.Certificate
	listeners := make([]net.Listener, 0, 2)
	for _, port := range []int{wire.PortHTTP1, wire.PortH2C} {
		l, err := net.Listen("tcp", o.listen(port))
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		listeners = append(listeners, l)
	}
	registry := telemetry.NewRegistry()
	sources := &metrics.Sources{Table: table, Budget: budget, Announce: announcements, Report: reporter, Rejected: requests.Rejected, Panics: requests.Panics,
		Evicted: requests.Evicted, Untrusted: &who.Untrusted}
	if err := errors.Join(registry.Register(sources), registry.Register(telemetry.CertificateEnds(who.Ends)), coldStarts.Register(registry),
		told.Register(registry)); err != nil {
		return nil, err
	}
	return &activator{
		table: table, watch: watcher, report: reporter, probe: prober, announce: announcements, observe: observer, registry: registry, coldStarts: coldStarts, incidents: told,
		serve: &serve.Server{Forward: requests, Listeners: listeners, Known: watcher.Known, LastRequest: handler.LastRequest, Log: log, Departure: departure,
			TLSKnown: who.Known(), TLSAddress: o.listen(wire.PortTLS)},
	}, nil
}

// moreConns is how many client connections there may be beyond those whose requests are held. Those
// with requests are limited by the bytes that they take, and these cost some 100 MiB.
const moreConns = 5000

// newServer makes the server of all request ports.
func newServer(handler forward.Handler, o options, log *slog.Logger) *forward.Server {
	return &forward.Server{
		Handler: handler, TimeoutReply: chain.TimeoutReply, StripResponse: []string{wire.HeaderRefused},
		TLS:      o.tls.Clone(),
		MaxConns: int(cmp.Or(o.bounds.Total, hold.DefaultTotal)) + moreConns,
		OnConnLimit: func(conns int) {
			log.Warn("a new connection waits, because all that there may be have requests", "connections", conns)
		},
		OnPanic: func(v any, stack []byte) { log.Error("a request failed", "panic", v, "stack", string(stack)) },
	}
}
