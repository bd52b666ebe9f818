package forward

import (
	"bytes"
	"context"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"

	"ebb.dev/ebb/forward/exchange"
)

// Request is a request as the Handler sees it.
//
// The strings that it returns share the connection's buffer and are valid until Done returns. Use
// strings.Clone for what has to live longer.
type Request struct {
	// Started is when the head was complete. All timers start here.
	Started time.Time
	// Timeouts may be set by Admit, before its first call of Context.
	Timeouts Timeouts
	// Data belongs to the Handler, from Admit to Done.
	Data any

	client  *clientConn
	carrier carrier
	head    head    // over HTTP/1.1
	h2      *h2head // over HTTP/2, else nil
	edits   []edit
	added   []Header // to the response
	reply   Reply    // the Handler's, when that is its decision

	deferBody   time.Duration // for so long the body waits for 100 Continue
	continueNow bool          // 100 Continue is our own answer

	ctx       context.Context
	ctxCancel context.CancelCauseFunc
}

// h2head is the head of a request over HTTP/2.
type h2head struct {
	method, path, authority string
	fields                  []hpack.HeaderField
	length                  int64 // the Content-Length, or -1
}

// carrier is the exchange of a Request, as its shell has it.
type carrier interface {
	// context is Request.Context, charge Request.Charge, workedOn Request.WorkedOn.
	context() context.Context
	charge(a Account, more int64) error
	workedOn() bool
}

// edit replaces, removes or adds one header field of the forwarded request.
type edit struct {
	name, value string
	remove      bool
}

// renew makes r the request whose head is read next on its connection. It keeps memory, and nothing
// else of the request before.
func (r *Request) renew() {
	*r = Request{
		client:  r.client,
		carrier: r.carrier,
		head:    newHead(r.head.fields, true),
		edits:   emptied(r.edits),
		added:   emptied(r.added),
	}
}

// emptied returns the memory of a slice, without what it pointed to.
func emptied[T any](s []T) []T {
	clear(s)
	return s[:0]
}

// Method of the request line.
func (r *Request) Method() string {
	if r.h2 != nil {
		return r.h2.method
	}
	return r.head.string(r.head.method)
}

// Target is path and query as sent, or "*".
func (r *Request) Target() string {
	if r.h2 != nil {
		return r.h2.path
	}
	t := r.head.string(r.head.target)
	if t == "" {
		return "/"
	}
	return t
}

// Path is the Target without the query.
func (r *Request) Path() string {
	t := r.Target()
	if i := strings.IndexAny(t, "?#"); i >= 0 {
		t = t[:i]
	}
	if t == "" {
		return "/"
	}
	return t
}

// Host is the authority of an absolute-form target, else the Host field.
func (r *Request) Host() string {
	if r.h2 != nil {
		return r.h2.authority
	}
	return r.head.string(r.head.host)
}

// Proto is "HTTP/1.0", "HTTP/1.1" or "HTTP/2.0".
func (r *Request) Proto() string {
	switch {
	case r.h2 != nil:
		return "HTTP/2.0"
	case r.head.minor == 0:
		return "HTTP/1.0"
	}
	return "HTTP/1.1"
}

// Header is the first value of the field, "" when absent.
func (r *Request) Header(name string) string {
	value, _ := r.find(name)
	return value
}

// HasHeader reports whether the field is present, empty or not.
func (r *Request) HasHeader(name string) bool {
	_, ok := r.find(name)
	return ok
}

func (r *Request) find(name string) (value string, ok bool) {
	if r.h2 != nil {
		return h2Find(r.h2.fields, name)
	}
	return r.head.find(name)
}

// Fields calls yield for every field in the order sent, Host included; over HTTP/2 names are in
// lower case.
func (r *Request) Fields(yield func(name, value string) bool) {
	if r.h2 != nil {
		if !yield("host", r.h2.authority) {
			return
		}
		for i := range r.h2.fields {
			if f := &r.h2.fields[i]; f.Name != "host" && !yield(f.Name, f.Value) {
				return
			}
		}
		return
	}
	h := &r.head
	for i := range h.fields {
		if !yield(h.string(h.fields[i].name), h.string(h.fields[i].value)) {
			return
		}
	}
}

// ContentLength is the announced length of the body, 0 for none, -1 when unknown beforehand.
func (r *Request) ContentLength() int64 {
	switch {
	case r.h2 != nil:
		return r.h2.length
	case r.head.chunked:
		return -1
	case r.head.length < 0:
		return 0
	}
	return r.head.length
}

// TLS reports whether the client connection uses TLS.
func (r *Request) TLS() bool {
	return r.client.tls != nil
}

// RemoteAddr is the client's address.
func (r *Request) RemoteAddr() netip.AddrPort {
	return r.client.remote
}

// SetHeader replaces (or adds) a field of the forwarded request. Framing fields cannot be set.
func (r *Request) SetHeader(name, value string) {
	r.forget(name)
	r.edits = append(r.edits, edit{name: name, value: value})
}

// forget drops earlier edits of a field: a request that goes to a second upstream is edited twice.
func (r *Request) forget(name string) {
	kept := r.edits[:0]
	for _, e := range r.edits {
		if !sameName(e.name, name) {
			kept = append(kept, e)
		}
	}
	r.edits = kept
}

// DelHeader removes a field from the forwarded request.
func (r *Request) DelHeader(name string) {
	r.forget(name)
	r.edits = append(r.edits, edit{name: name, remove: true})
}

// SetHost replaces the Host the upstream sees.
func (r *Request) SetHost(host string) { r.SetHeader("Host", host) }

// AddResponseHeader adds a field to the response the client gets from the upstream.
func (r *Request) AddResponseHeader(name, value string) {
	r.added = append(r.added, Header{name, value})
}

// DeferBody holds the body back until the upstream sends 100 Continue, or for limit. A refusal
// then leaves the request unchanged, and Response.Replayable stays true. An upstream that may not
// know 100 Continue needs a short time (RFC 9110, section 10.1.1).
func (r *Request) DeferBody(limit time.Duration) { r.deferBody = limit }

// Continue answers the client's "Expect: 100-continue" itself, as soon as there is a connection to
// the upstream. Otherwise the upstream answers it.
func (r *Request) Continue() { r.continueNow = true }

// WorkedOn reports whether an upstream may have worked on the request: the connection on which it
// was sent ended without a response, and it was sent again, or was to be.
func (r *Request) WorkedOn() bool { return r.carrier.workedOn() }

// edited reports whether an edit takes the place of the field.
func (r *Request) edited(name string) bool {
	for i := range r.edits {
		if sameName(name, r.edits[i].name) {
			return true
		}
	}
	return false
}

// Context is for an Admit that has to wait. It is canceled when the client leaves (cause
// ErrClientGone), when a timer of Timeouts fires (cause *TimerError) and when the server is closed.
// The first call is not free, so a request that does not wait should not make it. If Admit returns
// because of it, the forwarder answers for the client and the timers, whatever the Decision says.
func (r *Request) Context() context.Context { return r.carrier.context() }

// policy is what the Handler set, for the machine.
func (r *Request) policy() exchange.Policy {
	return exchange.Policy{Timeouts: r.Timeouts, DeferBody: r.deferBody, ContinueNow: r.continueNow}
}

// idempotent says whether the request may be sent a second time (RFC 9110 section 9.2.2).
func idempotent(method string) bool {
	switch method {
	case "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE":
		return true
	}
	return false
}

// appendField copies one field. Usually the spans of name and value are contiguous, so that one
// copy is enough.
func (h *head) appendField(out []byte, f *field) []byte {
	out = append(out, h.raw[f.name.from:f.value.to]...)
	if f.value.to == f.value.from { // an empty value's span may lie behind stripped spaces
		out = bytes.TrimRight(out, " \t")
	}
	return append(out, '\r', '\n')
}

// appendLine writes a field that the Handler set.
func appendLine(out []byte, name, value string) []byte {
	out = append(append(out, name...), ": "...)
	return append(appendClean(out, value), '\r', '\n')
}

// appendClean keeps a value that the Handler set from breaking the head: control characters become
// spaces.
func appendClean(out []byte, value string) []byte {
	for i := 0; i < len(value); i++ {
		c := value[i]
		if class[c]&valueChar == 0 {
			c = ' '
		}
		out = append(out, c)
	}
	return out
}

// Response is the head of an upstream's final response, as OnResponse sees it. It is valid during
// that call.
type Response struct {
	Status int
	// Replayable says that the request can be sent again: none of its body has been sent, or all of
	// it is still in memory.
	Replayable bool

	head *head
	h2   []hpack.HeaderField
}

// Header is the first value of the field, "" when absent.
func (r *Response) Header(name string) string {
	var value string
	if r.head == nil {
		value, _ = h2Find(r.h2, name)
	} else {
		value, _ = r.head.find(name)
	}
	return value
}

// h2Find returns the first value of a field.
func h2Find(fields []hpack.HeaderField, name string) (value string, ok bool) {
	for i := range fields {
		if sameName(fields[i].Name, name) {
			return fields[i].Value, true
		}
	}
	return "", false
}
