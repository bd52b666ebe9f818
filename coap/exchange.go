package coap

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/message/pool"

	"ebb.dev/ebb/coap/internal/events"
	"ebb.dev/ebb/coap/internal/memory"
	"ebb.dev/ebb/coap/internal/translate"
)

// acknowledgeAfter is how long an answer may take that goes with the acknowledgement. It is less
// than the 2 s after which a client sends its request again (ACK_TIMEOUT).
const acknowledgeAfter = time.Second

var errTimeout = errors.New("the service did not answer in time")

// exchange is one request on its way to its answer.
type exchange struct {
	session *session
	request *translate.Request
	token   message.Token
	block   int    // bytes of a block of the answer
	body    []byte // of the request
	ctx     context.Context
	cancel  context.CancelCauseFunc

	piggyback chan translate.Answer
	late      chan struct{} // closed when answers can only be messages of their own
}

// handle answers a request that is complete. go-coap calls it.
func (s *session) handle(w *writer, m *pool.Message) {
	if m.Code() < codes.GET || m.Code() > codes.IPATCH {
		return
	}
	x, refusal := s.accept(m)
	if refusal != nil {
		s.write(w.Message(), *refusal)
		return
	}
	defer close(x.late)
	go x.run()
	select {
	case answer := <-x.piggyback:
		s.write(w.Message(), answer)
	case <-time.After(acknowledgeAfter): // go-coap acknowledges a request when its handler writes nothing
	case <-s.conn.Context().Done():
	}
}

func (s *session) write(m *pool.Message, a translate.Answer) {
	s.entry.metrics.answers.WithLabelValues(codeName(a.Code)).Inc()
	a.Write(m)
}

// accept makes the exchange of a request, or says what to answer at once.
func (s *session) accept(m *pool.Message) (*exchange, *translate.Answer) {
	answer := func(code codes.Code, text string) (*exchange, *translate.Answer) {
		a := translate.Diagnosis(code, text)
		return nil, &a
	}
	if event, ended := s.ended(m); ended {
		return nil, &event
	}
	request, refusal := translate.FromMessage(m.Code(), m.Options())
	if refusal != nil {
		return answer(refusal.Code, refusal.Text)
	}
	if event, known := s.newest(m, request); known {
		return nil, &event
	}
	body, err := m.ReadBody()
	switch {
	case err != nil:
		return answer(codes.BadRequest, "the body cannot be read")
	case !s.requests.TryAcquire(1):
		return answer(codes.TooManyRequests, "this peer has too many requests")
	case !s.entry.requests.TryAcquire(1):
		s.requests.Release(1)
		return answer(codes.ServiceUnavailable, "there are too many requests")
	case !s.entry.memory.Take(len(body)):
		s.requests.Release(1)
		s.entry.requests.Release(1)
		return answer(codes.ServiceUnavailable, memory.ErrFull.Error())
	}
	s.peer.Hold()
	x := &exchange{session: s, request: request, token: bytes.Clone(m.Token()), block: blockSize(m), body: body,
		piggyback: make(chan translate.Answer), late: make(chan struct{})}
	x.ctx, x.cancel = context.WithCancelCause(s.conn.Context())
	return x, nil
}

// run asks the service and gives the answer to the peer.
func (x *exchange) run() {
	s := x.session
	defer s.recover()
	defer s.peer.Release()
	defer x.cancel(nil)
	timer := time.AfterFunc(s.entry.options.Timeout, func() { x.cancel(errTimeout) })
	defer timer.Stop()
	response, err := x.ask()
	if err == nil && isStream(response) && x.request.Observe == 0 {
		defer response.Body.Close()
		timer.Stop()
		x.release()
		x.follow(response.Body)
		return
	}
	defer x.release()
	x.deliver(x.read(response, err))
}

// release ends what counts against the requests.
func (x *exchange) release() {
	x.session.entry.memory.Give(len(x.body))
	x.session.entry.requests.Release(1)
	x.session.requests.Release(1)
}

// ask sends the HTTP request.
func (x *exchange) ask() (*http.Response, error) {
	r := x.request
	to := &url.URL{Scheme: "http", Host: x.session.entry.options.Gateway, RawPath: r.Path, RawQuery: r.Query}
	to.Path, _ = url.PathUnescape(r.Path) // it was escaped by us
	request := (&http.Request{Method: r.Method, URL: to, Host: r.Host, Header: r.Header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}).WithContext(x.ctx)
	request.Header.Set("X-Forwarded-For", x.session.peer.Address().Addr().String())
	request.Header.Set("User-Agent", "ebb-coap")
	if r.Observe == 0 && request.Header.Get("Accept") == "" {
		request.Header.Set("Accept", "text/event-stream, */*;q=0.5")
	}
	if len(x.body) > 0 {
		request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body))
		request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(x.body)), nil }
	}
	return x.session.entry.http.RoundTrip(request)
}

func isStream(r *http.Response) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == "text/event-stream" && r.StatusCode == http.StatusOK
}

// read translates the service's answer. Of the budget it has taken so many bytes.
func (x *exchange) read(response *http.Response, err error) (answer translate.Answer, taken int) {
	if err != nil {
		return x.failed(err), 0
	}
	defer response.Body.Close()
	if isStream(response) {
		// The stream may never end. Who does not observe it gets the next event.
		data, err := events.NewReader(response.Body, x.session.entry.options.event()).Next()
		if err != nil || !x.session.entry.memory.Take(len(data)) {
			return x.failed(cmp.Or(err, memory.ErrFull)), 0
		}
		return translate.Event(data), len(data)
	}
	body, taken, err := x.session.entry.memory.ReadAll(response.Body, x.session.entry.options.Answer)
	if err != nil {
		return x.failed(err), taken
	}
	return translate.FromResponse(x.request.Method, response.StatusCode, response.Header, body), taken
}

func (x *exchange) failed(err error) translate.Answer {
	switch {
	case errors.Is(context.Cause(x.ctx), errTimeout):
		return translate.Diagnosis(codes.GatewayTimeout, errTimeout.Error())
	case errors.Is(err, memory.ErrFull):
		return translate.Diagnosis(codes.ServiceUnavailable, err.Error())
	case errors.Is(err, memory.ErrTooLarge):
		return translate.Diagnosis(codes.BadGateway, "the service's answer is larger than it may be")
	}
	return translate.Diagnosis(codes.BadGateway, "the gateway did not answer")
}

// deliver gives the peer the answer: with the acknowledgement if there is still time, or as a
// message of its own that the peer acknowledges. Memory that the answer has taken is given back
// when no block of it can be asked for any more.
func (x *exchange) deliver(a translate.Answer, taken int) {
	s := x.session
	inBlocks := len(a.Body) >= x.block
	if inBlocks && a.Observe == 0 {
		s.keep(x.token, taken)
	} else {
		defer s.entry.memory.Give(taken)
	}
	select {
	case x.piggyback <- a:
	case <-x.late:
		_ = x.send(a) // a peer that is gone asks again or not
	}
}

// send sends an answer as a message of its own, and waits until the peer acknowledges it.
func (x *exchange) send(a translate.Answer) error {
	c := x.session.conn
	m := c.AcquireMessage(c.Context())
	defer c.ReleaseMessage(m)
	x.session.write(m, a)
	m.SetToken(x.token)
	m.SetType(message.Confirmable)
	return c.WriteMessage(m)
}
