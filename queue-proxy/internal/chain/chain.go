// Package chain is queue-proxy's policy for every request: the pipeline of contract section 5.2,
// from the outside in.
//
//	probe?       answered here; never counted as load
//	misdirected  refused: it is for another revision
//	timers       set for everything below; time in the queue counts
//	draining?    readiness fails; requests are still served, each renewing the quiet time, until the
//	             container is told to end
//	Forwarded    made from X-Forwarded-* where it is absent
//	trace        begun
//	asleep?      waits until the pod is awake; refused if an activator asked for that and it takes long
//	limit        a slot, a place in the queue, or 503; refused if an activator asked for that
//	forward      to the user container
//
// Owns: the order above. Reads: the request. Writes: edits of the forwarded head, local replies.
// Never: touches a socket.
package chain

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
	"unsafe"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/otlp"
	"ebb.dev/ebb/internal/tracing"
	"ebb.dev/ebb/queue-proxy/internal/routetag"
	"ebb.dev/ebb/wire"
)

// Observer is told of every exchange when it is over: the request log, the metrics.
type Observer interface {
	Observe(r *forward.Request, res *forward.Result, e Ended)
}

// Ended is what is to be said of an exchange beyond its Result.
type Ended struct {
	Probe bool
	Down  bool      // no connection to the container could be made
	Sent  time.Time // to the container; zero when it never was
	Trace string    // the trace that the request is part of, "" when it is not traced here
}

// Chain implements forward.Handler.
type Chain struct {
	// Namespace and Revision are the pod's. A request for another revision is refused.
	Namespace, Revision string

	Gate     *Gate
	User     *forward.Upstream
	Timeouts forward.Timeouts
	// Ready asks the user container on behalf of the kubelet.
	Ready func(ctx context.Context) error
	// Activator says whether an address in wire.HeaderNoQueue is an activator's. Without it
	// nobody's is.
	Activator func(caller string) bool
	// Draining says that the pod goes away; Arrive notes an ordinary request, and reports false if
	// the container is told to end.
	Draining func() bool
	Arrive   func() bool
	// Await waits until a pod that sleeps is awake. It reports false if that takes too long for a
	// caller that is not patient, or the request's context ended. nil if the pod never sleeps.
	Await func(ctx context.Context, patient bool) bool
	// Asleep says that the pod sleeps. Its container is not asked then, for nobody; nil if the pod
	// never sleeps.
	Asleep func() bool
	// Busy says that responses may say that the program is busy. Requests lose that field then, so
	// that no client says it through a program that sends fields back.
	Busy      bool
	Observers []Observer
	Tracer    *tracing.Tracer // nil traces nothing

	passes sync.Pool
}

// Bodies that clients and tests can observe (contract section 5).
const (
	bodyShuttingDown = "shutting down"
	bodyQueueFull    = "pending request queue full"
	bodyBadProbe     = "unexpected probe header value: "
)

// Admit implements forward.Handler.
func (c *Chain) Admit(r *forward.Request) forward.Decision {
	p, _ := c.passes.Get().(*pass)
	if p == nil {
		p = &pass{}
		p.waiter.Ready = make(chan struct{}, 1)
	}
	p.renew()
	r.Data = p
	if v, handled := c.probe(r, p); handled {
		return v
	}
	if c.misdirected(r) {
		return refusal(wire.RefusedRevision)
	}
	r.Timeouts = c.Timeouts
	// Anybody can send the header; only an activator is refused and called back.
	caller := ""
	asked := r.Header(wire.HeaderNoQueue)
	if asked != "" && c.Activator != nil && c.Activator(asked) {
		caller = asked
	}
	p.proxied = r.Header(wire.HeaderProxyRequest) == wire.ProxyActivator
	if !c.Arrive() {
		if p.proxied {
			return refusal(wire.RefusedDown)
		}
		return reply(503, bodyShuttingDown)
	}
	c.edit(r, p)
	if asked != "" {
		r.DelHeader(wire.HeaderNoQueue)
	}
	p.span = c.Tracer.Begin(r)
	entry := c.Gate.enter(p, r.Started, weight, caller)
	for entry == asleep {
		if !c.Await(r.Context(), caller == "") {
			p.span = nil // the request goes to another pod
			return refusal(wire.RefusedAsleep)
		}
		entry = c.Gate.enter(p, time.Now(), weight, caller)
	}
	switch entry {
	case refused:
		p.span = nil // the request goes to another pod
		return refusal(wire.RefusedLimit)
	case full:
		return queueFull()
	case queued:
		_ = r.Charge(account{c.Gate, p}, 0) // await reports an error
		if ctx := r.Context(); !c.Gate.await(ctx, p) {
			if p.outgrew {
				return queueFull()
			}
			// The forwarder answers for a client that left and for timers; what remains is the end
			// of the process.
			return forward.Decision{Reply: forward.Reply{Status: 503, Body: context.Cause(ctx).Error()}}
		}
	}
	if asked != "" {
		r.Continue() // the activator keeps the body back until it knows that it is not refused
	}
	return forward.Decision{Upstream: c.User}
}

// OnDialError implements forward.Redirector: nobody listens in the container, which has ended or
// starts again. An activator sends the request to another pod, and leaves this one alone for a
// while. Anybody else is told, and so is an activator whose request may have been what ended the
// container: it would end that of each pod.
func (c *Chain) OnDialError(r *forward.Request, err error) forward.Decision {
	p := r.Data.(*pass)
	p.down = true
	if p.elsewhere = p.proxied && !r.WorkedOn(); !p.elsewhere {
		return forward.Decision{Reply: FailureReply(err)}
	}
	return refusal(wire.RefusedDown)
}

// Done implements forward.Handler.
func (c *Chain) Done(r *forward.Request, res *forward.Result) {
	p := r.Data.(*pass)
	now, who, sender := r.Started.Add(res.Duration+res.Parted), c.blame(res, p), unknown
	switch {
	case who == nobody:
	case routetag.Chosen(r): // the sender chose the revision
		sender = tagged
	case c.Gate.isAsked(now):
		sender = drawerOf(r)
	}
	c.Gate.leave(p, now, res, who, sender)
	if p.span != nil {
		p.span.End(r, res, p.sent, otlp.String("kn.route.tag", routetag.Of(r)))
	}
	if len(c.Observers) > 0 {
		e := Ended{Probe: p.probe, Down: p.down, Sent: p.sent, Trace: p.span.TraceID()}
		for _, o := range c.Observers {
			o.Observe(r, res, e)
		}
	}
	c.passes.Put(p)
}

// statusFull is the status of an answer to a request for which there is no room.
const statusFull = 503

func queueFull() forward.Decision {
	return forward.Decision{Reply: forward.Reply{
		Status: statusFull, Body: bodyQueueFull, Header: []forward.Header{{Name: "Retry-After", Value: "1"}},
	}}
}

func refusal(why string) forward.Decision {
	return forward.Decision{Reply: forward.Reply{
		Status: wire.RefusedStatus, Body: "refused: " + why,
		Header: []forward.Header{{Name: wire.HeaderRefused, Value: why}},
	}}
}

// probe answers the probes of Ebb and of the kubelet, which all carry the header. Nothing of them
// reaches the container but what Ready sends. The kubelet's liveness and startup probes go to the
// container itself. A User-Agent proves nothing: a request that only calls itself a probe is
// counted and limited like any other.
func (c *Chain) probe(r *forward.Request, p *pass) (forward.Decision, bool) {
	value := r.Header(wire.HeaderNetworkProbe)
	if value == "" {
		return forward.Decision{}, false
	}
	p.probe = true
	switch {
	case value == wire.ProbeIngress:
		hash := r.Header(wire.HeaderNetworkHash)
		if hash == "" {
			return reply(400, "a probe needs "+wire.HeaderNetworkHash), true
		}
		v := reply(200, "")
		v.Reply.Header = []forward.Header{{Name: wire.HeaderNetworkHash, Value: strings.Clone(hash)}}
		return v, true
	case c.Draining():
		return reply(503, bodyShuttingDown), true
	case value != wire.ProbeQueue:
		return reply(400, bodyBadProbe+value), true
	}
	if r.Header("User-Agent") == wire.AgentActivatorProbe && c.Asleep != nil && c.Asleep() {
		return reply(200, wire.ProbeQueue), true // a request wakes the pod
	}
	if err := c.Ready(r.Context()); err != nil {
		return reply(503, ""), true
	}
	return reply(200, wire.ProbeQueue), true
}

// misdirected reports whether the request is for another revision. Its sender has not noticed yet
// that the address belongs to another pod now.
func (c *Chain) misdirected(r *forward.Request) bool {
	revision := r.Header(wire.HeaderRevision)
	return revision != "" && (revision != c.Revision || r.Header(wire.HeaderNamespace) != c.Namespace)
}

func reply(status int, body string) forward.Decision {
	return forward.Decision{Reply: forward.Reply{Status: status, Body: body}}
}

// edit makes of the request what the user container is meant to see.
func (c *Chain) edit(r *forward.Request, p *pass) {
	r.DelHeader(wire.HeaderRevision)
	r.DelHeader(wire.HeaderNamespace)
	r.DelHeader(wire.HeaderProxyRequest)
	r.DelHeader(wire.HeaderNetworkHash)
	r.DelHeader(wire.HeaderDirectLB)
	if r.HasHeader(wire.HeaderFailed) { // no client says it through a program that sends fields back
		r.DelHeader(wire.HeaderFailed)
	}
	if c.Busy {
		r.DelHeader(wire.HeaderBusy)
	}
	if host, sent := r.Header(wire.HeaderOriginalHost), r.HasHeader(wire.HeaderOriginalHost); sent {
		if forward.ValidHost(host) {
			r.SetHost(host)
		}
		r.DelHeader(wire.HeaderOriginalHost)
	}
	if !r.HasHeader("Forwarded") {
		if p.forwarded = appendForwarded(p.forwarded[:0], r); len(p.forwarded) > 0 {
			r.SetHeader("Forwarded", unsafe.String(unsafe.SliceData(p.forwarded), len(p.forwarded))) // p stays as it is until Done
		}
	}
}

// TimeoutReply is the answer of a timer that fired: the contract's words, and which timer it was.
func TimeoutReply(t forward.Timer, after time.Duration) forward.Reply {
	return forward.Reply{Status: 504, Body: "request timeout: " + t.String() + " of " + after.String() + " passed"}
}

// FailureReply is the answer when the user container gave none.
func FailureReply(err error) forward.Reply {
	var dial *forward.DialError
	if errors.As(err, &dial) {
		return forward.Reply{Status: 502, Body: "the container does not accept connections"}
	}
	return forward.Reply{Status: 502, Body: "the container gave no valid response: " + forward.FailureText(err)}
}
