// Package requestlog writes one line a request, by the operator's template (contract section 5.6).
//
// Owns: the writer. Reads: finished exchanges. Writes: lines. Never: fails a request; a template
// that cannot be carried out yields a fixed line.
package requestlog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"text/template"
	"time"

	"ebb.dev/ebb/forward"
)

// DefaultTemplate is used when the ConfigMap has none.
const DefaultTemplate = `{"httpRequest": {"requestMethod": "{{.Request.Method}}", ` +
	`"requestUrl": "{{js .Request.RequestURI}}", "requestSize": "{{.Request.ContentLength}}", ` +
	`"status": {{.Response.Code}}, "responseSize": "{{.Response.Size}}", ` +
	`"userAgent": "{{js .Request.UserAgent}}", "remoteIp": "{{js .Request.RemoteAddr}}", ` +
	`"serverIp": "{{.Revision.PodIP}}", "referer": "{{js .Request.Referer}}", ` +
	`"latency": "{{.Response.Latency}}s", "protocol": "{{.Request.Proto}}"}, "traceId": "{{js .TraceID}}"}`

const invalidLine = "Invalid request log template: it could not be carried out\n"

// Revision is what the template may say of the pod, and of the revision whose request it was.
type Revision struct {
	Name, Namespace, Service, Configuration, PodName, PodIP string
}

// Log is made by New.
type Log struct {
	probes   bool
	template *template.Template

	mu  sync.Mutex
	out io.Writer
}

// New parses the template ("" is the default one). probes says whether probes are logged too.
func New(out io.Writer, text string, probes bool) (*Log, error) {
	if strings.TrimSpace(text) == "" {
		text = DefaultTemplate
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	t, err := template.New("request log").Funcs(template.FuncMap{"js": escape}).Parse(text)
	if err != nil {
		return nil, fmt.Errorf("request log template: %w", err)
	}
	return &Log{probes: probes, template: t, out: out}, nil
}

// escape makes a text fit between the quotes of a string of JSON, and of JavaScript. The template
// package's own "js" writes \', which JSON does not know.
func escape(values ...any) (string, error) {
	b, err := json.Marshal(fmt.Sprint(values...))
	if err != nil {
		return "", err
	}
	return strings.ReplaceAll(string(b[1:len(b)-1]), "'", `\u0027`), nil
}

// line is the template's data.
type line struct {
	Request  *http.Request
	Response struct {
		Code    int
		Size    int
		Latency float64 // seconds
	}
	Revision Revision
	TraceID  string
}

// Write writes the line of a request that is over. trace is the trace that it was made part of
// here; the client's own counts first.
func (l *Log) Write(r *forward.Request, res *forward.Result, probe bool, revision Revision, trace string) {
	if probe && !l.probes {
		return
	}
	data := line{Request: httpRequest(r), Revision: revision, TraceID: cmp.Or(traceID(r), trace)}
	data.Response.Code, data.Response.Size = res.Status, int(res.ResponseBytes)
	data.Response.Latency = float64(res.Duration) / float64(time.Second)
	var b bytes.Buffer
	if err := l.template.Execute(&b, data); err != nil {
		b.Reset()
		b.WriteString(invalidLine)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out.Write(b.Bytes())
}

// httpRequest is the request as templates know it: net/http's type, without a body.
func httpRequest(r *forward.Request) *http.Request {
	h := http.Header{}
	for name, value := range r.Fields {
		h.Add(strings.Clone(name), strings.Clone(value))
	}
	u, err := url.ParseRequestURI(r.Target())
	if err != nil {
		u = &url.URL{Path: r.Path()}
	}
	out := &http.Request{
		Method: r.Method(), URL: u, RequestURI: r.Target(), Proto: r.Proto(), Header: h, Host: r.Host(),
		ContentLength: r.ContentLength(), RemoteAddr: r.RemoteAddr().String(),
	}
	if host, _, err := net.SplitHostPort(out.RemoteAddr); err == nil {
		out.RemoteAddr = host
	}
	return out
}

func traceID(r *forward.Request) string {
	if parts := strings.Split(r.Header("Traceparent"), "-"); len(parts) >= 4 {
		return strings.Clone(parts[1])
	}
	return strings.Clone(r.Header("X-B3-Traceid"))
}
