package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/client/informers/externalversions"
	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/client/versioned/scheme"
	"ebb.dev/ebb/autoscaler/internal/act"
	"ebb.dev/ebb/autoscaler/internal/handover"
	"ebb.dev/ebb/autoscaler/internal/ingest"
	"ebb.dev/ebb/autoscaler/internal/lead"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/autoscaler/internal/report"
	"ebb.dev/ebb/autoscaler/internal/spec"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/internal/clusterdomain"
	"ebb.dev/ebb/internal/events"
	"ebb.dev/ebb/internal/lease"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// Rates of calls to the API server; a thousand services that wake up at once must not wait for the
// client.
const (
	callsPerSecond = 500
	callsAtOnce    = 1000
)

// unlimited is for the scales: no more of them are written at once than there are workers, and who
// waits for a first pod must not wait for a limit of this client's own, which the events of a
// thousand others that wake up may have used up.
func unlimited(config *rest.Config) *rest.Config {
	c := rest.CopyConfig(config)
	c.QPS = -1
	return c
}

// letGo bounds the wait for the loop to let go of a bucket's revisions before another replica may
// have them.
const letGo = time.Second

// process is everything the autoscaler is made of, built and not yet running.
type process struct {
	log      *slog.Logger
	store    *settings.Store
	election *lead.Election
	handover *handover.Replica
	engine   *loop.Engine
	writer   *act.Writer
	scraper  *ingest.Scraper
	index    *pods.Index
	autos    externalversions.SharedInformerFactory
	synced   cache.InformerSynced
	all      func() []loop.Key
	stats    http.Handler
	metrics  *prometheus.Registry
	events   record.EventBroadcaster
	ready    atomic.Bool
}

func build(config *rest.Config, kube kubernetes.Interface, tokenKey func() []byte, store *settings.Store, who identity, log *slog.Logger) (*process, error) {
	client, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("build client: %w", err)
	}
	scales, err := kubernetes.NewForConfig(unlimited(config))
	if err != nil {
		return nil, fmt.Errorf("build client for scales: %w", err)
	}
	p := &process{log: log, store: store}
	p.autos = externalversions.NewSharedInformerFactory(client, 0)
	informer := p.autos.Autoscaling().V1alpha1().PodAutoscalers()
	if err := informer.Informer().SetTransform(func(o any) (any, error) {
		if pa, ok := o.(*v1alpha1.PodAutoscaler); ok {
			pa.ManagedFields = nil
		}
		return o, nil
	}); err != nil {
		return nil, fmt.Errorf("strip PodAutoscalers: %w", err)
	}
	lister := informer.Lister()
	get := func(namespace, name string) *v1alpha1.PodAutoscaler {
		pa, err := lister.PodAutoscalers(namespace).Get(name)
		if err != nil {
			return nil
		}
		return pa
	}
	p.all = func() []loop.Key {
		list, _ := lister.List(labels.Everything()) // a lister does not fail
		keys := make([]loop.Key, 0, len(list))
		for _, pa := range list {
			keys = append(keys, loop.Key{Namespace: pa.Namespace, Name: pa.Name})
		}
		return keys
	}
	changed := func(key loop.Key) { p.engine.Changed(key) }
	if p.index, err = pods.NewIndex(kube, changed); err != nil {
		return nil, err
	}
	p.election = lead.New(lead.Config{Namespace: who.namespace, Pod: who.pod, IP: who.ip, Scheme: lease.Of(store.Leases("autoscaler", lead.Prefix))}, kube, log, lead.Hooks{
		Changed: p.touchAll,
		Left:    func() { p.engine.Settle(letGo) },
		Taken:   func(bucket, from string) { go p.handover.TakeOver(context.Background(), bucket, from) },
	})

	registry := telemetry.NewRegistry()
	scrapes := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kn_autoscaler_scrape_duration_seconds",
		Help: "Time to scrape the sample of one revision's pods.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 13)}, []string{"counted"})
	writes := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "ebb_autoscaler_scale_write_seconds",
		Help: "Time from the news that asks for another scale to the end of its write.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 13)})
	reaction := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "ebb_autoscaler_stat_decision_seconds",
		Help: "Time from a stat's arrival to the decision that counts it.", Buckets: prometheus.ExponentialBuckets(0.0001, 2, 14)})
	registry.MustRegister(scrapes, writes, reaction)

	p.scraper = ingest.NewScraper(p.index.Ready)
	p.scraper.Mesh = func() bool { return store.Load().Network.MeshAddressing() }
	if who.scrapePort != "" {
		if p.scraper.Port, err = strconv.Atoi(who.scrapePort); err != nil {
			return nil, fmt.Errorf("environment SCRAPE_PORT: %w", err)
		}
	}
	scrapesBy := map[bool]prometheus.Observer{true: scrapes.WithLabelValues("true"), false: scrapes.WithLabelValues("false")}
	p.scraper.Observe = func(d time.Duration, counted bool) { scrapesBy[counted].Observe(d.Seconds()) }
	var foreign atomic.Int64
	p.scraper.Foreign = func(loop.Key) { foreign.Add(1) }

	p.events = record.NewBroadcaster()
	p.events.StartRecordingToSink(events.Sink(kube))
	recorder := p.events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "autoscaler"})

	clock := loop.Monotonic()
	costs := &act.Costs{Kube: kube, Ready: p.index.Ready, Count: p.index.Count, InFlight: p.scraper.InFlight, Now: clock}
	p.writer = act.New(scales, client.AutoscalingV1alpha1(), get, costs, recorder, log)
	p.writer.Clock = clock
	p.writer.ObserveWrite = func(d time.Duration) { writes.Observe(d.Seconds()) }
	source := &spec.Source{Get: get, Settings: store, Owns: p.election.Owns, Log: log}
	p.engine = loop.New(loop.Options{
		Shards: 4, Clock: clock, Log: log,
		Source: source,
		Pods:   p.index, Actor: p.writer, Scraper: p.scraper,
		Prober: act.NewProber(clusterdomain.Read()),
		Budget: revision.NewBudget(),
		// Activators report every revision they hold requests of, whoever scales it.
		Elsewhere: func(key loop.Key) bool {
			pa := get(key.Namespace, key.Name)
			return pa != nil && !spec.Ours(pa, store.Load().Autoscaler)
		},
		Observe: func(d time.Duration) { reaction.Observe(d.Seconds()) },
	})
	p.handover = &handover.Replica{Key: tokenKey, Engine: p.engine, Buckets: p.election, Clock: clock, Log: log, Self: who.ip}
	if _, err := informer.Informer().AddEventHandler(autoscalerHandler(changed)); err != nil {
		return nil, fmt.Errorf("watch PodAutoscalers: %w", err)
	}
	p.synced = informer.Informer().HasSynced

	server := &ingest.Server{Key: tokenKey, Reporter: p.engine, Owners: p.election, Clock: clock}
	registry.MustRegister(report.Collector{Each: p.engine.Each, Counts: func() []report.Count {
		return append(counts(server, p.engine, p.writer, foreign.Load()), report.Count{Name: "ebb_autoscaler_settings_ignored_total",
			Help: "Settings of PodAutoscalers that made no sense, by where they stand.", Reason: "annotation", Value: source.Ignored.Load()})
	}})
	p.metrics = registry
	p.stats = p.routes(server, who)
	return p, nil
}

// autoscalerHandler tells of what the loop reads; the loop's own writes of the status are no news
// to it.
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
		if a.UID == b.UID && a.Generation == b.Generation && same(a.Annotations, b.Annotations) && same(a.Labels, b.Labels) {
			return
		}
		notice(after)
	}}
}

func same(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// routes is what is served on the port for stats.
func (p *process) routes(stats http.Handler, who identity) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(wire.PathStats, stats)
	mux.Handle(wire.PathHandover, p.handover)
	mux.Handle(wire.PathDecisions, report.Decisions{Key: p.handover.Key, History: p.engine.History, Owner: func(k loop.Key) (string, bool) {
		return p.election.Owner(k), p.election.Owns(k)
	}})
	mux.Handle(wire.PathBirths, report.Births{Key: p.handover.Key, Of: p.birth, Owner: func(k loop.Key) (string, bool) {
		return p.election.Owner(k), p.election.Owns(k)
	}})
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

// birth is what is known of how a pod came to be.
func (p *process) birth(revision loop.Key, pod string) wire.Birth {
	b := p.index.Birth(revision, pod)
	if b == (pods.Birth{}) {
		return wire.Birth{}
	}
	return wire.Birth{Asked: p.writer.Raised(revision), Scheduled: b.Scheduled, Started: b.Started}
}

func counts(s *ingest.Server, e *loop.Engine, w *act.Writer, foreign int64) []report.Count {
	const refused = "Stats that did not count, by reason."
	all := []report.Count{
		{Name: "ebb_autoscaler_stats_refused_total", Help: refused, Reason: "unauthorized", Value: s.Refused.Unauthorized.Load()},
		{Name: "ebb_autoscaler_stats_refused_total", Help: refused, Reason: "forged", Value: s.Refused.Forged.Load()},
		{Name: "ebb_autoscaler_stats_refused_total", Help: refused, Reason: "malformed", Value: s.Refused.Malformed.Load()},
		{Name: "ebb_autoscaler_stats_refused_total", Help: refused, Reason: "no-load", Value: s.Refused.Insane.Load()},
		{Name: "ebb_autoscaler_stats_refused_total", Help: refused, Reason: "no-owner", Value: s.Refused.NoOwner.Load()},
		{Name: "ebb_autoscaler_stats_refused_total", Help: refused, Reason: "busy", Value: s.Refused.Busy.Load()},
		{Name: "ebb_autoscaler_stats_refused_total", Help: refused, Reason: "foreign-pod", Value: foreign},
		{Name: "ebb_autoscaler_stats_total", Help: "Stats taken, by where they went.", Reason: "own", Value: s.Accepted.Load()},
		{Name: "ebb_autoscaler_stats_total", Help: "Stats taken, by where they went.", Reason: "forwarded", Value: s.Forwarded.Load()},
		{Name: "ebb_autoscaler_orders_total", Help: "Orders carried out, by outcome.", Reason: "scale-written", Value: w.Written.Load()},
		{Name: "ebb_autoscaler_orders_total", Help: "Orders carried out, by outcome.", Reason: "failed", Value: w.Failed.Load()},
	}
	for reason, n := range e.Refused() {
		all = append(all, report.Count{Name: "ebb_autoscaler_stats_refused_total", Help: refused, Reason: string(reason), Value: n})
	}
	return all
}

// touchAll has every PodAutoscaler looked at anew.
func (p *process) touchAll() {
	for _, key := range p.all() {
		p.engine.Changed(key)
	}
}

// follow starts the informers, and then touches everything whenever the settings change.
func (p *process) follow(ctx context.Context) error {
	// The pods come first: adopted without its pods a revision would look as if it had none.
	if !p.index.Start(ctx.Done()) {
		return ctx.Err()
	}
	p.autos.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), p.synced) {
		return ctx.Err()
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
