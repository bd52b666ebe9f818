package forward

import (
	"time"

	"ebb.dev/ebb/forward/exchange"
)

// Reads and writes that end when a timer fires or the client leaves.

// writeClient writes all of b, or returns errTick or ErrClientGone.
func (c *conn) writeClient(b []byte) error { return c.writeWithin(b, 0) }

// writeWithin is writeClient, but it does not return errTick before the time of least has passed.
func (c *conn) writeWithin(b []byte, least time.Duration) error {
	var stalled time.Time
	for {
		if err := c.armWrite(len(b), least); err != nil {
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
		if !c.machine.Live() {
			continue // armWrite knows when it is enough
		}
		if stalled.IsZero() {
			stalled = c.clock
		} else if c.clock.Sub(stalled) >= c.srv.StallTimeout {
			c.gone.Store(true)
			return ErrClientGone
		}
		if c.tls != nil && n == 0 { // TLS cannot continue a record that was written in part
			c.gone.Store(true)
			return ErrClientGone
		}
		least = 0
	}
}

// armWrite sets a write deadline, so that a blocked write returns when a timer fires. The deadline
// may be earlier than that, because it is renewed only when half of its time has passed. TLS cannot
// continue after a write that reached its deadline, so a write that is already late is not begun.
func (c *conn) armWrite(size int, least time.Duration) error {
	now := c.clock
	if c.tls != nil {
		now = time.Now()
	}
	if !c.machine.Live() {
		return c.armEnd(size)
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

// endRate is how many bytes a second a client has to take of the answer that ends its request.
const endRate = 64 << 10

// armEnd bounds the write of the answer that ends a request, whether the client takes a little of
// it now and then or nothing: until then the request has its place in the container.
func (c *conn) armEnd(size int) error {
	now := time.Now()
	if c.endBy.IsZero() {
		c.endBy = now.Add(headGrace + time.Duration(size)*time.Second/endRate)
	}
	if !now.Before(c.endBy) {
		c.gone.Store(true)
		return ErrClientGone
	}
	c.writeEnd = c.endBy
	c.nc.SetWriteDeadline(c.writeEnd)
	return nil
}

// interrupted returns why the exchange must end, or nil.
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

// readUp reads from the upstream of the exchange. Its own errors are ErrClientGone, errTick and
// errChunk (the client's body is malformed).
func (c *conn) readUp(b []byte) (int, error) {
	if c.machine.State() == exchange.Parting {
		return c.readParting(b)
	}
	for {
		c.armRead()
		if c.gone.Load() {
			return 0, ErrClientGone
		}
		if err := c.pump.broken(); err != nil {
			return 0, err
		}
		n, err := c.receive(b)
		if n > 0 {
			return n, nil
		}
		if err == nil {
			continue
		}
		if !isTimeout(err) {
			return 0, err
		}
		c.clock = time.Now() // after readEnd, so armRead sets a new deadline
		if err := c.interrupted(c.clock); err != nil {
			return 0, err
		}
		if c.clock.Sub(c.req.Started) >= patience {
			c.startWatch()
		}
	}
}

// armRead sets a read deadline at the upstream: at the next timer, or when patience has passed.
func (c *conn) armRead() {
	end, t := c.machine.Timer()
	switch {
	case c.watcher.running && c.machine.State() != exchange.Deferred || c.pump.tunnel:
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
