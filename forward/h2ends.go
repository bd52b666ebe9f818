package forward

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/net/http2"
)

// This file has errors of a peer, and the ends of a connection.

// h2Error ends a connection with a GOAWAY.
type h2Error struct {
	code http2.ErrCode
	text string
}

func (e *h2Error) Error() string { return fmt.Sprintf("%s (%s)", e.text, e.code) }

func h2Fail(code http2.ErrCode, text string) error { return &h2Error{code, text} }

// closeLocked lets out be the last. The peer closes when it has read everything, or is cut after a
// second.
func (c *h2conn) closeLocked() {
	c.last = true
	c.closesAt = time.Now().Add(time.Second)
	c.nc.SetReadDeadline(c.closesAt)
}

// badFrame handles an error of the Framer in a frame. An error of a stream resets it, and the
// connection goes on. Only a head can open a stream, so others need one that was opened.
func (c *h2conn) badFrame(f http2.FrameHeader, err error) error {
	var stream http2.StreamError
	if !errors.As(err, &stream) {
		return c.readError(err)
	}
	if f.Type != http2.FrameHeaders {
		c.mu.Lock()
		_, err := c.streamLocked(f)
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return c.badStream(stream.StreamID, stream.Code)
}

// readError returns how the connection ends.
func (c *h2conn) readError(err error) error {
	var code http2.ConnectionError
	switch {
	case errors.As(err, &code):
		text := "malformed frame"
		if detail := c.fr.ErrorDetail(); detail != nil {
			text = detail.Error()
		}
		return h2Fail(http2.ErrCode(code), text)
	case errors.Is(err, http2.ErrFrameTooLarge):
		return h2Fail(http2.ErrCodeFrameSize, "a frame is too large")
	case isTimeout(err):
		return h2Fail(http2.ErrCodeEnhanceYourCalm, "a header block did not arrive in time")
	}
	return err
}

// badStream resets a stream with a malformed frame.
func (c *h2conn) badStream(id uint32, code http2.ErrCode) error {
	if err := c.peer.badStream(id); err != nil {
		return err
	}
	c.mu.Lock()
	h := c.streams[id]
	if h == nil {
		c.fw.WriteRSTStream(id, code)
		c.forgetLocked(id)
	}
	c.mu.Unlock()
	if h != nil {
		h.x.malformed(h, code, &c.batch)
	}
	c.batch.add(c)
	return c.checkBacklog()
}

// checkBacklog ends the connection of a peer that causes answers and does not read them.
func (c *h2conn) checkBacklog() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.out)+c.flying > h2HardBacklog {
		return h2Fail(http2.ErrCodeEnhanceYourCalm, "too much is waiting to be read")
	}
	return nil
}

// end ends the connection. If the reason is an h2Error, the peer gets a GOAWAY first.
func (c *h2conn) end(err error) {
	defer c.closeOnce.Do(func() { close(c.closed) })
	var ours *h2Error
	c.mu.Lock()
	if errors.As(err, &ours) && (c.broken || c.last) {
		ours = nil
	}
	if ours != nil {
		id := c.maxID
		if _, client := c.peer.(*h2client); client {
			id = 0 // an upstream opens no streams
		}
		c.fw.WriteGoAway(id, ours.code, []byte(ours.text))
	}
	c.last = true
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	c.batch.add(c)
	c.batch.flush()
	c.peer.ended(err)
	c.batch.flush()
	if ours != nil {
		// Closing with unread bytes would reset the connection, and the peer might not see the
		// GOAWAY. The goroutine that writes the last byte closes the writing side (wroteLocked).
		c.nc.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		io.CopyN(io.Discard, c.nc, 256<<10)
	}
	c.mu.Lock()
	c.broken = true
	c.out = nil
	c.mu.Unlock()
	c.nc.Close()
}

// guard is deferred by goroutines that run beside a connection's reader. The reader notices the
// close and ends the connection.
func (c *h2conn) guard() {
	if v := recover(); v != nil {
		c.srv.caught(v)
		c.nc.Close()
	}
}

// readerGuard is deferred by the reader. If the reading was handed to another goroutine, that one
// ends the connection.
func (c *h2conn) readerGuard(handed *bool) {
	if v := recover(); v != nil {
		c.srv.caught(v)
		c.nc.Close()
		if !*handed {
			defer c.guard()
			c.end(fmt.Errorf("%w: %v", errPanicked, v))
		}
	}
}
