package forward

import (
	"unsafe"

	"golang.org/x/net/http2/hpack"
)

// CountHeld is for a Handler that is about to wait and has to bound the memory of what waits. grew is called at once with the bytes that are
// kept for this request now: over HTTP/1.1 the connection's buffers, which do not grow while a request waits; over HTTP/2 its header
// fields and what came of its body. Over HTTP/2 it is called again, until the Handler has returned, with what comes of the body meanwhile: at
// most the stream's window. It is called under a lock, so it must neither wait nor use the Request.
func (r *Request) CountHeld(grew func(n int64)) {
	if x := r.h2; x != nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.grew = grew
		grew(fieldBytes(x.fields) + fieldBytes(x.trailers) + int64(len(x.method)+len(x.path)+len(x.authority)+cap(x.held)+cap(x.replay)))
		return
	}
	c := r.c
	grew(int64(cap(c.in)+cap(c.out)+cap(c.rb)) + int64(cap(r.head.fields))*int64(unsafe.Sizeof(field{})))
}

func fieldBytes(fields []hpack.HeaderField) int64 {
	n := int64(cap(fields)) * int64(unsafe.Sizeof(hpack.HeaderField{}))
	for i := range fields {
		n += int64(len(fields[i].Name) + len(fields[i].Value))
	}
	return n
}

// grewLocked tells a Handler that waits of n bytes more. mu is held.
func (x *h2exchange) grewLocked(n int64) {
	if x.inHandler && x.grew != nil && n > 0 {
		x.grew(n)
	}
}
