package report

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"ebb.dev/ebb/wire"
)

// Peers are activators and other replicas of the autoscaler.
type Peers struct {
	// Keys are those of all tokens as they are now.
	Keys   func() wire.Keys
	guard  wire.Guard
	signer wire.Signer
}

// allowed reports whether the sender may read data of all tenants: it is inside this pod, like
// a benchmark, or a component of Ebb, with the activators' token. Otherwise it answers the
// request.
func (p *Peers) allowed(w http.ResponseWriter, r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err == nil && peer.Addr().Unmap().IsLoopback() {
		return true
	}
	_, ok := p.guard.Admit(w, r, p.Keys(), "", wire.ActivatorSubject)
	return ok
}

// askOwner forwards the question to the replica that decides.
func (p *Peers) askOwner(w http.ResponseWriter, r *http.Request, ip string) {
	url := "http://" + net.JoinHostPort(ip, strconv.Itoa(wire.PortStats)) + r.URL.Path + "?forwarded=1"
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, url, nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	client := &http.Client{Timeout: 2 * time.Second}
	response, err := p.signer.Do(client, request, p.Keys().Token("", wire.ActivatorSubject))
	if err != nil {
		http.Error(w, "ask the replica that decides: "+err.Error(), http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	w.Header().Set("Content-Type", response.Header.Get("Content-Type"))
	w.WriteHeader(response.StatusCode)
	io.Copy(w, io.LimitReader(response.Body, 4<<20))
}
