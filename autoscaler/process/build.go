package process

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/client/versioned/scheme"
	"ebb.dev/ebb/autoscaler/alive"
	"ebb.dev/ebb/autoscaler/internal/act"
	"ebb.dev/ebb/autoscaler/internal/handover"
	"ebb.dev/ebb/autoscaler/internal/ingest"
	"ebb.dev/ebb/autoscaler/internal/lead"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/nodes"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/autoscaler/internal/recall"
	"ebb.dev/ebb/autoscaler/internal/report"
	"ebb.dev/ebb/autoscaler/internal/spec"
	"ebb.dev/ebb/autoscaler/internal/startup"
	"ebb.dev/ebb/autoscaler/internal/tend"
	"ebb.dev/ebb/autoscaler/internal/view"
	"ebb.dev/ebb/autoscaler/internal/witness"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/internal/component"
	"ebb.dev/ebb/internal/events"
	"ebb.dev/ebb/internal/frontproxy"
	"ebb.dev/ebb/internal/servingcert"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/wire"
)

// Rates of calls to the API server. They are so high that a thousand services that wake up at once
// do not wait for the client.
const (
	callsPerSecond = 500
	callsAtOnce    = 1000
)

// unlimited returns a configuration without a rate limit, for writes of scales. The workers bound
// those, and a scale-up from zero must not wait because other services used up the limit.
func unlimited(config *rest.Config) *rest.Config {
	c := rest.CopyConfig(config)
	c.QPS = -1
	return c
}

// letGo bounds the wait for the loop, and then for the writer, to let go of a bucket's revisions
// before its lease is released.
const letGo = time.Second

// process holds the parts of the autoscaler, built and not yet running.
type process struct {
	autos    *autoscalers
	election *lead.Election
	handover *handover.Replica
	engine   *loop.Engine
	writer   *act.Writer
	tender   *tend.Tender
	booster  *startup.Booster
	memory   *tend.MemoryLoop
	scraper  *ingest.Scraper
	index    *pods.Index
	stats    http.Handler
	records  *recall.Records
	witness  *witness.Witness
	nodes    *nodes.Watcher
	others   *nodes.Activators
	agents   *nodes.Agents
	// publisher tells the controller which nodes are silent.
	publisher *nodes.Publisher
	access    *frontproxy.Access
	rotator   *servingcert.Rotator
	view      *view.Server
	events    record.EventBroadcaster
	ready     atomic.Bool

	// What several parts are built of.
	c         *component.Component
	keys      func() wire.Keys
	clock     func() time.Time
	durations durations
	recorder  record.EventRecorder
	source    *spec.Source
	foreign   atomic.Int64 // stats of pods that are not of their revision
}

// build constructs each part from those before it: what is known of the cluster and who decides,
// then what carries out decisions and the loop, then what finds out about nodes, then what talks to
// the loop.
func build(c *component.Component, o options, keys func() wire.Keys) (*process, error) {
	kube, store, log := c.Kube, c.Settings, c.Log
	client, err := versioned.NewForConfig(c.Config)
	if err != nil {
		return nil, fmt.Errorf("build client: %w", err)
	}
	scales, err := kubernetes.NewForConfig(unlimited(c.Config))
	if err != nil {
		return nil, fmt.Errorf("build client for scales: %w", err)
	}
	p := &process{events: record.NewBroadcaster(), c: c, keys: keys, clock: loop.Monotonic(), durations: observe(c.Registry)}
	p.events.StartRecordingToSink(events.Sink(kube))
	if p.autos, err = newAutoscalers(client); err != nil {
		return nil, err
	}
	if p.index, err = pods.NewIndex(kube); err != nil {
		return nil, err
	}
	p.scraper = ingest.NewScraper(p.index.ToScrape)
	p.scraper.Mesh = func() bool { return store.Load().Network.MeshAddressing() }
	p.scraper.Port, p.scraper.Observe, p.scraper.Foreign = o.scrapePort, p.durations.scrape, func(loop.Key) { p.foreign.Add(1) }

	p.election = lead.New(lead.Config{Namespace: c.Namespace, Pod: c.Pod, IP: o.ip,
		Scheme: store.Leases("autoscaler", lead.Prefix), Dead: func(node string) bool { return p.nodes.Calls(node) == alive.Lost }}, kube, log)
	p.source = &spec.Source{Get: p.autos.get, Settings: store, Owns: p.election.Owns, Log: log}
	p.recorder = p.events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "autoscaler"})
	p.decide(scales, client)
	p.findOut(o)
	p.listen(o)
	return p, nil
}

// changed has the loop look at a revision again. The loop is built after those who call this, and
// runs before them.
func (p *process) changed(key loop.Key) { p.engine.Changed(key) }

// decide builds what carries out decisions, and the loop that makes them.
func (p *process) decide(scales kubernetes.Interface, client versioned.Interface) {
	kube, store, clock, recorder, log := p.c.Kube, p.c.Settings, p.clock, p.recorder, p.c.Log
	p.writer = act.New(scales, client.AutoscalingV1alpha1(), p.autos.get, p.election,
		&act.Costs{Kube: kube, Ready: p.index.Ready, Count: p.index.Count, InFlight: p.scraper.InFlight, Now: clock},
		recorder, log)
	p.writer.Clock, p.writer.ObserveWrite = clock, p.durations.write
	resizer := &tend.Resizer{Kube: kube}
	p.tender = &tend.Tender{Index: p.index, Ask: p.scraper.Ask, Keys: p.keys, MayWrite: p.election.MayWrite, Log: log, Port: p.scraper.Port, Resizer: resizer, Changed: p.changed,
		Tell: func(key loop.Key, reason, message string) {
			if pa := p.autos.get(key.Namespace, key.Name); pa != nil {
				recorder.Event(pa, corev1.EventTypeNormal, reason, message)
			}
		}}
	p.booster = startup.New(&startup.Booster{Index: p.index, Kube: kube, MayWrite: p.election.MayWrite, Log: log,
		MaxCPU:  func() int64 { return store.Load().Autoscaler.StartupCPUMax },
		Grace:   func() time.Duration { return store.Load().Autoscaler.StartupCPUGrace },
		Changed: p.changed})
	p.index.New = p.booster.Look
	budget := &revision.Budget{}
	memory := &budget.Memory
	p.memory = &tend.MemoryLoop{Nodes: resizer.Nodes, Percent: func() float64 { return store.Load().Autoscaler.StandbyMemory },
		Asleep: func() float64 {
			return p.index.Asleep(spec.UsualMemory, revision.CompressedShare, memory.Granted)
		}, Asked: memory.Asked, Charge: memory.Charge, Divide: memory.Divide, Log: log}
	prober := act.NewProber(p.c.ClusterDomain)
	prober.Without = act.WithoutService(kube, func() bool { return store.Load().Gateway.Resting })
	p.engine = loop.New(loop.Options{
		Shards: 4, Clock: clock, Log: log, Source: p.source, Pods: p.index, Actor: p.writer, Scraper: p.scraper, Tender: p.tender,
		Prober: prober, Budget: budget, Observe: p.durations.reaction,
		// Activators report every revision with requests, whichever autoscaler scales it.
		Elsewhere: func(key loop.Key) bool {
			pa := p.autos.get(key.Namespace, key.Name)
			return pa != nil && !spec.Ours(pa, store.Load().Autoscaler)
		},
		Given: p.source.Given,
	})
}

// findOut builds what remembers how pods did, and what finds out which nodes have died.
func (p *process) findOut(o options) {
	c, kube, keys, clock, recorder, log := p.c, p.c.Kube, p.keys, p.clock, p.recorder, p.c.Log
	p.records = &recall.Records{Known: func(key loop.Key) bool { return p.autos.kept(key.Namespace, key.Name) != nil }, Clock: clock}
	p.scraper.Seen = p.records.Scraped
	p.witness = &witness.Witness{Pods: p.index.ToScrape, Starting: p.index.Starting, Ask: p.scraper.AskJudged, Clock: clock}
	p.others = &nodes.Activators{Keys: keys, Log: log, Find: func(ctx context.Context) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", fmt.Sprintf("activator-announce.%s.svc.%s.", c.Namespace, c.ClusterDomain))
	}}
	p.agents = &nodes.Agents{Self: o.node, Keys: keys, Log: log, Find: nodeAgents(kube, c.Namespace)}
	silent := types.NamespacedName{Namespace: c.Namespace, Name: wire.SilentNodes}
	mayTell := func() bool { return p.election.MayWrite(silent) }
	p.nodes = nodes.New(nodes.Config{Self: o.node, Dial: dialTCP, Port: o.scrapePort, Lease: renewals(kube), Clock: clock, Log: log,
		Pods:   listed(o.node, p.index, p.others.Nodes, p.agents.Nodes),
		Others: p.others.Ask, Activator: p.others.Has, Activators: p.others.Nodes, Agents: p.agents.Ask, Agent: p.agents.Has,
		Tell: func(v alive.Verdict) { tellOfNode(recorder, v, mayTell()) },
		SetSilent: func(silent map[string]bool) {
			p.index.SetSilent(silent, p.engine.Changed)
			p.publisher.Set(slices.Sorted(maps.Keys(silent)))
		}})
	p.scraper.Heard = p.nodes.Heard
	p.publisher = &nodes.Publisher{Leases: kube.CoordinationV1().Leases(c.Namespace), MayWrite: mayTell,
		Undecided: p.nodes.Undecided, Log: log}
}

// listen builds what talks to the loop: pods, activators, other replicas and who asks the API.
func (p *process) listen(o options) {
	c, kube, keys, clock, log := p.c, p.c.Kube, p.keys, p.clock, p.c.Log
	p.handover = &handover.Replica{Keys: keys, Engine: p.engine, Buckets: p.election, Clock: clock, Log: log, Self: o.ip}
	server := &ingest.Server{Keys: keys, Reporter: p.engine, Owners: p.election, Clock: clock, Regular: p.records.Reported, Said: func(key loop.Key, stat *wire.Stat) {
		if p.index.Said(key, stat.PodName, stat.Asleep, stat.FreezeFailure) {
			p.engine.Changed(key)
		}
	}}
	c.Registry.MustRegister(report.Collector{Each: p.engine.Each, Counts: func() []report.Count {
		return append(counts(server, p.engine, p.writer, p.tender, p.booster, p.nodes, p.foreign.Load()), report.Count{Name: "ebb_autoscaler_settings_ignored_total",
			Help: "Ignored settings of PodAutoscalers, by where they are.", Reason: "annotation", Value: p.source.Ignored.Load()})
	}})
	telemetry.Leases(c.Registry, "autoscaler", p.election.Buckets, func() int { return len(p.election.Held()) })
	replicas := view.NewReplicas(view.Local{Engine: p.engine, Records: p.records, Witness: p.witness, Nodes: p.silentNodes}, keys, p.election.Others)
	p.access = frontproxy.New(kube, log)
	p.rotator = viewCertificate(kube, c.Namespace, log)
	c.Registry.MustRegister(telemetry.CertificateEnds(p.rotator.Ends))
	p.view = view.NewServer(replicas, p.access, log)
	incidents := recall.NewReceiver(p.records, keys, p.election, func(err error) { log.Warn("dropped a report of cold starts and refusals", "error", err) })
	incidents.Unreached = func(u *wire.Unreached) {
		node, ip := p.index.Where(loop.Key{Namespace: u.Namespace, Name: u.Revision}, u.Pod)
		p.nodes.Unreached(node, ip, u)
	}
	p.stats = p.routes(server, replicas, incidents)
	for _, state := range []alive.State{alive.Doubted, alive.Silent, alive.Lost} {
		c.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "ebb_autoscaler_nodes", ConstLabels: prometheus.Labels{"state": state.String()},
			Help: "Nodes that do not answer, by what this replica thinks of them."}, func() float64 { return float64(p.nodes.Count(state)) }))
	}
}

// elect takes part in the election until ctx ends. The loop looks again at every PodAutoscaler when
// a bucket changes hands.
func (p *process) elect(ctx context.Context) error {
	return p.election.Run(ctx, lead.Hooks{
		Changed: p.touchAll,
		Left: func() {
			p.engine.Settle(letGo)
			p.writer.Release(letGo)
		},
		Taken: func(bucket, from string) { go p.handover.TakeOver(context.Background(), bucket, from) },
	})
}

// routes is the handler of the port for stats.
func (p *process) routes(stats, views, incidents http.Handler) http.Handler {
	owner := func(k loop.Key) (string, bool) { return p.election.Owner(k), p.election.Owns(k) }
	mux := http.NewServeMux()
	mux.Handle(wire.PathStats, stats)
	mux.Handle(wire.PathHandover, p.handover)
	peers := &report.Peers{Keys: p.handover.Keys}
	mux.Handle(wire.PathViews, views)
	mux.Handle(wire.PathIncidents, incidents)
	mux.Handle(wire.PathBirths, report.Births{Peers: peers, Of: p.birth, Pulled: pods.Pulled(p.c.Kube), Owner: owner})
	mux.HandleFunc(wire.PathHealth, func(w http.ResponseWriter, _ *http.Request) {
		if !p.ready.Load() {
			http.Error(w, "PodAutoscalers and pods are not known yet", http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, "ok\n")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" && strings.HasPrefix(r.UserAgent(), wire.AgentKubelet) {
			r.URL.Path = wire.PathHealth
		}
		mux.ServeHTTP(w, r)
	})
}

// birth returns what is known of how a pod came to be.
func (p *process) birth(revision loop.Key, pod string) wire.Birth {
	b := p.index.Birth(revision, pod)
	if b != (wire.Birth{}) {
		b.Asked = p.writer.Raised(revision)
	}
	return b
}

// touchAll makes the loop look at every PodAutoscaler again.
func (p *process) touchAll() {
	for _, key := range p.autos.keys() {
		p.engine.Changed(key)
	}
}

// follow starts the informers, and touches everything whenever the settings change.
func (p *process) follow(ctx context.Context) error {
	// The pods come first: a revision adopted without its pods would look as if it had none.
	if !p.index.Start(ctx.Done(), p.engine.Changed) {
		return ctx.Err()
	}
	if err := p.autos.start(ctx, p.engine.Changed); err != nil || ctx.Err() != nil {
		return err
	}
	p.ready.Store(true)
	for {
		_, replaced := p.c.Settings.Current()
		p.touchAll()
		select {
		case <-ctx.Done():
			return nil
		case <-replaced:
		}
	}
}
