package forward

import (
	"encoding/binary"
	"iter"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// What an upstream sends beyond its response would be taken for the beginning of the next one,
// which may belong to another client. So a connection is used again only while it is silent:
// nothing followed the response in what was read with it, and nothing has arrived when the next
// request takes the connection. What arrives later than that nobody can tell apart on HTTP/1.1. But
// it shows in the end, by a response too many or by one that is none, and from then on no
// connection is kept after an answer of the kind that was too long. After one to HEAD none is kept
// in any case: it announces a body that does not come, and programs that send it are many.

// answerKind is how the end of a response is announced, a bit for each.
type answerKind uint32

const (
	answerToHead answerKind = 1 << iota
	answer204
	answer304
	answerLength
	answerChunked
)

// bodiless are those that end with their head, whatever it says. Programs that send a body with
// them are the most common fault.
const bodiless = answerToHead | answer204 | answer304

var answerNames = [...]string{"HEAD", "204", "304", "Content-Length", "chunked"}

// trusted notes a response that was read, and reports whether the connection can be used again.
// whole says that nothing followed where the response was announced to end.
func (c *upConn) trusted(kind answerKind, whole bool) bool {
	c.answers |= kind
	c.last = kind
	if !whole {
		c.up.overran(kind)
	}
	return whole && c.up.distrusted()&kind == 0
}

// blame is which answers of a connection were too long, when bytes came that belong to none. If
// each response is the one of the request before, the last one is not to blame.
func (c *upConn) blame() answerKind {
	if suspects := c.answers & bodiless; suspects != 0 {
		return suspects
	}
	return c.last
}

func (u *Upstream) distrusted() answerKind { return answerKind(u.noisy.Load()) | answerToHead }

// overran notes that the upstream has sent more than it announced.
func (u *Upstream) overran(kinds answerKind) {
	before := answerKind(u.noisy.Or(uint32(kinds)))
	for i := range answerNames {
		if kind := answerKind(1 << i); kinds&kind != 0 {
			u.overruns[i].Add(1)
			if before&kind == 0 && u.options.OnOverrun != nil {
				u.options.OnOverrun(answerNames[i])
			}
		}
	}
}

// Overruns counts how often the upstream has sent more than it announced, by the kind of answer:
// one to HEAD, one with status 204 or 304, or one whose end a Content-Length or the last chunk
// announces.
func (u *Upstream) Overruns() iter.Seq2[string, int64] {
	return func(yield func(answer string, n int64) bool) {
		for i, name := range answerNames {
			if !yield(name, u.overruns[i].Load()) {
				return
			}
		}
	}
}

type peekResult uint8

const (
	peekQuiet peekResult = iota
	peekClosed
	peekData
)

// peek checks whether the upstream has closed the connection or sent something before a request.
// With TLS the bytes may be a close notification, or a session ticket or a new key. In the latter
// case a good connection is closed, but that is rare.
func (c *upConn) peek() peekResult {
	c.peeked = peekQuiet
	// Not Read, which fails if the read deadline of the last exchange has passed.
	if c.raw != nil && c.raw.Control(c.peekFn) != nil {
		return peekClosed
	}
	return c.closing(c.peeked)
}

// closing is what was found, if the upstream has not closed the connection as well. Some servers
// say why they close.
func (c *upConn) closing(found peekResult) peekResult {
	if found == peekData && tcpClosing(c.raw) {
		return peekClosed
	}
	return found
}

// heard notes what was found on an idle connection, and reports whether it can be used.
func (c *upConn) heard(found peekResult, now time.Time) bool {
	switch {
	case found == peekQuiet:
		return true
	case found == peekClosed:
		c.up.learn(now.Sub(c.since), now)
	case c.tls == nil:
		c.up.overran(c.blame())
	}
	return false
}

func (c *upConn) peekOnce(fd uintptr) { c.peeked = peekNow(fd) }

// peekNow looks at a socket without telling the scheduler.
func peekNow(fd uintptr) peekResult {
	var b [1]byte
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
	switch {
	case errno == 0 && n > 0:
		return peekData
	case errno == syscall.EAGAIN || errno == syscall.EINTR:
		return peekQuiet
	}
	return peekClosed
}

// silent reports whether nothing is left of what was read from the socket. peek does not see what
// TLS has read already.
func (c *upConn) silent() bool {
	b := c.tls
	if b == nil {
		return true
	}
	if len(b.ahead) > 0 || b.head > 0 || b.body > 0 {
		return false
	}
	b.deaf = true
	n, err := c.Conn.Read(c.one[:])
	b.deaf = false
	return n == 0 && isTimeout(err)
}

// below is the connection below TLS. It counts the bytes written to it, and gives TLS one record at
// a time, so that nothing waits inside of TLS unseen.
type below struct {
	net.Conn
	wrote  int // only the goroutine that writes the head uses it
	deaf   bool
	buffer *[smallBuffer]byte // while ahead has something
	ahead  []byte             // read, and not given to TLS
	header [recordHeader]byte
	head   int // how much of header was given
	body   int // how much of the record's body was not
}

// recordHeader is the size of the head of a record, whose last two bytes are the size of its body
// (RFC 8446, section 5.1).
const recordHeader = 5

var recordBuffers = sync.Pool{New: func() any { return new([smallBuffer]byte) }}

func (b *below) Read(p []byte) (int, error) {
	switch {
	case b.deaf:
		return 0, os.ErrDeadlineExceeded
	case len(b.ahead) > 0:
	case b.body > 0:
		n, err := b.Conn.Read(p[:min(len(p), b.body)])
		b.body -= n
		return n, err
	default:
		b.buffer = recordBuffers.Get().(*[smallBuffer]byte)
		n, err := b.Conn.Read(b.buffer[:])
		if b.ahead = b.buffer[:n]; n == 0 {
			b.emptied()
			return 0, err
		}
	}
	var n int
	if b.body > 0 {
		n = copy(p, b.ahead[:min(len(b.ahead), b.body)])
		b.body -= n
	} else {
		n = copy(b.header[b.head:], b.ahead[:min(len(b.ahead), len(p))])
		copy(p, b.ahead[:n])
		if b.head += n; b.head == recordHeader {
			b.head, b.body = 0, int(binary.BigEndian.Uint16(b.header[3:]))
		}
	}
	if b.ahead = b.ahead[n:]; len(b.ahead) == 0 {
		b.emptied()
	}
	return n, nil
}

func (b *below) emptied() {
	recordBuffers.Put(b.buffer)
	b.buffer, b.ahead = nil, nil
}

func (b *below) Write(p []byte) (int, error) {
	n, err := b.Conn.Write(p)
	b.wrote += n
	return n, err
}

// written returns how many bytes TLS has written, or 0 without TLS.
func (c *upConn) written() int {
	if c.tls == nil {
		return 0
	}
	return c.tls.wrote
}
