package forward

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

type lapsed struct{ over, late atomic.Int64 }

func (a *lapsed) Take(n int64) error {
	if a.over.Load() > 0 {
		a.late.Add(n)
	}
	return nil
}
func (a *lapsed) Give(int64)        {}
func (a *lapsed) Borrow(int64) bool { return true }
func (a *lapsed) Return(int64)      {}

type firstPays struct {
	up *Upstream
	a  *lapsed
}

func (h *firstPays) Admit(r *Request) Decision {
	if r.Path() == "/first" {
		r.Data = h.a
		if err := r.Charge(h.a, 0); err != nil {
			panic(err)
		}
	}
	return Decision{Upstream: h.up}
}

func (h *firstPays) Done(r *Request, _ *Result) {
	if a, ok := r.Data.(*lapsed); ok {
		a.over.Add(1)
	}
}

func TestHTTP2NoAccountIsTakenFromAfterItsRequest(t *testing.T) {
	answer := make(chan bool)
	stays := make(chan bool, 1)
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/first":
			<-answer
		case "/stays":
			stays <- true
			<-r.Context().Done()
		case "/much":
			piece := bytes.Repeat([]byte("z"), 64<<10)
			for range 1 << 10 {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		}
	})
	h := &firstPays{up: NewUpstream(backend, UpstreamOptions{}), a: &lapsed{}}
	t.Cleanup(h.up.Close)
	r := dialH2raw(t, start(t, &Server{Handler: h}), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	r.fr.WriteWindowUpdate(0, 1<<30)
	ask := func(id uint32, path string) {
		r.headers(id, true, ":method", "GET", ":scheme", "http", ":path", path, ":authority", "h")
	}
	ask(1, "/first")
	ask(3, "/stays")
	<-stays
	close(answer)
	for over := false; !over; { // until the first one's end has been read
		f, err := r.fr.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if f, ok := f.(*http2.MetaHeadersFrame); ok && f.StreamID == 1 {
			over = f.StreamEnded()
		}
		if f, ok := f.(*http2.DataFrame); ok && f.StreamID == 1 {
			over = f.StreamEnded()
		}
	}
	until(t, "the first is done", func() bool { return h.a.over.Load() == 1 })
	ask(5, "/much") // which is not read: the connection stalls
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && h.a.late.Load() == 0; time.Sleep(time.Millisecond) {
	}
	if n := h.a.late.Load(); n > 0 {
		t.Errorf("%d bytes were taken from the account of a request that was over", n)
	}
	go io.Copy(io.Discard, r.c)
}
