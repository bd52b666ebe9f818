package forward

import (
	"io"
	"time"

	"ebb.dev/ebb/forward/exchange"
)

// upgrade passes the 101 on and then moves bytes both ways until either side ends, a timer fires or
// the server is cut.
func (c *conn) upgrade() exchange.Event {
	if err := c.finishBody(); err != nil {
		return c.failed(err, "")
	}
	h := &c.resp
	c.clock = time.Now()
	c.res.FirstByte = c.clock.Sub(c.req.Started)
	out := c.appendFields(c.appendStatus(c.out[:0]))
	out = append(h.appendUpgrade(out), '\r', '\n')
	out = append(out, c.rb[c.rR:c.rW]...) // the upstream may talk first
	c.out = out
	c.stopWatch()
	c.res.Status = 101
	c.res.Upgraded = true
	c.machine.Step(&exchange.Event{Kind: exchange.SwitchPassed})
	if c.rW > c.rR {
		c.machine.Step(&exchange.Event{Kind: exchange.FirstByte})
	}
	if err := c.writeWithin(out, headGrace); err != nil {
		return c.failed(err, "")
	}
	c.srv.upgraded.Add(1)
	defer c.srv.upgraded.Add(-1)
	before := c.res.RequestBytes
	c.pump.startTunnel(c.up)
	err := c.tunnelDown()
	c.stopPump(0)
	c.res.RequestBytes += before
	if err != nil {
		return c.failed(err, "")
	}
	return exchange.Event{Kind: exchange.Ended}
}

// halfClosedWait is how long the upstream may stay silent after the client closed its side of a
// tunnel, and the reverse.
const halfClosedWait = 30 * time.Second

// tunnelDown moves the upstream's direction. The timers are looked at here; the client's bytes
// count as activity. The first byte of the upstream is what starts the response: a container that
// accepts a connection and then says nothing is as silent as one that does not answer.
func (c *conn) tunnelDown() error {
	up := c.up
	b, stalls := c.rb, c.newStall()
	defer stalls.release()
	for {
		end, t := c.tunnelTimer()
		halfClosed := c.pump.finished.Load()
		if halfClosed {
			if e := time.Now().Add(halfClosedWait); t == NoTimer || e.Before(end) {
				end = e
			}
		} else if e := time.Now().Add(time.Second); t == NoTimer || e.Before(end) {
			end = e // look for the other direction's end now and then
		}
		up.SetReadDeadline(end)
		if c.gone.Load() {
			return ErrClientGone
		}
		n, err := up.Read(b)
		if n > 0 {
			if c.machine.State() == exchange.Switching {
				c.machine.Step(&exchange.Event{Kind: exchange.FirstByte})
			}
			stalls.begin()
			err := c.writeClient(b[:n])
			stalls.end()
			if err != nil {
				return err
			}
			c.res.ResponseBytes += int64(n)
			c.pump.activity.Store(time.Now().UnixNano())
			continue
		}
		switch {
		case err == io.EOF:
			// The upstream is done: tell the client, and let it finish for a bounded time.
			if !c.pump.finished.Load() && closeWrite(c.nc) {
				c.pump.wait(halfClosedWait)
			}
			return nil
		case !isTimeout(err):
			if c.gone.Load() {
				return ErrClientGone
			}
			return nil // a reset is one of the ordinary ends of a tunnel
		}
		c.clock = time.Now()
		if c.gone.Load() {
			return ErrClientGone
		}
		if e, t := c.tunnelTimer(); t != NoTimer && !c.clock.Before(e) {
			return errTick
		}
		if halfClosed {
			return nil
		}
	}
}

// tunnelTimer is the next timer, now that the client's bytes count too.
func (c *conn) tunnelTimer() (time.Time, Timer) {
	c.machine.Wrote(time.Unix(0, c.pump.activity.Load()))
	return c.machine.Timer()
}
