package translate

import (
	"bufio"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/message/pool"
)

func option(id message.OptionID, value string) message.Option {
	return message.Option{ID: id, Value: []byte(value)}
}

func TestRequests(t *testing.T) {
	host := option(message.URIHost, "Hello.Example.com")
	for name, try := range map[string]struct {
		code    codes.Code
		options message.Options
		want    string // method, URL and headers, or the code of a refusal
	}{
		"the root":                {codes.GET, message.Options{host}, "GET http://hello.example.com/"},
		"path and query":          {codes.PUT, message.Options{host, option(message.URIPath, "a"), option(message.URIPath, "b/c"), option(message.URIQuery, "x=1"), option(message.URIQuery, "y=&# ")}, "PUT http://hello.example.com/a/b%2Fc?x=1&y=%26%23%20"},
		"an empty segment":        {codes.GET, message.Options{host, option(message.URIPath, "a"), option(message.URIPath, "")}, "GET http://hello.example.com/a/"},
		"formats":                 {codes.POST, message.Options{host, option(message.ContentFormat, "\x32"), option(message.Accept, "\x3c")}, "POST http://hello.example.com/ Content-Type=application/json Accept=application/cbor"},
		"tags":                    {codes.GET, message.Options{host, option(message.ETag, "v1"), option(message.ETag, "\x00\x01")}, `GET http://hello.example.com/ If-None-Match="v1","0001"`},
		"only if there is none":   {codes.PUT, message.Options{host, option(message.IfNoneMatch, "")}, "PUT http://hello.example.com/ If-None-Match=*"},
		"only if it is this":      {codes.PUT, message.Options{host, option(message.IfMatch, "v1")}, `PUT http://hello.example.com/ If-Match="v1"`},
		"a final dot":             {codes.GET, message.Options{option(message.URIHost, "hello.example.com.")}, "GET http://hello.example.com/"},
		"no host":                 {codes.GET, nil, "4.00"},
		"a host with a port":      {codes.GET, message.Options{option(message.URIHost, "a:80")}, "4.00"},
		"a host with a line end":  {codes.GET, message.Options{option(message.URIHost, "a\r\nX: y")}, "4.00"},
		"an empty label":          {codes.GET, message.Options{option(message.URIHost, "a..b")}, "4.00"},
		"a way up":                {codes.GET, message.Options{host, option(message.URIPath, "..")}, "4.00"},
		"a line end in the path":  {codes.GET, message.Options{host, option(message.URIPath, "a\r\nX: y")}, "GET http://hello.example.com/a%0D%0AX:%20y"},
		"a line end in the query": {codes.GET, message.Options{host, option(message.URIQuery, "a\r\nX: y")}, "GET http://hello.example.com/?a%0D%0AX:%20y"},
		"FETCH":                   {codes.FETCH, message.Options{host}, "4.05"},
		"another proxy":           {codes.GET, message.Options{host, option(message.ProxyScheme, "http")}, "5.05"},
		"a format of nobody":      {codes.POST, message.Options{host, option(message.ContentFormat, "\xff\xff")}, "4.15"},
	} {
		r, refusal := FromMessage(try.code, try.options)
		var got string
		if refusal != nil {
			got = fmt.Sprintf("%d.%02d", refusal.Code>>5, refusal.Code&31)
		} else {
			got = r.Method + " " + r.URL()
			for _, name := range []string{"Content-Type", "Accept", "If-None-Match", "If-Match"} {
				if values := r.Header.Values(name); len(values) > 0 {
					got += " " + name + "=" + strings.Join(values, ",")
				}
			}
		}
		if got != try.want {
			t.Errorf("%s: got %s, want %s", name, got, try.want)
		}
	}
}

func TestAnswers(t *testing.T) {
	for name, try := range map[string]struct {
		method string
		status int
		header string // name: value
		want   Answer
	}{
		"content":              {"GET", 200, "Content-Type: application/json; charset=utf-8", Answer{Code: codes.Content, Format: 50}},
		"text of a kind":       {"GET", 200, "Content-Type: text/html", Answer{Code: codes.Content, Format: 0}},
		"an unknown kind":      {"GET", 200, "Content-Type: a/b", Answer{Code: codes.Content, Format: -1}},
		"how long it is fresh": {"GET", 200, "Cache-Control: public, max-age=300", Answer{Code: codes.Content, Format: -1, MaxAge: 300}},
		"not to be kept":       {"GET", 200, "Cache-Control: no-store, max-age=300", Answer{Code: codes.Content, Format: -1}},
		"a tag":                {"GET", 200, `Etag: "v1"`, Answer{Code: codes.Content, Format: -1, ETag: []byte("v1")}},
		"a tag too long":       {"GET", 200, `Etag: "123456789"`, Answer{Code: codes.Content, Format: -1}},
		"the same still":       {"GET", 304, `Etag: "v1"`, Answer{Code: codes.Valid, Format: -1, ETag: []byte("v1")}},
		"created":              {"POST", 201, "Location: http://a/b/c?d=e", Answer{Code: codes.Created, Format: -1}},
		"changed":              {"POST", 200, "", Answer{Code: codes.Changed, Format: -1}},
		"accepted":             {"POST", 202, "", Answer{Code: codes.Changed, Format: -1}},
		"deleted":              {"DELETE", 204, "", Answer{Code: codes.Deleted, Format: -1}},
		"a redirection":        {"GET", 302, "", Answer{Code: codes.BadGateway, Format: -1}},
		"not found":            {"GET", 404, "", Answer{Code: codes.NotFound, Format: -1}},
		"a teapot":             {"GET", 418, "", Answer{Code: codes.BadRequest, Format: -1}},
		"come back":            {"GET", 503, "Retry-After: 7", Answer{Code: codes.ServiceUnavailable, Format: -1, MaxAge: 7}},
		"not implemented":      {"GET", 501, "", Answer{Code: codes.NotImplemented, Format: -1}},
		"another 5xx":          {"GET", 599, "", Answer{Code: codes.InternalServerError, Format: -1}},
	} {
		header := http.Header{}
		if name, value, ok := strings.Cut(try.header, ": "); ok {
			header.Set(name, value)
		}
		got := FromResponse(try.method, try.status, header, nil)
		if got.Code != try.want.Code || got.Format != try.want.Format || got.MaxAge != try.want.MaxAge || string(got.ETag) != string(try.want.ETag) {
			t.Errorf("%s: got %+v, want %+v", name, got, try.want)
		}
	}
}

func TestWhereSomethingWasCreatedIsTold(t *testing.T) {
	m := pool.NewMessage(t.Context())
	FromResponse("POST", 201, http.Header{"Location": {"/orders/7?v=2"}}, nil).Write(m)
	path, err := m.Options().LocationPath()
	if err != nil || path != "/orders/7" {
		t.Errorf("location %q %v", path, err)
	}
	var query []string
	for _, o := range m.Options() {
		if o.ID == message.LocationQuery {
			query = append(query, string(o.Value))
		}
	}
	if len(query) != 1 || query[0] != "v=2" {
		t.Errorf("location query %q", query)
	}
}

// Whatever a client sends becomes an HTTP request of exactly one line with its host, or a refusal.
func FuzzFromMessage(f *testing.F) {
	f.Add(uint8(1), "a.example.com", "b", "c=d", []byte{50})
	f.Add(uint8(2), "a\r\nb", "..", "c&d", []byte{})
	f.Fuzz(func(t *testing.T, code uint8, host, path, query string, format []byte) {
		options := message.Options{option(message.URIHost, host), option(message.URIPath, path), option(message.URIQuery, query),
			{ID: message.ETag, Value: format}}
		r, refusal := FromMessage(codes.Code(code), options)
		if refusal != nil {
			if refusal.Code < codes.BadRequest || refusal.Text == "" {
				t.Fatalf("a refusal with %v %q", refusal.Code, refusal.Text)
			}
			return
		}
		target, err := url.PathUnescape(r.Path)
		if err != nil || target != "/"+path {
			t.Fatalf("path %q became %q %v", path, r.Path, err)
		}
		request := &http.Request{Method: r.Method, URL: &url.URL{Scheme: "http", Host: "gateway", Path: target, RawPath: r.Path, RawQuery: r.Query}, Host: r.Host, Header: r.Header}
		var wire strings.Builder
		if err := request.Write(&wire); err != nil {
			t.Fatal(err)
		}
		got, err := http.ReadRequest(bufio.NewReader(strings.NewReader(wire.String())))
		if err != nil {
			t.Fatalf("%q: %v", wire.String(), err)
		}
		got.Header.Del("User-Agent")
		got.Header.Del("Content-Length")
		got.Header.Del("If-None-Match")
		if got.Host != strings.ToLower(strings.TrimSuffix(host, ".")) || got.URL.Path != "/"+path || len(got.Header) > 0 {
			t.Fatalf("host %q, path %q, headers %v", got.Host, got.URL.Path, got.Header)
		}
	})
}

// Whatever a service answers becomes a message that can be coded.
func FuzzFromResponse(f *testing.F) {
	f.Add(201, "/a?b", `"tag"`, "max-age=1", "7", "text/plain")
	f.Fuzz(func(t *testing.T, status int, location, tag, cache, retry, kind string) {
		header := http.Header{"Location": {location}, "Etag": {tag}, "Cache-Control": {cache}, "Retry-After": {retry}, "Content-Type": {kind}}
		m := pool.NewMessage(t.Context())
		FromResponse("GET", status, header, []byte("x")).Write(m)
		for _, o := range m.Options() {
			if !message.VerifyOptLen(o.ID, len(o.Value)) {
				t.Fatalf("option %v has %d bytes", o.ID, len(o.Value))
			}
		}
	})
}
