package forward

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"ebb.dev/ebb/test/eventually"
)

// After the last GOAWAY and after Shutdown, with nothing in flight, a connection is gone in a few
// seconds, whatever the client sends, in whatever pieces.
func TestHTTP2ConnectionsEnd(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { connectionEnds(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func connectionEnds(t *testing.T, random *rand.Rand) {
	const few = 6 * time.Second
	l := newPipes()
	s := &Server{
		Handler:       &policy{admit: func(*Request) Decision { return Decision{Reply: Reply{Status: 204}} }},
		HeaderTimeout: 2 * time.Second, FirstRequestTimeout: 4 * time.Second, IdleTimeout: 8 * time.Second,
	}
	served := make(chan error)
	books := keepBooks(s)
	go func() { served <- s.Serve(l) }()
	c, err := l.dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	var goodbye time.Time
	gone := make(chan time.Time)
	go func() {
		fr := http2.NewFramer(io.Discard, c)
		for {
			f, err := fr.ReadFrame()
			if err != nil {
				break
			}
			if f, ok := f.(*http2.GoAwayFrame); ok && f.LastStreamID < 1<<31-1 {
				goodbye = time.Now()
			}
		}
		gone <- time.Now()
	}()
	shutdown, shuts := time.Duration(random.IntN(12000))*time.Millisecond, random.IntN(2) == 0
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		sendPieces(c, random)
	}()
	if shuts {
		time.Sleep(shutdown)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		began := time.Now()
		s.Shutdown(ctx)
		cancel()
		if took := time.Since(began); took > few {
			t.Errorf("Shutdown took %v", took)
		}
	}
	select {
	case end := <-gone:
		if !goodbye.IsZero() && end.Sub(goodbye) > few {
			t.Errorf("the connection lived for %v after the last GOAWAY", end.Sub(goodbye))
		}
	case <-time.After(time.Hour):
		t.Error("the connection lives for ever")
		s.Close()
		<-gone
	}
	c.Close()
	s.Close()
	l.Close()
	<-served
	<-sent
	books.closed(t)
}

// sendPieces sends frames as a client that keeps few of the rules, and pauses in the middle of
// them.
func sendPieces(c net.Conn, random *rand.Rand) {
	var out, block bytes.Buffer
	fr := http2.NewFramer(&out, nil)
	fr.AllowIllegalWrites = true
	enc := hpack.NewEncoder(&block)
	id := uint32(1)
	out.WriteString(preface)
	fr.WriteSettings()
	for {
		for out.Len() > 0 {
			piece := out.Next(1 + random.IntN(out.Len()))
			if _, err := c.Write(piece); err != nil {
				return
			}
			if random.IntN(3) == 0 {
				time.Sleep(time.Duration(random.IntN(1200)) * time.Millisecond)
			}
		}
		out.Reset()
		switch random.IntN(6) {
		case 0:
			fr.WritePing(false, [8]byte{})
		case 1:
			fr.WriteWindowUpdate(0, 1)
		case 2:
			fr.WriteSettings()
		case 3:
			time.Sleep(time.Duration(random.IntN(10)) * time.Second)
		default:
			block.Reset()
			for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/"}, {":authority", "h"}} {
				enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
			}
			b := block.Bytes()
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b[:3], EndStream: random.IntN(2) == 0})
			fr.WriteContinuation(id, true, b[3:])
			id += 2
		}
	}
}

// A connection that should have closed long ago does not keep its place.
func TestAnOverdueHTTP2ConnectionMakesRoom(t *testing.T) {
	t.Parallel()
	w := newCrowd(t, 3, nil) // a connection of HTTP/2 counts as three
	r := dialH2raw(t, w.addr)
	var h2 *h2server
	eventually.True(t, "it is served", func() bool {
		w.server.mu.Lock()
		defer w.server.mu.Unlock()
		for c := range w.server.conns {
			h2, _ = c.shell.(*h2server)
		}
		return h2 != nil
	})
	h2.c.mu.Lock()
	h2.leaving = time.Now().Add(-time.Hour)
	h2.c.idleSince = h2.leaving
	h2.c.mu.Unlock()
	w.client().send("/").answered()
	if _, err := io.Copy(io.Discard, r.c); err != nil {
		t.Log(err) // or a reset
	}
}
