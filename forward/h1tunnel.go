package forward

import (
	"io"
	"time"

	"ebb.dev/ebb/forward/exchange"
)

// upgrade passes the 101 response and then moves bytes in both directions until either side ends, a
// timer fires or the server closes.
func (c *conn) upgrade() exchange.Event {
	if err := c.finishBody(); err != nil {
		return c.failed(err, "")
	}
	h := &c.resp
	c.kind = bodyUntilClose
	c.clock = time.Now()
	c.res.FirstByte = c.clock.Sub(c.req.Started)
	out := c.appendFields(c.appendStatus(c.out[:0]))
	out = append(h.appendUpgrade(out), '\r', '\n')
	out = append(out, c.rb[c.rR:c.rW]...) // the upstream may have sent first
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

// halfClosedWait is how long one side of a tunnel may stay silent after the other side has closed.
const halfClosedWait = 30 * time.Second

// tunnelDown moves the upstream's bytes and checks the timers. The client's bytes count as
// activity, too. The response starts with the upstream's first byte after the 101 response.
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
			end = e // check each second whether the client has closed
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
			// The upstream has closed: close this side for the client, and let it finish.
			if !c.pump.finished.Load() && closeWrite(c.nc) {
				c.pump.wait(halfClosedWait)
			}
			return nil
		case !isTimeout(err):
			if c.gone.Load() {
				return ErrClientGone
			}
			return nil // many tunnels end with a reset
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

// tunnelTimer returns the next timer. The client's bytes count as activity.
func (c *conn) tunnelTimer() (time.Time, Timer) {
	c.machine.Wrote(time.Unix(0, c.pump.activity.Load()))
	return c.machine.Timer()
}
