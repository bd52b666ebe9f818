package process

import (
	"context"
	"fmt"
	"io"
	"log/slog"
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
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/client/informers/externalversions"
	listers "ebb.dev/ebb/api/client/listers/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/client/versioned/scheme"
	viewv1alpha1 "ebb.dev/ebb/api/view/v1alpha1"
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
	"ebb.dev/ebb/settings"
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
	store    *settings.Store
	autos    *autoscalers
	election *lead.Election
	handover *handover.Replica
	engine   *loop.Engine
	writer   *act.Writer
	tender   *tend.Tender
	booster  *startup.Booster
	memory   *tend.Budget
	scraper  *ingest.Scraper
	index    *pods.Index
	pulled   func(ctx context.Context, namespace, pod string) bool
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
	p := &process{store: store, events: record.NewBroadcaster(), c: c, keys: keys, clock: loop.Monotonic(), durations: observe(c.Registry)}
	p.events.StartRecordingToSink(events.Sink(kube))
	if p.autos, err = newAutoscalers(client); err != nil {
		return nil, err
	}
	if p.index, err = pods.NewIndex(kube); err != nil {
		return nil, err
	}
	p.pulled = pods.Pulled(kube)
	p.scraper = ingest.NewScraper(p.index.ToScrape)
	p.scraper.Mesh = func() bool { return store.Load().Network.MeshAddressing() }
	p.scraper.Port, p.scraper.Observe, p.scraper.Foreign = o.scrapePort, p.durations.scrape, func(loop.Key) { p.foreign.Add(1) }

	p.election = lead.New(lead.Config{Namespace: c.Namespace, Pod: c.Pod, IP: o.ip,
		Scheme: store.Leases("autoscaler", lead.Prefix)}, kube, log)
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
	kube, store, clock, recorder, log := p.c.Kube, p.store, p.clock, p.recorder, p.c.Log
	p.writer = act.New(scales, client.AutoscalingV1alpha1(), p.autos.get, p.election,
		&act.Costs{Kube: kube, Ready: p.index.Ready, Count: p.index.Count, InFlight: p.scraper.InFlight, Now: clock},
		recorder, log)
	p.writer.Clock, p.writer.ObserveWrite = clock, p.durations.write
	resizer := &tend.Resizer{Kube: kube}
	p.tender = &tend.Tender{Index: p.index, Ask: p.scraper.Ask, Keys: p.keys, Log: log, Port: p.scraper.Port, Resizer: resizer, Changed: p.changed,
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
	budget := revision.NewBudget()
	p.memory = &tend.Budget{Nodes: resizer.Nodes, Percent: func() float64 { return store.Load().Autoscaler.StandbyMemory },
		Asleep: func() float64 {
			return p.index.Asleep(spec.UsualMemory, revision.CompressedShare, budget.Granted)
		}, Asked: budget.Asked, Charge: budget.Charge, Divide: budget.Divide, Log: log}
	p.engine = loop.New(loop.Options{
		Shards: 4, Clock: clock, Log: log, Source: p.source, Pods: p.index, Actor: p.writer, Scraper: p.scraper, Tender: p.tender,
		Prober: act.NewProber(p.c.ClusterDomain), Budget: budget, Observe: p.durations.reaction,
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
	p.records = &recall.Records{Known: func(key loop.Key) bool { return p.autos.get(key.Namespace, key.Name) != nil }, Clock: clock}
	p.scraper.Seen = p.records.Scraped
	p.witness = &witness.Witness{Pods: p.index.ToScrape, Starting: p.index.Starting, Ask: p.scraper.AskJudged, Clock: clock}
	p.others = &nodes.Activators{Keys: keys, Log: log, Find: func(ctx context.Context) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", fmt.Sprintf("activator-announce.%s.svc.%s.", c.Namespace, c.ClusterDomain))
	}}
	p.agents = &nodes.Agents{Self: o.node, Keys: keys, Log: log, Find: nodeAgents(kube, c.Namespace)}
	silent := types.NamespacedName{Namespace: c.Namespace, Name: wire.SilentNodes}
	mayTell := func() bool { return p.election.MayWrite(silent) }
	p.nodes = watchNodes(kube, o, listed(o.node, p.index, p.others.Nodes, p.agents.Nodes), clock, log)
	p.nodes.Tell = func(v alive.Verdict) { tellOfNode(recorder, v, mayTell()) }
	p.nodes.Others, p.nodes.Activator, p.nodes.Activators = p.others.Ask, p.others.Has, p.others.Nodes
	p.nodes.Agents, p.nodes.Agent = p.agents.Ask, p.agents.Has
	p.scraper.Heard = p.nodes.Heard
	p.publisher = &nodes.Publisher{Leases: kube.CoordinationV1().Leases(c.Namespace), MayWrite: mayTell,
		Undecided: p.nodes.Undecided, Log: log}
	p.nodes.Judge = func(silent map[string]bool) {
		p.index.Judge(silent, p.engine.Changed)
		p.publisher.Set(slices.Sorted(maps.Keys(silent)))
	}
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

// silentNodes returns the nodes with pods of a revision that do not answer.
func (p *process) silentNodes(key loop.Key) (all []viewv1alpha1.SilentNode) {
	for _, v := range p.nodes.Now() {
		if n := p.index.On(key, v.Node); n > 0 {
			all = append(all, viewv1alpha1.SilentNode{Name: v.Node, Pods: n, State: v.State.String(), Since: p.nodes.Since(v).UTC(), Reason: v.Reason})
		}
	}
	return all
}

// listed lists the nodes with pods of services or an activator, and addresses there. That of an
// activator is the first: no tenant can keep it from answering. Nodes of the agents that are
// witnesses are listed, too: they count among those that answer. Where all pods and activators are
// on this node, it lists none, because nothing is decided about that.
func listed(self string, index *pods.Index, activators, agents func() map[string]string) func(maxEach int) map[string][]string {
	return func(maxEach int) map[string][]string {
		there := activators()
		delete(there, self)
		if len(there) == 0 && !index.Elsewhere(self) {
			return nil
		}
		all := index.Nodes(maxEach)
		for node, ip := range there {
			all[node] = slices.Insert(all[node], 0, ip)
		}
		for node, ip := range agents() {
			if _, other := all[node]; !other {
				all[node] = []string{ip}
			}
		}
		return all
	}
}

// watchNodes makes what finds out which nodes have died.
func watchNodes(kube kubernetes.Interface, o options, listed func(int) map[string][]string, clock func() time.Time, log *slog.Logger) *nodes.Watcher {
	return &nodes.Watcher{Self: o.node, Pods: listed, Dial: dialTCP, Port: o.scrapePort, Clock: clock, Log: log, Lease: renewals(kube)}
}

// tellOfNode tells of a verdict in an event of the node. Of several replicas the first one does,
// which also tells the controller. Each tells of a node that it calls lost, because it replaces
// pods of its own revisions for that.
func tellOfNode(recorder record.EventRecorder, v alive.Verdict, first bool) {
	// As the kubelet does, by the name in place of the UID.
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: v.Node, UID: types.UID(v.Node)}
	switch {
	case v.State == alive.Lost:
		recorder.Event(node, corev1.EventTypeWarning, "NodeLost", v.Reason)
	case !first:
	case v.State == alive.Silent:
		recorder.Event(node, corev1.EventTypeWarning, "NodeSilent", v.Reason)
	default:
		recorder.Event(node, corev1.EventTypeNormal, "NodeAnswers", v.Reason)
	}
}

// nodeAgents finds the node agents that run, by node.
func nodeAgents(kube kubernetes.Interface, namespace string) func(context.Context) (map[string]netip.Addr, error) {
	return func(ctx context.Context) (map[string]netip.Addr, error) {
		list, err := kube.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=node-agent", ResourceVersion: "0"})
		if err != nil {
			return nil, fmt.Errorf("list the EndpointSlices of Service %s/node-agent: %w", namespace, err)
		}
		found := map[string]netip.Addr{}
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				if e.NodeName == nil || len(e.Addresses) == 0 || e.Conditions.Ready != nil && !*e.Conditions.Ready {
					continue
				}
				if address, err := netip.ParseAddr(e.Addresses[0]); err == nil {
					found[*e.NodeName] = address
				}
			}
		}
		return found, nil
	}
}

// renewals reads when the Lease of a node was renewed.
func renewals(kube kubernetes.Interface) func(ctx context.Context, node string) (string, error) {
	return func(ctx context.Context, node string) (string, error) {
		lease, err := kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("get the Lease of node %s: %w", node, err)
		}
		if lease.Spec.RenewTime == nil { // no kubelet wrote it
			return "", fmt.Errorf("the Lease of node %s does not say when it was renewed", node)
		}
		return lease.Spec.RenewTime.String(), nil
	}
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// durations observe how long things took.
type durations struct {
	scrape          func(d time.Duration, counted bool)
	write, reaction func(time.Duration)
}

func observe(registry *prometheus.Registry) durations {
	histogram := func(name, help string, first float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(first, 2, 14)})
		registry.MustRegister(h)
		return h
	}
	scrapes := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kn_autoscaler_scrape_duration_seconds",
		Help: "Time to scrape the sample of one revision's pods.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 13)}, []string{"counted"})
	registry.MustRegister(scrapes)
	counted := map[bool]prometheus.Observer{true: scrapes.WithLabelValues("true"), false: scrapes.WithLabelValues("false")}
	writes := histogram("ebb_autoscaler_scale_write_seconds", "Time from the news that asks for another scale to the end of its write.", 0.001)
	reaction := histogram("ebb_autoscaler_stat_decision_seconds", "Time from a stat's arrival to the decision that counts it.", 0.0001)
	return durations{
		scrape:   func(d time.Duration, ok bool) { counted[ok].Observe(d.Seconds()) },
		write:    func(d time.Duration) { writes.Observe(d.Seconds()) },
		reaction: func(d time.Duration) { reaction.Observe(d.Seconds()) },
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

// autoscalers is the informer on PodAutoscalers.
type autoscalers struct {
	factory  externalversions.SharedInformerFactory
	informer cache.SharedIndexInformer
	lister   listers.PodAutoscalerLister
}

func newAutoscalers(client versioned.Interface) (*autoscalers, error) {
	factory := externalversions.NewSharedInformerFactory(client, 0)
	all := factory.Autoscaling().V1alpha1().PodAutoscalers()
	err := all.Informer().SetTransform(func(o any) (any, error) {
		if pa, ok := o.(*v1alpha1.PodAutoscaler); ok {
			pa.ManagedFields = nil
		}
		return o, nil
	})
	if err != nil {
		return nil, fmt.Errorf("strip PodAutoscalers: %w", err)
	}
	return &autoscalers{factory, all.Informer(), all.Lister()}, nil
}

// get returns nil when there is none.
func (a *autoscalers) get(namespace, name string) *v1alpha1.PodAutoscaler {
	pa, err := a.lister.PodAutoscalers(namespace).Get(name)
	if err != nil {
		return nil
	}
	return pa
}

// start begins to watch and returns when all PodAutoscalers are known, or when ctx ends.
func (a *autoscalers) start(ctx context.Context, changed func(loop.Key)) error {
	if _, err := a.informer.AddEventHandler(autoscalerHandler(changed)); err != nil {
		return fmt.Errorf("watch PodAutoscalers: %w", err)
	}
	a.factory.Start(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), a.informer.HasSynced)
	return nil
}

// autoscalerHandler reports changes of what the loop reads. The status is the loop's own write.
func autoscalerHandler(changed func(loop.Key)) cache.ResourceEventHandlerFuncs {
	notice := func(o any) {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if pa, ok := o.(*v1alpha1.PodAutoscaler); ok {
			changed(loop.Key{Namespace: pa.Namespace, Name: pa.Name})
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: notice, DeleteFunc: notice, UpdateFunc: func(before, after any) {
		a, b := before.(*v1alpha1.PodAutoscaler), after.(*v1alpha1.PodAutoscaler)
		if a.UID == b.UID && a.Generation == b.Generation && maps.Equal(a.Annotations, b.Annotations) && maps.Equal(a.Labels, b.Labels) {
			return
		}
		notice(after)
	}}
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
	mux.Handle(wire.PathBirths, report.Births{Peers: peers, Of: p.birth, Pulled: p.pulled, Owner: owner})
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

func counts(s *ingest.Server, e *loop.Engine, w *act.Writer, t *tend.Tender, b *startup.Booster, n *nodes.Watcher, foreign int64) []report.Count {
	const refused, stats, orders = "ebb_autoscaler_stats_refused_total", "ebb_autoscaler_stats_total", "ebb_autoscaler_orders_total"
	const standby, limits = "ebb_autoscaler_standby_orders_total", "ebb_autoscaler_startup_cpu_resizes_total"
	const verdicts = "ebb_autoscaler_node_verdicts_total"
	help := map[string]string{refused: "Rejected stats, by reason.", stats: "Accepted stats, by where they went.", orders: "Orders, by outcome.",
		standby:  "Orders to pods to sleep, to wake or to be compressed, by outcome.",
		limits:   "Changes of the CPU limit of pods that start, by outcome.",
		verdicts: "Verdicts about nodes that did not answer, or answer again."}
	var all []report.Count
	add := func(name, reason string, n int64) {
		all = append(all, report.Count{Name: name, Help: help[name], Reason: reason, Value: n})
	}
	add(refused, "unauthorized", s.Refused.Unauthorized.Load())
	add(refused, "forged", s.Refused.Forged.Load())
	add(refused, "clock", s.Guard.OtherClock.Load())
	add(refused, "replayed", s.Guard.Replayed.Load())
	add(refused, "malformed", s.Refused.Malformed.Load())
	add(refused, "invalid_value", s.Refused.Insane.Load())
	add(refused, "no-owner", s.Refused.NoOwner.Load())
	add(refused, "busy", s.Refused.Busy.Load())
	add(refused, "foreign-pod", foreign)
	add(stats, "own", s.Accepted.Load())
	add(stats, "forwarded", s.Forwarded.Load())
	add(orders, "scale-written", w.Written.Load())
	add(orders, "failed", w.Failed.Load())
	add(orders, "stale", w.Stale.Load())
	add(orders, "dropped", w.Dropped())
	add(standby, "slept", t.Slept.Load())
	add(standby, "woken", t.Woken.Load())
	add(standby, "compressed", t.Compressed.Load())
	add(standby, "failed", t.Refused.Load())
	add(verdicts, "silent", n.Silent.Load())
	add(verdicts, "lost", n.Lost.Load())
	add(verdicts, "well", n.Back.Load())
	add(limits, "raised", b.Raised.Load())
	add(limits, "lowered", b.Lowered.Load())
	add(limits, "refused", b.Refused.Load())
	add(limits, "failed", b.Failed.Load())
	for reason, n := range e.Refused() {
		add(refused, string(reason), n)
	}
	return all
}

// touchAll makes the loop look at every PodAutoscaler again.
func (p *process) touchAll() {
	list, _ := p.autos.lister.List(labels.Everything()) // a lister does not fail
	for _, pa := range list {
		p.engine.Changed(loop.Key{Namespace: pa.Namespace, Name: pa.Name})
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
		_, replaced := p.store.Current()
		p.touchAll()
		select {
		case <-ctx.Done():
			return nil
		case <-replaced:
		}
	}
}
