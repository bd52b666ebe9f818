package chain

import (
	"strings"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/wire"
)

// identify finds the revision by the headers that the gateway sets. If there are none, it is by the
// plan of the Host, if a gateway says that this is what it wants, else by the Host: any name of a
// Service called <revision>, from <revision>.<namespace> to
// <revision>.<namespace>.svc.cluster.local, in any case, with or without a final dot and a port
// (contract section 6.2, RFC 3986 section 3.2.2).
func (h *Handler) identify(r *forward.Request) (*backends.Revision, way, forward.Reply) {
	key, ok := byHeaders(r)
	how := byName
	switch {
	case !ok:
		if from := h.led(r); from != "" {
			revision, reply := h.rest(r, from)
			return revision, byPlan, reply
		}
		if key, ok = h.fromHost(r.Host()); !ok {
			return nil, byName, notFound("the request names no revision, neither by headers nor by its host")
		}
	case h.Plans.Followed() && r.Header(wire.HeaderRelayed) != "":
		how = byRelay
	}
	revision := h.Table.Get(key)
	switch {
	case revision != nil:
		return revision, how, forward.Reply{}
	case how == byRelay:
		return nil, how, refused(key)
	}
	return nil, how, notFound("revision " + key.String() + " is not known")
}

// way is how a request came to its revision.
type way uint8

const (
	byName  way = iota // headers name it, or the host
	byPlan             // by the plan of its host
	byRelay            // another activator has followed the plan
)

func byHeaders(r *forward.Request) (backends.Key, bool) {
	key := backends.Key{Namespace: r.Header(wire.HeaderNamespace), Name: r.Header(wire.HeaderRevision)}
	return key, key.Namespace != "" && key.Name != ""
}

// namesRevision reports whether the request is for a revision, known or not.
func (h *Handler) namesRevision(r *forward.Request) bool {
	_, named := byHeaders(r)
	if named || h.led(r) != "" {
		return true
	}
	_, named = h.fromHost(r.Host())
	return named
}

func (h *Handler) fromHost(host string) (backends.Key, bool) {
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host = host[:i]
	}
	name, rest, _ := strings.Cut(strings.ToLower(strings.TrimSuffix(host, ".")), ".")
	namespace, rest, _ := strings.Cut(rest, ".")
	key := backends.Key{Namespace: namespace, Name: name}
	return key, name != "" && namespace != "" && (rest == "" || rest == "svc" || strings.EqualFold(rest, "svc."+h.Domain))
}
