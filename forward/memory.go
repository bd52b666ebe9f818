package forward

import (
	"unsafe"

	"golang.org/x/net/http2/hpack"
)

const (
	// tlsBytes is what TLS keeps for a connection: keys, and a buffer for what it read.
	tlsBytes = 12 << 10
	// h2ConnBytes is what a connection of HTTP/2 keeps whatever its streams do.
	h2ConnBytes = 20 << 10
)

// TrackMemory is for a Handler that is about to wait and has to bound the memory of what waits.
// grew is called at once with the bytes that are kept for this request now: over HTTP/1.1 the
// connection's buffers, which do not grow while a request waits; over HTTP/2 its header fields and
// what came of its body, and the connection, if no other request is on it. Over HTTP/2 it is called
// again, until the Handler has returned, with what comes of the body meanwhile: at most the
// stream's window. It is called under a lock, so it must neither wait nor use the Request.
func (r *Request) TrackMemory(grew func(n int64)) {
	if x := r.h2; x != nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.grew = grew
		var connection int64
		c := x.down.c
		c.mu.Lock()
		if len(c.streams) <= 1 {
			connection = h2ConnBytes + x.srv.conn.tlsBytes()
		}
		c.mu.Unlock()
		grew(connection + fieldBytes(x.fields) + fieldBytes(x.body.trailers) +
			int64(len(x.method)+len(x.path)+len(x.authority)+cap(x.body.held)+cap(x.body.replay)))
		return
	}
	c := r.c
	grew(c.tlsBytes() + int64(cap(c.in)+cap(c.out)+cap(c.rb)) + int64(cap(r.head.fields))*int64(unsafe.Sizeof(field{})))
}

func (c *conn) tlsBytes() int64 {
	if c.tls == nil {
		return 0
	}
	return tlsBytes
}

func fieldBytes(fields []hpack.HeaderField) int64 {
	n := int64(cap(fields)) * int64(unsafe.Sizeof(hpack.HeaderField{}))
	for i := range fields {
		n += int64(len(fields[i].Name) + len(fields[i].Value))
	}
	return n
}

// grewLocked tells a Handler that waits of n bytes more.
func (x *h2exchange) grewLocked(n int64) {
	if x.machine.Asking() && x.grew != nil && n > 0 {
		x.grew(n)
	}
}
