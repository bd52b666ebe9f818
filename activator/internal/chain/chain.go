// Package chain is what the activator does with one request: is it a probe, which revision is it
// for, may it wait, which pod, and what the pod is told.
//
// Owns: the order of these steps and the answers that the activator gives itself. Reads: the table
// of revisions. Writes: each revision's meter and queue. Never: touches a body; that is forward's.
package chain

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/cold"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/identity"
	"ebb.dev/ebb/activator/internal/reach"
	"ebb.dev/ebb/activator/internal/report"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/otlp"
	"ebb.dev/ebb/internal/tracing"
	"ebb.dev/ebb/wire"
)

// mostDeferred is how long a body is held back until queue-proxy accepts or refuses the request. A
// body that was sent cannot go to another pod, and a busy queue-proxy answers late.
const mostDeferred = 10 * time.Minute

// mostUntrusted is how many pods a request is tried at whose certificates are not believed.
const mostUntrusted = 3

// requestCost is what one request costs in memory besides what forward.Request.Charge counts:
// goroutines, a connection to a pod, a place in the queue.
const requestCost = 12 << 10

// Load is what belongs to one revision besides its queue; it is backends.Revision.Data.
type Load struct {
	Meter report.Meter
	// Requests counts those that ended, by class of status (index 0: none was sent).
	Requests [6]atomic.Int64
	// Held counts requests that had to wait, Refused those that a full pod sent on.
	Held, Refused atomic.Int64
	// NotCompleted counts those that ended otherwise than by a pod's whole response.
	NotCompleted [forward.BadRequest + 1]atomic.Int64
	// Pages counts waiting pages, Fallbacks requests that went to the fallback Service, and
	// NotWoken those that were answered instead of waking a pod.
	Pages, Fallbacks, NotWoken atomic.Int64
	// Rejected counts requests that were answered here because they could not wait, by reason.
	Rejected [len(Reasons)]atomic.Int64
}

// Handler is the policy of the activator's servers.
type Handler struct {
	Table  *backends.Table
	Domain string // of the cluster, such as cluster.local
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

	last atomic.Int64 // unix nanoseconds of the newest request that was no probe
	pool sync.Pool
}

// Exchange is one request on its way through the activator.
type Exchange struct {
	Revision *backends.Revision
	Load     *Load
	Ticket   hold.Ticket
	Slot     hold.Slot
	HasSlot  bool
	// Bound is when the request had its pod, zero when it never had.
	Bound time.Time
	// Pod is the pod that had the request last.
	Pod string
	// Why is the reason if the activator answered the request itself.
	Why string
	// Span is nil when the request is not traced.
	Span *tracing.Span
	// untrusted is how often a pod's certificate was not believed.
	untrusted int
	// Birth is that pod's, when the request waited for it from zero (Ticket.Cold).
	Birth backends.Birth
	// rules are those by which the request waits, or nil.
	rules *cold.Rules
	// notWoken says that the request is no load.
	notWoken bool
	// fellBack is since when Revision is that of the fallback Service; zero if it is not.
	fellBack time.Time
	// met says that a pod has answered, if only to refuse.
	met bool
}

// LastRequest is when the newest request came that was no probe.
func (h *Handler) LastRequest() time.Time { return time.Unix(0, h.last.Load()) }

// Admit implements forward.Handler.
func (h *Handler) Admit(r *forward.Request) forward.Decision {
	if reply, ok := h.probe(r); ok {
		return forward.Decision{Reply: reply}
	}
	h.last.Store(r.Started.UnixNano())
	revision, reply := h.identify(r)
	if revision == nil {
		return forward.Decision{Reply: reply}
	}
	x := h.exchange(revision)
	r.Data = x
	info := revision.Info()
	if info.Cold != nil && info.Cold.WakesNone(r.Path(), r.Header("User-Agent")) && !revision.Snapshot().Awake() {
		x.notWoken, x.Why = true, "the request wakes no pod"
		x.Load.NotWoken.Add(1)
		return forward.Decision{Reply: info.Cold.NeverWake}
	}
	if x.Load.Meter.In(r.Started) {
		h.ReportNow(revision.Key)
	}
	if err := r.Charge(revision.Queue.Share(), requestCost+x.pageCost(info)); err != nil {
		return h.refusal(r, x, err)
	}
	r.Timeouts = forward.Timeouts{ResponseStart: info.ResponseStartTimeout, Idle: info.IdleTimeout, Total: info.Timeout}
	if info.CutResponses {
		r.Timeouts.Action = forward.CutResponse
	}
	h.rewrite(r, x, info)
	if h.Tracer != nil {
		x.Span = h.Tracer().Begin(r)
	}
	return h.bind(r, x)
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
	if info.ContainerConcurrency > 0 {
		// Only the pod's own limit knows what other activators have sent there; see
		// wire.HeaderNoQueue.
		r.SetHeader(wire.HeaderNoQueue, h.Self)
		r.DeferBody(mostDeferred)
	} else {
		r.DelHeader(wire.HeaderNoQueue)
		r.DeferBody(0) // another revision may have wanted it
	}
}

// bind gets the request a slot, waiting for it if it must.
func (h *Handler) bind(r *forward.Request, x *Exchange) forward.Decision {
	slot, ok := hold.Slot{}, false
	if !x.Ticket.Waited {
		slot, ok = x.Revision.Queue.Try()
	}
	if !ok {
		var err error
		if slot, err = h.wait(r, x); err != nil {
			return h.refusal(r, x, err)
		}
		x.Bound = time.Now()
		h.cold(r, x, slot)
	} else {
		x.Bound = r.Started
	}
	x.Slot, x.HasSlot, x.Pod = slot, true, slot.Pod()
	return h.send(r, x, slot.Data().(*reach.Pod).Choose())
}

func (h *Handler) send(r *forward.Request, x *Exchange, upstream *forward.Upstream) forward.Decision {
	if h.Mesh != nil && h.Mesh() {
		r.SetHost(names.PrivateService(x.Revision.Key.Name) + "." + x.Revision.Key.Namespace)
		r.SetHeader(wire.HeaderDirectLB, "true")
	} else {
		r.SetHost(upstream.Addr())
	}
	return forward.Decision{Upstream: upstream}
}

// cold notes how the pod came to be that a request waited for from zero.
func (h *Handler) cold(r *forward.Request, x *Exchange, slot hold.Slot) {
	if !x.Ticket.Cold {
		return
	}
	first := x.Birth.Known.IsZero()
	x.Birth, _ = x.Revision.Snapshot().Birth(slot.Address())
	if !first || h.ColdStartHeader == nil || !h.ColdStartHeader() {
		return
	}
	steps := wire.ColdStart{Received: r.Started, Announced: x.Birth.Known, Forwarded: x.Bound, Via: "endpoints"}
	if x.Birth.Announced {
		steps.Via = "announcement"
	}
	r.AddResponseHeader(wire.HeaderServerTiming, steps.String())
}

// OnDialError implements forward.Redirector: no connection to the pod could be made. The request
// goes to another pod, or waits for this one if it is the only one: until the revision's timeout,
// as it would for a revision without pods.
func (h *Handler) OnDialError(r *forward.Request, err error) forward.Decision {
	x := r.Data.(*Exchange)
	x.Slot.Failed()
	x.HasSlot = false
	var untrusted *identity.UntrustedError
	if errors.As(err, &untrusted) {
		// Waiting does not mend a certificate; another pod may have a good one.
		if x.untrusted++; x.untrusted > mostUntrusted {
			x.Why = untrusted.Error()
			return forward.Decision{Reply: forward.Reply{Status: 502, Body: "revision " + x.Revision.Key.String() + ": " + x.Why}}
		}
	}
	return h.bind(r, x)
}

// OnResponse implements forward.Judge: a pod that refused a request did not see it, so another may.
func (h *Handler) OnResponse(r *forward.Request, response *forward.Response) (forward.Decision, bool) {
	x, ok := r.Data.(*Exchange)
	if !ok {
		return forward.Decision{}, false
	}
	refused := ""
	if response.Status == wire.RefusedStatus {
		refused = response.Header(wire.HeaderRefused)
	}
	misdirected := refused == wire.RefusedRevision // the address belongs to another pod now
	if !misdirected {
		x.met = true
		x.Slot.Answered()
	}
	if refused == "" || !response.Replayable {
		return forward.Decision{}, false
	}
	if misdirected {
		x.Slot.Failed()
	} else {
		x.Slot.Refused()
	}
	x.HasSlot = false
	x.Load.Refused.Add(1)
	return h.bind(r, x), true
}

// Done implements forward.Handler.
func (h *Handler) Done(r *forward.Request, result *forward.Result) {
	x, ok := r.Data.(*Exchange)
	if !ok {
		return
	}
	r.Data = nil
	if x.HasSlot {
		x.Slot.Release(result.Status != 0 && result.Cause == forward.Completed)
	}
	if !x.notWoken {
		x.Load.Meter.Out(r.Started, result.Status, result.Duration)
	}
	x.Load.Requests[min(max(result.Status/100, 0), 5)].Add(1)
	if result.Cause != forward.Completed {
		x.Load.NotCompleted[result.Cause].Add(1)
	}
	if x.Ticket.Waited {
		x.Load.Held.Add(1)
	}
	if x.Span != nil {
		info := x.Revision.Info()
		x.Span.End(r, result, x.Bound, otlp.String("kn.revision.name", x.Revision.Key.Name), otlp.String("k8s.namespace.name", x.Revision.Key.Namespace),
			otlp.String("kn.service.name", info.Service), otlp.String("kn.configuration.name", info.Configuration))
	}
	if h.Ended != nil {
		h.Ended(x, r, result)
	}
	*x = Exchange{}
	h.pool.Put(x)
}

func (h *Handler) exchange(revision *backends.Revision) *Exchange {
	x, ok := h.pool.Get().(*Exchange)
	if !ok {
		x = &Exchange{}
	}
	x.Revision, x.Load = revision, revision.Data.(*Load)
	return x
}

// identify finds the revision by the headers that the gateway sets, else by the Host: any name of a
// Service called <revision>, from <revision>.<namespace> to
// <revision>.<namespace>.svc.cluster.local with a final dot (contract section 6.2, RFC 3986 section
// 3.2.2).
func (h *Handler) identify(r *forward.Request) (*backends.Revision, forward.Reply) {
	key, ok := h.keyOf(r)
	if !ok {
		return nil, notFound("the request names no revision, neither by headers nor by its host")
	}
	if revision := h.Table.Get(key); revision != nil {
		return revision, forward.Reply{}
	}
	return nil, notFound("revision " + key.String() + " is not known")
}

// keyOf is the revision that the request names, known or not.
func (h *Handler) keyOf(r *forward.Request) (backends.Key, bool) {
	key := backends.Key{Namespace: r.Header(wire.HeaderNamespace), Name: r.Header(wire.HeaderRevision)}
	if key.Namespace != "" && key.Name != "" {
		return key, true
	}
	return h.fromHost(r.Host())
}

func (h *Handler) namesRevision(r *forward.Request) bool {
	_, ok := h.keyOf(r)
	return ok
}

func (h *Handler) fromHost(host string) (backends.Key, bool) {
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host = host[:i]
	}
	name, rest, _ := strings.Cut(strings.TrimSuffix(host, "."), ".")
	namespace, rest, _ := strings.Cut(rest, ".")
	key := backends.Key{Namespace: namespace, Name: name}
	return key, name != "" && namespace != "" && (rest == "" || rest == "svc" || rest == "svc."+h.Domain)
}
