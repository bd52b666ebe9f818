package sidecar

import (
	"context"
	"os"
	"sync"
	"time"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/otlp"
	"ebb.dev/ebb/internal/requestlog"
	"ebb.dev/ebb/internal/tracing"
	"ebb.dev/ebb/queue-proxy/internal/chain"
	"ebb.dev/ebb/queue-proxy/internal/records"
	"ebb.dev/ebb/queue-proxy/internal/usermetrics"
	"ebb.dev/ebb/wire"
)

// scope is OpenTelemetry's name of what is observed here (contract section 5.6).
const scope = "knative.dev/serving/pkg/queue"

// observe makes of the settings what is told of requests. A collector's address that makes no sense
// is logged; it is no reason to refuse service.
func (s *Sidecar) observe(c *chain.Chain) error {
	cfg := s.cfg
	resource := []otlp.Attribute{
		otlp.String("kn.service.name", cfg.Service), otlp.String("kn.configuration.name", cfg.Configuration),
		otlp.String("kn.revision.name", cfg.Revision), otlp.String("k8s.namespace.name", cfg.Namespace), otlp.String("k8s.pod.name", cfg.Pod),
	}
	sources := usermetrics.Sources{Waiting: s.gate.Waiting, Upgraded: s.server.Upgraded, Panics: s.server.Panics, Evicted: s.server.Evicted, Overruns: s.user.Overruns}
	if s.sleeper != nil {
		sources.RejectedPeers = s.sleeper.RejectedPeers
	}
	s.metrics = usermetrics.New(resource, sources)
	resource = append(resource, otlp.String("service.name", "queue-proxy"))
	var err error
	switch m := cfg.Observability.RequestMetrics; m.Protocol {
	case "", "none":
	case "prometheus":
		c.Observers = append(c.Observers, s.metrics)
	default:
		target := otlp.Target{Protocol: m.Protocol, Endpoint: m.Endpoint, RootCA: cfg.RootCA}
		if s.pusher, err = otlp.NewExporter(target, otlp.Meters); err != nil {
			s.log.Error("request metrics export is off", "error", err)
			break
		}
		c.Observers = append(c.Observers, s.metrics)
	}
	t := cfg.Observability.Tracing
	s.tracer, err = tracing.New(tracing.Options{
		Target: otlp.Target{Protocol: t.Protocol, Endpoint: t.Endpoint, RootCA: cfg.RootCA}, Rate: t.SamplingRate,
		Resource: resource, Scope: scope, Stdout: os.Stdout,
		Failed: func(err error) { s.log.Warn("export spans", "error", err) },
	})
	if err != nil {
		s.log.Error("trace export is off", "error", err)
	}
	c.Tracer = s.tracer
	if cfg.Records != wire.RecordsNone && cfg.Autoscaler != "" {
		s.recorder = &records.Recorder{All: cfg.Records == wire.RecordsAll, Namespace: cfg.Namespace, Revision: cfg.Revision, Pod: cfg.Pod, Autoscaler: cfg.Autoscaler,
			Token: s.token, Failed: func(err error) { s.log.Warn("records of requests are lost", "error", err) }}
		c.Observers = append(c.Observers, s.recorder)
	}
	if !cfg.Observability.EnableRequestLog {
		return nil
	}
	l, err := requestlog.New(os.Stdout, cfg.Observability.RequestLogTemplate, cfg.Observability.EnableProbeRequestLog)
	if err != nil {
		return err
	}
	c.Observers = append(c.Observers, logged{l, requestlog.Revision{
		Name: cfg.Revision, Namespace: cfg.Namespace, Service: cfg.Service, Configuration: cfg.Configuration,
		PodName: cfg.Pod, PodIP: cfg.PodIP.String(),
	}})
	return nil
}

// logged is the request log as an Observer.
type logged struct {
	log      *requestlog.Log
	revision requestlog.Revision
}

func (l logged) Observe(r *forward.Request, res *forward.Result, e chain.Ended) {
	l.log.Write(r, res, e.Probe, l.revision, e.Trace)
}

// tell sends to the collectors until ctx ends, and once more then.
func (s *Sidecar) tell(ctx context.Context, running *sync.WaitGroup) {
	if s.tracer != nil {
		running.Go(func() { s.tracer.Run(ctx) })
	}
	if s.recorder != nil {
		running.Go(func() { s.recorder.Run(ctx) })
	}
	if s.pusher == nil {
		return
	}
	// wire.ReadSidecar has seen the duration.
	interval, _ := time.ParseDuration(s.cfg.Observability.RequestMetrics.Interval)
	running.Go(func() {
		otlp.Push(ctx, s.pusher, interval, s.metrics.Resource(), scope, s.metrics.Collect,
			func(err error) { s.log.Warn("export metrics", "error", err) })
	})
}
