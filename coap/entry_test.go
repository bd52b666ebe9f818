package coap

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	piondtls "github.com/pion/dtls/v3"
	"github.com/plgd-dev/go-coap/v3/dtls"
	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/message/pool"
	"github.com/plgd-dev/go-coap/v3/net/blockwise"
	"github.com/plgd-dev/go-coap/v3/options"
	"github.com/plgd-dev/go-coap/v3/udp"
	"github.com/plgd-dev/go-coap/v3/udp/client"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"ebb.dev/ebb/internal/testing/reserve"
	"ebb.dev/ebb/test/eventually"
)

var testKeys = map[string][]byte{"sensor": []byte("0123456789abcdef"), "short": []byte("0123")}

// start runs an entry in front of a service. change may be nil.
func start(t *testing.T, service http.HandlerFunc, change func(*Options)) *Entry {
	t.Helper()
	server := httptest.NewServer(service)
	t.Cleanup(server.Close)
	o := Options{Plain: "127.0.0.1:0", Secure: "127.0.0.1:0", Gateway: server.Listener.Addr().String(), Rate: 100000,
		Keys: func() map[string][]byte { return testKeys }, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	if change != nil {
		change(&o)
	}
	e, err := New(o, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the entry ended: %v", err)
		}
	})
	return e
}

func dial(t *testing.T, e *Entry) *client.Conn {
	t.Helper()
	c, err := udp.Dial(e.Plain().String(), options.WithBlockwise(true, blockwise.SZX1024, time.Minute),
		options.WithLimitClientParallelRequest(64), options.WithLimitClientEndpointParallelRequest(64))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func known(identity string, key []byte) []piondtls.ClientOption {
	return []piondtls.ClientOption{
		piondtls.WithPSK(func([]byte) ([]byte, error) { return key, nil }),
		piondtls.WithPSKIdentityHint([]byte(identity)),
		piondtls.WithCipherSuites(piondtls.TLS_PSK_WITH_AES_128_CCM_8)}
}

func dialSecure(e *Entry, identity string, key []byte) (*client.Conn, error) {
	return dtls.Dial(e.Secure().String(), dtls.NewDTLSClientOptions(known(identity, key)...))
}

// shake tries a handshake. The client of go-coap would wait for ever for one that gets no answer.
func shake(t *testing.T, e *Entry, identity string, key []byte) error {
	t.Helper()
	to, err := net.ResolveUDPAddr("udp", e.Secure().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := piondtls.DialWithOptions("udp", to, known(identity, key)...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
	defer cancel()
	return c.HandshakeContext(ctx)
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

var toHello = message.Option{ID: message.URIHost, Value: []byte("hello.default.example.com")}

// call sends a request and returns the code and the body of its answer.
func call(t *testing.T, c *client.Conn, code codes.Code, path string, body []byte, more ...message.Option) (codes.Code, []byte, *pool.Message) {
	t.Helper()
	m, err := c.NewGetRequest(within(t), path, append([]message.Option{toHello}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	m.SetCode(code)
	if body != nil {
		m.SetContentFormat(message.AppOctets)
		m.SetBody(bytes.NewReader(body))
	}
	answer, err := c.Do(m)
	if err != nil {
		t.Fatalf("%v %s: %v", code, path, err)
	}
	got, err := answer.ReadBody()
	if err != nil {
		t.Fatal(err)
	}
	return answer.Code(), got, answer
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s%s %s", r.Method, r.Host, r.RequestURI, body)
}

func TestMethodsHostPathAndQueryReachTheService(t *testing.T) {
	t.Parallel()
	c := dial(t, start(t, echo, nil))
	query := message.Option{ID: message.URIQuery, Value: []byte("a=1&2")}
	for _, try := range []struct {
		code, want codes.Code
		body, got  string
	}{
		{codes.GET, codes.Content, "", "GET hello.default.example.com/a%20b/c?a=1%262 "},
		{codes.POST, codes.Changed, "x", "POST hello.default.example.com/a%20b/c?a=1%262 x"},
		{codes.PUT, codes.Changed, "y", "PUT hello.default.example.com/a%20b/c?a=1%262 y"},
		{codes.DELETE, codes.Deleted, "", "DELETE hello.default.example.com/a%20b/c?a=1%262 "},
	} {
		code, got, answer := call(t, c, try.code, "/a b/c", []byte(try.body), query)
		if code != try.want || string(got) != try.got {
			t.Errorf("%v answered %v %q, want %v %q", try.code, code, got, try.want, try.got)
		}
		if format, err := answer.ContentFormat(); err != nil || format != message.TextPlain {
			t.Errorf("%v: content format %v %v", try.code, format, err)
		}
	}
}

func TestBodiesComeAndGoInBlocks(t *testing.T) {
	t.Parallel()
	large := bytes.Repeat([]byte("0123456789"), 6000)
	e := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		body, _ := io.ReadAll(r.Body)
		w.Write(body)
	}, nil)
	secure, err := dialSecure(e, "sensor", testKeys["sensor"])
	if err != nil {
		t.Fatal(err)
	}
	defer secure.Close()
	for name, c := range map[string]*client.Conn{"UDP": dial(t, e), "DTLS": secure} {
		code, got, _ := call(t, c, codes.POST, "/", large)
		if code != codes.Changed || !bytes.Equal(got, large) {
			t.Errorf("over %s: %v with %d bytes, want %d", name, code, len(got), len(large))
		}
	}
	eventually.True(t, "all memory is given back", func() bool { return e.memory.Used() == 0 })
}

func TestALargeBodyIsRefusedAndALargeAnswerIsABadGateway(t *testing.T) {
	t.Parallel()
	e := start(t, func(w http.ResponseWriter, r *http.Request) { w.Write(make([]byte, 100<<10)) }, func(o *Options) { o.Body, o.Answer = 8<<10, 64<<10 })
	c := dial(t, e)
	if code, _, _ := call(t, c, codes.PUT, "/", make([]byte, 9<<10)); code != codes.RequestEntityTooLarge {
		t.Errorf("a body of 9 KiB: %v", code)
	}
	if code, text, _ := call(t, c, codes.GET, "/", nil); code != codes.BadGateway || !strings.Contains(string(text), "larger") {
		t.Errorf("an answer of 100 KiB: %v %q", code, text)
	}
	eventually.True(t, "all memory is given back", func() bool { return e.memory.Used() == 0 })
}

func TestASlowAnswerComesAfterTheAcknowledgement(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	slow := make(chan struct{})
	e := start(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if r.URL.Path == "/slow" {
			<-slow
		}
		fmt.Fprint(w, "done")
	}, nil)
	c := dial(t, e)
	answered := make(chan string, 1)
	go func() {
		_, got, _ := call(t, c, codes.GET, "/slow", nil)
		answered <- string(got)
	}()
	eventually.True(t, "the service has the request", func() bool { return calls.Load() == 1 })
	// The same peer's other requests do not wait.
	if code, _, _ := call(t, c, codes.GET, "/fast", nil); code != codes.Content {
		t.Errorf("a request beside one that waits: %v", code)
	}
	<-time.After(3 * acknowledgeAfter)
	close(slow)
	if got := <-answered; got != "done" || calls.Load() != 2 {
		t.Errorf("got %q after %d calls of the service", got, calls.Load())
	}
}

func TestARequestThatComesTwiceIsDoneOnce(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	e := start(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, calls.Add(1)) }, nil)
	raw := rawConn(t, e)
	// CON POST, message ID 7, token 1, Uri-Host "a".
	request := []byte{0x41, 0x02, 0x00, 0x07, 0x01, 0x31, 'a'}
	var first []byte
	for range 3 {
		raw.Write(request)
		answer := readRaw(t, raw)
		if first == nil {
			first = answer
		}
		if !bytes.Equal(answer, first) {
			t.Errorf("the answers differ: %x and %x", first, answer)
		}
	}
	if calls.Load() != 1 {
		t.Errorf("the service was called %d times", calls.Load())
	}
}

func rawConn(t *testing.T, e *Entry) net.Conn {
	t.Helper()
	raw, err := net.Dial("udp", e.Plain().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	return raw
}

func readRaw(t *testing.T, raw net.Conn) []byte {
	t.Helper()
	raw.SetReadDeadline(time.Now().Add(20 * time.Second))
	buffer := make([]byte, 2000)
	n, err := raw.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	return buffer[:n]
}

func TestAWrongKeyOrIdentityGetsNoSession(t *testing.T) {
	t.Parallel()
	e := start(t, echo, nil)
	for _, try := range []struct{ identity, key, reason string }{
		{"sensor", "fedcba9876543210", "protocol"}, {"nobody", "0123456789abcdef", "identity"}, {"short", "0123", "identity"},
	} {
		failed := e.metrics.handshakes.WithLabelValues(try.reason)
		before := testutil.ToFloat64(failed)
		if shake(t, e, try.identity, []byte(try.key)) == nil {
			t.Errorf("%s with the key %s got a session", try.identity, try.key)
		}
		eventually.True(t, try.identity+" is counted", func() bool { return testutil.ToFloat64(failed) > before })
	}
	c, err := dialSecure(e, "sensor", testKeys["sensor"])
	if err != nil {
		t.Fatalf("with the right key: %v", err)
	}
	defer c.Close()
	if code, _, _ := call(t, c, codes.GET, "/", nil); code != codes.Content {
		t.Errorf("with the right key: %v", code)
	}
}

func TestAGatewayThatIsAwayIsABadGateway(t *testing.T) {
	t.Parallel()
	c := dial(t, start(t, echo, func(o *Options) { o.Gateway = reserve.Port(t).String() }))
	if code, text, _ := call(t, c, codes.GET, "/", nil); code != codes.BadGateway {
		t.Errorf("got %v %q", code, text)
	}
}

func TestAServiceThatDoesNotAnswerIsAGatewayTimeout(t *testing.T) {
	t.Parallel()
	c := dial(t, start(t, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, func(o *Options) { o.Timeout = 2 * time.Second }))
	if code, text, _ := call(t, c, codes.GET, "/", nil); code != codes.GatewayTimeout {
		t.Errorf("got %v %q", code, text)
	}
}
