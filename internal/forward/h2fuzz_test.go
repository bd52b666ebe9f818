package forward

import (
	"bytes"
	"io"
	"log"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frames writes what follows the client's hello.
func frames(write func(fr *http2.Framer, block func(pairs ...string) []byte)) []byte {
	var out, b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	fr := http2.NewFramer(&out, nil)
	fr.AllowIllegalWrites = true
	fr.WriteSettings()
	write(fr, func(pairs ...string) []byte {
		b.Reset()
		for i := 0; i < len(pairs); i += 2 {
			enc.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
		}
		return bytes.Clone(b.Bytes())
	})
	return out.Bytes()
}

// Whatever frames client and upstream send, the forwarder neither panics nor hangs, and every Admit has its Done.
func FuzzWholeHTTP2Forwarder(f *testing.F) {
	get := func(fr *http2.Framer, block func(...string) []byte) {
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(aGet...), EndStream: true, EndHeaders: true})
	}
	post := func(fr *http2.Framer, block func(...string) []byte) {
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(with(aPost, "content-length", "3", "te", "trailers")...), EndHeaders: true})
		fr.WriteData(1, false, []byte("ab"))
		fr.WriteWindowUpdate(1, 10)
		fr.WriteData(1, true, []byte("c"))
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block(aPost...), EndHeaders: true})
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block("x", "y"), EndStream: true, EndHeaders: true})
		fr.WriteRSTStream(3, http2.ErrCodeCancel)
		fr.WritePing(false, [8]byte{1})
		fr.WriteGoAway(0, http2.ErrCodeNo, nil)
	}
	answer := func(fr *http2.Framer, block func(...string) []byte) {
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status", "200"), EndHeaders: true})
		fr.WriteData(1, false, []byte("hello"))
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block("grpc-status", "0"), EndStream: true, EndHeaders: true})
	}
	refuse := func(fr *http2.Framer, block func(...string) []byte) {
		fr.WriteRSTStream(1, http2.ErrCodeRefusedStream)
		fr.WriteGoAway(0, http2.ErrCodeNo, nil)
	}
	for _, request := range [][]byte{frames(get), frames(post)} {
		for _, response := range [][]byte{nil, frames(answer), frames(refuse), []byte("HTTP/1.1 400 Bad Request\r\n\r\n")} {
			f.Add(request, response)
		}
	}
	f.Fuzz(func(t *testing.T, request, response []byte) {
		dial, accept := pipes()
		defer accept.close()
		up := NewUpstream("upstream", UpstreamOptions{Dial: dial})
		defer up.Close()
		l := &ledger{admit: func(r *Request) Verdict {
			r.Timeouts.Total = 20 * time.Millisecond
			if r.Header("x") != "" {
				r.DeferBody()
			}
			return Verdict{Upstream: up}
		}}
		s := &Server{Handler: l, HeaderTimeout: 5 * time.Millisecond, FirstRequestTimeout: 20 * time.Millisecond, IdleTimeout: 5 * time.Millisecond}
		go accept.each(func(c net.Conn) {
			if response == nil { // an upstream that keeps the rules
				protocols := new(http.Protocols)
				protocols.SetUnencryptedHTTP2(true)
				server := &http.Server{Protocols: protocols, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					io.Copy(w, r.Body)
				})}
				l := &oneConn{conn: c, done: make(chan struct{})}
				go server.Serve(l)
				<-accept.stop
				server.Close()
				l.Close()
				return
			}
			go io.Copy(io.Discard, c)
			c.Write(response)
			c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		})
		client, server := net.Pipe()
		served := make(chan struct{})
		listener := &oneConn{conn: server, done: make(chan struct{})}
		go func() {
			s.Serve(listener)
			close(served)
		}()
		go func() {
			io.WriteString(client, preface)
			client.Write(request)
		}()
		client.SetReadDeadline(time.Now().Add(40 * time.Millisecond))
		io.Copy(io.Discard, client)
		client.Close()
		s.Close()
		<-served
		for end := time.Now().Add(10 * time.Second); l.admits.Load() != l.dones.Load(); {
			if time.Now().After(end) {
				t.Fatalf("%d requests were admitted, %d are done", l.admits.Load(), l.dones.Load())
			}
			<-time.After(time.Millisecond)
		}
	})
}
