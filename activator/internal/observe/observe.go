// Package observe tells of requests what config-observability asks for: the request log and spans.
//
// Owns: the log and the tracer in use. Reads: the settings, as they change. Writes: lines to
// stdout, spans to a collector. Never: costs a request anything while both are off.
package observe

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"ebb.dev/ebb/activator/internal/chain"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/otlp"
	"ebb.dev/ebb/internal/requestlog"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/tracing"
	"ebb.dev/ebb/settings"
)

// Observer follows the settings; fill it, then let Run run.
type Observer struct {
	Settings *settings.Store
	// Namespace, Pod and PodIP are the activator's own.
	Namespace, Pod, PodIP string
	Stdout                io.Writer
	Log                   *slog.Logger

	current atomic.Pointer[now]
}

// now is what holds at the moment.
type now struct {
	tracer *tracing.Tracer
	log    *requestlog.Log
}

func (o *Observer) resource() []otlp.Attribute {
	return []otlp.Attribute{otlp.String("service.name", "activator"), otlp.String("k8s.namespace.name", o.Namespace), otlp.String("k8s.pod.name", o.Pod)}
}

// Tracer is nil while nothing is traced.
func (o *Observer) Tracer() *tracing.Tracer {
	if n := o.current.Load(); n != nil {
		return n.tracer
	}
	return nil
}

// Ended implements chain.Handler.Ended: it writes the line of a request.
func (o *Observer) Ended(x *chain.Exchange, r *forward.Request, result *forward.Result) {
	n := o.current.Load()
	if n == nil || n.log == nil {
		return
	}
	info := x.Revision.Info()
	n.log.Write(r, result, false, requestlog.Revision{
		Name: x.Revision.Key.Name, Namespace: x.Revision.Key.Namespace, Service: info.Service, Configuration: info.Configuration,
		PodName: o.Pod, PodIP: o.PodIP,
	}, x.Span.TraceID())
}

// asked is what the settings say of log and spans.
type asked struct {
	log      bool
	template string
	tracing  settings.Tracing
}

// Run follows the settings until ctx ends. Spans that a former collector did not get yet are sent
// to it all the same.
func (o *Observer) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	stop := func() {}
	defer func() { stop() }()
	var before *asked
	for {
		snapshot, replaced := o.Settings.Current()
		s := snapshot.Observability
		if want := (asked{s.EnableRequestLog, s.RequestLogTemplate, s.Tracing}); before == nil || *before != want {
			stop()
			stop = o.begin(ctx, want, &running)
			before = &want
		}
		select {
		case <-ctx.Done():
			return nil
		case <-replaced:
		}
	}
}

// begin puts in force what is asked for, until stop is called.
func (o *Observer) begin(ctx context.Context, want asked, running *sync.WaitGroup) (stop func()) {
	next := o.make(want)
	o.current.Store(next)
	round, stop := context.WithCancel(ctx)
	running.Go(func() { next.tracer.Run(round) })
	return stop
}

// make builds what is asked for. What cannot be built is logged and stays off: it is no reason to
// refuse service.
func (o *Observer) make(want asked) *now {
	n := &now{}
	var err error
	n.tracer, err = tracing.New(tracing.Options{
		Target: otlp.Target{Protocol: want.tracing.Protocol, Endpoint: want.tracing.Endpoint}, Rate: want.tracing.SamplingRate,
		Resource: o.resource(), Scope: telemetry.Scope("activator"), Stdout: o.Stdout,
		Failed: func(err error) { o.Log.Warn("export spans", "error", err) },
	})
	if err != nil {
		o.Log.Error("trace export is off", "error", err)
	}
	if want.log {
		if n.log, err = requestlog.New(o.Stdout, want.template, false); err != nil {
			o.Log.Error("no request is logged", "error", err)
		}
	}
	return n
}
