package chain

import (
	"net/netip"
	"strings"

	"ebb.dev/ebb/forward"
)

// appendForwarded builds the Forwarded field (RFC 7239) out of X-Forwarded-{For,Proto,Host}: one
// element for each address, the first of which carries host and proto too. Nothing is appended when
// there is nothing to tell. It runs for every request that comes through a gateway, so it must not
// allocate.
func appendForwarded(b []byte, r *forward.Request) []byte {
	addresses, proto, host := r.Header("X-Forwarded-For"), r.Header("X-Forwarded-Proto"), r.Header("X-Forwarded-Host")
	if addresses == "" && proto == "" && host == "" {
		return b
	}
	fresh := true // an element begins
	pair := func(b []byte, name, value string, six bool) []byte {
		if value == "" {
			return b
		}
		if !fresh {
			b = append(b, ';')
		}
		fresh = false
		b = append(b, name...)
		b = append(b, '=')
		return appendValue(b, value, six)
	}
	first := true
	for address := range strings.SplitSeq(addresses, ",") {
		address = strings.TrimSpace(address)
		if address == "" && !first {
			continue
		}
		if !first {
			b = append(b, ", "...)
			fresh = true
		}
		b = pair(b, "for", address, isSix(address))
		if first {
			b = pair(b, "host", host, false)
			b = pair(b, "proto", proto, false)
			first = false
		}
	}
	return b
}

// isSix: IPv6 addresses are bracketed (RFC 7239 section 6).
func isSix(address string) bool {
	if strings.Count(address, ":") < 2 { // no, or one before a port; an error of ParseAddr would cost an allocation
		return false
	}
	a, err := netip.ParseAddr(address)
	return err == nil && a.Is6()
}

// appendValue quotes what is not a token.
func appendValue(b []byte, v string, bracket bool) []byte {
	quote := bracket
	for i := 0; i < len(v) && !quote; i++ {
		c := v[i]
		quote = !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0)
	}
	if !quote {
		return append(b, v...)
	}
	b = append(b, '"')
	if bracket {
		b = append(b, '[')
	}
	for i := 0; i < len(v); i++ {
		if v[i] == '"' || v[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, v[i])
	}
	if bracket {
		b = append(b, ']')
	}
	return append(b, '"')
}
