package chain

import (
	"crypto/sha256"
	"net/netip"
	"strings"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/wire"
)

const (
	unknown = -1                 // the drawer of a request whose sender nobody knows
	tagged  = wire.SenderDrawers // in place of a drawer, for a request that came by a tag
)

// drawerOf is the drawer of the sender of a request, for the judge of rollouts. The sender is the
// last address in X-Forwarded-For, which the gateway wrote: those before it a client can make up.
// Of an IPv6 address it is the first 64 bits, because one client has all of the others.
//
// The hash has no key. Who has one address cannot choose its drawer, and who has several is no
// single sender. It runs for every request while a judge asks, so it must not allocate.
func drawerOf(r *forward.Request) int {
	last := ""
	for name, value := range r.Fields { // a gateway may add a field of its own behind the client's
		if strings.EqualFold(name, "X-Forwarded-For") {
			last = value
		}
	}
	address, ok := parseAddress(strings.TrimSpace(last[strings.LastIndexByte(last, ',')+1:]))
	if !ok {
		return unknown
	}
	if address = address.Unmap().WithZone(""); address.Is6() {
		network, err := address.Prefix(64)
		if err != nil {
			return unknown
		}
		address = network.Addr()
	}
	bytes := address.As16()
	hash := sha256.Sum256(bytes[:])
	return int(hash[0]) % wire.SenderDrawers
}

// parseAddress takes an address as gateways write them, some with a port.
func parseAddress(text string) (netip.Addr, bool) {
	if text == "" { // an error of ParseAddr would cost an allocation
		return netip.Addr{}, false
	}
	if strings.HasPrefix(text, "[") || strings.Count(text, ":") == 1 {
		both, err := netip.ParseAddrPort(text)
		return both.Addr(), err == nil
	}
	address, err := netip.ParseAddr(text)
	return address, err == nil
}
