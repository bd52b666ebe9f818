package forward

import (
	"io"
	"time"
)

// upgrade passes the 101 on and then moves bytes both ways until either side ends, a timer fires or the server is cut.
func (c *conn) upgrade() outcome {
	if err := c.finishBody(); err != nil {
		return c.endAs(err)
	}
	h := &c.resp
	c.clock = time.Now()
	c.res.FirstByte = c.clock.Sub(c.req.Started)
	out := c.appendFields(c.appendStatus(c.out[:0]), bodyNone)
	out = append(h.appendUpgrade(out), '\r', '\n')
	out = append(out, c.rb[c.rR:c.rW]...) // the upstream may talk first
	c.out = out
	c.stopWatch()
	c.started = true
	c.res.Status = 101
	c.res.Upgraded = true
	if err := c.writeClient(out); err != nil {
		return c.endAs(err)
	}
	c.srv.upgraded.Add(1)
	defer c.srv.upgraded.Add(-1)
	up := c.up
	c.pump.startTunnel(up)
	err := c.tunnelDown()
	c.pump.join(0)
	c.res.RequestBytes += c.pump.moved.Load()
	if err != nil {
		return c.endAs(err)
	}
	c.res.Cause = Completed
	return outcomeClose
}

// halfClosedWait is how long the upstream may stay silent after the client closed its side of a tunnel, and the reverse.
const halfClosedWait = 30 * time.Second

// tunnelDown moves the upstream's direction. The timers are looked at here; the client's bytes count as activity.
func (c *conn) tunnelDown() error {
	up := c.up
	b := c.rb
	for {
		end, t := c.tunnelDeadline()
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
			if err := c.writeClient(b[:n]); err != nil {
				return err
			}
			c.res.ResponseBytes += int64(n)
			c.pump.activity.Store(time.Now().UnixNano())
			continue
		}
		switch {
		case err == io.EOF:
			// The upstream is done: tell the client, and let it finish for a bounded time.
			if cw, ok := c.nc.(interface{ CloseWrite() error }); ok && !c.pump.finished.Load() {
				cw.CloseWrite()
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
		if e, t := c.tunnelDeadline(); t != NoTimer && !c.clock.Before(e) {
			return &TimerError{t, c.req.timeout(t)}
		}
		if halfClosed {
			return nil
		}
	}
}

func (c *conn) tunnelDeadline() (time.Time, Timer) {
	return c.req.deadline(time.Unix(0, c.pump.activity.Load()), true)
}
