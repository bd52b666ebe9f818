package forward

import (
	"container/list"
	"sync"
)

// A head that has not arrived whole belongs to no request yet, so no account pays for it. What such
// heads take beyond the connections' small buffers has its own limit. When it is reached, the
// connections that have been sending a head for the longest are closed: who has a request to make
// sends its head at once.

// maxHeadBytes is the default of Server.headBytes.
const maxHeadBytes = 32 << 20

// partialHeads are the connections with a large head that has not arrived whole.
type partialHeads struct {
	mu    sync.Mutex
	bytes int
	conns list.List // of *clientConn; the oldest head is first
}

// partialHead is a connection's place in partialHeads, which guards it. It is zero without a large
// head, or when the connection was closed because of it.
type partialHead struct {
	place *list.Element
	bytes int
}

// holdHead has the connection use n bytes for an incomplete head. Only the goroutine that reads the
// connection calls it.
func (c *clientConn) holdHead(n int) {
	if n <= c.holds {
		return
	}
	c.holds = n
	s, h := c.srv, &c.srv.heads
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.partial.place == nil {
		c.partial.place = h.conns.PushBack(c)
	}
	h.bytes += n - c.partial.bytes
	c.partial.bytes = n
	for h.bytes > s.headBytes && h.conns.Len() > 1 {
		oldest := h.conns.Front().Value.(*clientConn)
		h.removeLocked(oldest)
		s.evicted.Add(1)
		oldest.gone.Store(true)
		oldest.tcp().Close()
	}
}

// releaseHead is called when the head has arrived whole, and when the connection has ended.
func (c *clientConn) releaseHead() {
	if c.holds == 0 {
		return
	}
	c.holds = 0
	h := &c.srv.heads
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removeLocked(c)
}

func (h *partialHeads) removeLocked(c *clientConn) {
	if c.partial.place != nil {
		h.conns.Remove(c.partial.place)
		h.bytes -= c.partial.bytes
		c.partial = partialHead{}
	}
}
