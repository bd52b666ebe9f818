package forward

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"ebb.dev/ebb/test/eventually"
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

func (*firstPays) charges() bool { return true }

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
	eventually.True(t, "the first is done", func() bool { return h.a.over.Load() == 1 })
	ask(5, "/much") // which is not read: the connection stalls
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && h.a.late.Load() == 0; time.Sleep(time.Millisecond) {
	}
	if n := h.a.late.Load(); n > 0 {
		t.Errorf("%d bytes were taken from the account of a request that was over", n)
	}
	go io.Copy(io.Discard, r.c)
}

// spent is an Account that has no room any more once something was given back: what a body that was
// held gives back when it is sent is gone before it can wait at the upstream.
type spent struct {
	purse
	spends atomic.Bool
}

func (a *spent) Give(n int64) {
	a.purse.Give(n)
	a.spends.Store(true)
}

// A deferred body that is sent, because the upstream asks for it or because enough time has passed,
// and for which there is no room in the queue to the upstream, ends with 503. It must not lose its
// rest and wait for a timer.
func TestHTTP2ADeferredBodyWithoutRoomIsRejected(t *testing.T) {
	for name, asks := range map[string]bool{"the upstream asks for it": true, "it was deferred for long enough": false} {
		t.Run(name, func(t *testing.T) {
			reset := make(chan http2.ErrCode, 1)
			backend := h2rawBackend(t, []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}}, func(_ int, r *h2raw, f http2.Frame) bool {
				switch f := f.(type) {
				case *http2.MetaHeadersFrame:
					if asks {
						r.headers(f.StreamID, false, ":status", "100")
					}
				case *http2.DataFrame:
					t.Errorf("the upstream got %d bytes without a window", len(f.Data()))
				case *http2.RSTStreamFrame:
					reset <- f.ErrCode
				}
				return true
			})
			account := &spent{}
			account.full = func(int64) bool { return account.spends.Load() }
			addr, p := proxyTo(t, backend, func(_ *Server, p *policy) { p.itself = true })
			p.done = make(chan Result, 1)
			forward := p.admit
			p.admit = func(r *Request) Decision {
				if err := r.Charge(account, 0); err != nil {
					t.Error(err)
				}
				r.DeferBody(time.Hour)
				if !asks {
					r.DeferBody(100 * time.Millisecond)
				}
				r.Timeouts.Total = 20 * time.Second
				return forward(r)
			}
			r := dialH2raw(t, addr)
			r.headers(1, false, aPost...)
			r.fr.WriteData(1, false, make([]byte, 1000))
			if got := r.outcome(1); got != "503" {
				t.Errorf("the client got %s", got)
			}
			if res := <-p.done; res.Cause != UpstreamFailed || !errors.As(res.Err, &fullError{}) {
				t.Errorf("the result is %+v", res)
			}
			if code := <-reset; code != http2.ErrCodeCancel {
				t.Errorf("the upstream's stream was reset with %s", code)
			}
			if n := account.used.Load(); n != 0 {
				t.Errorf("%d bytes were not given back", n)
			}
		})
	}
}
