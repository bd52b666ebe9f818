package chain

import (
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/wire"
)

// This file relays requests for hosts that rest to one of the two activators at which those of
// their revision gather (package relay). That one counts and holds them; this one passes on what it
// says. Nothing of the body is sent before the other wants it, so that this one can serve a request
// that the other refuses.

// relayGrace is how much later the timers of a request fire here than where it was relayed to. So
// the answer to a timer is given, and counted, there.
const relayGrace = time.Second

// relay relays a request that was led here. ok is false if it is to be served here.
func (h *Handler) relay(r *forward.Request, x *Exchange) (d forward.Decision, ok bool) {
	if !h.Relay.Relays() {
		return d, false
	}
	info := x.Revision.Info()
	if !h.Relay.Gathers(len(x.Revision.Snapshot().Pods), info.ContainerConcurrency) {
		return d, false
	}
	to := h.Relay.For(&x.Revision.Relay, x.Revision.Key.Name, r.Started)
	if to == nil || x.charge(r, info) != nil { // without room it is refused where it is counted
		return d, false
	}
	x.to = to
	r.Timeouts = timeouts(info)
	grace := relayGrace + time.Since(r.Started) // those of the other one begin now
	for _, t := range [...]*time.Duration{&r.Timeouts.ResponseStart, &r.Timeouts.Idle, &r.Timeouts.Total} {
		if *t > 0 {
			*t += grace
		}
	}
	r.SetHeader(wire.HeaderRelayed, "true")
	r.DeferBody(maxDeferred)
	return forward.Decision{Upstream: to.Upstream()}, true
}

// charge takes the request's memory from the revision's account, which it stays in. The account is
// asked once, as it counts whom it refuses.
func (x *Exchange) charge(r *forward.Request, info *backends.Info) error {
	if !x.charged {
		x.charged, x.noRoom = true, r.Charge(x.Revision.Queue().Share(), requestCost+x.pageCost(info))
	}
	return x.noRoom
}

// unreached serves a request that could not be relayed.
func (h *Handler) unreached(r *forward.Request, x *Exchange) forward.Decision {
	x.to.Failed(time.Now())
	x.to = nil
	return h.serve(r, x)
}

// relayAnswered serves a request that the other activator refused, if that is still possible.
func (h *Handler) relayAnswered(r *forward.Request, x *Exchange, response *forward.Response) (forward.Decision, bool) {
	x.to.Answered()
	if response.Status != wire.RefusedStatus || response.Header(wire.HeaderRefused) == "" {
		x.taken = true
		return forward.Decision{}, false
	}
	if !response.Replayable {
		return forward.Decision{}, false
	}
	x.to = nil
	return h.serve(r, x), true
}

// counted reports whether a request that was relayed is counted where it went, as it is there from
// the first moment on. If that activator did not even answer, it may have died, and its books with
// it; or it hangs, as its own timers fire sooner than ours, and gets no more for a while.
func (h *Handler) counted(x *Exchange, result *forward.Result) bool {
	if !x.taken && !result.Upgraded {
		switch result.Cause {
		case forward.TimedOut:
			x.to.Failed(time.Now())
			fallthrough
		case forward.UpstreamFailed, forward.Completed:
			x.Pod = x.to.Upstream().Addr()
			return false
		}
	}
	h.Relay.Relayed.Add(1)
	return true
}

// refused is the answer to a request that another activator relayed here. It knows the revision.
func refused(key backends.Key) forward.Reply {
	return forward.Reply{Status: wire.RefusedStatus, Body: "revision " + key.String() + " is not known",
		Header: []forward.Header{{Name: wire.HeaderRefused, Value: wire.RefusedRevision}}}
}
