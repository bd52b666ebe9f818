package forward

import (
	"bytes"
	"context"
	"hash/crc32"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
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

// Whatever frames client and upstream send: each is sent frames that its peer has to accept, every
// Admit has its Done, everything ends, and nothing is left behind.
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
	old := func(fr *http2.Framer, block func(...string) []byte) { // says what only HTTP/1.1 may say
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":status", "200", "connection", "close", "x", "y"), EndHeaders: true})
		fr.WriteData(1, true, []byte("hello"))
		fr.WriteData(1, true, []byte("again"))
	}
	for _, request := range [][]byte{frames(get), frames(post)} {
		for _, response := range [][]byte{nil, frames(answer), frames(refuse), frames(old), []byte("HTTP/1.1 400 Bad Request\r\n\r\n")} {
			f.Add(request, response)
		}
	}
	f.Fuzz(func(t *testing.T, request, response []byte) {
		synctest.Test(t, func(t *testing.T) { relayFrames(t, request, response) })
	})
}

// relayFrames plays one connection in virtual time.
func relayFrames(t *testing.T, request, response []byte) {
	var all sync.WaitGroup
	var mu sync.Mutex
	var upstream []*bytes.Buffer // what each connection to the upstream was sent
	stop := make(chan struct{})
	up := NewUpstream("upstream", UpstreamOptions{Dial: func(context.Context, string) (net.Conn, error) {
		near, far := net.Pipe()
		all.Go(func() {
			defer far.Close()
			if len(response) == 0 { // an upstream that keeps the rules
				protocols := new(http.Protocols)
				protocols.SetUnencryptedHTTP2(true)
				server := &http.Server{Protocols: protocols, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					io.Copy(w, r.Body)
				})}
				l := &oneConn{conn: far, done: make(chan struct{})}
				all.Go(func() { server.Serve(l) })
				<-stop
				server.Close()
				return
			}
			all.Go(func() { far.Write(response) })
			sent := &bytes.Buffer{}
			mu.Lock()
			upstream = append(upstream, sent)
			mu.Unlock()
			io.Copy(sent, far)
		})
		return near, nil
	}})
	l := &ledger{admit: func(r *Request) Decision {
		r.Timeouts.Total = 20 * time.Second
		if r.Header("x") != "" {
			r.DeferBody(time.Second)
		}
		return Decision{Upstream: up}
	}}
	s := &Server{Handler: l}
	books := keepBooks(s)
	books.room = roomOf(request, response)
	client, server := net.Pipe()
	c := newConn(s, server, nil)
	s.track(&c.clientConn)
	all.Go(c.serve)
	all.Go(func() {
		io.WriteString(client, preface)
		client.Write(request)
		time.Sleep(time.Minute) // longer than any request may take
		client.Close()
	})
	got, _ := io.ReadAll(client)
	client.Close()
	s.Close()
	up.Close()
	close(stop)
	all.Wait()
	synctest.Wait()
	books.check(t)
	if l.admits.Load() != l.dones.Load() || l.twice.Load() > 0 {
		t.Fatalf("%d requests were admitted, %d are done", l.admits.Load(), l.dones.Load())
	}
	checkFrames(t, "client", got, false)
	for _, b := range upstream {
		if rest, ok := bytes.CutPrefix(b.Bytes(), []byte(preface)); ok {
			checkFrames(t, "upstream", rest, true)
		} else if b.Len() >= len(preface) {
			t.Fatalf("the upstream was sent %q first", b.Bytes()[:len(preface)])
		}
	}
}

// roomOf returns the room that accounts have: for some inputs it ends after some bytes.
func roomOf(request, response []byte) func(n int64) error {
	seed := crc32.ChecksumIEEE(request) ^ crc32.ChecksumIEEE(response)
	if seed%2 == 0 {
		return nil
	}
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	var mu sync.Mutex
	return func(n int64) error {
		mu.Lock()
		defer mu.Unlock()
		if random.IntN(4) == 0 {
			return errNoRoom
		}
		return nil
	}
}

// checkFrames reads what a side was sent as strictly as a peer may.
func checkFrames(t *testing.T, side string, b []byte, requests bool) {
	fr := http2.NewFramer(io.Discard, bytes.NewReader(b))
	fr.ReadMetaHeaders = hpack.NewDecoder(1<<16, nil)
	var last uint32
	const open, over = 1, 2
	streams := map[uint32]int{}
	for n := 0; ; n++ {
		frame, err := fr.ReadFrame()
		if err != nil {
			if err != io.EOF && err != io.ErrUnexpectedEOF {
				t.Fatalf("the %s was sent frame %d broken: %v in %q", side, n, err, b)
			}
			return
		}
		id := frame.Header().StreamID
		if _, settings := frame.(*http2.SettingsFrame); n == 0 && !settings {
			t.Fatalf("the %s was sent %v first", side, frame)
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			switch {
			case streams[id] == over:
				t.Fatalf("the %s was sent %v on a stream that was over", side, f)
			case requests && streams[id] == 0:
				if id%2 == 0 || id <= last {
					t.Fatalf("the %s was sent a new stream %d after %d", side, id, last)
				}
				last = id
				if f.PseudoValue("method") == "" || f.PseudoValue("path") == "" || f.PseudoValue("scheme") == "" {
					t.Fatalf("the %s was sent %v", side, f)
				}
			}
			for _, field := range f.RegularFields() {
				switch field.Name {
				case "connection", "transfer-encoding", "upgrade", "keep-alive", "proxy-connection":
					t.Fatalf("the %s was sent %v", side, f)
				}
			}
			streams[id] = open
			if f.StreamEnded() {
				streams[id] = over
			}
		case *http2.DataFrame:
			if streams[id] != open {
				t.Fatalf("the %s was sent %v on a stream that is not open", side, f)
			}
			if f.StreamEnded() {
				streams[id] = over
			}
		case *http2.RSTStreamFrame:
			streams[id] = over
		}
	}
}
