package forward

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// HTTP/2 with prior knowledge through both: the same responses.
func TestAgreesWithTheStandardReverseProxyOverHTTP2(t *testing.T) {
	p := proxies(t, told)
	client := h2cClient(t)
	for name, c := range map[string]struct {
		method, path string
		body         string
		unknown      bool // no length is said
		header       http.Header
	}{
		"a GET":                       {method: "GET", path: "/"},
		"a query":                     {method: "GET", path: "/a%20b?x=1&y=%2F"},
		"HEAD":                        {method: "HEAD", path: "/"},
		"HEAD of what has no body":    {method: "HEAD", path: "/204"},
		"204":                         {method: "GET", path: "/204"},
		"304":                         {method: "GET", path: "/304"},
		"pieces":                      {method: "GET", path: "/chunked"},
		"much":                        {method: "GET", path: "/large"},
		"trailers":                    {method: "GET", path: "/trailer", header: http.Header{"Te": {"trailers"}}},
		"only a head, as in gRPC":     {method: "POST", path: "/only-trailers", body: "x", header: http.Header{"Te": {"trailers"}, "Content-Type": {"application/grpc"}}},
		"an interim response":         {method: "GET", path: "/early"},
		"repeated fields and cookies": {method: "GET", path: "/many", header: http.Header{"X": {"1", "2"}, "Cookie": {"a=1; b=2; c=3"}}},
		"a body":                      {method: "POST", path: "/p", body: "hello"},
		"a body of unknown length":    {method: "POST", path: "/p", body: "hello", unknown: true},
		"an empty body":               {method: "POST", path: "/p"},
		"a large body":                {method: "PUT", path: "/p", body: strings.Repeat("x", 1<<20)},
		"a large one, length unknown": {method: "PUT", path: "/chunked", body: strings.Repeat("x", 1<<20), unknown: true},
		"an unknown method":           {method: "BREW", path: "/pot"},
		"DELETE":                      {method: "DELETE", path: "/204"},
		"a response that is cut":      {method: "GET", path: "/cut"},
		"an empty value":              {method: "GET", path: "/", header: http.Header{"X-Empty": {""}}},
	} {
		t.Run(name, func(t *testing.T) {
			var answers [2]seen
			for i, address := range []string{p.ours, p.theirs} {
				var body io.Reader
				if c.body != "" {
					body = strings.NewReader(c.body)
				}
				if c.unknown {
					body = io.MultiReader(body)
				}
				request, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+address+c.path, body)
				if err != nil {
					t.Fatal(err)
				}
				request.Host = "front.example"
				for name, values := range c.header {
					request.Header[name] = values
				}
				response, err := client.Do(request)
				if err != nil {
					t.Fatalf("%s: %v", address, err)
				}
				text, err := io.ReadAll(response.Body)
				response.Body.Close()
				response.Header.Del("Date")
				answers[i] = seen{status: response.StatusCode, header: response.Header, body: string(text), trailer: response.Trailer,
					length: response.ContentLength, cut: err != nil}
				if len(text) == 0 && response.Header.Get("Content-Length") == "" {
					answers[i].length = 0 // whether the end came with the head or after it
				}
				if response.ProtoMajor != 2 {
					t.Errorf("%s answers in %s", address, response.Proto)
				}
			}
			compare(t, "", answers[0], answers[1])
		})
	}
}
