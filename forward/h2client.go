package forward

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/http2"

	"ebb.dev/ebb/forward/exchange"
)

// h2client handles the frames of a connection to an upstream. c.mu guards the fields below scheme.
type h2client struct {
	pool   *h2Pool
	u      *Upstream
	c      *h2conn
	scheme string

	nextID uint32
	away   bool          // no more streams are opened on it
	used   bool          // it has had requests
	ready  chan struct{} // closed when the settings are known
	asked  time.Time
	pinged bool
}

// An upstream with streams that sends nothing for h2PingAfter gets a PING. If it sends nothing for
// h2PingWait after that, the connection is closed.
const (
	h2PingAfter = 30 * time.Second
	h2PingWait  = 15 * time.Second
)

func (c *h2client) takesLocked() bool {
	return !c.away && !c.c.broken && !c.c.last && len(c.c.streams) < int(c.c.maxStreams) && c.nextID < 1<<30 && c.c.backlogLocked() < h2HardBacklog
}

// openLocked gives a stream its number. Its head must be written before c.mu is released.
func (c *h2client) openLocked(h *h2half) {
	h.id = c.nextID
	c.nextID += 2
	c.c.maxID = h.id
	h.window = c.c.initialWindow
	c.c.streams[h.id] = h
	c.c.idleSince = time.Time{}
	h.reused, c.used = c.used, true
}

// settingsWait is how long requests wait for the settings of a new connection. An upstream that
// sends none in that time, because it sleeps, gets the usual number of streams.
const settingsWait = time.Second

// awaitSettings waits until it is known how many streams the upstream takes. It reports false if
// the connection has ended.
func (s *h2client) awaitSettings() bool {
	t := time.NewTimer(settingsWait)
	defer t.Stop()
	select {
	case <-s.ready:
	case <-t.C:
		s.c.mu.Lock()
		if s.c.maxStreams == 1 {
			s.c.maxStreams = h2AssumedStreams
		}
		s.c.mu.Unlock()
	case <-s.c.closed:
		return false
	}
	return true
}

// startH2Client sends the preface and the settings on a new connection.
func startH2Client(p *h2Pool, nc net.Conn, srv *Server) *h2client {
	s := &h2client{pool: p, u: p.u, nextID: 1, scheme: "http", ready: make(chan struct{})}
	if p.u.options.TLS != nil {
		s.scheme = "https"
	}
	c := newH2Conn(nc, srv, 0, 5*time.Minute)
	s.c = c
	c.peer = s
	c.maxStreams = 1 // until its settings say how many
	c.out = append(c.out, preface...)
	c.greetLocked(http2.Setting{ID: http2.SettingEnablePush, Val: 0}, 64<<10, time.Now())
	return s
}

// leave closes the connection as soon as it has no streams.
func (s *h2client) leave(b *h2batch) {
	s.c.mu.Lock()
	s.away = true
	s.restLocked(b)
	s.c.mu.Unlock()
}

func (s *h2client) restLocked(b *h2batch) {
	c := s.c
	if len(c.streams) > 0 || c.last {
		return
	}
	if s.away || int(s.pool.open.Load()) > s.u.options.MaxIdle {
		s.away = true
		c.fw.WriteGoAway(0, http2.ErrCodeNo, nil)
		c.closeLocked()
		b.add(c)
		return
	}
	c.armLocked(time.Now().Add(s.u.options.IdleTimeout), s.tick)
}

// released is called after the end of a stream.
func (s *h2client) released(b *h2batch) {
	s.c.mu.Lock()
	s.restLocked(b)
	s.c.mu.Unlock()
}

// armLocked sets the timer for a connection with streams.
func (s *h2client) armLocked() { s.c.armLocked(time.Now().Add(h2PingAfter), s.tick) }

// tick closes an idle connection, and one whose upstream does not answer a PING.
func (s *h2client) tick() {
	c := s.c
	defer c.guard()
	now := time.Now()
	var b h2batch
	c.mu.Lock()
	c.timerAt = time.Time{}
	quiet := now.Sub(time.Unix(0, c.lastRead.Load()))
	switch {
	case len(c.streams) == 0 && !c.idleSince.IsZero():
		if end := c.idleSince.Add(s.u.options.IdleTimeout); now.Before(end) {
			c.armLocked(end, s.tick)
		} else {
			s.away = true
			s.restLocked(&b)
		}
	case s.pinged && c.lastRead.Load() < s.asked.UnixNano() && now.Sub(s.asked) >= h2PingWait:
		c.nc.Close() // the reader's next read fails
	case quiet >= h2PingAfter:
		s.pinged, s.asked = true, now
		c.fw.WritePing(false, [8]byte{'e', 'b', 'b'})
		b.add(c)
		c.armLocked(now.Add(h2PingWait), s.tick)
	default:
		s.pinged = false
		c.armLocked(now.Add(h2PingAfter-quiet), s.tick)
	}
	c.mu.Unlock()
	b.flush()
}

func (s *h2client) beforeRead()      {}
func (s *h2client) settled()         { close(s.ready) }
func (s *h2client) partialHead(bool) {}

func (s *h2client) headers(f *http2.MetaHeadersFrame) (keep bool, err error) {
	c := s.c
	c.mu.Lock()
	h, err := c.streamLocked(f.Header())
	ended := false
	if h != nil {
		ended = h.gotEnd
		h.gotEnd = h.gotEnd || f.StreamEnded()
	}
	c.mu.Unlock()
	switch {
	case h == nil:
		return true, err
	case ended:
		return true, c.badStream(f.StreamID, http2.ErrCodeStreamClosed)
	case !h.gotHead:
		return h.x.responseHead(h, f, &c.batch), nil
	case !f.StreamEnded() || f.Truncated || !h2Trailers(f):
		return true, c.badStream(f.StreamID, http2.ErrCodeProtocol)
	}
	h.x.responseTrailers(h, f.RegularFields(), &c.batch)
	return true, nil
}

func (s *h2client) data(f *http2.DataFrame) error {
	c := s.c
	h, code, err := c.arrived(f)
	switch {
	case err != nil:
		return err
	case code != http2.ErrCodeNo:
		return c.badStream(f.StreamID, code)
	case h == nil:
		return nil
	case !h.gotHead:
		return c.badStream(f.StreamID, http2.ErrCodeProtocol)
	}
	h.x.responseData(h, f.Data(), f.StreamEnded(), &c.batch)
	return nil
}

func (s *h2client) reset(f *http2.RSTStreamFrame) error {
	c := s.c
	c.mu.Lock()
	h, err := c.streamLocked(f.Header())
	complete := h != nil && h.gotEnd
	if h != nil && !complete {
		c.removeLocked(h, &c.batch)
	}
	c.mu.Unlock()
	if h == nil || complete { // a complete response: the upstream does not need the rest of the request
		return err
	}
	loss := exchange.Broken
	if f.ErrCode == http2.ErrCodeRefusedStream {
		loss = exchange.Unseen
	}
	h.x.upstreamLost(h, &h2ResetError{s.u.addr, f.ErrCode}, loss, &c.batch)
	return nil
}

// goAway handles a GOAWAY: the upstream has ignored streams above LastStreamID.
func (s *h2client) goAway(f *http2.GoAwayFrame) {
	c := s.c
	last, code := f.LastStreamID, f.ErrCode
	var unseen []*h2half
	c.mu.Lock()
	s.away = true
	for id, h := range c.streams {
		if id > last {
			unseen = append(unseen, h)
		}
	}
	c.mu.Unlock()
	s.lose(unseen, fmt.Errorf("%s takes no more requests on the connection (%s)", s.u.addr, code), exchange.Unseen)
	c.mu.Lock()
	s.restLocked(&c.batch)
	c.mu.Unlock()
}

// badStream handles a malformed frame. An upstream opens no streams.
func (s *h2client) badStream(id uint32) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if id%2 == 0 || id > s.c.maxID {
		return h2Fail(http2.ErrCodeProtocol, "a malformed frame of a stream that was not opened")
	}
	return nil
}

// ended handles the end of the connection: its streams are lost.
func (s *h2client) ended(err error) {
	c := s.c
	s.pool.remove(s)
	c.mu.Lock()
	s.away = true
	spoke := c.known
	halves := c.halvesLocked()
	c.mu.Unlock()
	var ours *h2Error
	loss := exchange.Broken
	switch {
	case !spoke && !isTimeout(err):
		err = fmt.Errorf("%s does not speak HTTP/2: %w", s.u.addr, err)
	case errors.As(err, &ours):
		err = fmt.Errorf("%s broke the rules of HTTP/2: %w", s.u.addr, err)
	default:
		err = fmt.Errorf("%s: %w: %w", s.u.addr, errH2Closed, err)
		loss = exchange.Unused
	}
	s.lose(halves, err, loss)
}

// lose removes streams from the connection and ends their exchanges.
func (s *h2client) lose(halves []*h2half, err error, loss exchange.Loss) {
	for _, h := range halves {
		s.c.mu.Lock()
		s.c.removeLocked(h, &s.c.batch)
		s.c.mu.Unlock()
		h.x.upstreamLost(h, err, loss, &s.c.batch)
	}
}
