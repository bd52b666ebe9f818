package forward

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"ebb.dev/ebb/test/eventually"
)

// largeHead is the beginning of a request whose head is larger than a small buffer.
func largeHead(bytes int) string {
	return "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("X-Filler: "+strings.Repeat("x", 1000)+"\r\n", bytes/1000)
}

// waitsForHeads waits until the server holds n connections with a large head that has not arrived
// whole.
func waitsForHeads(t *testing.T, server *Server, n int) {
	t.Helper()
	eventually.True(t, "the heads are counted", func() bool {
		server.heads.mu.Lock()
		defer server.heads.mu.Unlock()
		return server.heads.conns.Len() == n
	})
}

// Clients that send large heads and never end them have little memory together. The newest head
// gets room, because a client that has a request to make sends its head at once.
func TestHeadsThatDoNotEndHaveALimit(t *testing.T) {
	t.Parallel()
	const each = 64 << 10
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "done") })
	var server *Server
	addr, _ := proxyTo(t, backend, func(s *Server, _ *policy) { server, s.headBytes = s, 4*each })
	ended := make(chan int, 100)
	attack := func(i int) net.Conn {
		c := dialTo(t, addr)
		if i%2 == 0 {
			io.WriteString(c, largeHead(50<<10))
		} else {
			io.WriteString(c, http2.ClientPreface)
			framer := http2.NewFramer(c, nil)
			framer.WriteSettings()
			var block bytes.Buffer
			hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: "x-filler", Value: strings.Repeat("x", 10<<10)})
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes()}) // without its end
		}
		go func() {
			io.Copy(io.Discard, c)
			ended <- i
		}()
		return c
	}
	for i := range 4 {
		attack(i)
		waitsForHeads(t, server, i+1)
	}
	var left []net.Conn
	closed := map[int]bool{}
	for i := 4; i < 20; i++ {
		left = append(left, attack(i))
		closed[<-ended] = true
		server.heads.mu.Lock()
		if n := server.heads.bytes; n > 4*each {
			t.Errorf("the heads have %d bytes, want at most %d", n, 4*each)
		}
		server.heads.mu.Unlock()
	}
	// A client whose large head arrives in two pieces is served meanwhile.
	client := dialTo(t, addr)
	io.WriteString(client, largeHead(20<<10))
	closed[<-ended] = true
	// A head that arrives in pieces may close two, and they tell in any order. All are the oldest.
	for oldest := 0; oldest < len(closed); oldest++ {
		for !closed[oldest] {
			select {
			case i := <-ended:
				closed[i] = true
			case <-time.After(10 * time.Second):
				t.Fatalf("connection %d is open, and closed were %v", oldest, closed)
			}
		}
	}
	io.WriteString(client, "\r\n")
	response, err := http.ReadResponse(bufio.NewReader(client), nil)
	if err != nil || response.StatusCode != 200 {
		t.Fatalf("a large head during the attack: %v, %v", response, err)
	}
	for _, c := range left {
		c.Close()
	}
	waitsForHeads(t, server, 0)
	server.heads.mu.Lock()
	defer server.heads.mu.Unlock()
	if server.heads.bytes != 0 {
		t.Errorf("%d bytes are counted without a head", server.heads.bytes)
	}
}

// When there are as many connections as there may be, those in the middle of a head go for new
// ones.
func TestConnectionsInTheMiddleOfAHeadMakeRoom(t *testing.T) {
	t.Parallel()
	w := newCrowd(t, 4, nil)
	busy := w.client().send("/work")
	eventually.True(t, "it works", func() bool { return w.working.Load() == 1 })
	for n := range 10 {
		io.WriteString(w.client(), "GET / HTTP/1.1\r\nX-Slow: ")
		eventually.True(t, "it is in the middle of a head, and only few are", func() bool {
			w.server.mu.Lock()
			defer w.server.mu.Unlock()
			slow := 0
			for c := range w.server.conns {
				if c.shell.(*conn).sending.Load() > 0 {
					slow++
				}
			}
			return slow == min(n+1, 3)
		})
	}
	w.client().send("/").answered()
	w.end()
	busy.answered()
}
