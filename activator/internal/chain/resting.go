package chain

import (
	"math/rand/v2"
	"slices"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/wire"
)

// firstLook is the pause after which a request looks for its plan again. Each pause is twice the
// one before.
const firstLook = 5 * time.Millisecond

// led returns the kind of gateways that led a request here by its host alone, or "".
func (h *Handler) led(r *forward.Request) plan.Visibility {
	if !h.Plans.Followed() {
		return ""
	}
	return plan.Visibility(r.Header(wire.HeaderResting))
}

// rest finds the revision of a request that a gateway led here by its host alone, and does with the
// request what the gateway would do that follows the plan of the host. A request whose plan or
// revision is not known waits: the API server may have told the client before it told us.
func (h *Handler) rest(r *forward.Request, from plan.Visibility) (*backends.Revision, forward.Reply) {
	draw := rand.Uint64()
	revision, reply, known := h.choose(r, from, draw)
	if known {
		return revision, reply
	}
	// The request's context is not asked, because the revision's timeouts count in it, and they are
	// not known yet. A client that leaves keeps its place to the end.
	if !h.Unknown.Enter(r.Host(), from, time.Now()) {
		h.Unknown.Answered.Add(1)
		return nil, reply
	}
	end := time.Now().Add(h.Unknown.Patience)
	for pause := firstLook; !known && time.Now().Before(end); pause *= 2 {
		time.Sleep(min(pause, time.Until(end)))
		revision, reply, known = h.choose(r, from, draw)
	}
	h.Unknown.Leave(r.Host(), from, time.Now(), !known)
	if !known {
		h.Unknown.Answered.Add(1)
	}
	return revision, reply
}

// choose follows the plan of a host. known is false if there is none, or none whose revision is
// known.
func (h *Handler) choose(r *forward.Request, from plan.Visibility, draw uint64) (revision *backends.Revision, reply forward.Reply, known bool) {
	route := h.Plans.Find(r.Host(), from)
	if route == nil {
		return nil, unknown("no plan is known for the host"), false
	}
	c, ok := route.Plan().Choose(plan.Request{Host: r.Host(), Path: r.Path(), From: from, TLS: r.Header("X-Forwarded-Proto") == "https", Fields: r.Fields}, draw)
	switch {
	case !ok: // OPTIONS *
		return nil, unknown("the plan of the host has no rule for the request"), true
	case c.Redirect:
		to := forward.Header{Name: "Location", Value: "https://" + plan.Canonical(r.Host()) + r.Target()}
		return nil, forward.Reply{Status: 301, Header: []forward.Header{to}}, true
	case c.Backend == nil:
		return nil, forward.Reply{Status: 500, Body: "the plan of the host leads to no revision"}, true
	case c.Backend.Namespace != "": // such a target does not rest
		return nil, forward.Reply{Status: 500, Body: "activators do not lead calls to the courier"}, true
	}
	key := backends.Key{Namespace: route.Namespace, Name: c.Backend.Service}
	if revision = h.Table.Get(key); revision == nil {
		return nil, unknown("revision " + key.String() + " is not known"), false
	}
	r.DelHeader(wire.HeaderResting)
	for _, name := range c.Rule.Remove {
		r.DelHeader(name)
	}
	for _, header := range c.Rule.Set {
		r.SetHeader(header.Name, header.Value)
	}
	for _, header := range c.Backend.Set {
		r.SetHeader(header.Name, header.Value)
	}
	return revision, forward.Reply{}, true
}

// follows returns the answer of the plan by which requests for the host are led, if each of them
// finds its revision.
func (h *Handler) follows(host string, from plan.Visibility) (answer string, ok bool) {
	route := h.Plans.Find(host, from)
	if route == nil {
		return "", false
	}
	answer, revisions := route.Probe()
	missing := slices.ContainsFunc(revisions, func(name string) bool {
		return h.Table.Get(backends.Key{Namespace: route.Namespace, Name: name}) == nil
	})
	return answer, !missing
}

// unknown is the answer that a gateway gives to a host that it does not know.
func unknown(why string) forward.Reply {
	reply := notFound(why)
	reply.Header = []forward.Header{{Name: wire.HeaderResting, Value: wire.RestingUnknown}}
	return reply
}
