package forward

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"ebb.dev/ebb/test/eventually"
)

// Deadlines of many clients that come over a gateway's one connection are no flood: all others
// would lose their streams with it.
func TestResetsOfClientsThatHaveWaitedEndNoConnection(t *testing.T) {
	for name, path := range map[string]string{"no response yet": "/hang", "in the middle of the response": "/begin"} {
		t.Run(name, func(t *testing.T) {
			var seen atomic.Int64
			backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/hang":
					seen.Add(1)
					<-r.Context().Done()
				case "/begin":
					w.(http.Flusher).Flush()
					<-r.Context().Done()
				}
			})
			addr, _ := proxyTo(t, backend, nil)
			r := dialH2raw(t, addr)
			begun := make(chan uint32, 1<<16)
			ok := make(chan string, 1)
			go func() {
				for {
					f, err := r.fr.ReadFrame()
					if err != nil {
						ok <- err.Error()
						return
					}
					switch f := f.(type) {
					case *http2.MetaHeadersFrame:
						if f.StreamEnded() {
							ok <- f.PseudoValue("status")
							return
						}
						begun <- f.StreamID
					case *http2.GoAwayFrame:
						ok <- f.ErrCode.String()
						return
					}
				}
			}()
			request := []string{":method", "GET", ":scheme", "http", ":path", path, ":authority", "h"}
			const open, rounds = 100, 25
			var sent uint32
			send := func() {
				r.headers(2*sent+1, true, request...)
				sent++
			}
			for range open {
				send()
			}
			for range rounds {
				// All are there, and have been for long enough.
				if path == "/hang" {
					eventually.True(t, "the requests are there", func() bool { return seen.Load() == int64(sent) || len(ok) > 0 })
					<-time.After(h2Patience)
				} else {
					for range open {
						select {
						case <-begun:
						case got := <-ok:
							t.Fatalf("after %d resets: %s", sent-open, got)
						}
					}
				}
				for id, end := 2*(sent-open)+1, 2*sent; id < end && len(ok) == 0; id += 2 {
					r.fr.WriteRSTStream(id, http2.ErrCodeCancel)
					send()
				}
			}
			r.headers(2*sent+1, true, aGet...)
			if got := <-ok; got != "200" {
				t.Errorf("after %d resets a request got %s", rounds*open, got)
			}
		})
	}
}
