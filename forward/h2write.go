package forward

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// h2batch is the work that a goroutine still has to do after it has released its locks: connections
// to flush, and bytes that left a queue. Only that goroutine uses it.
type h2batch struct {
	conns []*h2conn
	moves []h2move
}

// h2move is n bytes of source that left the queue of half. end reports whether the stream's last
// byte is among them.
type h2move struct {
	source, half *h2half
	n            int
	end          bool
}

func (b *h2batch) add(c *h2conn) {
	for _, known := range b.conns {
		if known == c {
			return
		}
	}
	b.conns = append(b.conns, c)
}

// settle credits moved bytes to the streams that they came from, and ends exchanges whose last byte
// has left. No lock may be held.
func (b *h2batch) settle() {
	for i := 0; i < len(b.moves); i++ {
		m := b.moves[i]
		if m.source != nil {
			m.source.c.credit(m.source, m.n, b)
		}
		if m.half != nil {
			m.half.x.left(m.half, m.end, b)
		}
	}
	clear(b.moves)
	b.moves = b.moves[:0]
}

// flush writes the output of all connections in the batch. No lock may be held.
func (b *h2batch) flush() {
	b.settle()
	for len(b.conns) > 0 {
		c := b.conns[len(b.conns)-1]
		b.conns[len(b.conns)-1] = nil
		b.conns = b.conns[:len(b.conns)-1]
		c.flush(b)
	}
}

// flush writes the output buffer to the socket. It does not wait: if the socket does not take all
// of it, a goroutine writes the rest.
func (c *h2conn) flush(b *h2batch) {
	c.mu.Lock()
	for !c.writing && !c.broken && len(c.out) > 0 {
		piece := c.takeLocked()
		c.mu.Unlock()
		n, err := c.try(piece)
		if n < len(piece) && err == nil {
			c.writeLater(piece, n)
			b.settle()
			return
		}
		c.mu.Lock()
		c.wroteLocked(piece, err, b)
	}
	c.mu.Unlock()
	b.settle()
}

// writeLater has a goroutine write the rest of piece. If there is no room for a peer that does not
// read, the connection is closed.
func (c *h2conn) writeLater(piece []byte, n int) {
	c.mu.Lock()
	ok := c.stallLocked()
	c.mu.Unlock()
	if !ok {
		c.nc.Close() // so the write fails, and the reader ends the exchanges
	}
	go c.writeRest(piece, n)
}

func (c *h2conn) takeLocked() []byte {
	piece := c.out
	c.out, c.spare = c.spare[:0], nil
	c.writing, c.flying = true, len(piece)
	return piece
}

func (c *h2conn) wroteLocked(piece []byte, err error, b *h2batch) {
	c.writing, c.flying = false, 0
	if cap(piece) <= 4*h2SoftBacklog {
		c.spare = piece[:0]
	}
	if err != nil {
		c.broken = true
		c.out = nil
		c.nc.Close() // the reader's next read fails, and it ends the exchanges
		return
	}
	c.drainLocked(b)
	if c.last && len(c.out) == 0 {
		c.closeWriteLocked()
	}
}

// try writes as much as the socket takes without waiting.
func (c *h2conn) try(piece []byte) (int, error) {
	if c.raw == nil {
		return 0, nil
	}
	d := &c.direct
	d.buf, d.n, d.err = piece, 0, nil
	err := c.raw.Write(d.fn)
	d.buf = nil
	if err == nil {
		err = d.err
	}
	return d.n, err
}

func (c *h2conn) tryOnce(fd uintptr) bool {
	for {
		n, errno := writeNow(fd, c.direct.buf)
		switch errno {
		case 0:
			c.direct.n = n
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
		default:
			c.direct.err = errno
		}
		return true
	}
}

// writeRest waits for the socket and writes until nothing is left. It has its own goroutine.
func (c *h2conn) writeRest(piece []byte, n int) {
	defer c.guard()
	var b h2batch
	for {
		var err error
		for rest := piece[n:]; len(rest) > 0 && err == nil; {
			var k int
			c.nc.SetWriteDeadline(time.Now().Add(c.stall))
			k, err = c.nc.Write(rest)
			rest = rest[k:]
			if k > 0 && isTimeout(err) && c.raw != nil {
				err = nil // slow, but not stalled
			}
		}
		c.nc.SetWriteDeadline(time.Time{})
		c.mu.Lock()
		c.wroteLocked(piece, err, &b)
		if c.broken || len(c.out) == 0 {
			c.flowsLocked()
			c.mu.Unlock()
			b.flush()
			return
		}
		piece, n = c.takeLocked(), 0
		c.mu.Unlock()
		b.flush()
	}
}

// closeWriteLocked closes the writing side. It does nothing with TLS, which would write and must
// not do that with mu held.
func (c *h2conn) closeWriteLocked() {
	if c.raw != nil {
		closeWrite(c.nc)
	}
}

// backlogLocked returns how many bytes wait for the socket.
func (c *h2conn) backlogLocked() int { return len(c.out) + c.flying }

// headersLocked writes the header block in c.block.
func (c *h2conn) headersLocked(id uint32, end bool) {
	block := c.block.Bytes()
	first := block[:min(len(block), c.maxFrame)]
	block = block[len(first):]
	c.fw.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: len(block) == 0})
	for len(block) > 0 {
		piece := block[:min(len(block), c.maxFrame)]
		block = block[len(piece):]
		c.fw.WriteContinuation(id, len(block) == 0, piece)
	}
	if c.block.Cap() > 64<<10 {
		// The encoder has a pointer to the buffer, so it is emptied in place.
		c.block.Truncate(0)
	}
	c.block.Reset()
}

func (c *h2conn) fieldLocked(name, value string, sensitive bool) {
	c.enc.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: sensitive})
}

// send forwards bytes to the stream: as many as the windows allow at once, and the rest through its
// queue. The source must be credited with owes bytes now; h2batch.settle credits it with those of
// the queue. ended reports whether the stream's last byte has left.
func (c *h2conn) send(h *h2half, data []byte, end bool, source *h2half, b *h2batch) (owes int, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.removed || h.sentEnd || c.broken {
		return h.owesLocked(len(data)), false
	}
	moved := 0
	if len(h.queue) == h.queueAt && h.trailers == nil {
		moved, ended = c.dataLocked(h, data, end)
		c.finishLocked(h, b)
		b.add(c)
	}
	if moved < len(data) || end && !ended {
		if h.queueAt > 0 && len(h.queue)+len(data)-moved > cap(h.queue) {
			h.queue = append(h.queue[:0], h.queue[h.queueAt:]...)
			h.queueAt = 0
		}
		if h.appendLocked(data[moved:]); h.x.full != nil {
			return h.owesLocked(len(data)), false
		}
		h.source = source
		h.queuedEnd = h.queuedEnd || end
		c.listLocked(h)
	}
	return h.owesLocked(moved), ended
}

// dataLocked writes DATA frames as far as the windows and the backlog allow.
func (c *h2conn) dataLocked(h *h2half, data []byte, end bool) (moved int, ended bool) {
	for {
		room := min(int64(len(data)-moved), h.window, c.window, int64(c.maxFrame))
		if c.backlogLocked() >= h2SoftBacklog {
			room = 0
		}
		if room < 0 {
			room = 0
		}
		final := end && moved+int(room) == len(data)
		if room == 0 && (!final || c.backlogLocked() >= h2SoftBacklog) {
			return moved, false
		}
		c.fw.WriteData(h.id, final, data[moved:moved+int(room)])
		moved += int(room)
		h.window -= room
		c.window -= room
		if final {
			h.sentEnd = true
			return moved, true
		}
		if moved == len(data) {
			return moved, false
		}
	}
}

// trail ends the stream with trailers, after its queue. ended reports whether they have left.
func (c *h2conn) trail(h *h2half, fields []hpack.HeaderField, b *h2batch) (ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.removed || h.sentEnd || c.broken {
		return false
	}
	if len(h.queue) > h.queueAt {
		h.trailers = fields
		return false
	}
	c.trailersLocked(h, fields)
	c.finishLocked(h, b)
	b.add(c)
	return true
}

func (c *h2conn) trailersLocked(h *h2half, fields []hpack.HeaderField) {
	for i := range fields {
		c.enc.WriteField(fields[i])
	}
	c.headersLocked(h.id, true)
	h.sentEnd = true
}

// listLocked adds a stream with a queue to those that the next drain looks at.
func (c *h2conn) listLocked(h *h2half) {
	if !h.listed && !h.removed && (len(h.queue) > h.queueAt || h.queuedEnd) {
		h.listed = true
		c.waiting = append(c.waiting, h)
	}
}

// drainLocked sends from the queues, one frame of each in turn.
func (c *h2conn) drainLocked(b *h2batch) {
	sent := false
	for len(c.waiting) > 0 && !c.broken && c.backlogLocked() < h2SoftBacklog {
		h := c.waiting[0]
		rest := h.queue[h.queueAt:]
		if h.removed || h.sentEnd {
			c.unlistLocked(h)
			continue
		}
		if c.window <= 0 && len(rest) > 0 {
			break
		}
		piece := rest[:min(len(rest), c.maxFrame)]
		final := h.queuedEnd && len(piece) == len(rest)
		moved, ended := c.dataLocked(h, piece, final)
		sent = sent || moved > 0 || ended
		h.queueAt += moved
		c.unlistLocked(h)
		if h.queueAt == len(h.queue) {
			h.clearLocked()
			if h.trailers != nil {
				c.trailersLocked(h, h.trailers)
				h.trailers, ended = nil, true
			}
			c.finishLocked(h, b)
		} else {
			if moved > 0 {
				h.stuckAt = time.Now()
			}
			if h.window > 0 {
				c.listLocked(h) // at the end of the list
			}
		}
		if moved > 0 || ended {
			b.moves = append(b.moves, h2move{source: h.source, half: h, n: h.owesLocked(moved), end: ended})
		}
	}
	if sent {
		b.add(c)
	}
}

func (c *h2conn) unlistLocked(h *h2half) {
	h.listed = false
	c.waiting[0] = nil
	if c.waiting = c.waiting[1:]; len(c.waiting) == 0 {
		c.waiting = nil
	}
}

// finishLocked removes a stream that both sides have ended from the connection, together with
// writing its end: when the peer has seen that, more frames of the stream are the peer's error.
func (c *h2conn) finishLocked(h *h2half, b *h2batch) {
	if h.sentEnd && h.gotEnd {
		c.removeLocked(h, b)
	}
}

// drop resets a stream.
func (c *h2conn) drop(h *h2half, code http2.ErrCode, b *h2batch) {
	c.mu.Lock()
	if !h.removed {
		if !c.broken && !(h.sentEnd && h.gotEnd) {
			c.fw.WriteRSTStream(h.id, code)
			c.forgetLocked(h.id)
			b.add(c)
		}
		c.removeLocked(h, b)
	}
	c.mu.Unlock()
}

var errH2Closed = errors.New("the connection was closed")
