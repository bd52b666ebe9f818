package telemetry

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// For how long, and how much, is still read of a connection that the server has closed: it takes
// atOnce of memory meanwhile.
const (
	lingers    = 5 * time.Second
	lingersFor = 16 << 20 // more than bodies have that clients may think they can send
	atOnce     = 2 << 10
)

// politeness is how fast the process reads what nobody wants, of all closed connections together.
// So a flood of refused bodies spends little of the process's CPU time, and TCP slows it down. One
// client that sends 1 MiB although it is refused sees the answer at once, and with 16 MiB after 2
// s.
var politeness = rate.NewLimiter(8<<20, 1<<20)

// boundConn is a connection that counts until it has ended.
type boundConn struct {
	net.Conn
	leave  func()
	closed atomic.Bool
}

// Polite returns a connection that reads after Close what its peer still sends: at most 16 MiB, for
// at most 5 s, and about 8 MiB/s of all of the process's. It calls ended once, at the end of
// that.
func Polite(conn net.Conn, ended func()) net.Conn { return &boundConn{Conn: conn, leave: ended} }

// Read implements net.Conn.
func (c *boundConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	return n, err
}

// CloseWrite tells the client that no more comes.
func (c *boundConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// Close implements net.Conn. A connection that is closed with bytes that nobody has read is reset,
// and its client may not see the answer. So what the client still sends is read, within bounds,
// until it has closed its side, too.
func (c *boundConn) Close() error {
	switch {
	case c.closed.Swap(true):
		return net.ErrClosed
	case c.CloseWrite() != nil:
		defer c.leave()
		return c.Conn.Close()
	}
	_ = c.SetReadDeadline(time.Now()) // who reads is to return
	go c.linger()
	return nil
}

func (c *boundConn) linger() {
	defer c.leave()
	defer c.Conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), lingers)
	defer cancel()
	end, _ := ctx.Deadline()
	_ = c.SetReadDeadline(end)
	p := make([]byte, atOnce)
	for left := lingersFor; left > 0; {
		n, err := c.Conn.Read(p)
		if err != nil || politeness.WaitN(ctx, n) != nil {
			return
		}
		left -= n
	}
}
