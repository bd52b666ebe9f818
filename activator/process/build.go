package process

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"time"

	"ebb.dev/ebb/activator/internal/announce"
	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/chain"
	"ebb.dev/ebb/activator/internal/coldstart"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/identity"
	"ebb.dev/ebb/activator/internal/incidents"
	"ebb.dev/ebb/activator/internal/metrics"
	"ebb.dev/ebb/activator/internal/observe"
	"ebb.dev/ebb/activator/internal/plans"
	"ebb.dev/ebb/activator/internal/probe"
	"ebb.dev/ebb/activator/internal/reach"
	"ebb.dev/ebb/activator/internal/relay"
	"ebb.dev/ebb/activator/internal/report"
	"ebb.dev/ebb/activator/internal/serve"
	"ebb.dev/ebb/activator/internal/watch"
	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/component"
	"ebb.dev/ebb/internal/reachable"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/tlsoptions"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// options is what the environment says to activators alone.
type options struct {
	ip         netip.Addr
	node       string
	autoscaler string // host:port for stats
	idlePerPod int    // idle connections kept to one pod
	bounds     hold.Bounds
	tls        *tls.Config // of port 8112, without a certificate
}

// dialTimeout is how long a connection to a pod may take: enough for slow networks, little enough
// that a request that met a dead node goes to another pod soon.
const dialTimeout = time.Second

// deadAfter is for how long a pod may acknowledge nothing of a request that was given up. An
// activator that leaves waits for such requests.
const deadAfter = 20 * time.Second

func readOptions(c *component.Component) options {
	e := c.Env
	bound := func(name string, usual int64, use string) int64 { return e.Number(name, usual, 1, math.MaxInt64, use) }
	o := options{
		ip:         e.NeededIP("POD_IP", "Address of this pod."),
		node:       e.Text("EBB_NODE_NAME", "", "Name of this node. Without it, what this activator says of pods that do not answer counts for nothing, and no zone is preferred."),
		autoscaler: c.Autoscaler(),
		idlePerPod: int(e.Number("MAX_IDLE_PROXY_CONNS_PER_HOST", 100, 1, math.MaxInt32, "Idle connections that are kept to one pod.")),
		bounds: hold.Bounds{
			Total:            bound("EBB_HOLD_REQUESTS", hold.DefaultTotal, "Requests that wait, of all revisions together."),
			TotalBytes:       bound("EBB_HOLD_BYTES", hold.DefaultTotalBytes, "Bytes of memory for the requests of all revisions together."),
			PerRevision:      bound("EBB_HOLD_REQUESTS_PER_REVISION", hold.DefaultPerRevision, "Requests of one revision that wait."),
			PerRevisionBytes: bound("EBB_HOLD_BYTES_PER_REVISION", hold.DefaultPerRevisionBytes, "Bytes of memory for the requests of one revision."),
		},
		tls: &tls.Config{},
	}
	secure := tlsoptions.Settings{
		MinVersion:       e.Text("ACTIVATOR_TLS_MIN_VERSION", "1.3", "Least version of TLS on port 8112: 1.2 or 1.3."),
		MaxVersion:       e.Text("ACTIVATOR_TLS_MAX_VERSION", "", "Highest version of TLS on port 8112."),
		CipherSuites:     e.Text("ACTIVATOR_TLS_CIPHER_SUITES", "", "Suites of TLS 1.2 by their IANA names, separated by commas."),
		CurvePreferences: e.Text("ACTIVATOR_TLS_CURVE_PREFERENCES", "", "Curves, separated by commas, in order of preference."),
	}
	if err := secure.Apply(o.tls, "ACTIVATOR_TLS_"); err != nil {
		e.Refuse(err)
	}
	return o
}

// activator is the parts of the process.
type activator struct {
	table     *backends.Table
	watch     *watch.Watch
	report    *report.Reporter
	probe     *probe.Prober
	announce  *announce.Server
	reachable *reachable.Server
	serve     *serve.Server
	observe   *observe.Observer

	coldStarts *coldstart.Accounts
	incidents  *incidents.Reporter
}

// newReachable makes what answers autoscalers that ask at which pods somebody answers.
func newReachable(node string, keys func() wire.Keys, table *backends.Table) *reachable.Server {
	guard := &wire.Guard{}
	return &reachable.Server{Node: node, Knows: table.Knows, Silent: table.Silent, Admit: func(w http.ResponseWriter, r *http.Request) (*wire.Signature, bool) {
		return guard.Admit(w, r, keys(), "", wire.AutoscalerSubject)
	}}
}

// newTable makes the table of revisions. A queue that forms is told to the autoscaler, and has pods
// asked that may be ready.
func newTable(o options, budget *hold.Budget, store *settings.Store, who *identity.Identity, reporter *report.Reporter, prober *probe.Prober) *backends.Table {
	// Until an authority is known no pod can have a certificate of it.
	encrypt := func() bool { return store.Load().Network.SystemInternalTLS && who.CanVerify() }
	table := backends.NewTable(func(k backends.Key, info *backends.Info) *hold.Queue {
		pods := reach.Options{Encrypt: encrypt, TLS: who.Client(k.Namespace),
			Upstream: forward.UpstreamOptions{MaxIdle: o.idlePerPod, DialTimeout: dialTimeout, DeadAfter: deadAfter}}
		return hold.New(info.ContainerConcurrency, budget.Share(k.Namespace), hold.Options{
			Pressure: func(int) {
				reporter.ReportNow(k)
				prober.Want(k)
			},
			Open: func(b hold.Backend) *reach.Pod { return reach.New(b.Address, pods) },
		})
	})
	table.Node = o.node
	return table
}

// newRelay makes the table of other activators, without any. No host rests with TLS inside the
// cluster; while the last ones still do, nothing goes to another activator without it. In a mesh
// with addresses of its own, an activator has none.
func newRelay(o options, store *settings.Store) *relay.Table {
	return &relay.Table{
		Self: o.ip.Unmap(),
		Open: func(a netip.AddrPort) *forward.Upstream {
			return forward.NewUpstream(a.String(), forward.UpstreamOptions{MaxIdle: o.idlePerPod, DialTimeout: dialTimeout, DeadAfter: deadAfter})
		},
		Off: func() bool {
			n := &store.Load().Network
			return n.SystemInternalTLS || n.MeshAddressing()
		},
		Capacity: func() float64 { return store.Load().Autoscaler.ActivatorCapacity },
	}
}

// newIncidents makes what tells the autoscaler of single requests.
func newIncidents(c *component.Component, o options, keys func() wire.Keys) *incidents.Reporter {
	return &incidents.Reporter{Pod: c.Pod, Node: o.node, URL: "http://" + o.autoscaler + wire.PathIncidents, Keys: keys,
		Failed: func(err error) {
			c.Log.Warn("report of cold starts, refusals and pods without an answer failed; it is sent again", "error", err)
		}}
}

func listen(c *component.Component, ports ...int) (all []net.Listener, err error) {
	for _, port := range ports {
		l, err := net.Listen("tcp", c.Address(port))
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		all = append(all, l)
	}
	return all, nil
}

// build makes the parts, each after those that it uses.
func build(c *component.Component, o options, ebb versioned.Interface, keys func() wire.Keys, who *identity.Identity, stdout io.Writer) (*activator, error) {
	store, log := c.Settings, c.Log
	mesh := func() bool { return store.Load().Network.MeshAddressing() }
	budget := hold.NewBudget(o.bounds)
	reporter := (&report.Reporter{Pod: c.Pod, URL: "http://" + o.autoscaler + wire.PathStats, Keys: keys, Log: log}).Start()
	prober := probe.New(mesh)
	table := newTable(o, budget, store, who, reporter, prober)
	known, others := plans.NewTable(c.ClusterDomain), newRelay(o, store)
	watcher := &watch.Watch{Kube: c.Kube, Ebb: ebb, Table: table, Plans: known, Relay: others, System: c.Namespace, Settings: store, Log: log, Known: make(chan struct{})}
	announcements := &announce.Server{Backends: table, Keys: keys}
	observer := &observe.Observer{Settings: store, Namespace: c.Namespace, Pod: c.Pod, PodIP: o.ip.String(), Stdout: stdout, Log: log}
	coldStarts := coldstart.New(coldstart.Ask(o.autoscaler, keys))
	told := newIncidents(c, o, keys)
	coldStarts.Told = told.ColdStart
	departure := &serve.Departure{}
	handler := &chain.Handler{
		Table:  table,
		Mesh:   mesh,
		Domain: c.ClusterDomain,
		Plans:  known,
		// No namespace is called "": hosts that nobody knows are together one tenant.
		Unknown: plans.NewRoom(budget.Share("")),
		Relay:   others,
		Self:    netip.AddrPortFrom(o.ip, wire.PortAnnounce).String(),
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
		// It began at the latest so long ago. One that failed sooner counts as older than it is.
		Unreached: func(x *chain.Exchange) { told.Unreached(x.Revision.Key, x.Pod, time.Now().Add(-dialTimeout)) },
	}
	requests := newServer(handler, o, log)
	requests.TLS.GetCertificate = who.Certificate
	listeners, err := listen(c, wire.PortHTTP1, wire.PortH2C)
	if err != nil {
		return nil, err
	}
	sources := &metrics.Sources{Table: table, Budget: budget, Announce: announcements, Report: reporter, Rejected: requests.Rejected, Panics: requests.Panics,
		Evicted: requests.Evicted, Untrusted: &who.Untrusted, Plans: known, Unknown: handler.Unknown, Relay: others}
	if err := errors.Join(c.Registry.Register(sources), c.Registry.Register(telemetry.CertificateEnds(who.Ends)), coldStarts.Register(c.Registry),
		told.Register(c.Registry)); err != nil {
		return nil, err
	}
	return &activator{
		table: table, watch: watcher, report: reporter, probe: prober, announce: announcements,
		reachable: newReachable(o.node, keys, table), observe: observer, coldStarts: coldStarts, incidents: told,
		serve: &serve.Server{Forward: requests, Listeners: listeners, Known: watcher.Known, LastRequest: handler.LastRequest, Log: log, Departure: departure,
			TLSKnown: who.Known(), TLSAddress: c.Address(wire.PortTLS)},
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
		MaxConns: int(o.bounds.Total) + moreConns,
		OnConnLimit: func(conns int) {
			log.Warn("connection limit reached: a new connection has to wait", "connections", conns)
		},
		OnPanic: func(v any, stack []byte) { log.Error("a request failed", "panic", v, "stack", string(stack)) },
	}
}
