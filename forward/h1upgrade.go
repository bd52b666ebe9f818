package forward

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"
)

// This file checks what is asked for and answered when a connection changes its protocol (RFC 9110
// section 7.8). h1tunnel.go forwards the new protocol.

var (
	errSwitchUnasked = errors.New("switched protocols unasked")
	errSwitchUnnamed = errors.New("switched protocols without naming one")
)

// protocols calls yield for each protocol in the Upgrade fields, in their order: name, or
// name/version.
func (h *head) protocols(yield func(protocol []byte) bool) {
	for i := range h.fields {
		if h.fields[i].id != upgradeHeader {
			continue
		}
		for value, more := h.bytes(h.fields[i].value), true; more; {
			var protocol []byte
			protocol, value, more = bytes.Cut(value, []byte(","))
			if protocol = bytes.Trim(protocol, " \t"); len(protocol) > 0 && !yield(protocol) {
				return
			}
		}
	}
}

// cleartextHTTP2 is the one protocol that is never changed to. Clients use HTTP/2 with prior
// knowledge; requests inside a tunnel would bypass the Handler.
const cleartextHTTP2 = "h2c"

// offers calls yield for each protocol that the client asks for and that is passed to the upstream.
func (h *head) offers(yield func(protocol []byte) bool) {
	for protocol := range h.protocols {
		if !foldEqual(protocol, cleartextHTTP2) && !yield(protocol) {
			return
		}
	}
}

// upgrades reports whether a request has HTTP/1.1, "Connection: upgrade" and an Upgrade field with
// a protocol that can be changed to.
func (h *head) upgrades() bool {
	if !h.upgradeToken || h.minor == 0 {
		return false
	}
	for range h.offers {
		return true
	}
	return false
}

// asksFor reports whether protocol is among those that were passed to the upstream.
func (h *head) asksFor(protocol []byte) bool {
	for p := range h.offers {
		if bytes.EqualFold(p, protocol) {
			return true
		}
	}
	return false
}

// appendUpgrade writes the fields that ask for a change of protocol.
func (h *head) appendUpgrade(out []byte) []byte { return appendUpgrade(out, h.offers) }

// appendUpgrade writes an Upgrade field, and the Connection field that says that it is for this
// connection only.
func appendUpgrade(out []byte, protocols iter.Seq[[]byte]) []byte {
	out = append(out, "Connection: Upgrade\r\nUpgrade: "...)
	first := true
	for protocol := range protocols {
		if !first {
			out = append(out, ", "...)
		}
		first = false
		out = append(out, protocol...)
	}
	return append(out, '\r', '\n')
}

// checkSwitch returns what is wrong with a 101 response. "A server MUST NOT switch to a protocol
// that was not indicated by the client". If client and upstream disagreed on the meaning of the
// next bytes, they could be made to disagree on where a request begins.
func (c *conn) checkSwitch() error {
	asked, answered := &c.req.head, &c.resp
	if !asked.upgrades() {
		return errSwitchUnasked
	}
	named := false
	for protocol := range answered.protocols {
		if !asked.asksFor(protocol) {
			return fmt.Errorf("switched to protocol %q, which the client did not ask for", protocol)
		}
		named = true
	}
	if !named || !answered.upgradeToken {
		return errSwitchUnnamed
	}
	return nil
}

// finishBody waits until the request's own body has been sent. The client does not use the new
// protocol before that, and only one goroutine at a time reads what it sends.
func (c *conn) finishBody() error {
	p := &c.pump
	if !p.running {
		return nil
	}
	wait := time.Duration(math.MaxInt64)
	if end, t := c.machine.Timer(); t != NoTimer {
		wait = max(time.Until(end), 1)
	}
	c.stopPump(wait)
	c.clock = time.Now()
	if err := p.failure.Load(); err != nil {
		return err
	}
	if err := c.interrupted(c.clock); err != nil {
		return err
	}
	if !p.sent {
		return brokenError{fmt.Errorf("%s switched protocols and did not take the whole request", c.up.up.addr)}
	}
	return nil
}
