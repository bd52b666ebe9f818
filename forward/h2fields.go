package forward

import (
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"ebb.dev/ebb/forward/exchange"
)

// newH2Exchange returns the exchange for a request's header block. errH2Malformed resets the stream
// (RFC 9113 section 8.1.1). Other errors are answered with their status.
func newH2Exchange(s *h2server, f *http2.MetaHeadersFrame, now time.Time) (*h2exchange, *syntaxError) {
	whole := f.StreamEnded()
	x := &h2exchange{srv: s, expected: -1, h2head: h2head{length: -1}, body: h2body{whole: whole}}
	x.down = h2half{c: s.c, x: x, id: f.StreamID, left: s.c.windows.first, gotEnd: whole}
	s.c.mu.Lock()
	x.down.window = s.c.initialWindow
	s.c.mu.Unlock()
	x.r.client, x.r.carrier, x.r.h2, x.r.Started = s.client, x, &x.h2head, now
	x.fields = x.space[:0]
	scheme, host, hosts := "", "", 0
	expects := false
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
			if !ok || x.length >= 0 {
				return nil, errH2Malformed
			}
			x.length = n
			x.fields = append(x.fields, *field)
		case "host":
			hosts++
			host = field.Value
		case "expect":
			expects = expects || field.Value != ""
			x.fields = append(x.fields, *field)
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
	if bad := x.complete(f, scheme, host, hosts); bad != nil {
		return x, bad
	}
	x.machine.Init(s.srv.traits(exchange.Traits{
		Started: now, Streams: true, KeepsBody: true, Idempotent: idempotent(x.method), Expects: expects,
	}))
	return x, nil
}

// complete checks a head whose fields were read, and fills in what follows from them. hosts is how
// many Host fields it has.
func (h *h2head) complete(f *http2.MetaHeadersFrame, scheme, host string, hosts int) *syntaxError {
	switch {
	case f.Truncated:
		return errTooLarge
	case len(h.fields) > maxFields:
		return errManyFields
	case h.method == "" || !all([]byte(h.method), tokenChar):
		return errH2Malformed
	case h.method == "CONNECT":
		return errConnect
	case scheme == "" || h.path == "" || !all([]byte(h.path), targetChar):
		return errH2Malformed
	case h.path[0] != '/' && (h.path != "*" || h.method != "OPTIONS"):
		return errH2Malformed
	case f.StreamEnded() && h.length > 0:
		return errH2Malformed
	case hosts > 1 || hosts == 1 && h.authority != "" && !strings.EqualFold(host, h.authority):
		return errHost
	}
	if h.authority == "" {
		h.authority = host
	}
	if !ValidHost(h.authority) {
		return errHost
	}
	if f.StreamEnded() {
		h.length = 0
	}
	return nil
}

// h2ConnectionField reports whether a field is not allowed in HTTP/2 (RFC 9113 section 8.2.2).
func h2ConnectionField(name string) bool {
	switch name {
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
		return true
	}
	return false
}

// h2Trailers reports whether a block can be trailers: it has no pseudo-header fields.
func h2Trailers(f *http2.MetaHeadersFrame) bool { return len(f.PseudoFields()) == 0 }

// h2NoTrailer reports fields that attack a recipient that merges trailers into the head: those
// about framing and routing (RFC 9110 section 6.5.1).
func h2NoTrailer(f hpack.HeaderField) bool {
	return h2ConnectionField(f.Name) || f.Name == "content-length" || f.Name == "host"
}

// trailersOf returns a copy of the fields that may be forwarded.
func trailersOf(fields []hpack.HeaderField) []hpack.HeaderField {
	out := make([]hpack.HeaderField, 0, len(fields))
	for _, f := range fields {
		if !h2NoTrailer(f) {
			out = append(out, f)
		}
	}
	return out
}

// h2Length returns the Content-Length of a response, -1 without one. It reports false if one is
// malformed, or two differ.
func h2Length(fields []hpack.HeaderField) (length int64, ok bool) {
	length = -1
	for i := range fields {
		if fields[i].Name != "content-length" {
			continue
		}
		n, ok := parseLength([]byte(fields[i].Value))
		if !ok || length >= 0 && n != length {
			return 0, false
		}
		length = n
	}
	return length, true
}

// Codes of gRPC: the highest, and the one that stands for a status that is none.
const (
	grpcMost    = 16
	grpcUnknown = 2
)

// grpcStatus returns the status of a call of gRPC, which is in the fields that end the response
// (trailers, or a head without a body); 0 if there is none.
func grpcStatus(fields []hpack.HeaderField) uint8 {
	text, ok := h2Find(fields, "grpc-status")
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || n > grpcMost {
		return grpcUnknown // as the client takes it
	}
	return uint8(n)
}

// clean returns a value without control characters.
func clean(value string) string {
	for i := 0; i < len(value); i++ {
		if class[value[i]]&valueChar == 0 {
			return string(appendClean(nil, value))
		}
	}
	return value
}

// requestLocked encodes the request's header block for an upstream, whose connection is locked.
func (x *h2exchange) requestLocked(c *h2conn, scheme string, expect bool) {
	authority := x.authority
	for i := range x.r.edits {
		if e := &x.r.edits[i]; !e.remove && sameName("host", e.name) {
			authority = clean(e.value)
		}
	}
	c.fieldLocked(":method", x.method, false)
	c.fieldLocked(":scheme", scheme, false)
	c.fieldLocked(":path", x.path, false)
	c.fieldLocked(":authority", authority, false)
	for i := range x.r.edits {
		if e := &x.r.edits[i]; !e.remove && !sameName("host", e.name) {
			c.fieldLocked(strings.ToLower(e.name), clean(e.value), false)
		}
	}
	for i := range x.fields {
		f := &x.fields[i]
		switch f.Name {
		case "proxy-authorization", "proxy-authenticate":
			continue
		case "expect":
			if x.r.deferBody > 0 || x.r.continueNow {
				continue
			}
		}
		if x.r.edited(f.Name) {
			continue
		}
		c.enc.WriteField(*f)
	}
	if expect {
		c.fieldLocked("expect", "100-continue", false)
	}
}

// responseLocked encodes the response's header block for the client, whose connection is locked.
func (x *h2exchange) responseLocked(c *h2conn, status int, fields []hpack.HeaderField, final bool) {
	c.fieldLocked(":status", statusDigits(status), false)
	for i := range fields {
		f := &fields[i]
		if f.Name[0] == ':' || h2ConnectionField(f.Name) || f.Name == "proxy-authenticate" || f.Name == "proxy-authorization" {
			continue
		}
		if x.srv.srv.strips(&x.res, x.r.Started, f.Name, f.Value) {
			continue
		}
		c.enc.WriteField(*f)
	}
	if final {
		for _, a := range x.r.added {
			c.fieldLocked(strings.ToLower(a.Name), clean(a.Value), false)
		}
	}
}

// statusOf returns the value of :status, or 0 if it is malformed.
func statusOf(f *http2.MetaHeadersFrame) int {
	text := f.PseudoValue("status")
	n, err := strconv.Atoi(text)
	if err != nil || len(text) != 3 || n < 100 {
		return 0
	}
	return n
}
