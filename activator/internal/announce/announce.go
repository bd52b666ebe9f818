// Package announce takes the announcements of queue-proxies.
//
// Owns: the counters of what was taken and refused. Reads: the token key. Writes: the backends, through
// the two methods of Backends. Never: believes a sender about another revision than its token's, or about
// another address than the one it sends from: a pod must not make the activator connect anywhere else.
package announce

import (
	"fmt"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/wire"
)

// Backends is what announcements are about.
type Backends interface {
	Announce(wire.Announcement) bool
	SlotFree(wire.Announcement) bool
}

// readTimeout bounds how long one sender may take for its few hundred bytes.
const readTimeout = 5 * time.Second

// Server answers POST wire.PathAnnounce.
type Server struct {
	Backends Backends
	// Key returns the token key, empty before it is known.
	Key func() []byte

	// Taken counts words that were news, Stale those that were overtaken by a newer one, SlotsFree and SlotsDeclined
	// the offers of free slots, Unauthorized wrong tokens, Malformed bodies that are none, and Foreign
	// announcements of another address than the sender's.
	Taken, Stale, SlotsFree, SlotsDeclined, Unauthorized, Malformed, Foreign atomic.Int64
}

// ServeHTTP answers 204 when the word was taken (a stale one too: it needs no repetition), 401 on a wrong token, 400 on
// garbage, 403 on another address than the sender's, and wire.SlotDeclined to an offer that nothing waits for.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != wire.PathAnnounce:
		http.NotFound(w, r)
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "announcements are POSTed", http.StatusMethodNotAllowed)
		return
	}
	// Not every ResponseWriter has deadlines; the real one has.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout))
	a, err := wire.DecodeAnnouncement(r.Body)
	if err != nil {
		s.Malformed.Add(1)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	token := wire.BearerToken(r.Header.Get("Authorization"))
	if !wire.ValidToken(s.Key(), a.Namespace, a.Revision, token) {
		s.Unauthorized.Add(1)
		http.Error(w, fmt.Sprintf("the token is not that of revision %s/%s", a.Namespace, a.Revision), http.StatusUnauthorized)
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
