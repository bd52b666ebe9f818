package sleep

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"ebb.dev/ebb/standby"
)

const (
	helloTime = time.Second
	sendTime  = standby.WakeTime
	// maxUnproven bounds the connections whose peer has not said yet who it is.
	maxUnproven = 16
)

// Serve takes connections of the node agent until ctx ends or l is closed. One of them counts: a
// new one that proved to be the agent's is that of an agent that has lost the old one.
func (s *Sleeper) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	unproven := make(chan struct{}, maxUnproven)
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("take a connection of the node agent: %w", err)
		}
		from, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
		room := false
		if slices.Contains(s.o.Node, from.Addr().Unmap()) {
			select {
			case unproven <- struct{}{}:
				room = true
			default:
			}
		}
		if !room {
			s.refused.Add(1)
			conn.Close()
			continue
		}
		all.Go(func() {
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			lines := bufio.NewReaderSize(conn, standby.MaxLine)
			err := s.greet(conn, lines)
			<-unproven
			if err != nil {
				s.refused.Add(1)
				s.o.Log.Debug("refused a connection to the port of the node agent", "error", err)
				return
			}
			if err := s.talk(conn, lines); err != nil {
				s.o.Log.Warn("the connection of the node agent ended", "error", err)
			}
		})
	}
}

// greet makes sure that the peer is the agent: it says the UID of this pod, which it reads from the
// API server. An address alone proves nothing: networks with bridges let traffic of others come
// from the address of the node.
func (s *Sleeper) greet(conn net.Conn, lines *bufio.Reader) error {
	_ = conn.SetDeadline(time.Now().Add(helloTime))
	hello, err := read(lines)
	if err != nil {
		return fmt.Errorf("hello of the node agent: %w", err)
	}
	if hello.Verb != standby.Hello || hello.Number != standby.Version {
		return fmt.Errorf("the node agent speaks version %d of the protocol, this pod %d", hello.Number, standby.Version)
	}
	if hello.Text != s.o.PodUID {
		return errors.New("the peer does not know the UID of this pod: it is not the node agent, or one of an older Ebb")
	}
	if _, err := conn.Write(standby.Message{Verb: standby.Hello, Number: standby.Version, Text: s.o.PodUID}.Append(nil)); err != nil {
		return fmt.Errorf("hello to the node agent: %w", err)
	}
	return nil
}

// talk is one connection, from its hello to its end. It ends the one before.
func (s *Sleeper) talk(conn net.Conn, lines *bufio.Reader) error {
	_ = conn.SetDeadline(time.Time{})
	s.mu.Lock()
	if s.newest != nil {
		s.newest.Close()
	}
	s.newest = conn
	s.mu.Unlock()
	s.talking.Lock()
	defer s.talking.Unlock()
	s.mu.Lock()
	if s.newest != conn {
		s.mu.Unlock()
		return nil
	}
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
