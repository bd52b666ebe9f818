package forward

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"ebb.dev/ebb/forward/exchange"
	"ebb.dev/ebb/test/eventually"
)

// Whatever clients do on connections that they do not always read, and whenever an account has no
// room: the books balance (see start), every request ends, and nothing stays counted as stuck.
func TestHTTP2BooksBalance(t *testing.T) {
	piece := bytes.Repeat([]byte("z"), 32<<10)
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Unread") != "" {
			<-r.Context().Done()
			return
		}
		n, _ := strconv.Atoi(r.Header.Get("X-Size"))
		for ; n > 0; n-- {
			if n == 13 {
				panic(http.ErrAbortHandler)
			}
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
		io.Copy(io.Discard, r.Body)
		w.Header().Set(http.TrailerPrefix+"X-End", "yes")
	})
	for seed := range uint64(4) {
		t.Run(strconv.Itoa(int(seed)), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 9))
			var mu sync.Mutex // of random
			draw := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return random.IntN(n)
			}
			var server *Server
			addr, _ := proxyTo(t, backend, func(s *Server, p *policy) {
				server = s
				s.StallTimeout = time.Second
				if seed > 1 {
					s.MaxStuckBytes = 512 << 10
				}
				forward := p.admit
				p.admit = func(r *Request) Decision {
					switch draw(6) {
					case 0:
						r.DeferBody(time.Duration(draw(20)) * time.Millisecond)
					case 1:
						r.Timeouts.Total = time.Duration(1+draw(50)) * time.Millisecond
						r.Timeouts.Action = exchange.Action(draw(2))
					case 2:
						ctx := r.Context()
						select {
						case <-ctx.Done():
						case <-time.After(time.Duration(draw(5)) * time.Millisecond):
						}
					case 3:
						return Decision{Reply: Reply{Status: 503, Body: string(piece[:draw(1000)])}}
					}
					return forward(r)
				}
			})
			books := server.Handler.(*books)
			if seed%2 == 1 {
				books.room = func(int64) error {
					if draw(30) == 0 {
						return errNoRoom
					}
					return nil
				}
			}
			var clients sync.WaitGroup
			for range 6 {
				clients.Go(func() {
					for range 5 {
						carelessClient(t, addr, draw)
					}
				})
			}
			clients.Wait()
			eventually.True(t, "all requests are over", func() bool { return books.live.Load() == 0 })
			eventually.True(t, "nothing is stuck", func() bool { return server.stuck.bytes.Load() == 0 })
		})
	}
}

// carelessClient opens streams, sends parts of bodies, resets, reads a while or not at all, and
// leaves.
func carelessClient(t *testing.T, addr string, draw func(int) int) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	c.(*net.TCPConn).SetReadBuffer(8 << 10)
	c.SetWriteDeadline(time.Now().Add(30 * time.Second))
	r := newH2raw(t, c)
	io.WriteString(c, preface)
	window := []uint32{0, 1000, 1 << 20, 1 << 30}[draw(4)]
	if r.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}) != nil || r.fr.WriteWindowUpdate(0, 1<<30) != nil {
		return
	}
	r.headers(1, false, aPost...)
	id := uint32(3)
	for range 60 {
		old := 1 + 2*uint32(draw(int(id/2)))
		switch draw(9) {
		default:
			head := with(aPost, "x-size", strconv.Itoa(draw(20)))
			if draw(4) == 0 {
				head = append(head, "x-unread", "1")
			}
			r.headers(id, draw(2) == 0, head...)
			id += 2
		case 0, 1:
			err = r.fr.WriteData(old, draw(3) == 0, make([]byte, draw(16<<10)))
		case 2:
			err = r.fr.WriteRSTStream(old, http2.ErrCodeCancel)
		case 3:
			err = r.fr.WriteWindowUpdate(old, 1+uint32(draw(100000)))
		case 4:
			c.SetReadDeadline(time.Now().Add(time.Duration(draw(20)) * time.Millisecond))
			io.Copy(io.Discard, c)
		case 5:
			r.headers(old, true, "x-sum", "1")
		case 6:
			time.Sleep(time.Duration(draw(4)) * time.Millisecond)
		}
		if err != nil {
			return
		}
	}
}

// A timer may end a request in the moment after a write to its client failed and before the reader
// knows: what waits for the client's window is given back although nothing of it is sent any more.
func TestHTTP2ARequestThatEndsOnABrokenConnectionGivesBack(t *testing.T) {
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
		w.Write(make([]byte, 10000))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	panics := make(chan any, 1)
	var server *Server
	addr, p := proxyTo(t, backend, func(s *Server, p *policy) {
		server = s
		s.OnPanic = func(v any, _ []byte) { panics <- v }
		forward := p.admit
		p.admit = func(r *Request) Decision {
			r.Timeouts.Total = 3 * time.Second
			return forward(r)
		}
		p.done = make(chan Result, 1)
	})
	r := dialH2raw(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
	r.headers(1, true, aGet...)
	c := server.onlyH2(t)
	eventually.True(t, "bytes wait for the window", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		h := c.streams[1]
		c.broken = h != nil && h.charged > 0
		return c.broken
	})
	if res := <-p.done; res.Cause != TimedOut {
		t.Errorf("the result is %+v", res)
	}
	r.c.Close()
	<-c.closed
	select {
	case v := <-panics:
		t.Errorf("the end of the connection panics: %v", v)
	default:
	}
}

// onlyH2 waits for the Server's only connection, which is one of HTTP/2.
func (s *Server) onlyH2(t *testing.T) (c *h2conn) {
	t.Helper()
	eventually.True(t, "there is a connection of HTTP/2", func() bool {
		for _, c = range s.h2conns() {
			return true
		}
		return false
	})
	return c
}
