package forward

import (
	"time"

	"golang.org/x/net/http2/hpack"
)

// h2half is a stream on one connection. c.mu guards all fields but c, x and id, which never change.
type h2half struct {
	c  *h2conn
	x  *h2exchange
	id uint32

	window     int64
	queue      []byte // could not be sent yet: queue[queueAt:]
	queueAt    int
	source     *h2half   // where the queue's bytes came from
	account    Account   // of the request; nil before it is charged, and when it is over
	charged    int64     // taken from the exchange's account for the queue
	stuck      int64     // counted in Server.stuck for it
	stuckAt    time.Time // when bytes last left it
	paid       int       // how many of the next bytes were credited before
	queuedEnd  bool      // END_STREAM follows the queue
	trailers   []hpack.HeaderField
	listed     bool
	sentEnd    bool // END_STREAM was written
	removed    bool
	left, owed int64
	grown      bool // the peer has the full window
	gotEnd     bool // the peer sent END_STREAM
	gotHead    bool // upstream: the final response's head has arrived
	reused     bool // upstream: the connection had requests before
}

// removeLocked removes a stream from the connection. Its queue is dropped and credited to its
// source.
func (c *h2conn) removeLocked(h *h2half, b *h2batch) {
	if h.removed {
		return
	}
	h.removed = true
	delete(c.streams, h.id)
	h.emptyLocked(b)
	if len(c.streams) == 0 {
		c.idleSince = time.Now()
	}
	c.partLocked(h)
}

// emptyLocked drops the stream's queue and trailers.
func (h *h2half) emptyLocked(b *h2batch) {
	if n := h.owesLocked(len(h.queue) - h.queueAt); n > 0 && h.source != nil {
		b.moves = append(b.moves, h2move{source: h.source, n: n})
	}
	h.clearLocked()
	h.trailers, h.queuedEnd = nil, false
}

// addr returns the address of the upstream of a stream.
func (h *h2half) addr() string { return h.c.peer.(*h2client).u.addr }

// owesLocked returns for how many of n bytes that left the source must still be credited.
func (h *h2half) owesLocked(n int) int {
	k := min(n, h.paid)
	h.paid -= k
	return n - k
}
