package forward

import (
	"unsafe"

	"golang.org/x/net/http2/hpack"

	"ebb.dev/ebb/forward/exchange"
)

// This file has what requests and connections of HTTP/2 take from accounts; see memory.go.

const (
	// h2ConnBytes is what an HTTP/2 connection uses, whatever its streams do: buffers for reading
	// and writing, and the tables of header compression.
	h2ConnBytes = 40 << 10
	// h2StallBytes is what a connection to a peer that does not read may use in addition.
	h2StallBytes = h2SoftBacklog + h2ReadFrame + unsentBytes
)

// charge implements carrier.
func (x *h2exchange) charge(a Account, more int64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := more + fieldBytes(x.fields) + fieldBytes(x.body.trailers) + int64(len(x.method)+len(x.path)+len(x.authority))
	held := int64(cap(x.body.held) + cap(x.body.replay))
	if err := a.Take(n + held); err != nil {
		return err
	}
	c := x.down.c
	c.mu.Lock()
	err := c.chargeLocked(&x.down, a)
	c.mu.Unlock()
	if err != nil {
		a.Give(n + held)
		return err
	}
	x.srv.srv.stick(-x.body.stuck) // from now on, the account limits them
	x.account, x.charged, x.body.charged, x.body.stuck = a, n, held, 0
	return nil
}

// growLocked takes n more bytes for the request's body, and ends the exchange if there is no room.
func (x *h2exchange) growLocked(n int64, b *h2batch) exchange.Do {
	if n <= 0 || !x.machine.Live() {
		return 0
	}
	if x.account == nil {
		x.body.stuck += n
		x.srv.srv.stick(n)
		return 0
	}
	if err := take(x.account, n); err != nil {
		return x.performLocked(&exchange.Event{Kind: exchange.Failed, Err: err}, b)
	}
	x.body.charged += n
	return 0
}

// fullLocked ends the exchange if a queue of its streams could not grow.
func (x *h2exchange) fullLocked(b *h2batch) (do exchange.Do) {
	if err := x.full; err != nil {
		x.full = nil
		do = x.performLocked(&exchange.Event{Kind: exchange.Failed, Err: err}, b)
	}
	return do
}

// settleBodyLocked returns what the body had taken while it was held.
func (x *h2exchange) settleBodyLocked() {
	if x.account != nil {
		x.account.Give(x.body.charged)
		x.body.charged = 0
	}
	if x.body.stuck > 0 {
		x.srv.srv.stick(-x.body.stuck)
		x.body.stuck = 0
	}
}

// settleLocked returns what the request has taken, before the Handler's Done: afterwards its
// account may be another's. An answer that still waits for a window is counted as stuck.
func (x *h2exchange) settleLocked() {
	c := x.down.c
	c.mu.Lock()
	c.partLocked(&x.down)
	c.mu.Unlock()
	if x.account != nil {
		x.account.Give(x.charged)
		x.account, x.charged = nil, 0
	}
}

// rest is called when the exchange is over, and again when its stream is gone.
func (x *h2exchange) rest(b *h2batch) { x.srv.rest(b) }

// appendLocked adds to the stream's queue. If the exchange's account has no room for that, the
// queue is left as it is, and the exchange will end.
func (h *h2half) appendLocked(data []byte) {
	before := cap(h.queue)
	queue := append(h.queue, data...)
	if n := int64(cap(queue) - before); n > 0 {
		if h.account != nil {
			if h.x.full = take(h.account, n); h.x.full != nil {
				return
			}
			h.charged += n
		}
		h.stickLocked(n)
	}
	h.queue = queue
}

// clearLocked empties the stream's queue.
func (h *h2half) clearLocked() {
	h.queue, h.queueAt = nil, 0
	h.unstickLocked()
	h.giveLocked()
}

// giveLocked returns what the stream's queue has taken.
func (h *h2half) giveLocked() {
	if h.charged > 0 {
		h.account.Give(h.charged)
		h.charged = 0
	}
}

// chargeLocked has the account of a stream's request pay for the connection, unless another does.
func (c *h2conn) chargeLocked(h *h2half, a Account) error {
	if h.removed {
		return nil
	}
	if c.bill.payer == nil {
		n := c.costLocked()
		if err := take(a, n); err != nil {
			return err
		}
		c.bill.payer, c.bill.charged = h, n
	}
	h.account = a
	return nil
}

// costLocked returns what the connection uses, whatever its streams do.
func (c *h2conn) costLocked() int64 {
	if s, ok := c.peer.(*h2server); ok {
		return h2ConnBytes + s.client.tlsBytes()
	}
	return h2ConnBytes
}

// stallLocked takes what a connection uses while its peer does not read. It reports false if there
// is no room for that: then the connection is closed.
func (c *h2conn) stallLocked() bool {
	if c.bill.payer == nil || c.bill.stalled > 0 {
		return true
	}
	if c.bill.payer.account.Take(h2StallBytes) != nil {
		return false
	}
	c.bill.stalled = h2StallBytes
	return true
}

// flowsLocked is called when the peer reads again.
func (c *h2conn) flowsLocked() {
	if c.bill.stalled > 0 {
		c.bill.payer.account.Give(c.bill.stalled)
		c.bill.stalled = 0
	}
}

// partLocked is called when a stream's request is over, or the stream is: its account is not used
// any more, although the queue of a connection that broke may still be there. If it paid for the
// connection, that of another request does from now on.
func (c *h2conn) partLocked(h *h2half) {
	h.giveLocked()
	if c.bill.payer == h {
		stalled := c.bill.stalled
		c.flowsLocked()
		h.account.Give(c.bill.charged)
		c.bill.payer, c.bill.charged = nil, 0
		for _, other := range c.streams {
			if other == h || other.account == nil {
				continue
			}
			if n := c.costLocked() + stalled; other.account.Take(n) == nil {
				c.bill.payer, c.bill.charged, c.bill.stalled = other, n-stalled, stalled
			}
			break
		}
	}
	h.account = nil
}

func fieldBytes(fields []hpack.HeaderField) int64 {
	n := int64(cap(fields)) * int64(unsafe.Sizeof(hpack.HeaderField{}))
	for i := range fields {
		n += int64(len(fields[i].Name) + len(fields[i].Value))
	}
	return n
}
