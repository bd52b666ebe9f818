package forward

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"ebb.dev/ebb/test/eventually"
)

// endless is a connection on which the next bytes have always arrived.
type endless struct {
	net.Conn
	reads int
}

func (e *endless) Read(p []byte) (int, error) {
	e.reads++
	return len(p), nil
}

// A connection that always has more to read does not keep a CPU for the runtime's time slice: with
// many of those, every other request would wait that long for each of them.
func TestAConnectionWithMuchToReadLetsOthersRun(t *testing.T) {
	c := &h2conn{nc: &endless{}, peer: &h2client{}, srv: &Server{}}
	c.srv.init()
	defer c.unbusy()
	socket := h2socket{c}
	piece := make([]byte, 16<<10)
	for name, move := range map[string]func(){
		"frames": func() { socket.Read(piece) },
		"a body": func() { new(buffer).full(&purse{}) },
	} {
		t.Run(name, func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			var turns atomic.Int64
			var quit atomic.Bool
			over := make(chan struct{})
			go func() {
				defer close(over)
				for !quit.Load() {
					turns.Add(1)
					runtime.Gosched()
				}
			}()
			for turns.Load() == 0 {
				runtime.Gosched()
			}
			began := turns.Load()
			for range 200 {
				move()
			}
			if got := turns.Load() - began; got < 100 {
				t.Errorf("another goroutine ran %d times while 200 pieces were moved, want at least 100", got)
			}
			quit.Store(true)
			<-over
		})
	}
}

// Readers that always have more to read work only a few at a time, each in its turn.
func TestBusyReadersTakeTurns(t *testing.T) {
	server := &Server{lane: make(chan struct{}, 2)}
	server.init()
	var working atomic.Int64
	var readers sync.WaitGroup
	for range 20 {
		readers.Go(func() {
			c := &h2conn{nc: &endless{}, peer: &h2client{}, srv: server}
			socket, piece := h2socket{c}, make([]byte, 16<<10)
			for range 200 {
				socket.Read(piece)
				if n := working.Add(1); n > 2 {
					t.Errorf("%d readers work at once, want at most 2", n)
				}
				working.Add(-1)
			}
			c.unbusy()
		})
	}
	readers.Wait()
	if n := len(server.lane); n != 0 {
		t.Errorf("%d places are taken after the end", n)
	}
}

// A busy connection whose request has to wait, ends, or breaks a rule keeps no place in the lane.
func TestABusyConnectionThatStopsLetsOthersIn(t *testing.T) {
	t.Parallel()
	var server *Server
	let := make(chan struct{})
	var waiting atomic.Int64
	addr := start(t, func() *Server {
		server = &Server{lane: make(chan struct{}, 1), Handler: &policy{admit: func(r *Request) Decision {
			if r.Path() == "/wait" {
				ctx := r.Context()
				waiting.Add(1)
				select {
				case <-let:
				case <-ctx.Done():
				}
				waiting.Add(-1)
			}
			return Decision{Reply: Reply{Status: 204}}
		}}}
		return server
	}())
	defer close(let)
	large := strings.Repeat("\"", 12<<10) // not made smaller by Huffman's code
	flood := func(path string) *h2raw {
		r := dialH2raw(t, addr)
		go io.Copy(io.Discard, r.c)
		var many bytes.Buffer
		fr := http2.NewFramer(&many, nil)
		for i := range uint32(20) {
			block := r.fields(with(aGet[:4], ":path", path, ":authority", "h", "x", large)...)
			fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1 + 2*i, BlockFragment: block, EndStream: true, EndHeaders: true})
		}
		r.c.Write(many.Bytes())
		return r
	}
	for n := range int64(3) {
		flood("/wait")
		eventually.True(t, "the requests wait", func() bool { return waiting.Load() == 20*(n+1) })
	}
	flood("/").c.Close()
	broken := flood("/")
	broken.fr.WriteRawFrame(http2.FrameSettings, 0, 1, nil) // of a stream, which is not allowed
	r := dialH2raw(t, addr)
	for i := range uint32(20) {
		r.headers(1+2*i, true, with(aGet, "x", large)...)
		if got := r.outcome(1 + 2*i); !strings.HasPrefix(got, "204") {
			t.Fatalf("request %d got %q", i, got)
		}
	}
	eventually.True(t, "no place is taken", func() bool { return len(server.lane) == 0 })
}
