// Package tracing makes the spans of a proxy: one for the request as it came, and one inside it for
// what was sent on.
//
// Owns: span identifiers, the sampling decision, and a bounded buffer of finished spans. Reads:
// trace headers. Writes: traceparent on requests that are forwarded, spans to a collector. Never:
// delays a request; what the buffer cannot take is counted and dropped.
package tracing

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/otlp"
)

// Stdout is the protocol that writes each span as a line of JSON.
const Stdout = "stdout"

// Options of a Tracer.
type Options struct {
	Target   otlp.Target // Protocol may be Stdout
	Rate     float64     // share of requests without a trace of their own that are traced, 0..1
	Resource []otlp.Attribute
	Scope    string
	Stdout   io.Writer
	Failed   func(error)
}

const (
	flushEvery = time.Second
	flushBytes = 256 << 10
	maxBytes   = 2 << 20 // of spans that wait to be sent
	attempts   = 4
)

// Tracer is made by New; Run must run. A nil Tracer traces nothing.
type Tracer struct {
	options   Options
	threshold uint64
	exporter  *otlp.Exporter

	mutex sync.Mutex
	spans []byte
	count int
	full  chan struct{}

	// Dropped counts spans that were given up.
	Dropped atomic.Int64
}

// New makes a Tracer, or returns nil for a protocol that is "" or "none".
func New(o Options) (*Tracer, error) {
	t := &Tracer{options: o, full: make(chan struct{}, 1)}
	// The same rule as OpenTelemetry's ratio sampler, so that all hops agree.
	t.threshold = uint64(min(max(o.Rate, 0), 1) * (1 << 63))
	switch o.Target.Protocol {
	case "", "none":
		return nil, nil
	case Stdout:
		if o.Stdout == nil {
			return nil, errors.New("tracing to stdout needs a writer")
		}
		return t, nil
	}
	var err error
	if t.exporter, err = otlp.NewExporter(o.Target, otlp.Traces); err != nil {
		return nil, err
	}
	return t, nil
}

// Context is a request's place in a trace.
type Context struct {
	TraceID [16]byte
	SpanID  [8]byte // of the span that encloses what comes
	Sampled bool
}

// Span is a request on its way; nil when it is not traced.
type Span struct {
	tracer *Tracer
	trace  [16]byte
	parent [8]byte
	id     [8]byte
	inner  [8]byte // the span of what is sent on
	state  string
}

// Begin decides whether the request is traced, and tells whoever it is forwarded to. It must be
// called before the request is forwarded.
func (t *Tracer) Begin(r *forward.Request) *Span {
	if t == nil {
		return nil
	}
	in, found := Extract(r.Header)
	if !found {
		random(in.TraceID[:])
		in.Sampled = bigEndian(in.TraceID[8:])>>1 < t.threshold
		if !in.Sampled {
			// The container is told not to trace what nobody else does.
			random(in.SpanID[:])
			r.SetHeader("Traceparent", in.String())
			return nil
		}
	}
	if !in.Sampled {
		return nil // its own headers go on as they are
	}
	s := &Span{tracer: t, trace: in.TraceID, parent: in.SpanID, state: strings.Clone(r.Header("Tracestate"))}
	random(s.id[:])
	random(s.inner[:])
	r.SetHeader("Traceparent", Context{TraceID: s.trace, SpanID: s.inner, Sampled: true}.String())
	return s
}

// TraceID is the trace's name, "" for a nil Span.
func (s *Span) TraceID() string {
	if s == nil {
		return ""
	}
	return hex.EncodeToString(s.trace[:])
}

// End tells how the request ended. sent is when it was sent on, zero when it never was; more
// describes it further.
func (s *Span) End(r *forward.Request, result *forward.Result, sent time.Time, more ...otlp.Attribute) {
	if s == nil {
		return
	}
	end := r.Started.Add(result.Duration)
	scheme := "http"
	if r.TLS() {
		scheme = "https"
	}
	outer := otlp.Span{
		TraceID: s.trace, SpanID: s.id, Parent: s.parent, State: s.state, Name: r.Method(), Kind: otlp.Server, Start: r.Started, End: end,
		Attributes: append([]otlp.Attribute{
			otlp.String("http.request.method", r.Method()),
			otlp.String("url.path", r.Path()),
			otlp.String("url.scheme", scheme),
			otlp.String("server.address", r.Host()),
			otlp.String("client.address", r.RemoteAddr().Addr().String()),
			otlp.String("network.protocol.version", strings.TrimPrefix(r.Proto(), "HTTP/")),
			otlp.String("user_agent.original", r.Header("User-Agent")),
			otlp.Int("http.response.status_code", int64(result.Status)),
		}, more...),
	}
	switch {
	case result.Err != nil:
		outer.Failure = result.Err.Error()
	case result.Status >= 500 || result.Status == 0:
		outer.Failure = result.Cause.String()
	}
	s.tracer.add(&outer)
	if sent.IsZero() {
		return
	}
	inner := outer
	inner.SpanID, inner.Parent, inner.Kind, inner.Start = s.inner, s.id, otlp.Client, sent
	inner.Attributes = []otlp.Attribute{outer.Attributes[0], outer.Attributes[1], outer.Attributes[7]}
	s.tracer.add(&inner)
}

func (t *Tracer) add(s *otlp.Span) {
	if t.exporter == nil {
		t.print(s)
		return
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if len(t.spans) >= maxBytes {
		t.Dropped.Add(1)
		return
	}
	t.spans = otlp.AppendSpan(t.spans, s)
	t.count++
	if len(t.spans) >= flushBytes {
		select {
		case t.full <- struct{}{}:
		default:
		}
	}
}

// Run sends what was added until ctx ends, and what is left then.
func (t *Tracer) Run(ctx context.Context) {
	if t == nil || t.exporter == nil {
		return
	}
	defer t.exporter.Close()
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			t.flush(last)
			return
		case <-tick.C:
		case <-t.full:
		}
		t.flush(ctx)
	}
}

func (t *Tracer) flush(ctx context.Context) {
	t.mutex.Lock()
	spans, count := t.spans, t.count
	t.spans, t.count = nil, 0
	t.mutex.Unlock()
	if count == 0 {
		return
	}
	request := otlp.Request(t.options.Resource, t.options.Scope, spans)
	pause := 500 * time.Millisecond
	for try := 1; ; try++ {
		err := t.exporter.Export(ctx, request)
		if err == nil {
			return
		}
		var again *otlp.RetryableError
		if try == attempts || !errors.As(err, &again) || ctx.Err() != nil {
			t.Dropped.Add(int64(count))
			if t.options.Failed != nil {
				t.options.Failed(fmt.Errorf("%d spans are lost: %w", count, err))
			}
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		pause *= 2
	}
}

// print writes a span as a line.
func (t *Tracer) print(s *otlp.Span) {
	attributes := make(map[string]any, len(s.Attributes))
	for _, a := range s.Attributes {
		if a.IsInt {
			attributes[a.Key] = a.Number
		} else {
			attributes[a.Key] = a.Text
		}
	}
	line := map[string]any{
		"traceId": hex.EncodeToString(s.TraceID[:]), "spanId": hex.EncodeToString(s.SpanID[:]), "name": s.Name,
		"kind": map[otlp.Kind]string{otlp.Server: "SERVER", otlp.Client: "CLIENT"}[s.Kind], "startTime": s.Start.Format(time.RFC3339Nano),
		"endTime": s.End.Format(time.RFC3339Nano), "attributes": attributes,
	}
	if s.Parent != [8]byte{} {
		line["parentSpanId"] = hex.EncodeToString(s.Parent[:])
	}
	if s.Failure != "" {
		line["error"] = s.Failure
	}
	text, err := json.Marshal(line)
	if err != nil {
		t.Dropped.Add(1) // cannot happen: strings and integers
		return
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.options.Stdout.Write(append(text, '\n'))
}

func random(b []byte) {
	for i := 0; i < len(b); i += 8 {
		for n := uint64(0); n == 0; {
			n = rand.Uint64()
			for j := range 8 {
				b[i+j] = byte(n >> (8 * j))
			}
		}
	}
}

func bigEndian(b []byte) uint64 {
	n := uint64(0)
	for _, c := range b[:8] {
		n = n<<8 | uint64(c)
	}
	return n
}
