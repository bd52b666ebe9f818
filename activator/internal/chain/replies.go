package chain

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/wire"
)

// probe answers what is not a user's request: a probe of the kubelet, of a gateway or of a
// component. The kubelet probes the activator itself, so its requests name no revision. One that
// does is a user's, whatever it calls itself, and wakes the revision.
func (h *Handler) probe(r *forward.Request) (forward.Reply, bool) {
	if strings.HasPrefix(r.Header("User-Agent"), wire.AgentKubelet) && !h.namesRevision(r) {
		if why := h.Healthy(); why != "" {
			return forward.Reply{Status: 500, Body: why}, true
		}
		return forward.Reply{Status: 200}, true
	}
	switch value := r.Header(wire.HeaderNetworkProbe); value {
	case "":
		return forward.Reply{}, false
	case wire.ProbeIngress:
		hash := r.Header(wire.HeaderNetworkHash)
		if hash == "" {
			return forward.Reply{Status: 400, Body: "a probe without " + wire.HeaderNetworkHash}, true
		}
		return forward.Reply{Status: 200, Header: []forward.Header{{Name: wire.HeaderNetworkHash, Value: strings.Clone(hash)}}}, true
	case wire.ProbeActivator:
		return forward.Reply{Status: 200, Body: wire.ProbeActivator}, true
	default:
		return forward.Reply{Status: 400, Body: fmt.Sprintf("unexpected probe header value: %q", value)}, true
	}
}

// Reasons are those for which a request is rejected, as metrics name them.
var Reasons = [...]string{budget: "budget", maxWaiting: "max_waiting", maxWait: "max_wait", cannotStart: "cannot_start", noFallback: "no_fallback"}

const (
	budget = iota
	maxWaiting
	maxWait
	cannotStart
	noFallback
)

// refusal is the one place where an error of holding becomes an answer.
//
//	error               status  Retry-After   because
//	client or timer     -                     the forwarder answers: the client is gone, or 504
//	FullError           503     1             the queue drains within seconds, if at all
//	CannotStartError    503     5             somebody has to mend the revision first
//	ErrDeleted          404                   like a revision that never was
//	errMaxWait          503     5             the pods, if there are any, have more to do than they can
//	errPageDue          the waiting page
//	errFallbackDue      that of the fallback Service, to which CannotStartError leads too
func (h *Handler) refusal(r *forward.Request, x *Exchange, err error) forward.Decision {
	x.Why = err.Error()
	var full *hold.FullError
	var cannot *hold.CannotStartError
	switch {
	case errors.As(err, &full) && full.Own:
		return x.reject(maxWaiting, full.Error(), 1)
	case errors.As(err, &full):
		return x.reject(budget, full.Error(), 1)
	case errors.As(err, &cannot):
		h.ReportNow(x.Revision.Key) // it may have been mended: demand is what makes somebody try
		if x.fallsBack() {
			return h.fallBack(r, x)
		}
		return x.reject(cannotStart, "revision "+x.Revision.Key.String()+": "+cannot.Error(), 5)
	case errors.Is(err, hold.ErrDeleted):
		return forward.Decision{Reply: notFound(fmt.Sprintf("revision %s: %v", x.Revision.Key, err))}
	case errors.Is(err, errPageDue):
		x.Load.Pages.Add(1)
		return forward.Decision{Reply: x.rules.Page}
	case errors.Is(err, errFallbackDue):
		return h.fallBack(r, x)
	case errors.Is(err, errMaxWait):
		return x.reject(maxWait, fmt.Sprintf("revision %s: no pod took the request within %v", x.Revision.Key, x.rules.MaxWait), 5)
	}
	// What is left is the end of this process; a client that is gone or a timer is answered by the
	// forwarder.
	return forward.Decision{Reply: retryLater(err.Error(), 1)}
}

// reject counts and answers a request that cannot wait, or any longer.
func (x *Exchange) reject(reason int, why string, seconds int) forward.Decision {
	x.Load.Rejected[reason].Add(1)
	x.Why = why
	return forward.Decision{Reply: retryLater(why, seconds)}
}

func retryLater(why string, seconds int) forward.Reply {
	return forward.Reply{Status: 503, Body: why, Header: []forward.Header{{Name: "Retry-After", Value: strconv.Itoa(seconds)}}}
}

func notFound(why string) forward.Reply {
	return forward.Reply{Status: 404, Body: "Error getting active endpoint: " + why}
}

// TimeoutReply names the timer that fired.
func TimeoutReply(timer forward.Timer, after time.Duration) forward.Reply {
	return forward.Reply{Status: 504, Body: fmt.Sprintf("activator request timeout: %s is %s", timer, after)}
}
