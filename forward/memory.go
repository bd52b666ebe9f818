package forward

import (
	"unsafe"

	"golang.org/x/net/http2/hpack"
)

const (
	// tlsBytes is what TLS holds for a connection: keys and a read buffer.
	tlsBytes = 12 << 10
	// h2ConnBytes is what an HTTP/2 connection holds, whatever its streams do.
	h2ConnBytes = 20 << 10
)

// TrackMemory is for a Handler that is about to wait and has to bound the memory of waiting
// requests. It calls grew immediately with the bytes that this request holds now. For HTTP/1.1
// these are the connection's buffers, which do not grow while a request waits. For HTTP/2 they are
// the header fields, the part of the body that has arrived, and the connection if no other request
// is on it. For HTTP/2, grew is called again for each part of the body that arrives, at most the
// stream's window, until the Handler returns. It is called with a lock held, so it must neither
// wait nor use the Request.
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

// grewLocked reports n more bytes to a Handler that waits.
func (x *h2exchange) grewLocked(n int64) {
	if x.machine.Asking() && x.grew != nil && n > 0 {
		x.grew(n)
	}
}
