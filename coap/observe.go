package coap

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/message/pool"

	"ebb.dev/ebb/coap/internal/events"
	"ebb.dev/ebb/coap/internal/translate"
)

const (
	// confirmAfter is how long a peer that begins to observe waits for the first event. Then it is
	// told, without content, that it observes.
	confirmAfter = 5 * time.Second
	// askAfter is after how long without events a peer is asked whether it is still there.
	askAfter = 2 * time.Minute
	// maxSequence is the largest Observe number: it has 24 bits.
	maxSequence = 1<<24 - 1
	// observationsOfOne is how many observations one peer may have.
	observationsOfOne = 8
)

// observation is a stream of events that a peer observes.
type observation struct {
	url    string
	cancel context.CancelFunc
	last   translate.Answer // the newest event
	sent   int32            // the message ID of the newest notification
}

// ended ends an observation, if that is what a message asks for (Observe 1), and answers with its
// newest event. Clients send no more than the token for it.
func (s *session) ended(m *pool.Message) (translate.Answer, bool) {
	value, err := m.Observe()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	o := s.observed[string(m.Token())]
	if err != nil || value != 1 || m.Code() != codes.GET || o == nil {
		return translate.Answer{}, false
	}
	o.cancel()
	return translate.Event(o.last.Body), true
}

// newest answers a GET for the further blocks of a notification (RFC 7959 section 2.6), which its
// stream could not.
func (s *session) newest(m *pool.Message, r *translate.Request) (translate.Answer, bool) {
	number, _, _ := block(m, message.Block2)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, o := range s.observed {
		if number > 0 && r.Method == http.MethodGet && o.url == r.URL() && len(o.last.Body) > 0 {
			return translate.Event(o.last.Body), true
		}
	}
	return translate.Answer{}, false
}

// begin makes room for an observation, and reports whether there is. The same token again renews
// the old one (RFC 7641 section 3.1).
func (x *exchange) begin(o *observation) bool {
	s := x.session
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if old := s.observed[string(x.token)]; old != nil {
		old.cancel()
		delete(s.observed, string(x.token))
	}
	if len(s.observed) >= observationsOfOne || !s.entry.observations.TryAcquire(1) {
		return false
	}
	if !s.entry.memory.Take(2 * s.entry.options.event()) {
		s.entry.observations.Release(1)
		return false
	}
	s.observed[string(x.token)] = o
	return true
}

func (x *exchange) end(o *observation) {
	s := x.session
	s.entry.memory.Give(2 * s.entry.options.event())
	s.entry.observations.Release(1)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.observed[string(x.token)] == o {
		delete(s.observed, string(x.token))
	}
}

// follow makes each event of a stream a notification, until the stream or the peer's interest ends.
// While a notification waits to be acknowledged, the stream waits, too.
func (x *exchange) follow(stream io.Reader) {
	o := &observation{url: x.request.URL(), cancel: func() { x.cancel(nil) }}
	if !x.begin(o) {
		x.deliver(translate.Diagnosis(codes.ServiceUnavailable, "there are too many observations"), 0)
		return
	}
	defer x.end(o)
	next := x.events(stream)
	confirm, silence := time.NewTimer(confirmAfter), time.NewTicker(askAfter)
	defer confirm.Stop()
	defer silence.Stop()
	for here := true; here; {
		select {
		case <-x.ctx.Done():
			return
		case <-confirm.C:
			here = x.notify(o, translate.Event(nil))
		case <-silence.C:
			here = x.isThere()
		case data, open := <-next:
			confirm.Stop()
			silence.Reset(askAfter)
			if !open {
				// An error ends an observation (RFC 7641 section 4.2).
				x.deliver(translate.Diagnosis(codes.ServiceUnavailable, "the stream of events ended"), 0)
				return
			}
			here = x.notify(o, translate.Event(data))
		}
	}
}

// events are the events of a stream. The channel is closed at its end.
func (x *exchange) events(stream io.Reader) <-chan []byte {
	next := make(chan []byte)
	go func() {
		defer close(next)
		reader := events.NewReader(stream, x.session.entry.options.event())
		for {
			data, err := reader.Next()
			if err != nil {
				return
			}
			select {
			case next <- data:
			case <-x.ctx.Done():
				return
			}
		}
	}()
	return next
}

// notify tells the peer of an event, and reports whether it still observes.
func (x *exchange) notify(o *observation, event translate.Answer) bool {
	s := x.session
	s.mutex.Lock()
	event.Observe = o.last.Observe%maxSequence + 1
	o.last = event
	s.mutex.Unlock()
	select {
	case x.piggyback <- event:
		return true
	case <-x.late:
		return x.send(event) == nil && x.ctx.Err() == nil
	}
}

// isThere asks a peer to which nothing was sent for long whether it is still there.
func (x *exchange) isThere() bool {
	within, cancel := context.WithTimeout(x.ctx, time.Minute)
	defer cancel()
	return x.session.conn.Ping(within) == nil
}
