// Package reach is the ways to one pod: plainly, or over TLS.
//
// Owns: the connections to a pod. Reads: whether TLS is asked for. Writes: bytes to the pod. Never:
// sends anything plainly while TLS is asked for, whatever the pod answers.
package reach

import (
	"crypto/tls"
	"net/netip"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/wire"
)

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

// Choose is how to send a request that starts now. There is no way back to plain HTTP while TLS is
// on: whoever holds the address of a pod could ask for it by refusing the TLS port.
func (p *Pod) Choose() *forward.Upstream {
	if p.tls == nil || !p.encrypt() {
		return p.plain
	}
	return p.tls
}

// CloseIdle closes what is idle. What comes next opens a new connection.
func (p *Pod) CloseIdle() {
	p.plain.CloseIdle()
	if p.tls != nil {
		p.tls.CloseIdle()
	}
}

// Close closes what is idle; what is in use ends with its exchange.
func (p *Pod) Close() {
	p.plain.Close()
	if p.tls != nil {
		p.tls.Close()
	}
}
