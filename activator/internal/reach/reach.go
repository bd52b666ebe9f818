// Package reach is the ways to one pod: plainly, or over TLS.
//
// Owns: the connections to a pod. Reads: whether TLS is asked for. Writes: bytes to the pod. Never:
// sends anything plainly to a pod that answered the TLS port, whatever its certificate says.
package reach

import (
	"crypto/tls"
	"errors"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/wire"
)

// plainFor is how long a pod that has no TLS port is not asked for it again. Such a pod was started
// before TLS was switched on and will be replaced by one that has it, so asking again matters
// little.
const plainFor = 30 * time.Second

// Options are the same for all pods of a revision.
type Options struct {
	Upstream forward.UpstreamOptions // without TLS
	// Encrypt says whether pods are to be connected to over TLS now; nil is never.
	Encrypt func() bool
	TLS     *tls.Config
}

// Pod is the connections to one pod; make it with New.
type Pod struct {
	encrypt    func() bool
	plain, tls *forward.Upstream
	plainUntil atomic.Int64 // unix nanoseconds
}

// New opens no connection. It answers at address, over TLS at wire.PortTLS of the same host.
func New(address netip.AddrPort, o Options) *Pod {
	return NewAt(address, netip.AddrPortFrom(address.Addr(), wire.PortTLS), o)
}

// NewAt is New for a pod with another TLS port.
func NewAt(address, encrypted netip.AddrPort, o Options) *Pod {
	p := &Pod{encrypt: o.Encrypt, plain: forward.NewUpstream(address.String(), o.Upstream)}
	if o.Encrypt != nil && o.TLS != nil {
		o.Upstream.TLS = o.TLS
		p.tls = forward.NewUpstream(encrypted.String(), o.Upstream)
	}
	return p
}

// Choose is how to send a request that starts now.
func (p *Pod) Choose(now time.Time) *forward.Upstream {
	if p.tls == nil || !p.encrypt() || now.UnixNano() < p.plainUntil.Load() {
		return p.plain
	}
	return p.tls
}

// Otherwise is told that no connection could be made by used, and why. It returns another way to
// the same pod, or nil. There is one only for a pod that has no TLS port at all.
func (p *Pod) Otherwise(used *forward.Upstream, err error, now time.Time) *forward.Upstream {
	if used != p.tls || used == nil || !errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	p.plainUntil.Store(now.Add(plainFor).UnixNano())
	return p.plain
}

// Close closes what is idle; what is in use ends with its exchange.
func (p *Pod) Close() {
	p.plain.Close()
	if p.tls != nil {
		p.tls.Close()
	}
}
