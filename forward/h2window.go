package forward

import (
	"maps"
	"slices"
	"time"

	"golang.org/x/net/http2"
)

// A change of the initial window changes each stream: a few bytes of a peer cost up to a thousand
// steps here. Clients that measure the network change it at most a few times a second.
const (
	h2SettingsOfFrame = 100 // as in net/http
	h2Settings        = 100 // frames at once
	h2SettingsRate    = 10  // frames a second
)

// allowance is how often a peer may still do something that costs more here than there.
type allowance struct {
	left float64
	at   time.Time
}

func (a *allowance) fill(limit float64, now time.Time) { a.left, a.at = limit, now }

// take adds what was gained since the last call, at rate a second up to limit, and uses one. It
// reports whether there was one.
func (a *allowance) take(limit, rate float64, now time.Time) bool {
	a.left = min(a.left+now.Sub(a.at).Seconds()*rate, limit) - 1
	a.at = now
	return a.left >= 0
}

// This file has settings and windows: what the peer may send, and what may be sent to it.

// greetLocked writes the settings and the window of a new connection. more is the setting that
// differs between clients and upstreams.
func (c *h2conn) greetLocked(more http2.Setting, headerBytes int, now time.Time) {
	c.fw.WriteSettings(more,
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(c.windows.first)},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(headerBytes)},
	)
	if more := c.windows.conn - c.left; more > 0 {
		c.fw.WriteWindowUpdate(0, uint32(more))
		c.left += more
	}
	c.fr.MaxHeaderListSize = uint32(headerBytes)
	c.idleSince = now
}

func (c *h2conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	first := !c.known
	c.known = true
	switch now := time.Now(); {
	case first:
		c.settingsLeft.fill(h2Settings, now)
	case !c.settingsLeft.take(h2Settings, h2SettingsRate, now):
		return h2Fail(http2.ErrCodeEnhanceYourCalm, "too many SETTINGS")
	}
	if f.NumSettings() > h2SettingsOfFrame {
		return h2Fail(http2.ErrCodeProtocol, "SETTINGS with too many settings")
	}
	c.mu.Lock()
	if first {
		c.maxStreams = h2AssumedStreams
	}
	window := c.initialWindow // a frame may repeat a setting, so the streams are changed once, after it
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingInitialWindowSize:
			window = int64(s.Val)
		case http2.SettingMaxFrameSize:
			c.maxFrame = int(min(s.Val, 64<<10))
		case http2.SettingMaxConcurrentStreams:
			c.maxStreams = s.Val
		case http2.SettingHeaderTableSize:
			c.enc.SetMaxDynamicTableSize(min(s.Val, 4096))
		}
		return nil
	})
	if err == nil {
		err = c.resizeLocked(window)
	}
	if err == nil {
		c.fw.WriteSettingsAck()
		c.drainLocked(&c.batch)
	}
	c.mu.Unlock()
	if err != nil {
		return c.readError(err)
	}
	c.batch.add(c)
	c.batch.settle()
	if first {
		c.peer.settled()
	}
	return c.checkBacklog()
}

// resizeLocked applies the peer's new initial window, also to open streams.
func (c *h2conn) resizeLocked(window int64) error {
	delta := window - c.initialWindow
	if delta == 0 {
		return nil
	}
	c.initialWindow = window
	for _, h := range c.streams {
		if h.window += delta; h.window > 1<<31-1 {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.listLocked(h)
	}
	return nil
}

func (c *h2conn) windowUpdate(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	if f.StreamID == 0 {
		if c.window += int64(f.Increment); c.window > 1<<31-1 {
			c.mu.Unlock()
			return h2Fail(http2.ErrCodeFlowControl, "the connection's window is too large")
		}
	} else if h := c.streams[f.StreamID]; h != nil {
		if h.window += int64(f.Increment); h.window > 1<<31-1 {
			c.mu.Unlock()
			return c.badStream(f.StreamID, http2.ErrCodeFlowControl)
		}
		c.listLocked(h)
	} else if _, err := c.streamLocked(f.Header()); err != nil {
		c.mu.Unlock()
		return err
	}
	c.drainLocked(&c.batch)
	c.mu.Unlock()
	c.batch.settle()
	return nil
}

// streamLocked returns the stream of a frame, or nil if it has ended. A frame of a stream that was
// never opened ends the connection (RFC 9113 section 5.1).
func (c *h2conn) streamLocked(f http2.FrameHeader) (*h2half, error) {
	h := c.streams[f.StreamID]
	if h == nil && (f.StreamID%2 == 0 || f.StreamID > c.maxID) {
		return nil, h2Fail(http2.ErrCodeProtocol, f.Type.String()+" of a stream that was not opened")
	}
	return h, nil
}

// halvesLocked returns the streams, for a caller that has to release mu to handle them.
func (c *h2conn) halvesLocked() []*h2half { return slices.Collect(maps.Values(c.streams)) }

// receiveLocked takes n bytes off the windows. It reports whether the connection and the stream had
// room for them.
func (c *h2conn) receiveLocked(h *h2half, n int64) (conn, stream bool) {
	if n > c.left {
		return false, true
	}
	c.left -= n
	if h != nil {
		if n > h.left {
			return true, false
		}
		h.left -= n
	}
	return true, true
}

// arrived takes a DATA frame off the windows and returns its stream. The stream is nil if it has
// ended, or, with a code other than NO_ERROR, if it must not send DATA now.
//
// The connection is credited at once. Its window would otherwise be used up by streams that wait,
// for a place at an upstream or for a slow reader, and those that could go on could not, although
// the others may wait for them. What waits is bounded by the windows of the streams, by the
// accounts of their requests and by Server.MaxStuckBytes.
func (c *h2conn) arrived(f *http2.DataFrame) (h *h2half, code http2.ErrCode, err error) {
	c.mu.Lock()
	h, err = c.streamLocked(f.Header())
	conn, stream := c.receiveLocked(h, int64(f.Length))
	closed := h != nil && h.gotEnd
	if h != nil && f.StreamEnded() {
		h.gotEnd = true
	}
	announced := conn && c.creditLocked(int64(f.Length))
	c.mu.Unlock()
	if announced {
		c.batch.add(c)
	}
	switch {
	case err != nil:
		return nil, 0, err
	case !conn:
		return nil, 0, h2Fail(http2.ErrCodeFlowControl, "more DATA than the connection's window")
	case closed:
		h, code = nil, http2.ErrCodeStreamClosed
	case !stream:
		h, code = nil, http2.ErrCodeFlowControl
	}
	if padding := int(f.Length) - len(f.Data()); h != nil && padding > 0 {
		c.credit(h, padding, &c.batch)
	}
	return h, code, nil
}

// creditLocked lets the peer send n more bytes on the connection. It reports whether that was
// announced.
func (c *h2conn) creditLocked(n int64) bool {
	if c.owed += n; c.owed < c.windows.conn/4 {
		return false
	}
	c.fw.WriteWindowUpdate(0, uint32(c.owed))
	c.left += c.owed
	c.owed = 0
	return true
}

// credit lets the peer send n more bytes on the stream of h if it goes on. It is announced when
// there is much of it, or some of it and the peer may send little. The first announcement makes the
// window a full one: until then the stream may have been waiting. If much is stuck, it stays small.
func (c *h2conn) credit(h *h2half, n int, b *h2batch) {
	if n <= 0 {
		return
	}
	c.mu.Lock()
	if h.removed || h.gotEnd {
		c.mu.Unlock()
		return
	}
	h.owed += int64(n)
	window := c.windows.first
	if h.grown {
		window = c.windows.full
	}
	announce := h.owed >= window/4 || h.left < window/4 && h.owed >= window/16
	if announce {
		if !h.grown && h.x.srv.srv.roomy() {
			h.grown = true
			h.owed += c.windows.full - c.windows.first
		}
		c.fw.WriteWindowUpdate(h.id, uint32(h.owed))
		h.left += h.owed
		h.owed = 0
	}
	c.mu.Unlock()
	if announce {
		b.add(c)
	}
}

// congestionLocked returns how many streams wait because the peer takes nothing on the connection.
func (c *h2conn) congestionLocked() int {
	if c.window > 0 {
		return 0
	}
	return len(c.waiting)
}
