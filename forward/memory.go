package forward

import (
	"runtime"
	"sync"
)

// Account limits the memory of requests, see Request.Charge. Its methods are called by several
// goroutines and with locks held, so they must not wait.
type Account interface {
	// Take is called before a request uses n more bytes that it needs. An error ends the request:
	// with 503 and the error's text, or by cutting a response that has begun.
	Take(n int64) error
	// Give returns bytes of Take.
	Give(n int64)
	// Borrow reports whether a request gets n bytes that only make it faster.
	Borrow(n int64) bool
	// Return returns bytes of Borrow.
	Return(n int64)
}

// tlsBytes is what TLS uses for a connection: keys and a read buffer.
const tlsBytes = 12 << 10

// fullError is the error of an Account during an exchange.
type fullError struct{ error }

// take is Account.Take during an exchange.
func take(a Account, n int64) error {
	if err := a.Take(n); err != nil {
		return fullError{err}
	}
	return nil
}

// Charge has the request's memory taken from an account: what the request uses now plus more at
// once, and what it needs later when it needs it. Admit calls it at most once. If the account has
// no room, the error is returned and nothing was taken.
//
// For HTTP/1.1 a request uses its connection's buffers, and borrows a larger one for a long body.
// For HTTP/2 it uses its header fields and the bytes that wait for a window. What an HTTP/2
// connection itself uses is taken from the account of the request that it carries first.
//
// The bytes are returned before Done.
func (r *Request) Charge(a Account, more int64) error { return r.carrier.charge(a, more) }

// The sizes of buffers: of one that each connection has, and of one for a long body.
const (
	smallBuffer = 4 << 10
	largeBuffer = 64 << 10
)

// largeBuffers are for bodies. Only an exchange that moves more than a small buffer takes one.
var largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}

// buffer is memory for a body: a small buffer first, and a large one from the moment that a read
// fills the small one, if the account lends it. A peer that sends little or nothing costs little.
type buffer struct {
	b       []byte
	large   *[largeBuffer]byte
	account Account // that lent it, or nil
}

// full has the buffer grow, after a read that filled it. More has probably arrived, so the
// goroutine would not wait for a while: it lets others go first (see h2conn.busy).
func (p *buffer) full(a Account) {
	runtime.Gosched()
	if p.large != nil || a != nil && !a.Borrow(largeBuffer) {
		return
	}
	p.large, p.account = largeBuffers.Get().(*[largeBuffer]byte), a
	p.b = p.large[:]
}

// release gives a large buffer back.
func (p *buffer) release() {
	if p.large == nil {
		return
	}
	largeBuffers.Put(p.large)
	if p.account != nil {
		p.account.Return(largeBuffer)
	}
	*p = buffer{}
}
