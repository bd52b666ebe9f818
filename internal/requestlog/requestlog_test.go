package requestlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"ebb.dev/ebb/forward"
)

type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// handler forwards everything and shows the log every exchange.
type handler struct {
	up   *forward.Upstream
	log  *Log
	done chan bool
}

func (h *handler) Admit(*forward.Request) forward.Decision { return forward.Decision{Upstream: h.up} }
func (h *handler) Done(r *forward.Request, res *forward.Result) {
	h.log.Write(r, res, strings.HasPrefix(r.Header("User-Agent"), "kube-probe"), Revision{Name: "rev"}, "abc")
	h.done <- true
}

func TestLinesFollowTheTemplate(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "12345") }))
	defer backend.Close()
	for name, test := range map[string]struct {
		template string
		probes   bool
		agent    string
		want     string
	}{
		"a template": {`{{.Request.Method}} {{.Request.URL.Path}} {{.Request.Header.Get "X-Y"}} {{.Response.Code}} {{.Response.Size}} {{.Revision.Name}} {{.TraceID}}`,
			false, "t", "GET /a yes 200 5 rev abc\n"},
		"the default is JSON":         {"", false, `quote"`, "json"},
		"a template that fails":       {`{{.Request.NoSuch}}`, false, "t", invalidLine},
		"probes are left out":         {"x", false, "kube-probe/1", ""},
		"probes are logged on demand": {"x", true, "kube-probe/1", "x\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out locked
			l, err := New(&out, test.template, test.probes)
			if err != nil {
				t.Fatal(err)
			}
			h := &handler{forward.NewUpstream(backend.Listener.Addr().String(), forward.UpstreamOptions{}), l, make(chan bool, 1)}
			s := &forward.Server{Handler: h}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- s.Serve(listener) }()
			req, _ := http.NewRequest("GET", "http://"+listener.Addr().String()+"/a?b", nil)
			req.Header.Set("User-Agent", test.agent)
			req.Header.Set("X-Y", "yes")
			req.Header.Set("Traceparent", "00-abc-def-01")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			<-h.done
			s.Close()
			if err := <-served; !errors.Is(err, forward.ErrServerClosed) {
				t.Error(err)
			}
			got := out.b.String()
			if test.want == "json" {
				var line struct {
					HTTPRequest struct{ RequestMethod, UserAgent string }
					TraceID     string
				}
				if err := json.Unmarshal([]byte(got), &line); err != nil || line.HTTPRequest.RequestMethod != "GET" || line.HTTPRequest.UserAgent != test.agent || line.TraceID != "abc" {
					t.Errorf("%q: %v %+v", got, err, line)
				}
				return
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	if _, err := New(io.Discard, "{{", false); err == nil {
		t.Error("a template that does not parse was accepted")
	}
}
