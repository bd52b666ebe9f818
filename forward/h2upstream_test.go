package forward

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"ebb.dev/ebb/test/eventually"
)

// h2rawBackend serves HTTP/2 by hand: script gets each request's head on each connection, after the
// hellos.
func h2rawBackend(t testing.TB, settings []http2.Setting, script func(conn int, r *h2raw, f http2.Frame) bool) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for i := 0; ; i++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				hello := make([]byte, len(preface))
				if _, err := io.ReadFull(c, hello); err != nil || string(hello) != preface {
					return
				}
				r := newH2raw(t, c)
				r.fr.WriteSettings(settings...)
				for {
					f, err := r.fr.ReadFrame()
					if err != nil {
						return
					}
					if s, ok := f.(*http2.SettingsFrame); ok {
						if !s.IsAck() {
							r.fr.WriteSettingsAck()
						}
						continue
					}
					if !script(i, r, f) {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// What an upstream does wrong, or asks for, and what the client gets.
func TestHTTP2Upstreams(t *testing.T) {
	ok := func(r *h2raw, id uint32) { r.headers(id, true, ":status", "200", "x-from", "upstream") }
	for name, test := range map[string]struct {
		settings []http2.Setting
		script   func(seen int, conn int, r *h2raw, id uint32) bool // on a request that is here whole; false closes
		want     string
		retried  bool
	}{
		"trailers only": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.headers(id, true, ":status", "200", "grpc-status", "5", "x-from", "upstream")
			return true
		}, want: "200 "},
		"an interim response": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.headers(id, false, ":status", "103", "link", "x")
			ok(r, id)
			return true
		}, want: "200 "},
		"REFUSED_STREAM at first": {script: func(seen, _ int, r *h2raw, id uint32) bool {
			if seen == 1 {
				r.fr.WriteRSTStream(id, http2.ErrCodeRefusedStream)
			} else {
				ok(r, id)
			}
			return true
		}, want: "200 ", retried: true},
		"GOAWAY before the request was looked at": {script: func(_, conn int, r *h2raw, id uint32) bool {
			if conn == 0 {
				r.fr.WriteGoAway(0, http2.ErrCodeNo, nil)
			} else {
				ok(r, id)
			}
			return true
		}, want: "200 ", retried: true},
		"GOAWAY that lets the request finish": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.fr.WriteGoAway(id, http2.ErrCodeNo, nil)
			ok(r, id)
			return true
		}, want: "200 "},
		"REFUSED_STREAM for ever": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.fr.WriteRSTStream(id, http2.ErrCodeRefusedStream)
			return true
		}, want: "502 reset the request (REFUSED_STREAM)", retried: true},
		"a reset": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.fr.WriteRSTStream(id, http2.ErrCodeInternal)
			return true
		}, want: "502 reset the request (INTERNAL_ERROR)"},
		"a cancellation, as when a server of gRPC hits the deadline first": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.fr.WriteRSTStream(id, http2.ErrCodeCancel)
			return true
		}, want: "cut stream error: stream ID 1; CANCEL"},
		"the end of the connection": {script: func(_, _ int, r *h2raw, id uint32) bool { return false }, want: "502 the connection"},
		"no status": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.headers(id, true, "x", "y")
			return true
		}, want: "502 malformed"},
		"101": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.headers(id, false, ":status", "101")
			return true
		}, want: "502 malformed response head"},
		"an interim response that ends": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.headers(id, true, ":status", "103")
			return true
		}, want: "502 malformed response head"},
		"a body before the head": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.fr.WriteData(id, true, []byte("x"))
			return true
		}, want: "502 malformed frame"},
		"a head that is too large": {script: func(_, _ int, r *h2raw, id uint32) bool {
			block := r.fields(":status", "200", "a", strings.Repeat("x", 15000), "b", strings.Repeat("x", 60000))
			r.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:16000], EndStream: true})
			for block = block[16000:]; len(block) > 0; {
				n := min(16000, len(block))
				r.fr.WriteContinuation(id, n == len(block), block[:n])
				block = block[n:]
			}
			return true
		}, want: "502 "},
		"a Content-Length that is none": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.headers(id, false, ":status", "200", "content-length", "x")
			return true
		}, want: "502 malformed Content-Length"},
		"less than its Content-Length": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.headers(id, true, ":status", "200", "content-length", "5")
			return true
		}, want: "502 before its Content-Length"},
		"less than its Content-Length, later": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.headers(id, false, ":status", "200", "content-length", "5")
			r.fr.WriteData(id, true, []byte("abc"))
			return true
		}, want: "cut"},
		"a reset in the middle": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.headers(id, false, ":status", "200")
			r.fr.WriteData(id, false, []byte("abc"))
			r.fr.WriteRSTStream(id, http2.ErrCodeCancel)
			return true
		}, want: "cut"},
		"connection-specific fields": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.headers(id, true, ":status", "200", "connection", "x-secret", "keep-alive", "1", "x-from", "upstream")
			return true
		}, want: "200 "},
		"a push": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.fr.WritePushPromise(http2.PushPromiseParam{StreamID: id, PromiseID: 2, BlockFragment: r.fields(aGet...), EndHeaders: true})
			return true
		}, want: "502 broke the rules of HTTP/2"},
		"DATA of a stream that nobody opened": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.fr.WriteData(id+10, true, []byte("x"))
			return true
		}, want: "502 broke the rules of HTTP/2"},
		"more than the window": {script: func(_, _ int, r *h2raw, id uint32) bool {
			r.headers(id, false, ":status", "200", "content-length", "1000000000")
			for range h2Windows.conn/(16<<10) + 1 {
				if r.fr.WriteData(id, false, make([]byte, 16<<10)) != nil {
					return false
				}
			}
			return true
		}, want: "cut"},
	} {
		t.Run(name, func(t *testing.T) {
			var seen atomic.Int64
			body := map[uint32]string{}
			backend := h2rawBackend(t, test.settings, func(conn int, r *h2raw, f http2.Frame) bool {
				switch f := f.(type) {
				case *http2.DataFrame:
					body[f.StreamID] += string(f.Data())
					if f.StreamEnded() {
						if body[f.StreamID] != "the body" {
							t.Errorf("the upstream got %q", body[f.StreamID])
						}
						delete(body, f.StreamID)
						return test.script(int(seen.Add(1)), conn, r, f.StreamID)
					}
				}
				return true
			})
			addr, p := proxyTo(t, backend, func(s *Server, p *policy) { p.done = make(chan Result, 4) })
			resp, err := h2cClient(t).Post("http://"+addr, "text/plain", strings.NewReader("the body"))
			got := "cut " + fmt.Sprint(err)
			if err == nil {
				var text []byte
				text, err = io.ReadAll(resp.Body)
				resp.Body.Close()
				if got = "cut"; err == nil {
					got = fmt.Sprint(resp.StatusCode, " ", string(text))
				}
				if err == nil && resp.StatusCode == 200 && (resp.Header.Get("X-From") != "upstream" && name != "an interim response" || resp.Header.Get("Connection") != "") {
					t.Errorf("header %v", resp.Header)
				}
			}
			wantStatus, reason, _ := strings.Cut(test.want, " ")
			if !strings.HasPrefix(got, wantStatus) || !strings.Contains(got, reason) {
				t.Errorf("got %q (%v), want %q", got, err, test.want)
			}
			if res := <-p.done; res.Retried != test.retried {
				t.Errorf("retried: %v, result %+v", res.Retried, res)
			}
		})
	}
}

// An upstream that does not speak HTTP/2 is named as such.
func TestHTTP2ToAnHTTP1Upstream(t *testing.T) {
	backend := httpBackend(t, func(w http.ResponseWriter, r *http.Request) {})
	addr, _ := proxyTo(t, backend, nil)
	resp, err := h2cClient(t).Get("http://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 502 || !strings.Contains(string(body), "does not speak HTTP/2") {
		t.Errorf("got %d %q", resp.StatusCode, body)
	}
}

// An upstream's MAX_CONCURRENT_STREAMS is kept; more requests get more connections.
func TestHTTP2UpstreamsLimitOfStreams(t *testing.T) {
	var most, now, conns atomic.Int64
	release := make(chan bool)
	backend := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		p := new(http.Protocols)
		p.SetUnencryptedHTTP2(true)
		s := &http.Server{Protocols: p, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 2},
			ConnState: func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					conns.Add(1)
				}
			},
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/wait" {
					if n := now.Add(1); n > most.Load() {
						most.Store(n)
					}
					<-release
				}
			})}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
		return l.Addr().String()
	}()
	addr, _ := proxyTo(t, backend, nil)
	c := h2cClient(t)
	get := func(path string) error {
		resp, err := c.Get("http://" + addr + path)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != 200 {
			text, _ := io.ReadAll(resp.Body)
			return fmt.Errorf("%d %s", resp.StatusCode, text)
		}
		return nil
	}
	if err := get("/"); err != nil { // after this the limit is known
		t.Fatal(err)
	}
	const many = 40
	results := make(chan error, many)
	for range many {
		go func() { results <- get("/wait") }()
	}
	eventually.True(t, "all are there at the same time", func() bool { return now.Load() == many })
	close(release)
	for range many {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if n := conns.Load(); n < many/2 {
		t.Errorf("%d connections for %d streams, 2 each", n, many)
	}
}

// A stream's bytes go on at once, both ways: each message exists only after the one before was read
// at the other end.
func TestHTTP2StreamsBothWaysAtOnce(t *testing.T) {
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		rc.Flush()
		buf := make([]byte, 100)
		for {
			n, err := r.Body.Read(buf)
			w.Write(bytes.ToUpper(buf[:n]))
			rc.Flush()
			if err != nil {
				w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
				return
			}
		}
	})
	addr, _ := proxyTo(t, backend, nil)
	pr, pw := io.Pipe()
	req, _ := http.NewRequest("POST", "http://"+addr, pr)
	resp, err := h2cClient(t).Do(req) // the head comes before anything was sent
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, 4)
	for i := range 50 {
		fmt.Fprintf(pw, "m%03d", i)
		if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != fmt.Sprintf("M%03d", i) {
			t.Fatalf("got %q %v", buf, err)
		}
	}
	pw.Close()
	rest, err := io.ReadAll(resp.Body)
	if err != nil || len(rest) > 0 || resp.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("at the end %q %v %v", rest, err, resp.Trailer)
	}
}
