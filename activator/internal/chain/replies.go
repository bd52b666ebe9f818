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

// refusal is the one place where an error of holding becomes an answer.
//
//	error               status  Retry-After   because
//	client or timer     -                     the forwarder answers: the client is gone, or 504
//	FullError           503     1             the queue drains within seconds, if at all
//	CannotStartError    503     5             somebody has to mend the revision first
//	ErrDeleted          404                   like a revision that never was
func (h *Handler) refusal(x *Exchange, err error) forward.Decision {
	x.Why = err.Error()
	var full *hold.FullError
	var cannot *hold.CannotStartError
	switch {
	case errors.As(err, &full):
		return forward.Decision{Reply: retryLater(x.Why, 1)}
	case errors.As(err, &cannot):
		h.ReportNow(x.Revision.Key) // it may have been mended: demand is what makes somebody try
		return forward.Decision{Reply: retryLater("revision "+x.Revision.Key.String()+": "+x.Why, 5)}
	case errors.Is(err, hold.ErrDeleted):
		return forward.Decision{Reply: notFound(fmt.Sprintf("revision %s: %v", x.Revision.Key, err))}
	}
	// What is left is the end of this process; a client that is gone or a timer is answered by the
	// forwarder.
	return forward.Decision{Reply: retryLater(x.Why, 1)}
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
