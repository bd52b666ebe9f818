package chain

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/wire"
)

// request makes one as a gateway leads it to the activator.
func (w *world) request(t *testing.T, method string, body io.Reader) *http.Request {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, w.url+"/path", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "hello.example.com"
	request.Header.Set(wire.HeaderResting, "external")
	return request
}

// Bodies of any length with trailers, both ways, over both protocols.
func TestARelayedRequestKeepsBodiesAndTrailers(t *testing.T) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	for proto, transport := range map[int]*http.Transport{1: {}, 2: {Protocols: protocols}} {
		for _, limit := range []int{0, 2} {
			t.Run(fmt.Sprintf("HTTP/%d, limit %d", proto, limit), func(t *testing.T) {
				f := newFleet(t, 3)
				defer transport.CloseIdleConnections()
				f.revision(backends.Info{ContainerConcurrency: limit, Timeout: time.Minute})
				pod := f.other.podH2("p", func(rw http.ResponseWriter, r *http.Request) {
					if r.ProtoMajor != proto {
						t.Errorf("the pod was asked over %s", r.Proto)
					}
					rw.Header().Set("Trailer", "Got")
					body, _ := io.ReadAll(r.Body)
					rw.Write(body)
					rw.Header().Set("Got", r.Trailer.Get("Sum"))
				})
				for _, w := range f.two {
					w.pods(pod) // the outsider knows no pod, so that it relays without a limit, too
				}
				n := int64(0)
				for _, size := range []int{0, 10, 100_000, 1_000_000} {
					for range 3 { // on new connections and on old ones
						body := strings.Repeat("b", size)
						request := f.other.request(t, "POST", io.MultiReader(strings.NewReader(body)))
						request.Trailer = http.Header{"Sum": {fmt.Sprint(size)}}
						response, err := transport.RoundTrip(request)
						if err != nil {
							t.Fatal(err)
						}
						answer, err := io.ReadAll(response.Body)
						response.Body.Close()
						if err != nil || response.StatusCode != 200 || string(answer) != body || response.Trailer.Get("Got") != fmt.Sprint(size) {
							t.Errorf("%d bytes: got %d, %d bytes, %v, trailer %v", size, response.StatusCode, len(answer), err, response.Trailer)
						}
						n++
					}
				}
				f.counts(n)
				if _, relayed := f.other.counted(); relayed != n {
					t.Errorf("%d of %d were relayed", relayed, n)
				}
			})
		}
	}
}

// A response is passed on as it comes.
func TestARelayedResponseStreams(t *testing.T) {
	f := newFleet(t, 3)
	f.revision(backends.Info{ContainerConcurrency: 1})
	next := make(chan string)
	f.pods(f.other.pod("p", func(rw http.ResponseWriter, _ *http.Request) {
		for line := range next {
			io.WriteString(rw, line)
			rw.(http.Flusher).Flush()
		}
	}))
	go func() { next <- "event 0\n" }()
	response, err := f.other.client.Do(f.other.request(t, "GET", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	r := bufio.NewReader(response.Body)
	for i := range 5 {
		if line, err := r.ReadString('\n'); err != nil || line != fmt.Sprintf("event %d\n", i) {
			t.Fatalf("got %q, %v", line, err)
		}
		if i < 4 {
			next <- fmt.Sprintf("event %d\n", i+1)
		}
	}
	close(next)
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Errorf("then %q, %v", rest, err)
	}
	f.counts(1)
}

// connect writes the head of a request to an activator.
func (w *world) connect(t *testing.T, head string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", w.address().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, head+"Host: hello.example.com\r\nEbb-Resting: external\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

func TestARelayedUpgrade(t *testing.T) {
	f := newFleet(t, 3)
	f.revision(backends.Info{ContainerConcurrency: 1})
	f.pods(f.other.pod("p", func(rw http.ResponseWriter, r *http.Request) {
		c, buffered, err := rw.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: lines\r\n\r\n")
		for {
			line, err := buffered.ReadString('\n')
			if err != nil {
				return
			}
			io.WriteString(c, "you said "+line)
		}
	}))
	c, r := f.other.connect(t, "GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: lines\r\n")
	response, err := http.ReadResponse(r, nil)
	if err != nil || response.StatusCode != 101 || response.Header.Get("Upgrade") != "lines" {
		t.Fatalf("got %+v, %v", response, err)
	}
	for i := range 3 {
		fmt.Fprintln(c, i)
		if line, err := r.ReadString('\n'); err != nil || line != fmt.Sprintf("you said %d\n", i) {
			t.Fatalf("got %q, %v", line, err)
		}
	}
	c.Close()
	f.counts(1)
	if _, relayed := f.other.counted(); relayed != 1 {
		t.Errorf("%d were relayed", relayed)
	}
}

// A client that asks whether to send its body is told when there is a pod, and sends it once.
func TestARelayedRequestThatExpectsContinue(t *testing.T) {
	for _, limit := range []int{0, 1} {
		t.Run(fmt.Sprint("limit ", limit), func(t *testing.T) {
			f := newFleet(t, 3)
			f.revision(backends.Info{ContainerConcurrency: limit})
			pod := f.other.pod("p", echo)
			for _, w := range f.two {
				w.pods(pod)
			}
			c, r := f.other.connect(t, "POST / HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n")
			response, err := http.ReadResponse(r, nil)
			if err != nil || response.StatusCode != 100 {
				t.Fatalf("got %+v, %v", response, err)
			}
			io.WriteString(c, "hello")
			if response, err = http.ReadResponse(r, nil); err != nil || response.StatusCode != 200 {
				t.Fatalf("got %+v, %v", response, err)
			}
			if body, err := io.ReadAll(response.Body); err != nil || string(body) != "hello" {
				t.Errorf("got %q, %v", body, err)
			}
			f.counts(1)
		})
	}
}

func TestARelayedHeadRequest(t *testing.T) {
	f := newFleet(t, 3)
	f.revision(backends.Info{ContainerConcurrency: 1})
	f.pods(f.other.pod("p", func(rw http.ResponseWriter, _ *http.Request) { rw.Header().Set("Content-Length", "7") }))
	for range 3 {
		response, err := f.other.client.Do(f.other.request(t, "HEAD", nil))
		if err != nil || response.StatusCode != 200 || response.ContentLength != 7 {
			t.Fatalf("got %+v, %v", response, err)
		}
		response.Body.Close()
	}
	f.counts(3)
}
