package forward

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"ebb.dev/ebb/forward/forwardtest"
	"ebb.dev/ebb/test/eventually"
)

func TestLargeBodiesTakeConstantMemory(t *testing.T) {
	const size = 256 << 20
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(size))
		http.NewResponseController(w).EnableFullDuplex()
		io.CopyBuffer(struct{ io.Writer }{w}, r.Body, make([]byte, 32<<10))
	})
	addr, _ := proxyTo(t, backend, nil)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	req, _ := http.NewRequest("POST", "http://"+addr, io.LimitReader(zeros{}, size))
	req.ContentLength = size
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	runtime.ReadMemStats(&after)
	if n != size || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if total := after.TotalAlloc - before.TotalAlloc; total > 16<<20 {
		t.Errorf("%d bytes were allocated to move %d", total, size)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// The figure that the whole design is for.
func TestAForwardedRequestAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	backend := forwardtest.Hello(t).String()
	up := NewUpstream(backend, UpstreamOptions{})
	addr, _ := proxyTo(t, backend, func(s *Server, p *policy) {
		p.admit = func(r *Request) Decision {
			r.Timeouts = Timeouts{ResponseStart: time.Minute, Idle: time.Minute, Total: time.Minute}
			r.DelHeader("X-Gone")
			r.SetHeader("X-Set", "1")
			return Decision{Upstream: up}
		}
	})
	for name, request := range map[string]string{
		"GET":           "GET /x HTTP/1.1\r\nHost: example.test\r\nUser-Agent: bench\r\nAccept: */*\r\nX-Gone: 1\r\n\r\n",
		"POST":          "POST /x HTTP/1.1\r\nHost: example.test\r\nContent-Length: 5\r\n\r\nhello",
		"POST, chunked": "POST /x HTTP/1.1\r\nHost: example.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
	} {
		allocs := forwardtest.Allocations(t, addr, request)
		if allocs > 0 {
			t.Errorf("%s: %v allocations a request", name, allocs)
		}
	}
}

// A body over HTTP/2 comes in many frames, and none of them may cost an allocation.
func TestAForwardedFrameAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const many = 20000
	var got atomic.Int64
	backend := rawBackend(t, func(_ int, c net.Conn, _ *bufio.Reader) {
		fr := http2.NewFramer(c, nil)
		fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		fr.WriteWindowUpdate(0, 1<<20)
		b := make([]byte, 64<<10)
		for {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			got.Add(int64(n))
		}
	})
	addr, _ := proxyTo(t, backend, nil)
	r := dialH2raw(t, addr)
	var body bytes.Buffer
	fr := http2.NewFramer(&body, nil)
	for range many {
		fr.WriteData(1, false, []byte("x"))
	}
	r.headers(1, false, aPost...)
	eventually.True(t, "the upstream has the head", func() bool { return got.Load() > 0 })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r.c.Write(body.Bytes())
	eventually.True(t, "the upstream has the body", func() bool { return got.Load() >= int64(body.Len()) })
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; n > many/10 {
		t.Errorf("%d allocations for %d frames", n, many)
	}
}
