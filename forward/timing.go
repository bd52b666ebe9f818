package forward

import (
	"errors"
	"io"
	"os"
	"time"
)

// Reads and writes that end when a timer fires or the client leaves.

// writeClient writes b whole, or reports why not: a *TimerError or ErrClientGone.
func (c *conn) writeClient(b []byte) error {
	var stalled time.Time
	for {
		c.armWrite()
		n, err := c.nc.Write(b)
		if err == nil {
			if c.req.Timeouts.Idle > 0 {
				c.lastWrite = time.Now()
			}
			return nil
		}
		if !isTimeout(err) {
			c.gone.Store(true)
			return ErrClientGone
		}
		c.clock = time.Now()
		c.writeEnd = time.Time{}
		if n > 0 {
			b = b[n:]
			c.lastWrite = c.clock
			stalled = time.Time{}
		}
		if err := c.interrupted(c.clock); err != nil {
			return err
		}
		if stalled.IsZero() {
			stalled = c.clock
		} else if c.clock.Sub(stalled) >= c.srv.StallTimeout {
			c.gone.Store(true)
			return ErrClientGone
		}
		if c.tls != nil && n == 0 { // a TLS record that was written in part cannot be continued
			c.gone.Store(true)
			return ErrClientGone
		}
	}
}

// armWrite makes sure that a blocked write wakes when a timer fires. The deadline set on the socket may be earlier than
// needed (a spurious wake is harmless) and is renewed only when half of its time is gone.
func (c *conn) armWrite() {
	now := c.clock
	if c.tls != nil {
		now = time.Now()
	}
	end, t := c.req.deadline(c.lastWrite, c.started)
	if t == NoTimer {
		end = now.Add(c.srv.StallTimeout)
	}
	if c.tls == nil && !c.writeEnd.IsZero() && !c.writeEnd.After(end) && 2*c.writeEnd.Sub(now) > end.Sub(now) {
		return
	}
	c.writeEnd = end
	c.nc.SetWriteDeadline(end)
}

// interrupted says why the exchange must end, if it must.
func (c *conn) interrupted(now time.Time) error {
	if c.gone.Load() {
		return ErrClientGone
	}
	if err := c.pump.broken(); err != nil {
		return err
	}
	if end, t := c.req.deadline(c.lastWrite, c.started); t != NoTimer && !now.Before(end) {
		return &TimerError{t, c.req.timeout(t)}
	}
	return nil
}

// readUp reads from the upstream of the exchange. Besides the upstream's own errors it returns ErrClientGone,
// *TimerError and *syntaxError (the client's body is broken).
func (c *conn) readUp(b []byte) (int, error) {
	for {
		c.armRead()
		if c.gone.Load() {
			return 0, ErrClientGone
		}
		if err := c.pump.broken(); err != nil {
			return 0, err
		}
		n, err := c.up.Read(b)
		if n > 0 {
			return n, nil
		}
		if err == nil {
			continue
		}
		if !isTimeout(err) {
			return 0, err
		}
		c.clock = time.Now() // readEnd is past now, so armRead renews or clears it
		if err := c.interrupted(c.clock); err != nil {
			return 0, err
		}
		switch {
		case c.bodyHeld:
			if c.clock.Sub(c.heldSince) >= continueWait {
				c.releaseBody()
			}
		case c.clock.Sub(c.req.Started) >= patience:
			c.startWatch()
		}
	}
}

// armRead is armWrite for the upstream: the next timer, or the end of our patience.
func (c *conn) armRead() {
	end, t := c.req.deadline(c.lastWrite, c.started)
	switch {
	case c.watching || c.pump.tunnel:
	case c.pump.running:
		if e := c.clock.Add(5 * patience); t == NoTimer || e.Before(end) {
			end, t = e, TotalTimer
		}
	default:
		if e := c.clock.Add(patience); t == NoTimer || e.Before(end) {
			end, t = e, TotalTimer
		}
	}
	up := c.up
	if t == NoTimer {
		if !up.readEnd.IsZero() {
			up.readEnd = time.Time{}
			up.SetReadDeadline(up.readEnd)
		}
		return
	}
	if !up.readEnd.IsZero() && !up.readEnd.After(end) && 2*up.readEnd.Sub(c.clock) > end.Sub(c.clock) {
		return
	}
	up.readEnd = end
	up.SetReadDeadline(end)
}

func isTimeout(err error) bool {
	if err == nil || err == io.EOF {
		return false
	}
	return errors.Is(err, os.ErrDeadlineExceeded)
}
