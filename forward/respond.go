package forward

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// The way of a response to the client.

// bodyKind is how the end of a response body is found.
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

// relay passes the final response on. whole: the upstream's response ended where it said, so its connection is clean.
func (c *conn) relay() (whole, clientKeeps bool, err error) {
	kind := c.responseBody()
	old := c.req.head.minor == 0
	closing := c.srv.endsNext() || !c.req.head.keepsAlive() ||
		c.bodyHeld || c.req.head.expect && !c.continued && c.pump.running && c.pump.moved.Load() == 0 ||
		old && (kind == bodyChunked || kind == bodyUntilClose)
	c.out = c.appendResponse(c.out[:0], kind, closing)
	c.res.Status = c.resp.status

	// The part of the body that came with the head leaves with the head.
	piece := c.rb[c.rR:c.rW]
	left := int64(0)
	scanner := &chunkScanner{}
	switch kind {
	case bodyLength:
		left = c.resp.length
		if int64(len(piece)) > left {
			piece, whole = piece[:left], false
		} else {
			whole = true
		}
		left -= int64(len(piece))
		c.out = append(c.out, piece...)
	case bodyChunked:
		whole = true
		n, err := c.chunkPiece(scanner, piece, old)
		if err != nil {
			return false, false, err
		}
		whole = n == len(piece)
		piece = piece[:n]
	case bodyNone:
		whole, piece = len(piece) == 0, nil
	case bodyUntilClose:
		if len(piece) > 0 {
			c.appendPiece(piece, old)
		}
	}
	c.started = true
	if err := c.writeClient(c.out); err != nil {
		return false, false, err
	}
	c.res.ResponseBytes = int64(len(piece))
	switch {
	case kind == bodyLength && left > 0, kind == bodyChunked && !scanner.done(), kind == bodyUntilClose:
		clean, err := c.relayRest(kind, left, scanner, old)
		if err != nil {
			return false, false, err
		}
		whole = whole && clean
	}
	return whole && kind != bodyUntilClose, !closing, nil
}

// chunkPiece checks a piece of a chunked body and appends it to out: as it is, or without framing for HTTP/1.0.
func (c *conn) chunkPiece(s *chunkScanner, piece []byte, old bool) (n int, err error) {
	for n < len(piece) && !s.done() {
		k, data, err := s.step(piece[n:])
		if err != nil {
			return n, fmt.Errorf("%s sent a malformed chunked body", c.up.up.addr)
		}
		if old && data {
			c.out = append(c.out, piece[n:n+k]...)
		}
		n += k
	}
	if !old {
		c.out = append(c.out, piece[:n]...)
	}
	return n, nil
}

// appendPiece frames a piece of a body that ends with the upstream's connection: as a chunk, or raw for HTTP/1.0.
func (c *conn) appendPiece(piece []byte, old bool) {
	if old {
		c.out = append(c.out, piece...)
		return
	}
	c.out = strconv.AppendUint(c.out, uint64(len(piece)), 16)
	c.out = append(c.out, '\r', '\n')
	c.out = append(c.out, piece...)
	c.out = append(c.out, '\r', '\n')
}

// relayRest moves the rest of a response body in constant memory; every piece is written as soon as it is read.
func (c *conn) relayRest(kind bodyKind, left int64, s *chunkScanner, old bool) (clean bool, err error) {
	b := c.rb
	if kind != bodyLength || left > int64(len(b)) {
		big := largeBuffers.Get().(*[]byte)
		defer largeBuffers.Put(big)
		b = *big
	}
	for {
		want := b
		if kind == bodyLength && int64(len(want)) > left {
			want = want[:left]
		}
		n, err := c.readUp(want)
		if err != nil {
			if err == io.EOF && kind == bodyUntilClose {
				if old {
					return true, nil
				}
				return true, c.writeClient([]byte("0\r\n\r\n"))
			}
			return false, c.explain(err, "read the response body of")
		}
		piece := want[:n]
		switch kind {
		case bodyLength:
			if err := c.writeClient(piece); err != nil {
				return false, err
			}
			c.res.ResponseBytes += int64(n)
			if left -= int64(n); left == 0 {
				return true, nil
			}
		case bodyChunked:
			var used int
			if old {
				c.out = c.out[:0]
				if used, err = c.chunkPiece(s, piece, true); err == nil {
					err = c.writeClient(c.out)
				}
			} else {
				if used, err = s.scan(piece); err != nil {
					err = fmt.Errorf("%s sent a malformed chunked body", c.up.up.addr)
				} else {
					err = c.writeClient(piece[:used])
				}
			}
			if err != nil {
				return false, err
			}
			c.res.ResponseBytes += int64(used)
			if s.done() {
				return used == n, nil
			}
		case bodyUntilClose:
			c.out = c.out[:0]
			c.appendPiece(piece, old)
			if err := c.writeClient(c.out); err != nil {
				return false, err
			}
			c.res.ResponseBytes += int64(n)
			if cap(c.out) > 2*largeBuffer {
				c.out = make([]byte, 0, smallBuffer)
			}
		}
	}
}

// appendInterim writes a 1xx head.
func (c *conn) appendInterim(out []byte) []byte {
	out = c.appendStatus(out)
	out = c.appendFields(out, bodyNone)
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

func (c *conn) appendFields(out []byte, kind bodyKind) []byte {
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
		if len(c.srv.StripResponse) > 0 && f.id == otherHeader && c.stripped(h.bytes(f.name)) {
			continue
		}
		out = h.appendField(out, f)
	}
	return out
}

func (c *conn) stripped(name []byte) bool {
	for _, s := range c.srv.StripResponse {
		if len(s) == len(name) && foldSame(name, s) {
			return true
		}
	}
	return false
}

// appendResponse writes the head the client gets.
func (c *conn) appendResponse(out []byte, kind bodyKind, closing bool) []byte {
	out = c.appendFields(c.appendStatus(out), kind)
	for _, a := range c.req.added {
		out = append(out, a.Name...)
		out = append(out, ": "...)
		out = appendClean(out, a.Value)
		out = append(out, '\r', '\n')
	}
	old := c.req.head.minor == 0
	switch {
	case old:
	case kind == bodyChunked, kind == bodyUntilClose,
		kind == bodyNone && c.resp.chunked && c.resp.status != 204 && c.resp.status != 304:
		out = append(out, "Transfer-Encoding: chunked\r\n"...)
	}
	if closing {
		out = append(out, "Connection: close\r\n"...)
	} else if old {
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
