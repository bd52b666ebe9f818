// Package announce receives the announcements of queue-proxies.
//
// Owns: the counters of accepted and refused announcements. Reads: the token key. Writes: the
// backends, through the two methods of Backends. Never: accepts an announcement for a revision
// other than the token's, or for an address other than the sender's. A pod must not be able to make
// the activator connect to another address.
package announce

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/wire"
)

// Backends receives the announcements.
type Backends interface {
	Announce(wire.Announcement) bool
	SlotFree(wire.Announcement) bool
}

// readTimeout bounds how long one sender may take for its few hundred bytes.
const readTimeout = 5 * time.Second

// Server answers POST wire.PathAnnounce.
type Server struct {
	Backends Backends
	// Keys are those of all tokens as they are now.
	Keys func() wire.Keys
	// Guard counts and refuses messages of another time and repeated ones.
	Guard wire.Guard

	// Taken counts accepted announcements, Stale those older than a stored one. SlotsFree and
	// SlotsDeclined count offers of free slots. Unauthorized counts wrong signatures, Malformed
	// invalid bodies, and Foreign announcements for an address other than the sender's.
	Taken, Stale, SlotsFree, SlotsDeclined, Unauthorized, Malformed, Foreign atomic.Int64
}

// ServeHTTP answers 204 to an accepted or stale announcement (the sender need not repeat it), 401
// to a wrong signature, 400 to an invalid body, 403 to an address other than the sender's, and
// wire.SlotDeclined to an offer of a slot that no request needs.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != wire.PathAnnounce:
		http.NotFound(w, r)
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "method not allowed: use POST", http.StatusMethodNotAllowed)
		return
	}
	// Not every ResponseWriter has deadlines; the real one has.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout))
	body, err := io.ReadAll(io.LimitReader(r.Body, wire.MaxAnnouncementBytes+1))
	var a wire.Announcement
	if err == nil {
		a, err = wire.DecodeAnnouncement(body)
	}
	if err != nil {
		s.Malformed.Add(1)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	signature, err := wire.ReadSignature(r)
	if err != nil || !signature.By(s.Keys(), a.Namespace, a.Revision) || !signature.Covers(body) {
		s.Unauthorized.Add(1)
		http.Error(w, fmt.Sprintf("the message is not signed with the token of revision %s/%s", a.Namespace, a.Revision), http.StatusUnauthorized)
		return
	}
	if err := s.Guard.Check(signature, w.Header()); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	sender, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || sender.Addr().Unmap() != a.Address.Addr().Unmap() {
		s.Foreign.Add(1)
		http.Error(w, fmt.Sprintf("%s cannot announce %s", r.RemoteAddr, a.Address), http.StatusForbidden)
		return
	}
	a.Address = netip.AddrPortFrom(a.Address.Addr().Unmap(), a.Address.Port())
	switch {
	case a.SlotFree && s.Backends.SlotFree(a):
		s.SlotsFree.Add(1)
	case a.SlotFree:
		s.SlotsDeclined.Add(1)
		w.WriteHeader(wire.SlotDeclined)
		return
	case s.Backends.Announce(a):
		s.Taken.Add(1)
	default:
		s.Stale.Add(1)
	}
	w.WriteHeader(http.StatusNoContent)
}
