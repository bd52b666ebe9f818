package page

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// answerWithin is how long the API server may take for all of an answer that is no stream.
	answerWithin = 30 * time.Second
	// streamSeconds is how long the API server lets a stream live. The page then asks anew, so
	// pages spread over replicas, and a caller's rights are looked at again.
	streamSeconds = 300
	// readWithin is how long a page may take to read what is sent to it.
	readWithin = 30 * time.Second
)

// passed are the parameters that go on to the API server.
var passed = []string{"watch", "resourceVersion", "allowWatchBookmarks", "fieldSelector", "labelSelector", "limit"}

// proxy hands questions on to the API server.
type proxy struct {
	reverse *httputil.ReverseProxy
	bounds  *bounds
	answers *prometheus.CounterVec
}

func newProxy(o Options) *proxy {
	p := &proxy{bounds: newBounds(), answers: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ebb_dashboard_answers_total",
		Help: "Answers to questions of pages, by HTTP status. 429 and 503 with the reason TooManyPages are of the dashboard.",
	}, []string{"code"})}
	o.Registry.MustRegister(p.answers, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ebb_dashboard_streams", Help: "Open streams of pages.",
	}, func() float64 { return float64(len(p.bounds.streams)) }))
	p.reverse = &httputil.ReverseProxy{
		Transport:  o.Transport,
		BufferPool: newBuffers(),
		ErrorLog:   log.New(io.Discard, "", 0), // pages that go away are no news
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL = &url.URL{Scheme: o.API.Scheme, Host: o.API.Host, Path: o.API.Path + r.In.URL.Path, RawQuery: query(r.In.URL)}
			r.Out.Host = ""
			r.Out.Header = http.Header{"Accept": {"application/json"}, "User-Agent": {"ebb-dashboard"}}
			if o.Key == "" {
				r.Out.Header["Authorization"] = r.In.Header["Authorization"][:1]
			}
			if encoding := r.In.Header.Get("Accept-Encoding"); encoding != "" {
				r.Out.Header.Set("Accept-Encoding", encoding)
			}
		},
		ModifyResponse: func(r *http.Response) error {
			from := r.Header
			r.Header = http.Header{"Cache-Control": {"no-store"}}
			for _, name := range []string{"Content-Type", "Content-Encoding", "Content-Length", "Retry-After", "Warning"} {
				if value := from.Get(name); value != "" {
					r.Header.Set(name, value)
				}
			}
			p.answers.WithLabelValues(strconv.Itoa(r.StatusCode)).Inc()
			if isStream(r.Request.URL) {
				r.Body = &paced{ReadCloser: r.Body, ctx: r.Request.Context(), pace: p.bounds.pace}
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if errors.Is(err, context.Canceled) { // the page went away
				return
			}
			o.Log.Warn("the API server did not answer", "path", r.URL.Path, "error", err)
			p.refuse(w, http.StatusBadGateway, "NoAPIServer", "the API server does not answer: "+plain(err))
		},
	}
	return p
}

// serve answers a question that is on the list.
func (p *proxy) serve(w http.ResponseWriter, r *http.Request, token string) {
	control := http.NewResponseController(w)
	if isStream(r.URL) {
		leave, ok := p.bounds.enterStream(token)
		if !ok {
			w.Header().Set("Retry-After", "60")
			p.refuse(w, http.StatusTooManyRequests, "TooManyPages", "too many pages are open")
			return
		}
		defer leave()
		// The stream takes longer than a request may: the deadline for reading it would end it.
		_ = control.SetReadDeadline(time.Time{})
	} else {
		ctx, cancel := context.WithTimeout(r.Context(), answerWithin)
		defer cancel()
		r = r.WithContext(ctx)
		leave, ok := p.bounds.enterQuestion(ctx)
		if !ok {
			w.Header().Set("Retry-After", "10")
			p.refuse(w, http.StatusServiceUnavailable, "TooManyPages", "too many pages ask at once")
			return
		}
		defer leave()
	}
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }() // the connection may be used again
	p.reverse.ServeHTTP(&punctual{w, control}, r)
}

func (p *proxy) refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	p.answers.WithLabelValues(strconv.Itoa(code)).Inc()
	refuse(w, code, reason, message)
}

func isStream(u *url.URL) bool { return u.Query().Get("watch") != "" }

// query keeps the parameters that the page uses, and bounds a stream.
func query(u *url.URL) string {
	in, out := u.Query(), url.Values{}
	for _, name := range passed {
		if value := in.Get(name); value != "" {
			out.Set(name, value)
		}
	}
	if isStream(u) {
		out.Set("timeoutSeconds", strconv.Itoa(streamSeconds))
	}
	return out.Encode()
}

// plain is the end of an error's chain, without the addresses that it went through.
func plain(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "it took longer than " + answerWithin.String()
	}
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err.Error()
}

// punctual gives up on a page that does not read.
type punctual struct {
	http.ResponseWriter
	control *http.ResponseController
}

// Unwrap is for http.ResponseController.
func (p *punctual) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// Write implements io.Writer.
func (p *punctual) Write(text []byte) (int, error) {
	if err := p.control.SetWriteDeadline(time.Now().Add(readWithin)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return p.ResponseWriter.Write(text)
}
