// Package translate turns CoAP requests into HTTP requests, and HTTP answers into CoAP answers.
//
// It is a pure function of messages. It follows RFC 7252 section 10.1 (a CoAP client before an HTTP
// server), and RFC 8075 sections 6 and 7 read in reverse for formats and codes; RFC 8132 adds FETCH
// and PATCH, RFC 8516 the code 4.29. Never: opens a connection, keeps what it was given.
package translate

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
)

// Request is the HTTP request that a CoAP request asks for.
type Request struct {
	Method string
	Host   string // Uri-Host, in lower case, without a port and a final dot
	Path   string // escaped, begins with a slash
	Query  string // escaped, without the question mark
	Header http.Header
	// Observe is the option's value: 0 begins to observe, 1 ends it; absent it is -1.
	Observe int
}

// URL is where the request goes, in the form that identifies the resource.
func (r *Request) URL() string {
	target := "http://" + r.Host + r.Path
	if r.Query != "" {
		target += "?" + r.Query
	}
	return target
}

// Refusal is why a CoAP request cannot become an HTTP request.
type Refusal struct {
	Code codes.Code
	Text string
}

func (r *Refusal) Error() string { return r.Text }

func refuse(code codes.Code, format string, args ...any) *Refusal {
	return &Refusal{code, fmt.Sprintf(format, args...)}
}

var methods = map[codes.Code]string{
	codes.GET: http.MethodGet, codes.POST: http.MethodPost, codes.PUT: http.MethodPut, codes.DELETE: http.MethodDelete,
	codes.PATCH: http.MethodPatch,
}

// FromMessage reads the code and the options of a CoAP request.
func FromMessage(code codes.Code, options message.Options) (*Request, *Refusal) {
	method, known := methods[code]
	if !known {
		return nil, refuse(codes.MethodNotAllowed, "method %d.%02d is not GET, POST, PUT, DELETE or PATCH", code>>5, code&31)
	}
	r := &Request{Method: method, Header: http.Header{}, Observe: -1}
	var path, query strings.Builder
	for _, option := range options {
		if refusal := r.read(option, &path, &query); refusal != nil {
			return nil, refusal
		}
	}
	if r.Host == "" {
		return nil, refuse(codes.BadRequest, "Uri-Host is missing: it names the service")
	}
	if path.Len() == 0 {
		path.WriteByte('/')
	}
	r.Path, r.Query = path.String(), query.String()
	return r, nil
}

// read takes in one option. What is absent here is elective, or go-coap has handled it.
func (r *Request) read(option message.Option, path, query *strings.Builder) *Refusal {
	value := option.Value
	switch option.ID {
	case message.URIHost:
		host := strings.ToLower(strings.TrimSuffix(string(value), "."))
		if r.Host != "" || !isHost(host) {
			return refuse(codes.BadRequest, "Uri-Host %q is not one host name", value)
		}
		r.Host = host
	case message.URIPath:
		// RFC 7252 section 5.10.1: such segments must not occur; a server would climb with them.
		if string(value) == "." || string(value) == ".." {
			return refuse(codes.BadRequest, "Uri-Path has the segment %q", value)
		}
		path.WriteByte('/')
		path.WriteString(url.PathEscape(string(value)))
	case message.URIQuery:
		if query.Len() > 0 {
			query.WriteByte('&')
		}
		query.WriteString(escapeQuery(value))
	case message.ContentFormat:
		mediaType, known := mediaTypes[uintOf(value)]
		if !known {
			return refuse(codes.UnsupportedMediaType, "Content-Format %d is not known", uintOf(value))
		}
		r.Header.Set("Content-Type", mediaType)
	case message.Accept:
		mediaType, known := mediaTypes[uintOf(value)]
		if !known {
			return refuse(codes.NotAcceptable, "Accept %d is not known", uintOf(value))
		}
		r.Header.Set("Accept", mediaType)
	case message.ETag:
		r.Header.Add("If-None-Match", quoteTag(value))
	case message.IfMatch:
		r.Header.Add("If-Match", quoteTag(value))
	case message.IfNoneMatch:
		r.Header.Set("If-None-Match", "*")
	case message.Observe:
		if n := uintOf(value); n <= 1 && r.Method == http.MethodGet {
			r.Observe = int(n)
		}
	case message.ProxyURI, message.ProxyScheme:
		return refuse(codes.ProxyingNotSupported, "this is no forward proxy: name the service in Uri-Host")
	}
	return nil
}

// isHost reports whether a name can stand in a Host header: letters, digits, hyphens and dots.
func isHost(name string) bool {
	if name == "" || len(name) > 253 || name[0] == '.' || name[0] == '-' {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' {
			return false
		}
	}
	return !strings.Contains(name, "..")
}

const hexDigits = "0123456789ABCDEF"

// escapeQuery escapes one Uri-Query option. Its = stays: it divides name and value. An & in it must
// not begin another argument.
func escapeQuery(value []byte) string {
	var out strings.Builder
	for _, c := range value {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-._~=/?:@!$'()*,;", c) >= 0:
			out.WriteByte(c)
		default:
			out.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&15]})
		}
	}
	return out.String()
}

// uintOf is an option of the format uint: big-endian, without leading zeros. go-coap has checked
// that it is at most four bytes long.
func uintOf(value []byte) uint32 {
	var n uint32
	for _, b := range value {
		n = n<<8 | uint32(b)
	}
	return n
}

// quoteTag writes an entity tag of CoAP as one of HTTP. Tags that came from a service by TagOf come
// back as they were; others cannot match one, and are written in hexadecimal.
func quoteTag(value []byte) string {
	for _, c := range value {
		if !isTagByte(c) {
			return fmt.Sprintf(`"%x"`, value)
		}
	}
	return `"` + string(value) + `"`
}

// isTagByte reports whether a byte may stand in an entity tag (RFC 9110 section 8.8.3).
func isTagByte(c byte) bool { return c == '!' || c >= '#' && c <= '~' }
