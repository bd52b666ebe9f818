package forward

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"testing"
)

// heads seeds the fuzzers with every malformation the tables know.
var heads = []string{
	"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
	"POST /a?b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
	"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: v\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
	"GET http://a:80/x HTTP/1.0\r\nConnection: keep-alive, X\r\nX: 1\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n",
	"\r\nOPTIONS * HTTP/1.1\nHost: [::1]:80\n\n",
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}

// Whatever this parser accepts, net/http must read the same way: where two parsers differ, requests
// are smuggled.
func FuzzRequestHead(f *testing.F) {
	for _, h := range heads {
		f.Add([]byte(h), uint8(3))
	}
	f.Add([]byte("GET http://a%80/x HTTP/1.0\r\n\r\n"), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, cut uint8) {
		parse := func(step int) (*head, bool, *syntaxError) {
			h := &head{}
			h.reset(true)
			for n := min(step, len(data)); ; n = min(n+step, len(data)) {
				if done, err := h.feed(data[:n]); done || err != nil || n == len(data) {
					return h, done, err
				}
			}
		}
		h, done, err := parse(len(data) + 1)
		h2, done2, err2 := parse(int(cut%16) + 1)
		if done != done2 || err != err2 || done && h.size != h2.size {
			t.Fatalf("in one piece: %v %v, in pieces: %v %v", done, err, done2, err2)
		}
		if !done || err != nil {
			return
		}
		req, rerr := http.ReadRequest(bufio.NewReader(bytes.NewReader(bytes.TrimPrefix(data[:h.size], []byte("\r\n")))))
		if rerr != nil {
			// net/http also refuses targets that url.Parse dislikes; those cannot move a message's
			// end.
			if strings.Contains(rerr.Error(), "parse ") || strings.Contains(rerr.Error(), "invalid") {
				return
			}
			t.Fatalf("accepted %q, which net/http refuses: %v", data[:h.size], rerr)
		}
		if req.Method != h.string(h.method) || req.Host != h.string(h.host) {
			t.Fatalf("%q: method %q host %q, net/http says %q %q", data[:h.size], h.string(h.method), h.string(h.host), req.Method, req.Host)
		}
		if chunked := len(req.TransferEncoding) > 0; chunked != h.chunked {
			t.Fatalf("%q: chunked %v, net/http says %v", data[:h.size], h.chunked, chunked)
		}
		if !h.chunked && max(h.length, 0) != req.ContentLength {
			t.Fatalf("%q: length %d, net/http says %d", data[:h.size], h.length, req.ContentLength)
		}
	})
}

// The scanner finds the same end and the same data as net/http's reader, however the bytes are cut.
func FuzzChunkedBody(f *testing.F) {
	for _, s := range []string{"0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\nrest", "a;q=\"x\"\r\n0123456789\r\n0\r\nT: v\r\n\r\n", "1\r\na\n0\r\n\r\n", "00\r\n\r\n"} {
		f.Add([]byte(s), uint8(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, cut uint8) {
		scan := func(step int) (n int, body []byte, done bool, err error) {
			var s chunkScanner
			for n < len(data) && !s.done() && err == nil {
				b := data[n:min(n+step, len(data))]
				for len(b) > 0 && !s.done() && err == nil {
					var k int
					var isData bool
					k, isData, err = s.step(b)
					if isData {
						body = append(body, b[:k]...)
					}
					b = b[k:]
					n += k
				}
			}
			return n, body, s.done(), err
		}
		n, body, done, err := scan(len(data) + 1)
		n2, body2, done2, err2 := scan(int(cut%16) + 1)
		if done != done2 || err != err2 || done && (n != n2 || !bytes.Equal(body, body2)) {
			t.Fatalf("in one piece: %d %q %v %v, in pieces: %d %q %v %v", n, body, done, err, n2, body2, done2, err2)
		}
		if !done {
			return
		}
		want, rerr := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(data)))
		if rerr != nil || !bytes.Equal(want, body) {
			t.Fatalf("accepted %q as %q, net/http reads %q %v", data, body, want, rerr)
		}
	})
}

// oneConn is a listener with one connection.
type oneConn struct {
	conn net.Conn
	done chan struct{}
	used bool
}

func (l *oneConn) Accept() (net.Conn, error) {
	if !l.used {
		l.used = true
		return l.conn, nil
	}
	<-l.done
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	return nil
}
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }
