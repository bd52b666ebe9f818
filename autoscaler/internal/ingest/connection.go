package ingest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"ebb.dev/ebb/wire"
)

// take returns the kept connection to a pod, nil if there is none.
func (s *Scraper) take(ip string) *connection {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	c := s.idle[ip]
	if c != nil {
		s.idle[ip] = nil // keep the entry, so that the map does not grow and shrink all the time
		s.kept--
	}
	return c
}

// give keeps a connection for the next scrape, and closes those that have been idle for too long.
func (s *Scraper) give(c *connection) {
	c.used = time.Now()
	c.rest()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if other := s.idle[c.ip]; other != nil {
		other.Close()
	} else if s.kept >= s.keep {
		c.Close()
		return
	} else {
		s.kept++
	}
	s.idle[c.ip] = c
	if c.used.Sub(s.swept) > idleConnection {
		s.swept = c.used
		for ip, other := range s.idle {
			switch {
			case other == nil:
				delete(s.idle, ip) // in use, or its pod is gone
			case c.used.Sub(other.used) > idleConnection:
				other.Close()
				delete(s.idle, ip)
				s.kept--
			}
		}
	}
}

// Close closes the kept connections.
func (s *Scraper) Close() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for ip, c := range s.idle {
		if c != nil {
			c.Close()
		}
		delete(s.idle, ip)
	}
	s.kept = 0
}

// connection is a connection to a pod's port for stats with at most one request under way.
//
// At rest it is a bare descriptor, which gather writes and reads without blocking. The runtime's
// poller, which every net.Conn uses, would wake a thread for each answer although no goroutine
// waits for it. Once a goroutine waits, it is a net.Conn.
type connection struct {
	net.Conn
	resting    bool
	descriptor int
	ip         string
	request    []byte
	used       time.Time
	mesh       bool // the request is for Scraper.Mesh
}

// target is how a request begins, without a query.
const target = "GET " + wire.PathMetrics

func newConnection(raw net.Conn, ip, host string) *connection {
	return &connection{Conn: raw, ip: ip, request: []byte(target + " HTTP/1.1\r\nHost: " + host +
		"\r\nAccept: application/protobuf\r\nUser-Agent: Ebb-Autoscaler\r\n\r\n")}
}

// rest takes the connection away from the poller, if it is a real socket.
func (c *connection) rest() {
	system, ok := c.Conn.(syscall.Conn)
	if c.resting || !ok {
		return
	}
	raw, err := system.SyscallConn()
	if err != nil {
		return
	}
	var own int
	if raw.Control(func(descriptor uintptr) { own, err = syscall.Dup(int(descriptor)) }) != nil || err != nil {
		return
	}
	syscall.CloseOnExec(own)
	c.Conn.Close() // of the two descriptors
	c.Conn, c.descriptor, c.resting = nil, own, true
}

// wake gives the connection back to the poller.
func (c *connection) wake() error {
	if !c.resting {
		return nil
	}
	c.resting = false
	file := os.NewFile(uintptr(c.descriptor), "")
	defer file.Close() // FileConn has its own
	conn, err := net.FileConn(file)
	if err != nil {
		return fmt.Errorf("wait for pod at %s: %w", c.ip, err)
	}
	c.Conn = conn
	return nil
}

// Close closes the connection in either state.
func (c *connection) Close() error {
	switch {
	case c.resting:
		c.resting = false
		return syscall.Close(c.descriptor)
	case c.Conn == nil:
		return nil
	}
	return c.Conn.Close()
}

// wait gives the connection back to the poller and sets a deadline.
func (c *connection) wait(deadline time.Time) error {
	if err := c.wake(); err != nil {
		return err
	}
	return c.SetDeadline(deadline)
}

func (c *connection) send(deadline time.Time, judged bool) error {
	if err := c.wait(deadline); err != nil {
		return err
	}
	request := c.request
	if judged {
		request = slices.Concat([]byte(target), []byte("?"+wire.QueryJudged), request[len(target):len(request)-len("\r\n")],
			[]byte(wire.HeaderSenders+": true\r\n\r\n"))
	}
	_, err := c.Write(request)
	return err
}

// sendNow sends the request on a connection at rest, with one system call.
func (c *connection) sendNow() error {
	n, err := syscall.Write(c.descriptor, c.request)
	if err == nil && n < len(c.request) {
		return io.ErrShortWrite // the pod has not read earlier requests
	}
	return err
}

// readNow reads what has arrived on a connection at rest into space, with one system call.
func (c *connection) readNow(space []byte) (int, error) {
	n, err := syscall.Read(c.descriptor, space)
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EINTR):
		return 0, nil
	case err == nil && n == 0 && len(space) > 0:
		return 0, io.EOF
	}
	return max(n, 0), err
}

// maxAnswer bounds head and body of an answer.
const maxAnswer = 2048

// receive reads an answer. Its first n bytes are in space already.
func (c *connection) receive(space *[maxAnswer]byte, n int, pod string) (wire.Stat, error) {
	for {
		k, err := c.Read(space[n:])
		n += k
		stat, whole, bad := read(space[:n], pod)
		switch {
		case whole || bad != nil:
			return stat, bad
		case err != nil:
			return wire.Stat{}, err
		}
	}
}

// read decodes the stat of an answer once it is complete. A stat of the given pod shares its name.
func read(data []byte, pod string) (stat wire.Stat, whole bool, err error) {
	body, whole, err := answerOf(data)
	switch {
	case err != nil:
	case whole:
		stat, err = wire.DecodeStat(pod, body)
	case len(data) == maxAnswer:
		err = fmt.Errorf("answer is longer than %d bytes", maxAnswer)
	}
	return stat, whole, err
}
