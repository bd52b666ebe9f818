package chain

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/activator/bind"
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
		if from := h.led(r); hash == "" && from != "" {
			var ok bool
			if hash, ok = h.follows(r.Host(), from); !ok {
				return unknown("no plan is followed for the host"), true
			}
		}
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

// reply counts and words the answer that the machine gives.
func (x *Exchange) reply() forward.Reply {
	answer := x.machine.Answer()
	x.Revision.Load().Answers[answer].Add(1)
	switch answer {
	case bind.AnswerNotWoken:
		x.Why = "the request wakes no pod"
		return x.rules.NeverWake
	case bind.AnswerPage:
		x.Why = "the browser gets the waiting page"
		return x.rules.Page
	case bind.AnswerDeleted:
		x.Why = x.machine.Err().Error()
		return notFound(fmt.Sprintf("revision %s: %s", x.Revision.Key, x.Why))
	case bind.AnswerUntrusted:
		x.Why = x.machine.Err().Error()
		return forward.Reply{Status: 502, Body: fmt.Sprintf("revision %s: %s", x.Revision.Key, x.Why)}
	case bind.AnswerMaxWait:
		x.refusal = later(fmt.Sprintf("revision %s: no pod took the request within %v", x.Revision.Key, x.rules.MaxWait))
	}
	x.Why, x.refusal.Status = x.refusal.Body, answer.Status()
	x.refusal.Header = []forward.Header{{Name: "Retry-After", Value: strconv.Itoa(answer.RetryAfter())}}
	return x.refusal
}

// later is the reply to a request that cannot wait, or any longer.
func later(why string) forward.Reply { return forward.Reply{Status: 503, Body: why} }

func notFound(why string) forward.Reply {
	return forward.Reply{Status: 404, Body: "Error getting active endpoint: " + why}
}

// TimeoutReply names the timer that fired.
func TimeoutReply(timer forward.Timer, after time.Duration) forward.Reply {
	return forward.Reply{Status: 504, Body: fmt.Sprintf("activator request timeout: %s is %s", timer, after)}
}
