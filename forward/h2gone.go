package forward

// h2GoneStreams is how many of the newest streams of a connection h2gone knows exactly.
const h2GoneStreams = 4096

// h2gone remembers which of a client's streams were reset here: one bit for each of the newest
// streams, in a ring. Frames that the client sent before it knew of a reset are ignored. A frame of
// a stream that was never opened, or that ended otherwise, is an error of the client (RFC 9113
// section 5.1). A stream older than the ring may have been reset here, so its frames are ignored,
// too: a long upload may be reset after thousands of newer streams.
type h2gone struct {
	newest uint32 // the ring's newest stream: id/2
	bits   [h2GoneStreams / 64]uint64
}

// add records a stream that was reset here.
func (g *h2gone) add(id uint32) {
	n := id / 2
	if n > g.newest {
		g.advance(n)
	}
	if g.newest-n < h2GoneStreams {
		g.bits[n/64%uint32(len(g.bits))] |= 1 << (n % 64)
	}
}

// advance clears the bits of the streams up to n, which were those of older streams.
func (g *h2gone) advance(n uint32) {
	from := g.newest + 1
	g.newest = n
	if n-from >= h2GoneStreams {
		from = n - h2GoneStreams + 1
	}
	for from <= n {
		word := &g.bits[from/64%uint32(len(g.bits))]
		if from%64 == 0 && n-from >= 63 {
			*word = 0
			from += 64
			continue
		}
		*word &^= 1 << (from % 64)
		from++
	}
}

// ours reports whether frames of a stream that is gone are ignored. A nil h2gone has no stream.
func (g *h2gone) ours(id uint32) bool {
	if g == nil || id/2 > g.newest {
		return false
	}
	n := id / 2
	return g.newest-n >= h2GoneStreams || g.bits[n/64%uint32(len(g.bits))]&(1<<(n%64)) != 0
}

// forgetLocked records a client's stream that was reset here. What an upstream sends for a stream
// that is gone is always ignored.
func (c *h2conn) forgetLocked(id uint32) {
	if _, ok := c.peer.(*h2server); !ok {
		return
	}
	if c.gone == nil {
		c.gone = new(h2gone)
	}
	c.gone.add(id)
}
