package coap

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"ebb.dev/ebb/test/eventually"
)

// get is a CON GET of Uri-Host "a" with a message ID, which is its token, too.
func get(id uint16) []byte {
	m := []byte{0x42, 0x01}
	m = binary.BigEndian.AppendUint16(m, id)
	m = binary.BigEndian.AppendUint16(m, id)
	return append(m, 0x31, 'a')
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc + stats.StackInuse
}

func TestAFloodFromOneAddressIsCutAndBoundInMemory(t *testing.T) {
	var calls atomic.Int64
	e := start(t, func(http.ResponseWriter, *http.Request) { calls.Add(1) }, func(o *Options) { o.Rate = 200 })
	before := heap()
	raw := rawConn(t, e)
	begin := time.Now()
	for i := range 50000 {
		raw.Write(get(uint16(i)))
	}
	dropped := e.metrics.dropped.WithLabelValues("rate")
	eventually.True(t, "the flood is cut", func() bool { return testutil.ToFloat64(dropped) > 1000 })
	// The burst, and what came until now.
	got := calls.Load()
	if most := 400 + 200*(time.Since(begin).Seconds()+1); float64(got) > most {
		t.Errorf("%d requests reached the service, want at most %.0f", got, most)
	}
	if grown := int64(heap()) - int64(before); grown > 16<<20 {
		t.Errorf("the flood took %d bytes of memory", grown)
	}
}

func TestAFloodFromManyPeersIsBoundInMemory(t *testing.T) {
	e := start(t, func(http.ResponseWriter, *http.Request) {}, func(o *Options) { o.Peers = 128 })
	before := heap()
	for i := range 2000 {
		raw, err := net.Dial("udp", e.Plain().String())
		if err != nil {
			t.Fatal(err)
		}
		raw.Write(get(uint16(i)))
		raw.Close()
	}
	eventually.True(t, "the flood is worked off", func() bool { return e.plain.Len() <= 128 && len(e.all()) <= 2*128 })
	if grown := int64(heap()) - int64(before); grown > 24<<20 {
		t.Errorf("the flood took %d bytes of memory", grown)
	}
	eventually.True(t, "another peer gets an answer", func() bool {
		raw := rawConn(t, e)
		raw.Write(get(1))
		raw.SetReadDeadline(time.Now().Add(time.Second))
		_, err := raw.Read(make([]byte, 100))
		return err == nil
	})
}

// A handshake that is begun and left costs a place, but not that of a peer with a key.
func TestHandshakesThatAreLeftDoNotPushOutPeersWithAKey(t *testing.T) {
	e := start(t, echo, func(o *Options) { o.Peers = 32 })
	good, err := dialSecure(e, "sensor", testKeys["sensor"])
	if err != nil {
		t.Fatal(err)
	}
	defer good.Close()
	call(t, good, codes.GET, "/", nil)
	session := e.all()[0]
	for range 300 {
		raw, err := net.Dial("udp", e.Secure().String())
		if err != nil {
			t.Fatal(err)
		}
		raw.Write([]byte{22, 254, 253, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0})
		raw.Close()
	}
	if code, _, _ := call(t, good, codes.GET, "/", nil); code != codes.Content || session.conn.Context().Err() != nil {
		t.Errorf("the peer with the key: %v", code)
	}
	if n := e.secure.Len(); n > 1+8 {
		t.Errorf("%d peers, want at most 8 without a key", n)
	}
}

func TestMalformedMessagesHarmNobody(t *testing.T) {
	e := start(t, echo, nil)
	raw := rawConn(t, e)
	random := rand.New(rand.NewPCG(1, 2))
	for _, m := range [][]byte{
		{}, {0x40}, {0x40, 1, 0}, {0x4f, 1, 0, 1}, {0x41, 1, 0, 1}, {0x00, 1, 0, 1}, {0xc0, 1, 0, 1}, // lengths, versions
		{0x40, 1, 0, 1, 0xff},                               // a marker without a body
		{0x40, 1, 0, 1, 0xf0},                               // a reserved delta
		{0x40, 1, 0, 1, 0x3f, 'a'},                          // a reserved length
		{0x40, 1, 0, 1, 0x3e, 0xff, 0xff},                   // a length beyond the end
		{0x40, 1, 0, 1, 0xe0, 0xff, 0xff, 0xe0, 0xff, 0xff}, // numbers beyond 65535
		bytes.Repeat([]byte{0x00}, 1400), make([]byte, 3000),
	} {
		raw.Write(m)
	}
	for range 5000 {
		m := get(uint16(random.Uint32()))
		for range random.IntN(40) {
			m = append(m, byte(random.Uint32()))
		}
		m[random.IntN(len(m))] ^= byte(random.Uint32())
		raw.Write(m)
	}
	if code, _, _ := call(t, dial(t, e), codes.GET, "/", nil); code != codes.Content {
		t.Errorf("another peer: %v", code)
	}
}

func TestWrongOptionsAreRefusedWithTheirCode(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	c := dial(t, start(t, func(http.ResponseWriter, *http.Request) { calls.Add(1) }, nil))
	for name, try := range map[string]struct {
		option message.Option
		want   codes.Code
	}{
		"a second host":        {message.Option{ID: message.URIHost, Value: []byte("other")}, codes.BadRequest},
		"an unknown format":    {message.Option{ID: message.ContentFormat, Value: []byte{0xff, 0xfe}}, codes.UnsupportedMediaType},
		"an unknown Accept":    {message.Option{ID: message.Accept, Value: []byte{0xff, 0xfe}}, codes.NotAcceptable},
		"another proxy":        {message.Option{ID: message.ProxyURI, Value: []byte("http://x/")}, codes.ProxyingNotSupported},
		"an unknown, critical": {message.Option{ID: 9, Value: []byte{1}}, codes.BadOption},
	} {
		if code, text, _ := call(t, c, codes.GET, "/", nil, try.option); code != try.want {
			t.Errorf("%s: %v %q, want %v", name, code, text, try.want)
		}
	}
	if calls.Load() > 0 {
		t.Errorf("%d requests reached the service", calls.Load())
	}
}

// Blocks that never end hold the memory of one body for each peer, until there is no more.
func TestBlocksThatNeverEndAreBound(t *testing.T) {
	e := start(t, echo, func(o *Options) { o.Memory, o.Body = 1<<20, 64<<10 })
	first := func(id uint16) []byte {
		m := get(id)
		m[1] = 0x02                              // POST
		m = append(m, 0xd1, 27-3-13, 0x0e, 0xff) // Block1: number 0, more, 1024 bytes
		return append(m, make([]byte, 1024)...)
	}
	accepted, refused := 0, 0
	for i := range 40 {
		raw := rawConn(t, e)
		raw.Write(first(uint16(i)))
		switch code := codes.Code(readRaw(t, raw)[1]); code {
		case codes.Continue:
			accepted++
		case codes.ServiceUnavailable:
			refused++
		default:
			t.Fatalf("got %v", code)
		}
	}
	if accepted != 16 || refused != 24 {
		t.Errorf("%d were accepted and %d refused, want 16 and 24 with 1 MiB", accepted, refused)
	}
	// After their time they are given up.
	for _, s := range e.all() {
		s.expire(time.Now().Add(transferTime + 3*time.Second))
	}
	if used := e.memory.Used(); used != 0 {
		t.Errorf("%d bytes are still reserved", used)
	}
}

// Answers whose blocks nobody fetches hold memory, until there is no more.
func TestAnswersThatNobodyFetchesAreBound(t *testing.T) {
	e := start(t, func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 60<<10)) }, func(o *Options) { o.Memory = 1 << 20 })
	raw := rawConn(t, e)
	refused := 0
	for i := range 60 {
		raw.Write(get(uint16(i)))
		if codes.Code(readRaw(t, raw)[1]) == codes.ServiceUnavailable {
			refused++
		}
	}
	if refused < 40 || refused == 60 {
		t.Errorf("%d of 60 were refused", refused)
	}
	if used := e.memory.Used(); used > 1<<20 {
		t.Errorf("%d bytes are held", used)
	}
}

func TestOnePeerThatWaitsDoesNotHoldUpAnother(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	e := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Host == "a" {
			select {
			case <-ctx.Done():
			case <-r.Context().Done():
			}
		}
		fmt.Fprint(w, "done")
	}, nil)
	greedy := rawConn(t, e)
	for i := range 300 {
		greedy.Write(get(uint16(i)))
	}
	if code, got, _ := call(t, dial(t, e), codes.GET, "/", nil); string(got) != "done" {
		t.Errorf("got %v %q", code, got)
	}
}
