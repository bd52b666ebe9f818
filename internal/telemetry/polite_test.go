package telemetry

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/test/eventually"
)

// bounded serves over a Bound listener of one connection.
func bounded(t *testing.T, handler http.HandlerFunc) net.Addr {
	t.Helper()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{MaxHeaderBytes: maxHead, Handler: handler}
	go server.Serve(Bound(plain, 1, 1))
	t.Cleanup(func() { server.Close() })
	return plain.Addr()
}

// What a client sends that is refused is not read to its end. Without care the connection is reset
// then, and whether the client sees the answer is a matter of time.
func TestAClientSeesWhyItIsRefused(t *testing.T) {
	large := strings.Repeat("x", 64<<10)
	for what, sent := range map[string]string{
		"431": "GET / HTTP/1.1\r\nHost: x\r\nX: " + large + "\r\n\r\n",
		"503": "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 65536\r\n\r\n" + large,
		"501": "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n" + large,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			at := bounded(t, func(w http.ResponseWriter, _ *http.Request) {
				_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // answer without the body
				http.Error(w, "why", http.StatusServiceUnavailable)
			})
			conn, err := net.Dial("tcp", at.String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, sent); err != nil {
				t.Fatal(err)
			}
			if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 "+what) {
				t.Errorf("%.80q, %v", answer, err)
			}
		})
	}
}

func TestAClosedConnectionIsReadNoLongerThanItMayBe(t *testing.T) {
	for what, behave := range map[string]func(net.Conn){
		"it sends without end": func(c net.Conn) {
			for sent := 0; ; sent += 64 << 10 {
				if _, err := c.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		},
		"it sends nothing and stays": func(net.Conn) {},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			at := bounded(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") })
			held, err := get(t, "127.0.0.1", at)
			if err != nil {
				t.Fatal(err)
			}
			behave(held)
			for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
				if _, err := get(t, "127.0.0.1", at); err == nil {
					break // its place
				}
				if time.Since(began) > 10*lingers {
					t.Fatalf("it still has its place after %v", time.Since(began))
				}
			}
		})
	}
}

// counted counts what is read of a connection.
type counted struct {
	*net.TCPConn
	read *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// Politeness to those who are refused and send on is paid by all others of the process, so it has a
// bound for all connections together.
func TestRefusedClientsThatSendOnCostNoMoreForBeingMany(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var all sync.WaitGroup
	defer all.Wait()
	var read, ended atomic.Int64
	const clients = 100
	began := time.Now()
	for range clients {
		client, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer client.Close()
			for p := make([]byte, 64<<10); ; {
				if _, err := client.Write(p); err != nil {
					return
				}
			}
		})
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		Polite(counted{conn.(*net.TCPConn), &read}, func() { ended.Add(1) }).Close()
	}
	eventually.True(t, "all connections end", func() bool { return ended.Load() == clients })
	// On a busy machine rate.Limiter grants some time twice: it takes the time before its lock, and
	// goes back to an older one. Without a bound it would be a hundred times as much.
	most := 10 * (float64(politeness.Burst()+clients*atOnce) + float64(politeness.Limit())*time.Since(began).Seconds())
	if n := read.Load(); float64(n) > most || n < int64(politeness.Burst())/2 {
		t.Errorf("%d bytes were read in %v, not %.0f at most", n, time.Since(began), most)
	}
}
