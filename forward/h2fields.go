package forward

import (
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"ebb.dev/ebb/forward/exchange"
)

// newH2Exchange makes an exchange of a request's header block. errH2Malformed resets the stream
// (RFC 9113 section 8.1.1); another error is answered with its status.
func newH2Exchange(s *h2server, f *http2.MetaHeadersFrame, now time.Time) (*h2exchange, *syntaxError) {
	whole := f.StreamEnded()
	x := &h2exchange{srv: s, expected: -1, body: h2body{length: -1, whole: whole}}
	x.down = h2half{c: s.c, x: x, id: f.StreamID, left: h2StreamWindow, gotEnd: whole}
	s.c.mu.Lock()
	x.down.window = s.c.initialWindow
	s.c.mu.Unlock()
	x.r.c, x.r.h2, x.r.Started = s.conn, x, now
	x.fields = x.space[:0]
	scheme, host, hosts := "", "", 0
	for i := range f.Fields {
		field := &f.Fields[i]
		switch field.Name {
		case ":method":
			x.method = field.Value
		case ":path":
			x.path = field.Value
		case ":authority":
			x.authority = field.Value
		case ":scheme":
			scheme = field.Value
		case ":protocol":
			return nil, errH2Malformed
		case "content-length":
			n, ok := parseLength([]byte(field.Value))
			if !ok || x.body.length >= 0 {
				return nil, errH2Malformed
			}
			x.body.length = n
			x.fields = append(x.fields, *field)
		case "host":
			hosts++
			host = field.Value
		case "te":
			if field.Value != "trailers" {
				return nil, errH2Malformed
			}
			x.fields = append(x.fields, *field)
		default:
			if h2ConnectionField(field.Name) {
				return nil, errH2Malformed
			}
			x.fields = append(x.fields, *field)
		}
	}
	switch {
	case f.Truncated:
		return x, errTooLarge
	case len(x.fields) > maxFields:
		return x, errManyFields
	case x.method == "" || !all([]byte(x.method), tokenChar):
		return nil, errH2Malformed
	case x.method == "CONNECT":
		return x, errConnect
	case scheme == "" || x.path == "" || !all([]byte(x.path), targetChar):
		return nil, errH2Malformed
	case x.path[0] != '/' && (x.path != "*" || x.method != "OPTIONS"):
		return nil, errH2Malformed
	case whole && x.body.length > 0:
		return nil, errH2Malformed
	case hosts > 1 || hosts == 1 && x.authority != "" && !strings.EqualFold(host, x.authority):
		return x, errHost
	}
	if x.authority == "" {
		x.authority = host
	}
	if x.authority == "" || !validHost([]byte(x.authority)) {
		return x, errHost
	}
	if whole {
		x.body.length = 0
	}
	x.machine.Init(s.srv.traits(exchange.Traits{
		Started: now, Streams: true, KeepsBody: true, Idempotent: idempotent(x.method), Expects: x.header("expect") != "",
	}))
	return x, nil
}

// h2ConnectionField: such fields have no place in HTTP/2 (RFC 9113 section 8.2.2).
func h2ConnectionField(name string) bool {
	switch name {
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
		return true
	}
	return false
}

// h2Trailers: a block that ends a stream has no pseudo-header fields.
func h2Trailers(f *http2.MetaHeadersFrame) bool { return len(f.PseudoFields()) == 0 }

// trailersOf is a copy of what may be passed on.
func trailersOf(fields []hpack.HeaderField) []hpack.HeaderField {
	out := make([]hpack.HeaderField, 0, len(fields))
	for _, f := range fields {
		if !h2ConnectionField(f.Name) {
			out = append(out, f)
		}
	}
	return out
}

// h2Same compares a name in lower case with one in any.
func h2Same(name, other string) bool {
	return len(name) == len(other) && (name == other || strings.EqualFold(name, other))
}

func h2Value(fields []hpack.HeaderField, name string) string {
	for i := range fields {
		if h2Same(fields[i].Name, name) {
			return fields[i].Value
		}
	}
	return ""
}

// lower is a field name as HTTP/2 wants it.
func lower(name string) string { return strings.ToLower(name) }

// clean is value without what must not be in one.
func clean(value string) string {
	for i := 0; i < len(value); i++ {
		if class[value[i]]&valueChar == 0 {
			return string(appendClean(nil, value))
		}
	}
	return value
}

// requestLocked encodes the request's header block for an upstream. The upstream's connection is
// locked.
func (x *h2exchange) requestLocked(c *h2conn, scheme string, expect bool) {
	authority := x.authority
	for i := range x.r.edits {
		if e := &x.r.edits[i]; !e.remove && h2Same("host", e.name) {
			authority = clean(e.value)
		}
	}
	c.fieldLocked(":method", x.method, false)
	c.fieldLocked(":scheme", scheme, false)
	c.fieldLocked(":path", x.path, false)
	c.fieldLocked(":authority", authority, false)
	for i := range x.r.edits {
		if e := &x.r.edits[i]; !e.remove && !h2Same("host", e.name) {
			c.fieldLocked(lower(e.name), clean(e.value), false)
		}
	}
	for i := range x.fields {
		f := &x.fields[i]
		switch f.Name {
		case "proxy-authorization", "proxy-authenticate":
			continue
		case "expect":
			if x.r.deferBody || x.r.continueNow {
				continue
			}
		}
		if len(x.r.edits) > 0 && x.edited(f.Name) {
			continue
		}
		c.enc.WriteField(*f)
	}
	if expect {
		c.fieldLocked("expect", "100-continue", false)
	}
}

// edited reports whether an edit takes the place of the field.
func (x *h2exchange) edited(name string) bool {
	for i := range x.r.edits {
		if h2Same(name, x.r.edits[i].name) {
			return true
		}
	}
	return false
}

// responseLocked encodes the response's header block for the client, whose connection is locked.
func (x *h2exchange) responseLocked(c *h2conn, status int, fields []hpack.HeaderField, final bool) {
	c.fieldLocked(":status", statusDigits(status), false)
	for i := range fields {
		f := &fields[i]
		if f.Name[0] == ':' || h2ConnectionField(f.Name) || f.Name == "proxy-authenticate" || f.Name == "proxy-authorization" {
			continue
		}
		if final && x.stripped(f.Name) {
			continue
		}
		c.enc.WriteField(*f)
	}
	if final {
		for _, a := range x.r.added {
			c.fieldLocked(lower(a.Name), clean(a.Value), false)
		}
	}
}

func (x *h2exchange) stripped(name string) bool {
	for _, s := range x.srv.srv.StripResponse {
		if h2Same(name, s) {
			return true
		}
	}
	return false
}

// statusOf reads :status.
func statusOf(f *http2.MetaHeadersFrame) int {
	text := f.PseudoValue("status")
	n, err := strconv.Atoi(text)
	if err != nil || len(text) != 3 || n < 100 {
		return 0
	}
	return n
}
