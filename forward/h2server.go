package forward

import (
	"bytes"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// h2server handles the frames of a client's connection.
type h2server struct {
	c      *h2conn
	client *clientConn
	srv    *Server

	later []*h2exchange // admitted; sent when all frames that were read have been handled
	// spare is how many more streams the client may reset before they are answered; see spend.
	spare    allowance
	requests int // since spare was last used

	running atomic.Int64 // between Admit and Done
	// Guarded by c.mu.
	leaving   time.Time // when the first GOAWAY was sent, zero before
	grace     time.Duration
	final     bool   // the last GOAWAY was sent; streams above finalID are not served
	finalID   uint32 // valid when final
	firstOpen bool   // a stream was opened
	opened    time.Time
}

// A client that opens streams and resets them causes work without end ("rapid reset"). It may do so
// h2Resets times at once, h2ResetRate times a second, and as often as its requests were answered. A
// reset is not counted if the stream is older than h2Patience or its response has begun: then the
// client has a deadline or has read enough, and h2MaxStreams limits these streams. One connection
// of a gateway can have the deadlines of thousands of clients.
const (
	h2Resets    = 1000
	h2ResetRate = 100
	h2Patience  = 100 * time.Millisecond
)

// serveH2 serves an HTTP/2 connection to its end. read is what was already read from it.
func serveH2(c *clientConn, read []byte) {
	c.srv.countHTTP2(c)
	c.nc.SetDeadline(time.Time{})
	s := &h2server{client: c, srv: c.srv, opened: time.Now()}
	s.spare.fill(h2Resets, s.opened)
	s.c = newH2Conn(c.nc, c.srv, c.srv.HeaderTimeout, c.srv.StallTimeout)
	s.c.peer = s
	if len(read) > 0 {
		s.c.in.Reset(io.MultiReader(bytes.NewReader(read), h2socket{s.c}))
	}
	c.nc.SetReadDeadline(time.Now().Add(c.srv.HeaderTimeout)) // until the first SETTINGS
	hello := make([]byte, len(preface))
	if _, err := io.ReadFull(s.c.in, hello); err != nil || string(hello) != preface {
		s.c.unbusy()
		return
	}
	s.c.mu.Lock()
	s.c.greetLocked(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: h2MaxStreams}, c.srv.MaxHeaderBytes, s.opened)
	s.c.armLocked(s.opened.Add(c.srv.FirstRequestTimeout), s.tick)
	s.c.mu.Unlock()
	s.c.batch.add(s.c)
	c.srv.mu.Lock()
	c.shell = s
	c.srv.mu.Unlock()
	if c.srv.stopped.Load() {
		s.leave(shutdownGrace)
	}
	s.c.read()
	<-s.c.closed
}

// partialHead counts the most that a header block can take.
func (s *h2server) partialHead(begins bool) {
	if begins {
		s.client.holdHead(s.srv.MaxHeaderBytes)
	} else {
		s.client.releaseHead()
	}
}

func (s *h2server) settled() { s.c.readUntil(time.Time{}) }

// beforeRead sends requests that waited for a body that might have been read with them.
func (s *h2server) beforeRead() {
	for i := 0; i < len(s.later); i++ {
		x := s.later[i]
		s.later[i] = nil
		x.connect(nil, &s.c.batch)
	}
	s.later = s.later[:0]
}

// headers handles a new request, or the trailers of one.
func (s *h2server) headers(f *http2.MetaHeadersFrame) (keep bool, err error) {
	c := s.c
	id := f.StreamID
	if id%2 == 0 {
		return true, h2Fail(http2.ErrCodeProtocol, "a client's stream with an even number")
	}
	now := time.Now()
	c.mu.Lock()
	if h := c.streams[id]; h != nil {
		gotEnd := h.gotEnd
		h.gotEnd = true
		c.mu.Unlock()
		return true, s.trailers(h, gotEnd, f, now)
	}
	if id <= c.maxID {
		ours := c.gone.ours(id)
		c.mu.Unlock()
		if ours {
			return true, nil
		}
		return true, h2Fail(http2.ErrCodeStreamClosed, "HEADERS of a closed stream")
	}
	c.maxID = id
	if s.srv.draining.Load() && s.leaving.IsZero() {
		defer s.leave(drainGrace)
	}
	if s.final && id > s.finalID {
		c.mu.Unlock()
		return true, nil // the client knows from the GOAWAY
	}
	if f.HasPriority() && f.Priority.StreamDep == id {
		c.mu.Unlock()
		return true, c.badStream(id, http2.ErrCodeProtocol)
	}
	if len(c.streams) >= h2MaxStreams || s.running.Load() >= h2MaxStreams {
		c.fw.WriteRSTStream(id, http2.ErrCodeRefusedStream)
		c.forgetLocked(id)
		c.mu.Unlock()
		c.batch.add(c)
		return true, s.spend(now)
	}
	c.mu.Unlock()
	return s.open(f, now)
}

// open begins the exchange of a new stream.
func (s *h2server) open(f *http2.MetaHeadersFrame, now time.Time) (keep bool, err error) {
	c := s.c
	s.requests++
	x, bad := newH2Exchange(s, f, now)
	if bad == errH2Malformed {
		s.srv.rejected.Add(1)
		return true, c.badStream(f.StreamID, http2.ErrCodeProtocol)
	}
	c.mu.Lock()
	c.streams[f.StreamID] = &x.down
	c.idleSince = time.Time{}
	s.firstOpen = true
	c.mu.Unlock()
	if bad != nil {
		s.srv.rejected.Add(1)
		x.refuse(bad, &c.batch)
		return true, nil
	}
	s.running.Add(1)
	return x.admit(&c.batch), nil
}

// trailers handles the second header block of a request. gotEnd says that the request had ended
// before.
func (s *h2server) trailers(h *h2half, gotEnd bool, f *http2.MetaHeadersFrame, now time.Time) error {
	switch {
	case gotEnd:
		return s.c.badStream(h.id, http2.ErrCodeStreamClosed)
	case !f.StreamEnded() || f.Truncated || !h2Trailers(f):
		return s.c.badStream(h.id, http2.ErrCodeProtocol)
	case !h.x.requestTrailers(f.RegularFields(), &s.c.batch):
		return s.spend(now)
	}
	return nil
}

func (s *h2server) data(f *http2.DataFrame) error {
	c := s.c
	h, code, err := c.arrived(f)
	switch {
	case err != nil:
		return err
	case code != http2.ErrCodeNo:
		return c.badStream(f.StreamID, code)
	case h == nil:
		c.mu.Lock()
		ours := c.gone.ours(f.StreamID)
		unserved := s.final && f.StreamID > s.finalID
		c.mu.Unlock()
		if ours || unserved {
			return nil
		}
		return c.badStream(f.StreamID, http2.ErrCodeStreamClosed)
	}
	if !h.x.requestData(f.Data(), f.StreamEnded(), &c.batch) {
		return s.spend(time.Now())
	}
	return nil
}

func (s *h2server) reset(f *http2.RSTStreamFrame) error {
	c := s.c
	c.mu.Lock()
	h, err := c.streamLocked(f.Header())
	c.mu.Unlock()
	if h == nil {
		return err
	}
	now := time.Now()
	patient := h.x.waited(now)
	h.x.clientGone(&c.batch)
	if patient {
		return nil
	}
	return s.spend(now)
}

// waited reports whether a reset by the client is not counted; see h2Patience.
func (x *h2exchange) waited(now time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.machine.Begun() || !x.machine.Live() || now.Sub(x.r.Started) >= h2Patience
}

// spend counts a stream that was reset before its response was complete.
func (s *h2server) spend(now time.Time) error {
	s.spare.left += float64(max(s.requests-1, 0))
	s.requests = 0
	if !s.spare.take(h2Resets, h2ResetRate, now) {
		return h2Fail(http2.ErrCodeEnhanceYourCalm, "too many streams are reset")
	}
	return nil
}

func (s *h2server) goAway(*http2.GoAwayFrame) {}

// badStream handles a malformed frame. It may belong to a stream that was never opened.
func (s *h2server) badStream(id uint32) error {
	if id%2 == 0 {
		return h2Fail(http2.ErrCodeProtocol, "a client's stream with an even number")
	}
	s.c.mu.Lock()
	if id > s.c.maxID {
		s.c.maxID = id
	}
	s.c.mu.Unlock()
	return s.spend(time.Now())
}

// ended ends all exchanges of the connection.
func (s *h2server) ended(error) {
	c := s.c
	c.mu.Lock()
	halves := c.halvesLocked()
	c.mu.Unlock()
	for _, h := range halves {
		h.x.clientGone(&c.batch)
	}
}

// closeStreamLocked removes a stream whose response is complete. If the client still sends, the
// stream is reset with NO_ERROR.
func (s *h2server) closeStreamLocked(h *h2half, b *h2batch) {
	c := s.c
	if !h.gotEnd && !h.removed {
		c.fw.WriteRSTStream(h.id, http2.ErrCodeNo)
		c.forgetLocked(h.id)
	}
	c.removeLocked(h, b)
	b.add(c)
}

var errH2Malformed = &syntaxError{400, "malformed request"}
