package apiservertest

import (
	"context"
	"io"
	"net/http"
	"sync"

	"github.com/go-logr/logr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// client-go delays each report of an error after the previous one, by a time that it keeps for the
// whole process. In the virtual time of another test that can be years. It also logs what tests
// provoke.
func init() {
	utilruntime.ErrorHandlers = nil
	klog.SetLogger(logr.Discard())
}

// New returns a store and how to reach it without a network. Nothing has to be stopped, and it
// works in virtual time (testing/synctest), where a goroutine that waits for a socket would stop
// the clock.
func New() (*Store, *rest.Config) {
	store := newStore()
	return store, &rest.Config{Host: "http://apiserver.test", QPS: -1, Transport: transport{&handler{store: store}}}
}

// transport calls the handler in this process.
type transport struct{ http.Handler }

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	inbound := r.Clone(ctx)
	if inbound.Body == nil {
		inbound.Body = http.NoBody
	}
	body, out := io.Pipe()
	w := &response{header: http.Header{}, body: out, head: make(chan *http.Response, 1)}
	go func() {
		t.ServeHTTP(w, inbound)
		w.WriteHeader(http.StatusOK)
		out.Close()
		inbound.Body.Close()
	}()
	select {
	case head := <-w.head:
		head.Request, head.Body = r, closer{body, cancel}
		return head, nil
	case <-r.Context().Done():
		cancel()
		body.Close()
		return nil, r.Context().Err()
	}
}

// closer ends the handler when the client closes the body.
type closer struct {
	*io.PipeReader
	end context.CancelFunc
}

func (c closer) Close() error {
	c.end()
	return c.PipeReader.Close()
}

type response struct {
	header http.Header
	body   io.Writer
	once   sync.Once
	head   chan *http.Response
}

func (w *response) Header() http.Header { return w.header }
func (w *response) Flush()              { w.WriteHeader(http.StatusOK) }

func (w *response) WriteHeader(code int) {
	w.once.Do(func() {
		w.head <- &http.Response{StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: w.header.Clone(), ContentLength: -1}
	})
}

func (w *response) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}
