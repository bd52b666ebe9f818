package forward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/test/eventually"
)

// ledger counts what a Handler was told.
type ledger struct {
	admit         func(r *Request) Decision
	admits, dones atomic.Int64
	open          sync.Map // *Request -> nothing
	twice         atomic.Int64
}

func (l *ledger) Admit(r *Request) Decision {
	l.admits.Add(1)
	l.open.Store(r, nil)
	return l.admit(r)
}

func (l *ledger) Done(r *Request, _ *Result) {
	if _, ok := l.open.LoadAndDelete(r); !ok {
		l.twice.Add(1)
	}
	l.dones.Add(1)
}

// Whatever clients and upstreams do, bodies are whole or visibly cut, Done follows every Admit
// once, and every byte of every window comes back.
func TestHTTP2AnyMixEndsClean(t *testing.T) {
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/echo":
			w.WriteHeader(200)
			http.NewResponseController(w).Flush()
			io.Copy(w, r.Body)
		case "/size":
			n, _ := strconv.Atoi(r.URL.Query().Get("n"))
			w.Write(bytes.Repeat([]byte("z"), n))
		case "/unread":
			w.WriteHeader(413)
		case "/abort":
			io.CopyN(io.Discard, r.Body, 1000)
			w.Write([]byte("half"))
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/hang":
			io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}
	})
	up := NewUpstream(backend, UpstreamOptions{})
	l := &ledger{}
	l.admit = func(r *Request) Decision {
		switch r.Header("x-policy") {
		case "reply":
			return Decision{Reply: Reply{Status: 503, Body: "no"}}
		case "wait":
			select {
			case <-r.Context().Done():
			case <-time.After(time.Duration(rand.IntN(3)) * time.Millisecond):
			}
		case "defer":
			r.DeferBody(time.Second)
		case "short":
			r.Timeouts.Total = time.Duration(1+rand.IntN(20)) * time.Millisecond
			r.Timeouts.Action = CutResponse
		}
		return Decision{Upstream: up}
	}
	s := &Server{Handler: l}
	addr := start(t, s)
	clients := []*http.Client{h2cClient(t), h2cClient(t), h2cClient(t)}
	policies := []string{"", "", "reply", "wait", "defer", "short"}
	var wg sync.WaitGroup
	for worker := range 24 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			random := rand.New(rand.NewPCG(uint64(worker), 1))
			for range 25 {
				mix(t, clients[random.IntN(len(clients))], addr, policies[random.IntN(len(policies))], random)
			}
		}()
	}
	wg.Wait()
	eventually.True(t, "every Admit has its Done", func() bool { return l.admits.Load() == l.dones.Load() })
	if n := l.twice.Load(); n != 0 {
		t.Errorf("%d requests were told done twice", n)
	}
	var conns []*h2conn
	s.mu.Lock()
	for c := range s.conns {
		if h2, is := c.shell.(*h2server); is {
			conns = append(conns, h2.c)
		}
	}
	s.mu.Unlock()
	pool := up.streams.(*h2Pool)
	pool.mu.Lock()
	for _, c := range pool.conns {
		conns = append(conns, c.c)
	}
	waiting := len(pool.waiting)
	pool.mu.Unlock()
	if len(conns) < 4 || waiting != 0 {
		t.Errorf("%d connections, %d exchanges wait for one", len(conns), waiting)
	}
	for _, c := range conns {
		eventually.True(t, "every window is whole again", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.streams) == 0 && c.left+c.owed == h2Windows.conn && len(c.out) == 0
		})
	}
}

// mix makes one request of a random kind and looks at what came back.
func mix(t *testing.T, client *http.Client, addr, policy string, random *rand.Rand) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	size := []int{0, 1, 100, 5000, 70000, 600000}[random.IntN(6)]
	path := []string{"/echo", "/echo", "/size?n=" + strconv.Itoa(size), "/unread", "/abort", "/hang"}[random.IntN(6)]
	hasty := path == "/hang" || random.IntN(4) == 0
	if hasty {
		time.AfterFunc(time.Duration(random.IntN(10))*time.Millisecond, cancel)
	}
	body := bytes.Repeat([]byte{byte('a' + size%7)}, size)
	var reader io.Reader = bytes.NewReader(body)
	if random.IntN(2) == 0 {
		reader = io.MultiReader(reader) // of no known length
	}
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+addr+path, reader)
	if err != nil {
		t.Error(err)
		return
	}
	req.Header.Set("X-Policy", policy)
	resp, err := client.Do(req)
	if err != nil {
		if !hasty && path != "/abort" && !errors.Is(err, context.Canceled) {
			t.Errorf("%s, %d bytes, policy %q: %v", path, size, policy, err)
		}
		return
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		if !hasty && path != "/abort" && policy != "short" {
			t.Errorf("%s, %d bytes, policy %q: after %d bytes: %v", path, size, policy, len(got), err)
		}
		return
	}
	want := ""
	switch {
	case policy == "reply":
		want = "503 no"
	case policy == "short" && resp.StatusCode == 504:
		return
	case path == "/echo":
		want = "200 " + string(body)
	case path == "/unread":
		want = "413 "
	case path == "/abort" && resp.StatusCode == 502: // it was reset before its head left
		return
	case path == "/abort":
		t.Errorf("a response that was cut looks whole: %d %q", resp.StatusCode, got)
		return
	default:
		want = "200 " + string(bytes.Repeat([]byte("z"), size))
	}
	if have := fmt.Sprintf("%d %s", resp.StatusCode, got); have != want {
		t.Errorf("%s, %d bytes, policy %q: got %.40q (%d bytes), want %.40q (%d bytes)", path, size, policy, have, len(have), want, len(want))
	}
}

// While one request waits in its Handler, others of its connection pass.
func TestHTTP2AWaitingRequestHoldsUpNobody(t *testing.T) {
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	up := NewUpstream(backend, UpstreamOptions{})
	defer up.Close()
	release := make(chan bool)
	var waits atomic.Int64
	remotes := sync.Map{}
	addr := start(t, &Server{Handler: &policy{admit: func(r *Request) Decision {
		remotes.Store(r.RemoteAddr(), nil)
		if r.Path() == "/wait" {
			ctx := r.Context()
			waits.Add(1)
			select {
			case <-release:
			case <-ctx.Done():
				return Decision{Reply: Reply{Status: 500}}
			}
		}
		return Decision{Upstream: up}
	}}})
	c := h2cClient(t)
	body := bytes.Repeat([]byte("b"), 100000)
	ask := func(path string) error {
		resp, err := c.Post("http://"+addr+path, "text/plain", bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		if err == nil && !bytes.Equal(got, body) {
			err = fmt.Errorf("%s: %d %.20q", path, resp.StatusCode, got)
		}
		return err
	}
	if err := ask("/first"); err != nil { // so that all use its connection
		t.Fatal(err)
	}
	const many = 20
	results := make(chan error, many)
	for range many {
		go func() { results <- ask("/wait") }()
	}
	eventually.True(t, "all wait", func() bool { return waits.Load() == many })
	for range 5 {
		if err := ask("/now"); err != nil {
			t.Fatal(err)
		}
	}
	close(release)
	for range many {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	n := 0
	remotes.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d connections were used; the test does not test", n)
	}
}

// A client that does not read its response delays neither others on its upstream's connection nor
// its own further requests.
func TestHTTP2ASlowReaderHoldsUpNobody(t *testing.T) {
	const size = 20 << 20
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/small" {
			io.WriteString(w, "small")
			return
		}
		io.CopyN(w, zeros{}, size)
	})
	addr, _ := proxyTo(t, backend, nil)
	slow, quick := h2cClient(t), h2cClient(t)
	resp, err := slow.Get("http://" + addr + "/large")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, c := range []*http.Client{quick, slow} {
		for range 20 {
			small, err := c.Get("http://" + addr + "/small")
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(small.Body)
			small.Body.Close()
			if string(got) != "small" || err != nil {
				t.Fatalf("got %q %v", got, err)
			}
		}
	}
	if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil {
		t.Errorf("the slow reader got %d bytes, %v", n, err)
	}
}
