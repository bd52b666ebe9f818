package forward

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// stray is in what an upstream sends beyond what its head allows.
const stray = "stray bytes of another response"

// A response whose body is not what its head said is malformed (RFC 9113 section 8.1.1): it is
// reset on both sides, what is beyond the head's words reaches nobody, and both connections serve
// the next request.
func TestHTTP2MalformedResponsesAreResetOnBothSides(t *testing.T) {
	data := func(text string, end bool) func(*h2raw, uint32) {
		return func(r *h2raw, id uint32) { r.fr.WriteData(id, end, []byte(text)) }
	}
	trailers := func(r *h2raw, id uint32) { r.headers(id, true, "x-sum", "1") }
	for name, test := range map[string]struct {
		method string
		head   []string
		end    bool // with the head
		rest   []func(*h2raw, uint32)
		want   string // what the client gets
	}{
		"204, then DATA":                 {"GET", []string{":status", "204"}, false, []func(*h2raw, uint32){data(stray, true)}, "204 reset INTERNAL_ERROR"},
		"204, then DATA that goes on":    {"GET", []string{":status", "204"}, false, []func(*h2raw, uint32){data(stray, false)}, "204 reset INTERNAL_ERROR"},
		"204, then DATA after none":      {"GET", []string{":status", "204"}, false, []func(*h2raw, uint32){data("", false), data(stray, true)}, "204 reset INTERNAL_ERROR"},
		"204, of a POST":                 {"POST", []string{":status", "204"}, false, []func(*h2raw, uint32){data(stray, true)}, "204 reset INTERNAL_ERROR"},
		"204 with a length, then DATA":   {"GET", []string{":status", "204", "content-length", fmt.Sprint(len(stray))}, false, []func(*h2raw, uint32){data(stray, true)}, "204 reset INTERNAL_ERROR"},
		"304, then DATA":                 {"GET", []string{":status", "304"}, false, []func(*h2raw, uint32){data(stray, true)}, "304 reset INTERNAL_ERROR"},
		"304 with a length, then DATA":   {"GET", []string{":status", "304", "content-length", fmt.Sprint(len(stray))}, false, []func(*h2raw, uint32){data(stray, true)}, "304 reset INTERNAL_ERROR"},
		"HEAD, then DATA":                {"HEAD", []string{":status", "200"}, false, []func(*h2raw, uint32){data(stray, true)}, "200 reset INTERNAL_ERROR"},
		"HEAD with a length, then DATA":  {"HEAD", []string{":status", "200", "content-length", fmt.Sprint(len(stray))}, false, []func(*h2raw, uint32){data(stray, true)}, "200 reset INTERNAL_ERROR"},
		"HEAD, DATA, trailers":           {"HEAD", []string{":status", "200"}, false, []func(*h2raw, uint32){data(stray, false), trailers}, "200 reset INTERNAL_ERROR"},
		"more than its length at once":   {"GET", []string{":status", "200", "content-length", "2"}, false, []func(*h2raw, uint32){data("ab"+stray, true)}, "200 reset INTERNAL_ERROR"},
		"more than its length, later":    {"GET", []string{":status", "200", "content-length", "2"}, false, []func(*h2raw, uint32){data("ab", false), data(stray, true)}, "200 ab reset INTERNAL_ERROR"},
		"more than a length of 0":        {"GET", []string{":status", "200", "content-length", "0"}, false, []func(*h2raw, uint32){data(stray, true)}, "200 reset INTERNAL_ERROR"},
		"less than its length":           {"GET", []string{":status", "200", "content-length", "9"}, false, []func(*h2raw, uint32){data("ab", true)}, "200 reset INTERNAL_ERROR"},
		"less than its length, trailers": {"GET", []string{":status", "200", "content-length", "9"}, false, []func(*h2raw, uint32){data("ab", false), trailers}, "200 ab reset INTERNAL_ERROR"},
		"a head that ends too soon":      {"GET", []string{":status", "200", "content-length", "9"}, true, nil, "502"},
		"two lengths":                    {"GET", []string{":status", "200", "content-length", "2", "content-length", "33"}, false, []func(*h2raw, uint32){data("ab", true)}, "502"},
		"two lengths of a HEAD":          {"HEAD", []string{":status", "200", "content-length", "2", "content-length", "33"}, true, nil, "502"},
		"an empty length":                {"GET", []string{":status", "200", "content-length", ""}, false, []func(*h2raw, uint32){data("ab", true)}, "502"},
		"a length with a sign":           {"GET", []string{":status", "200", "content-length", "+2"}, false, []func(*h2raw, uint32){data("ab", true)}, "502"},

		"204 that ends with no DATA":           {"GET", []string{":status", "204"}, false, []func(*h2raw, uint32){data("", true)}, "204 end"},
		"304 with a length and padding":        {"GET", []string{":status", "304", "content-length", "9"}, false, []func(*h2raw, uint32){func(r *h2raw, id uint32) { r.fr.WriteDataPadded(id, true, nil, make([]byte, 9)) }}, "304 end"},
		"HEAD with a length that ends later":   {"HEAD", []string{":status", "200", "content-length", "9"}, false, []func(*h2raw, uint32){data("", true)}, "200 end"},
		"HEAD with a length that ends at once": {"HEAD", []string{":status", "200", "content-length", "9"}, true, nil, "200 end"},
		"204 with trailers":                    {"GET", []string{":status", "204"}, false, []func(*h2raw, uint32){trailers}, "204 end"},
		"the same length twice":                {"GET", []string{":status", "200", "content-length", "2", "content-length", "2"}, false, []func(*h2raw, uint32){data("ab", true)}, "200 ab end"},
	} {
		t.Run(name, func(t *testing.T) {
			resets := make(chan http2.ErrCode, 1)
			backend := h2rawBackend(t, nil, func(conn int, r *h2raw, f http2.Frame) bool {
				switch f := f.(type) {
				case *http2.MetaHeadersFrame:
					if f.PseudoValue("path") == "/next" {
						r.headers(f.StreamID, false, ":status", "200")
						r.fr.WriteData(f.StreamID, true, fmt.Append(nil, "next on ", conn))
						break
					}
					r.headers(f.StreamID, test.end, test.head...)
					for _, write := range test.rest {
						write(r, f.StreamID)
					}
				case *http2.RSTStreamFrame:
					resets <- f.ErrCode
				}
				return true
			})
			addr, p := proxyTo(t, backend, nil)
			p.done = make(chan Result, 2)
			r := dialH2raw(t, addr)
			r.headers(1, true, ":method", test.method, ":scheme", "http", ":path", "/", ":authority", "h")
			if got := r.received(1); got != test.want {
				t.Errorf("the client got %q, want %q", got, test.want)
			}
			if res := <-p.done; (res.Cause == UpstreamFailed) == strings.HasSuffix(test.want, "end") {
				t.Errorf("the result is %+v", res)
			}
			r.headers(3, true, ":method", "GET", ":scheme", "http", ":path", "/next", ":authority", "h")
			if got := r.received(3); got != "200 next on 0 end" {
				t.Errorf("the next request got %q", got)
			}
			if strings.Contains(name, "goes on") {
				if code := <-resets; code != http2.ErrCodeProtocol {
					t.Errorf("the upstream's stream was reset with %s", code)
				}
			}
		})
	}
}

// received reads a stream to its end and returns its status, its bytes and how it ended. An answer
// that is made here is its status alone.
func (r *h2raw) received(id uint32) string {
	text := ""
	for {
		f, err := r.fr.ReadFrame()
		if err != nil {
			return text + " closed: " + err.Error()
		}
		if f.Header().StreamID != id {
			continue
		}
		end := false
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			text += f.PseudoValue("status")
			end = f.StreamEnded()
		case *http2.DataFrame:
			if len(f.Data()) > 0 {
				text += " " + string(f.Data())
			}
			end = f.StreamEnded()
		case *http2.RSTStreamFrame:
			return text + " reset " + f.ErrCode.String()
		}
		switch {
		case end && strings.HasPrefix(text, "502"):
			return "502"
		case end:
			return text + " end"
		}
	}
}
