package forward

import (
	"errors"
	"os"
	"time"

	"ebb.dev/ebb/forward/exchange"
)

// A request that its client has given up is still a request that the upstream works on, and one
// that the Handler counts. So its end waits for the upstream's: it is told by a half-closed
// connection, and has the time of the whole request to answer or to close. A program that reads its
// connection stops early; one that does not is at least not given the next request meanwhile.

// partGrace is for how long an upstream may go on sending a response that nobody reads. Programs
// that send without looking, streams of events above all, notice nothing but a connection that
// breaks. They have as long again to notice that.
const partGrace = time.Second

// errTooLong ends the wait for an upstream: it goes on for too long, or the server needs what the
// request takes.
var errTooLong = errors.New("the upstream goes on for too long")

// part tells the upstream that nobody waits for its response, and gives the client its end. begun
// says that the response had begun.
func (c *conn) part(do exchange.Do) (begun bool) {
	c.stopPump(0)
	c.stopWatch()
	begun = c.res.Status != 0
	c.clean, c.toSend = false, nil
	c.up.closeWrite()
	now := time.Now()
	c.partEnd = now.Add(c.machine.PartsWithin())
	c.parting.Store(now.UnixNano())
	c.endClient(do)
	switch {
	case c.gone.Load() || !do.Has(exchange.Answer|exchange.EndTrailer):
	case c.lingering:
		c.linger()
		c.lingering = false
	default:
		closeWrite(c.nc)
	}
	return begun
}

// seeOut reads what the upstream still sends, until it has answered or closed, or must not go on.
// The client's connection stays open for that long. If the client is another proxy, it learns by
// the close that the program has ended.
func (c *conn) seeOut(begun bool) exchange.Event {
	if err := c.readOut(begun); isTimeout(err) || err == errTooLong {
		c.up.reset()
		if !c.srv.stopped.Load() {
			time.Sleep(partGrace)
		}
	}
	return exchange.Event{Kind: exchange.UpstreamEnded}
}

// readOut returns nil when the upstream has answered.
func (c *conn) readOut(begun bool) error {
	if !begun {
		for !c.answered {
			if _, err := c.readResponseHead(); err != nil {
				return err
			}
			c.answered = c.resp.status >= 200 || c.resp.status == 101
		}
		if c.kind = c.responseBody(); c.resp.status == 101 {
			c.kind = bodyUntilClose
		}
		c.left = max(c.resp.length, 0)
		c.chunks.reset()
		if err := c.discard(c.rb[c.rR:c.rW]); err != nil {
			return err
		}
	}
	since := time.Now()
	for !c.wholeBody() {
		n, err := c.readUp(c.rb)
		if err == nil {
			err = c.discard(c.rb[:n])
		}
		if err != nil {
			return err
		}
		if time.Since(since) > partGrace {
			return errTooLong
		}
	}
	return nil
}

// discard follows the body of a response that nobody reads.
func (c *conn) discard(piece []byte) (err error) {
	switch c.kind {
	case bodyLength:
		c.takeLength(piece)
	case bodyChunked:
		_, err = c.chunks.scan(piece)
	}
	return err
}

// readParting is readUp for an upstream that was parted from.
func (c *conn) readParting(b []byte) (int, error) {
	for {
		c.up.SetReadDeadline(c.partEnd)
		if c.forsaken.Load() {
			return 0, errTooLong
		}
		n, err := c.up.Read(b)
		if n > 0 || err == nil {
			return n, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || !time.Now().Before(c.partEnd) {
			return 0, err
		}
	}
}
