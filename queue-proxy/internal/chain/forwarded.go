package chain

import (
	"net/netip"
	"strings"

	"ebb.dev/ebb/internal/forward"
)

// forwarded builds the Forwarded field (RFC 7239) out of X-Forwarded-{For,Proto,Host}: one element for each address, the first of
// which carries host and proto too. "" when there is nothing to tell.
func forwarded(r *forward.Request) string {
	addresses, proto, host := r.Header("X-Forwarded-For"), r.Header("X-Forwarded-Proto"), r.Header("X-Forwarded-Host")
	if addresses == "" && proto == "" && host == "" {
		return ""
	}
	var b strings.Builder
	b.Grow(len(addresses) + len(proto) + len(host) + 32)
	pair := func(name, value string) {
		if value == "" {
			return
		}
		if n := b.Len(); n > 0 && !strings.HasSuffix(b.String(), ", ") {
			b.WriteByte(';')
		}
		b.WriteString(name)
		b.WriteByte('=')
		writeValue(&b, value)
	}
	first := true
	for address := range strings.SplitSeq(addresses, ",") {
		address = strings.TrimSpace(address)
		if address == "" && !first {
			continue
		}
		if !first {
			b.WriteString(", ")
		}
		pair("for", node(address))
		if first {
			pair("host", host)
			pair("proto", proto)
			first = false
		}
	}
	return b.String()
}

// node brackets IPv6 addresses (RFC 7239 section 6).
func node(address string) string {
	if a, err := netip.ParseAddr(address); err == nil && a.Is6() {
		return "[" + address + "]"
	}
	return address
}

// writeValue quotes what is not a token.
func writeValue(b *strings.Builder, v string) {
	for i := 0; i < len(v); i++ {
		c := v[i]
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0 {
			continue
		}
		b.WriteByte('"')
		for j := 0; j < len(v); j++ {
			if v[j] == '"' || v[j] == '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(v[j])
		}
		b.WriteByte('"')
		return
	}
	b.WriteString(v)
}
