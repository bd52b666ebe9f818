package forward

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"ebb.dev/ebb/internal/testing/heap"
	"ebb.dev/ebb/test/eventually"
)

// h2raw is one end of an HTTP/2 connection that a test speaks by hand.
type h2raw struct {
	t     testing.TB
	c     net.Conn
	fr    *http2.Framer
	enc   *hpack.Encoder
	block bytes.Buffer
}

func newH2raw(t testing.TB, c net.Conn) *h2raw {
	r := &h2raw{t: t, c: c, fr: http2.NewFramer(c, c)}
	r.fr.AllowIllegalWrites = true
	r.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	r.enc = hpack.NewEncoder(&r.block)
	return r
}

// dialH2raw says hello to a forwarder.
func dialH2raw(t testing.TB, addr string, settings ...http2.Setting) *h2raw {
	r := newH2raw(t, dialTo(t, addr))
	io.WriteString(r.c, preface)
	r.fr.WriteSettings(settings...)
	return r
}

// fields is a header block of pairs.
func (r *h2raw) fields(pairs ...string) []byte {
	r.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		r.enc.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return bytes.Clone(r.block.Bytes())
}

func (r *h2raw) headers(id uint32, end bool, pairs ...string) {
	r.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.fields(pairs...), EndStream: end, EndHeaders: true})
}

var aGet = []string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", "h"}
var aPost = []string{":method", "POST", ":scheme", "http", ":path", "/", ":authority", "h"}

func with(pairs []string, more ...string) []string {
	return append(append([]string{}, pairs...), more...)
}

// repeat sends a frame very often.
func (r *h2raw) repeat(write func(fr *http2.Framer)) error {
	var many bytes.Buffer
	fr := http2.NewFramer(&many, nil)
	for range 5000 {
		write(fr)
	}
	for range 2000 {
		if _, err := r.c.Write(many.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// outcome reads until the peer said what it makes of the stream: a status, a reset, a GOAWAY, or
// the end.
func (r *h2raw) outcome(id uint32) string {
	for {
		f, err := r.fr.ReadFrame()
		if err != nil {
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				return "nothing"
			}
			return "closed: " + err.Error()
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if f.StreamID == id {
				return f.PseudoValue("status")
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == id {
				return "reset " + f.ErrCode.String()
			}
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeNo {
				return "goaway " + f.ErrCode.String()
			}
		}
	}
}

// The rules of RFC 9113, each broken once. What is not malformed must go on being served on the
// same connection.
func TestHTTP2RulesAreKept(t *testing.T) {
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/hang" {
			<-r.Context().Done()
		}
	})
	addr, _ := proxyTo(t, backend, func(s *Server, _ *policy) {
		s.MaxHeaderBytes = 8 << 10
		s.HeaderTimeout = 2 * time.Second
	})
	hang := []string{":method", "POST", ":scheme", "http", ":path", "/hang", ":authority", "h"}
	large := strings.Repeat("x", 5000)
	for name, test := range map[string]struct {
		send func(r *h2raw)
		want string // on stream 1
		on   bool   // the connection serves the next request
	}{
		"a request":               {func(r *h2raw) { r.headers(1, true, aGet...) }, "200", true},
		"a request by Host alone": {func(r *h2raw) { r.headers(1, true, ":method", "GET", ":scheme", "http", ":path", "/", "host", "h") }, "200", true},
		"no method":               {func(r *h2raw) { r.headers(1, true, aGet[2:]...) }, "reset PROTOCOL_ERROR", true},
		"no scheme":               {func(r *h2raw) { r.headers(1, true, with(aGet[:2], aGet[4:]...)...) }, "reset PROTOCOL_ERROR", true},
		"no path":                 {func(r *h2raw) { r.headers(1, true, with(aGet[:4], aGet[6:]...)...) }, "reset PROTOCOL_ERROR", true},
		"an empty path": {func(r *h2raw) {
			r.headers(1, true, ":method", "GET", ":scheme", "http", ":path", "", ":authority", "h")
		}, "reset PROTOCOL_ERROR", true},
		"a relative path": {func(r *h2raw) {
			r.headers(1, true, ":method", "GET", ":scheme", "http", ":path", "x", ":authority", "h")
		}, "reset PROTOCOL_ERROR", true},
		"a path with a space": {func(r *h2raw) {
			r.headers(1, true, ":method", "GET", ":scheme", "http", ":path", "/ HTTP/1.1", ":authority", "h")
		}, "reset PROTOCOL_ERROR", true},
		"a method with a space": {func(r *h2raw) {
			r.headers(1, true, ":method", "GET /x", ":scheme", "http", ":path", "/", ":authority", "h")
		}, "reset PROTOCOL_ERROR", true},
		"no authority":                {func(r *h2raw) { r.headers(1, true, aGet[:6]...) }, "400", true},
		"an authority with user info": {func(r *h2raw) { r.headers(1, true, with(aGet[:6], ":authority", "u@h")...) }, "400", true},
		"two different hosts":         {func(r *h2raw) { r.headers(1, true, with(aGet, "host", "other")...) }, "400", true},
		"CONNECT":                     {func(r *h2raw) { r.headers(1, true, ":method", "CONNECT", ":authority", "h:80") }, "405", true},
		"an extended CONNECT, which was not offered": {func(r *h2raw) {
			r.headers(1, false, ":method", "CONNECT", ":protocol", "websocket", ":scheme", "http", ":path", "/", ":authority", "h")
		}, "reset PROTOCOL_ERROR", true},
		"two methods":              {func(r *h2raw) { r.headers(1, true, with([]string{":method", "GET"}, aGet...)...) }, "reset PROTOCOL_ERROR", true},
		"an unknown pseudo-header": {func(r *h2raw) { r.headers(1, true, with([]string{":x", "y"}, aGet...)...) }, "reset PROTOCOL_ERROR", true},
		"a pseudo-header at the end": {func(r *h2raw) {
			r.headers(1, true, ":method", "GET", ":scheme", "http", ":path", "/", "x", "y", ":authority", "h")
		}, "reset PROTOCOL_ERROR", true},
		"a response's pseudo-header":    {func(r *h2raw) { r.headers(1, true, with([]string{":status", "200"}, aGet...)...) }, "reset PROTOCOL_ERROR", true},
		"a name in capitals":            {func(r *h2raw) { r.headers(1, true, with(aGet, "X-Y", "z")...) }, "reset PROTOCOL_ERROR", true},
		"a value with a line break":     {func(r *h2raw) { r.headers(1, true, with(aGet, "x", "a\r\nb: c")...) }, "reset PROTOCOL_ERROR", true},
		"Connection":                    {func(r *h2raw) { r.headers(1, true, with(aGet, "connection", "keep-alive")...) }, "reset PROTOCOL_ERROR", true},
		"Transfer-Encoding":             {func(r *h2raw) { r.headers(1, true, with(aPost, "transfer-encoding", "chunked")...) }, "reset PROTOCOL_ERROR", true},
		"TE other than trailers":        {func(r *h2raw) { r.headers(1, true, with(aGet, "te", "gzip")...) }, "reset PROTOCOL_ERROR", true},
		"a Content-Length without body": {func(r *h2raw) { r.headers(1, true, with(aPost, "content-length", "3")...) }, "reset PROTOCOL_ERROR", true},
		"two Content-Lengths":           {func(r *h2raw) { r.headers(1, false, with(aPost, "content-length", "3", "content-length", "3")...) }, "reset PROTOCOL_ERROR", true},
		"a body longer than announced": {func(r *h2raw) {
			r.headers(1, false, with(aPost, "content-length", "3")...)
			r.fr.WriteData(1, true, []byte("four"))
		}, "reset PROTOCOL_ERROR", true},
		"a body shorter than announced": {func(r *h2raw) {
			r.headers(1, false, with(aPost, "content-length", "3")...)
			r.fr.WriteData(1, true, []byte("no"))
		}, "reset PROTOCOL_ERROR", true},
		"trailers instead of a body": {func(r *h2raw) {
			r.headers(1, false, with(aPost, "content-length", "3")...)
			r.headers(1, true, "x", "y")
		}, "reset PROTOCOL_ERROR", true},
		"a Content-Length in trailers": {func(r *h2raw) {
			r.headers(1, false, aPost...)
			r.headers(1, true, "content-length", "3")
		}, "reset PROTOCOL_ERROR", true},
		"a Host in trailers": {func(r *h2raw) {
			r.headers(1, false, aPost...)
			r.headers(1, true, "host", "other")
		}, "reset PROTOCOL_ERROR", true},
		"Transfer-Encoding in trailers": {func(r *h2raw) {
			r.headers(1, false, aPost...)
			r.headers(1, true, "transfer-encoding", "chunked")
		}, "reset PROTOCOL_ERROR", true},
		"trailers": {func(r *h2raw) {
			r.headers(1, false, aPost...)
			r.headers(1, true, "x", "y")
		}, "200", true},
		"trailers that do not end": {func(r *h2raw) {
			r.headers(1, false, hang...)
			r.headers(1, false, "x", "y")
		}, "reset PROTOCOL_ERROR", true},
		"trailers with a pseudo-header": {func(r *h2raw) {
			r.headers(1, false, hang...)
			r.headers(1, true, ":path", "/")
		}, "reset PROTOCOL_ERROR", true},
		"DATA after the end": {func(r *h2raw) {
			r.headers(1, true, hang...)
			r.fr.WriteData(1, true, []byte("x"))
		}, "reset STREAM_CLOSED", true},
		"a stream that depends on itself": {func(r *h2raw) {
			r.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.fields(aGet...), EndStream: true, EndHeaders: true,
				Priority: http2.PriorityParam{StreamDep: 1, Weight: 1}})
		}, "reset PROTOCOL_ERROR", true},
		"a window that overflows": {func(r *h2raw) {
			r.headers(1, true, hang...)
			r.fr.WriteWindowUpdate(1, 1<<31-1)
		}, "reset FLOW_CONTROL_ERROR", true},
		"a window update of nothing": {func(r *h2raw) {
			r.headers(1, true, hang...)
			r.fr.WriteWindowUpdate(1, 0)
		}, "reset PROTOCOL_ERROR", true},
		"a head that is too large": {func(r *h2raw) { r.headers(1, true, with(aGet, "x", large, "y", large)...) }, "431", true},
		"more fields than are allowed": {func(r *h2raw) {
			r.headers(1, true, with(aGet, strings.Split(strings.Repeat("a,,", 300)+"a,", ",")...)...)
		}, "431", true},

		"an even stream":          {func(r *h2raw) { r.headers(2, true, aGet...) }, "goaway PROTOCOL_ERROR", false},
		"a stream that was never": {func(r *h2raw) { r.fr.WriteData(1, true, []byte("x")) }, "goaway PROTOCOL_ERROR", false},
		"a reset of no stream":    {func(r *h2raw) { r.fr.WriteRSTStream(1, http2.ErrCodeCancel) }, "goaway PROTOCOL_ERROR", false},
		"a window of no stream":   {func(r *h2raw) { r.fr.WriteWindowUpdate(1, 1) }, "goaway PROTOCOL_ERROR", false},
		"CONTINUATION of nothing": {func(r *h2raw) { r.fr.WriteContinuation(1, true, r.fields(aGet...)) }, "goaway PROTOCOL_ERROR", false},
		"a block that is no HPACK": {func(r *h2raw) {
			r.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true})
		}, "goaway COMPRESSION_ERROR", false},
		"a frame that is too large":  {func(r *h2raw) { r.headers(1, false, aPost...); r.fr.WriteData(1, true, make([]byte, 20<<10)) }, "goaway FRAME_SIZE_ERROR", false},
		"an invalid setting":         {func(r *h2raw) { r.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1}) }, "goaway PROTOCOL_ERROR", false},
		"a window setting too large": {func(r *h2raw) { r.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31}) }, "goaway FLOW_CONTROL_ERROR", false},
		"the connection's window":    {func(r *h2raw) { r.fr.WriteWindowUpdate(0, 1<<31-1) }, "goaway FLOW_CONTROL_ERROR", false},
		"a setting twice in a frame": {func(r *h2raw) {
			r.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
			r.headers(1, true, aGet...)
		}, "200", true},
		"more settings in a frame than there are": {func(r *h2raw) {
			var many []http2.Setting
			for id := range uint16(101) {
				many = append(many, http2.Setting{ID: http2.SettingID(1000 + id)})
			}
			r.fr.WriteSettings(many...)
		}, "goaway PROTOCOL_ERROR", false},
		"SETTINGS again and again": {func(r *h2raw) {
			for i := range uint32(10 * h2Settings) {
				if r.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: i}) != nil {
					return
				}
			}
		}, "goaway ENHANCE_YOUR_CALM", false},
		"as many SETTINGS as a client needs": {func(r *h2raw) {
			for range h2Settings / 2 {
				r.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
			}
			r.headers(1, true, aGet...)
		}, "200", true},
		"PUSH_PROMISE": {func(r *h2raw) {
			r.fr.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: r.fields(aGet...), EndHeaders: true})
		}, "goaway PROTOCOL_ERROR", false},
		"a stream opened a second time": {func(r *h2raw) {
			r.headers(1, true, aGet...)
			r.outcome(1)
			r.fr.WritePing(false, [8]byte{}) // its answer comes after the response's end
			for f, err := r.fr.ReadFrame(); err == nil; f, err = r.fr.ReadFrame() {
				if _, ok := f.(*http2.PingFrame); ok {
					break
				}
			}
			r.headers(1, true, aGet...)
		}, "goaway STREAM_CLOSED", false},
		"half a header block": {func(r *h2raw) {
			r.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.fields(aGet...), EndStream: true})
		}, "goaway ENHANCE_YOUR_CALM", false},
		"an endless header block": {func(r *h2raw) {
			r.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.fields(with(aGet, "x", large, "y", large)...)})
			go func() {
				for range 10000 {
					if r.fr.WriteContinuation(1, false, []byte{0x88}) != nil {
						return
					}
				}
			}()
		}, "goaway PROTOCOL_ERROR", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := dialH2raw(t, addr)
			test.send(r)
			if got := r.outcome(1); got != test.want && !(strings.HasPrefix(got, "closed") && strings.HasPrefix(test.want, "goaway") && name == "an endless header block") {
				t.Fatalf("got %q, want %q", got, test.want)
			}
			if test.on {
				r.headers(3, true, aGet...)
				if got := r.outcome(3); got != "200" {
					t.Errorf("the next request got %q", got)
				}
				return
			}
			var ne net.Error
			if _, err := io.Copy(io.Discard, r.c); errors.As(err, &ne) && ne.Timeout() {
				t.Error("the connection stays open")
			}
		})
	}
}

// Floods end the connection that they come on, and cost the others nothing.
func TestHTTP2FloodsAreBounded(t *testing.T) {
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ok" {
			<-r.Context().Done()
		}
	})
	for name, flood := range map[string]func(r *h2raw) error{
		"streams opened and reset": func(r *h2raw) error {
			for id := uint32(1); id < 1<<20; id += 2 {
				r.headers(id, true, aGet...)
				if err := r.fr.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
					return err
				}
			}
			return nil
		},
		"streams made to be reset": func(r *h2raw) error {
			for id := uint32(1); id < 1<<20; id += 2 {
				r.headers(id, false, with(aPost, "content-length", "1")...)
				if err := r.fr.WriteData(id, true, nil); err != nil {
					return err
				}
			}
			return nil
		},
		"PING without reading":     func(r *h2raw) error { return r.repeat(func(fr *http2.Framer) { fr.WritePing(false, [8]byte{}) }) },
		"SETTINGS without reading": func(r *h2raw) error { return r.repeat(func(fr *http2.Framer) { fr.WriteSettings() }) },
		"empty header blocks that go on": func(r *h2raw) error {
			r.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.fields(aGet...), EndStream: true})
			for {
				if err := r.fr.WriteContinuation(1, false, nil); err != nil {
					return err
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var server *Server
			addr, _ := proxyTo(t, backend, func(s *Server, p *policy) {
				server = s
				s.HeaderTimeout = time.Second
			})
			r := dialH2raw(t, addr)
			r.c.(*net.TCPConn).SetReadBuffer(4 << 10)
			if !strings.Contains(name, "without reading") {
				go io.Copy(io.Discard, r.c)
			}
			if err := flood(r); err == nil {
				t.Fatal("the flood was not stopped")
			}
			eventually.True(t, "the connection is gone", func() bool {
				server.mu.Lock()
				defer server.mu.Unlock()
				return len(server.conns) == 0
			})
			resp, err := h2cClient(t).Get("http://" + addr + "/ok")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != 200 {
				t.Errorf("another client got %d", resp.StatusCode)
			}
		})
	}
}

// A client may open many streams at a time and no more; what is refused may be sent again.
func TestHTTP2StreamsOfAConnectionAreBounded(t *testing.T) {
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	addr, _ := proxyTo(t, backend, nil)
	r := dialH2raw(t, addr)
	for i := range uint32(h2MaxStreams + 1) {
		r.headers(1+2*i, true, aGet...)
	}
	if got := r.outcome(1 + 2*h2MaxStreams); got != "reset REFUSED_STREAM" {
		t.Errorf("the stream beyond got %q", got)
	}
}

// A client with the smallest windows gets the whole response, and one that pauses gets it when it
// goes on.
func TestHTTP2SmallWindows(t *testing.T) {
	const size = 3000
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, strings.Repeat("w", size))
		w.Header().Set(http.TrailerPrefix+"X-End", "yes")
	})
	addr, _ := proxyTo(t, backend, nil)
	r := dialH2raw(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	r.headers(1, true, aGet...)
	got, trailer := 0, ""
	for trailer == "" {
		f, err := r.fr.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if f.PseudoValue("status") == "200" {
				r.fr.WriteWindowUpdate(1, 7)
			} else if f.StreamEnded() {
				trailer = fmt.Sprint(f.RegularFields())
			}
		case *http2.DataFrame:
			if len(f.Data()) > 7 {
				t.Fatalf("%d bytes in a window of 7", len(f.Data()))
			}
			got += len(f.Data())
			r.fr.WriteWindowUpdate(1, 7)
		}
	}
	if got != size || !strings.Contains(trailer, "x-end") {
		t.Errorf("%d bytes, trailer %s", got, trailer)
	}
}

// A client that opens no window leaves the answers made here, and what they answered, in memory.
// Heads are freed with the answer, and the streams are reset after a while.
func TestAnswersThatAClientDoesNotTakeKeepNoHeadsAndEnd(t *testing.T) {
	for name, want := range map[string]string{"the Handler's": "503", "to a head that it does not see": "400"} {
		t.Run(name, func(t *testing.T) {
			var server *Server
			addr := start(t, func() *Server {
				server = &Server{HeaderTimeout: time.Minute, StallTimeout: 3 * time.Second, Handler: &policy{admit: func(*Request) Decision {
					return Decision{Reply: Reply{Status: 503, Body: "no"}}
				}}}
				return server
			}())
			r := dialH2raw(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			answered, reset := make(chan string, h2MaxStreams), make(chan http2.ErrCode, h2MaxStreams)
			go func() {
				defer close(answered)
				for {
					f, err := r.fr.ReadFrame()
					if err != nil {
						return
					}
					switch f := f.(type) {
					case *http2.MetaHeadersFrame:
						answered <- f.PseudoValue("status")
					case *http2.RSTStreamFrame:
						reset <- f.ErrCode
					}
				}
			}()
			before := heap.Live()
			head := with(aGet, "x", strings.Repeat("x", 30<<10))
			if want == "400" {
				head = with(head, "host", "other")
			}
			const open = 500
			for i := range uint32(open) {
				block := r.fields(head...)
				r.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1 + 2*i, BlockFragment: block[:16<<10], EndStream: true})
				r.fr.WriteContinuation(1+2*i, true, block[16<<10:])
			}
			for range open {
				if got := <-answered; got != want {
					t.Fatalf("a stream got %q", got)
				}
			}
			if kept := heap.Live() - before; kept > 6<<20 {
				t.Errorf("%d answers keep %d KiB of %d KiB of heads", open, kept>>10, open*30)
			}
			for range open {
				select {
				case code := <-reset:
					if code != http2.ErrCodeCancel {
						t.Fatalf("a stream was reset with %s", code)
					}
				case <-t.Context().Done():
					t.Fatal("the streams stay open")
				}
			}
			server.mu.Lock()
			defer server.mu.Unlock()
			for c := range server.conns {
				h2 := c.shell.(*h2server).c
				h2.mu.Lock()
				if len(h2.streams) != 0 {
					t.Errorf("%d streams are left", len(h2.streams))
				}
				h2.mu.Unlock()
			}
		})
	}
}
