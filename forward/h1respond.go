package forward

import (
	"fmt"
	"io"
	"net/http"
	"strconv"

	"ebb.dev/ebb/forward/exchange"
)

// This file sends responses to the client.

// bodyKind says how the end of a response body is found.
type bodyKind uint8

const (
	bodyNone bodyKind = iota
	bodyLength
	bodyChunked
	bodyUntilClose
)

func (c *conn) responseBody() bodyKind {
	h := &c.resp
	switch {
	case h.status == 204 || h.status == 304 || c.req.head.asksForHead():
		return bodyNone
	case h.chunked:
		return bodyChunked
	case h.length == 0:
		return bodyNone
	case h.length > 0:
		return bodyLength
	}
	return bodyUntilClose
}

// relay passes the final response to the client.
func (c *conn) relay() exchange.Event {
	c.clean = false
	kind := c.responseBody()
	c.kind = kind
	old := c.req.head.minor == 0
	refused := c.req.head.upgrades() // then what follows may be of the other protocol
	closing := refused || c.srv.endsNext() || !c.req.head.keepsAlive() || c.machine.BodyKept() ||
		c.req.head.expect && !c.machine.Continued() && c.pump.running && c.pump.moved.Load() == 0 ||
		old && (kind == bodyChunked || kind == bodyUntilClose)
	c.out = c.appendResponse(c.out[:0], kind, closing)
	c.res.Status = c.resp.status
	whole, err := c.appendAhead()
	if err == nil {
		c.torn = true // until it is written whole
		err = c.writeWithin(c.out, headGrace)
	}
	if err == nil && !c.wholeBody() {
		var clean bool
		clean, err = c.relayRest()
		whole = whole && clean
	}
	if err != nil {
		return c.failed(err, "read the response body of")
	}
	c.settle(whole, !closing)
	c.lingering = c.lingering || refused
	return exchange.Event{Kind: exchange.Ended}
}

// settle decides after the response which connections can be used again. whole says that the
// upstream's response ended where it was announced to end.
func (c *conn) settle(whole, clientKeeps bool) {
	sent := !c.machine.BodyKept()
	if !sent {
		clientKeeps = false
		c.lingering = !c.gone.Load()
	}
	if c.pump.running {
		grace := patience
		if c.req.head.expect && c.pump.moved.Load() == 0 {
			grace = 0
		}
		forced := c.stopPump(grace)
		sent = c.pump.sent && !forced
		if !c.pump.consumed {
			clientKeeps = false
			c.lingering = !c.gone.Load()
		}
	}
	c.stopWatch()
	c.clean = c.kind != bodyUntilClose && c.up.trusted(c.answerKind(), whole) && sent && c.resp.keepsAlive()
	c.keeps = clientKeeps
}

// wholeBody reports whether the upstream has sent the whole body of its response.
func (c *conn) wholeBody() bool {
	switch c.kind {
	case bodyLength:
		return c.left == 0
	case bodyChunked:
		return c.chunks.done()
	case bodyUntilClose:
		return false
	}
	return true
}

// appendAhead appends the part of the body that came with the head, so that both are sent together.
// whole says that the upstream sent nothing beyond the body.
func (c *conn) appendAhead() (whole bool, err error) {
	piece := c.rb[c.rR:c.rW]
	c.left = max(c.resp.length, 0)
	switch c.kind {
	case bodyNone:
		return len(piece) == 0, nil
	case bodyLength:
		data := c.takeLength(piece)
		c.res.ResponseBytes = int64(len(data))
		c.out = append(c.out, data...)
		return len(data) == len(piece), nil
	}
	c.chunks.reset()
	if len(c.rb)-c.rW < frameTail {
		c.rb = append(c.rb, make([]byte, frameTail)...)
	}
	framed, used, err := c.frame(c.rb, c.rR, c.rW) // the head before the piece is not needed any more
	c.out = append(c.out, framed...)
	c.res.ResponseBytes = int64(used)
	return used == len(piece), err
}

// takeLength returns what of a piece belongs to a body of known length.
func (c *conn) takeLength(piece []byte) []byte {
	data := piece[:min(int64(len(piece)), c.left)]
	c.left -= int64(len(data))
	return data
}

// The room that frame may need before and behind a piece.
const (
	frameHead = 16
	frameTail = 2
)

// frame takes b[at:to], a piece of a response body of unknown length, and returns in place what the
// client gets. The result consists of whole chunks (or of bare data for HTTP/1.0), so that the
// response can be ended after any piece. A piece that is already like that is passed unchanged.
// used is how much of the piece belongs to the body.
func (c *conn) frame(b []byte, at, to int) (framed []byte, used int, err error) {
	old := c.req.head.minor == 0
	piece := b[at:to]
	data, tail, last := piece, []byte(nil), false
	used = len(piece)
	if c.kind == bodyChunked {
		s := &c.chunks
		before := *s
		used, err = s.scan(piece)
		if err != nil {
			return nil, 0, brokenError{fmt.Errorf("%s sent a malformed chunked body", c.up.up.addr)}
		}
		if !old && before.between() && (s.between() || s.done()) {
			return piece[:used], used, nil
		}
		*s = before
		data, tail, last = s.squeeze(piece[:used])
	}
	if old {
		return data, used, nil
	}
	from, end := at, at+len(data)
	if len(data) > 0 {
		var size [frameHead]byte
		line := append(strconv.AppendUint(size[:0], uint64(len(data)), 16), '\r', '\n')
		from -= len(line)
		copy(b[from:], line)
		end += copy(b[end:], "\r\n")
	}
	if last {
		// There is room: the piece had the same bytes between the data and the tail.
		moved := end + len("0\r\n")
		copy(b[moved:], tail)
		copy(b[end:], "0\r\n")
		end = moved
	}
	if len(tail) > 0 && !last {
		copy(b[end:], tail)
	}
	return b[from : end+len(tail)], used, nil
}

// endResponse ends a response that a timer stopped in the middle with the last chunk and a trailer,
// and reports whether it did. Otherwise the connection has to be cut: the client does not expect
// chunks, or has received a part of one, or does not read.
func (c *conn) endResponse(timer Timer) bool {
	inTrailers := c.kind == bodyChunked && c.chunks.state >= trailerStart
	if c.torn || inTrailers || c.kind != bodyChunked && c.kind != bodyUntilClose || c.req.head.minor == 0 {
		return false
	}
	c.out = append(c.out[:0], "0\r\n"+TimeoutTrailer+": "...)
	c.out = append(append(c.out, timer.String()...), "\r\n\r\n"...)
	return c.writeClient(c.out) == nil
}

// abort cuts a response. A client of HTTP/1.0 takes the end of the connection for the end of the
// response, so its connection is reset.
func (c *conn) abort() {
	if c.req.head.minor == 0 {
		c.reset()
	}
	c.nc.Close()
}

// reset closes the client's connection such that it cannot take that for an end.
func (c *conn) reset() {
	resetOnClose(c.tcp())
	c.tcp().Close()
}

// relayRest moves the rest of a response body in constant memory. Each piece is written as soon as
// it has been read.
func (c *conn) relayRest() (clean bool, err error) {
	space, stalls := buffer{b: c.rb}, c.newStall()
	defer space.release()
	defer stalls.release()
	if c.kind == bodyLength {
		return c.relayLength(&space, stalls)
	}
	for {
		b := space.b
		n, err := c.readUp(b[frameHead : len(b)-frameTail])
		if err == io.EOF && c.kind == bodyUntilClose {
			if c.req.head.minor == 0 {
				return true, nil
			}
			return true, c.writeClient([]byte("0\r\n\r\n"))
		}
		if err != nil {
			return false, err
		}
		framed, used, err := c.frame(b, frameHead, frameHead+n)
		if err != nil {
			return false, err
		}
		if len(framed) > 0 {
			stalls.begin()
			err := c.writeClient(framed)
			stalls.end()
			if err != nil {
				return false, err
			}
		}
		c.res.ResponseBytes += int64(used)
		if c.kind == bodyChunked && c.chunks.done() {
			return used == n, nil
		}
		if n == len(b)-frameHead-frameTail {
			space.full(c.account)
		}
	}
}

// relayLength asks for more than is announced, so that it sees what an upstream sends beyond that.
func (c *conn) relayLength(space *buffer, stalls *stall) (clean bool, err error) {
	for {
		b := space.b
		n, err := c.readUp(b)
		if err != nil {
			return false, err
		}
		data := c.takeLength(b[:n])
		stalls.begin()
		err = c.writeClient(data)
		stalls.end()
		if err != nil {
			return false, err
		}
		c.res.ResponseBytes += int64(len(data))
		if c.left == 0 {
			return len(data) == n, nil
		}
		if n == len(b) {
			space.full(c.account)
		}
	}
}

// appendInterim writes a 1xx head.
func (c *conn) appendInterim(out []byte) []byte {
	out = c.appendFields(c.appendStatus(out))
	return append(out, '\r', '\n')
}

func (c *conn) appendStatus(out []byte) []byte {
	h := &c.resp
	out = append(out, "HTTP/1.1 "...)
	out = strconv.AppendInt(out, int64(h.status), 10)
	out = append(out, ' ')
	out = append(out, h.bytes(h.reason)...)
	return append(out, '\r', '\n')
}

func (c *conn) appendFields(out []byte) []byte {
	h := &c.resp
	lengths := 0
	for i := range h.fields {
		f := &h.fields[i]
		switch f.id {
		case otherHeader, hostHeader, expectHeader, trailerHeader:
		case contentLengthHeader:
			if lengths++; h.chunked || h.status < 200 || h.status == 204 || lengths > 1 {
				continue
			}
		default:
			continue
		}
		if h.otherTokens && h.named(h.bytes(f.name)) {
			continue
		}
		if f.id == otherHeader && c.srv.strips(&c.res, c.req.Started, h.string(f.name), h.string(f.value)) {
			continue
		}
		out = h.appendField(out, f)
	}
	return out
}

// appendResponse writes the response head for the client.
func (c *conn) appendResponse(out []byte, kind bodyKind, closing bool) []byte {
	out = c.appendFields(c.appendStatus(out))
	for _, a := range c.req.added {
		out = appendLine(out, a.Name, a.Value)
	}
	if c.resp.status == 426 { // "MUST send an Upgrade header field" (RFC 9110, section 15.5.22)
		out = appendUpgrade(out, c.resp.protocols)
	}
	old := c.req.head.minor == 0
	switch {
	case old:
	case kind == bodyChunked, kind == bodyUntilClose,
		kind == bodyNone && c.resp.chunked && c.resp.status != 204 && c.resp.status != 304:
		out = append(out, "Transfer-Encoding: chunked\r\n"...)
	}
	return c.appendConnection(out, closing)
}

// appendConnection ends a head with the fields that say whether the client's connection stays open.
func (c *conn) appendConnection(out []byte, closing bool) []byte {
	if closing {
		out = append(out, "Connection: close\r\n"...)
	} else if c.req.head.minor == 0 {
		out = append(out, "Connection: keep-alive\r\n"...)
	}
	return append(out, '\r', '\n')
}

func statusText(code int) string {
	if t := http.StatusText(code); t != "" {
		return t
	}
	return "Status"
}
