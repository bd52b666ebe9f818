package chain

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/test/eventually"
)

// The bound in bytes looks at what a request takes: of large heads fewer may wait than of small
// ones, and as many again once they have left.
func TestLargeHeadsMeetTheBoundInBytes(t *testing.T) {
	const bound = 400 << 10
	for _, c := range []struct {
		name        string
		large       int
		least, most int // that may wait
	}{
		{"small heads", 0, 10, 30},
		{"heads of 60 KiB", 60 << 10, 3, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			release := make(chan struct{})
			user := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				select {
				case <-release:
				case <-r.Context().Done():
				}
			}))
			defer user.Close()
			upstream := forward.NewUpstream(user.Listener.Addr().String(), forward.UpstreamOptions{})
			gate := NewGate(GateOptions{Slots: 1, MaxWaiting: 1000, MaxBytes: bound, Pod: "pod", Now: time.Now(), Offer: func(string) {}})
			server := &forward.Server{Handler: &Chain{Gate: gate, User: upstream, Draining: func() bool { return false }, Arrive: func() bool { return true }}}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go server.Serve(listener)
			defer server.Close()
			request := "GET / HTTP/1.1\r\nHost: h\r\nX-Large: " + strings.Repeat("x", c.large) + "\r\n\r\n"
			const many = 40
			var refused atomic.Int64
			statuses := make(chan int, many)
			for range many {
				conn, err := net.Dial("tcp", listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				go func() {
					if _, err := io.WriteString(conn, request); err != nil {
						statuses <- 0
						return
					}
					response, err := http.ReadResponse(bufio.NewReader(conn), nil)
					if err != nil {
						statuses <- 0
						return
					}
					if response.StatusCode == 503 {
						refused.Add(1)
					}
					statuses <- response.StatusCode
				}()
			}
			eventually.True(t, "all requests wait, run or are refused", func() bool { return int(refused.Load())+gate.Inside() == many })
			close(release)
			count := map[int]int{}
			for range many {
				count[<-statuses]++
			}
			if waited := count[200] - 1; waited < c.least || waited > c.most || count[200]+count[503] != many {
				t.Errorf("%d requests waited, want %d to %d; the statuses are %v", waited, c.least, c.most, count)
			}
			if bytes := gate.heldBytes(); bytes != 0 || gate.Waiting() != 0 {
				t.Errorf("%d bytes of %d requests are left", bytes, gate.Waiting())
			}
		})
	}
}

func (g *Gate) heldBytes() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limit.Bytes()
}
