package sleep

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"ebb.dev/ebb/standby"
)

const (
	helloTime = time.Second
	sendTime  = standby.WakeTime
)

// Serve takes connections of the node agent until ctx ends or l is closed. There is one at a time:
// a new one is that of an agent that has lost the old one.
func (s *Sleeper) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	stop, ended := func() {}, make(chan struct{})
	close(ended)
	defer func() { stop(); <-ended }()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("take a connection of the node agent: %w", err)
		}
		from, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
		if !slices.Contains(s.o.Node, from.Addr().Unmap()) {
			s.refused.Add(1)
			conn.Close()
			continue
		}
		stop()
		<-ended
		talking, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		stop, ended = cancel, done
		go func() {
			defer close(done)
			if err := s.talk(talking, conn); err != nil {
				s.o.Log.Warn("the connection of the node agent ended", "error", err)
			}
		}()
	}
}

// talk is one connection, from its hello to its end.
func (s *Sleeper) talk(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	lines := bufio.NewReaderSize(conn, standby.MaxLine)
	_ = conn.SetDeadline(time.Now().Add(helloTime))
	hello, err := read(lines)
	if err != nil {
		return fmt.Errorf("hello of the node agent: %w", err)
	}
	if hello.Verb != standby.Hello || hello.Number != standby.Version {
		s.refused.Add(1)
		return fmt.Errorf("the node agent speaks version %d of the protocol, this pod %d", hello.Number, standby.Version)
	}
	if _, err := conn.Write(standby.Message{Verb: standby.Hello, Number: standby.Version, Text: s.o.PodUID}.Append(nil)); err != nil {
		return fmt.Errorf("hello to the node agent: %w", err)
	}
	_ = conn.SetDeadline(time.Time{})
	s.mu.Lock()
	s.conn = conn
	s.stepLocked(standby.Event{Kind: standby.Connected})
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conn = nil
		s.stepLocked(standby.Event{Kind: standby.Disconnected})
	}()
	for {
		m, err := read(lines)
		if err != nil {
			return err
		}
		s.tell(standby.Event{Kind: standby.Received, Message: m})
	}
}

func read(lines *bufio.Reader) (standby.Message, error) {
	line, err := lines.ReadSlice('\n')
	if err != nil {
		return standby.Message{}, err
	}
	return standby.Parse(string(line[:len(line)-1]))
}

// sendLocked sends an order. One that cannot be sent ends the connection.
func (s *Sleeper) sendLocked(m standby.Message) {
	if s.conn == nil {
		return
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(sendTime))
	if _, err := s.conn.Write(m.Append(nil)); err != nil {
		s.conn.Close()
	}
}
