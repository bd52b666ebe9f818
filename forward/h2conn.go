package forward

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// HTTP/2 is forwarded frame by frame. One goroutine reads each connection, to a client
// (h2server.go) or to an upstream (h2client.go). It handles a frame and writes the result into the
// buffer of the other connection (h2write.go). Before the reader waits for more, the buffers are
// written to the sockets, so frames that arrive together leave together. Streams have no
// goroutines. If a Handler has to wait, a new goroutine takes over the reading (Request.Context).
//
// Locks: an exchange's mu is locked before a connection's mu. Two connections are never locked at
// the same time.

const (
	h2AssumedStreams = 100      // what a peer takes that does not say it
	h2MaxStreams     = 1000     // requests of a client connection at the same time
	h2ReadFrame      = 16 << 10 // the largest frame that a peer may send: RFC 9113's default
	h2SoftBacklog    = 64 << 10 // with more unwritten bytes, no data is taken from queues
	h2HardBacklog    = 2 << 20  // with more unwritten bytes, the connection is closed
)

var h2Windows = h2windows{first: 65535, full: 256 << 10, conn: 8 << 20}

// h2peer is what differs between the two kinds of connection. The reader calls its methods. If keep
// is false, another goroutine reads the connection now.
type h2peer interface {
	headers(f *http2.MetaHeadersFrame) (keep bool, err error)
	data(f *http2.DataFrame) error
	reset(f *http2.RSTStreamFrame) error
	goAway(f *http2.GoAwayFrame)
	settled()                  // the peer's settings were read
	partialHead(begins bool)   // a header block is being waited for
	badStream(id uint32) error // a frame of this stream was malformed
	beforeRead()               // all frames that were read have been handled
	ended(err error)           // nothing more will be read
}

// h2conn is an HTTP/2 connection. mu guards the fields below it.
type h2conn struct {
	nc   net.Conn
	raw  syscall.RawConn // nil if a write cannot be tried without waiting
	peer h2peer
	h2reading

	headerTimeout, stall time.Duration
	srv                  *Server // counts panics; for an upstream, that of the first request
	lastRead             atomic.Int64
	closed               chan struct{}
	closeOnce            sync.Once // after a panic, end may be called again

	mu sync.Mutex
	h2output
	streams       map[uint32]*h2half
	waiting       []*h2half // streams with a queue that may be sent
	window        int64     // what may be sent
	initialWindow int64
	maxFrame      int
	maxStreams    uint32 // the peer's
	windows       h2windows
	left, owed    int64   // what the peer may send, and what was credited but not announced
	maxID         uint32  // the newest stream
	gone          *h2gone // nil before it is needed
	bill          h2bill
	timer         *time.Timer
	timerAt       time.Time
	idleSince     time.Time // zero while there are streams
}

// h2reading is what only the reader of a connection uses.
type h2reading struct {
	in    *bufio.Reader
	fr    *http2.Framer
	batch h2batch
	known bool // the peer's first SETTINGS have arrived
	lane  bool // the reader has a place in the server's lane
	// settingsLeft is how many SETTINGS frames the peer may send now.
	settingsLeft allowance
	// handed points to the reader's variable that says that another goroutine reads now.
	handed *bool
}

// h2output is what a connection writes. h2conn.mu guards it.
type h2output struct {
	fw         *http2.Framer // writes into out
	enc        *hpack.Encoder
	block      bytes.Buffer
	out, spare []byte
	flying     int       // bytes being written to the socket
	writing    bool      // a goroutine writes to the socket
	broken     bool      // a write failed, or the connection has ended
	last       bool      // out is the last: then close
	closesAt   time.Time // the reader's deadline when it is
	direct     h2direct
}

// h2direct is a write that does not wait. It belongs to the goroutine that set h2output.writing.
type h2direct struct {
	fn  func(fd uintptr) bool // h2conn.tryOnce
	buf []byte
	n   int
	err error
}

// h2bill is what a connection itself has taken from the account of a request. h2conn.mu guards it.
type h2bill struct {
	payer   *h2half // its account pays
	charged int64
	stalled int64 // of these, while the peer does not read
}

func newH2Conn(nc net.Conn, srv *Server, window, stall time.Duration) *h2conn {
	c := &h2conn{
		nc: nc, headerTimeout: window, stall: stall, closed: make(chan struct{}),
		streams: map[uint32]*h2half{}, window: 65535, initialWindow: 65535, maxFrame: 16 << 10, maxStreams: h2AssumedStreams,
		left: 65535, srv: srv, windows: h2Windows,
	}
	if srv != nil && srv.windows.conn > 0 {
		c.windows = srv.windows
	}
	if isTCP(nc) {
		c.raw, _ = nc.(syscall.Conn).SyscallConn()
		c.direct.fn = c.tryOnce
	}
	c.in = bufio.NewReaderSize(h2socket{c}, 16<<10)
	c.fr = http2.NewFramer(io.Discard, c.in)
	c.fr.SetReuseFrames()
	c.fr.SetMaxReadFrameSize(h2ReadFrame)
	c.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.fw = http2.NewFramer((*h2buffer)(c), nil)
	c.enc = hpack.NewEncoder(&c.block)
	c.lastRead.Store(time.Now().UnixNano())
	return c
}

// h2buffer appends to out what the Framer writes. c.mu is held.
type h2buffer h2conn

func (b *h2buffer) Write(p []byte) (int, error) {
	b.out = append(b.out, p...)
	return len(p), nil
}

// h2socket is what bufio reads from. Before it waits, it sends the results of earlier frames.
type h2socket struct{ c *h2conn }

func (s h2socket) Read(p []byte) (int, error) {
	s.c.peer.beforeRead()
	s.c.batch.flush()
	s.c.unbusy()
	n, err := s.c.nc.Read(p)
	s.c.lastRead.Store(time.Now().UnixNano())
	if n == len(p) { // more has probably arrived, so the reader would not wait for a while
		s.c.busy()
	}
	return n, err
}

// read handles frames until the connection ends, or another goroutine takes over.
func (c *h2conn) read() {
	handed := false
	c.handed = &handed
	defer c.readerGuard(&handed)
	defer func() {
		if !handed {
			c.unbusy()
		}
	}()
	for {
		keep, err := c.step(&handed)
		if handed || !keep && err == nil {
			return
		}
		if err != nil {
			c.unbusy()
			c.end(err)
			return
		}
	}
}

// step reads a frame and handles it.
func (c *h2conn) step(handed *bool) (keep bool, err error) {
	fh, err := c.fr.ReadFrameHeader()
	if err != nil {
		return true, c.readError(err)
	}
	if !c.known && (fh.Type != http2.FrameSettings || fh.Flags.Has(http2.FlagSettingsAck)) {
		return true, h2Fail(http2.ErrCodeProtocol, "the first frame is no SETTINGS")
	}
	// A header block must arrive within headerTimeout. Other frames may take as long as their
	// stream.
	bounded := fh.Type == http2.FrameHeaders && (c.in.Buffered() < int(fh.Length) || !fh.Flags.Has(http2.FlagHeadersEndHeaders))
	bounded = bounded && c.headerTimeout > 0
	if bounded {
		c.readUntil(time.Now().Add(c.headerTimeout))
		c.peer.partialHead(true)
	}
	f, err := c.fr.ReadFrameForHeader(fh)
	if bounded {
		c.peer.partialHead(false)
	}
	if err != nil {
		return true, c.badFrame(fh, err)
	}
	if bounded {
		c.readUntil(time.Time{})
	}
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		keep, err := c.peer.headers(f)
		*handed = !keep
		return keep, err
	case *http2.DataFrame:
		return true, c.peer.data(f)
	case *http2.SettingsFrame:
		return true, c.settings(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			c.mu.Lock()
			c.fw.WritePing(true, f.Data)
			c.mu.Unlock()
			c.batch.add(c)
			return true, c.checkBacklog()
		}
	case *http2.WindowUpdateFrame:
		return true, c.windowUpdate(f)
	case *http2.RSTStreamFrame:
		return true, c.peer.reset(f)
	case *http2.GoAwayFrame:
		c.peer.goAway(f)
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return true, c.badFrame(fh, http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol})
		}
	case *http2.PushPromiseFrame:
		return true, h2Fail(http2.ErrCodeProtocol, "PUSH_PROMISE although it was switched off")
	}
	return true, nil
}

// readUntil sets the reader's deadline, zero for none. The deadline of a connection that closes
// stays.
func (c *h2conn) readUntil(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closesAt.IsZero() {
		c.nc.SetReadDeadline(t)
	}
}

// armLocked makes the timer fire at the given time or before, and call fn.
func (c *h2conn) armLocked(at time.Time, fn func()) {
	if c.last || at.IsZero() || c.timer != nil && !c.timerAt.IsZero() && !at.Before(c.timerAt) {
		return
	}
	c.timerAt = at
	if c.timer == nil {
		c.timer = time.AfterFunc(time.Until(at), fn)
	} else {
		c.timer.Reset(time.Until(at))
	}
}
