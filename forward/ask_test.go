package forward

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"ebb.dev/ebb/test/eventually"
)

func twoEnds(t *testing.T) (client *socket, server *net.TCPConn) {
	t.Helper()
	ours, theirs := sockets(t)
	return ours.(*socket), theirs.(*net.TCPConn)
}

func TestARequestWaitsForItsAnswerWithoutLosingIt(t *testing.T) {
	client, server := twoEnds(t)
	go func() {
		b := make([]byte, 16)
		for {
			n, err := server.Read(b)
			if err != nil {
				return
			}
			server.Write(b[:n])
		}
	}()
	client.SetReadDeadline(time.Now().Add(time.Minute))
	b := make([]byte, 16)
	for i := range 20_000 {
		request := []byte{byte(i), byte(i >> 8)}
		found, sent, n, err := client.ask(request, b)
		if found != peekQuiet || sent != 2 || err != nil || !bytes.Equal(b[:n], request) {
			t.Fatalf("round %d: found %d, sent %d, read %d of %x for %x: %v", i, found, sent, n, b[:n], request, err)
		}
	}
}

func TestNothingIsSentOnAConnectionThatIsNotSilent(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*net.TCPConn)
		found peekResult
	}{
		"unasked bytes": {func(c *net.TCPConn) { c.Write([]byte("x")) }, peekData},
		"closed":        {func(c *net.TCPConn) { c.CloseWrite() }, peekClosed},
		"reset":         {func(c *net.TCPConn) { c.SetLinger(0); c.Close() }, peekClosed},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := twoEnds(t)
			test.spoil(server)
			raw, _ := client.SyscallConn()
			eventually.True(t, "the socket is not silent", func() bool {
				found := peekQuiet
				raw.Control(func(fd uintptr) { found = peekNow(fd) })
				return found != peekQuiet
			})
			found, sent, n, err := client.ask([]byte("GET"), make([]byte, 16))
			if found != test.found || sent != 0 || n != 0 || err != nil {
				t.Errorf("found %d, sent %d, read %d: %v; want found %d and nothing else", found, sent, n, err, test.found)
			}
		})
	}
}

func TestARequestThatTheSocketTakesInPartsIsNotWaitedFor(t *testing.T) {
	client, server := twoEnds(t)
	request := bytes.Repeat([]byte("request "), 4<<20)
	found, sent, n, err := client.ask(request, make([]byte, 16))
	if found != peekQuiet || sent == 0 || sent == len(request) || n != 0 || err != nil {
		t.Fatalf("found %d, sent %d, read %d: %v; want a part to be sent", found, sent, n, err)
	}
	got := make(chan []byte, 1)
	go func() {
		all, _ := io.ReadAll(server)
		got <- all
	}()
	if _, err := client.Write(request[sent:]); err != nil {
		t.Fatal(err)
	}
	client.CloseWrite()
	if !bytes.Equal(<-got, request) {
		t.Error("the request did not arrive as it was")
	}
}

func TestADeadlineBeforeTheRequestSendsNothing(t *testing.T) {
	client, server := twoEnds(t)
	client.SetReadDeadline(past)
	if _, sent, _, err := client.ask([]byte("GET"), make([]byte, 16)); sent != 0 || !isTimeout(err) {
		t.Fatalf("sent %d: %v; want a timeout and nothing sent", sent, err)
	}
	client.SetReadDeadline(time.Time{})
	go server.Write([]byte("late"))
	client.Close()
	if b, _ := io.ReadAll(server); len(b) != 0 {
		t.Errorf("%q was sent", b)
	}
}
