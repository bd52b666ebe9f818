package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/wire"
)

// kinds is how many kinds of floods share the connections.
const kinds = 5

// streams is how many requests a connection of HTTP/2 has in flight.
const streams = 20

// flood is the hostile tenant's traffic.
type flood struct {
	ip             string
	zeroWindow     []byte // what a client with a window of zero sends
	opened, closed atomic.Int64
	refused        atomic.Int64 // connections that could not be opened
}

// flood opens the connections, or only those of one kind, evenly during ramp and keeps them until
// ctx ends. Then it prints what became of them.
func (b *bench) flood(ctx context.Context) error {
	f := &flood{ip: b.ip, zeroWindow: zeroWindow()}
	lasts, end := context.WithCancel(context.Background())
	defer end()
	var done sync.WaitGroup
	for i := range b.connections {
		if b.kind >= 0 && i%kinds != b.kind {
			continue
		}
		done.Go(func() {
			for again := sleep(lasts, ramp*time.Duration(i)/time.Duration(b.connections)); again; again = sleep(lasts, time.Second) {
				f.one(lasts, i)
			}
		})
	}
	<-ctx.Done()
	counts := result.Fields{"flood_connections": f.opened.Load() - f.closed.Load(), "flood_opened": f.opened.Load(), "flood_refused": f.refused.Load()}
	end()
	done.Wait()
	return json.NewEncoder(os.Stdout).Encode(counts)
}

// one opens a connection, sends what its kind sends, and waits until the activator closes it.
func (f *flood) one(ctx context.Context, i int) {
	port := wire.PortHTTP1
	if i%kinds == 1 {
		port = wire.PortH2C
	}
	dialer := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i%200)+1)}}
	c, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(f.ip, strconv.Itoa(port)))
	if err != nil {
		f.refused.Add(1)
		return
	}
	defer c.Close()
	f.opened.Add(1)
	defer f.closed.Add(1)
	defer context.AfterFunc(ctx, func() { c.Close() })()
	switch i % kinds {
	case 0: // reads nothing of a long response
		c.(*net.TCPConn).SetReadBuffer(4 << 10)
		io.WriteString(c, head(http.MethodGet, pathLong, floodNamespace, floodRevision)+"\r\n")
		waitClosed(ctx, c)
		return
	case 1: // takes no data, and answers nothing
		c.Write(f.zeroWindow)
	case 2: // a head that does not end
		io.WriteString(c, head(http.MethodGet, "/", floodNamespace, floodRevision)+filler)
	case 3: // an upload that the pod does not read
		io.WriteString(c, head(http.MethodPost, pathDeaf, floodNamespace, floodRevision)+"Content-Length: 1073741824\r\n\r\n"+filler)
		c.SetWriteDeadline(time.Now().Add(5 * time.Second))
		io.WriteString(c, filler+filler)
	case 4: // a connection without a request, after one
		io.WriteString(c, head(http.MethodGet, "/", floodNamespace, floodRevision)+"\r\n")
	}
	io.Copy(io.Discard, c)
}

// waitClosed waits for the end of a connection without reading: it tries to send, every second,
// what would be the next request.
func waitClosed(ctx context.Context, c net.Conn) {
	for sleep(ctx, time.Second) {
		c.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := c.Write([]byte("\r\n")); err != nil {
			return
		}
	}
}

// filler is 48 KiB of header fields: most of what the activator takes as a head.
var filler = strings.Repeat("X-Filler: "+strings.Repeat("x", 1012)+"\r\n", 48)

// zeroWindow returns the requests of an HTTP/2 client that opens no window, with large heads.
func zeroWindow() []byte {
	var out, block bytes.Buffer
	out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&out, nil)
	framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	encoder := hpack.NewEncoder(&block)
	large := strings.Repeat("x", 8<<10)
	for i := range streams {
		block.Reset()
		for _, field := range [][2]string{{":method", http.MethodGet}, {":scheme", "http"}, {":authority", "bench.example"}, {":path", pathLong},
			{strings.ToLower(wire.HeaderNamespace), floodNamespace}, {strings.ToLower(wire.HeaderRevision), floodRevision}, {"x-filler", fmt.Sprint(i, large)}} {
			encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1], Sensitive: field[0] == "x-filler"})
		}
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	}
	return out.Bytes()
}
