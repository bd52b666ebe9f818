package translate

import (
	"bytes"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/message/pool"
)

// Answer is a CoAP answer.
type Answer struct {
	Code   codes.Code
	Format int      // Content-Format; -1: none
	ETag   []byte   // 1 to 8 bytes, or none
	MaxAge uint32   // seconds
	Where  *url.URL // of what was created
	Body   []byte
	// Observe is the sequence number of a notification, at least 1; 0 is an answer without the
	// option.
	Observe uint32
}

// Diagnosis is an answer whose body is a sentence (RFC 7252 section 5.5.2).
func Diagnosis(code codes.Code, text string) Answer {
	a := Answer{Code: code, Format: -1, Body: []byte(text)}
	if code == codes.ServiceUnavailable || code == codes.TooManyRequests {
		a.MaxAge = 1 // section 5.9.3.4: when to try again
	}
	return a
}

// FromResponse translates the answer to a request of a method.
func FromResponse(method string, status int, header http.Header, body []byte) Answer {
	a := Answer{Code: codeOf(method, status), Format: formatOf(header.Get("Content-Type")), Body: body}
	if status >= 300 && status < 400 && status != http.StatusNotModified {
		return Diagnosis(codes.BadGateway, "the service answered "+strconv.Itoa(status)+"; CoAP has no redirections")
	}
	if a.Code == codes.Content || a.Code == codes.Valid {
		a.ETag = tagOf(header.Get("ETag"))
		a.MaxAge = maxAge(header.Get("Cache-Control"))
	}
	if a.Code == codes.ServiceUnavailable || a.Code == codes.TooManyRequests {
		a.MaxAge = 1
		if n, err := strconv.ParseUint(header.Get("Retry-After"), 10, 32); err == nil {
			a.MaxAge = uint32(n)
		}
	}
	if a.Code == codes.Created {
		if where, err := url.Parse(header.Get("Location")); err == nil && where.Path != "" {
			a.Where = where
		}
	}
	if a.Code == codes.Valid {
		a.Body, a.Format = nil, -1
	}
	return a
}

// Event is the notification of one event of a stream (text/event-stream).
func Event(data []byte) Answer {
	a := Answer{Code: codes.Content, Format: int(message.TextPlain), Body: data}
	if trimmed := bytes.TrimLeft(data, " \t\n"); len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[') {
		a.Format = int(message.AppJSON)
	}
	return a
}

// Write sets the answer as the content of a message.
func (a Answer) Write(m *pool.Message) {
	m.SetCode(a.Code)
	if len(a.ETag) > 0 {
		m.SetOptionBytes(message.ETag, a.ETag)
	}
	if a.Where != nil {
		for _, segment := range strings.Split(strings.Trim(a.Where.Path, "/"), "/") {
			if len(segment) <= 255 {
				m.AddOptionString(message.LocationPath, segment)
			}
		}
		for _, argument := range strings.Split(a.Where.RawQuery, "&") {
			if argument != "" && len(argument) <= 255 {
				m.AddOptionString(message.LocationQuery, argument)
			}
		}
	}
	if a.Observe > 0 {
		m.SetObserve(a.Observe)
	}
	if a.Format >= 0 && len(a.Body) > 0 {
		m.SetOptionUint32(message.ContentFormat, uint32(a.Format))
	}
	// An answer without Max-Age may be kept for a minute (section 5.10.5), which no service said.
	m.SetOptionUint32(message.MaxAge, a.MaxAge)
	if len(a.Body) > 0 {
		m.SetBody(bytes.NewReader(a.Body))
	}
}

// codeOf is the code for a status of HTTP:
//
//	200 to GET 2.05, to DELETE 2.02, to others 2.04    304  2.03
//	201 2.01                                           4xx  the code of that meaning, or 4.00
//	202, 204 and other 2xx as 200                      5xx  the code of that meaning, or 5.00
//	3xx 5.02: CoAP has no redirections
func codeOf(method string, status int) codes.Code {
	if code, known := statuses[status]; known {
		return code
	}
	switch {
	case status >= 200 && status < 300 && method == http.MethodGet:
		return codes.Content
	case status >= 200 && status < 300 && method == http.MethodDelete:
		return codes.Deleted
	case status >= 200 && status < 300:
		return codes.Changed
	case status >= 400 && status < 500:
		return codes.BadRequest
	case status >= 500:
		return codes.InternalServerError
	}
	return codes.BadGateway
}

var statuses = map[int]codes.Code{
	http.StatusCreated: codes.Created, http.StatusNotModified: codes.Valid,
	http.StatusUnauthorized: codes.Unauthorized, http.StatusForbidden: codes.Forbidden, http.StatusNotFound: codes.NotFound,
	http.StatusGone: codes.NotFound, http.StatusMethodNotAllowed: codes.MethodNotAllowed, http.StatusNotAcceptable: codes.NotAcceptable,
	http.StatusConflict: codes.Conflict, http.StatusPreconditionFailed: codes.PreconditionFailed,
	http.StatusRequestEntityTooLarge: codes.RequestEntityTooLarge, http.StatusUnsupportedMediaType: codes.UnsupportedMediaType,
	http.StatusUnprocessableEntity: codes.UnprocessableEntity, http.StatusTooManyRequests: codes.TooManyRequests,
	http.StatusNotImplemented: codes.NotImplemented, http.StatusBadGateway: codes.BadGateway,
	http.StatusServiceUnavailable: codes.ServiceUnavailable, http.StatusGatewayTimeout: codes.GatewayTimeout,
}

// mediaTypes are those of IANA's registry of CoAP Content-Formats that services use.
var mediaTypes = map[uint32]string{
	0: "text/plain; charset=utf-8", 40: "application/link-format", 41: "application/xml", 42: "application/octet-stream",
	47: "application/exi", 50: "application/json", 51: "application/json-patch+json", 52: "application/merge-patch+json",
	60: "application/cbor", 61: "application/cwt", 62: "application/multipart-core", 63: "application/cbor-seq",
	110: "application/senml+json", 111: "application/sensml+json", 112: "application/senml+cbor", 113: "application/sensml+cbor",
	21: "image/gif", 22: "image/jpeg", 23: "image/png", 30000: "image/svg+xml", 20000: "text/css", 20002: "application/javascript",
}

var formats = func() map[string]int {
	byName := make(map[string]int, len(mediaTypes))
	for format, name := range mediaTypes {
		plain, _, _ := strings.Cut(name, ";")
		byName[plain] = int(format)
	}
	return byName
}()

// formatOf is the Content-Format of a media type, or -1 for one without a number.
func formatOf(contentType string) int {
	name, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return -1
	}
	if format, known := formats[name]; known {
		return format
	}
	if strings.HasPrefix(name, "text/") {
		return int(message.TextPlain)
	}
	return -1
}

// tagOf is a strong entity tag of HTTP that fits into CoAP's eight bytes, or nothing.
func tagOf(tag string) []byte {
	if len(tag) < 3 || len(tag) > 10 || tag[0] != '"' || tag[len(tag)-1] != '"' {
		return nil
	}
	inner := []byte(tag[1 : len(tag)-1])
	for _, c := range inner {
		if !isTagByte(c) {
			return nil
		}
	}
	return inner
}

// maxAge is max-age of Cache-Control in seconds; without it, or with no-store, 0.
func maxAge(cacheControl string) uint32 {
	var age uint32
	for _, directive := range strings.Split(strings.ToLower(cacheControl), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(directive), "=")
		switch name {
		case "no-store", "no-cache", "private":
			return 0
		case "max-age":
			if n, err := strconv.ParseUint(strings.Trim(value, `"`), 10, 32); err == nil {
				age = uint32(n)
			}
		}
	}
	return age
}
