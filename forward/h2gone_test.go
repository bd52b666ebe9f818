package forward

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// The ring says the same as a set of all streams that were reset here, and of older ones that they
// were: whatever is opened and reset in whatever order, with gaps of any size.
func TestGoneStreamsAreKnownExactlyWhileTheyAreNew(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 5))
		g, known := &h2gone{}, map[uint32]bool{}
		gaps := []uint32{1, 2, 63, 64, 65, h2GoneStreams - 1, h2GoneStreams, h2GoneStreams + 1, 1 << 20}
		newest := uint32(0)
		for range 3000 {
			n := newest
			switch random.IntN(10) {
			case 0:
				n += gaps[random.IntN(len(gaps))]
			case 1: // an older one
				n -= min(newest, random.Uint32N(2*h2GoneStreams))
			default:
				n += random.Uint32N(4)
			}
			newest = max(newest, n)
			g.add(2*n + 1)
			known[n] = true
			for range 8 {
				n := newest + 3 - min(newest, random.Uint32N(3*h2GoneStreams/2))
				want := known[n] || n <= newest && newest-n >= h2GoneStreams
				if got := g.ours(2*n + 1); got != want {
					t.Fatalf("seed %d: stream %d of %d: got %v, want %v", seed, n, newest, got, want)
				}
			}
		}
	}
	if (*h2gone)(nil).ours(1) {
		t.Error("a stream was reset here before any was")
	}
}

// goneServer refuses uploads to /refused before they have ended, those to /later when the channel
// is closed, and answers others.
func goneServer(t *testing.T) (r *h2raw, later chan struct{}) {
	later = make(chan struct{})
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/later" {
			<-later
			w.WriteHeader(413)
		}
	})
	addr, p := proxyTo(t, backend, nil)
	forward := p.admit
	p.admit = func(r *Request) Decision {
		if r.Path() == "/refused" {
			return Decision{Reply: Reply{Status: 413}}
		}
		return forward(r)
	}
	return dialH2raw(t, addr), later
}

func postTo(path string) []string { return append(aPost[:4:4], ":path", path, ":authority", "h") }

// still opens a stream and reports what became of it: "200" if the connection goes on.
func (r *h2raw) still(id uint32) string {
	r.headers(id, true, aGet...)
	return r.outcome(id)
}

// refused opens streams whose uploads are refused, and waits until all were reset.
func (r *h2raw) refused(from, n uint32) {
	r.t.Helper()
	r.open(from, n, false, postTo("/refused"))
}

// open opens n streams, a hundred at a time, and waits until all have ended. Those without an end
// must be reset with NO_ERROR.
func (r *h2raw) open(from, n uint32, end bool, head []string) {
	r.t.Helper()
	for ; n > 0; n -= min(n, 100) {
		batch := min(n, 100)
		for i := range batch {
			r.headers(from+2*i, end, head...)
		}
		for left := batch; left > 0; {
			f, err := r.fr.ReadFrame()
			if err != nil {
				r.t.Fatal(err)
			}
			switch f := f.(type) {
			case *http2.MetaHeadersFrame:
				if end && f.StreamEnded() {
					left--
				}
			case *http2.RSTStreamFrame:
				if end || f.ErrCode != http2.ErrCodeNo {
					r.t.Fatalf("stream %d was reset with %s", f.StreamID, f.ErrCode)
				}
				left--
			case *http2.GoAwayFrame:
				r.t.Fatalf("goaway %s", f.ErrCode)
			}
		}
		from += 2 * batch
	}
}

// What is in flight of uploads that were refused early costs nobody else the connection: DATA and
// trailers that arrive after thousands of resets, and those of an upload that is much older.
func TestLateFramesOfRefusedUploadsEndNoConnection(t *testing.T) {
	r, later := goneServer(t)
	r.c.SetDeadline(time.Now().Add(4 * time.Minute))
	const many = 3000
	r.headers(1, false, postTo("/later")...)
	r.refused(3, many)
	late := func(id uint32) {
		r.fr.WriteData(id, false, []byte("late"))
		r.fr.WriteWindowUpdate(id, 1)
		r.headers(id, true, "x-sum", "1")
	}
	for i := range uint32(many) {
		late(3 + 2*i)
	}
	next := uint32(3 + 2*many)
	if got := r.still(next); got != "200" {
		t.Fatalf("after late frames of %d streams: %s", many, got)
	}
	r.open(next+2, h2GoneStreams, true, aGet) // the first stream leaves the ring
	next += 2 * h2GoneStreams
	r.refused(next+2, 1)
	close(later)
	if got := r.outcome(1); got != "413" {
		t.Fatalf("the old upload got %s", got)
	}
	if got := r.outcome(1); got != "reset NO_ERROR" {
		t.Fatalf("the old upload got %s", got)
	}
	late(1)
	if got := r.still(next + 4); got != "200" {
		t.Errorf("after late frames of an old stream: %s", got)
	}
}

// A stream that was reset here does not excuse frames of others: of one that was never opened, and
// of one that ended by itself, even one with the same place in the ring.
func TestFramesOfIdleAndEndedStreamsAreNoLateFrames(t *testing.T) {
	data := func(id uint32) func(*h2raw) { return func(r *h2raw) { r.fr.WriteData(id, true, []byte("x")) } }
	head := func(id uint32) func(*h2raw) { return func(r *h2raw) { r.headers(id, true, aGet...) } }
	const lap = 2 * h2GoneStreams // the distance of two streams with the same place
	for name, test := range map[string]struct {
		reset, ended uint32 // opened in this order
		send         func(*h2raw)
		want         string
	}{
		"DATA of an idle stream":                 {1, 0, data(3), "goaway PROTOCOL_ERROR"},
		"DATA of an idle stream, a lap later":    {1, 0, data(1 + lap), "goaway PROTOCOL_ERROR"},
		"DATA of an even stream":                 {1, 0, data(2), "goaway PROTOCOL_ERROR"},
		"a reset of an idle stream":              {1, 0, func(r *h2raw) { r.fr.WriteRSTStream(1+lap, http2.ErrCodeCancel) }, "goaway PROTOCOL_ERROR"},
		"a window of an idle stream":             {1, 0, func(r *h2raw) { r.fr.WriteWindowUpdate(1+lap, 1) }, "goaway PROTOCOL_ERROR"},
		"a window of nothing of an idle stream":  {1, 0, func(r *h2raw) { r.fr.WriteWindowUpdate(3, 0) }, "goaway PROTOCOL_ERROR"},
		"an idle stream that depends on itself":  {1, 0, func(r *h2raw) { r.fr.WritePriority(3, http2.PriorityParam{StreamDep: 3}) }, "goaway PROTOCOL_ERROR"},
		"a head of an even stream":               {1, 0, head(2), "goaway PROTOCOL_ERROR"},
		"a head of an ended stream":              {1, 3, head(3), "goaway STREAM_CLOSED"},
		"a head of an ended stream, a lap later": {1, 1 + lap, head(1 + lap), "goaway STREAM_CLOSED"},
		"a head of a stream that was passed by":  {1, 9, head(7), "goaway STREAM_CLOSED"},
		"DATA of an ended stream, a lap later":   {1, 1 + lap, data(1 + lap), "reset STREAM_CLOSED"},
		"DATA of the reset stream":               {1, 3, data(1), "200"},
		"a head of the reset stream":             {1, 3, head(1), "200"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := goneServer(t)
			r.refused(test.reset, 1)
			if test.ended > 0 {
				if got := r.still(test.ended); got != "200" {
					t.Fatal(got)
				}
				r.refused(test.ended+2, 1) // which moves the ring
			}
			test.send(r)
			next := max(test.reset, test.ended) + lap + 4
			if test.want == "reset STREAM_CLOSED" {
				next = test.ended
			} else {
				r.headers(next, true, aGet...)
			}
			if got := r.outcome(next); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// An upstream opens no streams: a malformed frame of one ends the connection and is not answered
// with a reset, which would be an error of ours.
func TestAnUpstreamCannotBreakAStreamThatIsNotOpen(t *testing.T) {
	for name, send := range map[string]func(r *h2raw){
		"a window of nothing": func(r *h2raw) { r.fr.WriteWindowUpdate(999, 0) },
		"a malformed head":    func(r *h2raw) { r.headers(999, true, ":status", "200", "X", "y") },
		"an even stream":      func(r *h2raw) { r.headers(2, true, ":status", "200", "X", "y") },
	} {
		t.Run(name, func(t *testing.T) {
			var resets atomic.Int64
			ended := make(chan http2.ErrCode, 1)
			backend := h2rawBackend(t, nil, func(_ int, r *h2raw, f http2.Frame) bool {
				switch f := f.(type) {
				case *http2.MetaHeadersFrame:
					send(r)
				case *http2.RSTStreamFrame:
					resets.Add(1)
				case *http2.GoAwayFrame:
					ended <- f.ErrCode
				}
				return true
			})
			addr, _ := proxyTo(t, backend, nil)
			r := dialH2raw(t, addr)
			r.headers(1, true, aGet...)
			if got := r.outcome(1); got != "502" {
				t.Errorf("the client got %s", got)
			}
			select {
			case code := <-ended:
				if code != http2.ErrCodeProtocol || resets.Load() > 0 {
					t.Error(fmt.Sprint("the upstream got ", code, " and ", resets.Load(), " resets"))
				}
			case <-time.After(30 * time.Second):
				t.Error("the upstream's connection stays open")
			}
		})
	}
}
