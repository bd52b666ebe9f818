package forward

import (
	"errors"
	"io"
	"os"
	"time"

	"ebb.dev/ebb/forward/exchange"
)

// Reads and writes that end when a timer fires or the client leaves.

// writeClient writes b whole, or reports why not: errTick or ErrClientGone.
func (c *conn) writeClient(b []byte) error { return c.writeWithin(b, 0) }

// writeWithin is writeClient that takes the time of least, whatever the timers say.
func (c *conn) writeWithin(b []byte, least time.Duration) error {
	var stalled time.Time
	for {
		if err := c.armWrite(least); err != nil {
			return err
		}
		n, err := c.nc.Write(b)
		if err == nil {
			c.torn = false
			if c.machine.Timed() {
				c.machine.Wrote(time.Now())
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
			c.torn = true
			c.machine.Wrote(c.clock)
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
		least = 0
	}
}

// armWrite makes sure that a blocked write wakes when a timer fires. The deadline set on the socket
// may be earlier than needed (a spurious wake is harmless) and is renewed only when half of its
// time is gone. TLS cannot go on after a write that met its deadline, so one that would is not
// begun.
func (c *conn) armWrite(least time.Duration) error {
	now := c.clock
	if c.tls != nil {
		now = time.Now()
	}
	end, t := c.machine.Timer()
	switch {
	case t == NoTimer:
		end = now.Add(c.srv.StallTimeout)
	case least > 0 && end.Before(now.Add(least)):
		end = now.Add(least)
	case c.tls != nil && !now.Before(end):
		c.clock = now
		return errTick
	}
	if c.tls == nil && !c.writeEnd.IsZero() && !c.writeEnd.After(end) && 2*c.writeEnd.Sub(now) > end.Sub(now) {
		return nil
	}
	c.writeEnd = end
	c.nc.SetWriteDeadline(end)
	return nil
}

// interrupted says why the exchange must end, if it must.
func (c *conn) interrupted(now time.Time) error {
	if c.gone.Load() {
		return ErrClientGone
	}
	if err := c.pump.broken(); err != nil {
		return err
	}
	if at := c.machine.TickAt(); !at.IsZero() && !now.Before(at) {
		return errTick
	}
	return nil
}

// readUp reads from the upstream of the exchange. Besides the upstream's own errors it returns
// ErrClientGone, errTick and errChunk (the client's body is broken).
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
		if c.machine.State() != exchange.Deferred && c.clock.Sub(c.req.Started) >= patience {
			c.startWatch()
		}
	}
}

// armRead is armWrite for the upstream: the next timer, or the end of our patience.
func (c *conn) armRead() {
	end, t := c.machine.Timer()
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
