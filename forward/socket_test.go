package forward

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// sockets returns both ends of a connection, the first as the forwarder uses it.
func sockets(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); theirs.Close() })
	return quick(nc), theirs
}

func TestASocketIsAConnection(t *testing.T) {
	t.Run("what is larger than the buffers arrives whole", func(t *testing.T) {
		ours, theirs := sockets(t)
		sent := bytes.Repeat([]byte("0123456789"), 1<<20)
		var group sync.WaitGroup
		group.Go(func() {
			if n, err := ours.Write(sent); n != len(sent) || err != nil {
				t.Errorf("wrote %d: %v", n, err)
			}
		})
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(theirs, got); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("other bytes came: %v", err)
		}
		group.Wait()
	})
	t.Run("an end of the stream is EOF, and nothing is read into nothing", func(t *testing.T) {
		ours, theirs := sockets(t)
		theirs.Close()
		if n, err := ours.Read(nil); n != 0 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if n, err := ours.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("%d, %v", n, err)
		}
	})
	t.Run("a reset is known by its number", func(t *testing.T) {
		ours, theirs := sockets(t)
		theirs.(*net.TCPConn).SetLinger(0)
		theirs.Close()
		_, err := ours.Read(make([]byte, 1))
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read: %v", err)
		}
		var of *net.OpError
		if !errors.As(err, &of) || of.Op != "read" || of.Addr.String() != theirs.LocalAddr().String() {
			t.Errorf("it does not say whose: %#v", err)
		}
		if _, err := ours.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write: %v", err)
		}
	})
	t.Run("deadlines end a read and a write that wait, and what was written is told", func(t *testing.T) {
		ours, theirs := sockets(t)
		ours.SetDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := ours.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || !isTimeout(err) {
			t.Errorf("read: %v", err)
		}
		ours.SetDeadline(time.Time{})
		b, n := make([]byte, 64<<20), 0
		ended := make(chan error)
		go func() {
			var err error
			n, err = ours.Write(b)
			ended <- err
		}()
		if _, err := io.ReadFull(theirs, make([]byte, 1)); err != nil { // it has begun
			t.Fatal(err)
		}
		ours.SetWriteDeadline(past)
		if err := <-ended; !isTimeout(err) || n == 0 || n == len(b) {
			t.Errorf("write: %d, %v", n, err)
		}
		ours.Close()
		if rest, err := io.Copy(io.Discard, theirs); rest != int64(n-1) {
			t.Errorf("%d bytes came of %d (%v)", 1+rest, n, err)
		}
	})
	t.Run("a read that waits ends when the connection is closed", func(t *testing.T) {
		ours, _ := sockets(t)
		ended := make(chan error)
		go func() {
			_, err := ours.Read(make([]byte, 1))
			ended <- err
		}()
		ours.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	t.Run("other connections stay what they are", func(t *testing.T) {
		a, b := net.Pipe()
		defer b.Close()
		if quick(a) != a || isTCP(a) {
			t.Error("a pipe became a socket")
		}
	})
}
