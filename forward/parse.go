package forward

import (
	"bytes"
)

type span struct{ from, to int32 }

type field struct {
	name, value span
	id          headerID
}

// head is a parsed message head. Spans are offsets into the head's own bytes, so the buffer may
// move while it grows.
type head struct {
	raw    []byte // the whole head, set when complete
	size   int
	fields []field
	pos    int // start of the first line not yet parsed
	scan   int // bytes already searched for the line's end
	lines  int
	strict bool // a request: CRLF only

	// request line or status line
	method, target, reason span
	minor                  uint8 // HTTP/1.<minor>
	status                 int

	host          span
	hostFields    int
	length        int64 // Content-Length, -1 when absent
	lengths       int
	chunked       bool
	codings       int
	close         bool // Connection: close
	keepAlive     bool // Connection: keep-alive
	upgradeToken  bool // Connection: upgrade
	otherTokens   bool // Connection names further fields
	expect        bool // Expect: 100-continue
	trailersOK    bool // TE: trailers
	absoluteScope span // authority of an absolute-form target
}

// newHead returns a head that is to be parsed. It uses the memory of fields.
func newHead(fields []field, strict bool) head {
	return head{fields: fields[:0], strict: strict, length: -1}
}

func (h *head) reset(strict bool) { *h = newHead(h.fields, strict) }

func (h *head) bytes(s span) []byte  { return h.raw[s.from:s.to] }
func (h *head) string(s span) string { return borrow(h.raw[s.from:s.to]) }

// find returns the first value of a field.
func (h *head) find(name string) (value string, ok bool) {
	for i := range h.fields {
		if f := &h.fields[i]; sameName(h.string(f.name), name) {
			return h.string(f.value), true
		}
	}
	return "", false
}

// feed parses the complete lines of b, which always starts at the first byte of the head. Call it
// again with more bytes until it is done. It does not parse a line twice.
func (h *head) feed(b []byte) (done bool, err *syntaxError) {
	for {
		i := bytes.IndexByte(b[h.scan:], '\n')
		if i < 0 {
			h.scan = len(b)
			return false, nil
		}
		end := h.scan + i
		line := b[h.pos:end]
		if n := len(line); n > 0 && line[n-1] == '\r' {
			line = line[:n-1]
		} else if h.strict {
			return false, errBareLF
		}
		start := h.pos
		h.pos, h.scan = end+1, end+1
		switch {
		case h.lines == 0 && len(line) == 0:
			// RFC 9112 section 2.2: ignore one empty line before the request line.
			if h.size > 0 || !h.strict {
				return false, errRequestLine
			}
			h.size = 1
		case h.lines == 0:
			h.lines++
			if h.strict {
				err = h.requestLine(line, start)
			} else {
				err = h.statusLine(line, start)
			}
		case len(line) == 0:
			h.raw, h.size = b[:h.pos], h.pos
			if h.strict {
				return true, h.checkRequest()
			}
			return true, h.checkResponse()
		default:
			h.lines++
			err = h.field(line, start)
		}
		if err != nil {
			return false, err
		}
	}
}

func (h *head) requestLine(line []byte, at int) *syntaxError {
	sp := bytes.IndexByte(line, ' ')
	last := bytes.LastIndexByte(line, ' ')
	if sp <= 0 || last <= sp+1 {
		return errRequestLine
	}
	if !all(line[:sp], tokenChar) {
		return errRequestLine
	}
	version := line[last+1:]
	switch string(version) {
	case "HTTP/1.1":
		h.minor = 1
	case "HTTP/1.0":
		h.minor = 0
	default:
		if len(version) == 8 && string(version[:5]) == "HTTP/" {
			return errVersion
		}
		return errRequestLine
	}
	if !all(line[sp+1:last], targetChar) {
		return errTarget
	}
	h.method = span{int32(at), int32(at + sp)}
	h.target = span{int32(at + sp + 1), int32(at + last)}
	target := line[sp+1 : last]
	switch method := line[:sp]; {
	case string(method) == "CONNECT":
		return errConnect
	case target[0] == '/', string(target) == "*" && string(method) == "OPTIONS":
		return nil
	}
	return h.absoluteForm(target)
}

// absoluteForm splits a target that has an authority, which replaces Host (RFC 9112 3.2.2).
func (h *head) absoluteForm(target []byte) *syntaxError {
	skip := 0
	switch {
	case len(target) > 7 && foldEqual(target[:7], "http://"):
		skip = 7
	case len(target) > 8 && foldEqual(target[:8], "https://"):
		skip = 8
	default:
		return errTarget
	}
	rest := target[skip:]
	end := bytes.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	// Some readers decode a percent sign in an authority and some do not: they would not agree on
	// the host.
	if !ValidHost(borrow(rest[:end])) || bytes.IndexByte(rest[:end], '%') >= 0 {
		return errTarget
	}
	base := h.target.from + int32(skip)
	h.absoluteScope = span{base, base + int32(end)}
	h.target.from = base + int32(end)
	return nil
}

func (h *head) statusLine(line []byte, at int) *syntaxError {
	if len(line) < 12 || string(line[:7]) != "HTTP/1." || line[8] != ' ' || line[7] < '0' || line[7] > '9' {
		return errStatusLine
	}
	h.minor = min(line[7]-'0', 1)
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return errStatusLine
		}
		h.status = h.status*10 + int(c-'0')
	}
	if h.status < 100 || len(line) > 12 && line[12] != ' ' || !all(line[12:], valueChar) {
		return errStatusLine
	}
	if len(line) > 13 {
		h.reason = span{int32(at + 13), int32(at + len(line))}
	}
	return nil
}

func (h *head) field(line []byte, at int) *syntaxError {
	if line[0] == ' ' || line[0] == '\t' {
		return errFold
	}
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 || !all(line[:colon], tokenChar) {
		return errFieldName
	}
	if len(h.fields) >= maxFields {
		return errManyFields
	}
	from, to := colon+1, len(line)
	for from < to && (line[from] == ' ' || line[from] == '\t') {
		from++
	}
	for to > from && (line[to-1] == ' ' || line[to-1] == '\t') {
		to--
	}
	value := line[from:to]
	if !all(value, valueChar) {
		return errFieldValue
	}
	f := field{
		name:  span{int32(at), int32(at + colon)},
		value: span{int32(at + from), int32(at + to)},
		id:    identify(line[:colon]),
	}
	h.fields = append(h.fields, f)
	if f.id == otherHeader {
		return nil
	}
	return h.known(f, value)
}

// known takes what a field means for the message.
func (h *head) known(f field, value []byte) *syntaxError {
	switch f.id {
	case hostHeader:
		h.hostFields++
		h.host = f.value
		if h.strict && len(value) > 0 && !ValidHost(borrow(value)) {
			return errHost
		}
	case contentLengthHeader:
		n, ok := parseLength(value)
		if !ok {
			return errLength
		}
		if h.lengths > 0 && (h.strict || n != h.length) {
			return errLengthTwice
		}
		h.lengths++
		h.length = n
	case transferEncodingHeader:
		h.codings++
		if h.codings > 1 {
			return errCodingTwice
		}
		if !foldEqual(value, "chunked") {
			return errCoding
		}
		h.chunked = true
	case connectionHeader:
		h.connectionTokens(value)
	case expectHeader:
		h.expect = foldEqual(value, "100-continue")
	case teHeader:
		h.trailersOK = h.trailersOK || bytes.Contains(bytes.ToLower(value), []byte("trailers"))
	}
	return nil
}

func (h *head) connectionTokens(value []byte) {
	for len(value) > 0 {
		var token []byte
		token, value = cutToken(value)
		switch {
		case len(token) == 0:
		case foldEqual(token, "close"):
			h.close = true
		case foldEqual(token, "keep-alive"):
			h.keepAlive = true
		case foldEqual(token, "upgrade"):
			h.upgradeToken = true
		default:
			h.otherTokens = true
		}
	}
}

func (h *head) checkRequest() *syntaxError {
	if h.hostFields > 1 || h.hostFields == 0 && h.minor >= 1 {
		return errHost
	}
	if h.absoluteScope.to > 0 {
		h.host = h.absoluteScope
	}
	if h.chunked {
		if h.lengths > 0 {
			return errBothFramings
		}
		if h.minor == 0 {
			return errCodingOld
		}
	}
	return nil
}

func (h *head) checkResponse() *syntaxError {
	if h.chunked && (h.lengths > 0 || h.minor == 0) {
		// RFC 9112 sections 6.1 and 6.3: Transfer-Encoding overrides Content-Length, which is
		// removed, and the connection is not used again.
		h.length, h.close = -1, true
	}
	return nil
}

// asksForHead reports whether the response has no body because of the request's method. An
// incomplete head asks for nothing.
func (h *head) asksForHead() bool { return h.raw != nil && string(h.bytes(h.method)) == "HEAD" }

// keepsAlive reports whether the sender wants to keep the connection open.
func (h *head) keepsAlive() bool {
	if h.close {
		return false
	}
	return h.minor >= 1 || h.keepAlive
}

// named reports whether the Connection field lists name.
func (h *head) named(name []byte) bool {
	for i := range h.fields {
		if h.fields[i].id != connectionHeader {
			continue
		}
		value := h.bytes(h.fields[i].value)
		for len(value) > 0 {
			var token []byte
			if token, value = cutToken(value); sameName(borrow(name), borrow(token)) {
				return true
			}
		}
	}
	return false
}

// cutToken returns the first element of a list, and the rest of the list.
func cutToken(list []byte) (token, rest []byte) {
	token, rest, _ = bytes.Cut(list, []byte{','})
	return bytes.TrimSpace(token), rest
}
