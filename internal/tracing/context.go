package tracing

import (
	"encoding/hex"
)

// String is the context as a traceparent field (W3C Trace Context, level 1).
func (c Context) String() string {
	var b [55]byte
	copy(b[:], "00-")
	hex.Encode(b[3:], c.TraceID[:])
	b[35] = '-'
	hex.Encode(b[36:], c.SpanID[:])
	copy(b[52:], "-00")
	if c.Sampled {
		b[54] = '1'
	}
	return string(b[:])
}

// Extract reads a request's place in a trace: traceparent, else B3's fields (several, or the single
// one).
func Extract(header func(name string) string) (Context, bool) {
	if text := header("Traceparent"); text != "" {
		return parseParent(text)
	}
	if text := header("B3"); text != "" {
		return parseB3(text)
	}
	var c Context
	if !unhex(c.SpanID[:], header("X-B3-Spanid")) || !traceID(&c, header("X-B3-Traceid")) {
		return Context{}, false
	}
	sampled := header("X-B3-Sampled")
	c.Sampled = sampled == "1" || sampled == "true" || header("X-B3-Flags") == "1"
	return c, true
}

// parseParent reads version 00, and of later versions what is as in version 00.
func parseParent(text string) (Context, bool) {
	var c Context
	var version, flags [1]byte
	if len(text) < 55 || text[2] != '-' || text[35] != '-' || text[52] != '-' || len(text) > 55 && (text[:2] == "00" || text[55] != '-') {
		return c, false
	}
	if !unhex(version[:], text[:2]) || version[0] == 0xff || !unhex(c.TraceID[:], text[3:35]) || !unhex(c.SpanID[:], text[36:52]) ||
		!unhex(flags[:], text[53:55]) || c.TraceID == [16]byte{} || c.SpanID == [8]byte{} {
		return Context{}, false
	}
	c.Sampled = flags[0]&1 != 0
	return c, true
}

// parseB3 reads "traceid-spanid[-sampled[-parent]]".
func parseB3(text string) (Context, bool) {
	var c Context
	long := 32
	if len(text) > 16 && text[16] == '-' {
		long = 16
	}
	if len(text) < long+17 || text[long] != '-' || !traceID(&c, text[:long]) || !unhex(c.SpanID[:], text[long+1:long+17]) {
		return Context{}, false
	}
	rest := text[long+17:]
	if len(rest) > 1 && rest[0] == '-' {
		c.Sampled = rest[1] == '1' || rest[1] == 'd'
	} else if rest != "" {
		return Context{}, false
	}
	return c, true
}

// traceID reads 128 bits, or 64 as older B3 has them.
func traceID(c *Context, text string) bool {
	if len(text) == 16 {
		return unhex(c.TraceID[8:], text) && c.TraceID != [16]byte{}
	}
	return unhex(c.TraceID[:], text) && c.TraceID != [16]byte{}
}

// unhex fills all of b, from lower case digits only, as the specification has it.
func unhex(b []byte, text string) bool {
	if len(text) != 2*len(b) {
		return false
	}
	for i := range b {
		high, low := digit(text[2*i]), digit(text[2*i+1])
		if high > 15 || low > 15 {
			return false
		}
		b[i] = high<<4 | low
	}
	return true
}

func digit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 255
}
