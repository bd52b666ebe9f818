// Package chain is what the activator does with one request: is it a probe, which revision is it
// for, may it wait, which pod, and what the pod is told.
//
// Owns: the order of these steps, and the words of the answers that the activator gives itself.
// Reads: the table of revisions. Writes: each revision's load and queue, as package bind says.
// Never: touches a body; that is forward's.
package chain

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"ebb.dev/ebb/activator/bind"
	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/cold"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/identity"
	"ebb.dev/ebb/activator/internal/plans"
	"ebb.dev/ebb/activator/internal/relay"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/otlp"
	"ebb.dev/ebb/internal/tracing"
	"ebb.dev/ebb/wire"
)

// maxDeferred is how long a body is held back until queue-proxy accepts or refuses the request. A
// body that was sent cannot go to another pod, and a busy queue-proxy answers late.
const maxDeferred = 10 * time.Minute

// requestCost is what one request costs in memory besides what forward.Request.Charge counts:
// goroutines, a connection to a pod, a place in the queue.
const requestCost = 12 << 10

// Handler is the policy of the activator's servers.
type Handler struct {
	Table  *backends.Table
	Domain string // of the cluster, such as cluster.local
	// Plans are for requests that gateways lead here by their host alone, and Unknown bounds those
	// that wait for one.
	Plans   *plans.Table
	Unknown *plans.Room
	// Relay has the other activators that such requests are relayed to; nil is none.
	Relay *relay.Table
	// Self is the address that a pod tells of a free slot: host:port of the announcement port.
	Self string
	// Healthy says why the activator should get no new requests, "" when all is well.
	Healthy func() string
	// ReportNow has a revision reported at once.
	ReportNow func(backends.Key)
	// ColdStartHeader says whether responses to requests that waited from zero tell how long the
	// steps took.
	ColdStartHeader func() bool
	// Mesh, when set, says whether pods are to be named in a way that a service mesh knows: by
	// their private Service.
	Mesh func() bool
	// Tracer, when set, is asked for the tracer of the moment; it may be nil.
	Tracer func() *tracing.Tracer
	// Ended, when set, is told of each request after its end; it must not keep what it is given.
	Ended func(*Exchange, *forward.Request, *forward.Result)
	// Unreached, when set, is told of each attempt to connect to the exchange's pod that nobody
	// answered, not even the kernel of the pod's node. It must not block.
	Unreached func(*Exchange)

	last atomic.Int64 // unix nanoseconds of the newest request that was no probe
	pool sync.Pool
}

// Exchange is one request on its way through the activator.
type Exchange struct {
	Revision *backends.Revision
	// Bound is when the request had its pod, zero when it never had.
	Bound time.Time
	// Pod is the pod that had the request last.
	Pod string
	// Birth is that pod's, when the request waited for it from zero.
	Birth backends.Birth
	// Why is the reason if the activator answered the request itself.
	Why string
	// Span is nil when the request is not traced.
	Span *tracing.Span

	// relayed says that another activator relayed the request here. to is the one that it was
	// relayed to, nil if it is served here; taken says that it took the request. charged says that
	// the account was asked for the memory, noRoom what it said.
	relayed        bool
	to             *relay.Activator
	taken, charged bool
	noRoom         error

	machine bind.Machine
	ticket  hold.Ticket
	slot    hold.Slot
	rules   *cold.Rules   // those by which the request waits, or nil
	refusal forward.Reply // if it cannot wait, or any longer
}

// LastRequest is when the newest request came that was no probe.
func (h *Handler) LastRequest() time.Time { return time.Unix(0, h.last.Load()) }

// Admit implements forward.Handler.
func (h *Handler) Admit(r *forward.Request) forward.Decision {
	if reply, ok := h.probe(r); ok {
		return forward.Decision{Reply: reply}
	}
	h.last.Store(r.Started.UnixNano())
	revision, how, reply := h.identify(r)
	if revision == nil {
		return forward.Decision{Reply: reply}
	}
	x := h.exchange(revision)
	r.Data = x
	x.relayed = how == byRelay
	if how == byPlan {
		if d, ok := h.relay(r, x); ok {
			return d
		}
	}
	return h.serve(r, x)
}

// serve brings the request to a pod of its revision, or answers it.
func (h *Handler) serve(r *forward.Request, x *Exchange) forward.Decision {
	e := h.begin(r, x)
	return h.carry(r, x, h.step(x, &e))
}

// begin counts the request in, unless it is none that wakes a pod, and prepares it for its pod.
func (h *Handler) begin(r *forward.Request, x *Exchange) bind.Event {
	info := x.Revision.Info()
	if x.rules = info.Cold; x.rules != nil && x.rules.WakesNone(r.Path(), r.Header("User-Agent")) && !x.Revision.Snapshot().Awake() {
		return bind.Event{Kind: bind.Unwanted}
	}
	if x.Revision.Load().Meter.In(r.Started) {
		h.ReportNow(x.Revision.Key)
	}
	if err := x.charge(r, info); err != nil {
		return x.failed(err)
	}
	r.Timeouts = timeouts(info)
	h.rewrite(r, x, info)
	if h.Tracer != nil {
		x.Span = h.Tracer().Begin(r)
	}
	return bind.Event{Kind: bind.Begin, At: r.Started}
}

// timeouts are those of the revision.
func timeouts(info *backends.Info) forward.Timeouts {
	t := forward.Timeouts{ResponseStart: info.ResponseStartTimeout, Idle: info.IdleTimeout, Total: info.Timeout}
	if info.CutResponses {
		t.Action = forward.CutResponse
	}
	return t
}

// step tells the machine what happened, and does at once what can be done at once.
func (h *Handler) step(x *Exchange, e *bind.Event) bind.Do {
	do := x.machine.Step(e)
	if do.Has(bind.SlotAnswered) {
		x.slot.Answered()
	}
	if do.Has(bind.SlotRefused) {
		x.slot.Refused()
	}
	if do.Has(bind.SlotFailed) {
		x.slot.Failed()
	}
	if do.Has(bind.Report) {
		h.ReportNow(x.Revision.Key)
	}
	return do
}

// carry does what the machine says until the request has a pod or an answer.
func (h *Handler) carry(r *forward.Request, x *Exchange, do bind.Do) forward.Decision {
	for {
		var e bind.Event
		switch {
		case do.Has(bind.Try):
			e = h.try(r, x)
		case do.Has(bind.Wait):
			e = h.wait(r, x)
		case do.Has(bind.FallBack):
			e = h.fallBack(r, x)
		case do.Has(bind.Send):
			return h.send(r, x)
		default:
			return forward.Decision{Reply: x.reply()}
		}
		do = h.step(x, &e)
	}
}

// rewrite sets what queue-proxy reads and removes what the user container should not see.
func (h *Handler) rewrite(r *forward.Request, x *Exchange, info *backends.Info) {
	if !forward.ValidHost(r.Header(wire.HeaderOriginalHost)) {
		r.SetHeader(wire.HeaderOriginalHost, r.Host())
	}
	r.SetHeader(wire.HeaderProxyRequest, wire.ProxyActivator)
	// A pod that has taken over another pod's address refuses what is not for its revision.
	r.SetHeader(wire.HeaderRevision, x.Revision.Key.Name)
	r.SetHeader(wire.HeaderNamespace, x.Revision.Key.Namespace)
	r.DelHeader(wire.HeaderNetworkHash)
	if h.Plans.Followed() { // before, no activator relays
		r.DelHeader(wire.HeaderRelayed)
	}
	if info.ContainerConcurrency > 0 {
		// Only the pod's own limit knows what other activators have sent there; see
		// wire.HeaderNoQueue.
		r.SetHeader(wire.HeaderNoQueue, h.Self)
		r.DeferBody(maxDeferred)
	} else {
		r.DelHeader(wire.HeaderNoQueue)
		r.DeferBody(0) // another revision may have wanted it
	}
}

// send sends the request to the pod of its slot.
func (h *Handler) send(r *forward.Request, x *Exchange) forward.Decision {
	x.Pod = x.slot.Pod()
	if x.relayed && x.Revision.Info().ContainerConcurrency == 0 {
		r.Continue() // who relayed it keeps the body back; a pod with a limit says it itself
	}
	upstream := x.slot.Reach().Choose()
	if h.Mesh != nil && h.Mesh() {
		r.SetHost(names.PrivateService(x.Revision.Key.Name) + "." + x.Revision.Key.Namespace)
		r.SetHeader(wire.HeaderDirectLB, "true")
	} else {
		r.SetHost(upstream.Addr())
	}
	return forward.Decision{Upstream: upstream}
}

// OnDialError implements forward.Redirector: no connection to the pod could be made. The request
// goes to another pod, or waits for this one if it is the only one: until the revision's timeout,
// as it would for a revision without pods.
func (h *Handler) OnDialError(r *forward.Request, err error) forward.Decision {
	x := r.Data.(*Exchange)
	if x.to != nil {
		return h.unreached(r, x)
	}
	e := bind.Event{Kind: bind.DialFailed}
	var untrusted *identity.UntrustedError
	if errors.As(err, &untrusted) {
		e.Untrusted, e.Err = true, untrusted
	}
	if h.Unreached != nil && unanswered(err) {
		h.Unreached(x)
	}
	return h.carry(r, x, h.step(x, &e))
}

// unanswered reports whether an attempt to connect met with silence. A refused connection is an
// answer of the node's kernel, and a TLS handshake that hangs began with one. Without a route to
// the pod nobody was asked.
func unanswered(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial" && (dial.Timeout() || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.EHOSTDOWN))
}

// OnResponse implements forward.Reviewer: a pod that refused a request did not see it, so another
// may.
func (h *Handler) OnResponse(r *forward.Request, response *forward.Response) (forward.Decision, bool) {
	x, ok := r.Data.(*Exchange)
	if !ok {
		return forward.Decision{}, false
	}
	if x.to != nil {
		return h.relayAnswered(r, x, response)
	}
	e := bind.Event{Kind: bind.Responded, Final: !response.Replayable}
	if response.Status == wire.RefusedStatus {
		switch response.Header(wire.HeaderRefused) {
		case "": // the user container's own
		case wire.RefusedRevision, wire.RefusedDown: // the address belongs to another pod now, or its container ends
			e.Kind = bind.Misdirected
		default:
			e.Kind = bind.Refused
		}
	}
	do := h.step(x, &e)
	if !do.Has(bind.Try) {
		return forward.Decision{}, false
	}
	x.Revision.Load().Refused.Add(1)
	return h.carry(r, x, do), true
}

// Done implements forward.Handler.
func (h *Handler) Done(r *forward.Request, result *forward.Result) {
	x, ok := r.Data.(*Exchange)
	if !ok {
		return
	}
	r.Data = nil
	if x.to == nil || !h.counted(x, result) {
		h.count(r, x, result)
	}
	*x = Exchange{}
	h.pool.Put(x)
}

// count counts a request that is over.
func (h *Handler) count(r *forward.Request, x *Exchange, result *forward.Result) {
	if h.step(x, &bind.Event{Kind: bind.Done}).Has(bind.SlotDone) {
		x.slot.Release(result.Status != 0 && result.Cause == forward.Completed)
	}
	load := x.Revision.Load()
	if x.to == nil && x.machine.Answer() != bind.AnswerNotWoken {
		load.Meter.Out(r.Started, result.Status, result.Duration)
	}
	load.Requests[min(max(result.Status/100, 0), 5)].Add(1)
	if result.Cause != forward.Completed {
		load.NotCompleted[result.Cause].Add(1)
	}
	if x.ticket.Waited {
		load.Held.Add(1)
	}
	if x.Span != nil {
		info := x.Revision.Info()
		x.Span.End(r, result, x.Bound, otlp.String("kn.revision.name", x.Revision.Key.Name), otlp.String("k8s.namespace.name", x.Revision.Key.Namespace),
			otlp.String("kn.service.name", info.Service), otlp.String("kn.configuration.name", info.Configuration))
	}
	if h.Ended != nil {
		h.Ended(x, r, result)
	}
}

func (h *Handler) exchange(revision *backends.Revision) *Exchange {
	x, ok := h.pool.Get().(*Exchange)
	if !ok {
		x = &Exchange{}
	}
	x.Revision = revision
	return x
}
