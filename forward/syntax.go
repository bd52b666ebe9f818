package forward

import (
	"bytes"
	"math"
	"strings"
	"unsafe"
)

// The grammar of heads: characters, names, errors.

func parseLength(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	var n int64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, n < math.MaxInt64
}

// ValidHost reports whether host can be the value of a Host field: a reg-name, an IPv4 address or
// an IPv6 address in brackets, with an optional port and without user info.
func ValidHost(host string) bool {
	name, port, brackets := host, "", false
	if rest, ok := strings.CutPrefix(host, "["); ok {
		if name, port, ok = strings.Cut(rest, "]"); !ok || port != "" && port[0] != ':' {
			return false
		}
		port, brackets = strings.TrimPrefix(port, ":"), true
	} else {
		name, port, _ = strings.Cut(host, ":")
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		case strings.IndexByte("-._~%!$&'()*+,;=", c) >= 0, brackets && c == ':':
		default:
			return false
		}
	}
	for i := 0; i < len(port); i++ {
		if port[i] < '0' || port[i] > '9' {
			return false
		}
	}
	return name != ""
}

// headerID marks the fields that carry framing or are hop-by-hop. All others are passed unchanged.
type headerID uint8

const (
	otherHeader headerID = iota
	hostHeader
	connectionHeader
	contentLengthHeader
	transferEncodingHeader
	expectHeader
	upgradeHeader
	teHeader
	trailerHeader
	keepAliveHeader
	proxyConnectionHeader
	proxyAuthHeader // Proxy-Authenticate, Proxy-Authorization
)

// framing lists them by the length of the name, which rules out nearly every other name at once.
var framing = [20][]struct {
	name string
	id   headerID
}{
	2:  {{"te", teHeader}},
	4:  {{"host", hostHeader}},
	6:  {{"expect", expectHeader}},
	7:  {{"upgrade", upgradeHeader}, {"trailer", trailerHeader}},
	10: {{"connection", connectionHeader}, {"keep-alive", keepAliveHeader}},
	14: {{"content-length", contentLengthHeader}},
	16: {{"proxy-connection", proxyConnectionHeader}},
	17: {{"transfer-encoding", transferEncodingHeader}},
	18: {{"proxy-authenticate", proxyAuthHeader}},
	19: {{"proxy-authorization", proxyAuthHeader}},
}

func identify(name []byte) headerID {
	if len(name) < len(framing) {
		for _, f := range framing[len(name)] {
			if foldEqual(name, f.name) {
				return f.id
			}
		}
	}
	return otherHeader
}

// foldEqual compares b with an ASCII string in lower case, ignoring the case of b.
func foldEqual(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i := 0; i < len(b); i++ {
		x := b[i]
		if 'A' <= x && x <= 'Z' {
			x |= 0x20
		}
		if x != lower[i] {
			return false
		}
	}
	return true
}

// sameName compares two field names. It ignores the case of ASCII letters.
func sameName(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := 0; i < len(a); i++ {
		x, y := a[i], b[i]
		if x != y {
			if x |= 0x20; x != y|0x20 || x < 'a' || x > 'z' {
				return false
			}
		}
	}
	return true
}

// borrow makes a string that shares b's memory. It must not outlive the exchange.
func borrow(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Character classes of RFC 9110 section 5.6.2 (token) and 5.5 (field value), and of a request
// target.
const (
	tokenChar = 1 << iota
	valueChar
	targetChar
)

var class = func() (t [256]uint8) {
	for c := 0; c < 256; c++ {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z',
			bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), byte(c)) >= 0:
			t[c] |= tokenChar
		}
		if c == '\t' || c >= ' ' && c != 0x7f {
			t[c] |= valueChar
		}
		if c > ' ' && c != 0x7f {
			t[c] |= targetChar
		}
	}
	return t
}()

func all(b []byte, want uint8) bool {
	for _, c := range b {
		if class[c]&want == 0 {
			return false
		}
	}
	return true
}

// syntaxError is a malformed message. status is the answer to a client that sent it.
type syntaxError struct {
	status int
	text   string
}

func (e *syntaxError) Error() string { return e.text }

// The kinds of malformed messages. They are values, so that rejecting one does not allocate.
var (
	errRequestLine  = &syntaxError{400, "malformed request line"}
	errVersion      = &syntaxError{505, "only HTTP/1.0 and HTTP/1.1 are understood on this connection"}
	errTarget       = &syntaxError{400, "malformed request target"}
	errConnect      = &syntaxError{405, "CONNECT is not served here"}
	errStatusLine   = &syntaxError{502, "malformed status line"}
	errBareLF       = &syntaxError{400, "a line ends in a bare LF"}
	errFold         = &syntaxError{400, "a header field is folded over two lines"}
	errFieldName    = &syntaxError{400, "malformed header field name"}
	errFieldValue   = &syntaxError{400, "malformed header field value"}
	errHost         = &syntaxError{400, "exactly one valid Host is required"}
	errLengthTwice  = &syntaxError{400, "more than one Content-Length"}
	errLength       = &syntaxError{400, "malformed Content-Length"}
	errBothFramings = &syntaxError{400, "both Content-Length and Transfer-Encoding"}
	errCoding       = &syntaxError{501, "a Transfer-Encoding other than chunked"}
	errCodingTwice  = &syntaxError{400, "more than one Transfer-Encoding"}
	errCodingOld    = &syntaxError{400, "Transfer-Encoding in HTTP/1.0"}
	errTooLarge     = &syntaxError{431, "the request head is too large"}
	errManyFields   = &syntaxError{431, "too many header fields"}
	errSlowHead     = &syntaxError{408, "the request head did not arrive in time"}
	errChunk        = &syntaxError{400, "malformed chunked body"}
)

const maxFields = 512
