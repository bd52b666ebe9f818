package forward

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// program starts the program behind the forwarders and returns its address.
func (s *sequence) program() string {
	return rawBackend(s.t, func(_ int, c net.Conn, _ *bufio.Reader) {
		near, _ := s.near.LoadAndDelete(c.RemoteAddr().String())
		l := &link{s: s, cork: &cork{Conn: c}}
		l.near, _ = near.(*net.TCPConn)
		l.conn = l.cork
		if s.tls[1] {
			l.conn = tls.Server(l.cork, s.own)
		}
		if s.http2 {
			l.serve2()
		} else {
			l.serve()
		}
	})
}

// cork is a connection that can hold back what is written to it, so that TLS writes more than one
// record at a time.
type cork struct {
	net.Conn
	holds bool
	held  []byte
	wrote uint64
}

func (c *cork) Write(p []byte) (int, error) {
	if c.holds {
		c.held = append(c.held, p...)
		return len(p), nil
	}
	n, err := c.Conn.Write(p)
	c.wrote += uint64(n)
	return n, err
}

// link is a connection of the program.
type link struct {
	s    *sequence
	conn net.Conn // may have TLS
	cork *cork
	near *net.TCPConn // the forwarder's end
	mu   sync.Mutex
	read []*turn // in this order; guarded by s.mu
}

// write writes all in one system call.
func (l *link) write(b []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writeLocked(b)
}

func (l *link) writeLocked(b []byte) error {
	l.cork.holds, l.cork.held = true, nil
	_, err := l.conn.Write(b)
	l.cork.holds = false
	if err == nil {
		_, err = l.cork.Write(l.cork.held)
	}
	return err
}

// arrived waits until all that was written is at the forwarder's socket, or that is closed.
func (l *link) arrived() {
	if l.near == nil {
		return
	}
	raw, err := l.near.SyscallConn()
	if err != nil {
		return
	}
	l.mu.Lock()
	wrote := l.cork.wrote
	l.mu.Unlock()
	for end := time.Now().Add(time.Second); time.Now().Before(end); <-time.After(20 * time.Microsecond) {
		var info *unix.TCPInfo
		if raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }) != nil || err != nil {
			return
		}
		if info.Bytes_received >= wrote {
			return
		}
	}
}

// unasked writes bytes that nobody asked for, after the turn's delay.
func (l *link) unasked(v *turn, write func()) {
	l.s.mu.Lock()
	v.from = time.Now().Add(v.after)
	l.s.left++ // not a WaitGroup: a program may still be at it when its client has left
	l.s.mu.Unlock()
	later := func() {
		write()
		l.arrived()
		if v.closes {
			l.cork.Close()
		}
		l.s.mu.Lock()
		v.to = time.Now()
		l.s.left--
		l.s.mu.Unlock()
		v.settled.Broadcast()
		l.s.none.Broadcast()
	}
	if v.after == 0 {
		later()
	} else {
		time.AfterFunc(v.after, later)
	}
}

// find returns the turn that a request belongs to, and whether the program has seen it before.
func (s *sequence) find(method, path, mark string) (v *turn, again bool) {
	number, _ := strconv.Atoi(strings.TrimPrefix(path, "/"))
	s.mu.Lock()
	defer s.mu.Unlock()
	v = s.turn[number]
	if v == nil || v.method != method || mark != strconv.Itoa(number) {
		s.t.Errorf("%s: the program was sent a request that nobody sent: %s %s, number %q", s, method, path, mark)
		return nil, false
	}
	v.asked++
	return v, v.asked > 1
}

// serve answers requests of HTTP/1.1.
func (l *link) serve() {
	r := bufio.NewReader(l.conn)
	for {
		request, err := http.ReadRequest(r)
		if err != nil {
			if _, netError := err.(net.Error); !netError && !ended(err) {
				l.s.t.Errorf("%s: the program was sent what is no request: %v", l.s, err)
			}
			return
		}
		v, again := l.s.find(request.Method, request.RequestURI, request.Header.Get("Number"))
		if v == nil {
			return
		}
		l.s.mu.Lock()
		l.read, v.on = append(l.read, v), l
		l.s.mu.Unlock()
		if !l.answer(v, again, r, request) {
			return
		}
	}
}

// take reads a request's body, and checks whose it is.
func (l *link) take(v *turn, body io.Reader) bool {
	b, err := io.ReadAll(body)
	if !bytes.Equal(b, tagged(v.number, v.sends)[:min(len(b), v.sends)]) || err == nil && len(b) != v.sends {
		l.s.t.Errorf("%s: the program was sent a body that is not the request's own:\n%s\n%.100q", l.s, v.story(), b)
	}
	return err == nil
}

// answer does what the turn says. It reports whether the connection goes on.
func (l *link) answer(v *turn, again bool, r *bufio.Reader, request *http.Request) bool {
	ends := v.ends
	if again {
		ends = endsPlain
	}
	switch ends {
	case endsEarly:
		return l.finish(v, again) == nil && l.take(v, request.Body)
	case endsUnread:
		l.finish(v, again)
		<-time.After(v.after)
		return false
	case endsAsked:
		if l.write([]byte("HTTP/1.1 100 Continue\r\n\r\n")) != nil {
			return false
		}
	case endsUnasked:
		l.finish(v, again)
		return !v.closes && l.take(v, request.Body)
	}
	if !l.take(v, request.Body) {
		return false
	}
	whole := v.response(again)
	switch ends {
	case endsHints:
		hints := []byte("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
		return l.write(append(append(hints, v.strays()...), whole...)) == nil
	case endsStalled:
		l.write(whole[:len(whole)/2])
		<-time.After(stallsFor)
		return l.write(whole[len(whole)/2:]) == nil
	case endsSilent:
		<-time.After(stallsFor)
		return l.write(whole) == nil
	case endsSwitch:
		l.write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tagged\r\nNumber: " + strconv.Itoa(v.number) + "\r\n\r\n"))
		l.write(tagged(v.number, v.size))
		l.cork.Conn.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, r)
		return false
	case endsReset:
		l.write(whole[:len(whole)/2])
		l.cork.Conn.(*net.TCPConn).SetLinger(0)
		return false
	case endsGone:
		return false
	case endsLeft:
		<-time.After(v.after)
	}
	return l.finish(v, again) == nil && ends != endsClosed
}

// stallsFor is longer than the timeout of a turn that has one.
const stallsFor = 15 * time.Millisecond

// oneWrite is how much is certain to arrive at once.
const oneWrite = 30000

// finish writes the answer, and what nobody asked for.
func (l *link) finish(v *turn, again bool) error {
	whole := v.response(again)
	if !v.unasked || again {
		return l.write(whole)
	}
	if v.after == 0 && !v.closes && len(whole) < oneWrite {
		l.s.mu.Lock()
		v.together = true
		l.s.mu.Unlock()
		whole = append(whole, v.strays()...)
		l.unasked(v, func() { l.write(whole) })
		return nil
	}
	if err := l.write(whole); err != nil {
		return err
	}
	l.unasked(v, func() { l.write(v.strays()) })
	return nil
}

// response is the answer of HTTP/1.1.
func (v *turn) response(again bool) []byte {
	status, body := "200 OK", tagged(v.number, v.size)
	switch {
	case again:
	case v.ends == ends204:
		return fmt.Appendf(nil, "HTTP/1.1 204 No Content\r\nNumber: %d\r\n\r\n", v.number)
	case v.ends == ends304:
		return fmt.Appendf(nil, "HTTP/1.1 304 Not Modified\r\nNumber: %d\r\nContent-Length: %d\r\n\r\n", v.number, v.size)
	case v.ends == endsAgain:
		status = "503 Full"
	case v.ends == endsRefused:
		status = "400 No"
	case v.ends == endsUnasked:
		status = "417 No"
	}
	out := fmt.Appendf(nil, "HTTP/1.1 %s\r\nNumber: %d\r\n", status, v.number)
	if v.chunked {
		out = append(out, "Transfer-Encoding: chunked\r\n\r\n"...)
	} else {
		out = fmt.Appendf(out, "Content-Length: %d\r\n\r\n", v.size)
	}
	switch {
	case v.method == "HEAD":
		return out
	case !v.chunked:
		return append(out, body...)
	}
	for len(body) > 0 {
		n := min(len(body), 1000)
		out = fmt.Appendf(out, "%x\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	return append(out, "0\r\nT: t\r\n\r\n"...)
}
