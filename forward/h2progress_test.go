package forward

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a net.Listener whose connections are pipes, for virtual time.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// h2world is a forwarder with small windows between clients and an upstream, all in virtual time.
type h2world struct {
	server   *Server
	books    *books // nil if bytes without an account are what a test is about
	up       *Upstream
	front    *pipes
	backend  *http.Server
	clients  []*http.Transport
	finished sync.WaitGroup
	slots    chan struct{}
}

// Admit implements Handler: a request that asks for a slot waits for one.
func (w *h2world) Admit(r *Request) Decision {
	if r.Header("x-slot") != "" {
		ctx := r.Context()
		select {
		case w.slots <- struct{}{}:
			r.Data = w
		case <-ctx.Done():
		}
	}
	return Decision{Upstream: w.up}
}

// Done implements Handler.
func (w *h2world) Done(r *Request, _ *Result) {
	if r.Data != nil {
		<-w.slots
	}
}

// smallWindows make the windows matter with bodies of some kilobytes. A connection cannot have
// less.
var smallWindows = h2windows{first: 2 << 10, full: 8 << 10, conn: 65535}

func newH2World(slots int, stuck int64, serve http.HandlerFunc, config http.HTTP2Config) *h2world {
	w := &h2world{front: newPipes(), slots: make(chan struct{}, slots)}
	back := newPipes()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	w.backend = &http.Server{Protocols: protocols, HTTP2: &config, Handler: serve, ErrorLog: log.New(io.Discard, "", 0)}
	w.finished.Go(func() { w.backend.Serve(back) })
	w.up = NewUpstream("upstream", UpstreamOptions{Dial: func(ctx context.Context, addr string) (net.Conn, error) { return back.dial(ctx, "", addr) }})
	w.server = &Server{Handler: w, windows: smallWindows, MaxStuckBytes: stuck}
	if stuck == 0 {
		w.books = keepBooks(w.server)
	}
	w.finished.Go(func() { w.server.Serve(w.front) })
	return w
}

// client is a client with one connection, which takes 2 KiB of each response that is not read.
func (w *h2world) client() *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	tr := &http.Transport{
		Protocols: protocols, DialContext: w.front.dial, DisableCompression: true,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 2 << 10, MaxReceiveBufferPerConnection: 4<<20 - 1},
	}
	w.clients = append(w.clients, tr)
	return &http.Client{Transport: tr}
}

func (w *h2world) close() {
	w.server.Close()
	w.backend.Close()
	w.up.Close()
	for _, tr := range w.clients {
		tr.CloseIdleConnections()
	}
	w.finished.Wait()
}

// While both ends of a stream are willing it goes on, whatever other streams of its connections do:
// wait for a slot, send half a body, or are not read, by a client or by the upstream.
func TestHTTP2WillingStreamsGoOn(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { willingStreams(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func willingStreams(t *testing.T, random *rand.Rand) {
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex // of random
	w := newH2World(1+random.IntN(4), 0, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Unread") != "" {
			<-r.Context().Done()
			return
		}
		n, _ := io.Copy(io.Discard, r.Body)
		if size, err := strconv.Atoi(r.Header.Get("X-Size")); err == nil {
			rw.Write(bytes.Repeat([]byte("z"), size))
		} else {
			fmt.Fprint(rw, n)
		}
	}, http.HTTP2Config{MaxConcurrentStreams: 1000, MaxReceiveBufferPerStream: 4 << 10, MaxReceiveBufferPerConnection: 4<<20 - 1})
	var clients []*http.Client
	for range 1 + random.IntN(2) {
		clients = append(clients, w.client())
	}
	var willing, others sync.WaitGroup
	ask := func(group *sync.WaitGroup, what func(size int)) {
		mu.Lock()
		defer mu.Unlock()
		size := random.IntN(24 << 10)
		group.Go(func() { what(size) })
	}
	send := func(body io.Reader, fields ...string) (string, error) {
		mu.Lock()
		client := clients[random.IntN(len(clients))]
		mu.Unlock()
		r, _ := http.NewRequestWithContext(ctx, "POST", "http://forwarder/", body)
		for i := 0; i < len(fields); i += 2 {
			r.Header.Set(fields[i], fields[i+1])
		}
		response, err := client.Do(r)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		if r.Header.Get("X-Stays") != "" {
			<-ctx.Done()
		}
		text, err := io.ReadAll(response.Body)
		return string(text), err
	}
	for _, client := range clients { // afterwards they know the windows
		response, err := client.Get("http://forwarder/")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
	kinds := []func(){
		func() { // an upload that the upstream does not read
			ask(&others, func(size int) { send(bytes.NewReader(make([]byte, size)), "X-Unread", "1") })
		},
		func() { // a download that is not read
			ask(&others, func(size int) { send(nil, "X-Size", strconv.Itoa(size), "X-Stays", "1") })
		},
		func() { // half an upload
			ask(&others, func(size int) {
				rest, end := io.Pipe()
				context.AfterFunc(ctx, func() { end.CloseWithError(context.Canceled) })
				send(io.MultiReader(bytes.NewReader(make([]byte, size)), rest))
			})
		},
		func() {
			ask(&willing, func(size int) {
				if got, err := send(nil, "X-Size", strconv.Itoa(size)); err != nil || len(got) != size {
					t.Errorf("a response of %d bytes had %d: %v", size, len(got), err)
				}
			})
		},
		func() {
			ask(&willing, func(size int) {
				if got, err := send(bytes.NewReader(make([]byte, size)), "X-Slot", "1"); err != nil || got != strconv.Itoa(size) {
					t.Errorf("a body of %d bytes arrived as %q: %v", size, got, err)
				}
			})
		},
	}
	for range 200 {
		mu.Lock()
		kind := random.IntN(len(kinds))
		mu.Unlock()
		kinds[kind]()
	}
	done := make(chan struct{})
	go func() { willing.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Second):
		t.Error("some streams stand still although both of their ends are willing")
	}
	cancel()
	others.Wait()
	<-done
	w.close()
	synctest.Wait()
	w.books.check(t)
	if n := w.server.stuck.bytes.Load(); n != 0 {
		t.Errorf("%d bytes are stuck without a request", n)
	}
}

// Bytes that wait for a peer have a limit. The requests that have been stuck for the longest end
// for others; one that is passed on is served.
func TestHTTP2StuckBytesAreBounded(t *testing.T) {
	for name, stuck := range map[string]func(send func(body io.Reader, fields ...string) (*http.Response, error)) (*http.Response, error){
		"responses that are not read": func(send func(io.Reader, ...string) (*http.Response, error)) (*http.Response, error) {
			return send(nil, "X-Size", "20000")
		},
		"bodies that the upstream does not read": func(send func(io.Reader, ...string) (*http.Response, error)) (*http.Response, error) {
			return send(bytes.NewReader(make([]byte, 20000)), "X-Unread", "1")
		},
		"bodies of requests that wait": func(send func(io.Reader, ...string) (*http.Response, error)) (*http.Response, error) {
			return send(bytes.NewReader(make([]byte, 20000)), "X-Slot", "1")
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { stuckBytesOf(t, stuck) }) })
	}
}

func stuckBytesOf(t *testing.T, stuck func(send func(io.Reader, ...string) (*http.Response, error)) (*http.Response, error)) {
	const limit = 64 << 10
	w := newH2World(1, limit, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Unread") != "" {
			<-r.Context().Done()
			return
		}
		n, _ := strconv.Atoi(r.Header.Get("X-Size"))
		io.Copy(io.Discard, r.Body)
		rw.Write(make([]byte, n))
	}, http.HTTP2Config{MaxConcurrentStreams: 1000, MaxReceiveBufferPerStream: 4 << 10, MaxReceiveBufferPerConnection: 4<<20 - 1})
	w.slots <- struct{}{} // nobody gets it
	client := w.client()
	send := func(body io.Reader, fields ...string) (*http.Response, error) {
		r, _ := http.NewRequestWithContext(t.Context(), "POST", "http://forwarder/", body)
		for i := 0; i < len(fields); i += 2 {
			r.Header.Set(fields[i], fields[i+1])
		}
		return client.Do(r)
	}
	if _, err := send(nil); err != nil {
		t.Fatal(err)
	}
	var asked sync.WaitGroup
	ended := make([]atomic.Bool, 60)
	for i := range ended {
		asked.Go(func() {
			response, err := stuck(send)
			if err == nil && response.StatusCode == 200 { // the head is there
				time.Sleep(time.Minute)
				_, err = io.ReadAll(response.Body)
			}
			ended[i].Store(err != nil || response.StatusCode != 200)
		})
		time.Sleep(time.Millisecond)
		if n := w.server.stuck.bytes.Load(); n > limit {
			t.Fatalf("%d bytes are stuck, want at most %d", n, limit)
		}
	}
	if response, err := send(bytes.NewReader(make([]byte, 20000)), "X-Size", "1"); err != nil || response.StatusCode != 200 {
		t.Errorf("a request that is not stuck: %v, %v", response, err)
	}
	time.Sleep(2 * time.Minute)
	if !ended[0].Load() {
		t.Error("the request that was stuck for the longest went on")
	}
	if ended[len(ended)-1].Load() {
		t.Error("the newest request was ended for older ones")
	}
	w.server.Close()
	asked.Wait()
	w.close()
	synctest.Wait()
	if n := w.server.stuck.bytes.Load(); n != 0 {
		t.Errorf("%d bytes are stuck without a request", n)
	}
}

// An upstream that works on a request without a word answers PINGs, so its connection is kept.
func TestHTTP2AQuietUpstreamIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newH2World(1, 0, func(rw http.ResponseWriter, r *http.Request) { time.Sleep(10 * time.Minute) }, http.HTTP2Config{})
		response, err := w.client().Get("http://forwarder/")
		if err != nil || response.StatusCode != 200 {
			t.Errorf("got %v, %v", response, err)
		}
		w.close()
		synctest.Wait()
		w.books.check(t)
	})
}
