package forward

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The bits of a run of FuzzWholeForwarder.
const (
	earlyResponses  = 1 << iota // the upstream answers before it reads the body
	closingUpstream             // ... and closes afterwards
	fleetingClient              // the client leaves a second after it has sent all
	waitingPolicy               // every request waits for a moment before it is admitted
	deferringPolicy             // ... and keeps its body back
	secondThoughts              // a response of 503 is dropped once, and the request is sent again
	cutResponses                // the upstream writes byte by byte
)

// message is a request or a response as net/http reads it.
type message struct {
	what  string // method, target and host, or the status
	body  string
	whole bool
}

// is says whether m can be what became of other: all of it, or the beginning of its body.
func (m message) is(other message) bool {
	return m.what == other.what && (m.whole && other.whole && m.body == other.body || !m.whole && strings.HasPrefix(other.body, m.body))
}

func readRequest(r *bufio.Reader) (m message, request *http.Request, err error) {
	empty := false
	for {
		if b, err := r.Peek(2); err != nil || string(b) != "\r\n" {
			break
		}
		r.Discard(2) // RFC 9112 section 2.2
		empty = true
	}
	if request, err = http.ReadRequest(r); err != nil {
		if empty && err == io.EOF {
			err = io.ErrUnexpectedEOF // an empty line begins a request
		}
		return m, nil, err
	}
	target := request.RequestURI
	if _, rest, absolute := strings.Cut(target, "://"); absolute && request.URL.IsAbs() { // it goes on in origin form
		if target = "/"; strings.ContainsAny(rest, "/?") {
			target += strings.TrimPrefix(rest[strings.IndexAny(rest, "/?"):], "/")
		}
	}
	m.what = fmt.Sprintf("%s %s %s", request.Method, target, request.Host)
	return m, request, nil
}

// readResponses reads as many responses as there are, to requests of these methods. broken is why
// there was no further one.
func readResponses(b []byte, methods []string) (list []message, forwarded []bool, broken error) {
	r := bufio.NewReader(bytes.NewReader(b))
	for i := 0; ; {
		if _, err := r.Peek(1); err != nil {
			return list, forwarded, nil
		}
		method := http.MethodGet
		if i < len(methods) {
			method = methods[i]
		}
		response, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			return list, forwarded, err
		}
		if response.StatusCode < 200 && response.StatusCode != 101 {
			continue
		}
		i++
		if forwarded := response.Header.Get("Ebb-Forwarded") != ""; !forwarded && method == http.MethodHead && slices.Contains([]int{400, 431, 501, 505}, response.StatusCode) && response.Close {
			// The head was refused before its method was known, so a HEAD gets the text, too.
			io.Copy(io.Discard, r)
		}
		body, err := io.ReadAll(response.Body)
		list = append(list, message{what: fmt.Sprint(response.StatusCode), body: string(body), whole: err == nil})
		forwarded = append(forwarded, response.Header.Get("Ebb-Forwarded") != "")
		if err != nil || response.StatusCode == 101 {
			return list, forwarded, err
		}
	}
}

// chainRun is one client's connection through the forwarder to an upstream, in virtual time.
type chainRun struct {
	t         *testing.T
	sent      []byte
	responses [2][]byte
	bits      uint8
	piece     int // the client writes so many bytes at a time

	up      *Upstream
	all     sync.WaitGroup
	mu      sync.Mutex
	arrived []message // requests at the upstream, in order
	unread  bool      // net/http did not understand one of them
	admits  int
	dones   int
	again   bool
}

func (c *chainRun) is(bit uint8) bool { return c.bits&bit != 0 }

func (c *chainRun) Admit(r *Request) Decision {
	c.mu.Lock()
	c.admits++
	c.again = false
	c.mu.Unlock()
	r.Timeouts = Timeouts{Total: 20 * time.Second, ResponseStart: 10 * time.Second}
	r.AddResponseHeader("Ebb-Forwarded", "1")
	if c.is(waitingPolicy) {
		select {
		case <-r.Context().Done():
		case <-time.After(time.Second):
		}
	}
	if c.is(deferringPolicy) {
		r.DeferBody(time.Second)
	}
	return Decision{Upstream: c.up}
}

// reconsidering sends a request again, once.
type reconsidering struct{ *chainRun }

func (c reconsidering) OnResponse(_ *Request, response *Response) (Decision, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.again || response.Status != 503 || !response.Replayable {
		return Decision{}, false
	}
	c.again = true
	return Decision{Upstream: c.up}, true
}

func (c *chainRun) Done(*Request, *Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dones++
}

// upstream answers on one connection.
func (c *chainRun) upstream(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	for {
		m, request, err := readRequest(r)
		if err != nil {
			if !ended(err) {
				c.mu.Lock()
				c.unread = true
				c.mu.Unlock()
				if !tasteOf(err) {
					c.t.Errorf("the upstream was sent something broken for %q: %v", c.sent, err)
				}
			}
			return
		}
		c.mu.Lock()
		n := len(c.arrived)
		c.arrived = append(c.arrived, m)
		c.mu.Unlock()
		answer := c.responses[n%2]
		readBody := func() bool {
			body, err := io.ReadAll(request.Body)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.arrived[n].body, c.arrived[n].whole = string(body), err == nil
			if err != nil && !ended(err) {
				c.t.Errorf("the upstream was sent a broken body for %q: %v", c.sent, err)
			}
			return err == nil
		}
		if !c.is(earlyResponses) {
			if c.is(deferringPolicy) && request.Header.Get("Expect") != "" {
				if _, err := io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
					return
				}
			}
			if !readBody() {
				return
			}
		}
		size := len(answer)
		if c.is(cutResponses) {
			size = 1
		}
		for rest := answer; len(rest) > 0; {
			k, err := conn.Write(rest[:min(size, len(rest))])
			if rest = rest[k:]; err != nil {
				return
			}
		}
		if c.is(closingUpstream) {
			return
		}
		if request.Header.Get("Upgrade") != "" && bytes.Contains(answer, []byte("101")) {
			io.Copy(io.Discard, r) // another protocol
			return
		}
		if c.is(earlyResponses) && !readBody() {
			return
		}
	}
}

// ended says that a connection ended where something was to be read. net/http has words of its own
// for trailers that do not end.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		strings.Contains(err.Error(), "unexpected EOF") || strings.Contains(err.Error(), "long trailer")
}

// tasteOf says whether an error of net/http's is about an address that it cannot parse, which is no
// broken framing.
func tasteOf(err error) bool {
	return strings.Contains(err.Error(), "parse ") || strings.Contains(err.Error(), "invalid")
}

// run plays it and returns what the client got.
func (c *chainRun) run() []byte {
	c.up = NewUpstream("upstream", UpstreamOptions{Dial: func(context.Context, string) (net.Conn, error) {
		near, far := net.Pipe()
		c.all.Go(func() { c.upstream(far) })
		return near, nil
	}})
	var handler Handler = c
	if c.is(secondThoughts) {
		handler = reconsidering{c}
	}
	s := &Server{Handler: handler}
	s.init()
	client, server := net.Pipe()
	conn := newConn(s, server, nil)
	s.track(&conn.clientConn)
	c.all.Go(conn.serve)
	c.all.Go(func() {
		for rest := c.sent; len(rest) > 0; {
			n, err := client.Write(rest[:min(c.piece, len(rest))])
			if rest = rest[n:]; err != nil {
				return
			}
		}
		if c.is(fleetingClient) {
			time.Sleep(time.Second)
			client.Close()
		}
	})
	got, _ := io.ReadAll(client)
	client.Close()
	s.Close()
	c.up.Close()
	c.all.Wait()
	return got
}

// check compares what happened with what net/http makes of the same bytes.
func (c *chainRun) check(got []byte) {
	t := c.t
	if c.admits != c.dones {
		t.Errorf("%d requests were admitted, %d are done", c.admits, c.dones)
	}
	if bytes.HasPrefix(c.sent, []byte(preface)) {
		return // FuzzWholeHTTP2Forwarder's
	}
	// The upstream gets the requests that the client sent, in their order. One may come twice, or
	// not at all when it failed here.
	var sent []message
	var methods []string
	known := !c.unread // all of what follows can be read by net/http
	refusals := 0      // that the client may get for what is no request
	for r := bufio.NewReader(bytes.NewReader(c.sent)); ; {
		m, request, err := readRequest(r)
		if err != nil {
			known = known && !tasteOf(err)
			if err != io.EOF {
				refusals = 1
			}
			break
		}
		body, err := io.ReadAll(request.Body)
		m.body, m.whole = string(body), err == nil
		sent, methods = append(sent, m), append(methods, request.Method)
		if err != nil {
			break
		}
	}
	next := 0
	for i, m := range c.arrived {
		at := max(next-1, 0)
		for at < len(sent) && !m.is(sent[at]) {
			at++
		}
		if next = at + 1; at == len(sent) && known {
			t.Fatalf("request %d at the upstream is %+v; the client sent %q, which is %+v", i, m, c.sent, sent)
		}
	}
	// The client gets well-formed responses, at most one for each request and a refusal; those of
	// the upstream are what it wrote.
	list, forwarded, err := readResponses(got, methods)
	if err != nil && !ended(err) && known {
		t.Fatalf("for %q the client got %q: %v", c.sent, got, err)
	}
	if len(list) > len(sent)+refusals && known {
		t.Fatalf("%d requests in %q got %d responses: %q", len(sent), c.sent, len(list), got)
	}
	for i, m := range list {
		if !forwarded[i] || !known {
			continue
		}
		wrote := c.wrote(methods, i)
		if !slices.ContainsFunc(wrote, func(w message) bool { return m.what == w.what && strings.HasPrefix(w.body, m.body) }) {
			t.Fatalf("response %d is %+v; the upstream wrote %q, which is %+v", i, m, c.responses, wrote)
		}
	}
}

// wrote is what the upstream may have answered to the client's request i.
func (c *chainRun) wrote(methods []string, i int) (list []message) {
	// This forwarder believes chunks of an upstream that calls its protocol HTTP/1.0, net/http does
	// not.
	newer := func(b []byte) []byte { return bytes.Replace(b, []byte("HTTP/1.0"), []byte("HTTP/1.1"), 1) }
	for _, b := range [][]byte{c.responses[0], c.responses[1], newer(c.responses[0]), newer(c.responses[1])} {
		if some, _, _ := readResponses(b, methods[min(i, len(methods)):]); len(some) > 0 {
			list = append(list, some[0])
		}
	}
	return list
}

// Whatever bytes a client and an upstream send, in whatever pieces: the upstream gets what the
// client said in net/http's understanding, the client gets what the upstream said, everything ends,
// and nothing is left behind.
func FuzzWholeForwarder(f *testing.F) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	const chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: T\r\n\r\n2\r\nok\r\n0\r\nT: v\r\n\r\n"
	const again = "HTTP/1.1 503 Full\r\nContent-Length: 0\r\n\r\n"
	all := strings.Join(heads[:3], "")
	for i, h := range heads {
		f.Add([]byte(h), []byte(ok), []byte(chunks), uint8(0), uint8(0))
		f.Add([]byte(h+heads[(i+1)%len(heads)]), []byte(chunks), []byte(ok), uint8(i<<3), uint8(i))
	}
	for bit := range 7 {
		f.Add([]byte(all+all), []byte(ok), []byte(chunks), uint8(1<<bit), uint8(5*bit))
		f.Add([]byte(all), []byte(again), []byte(ok), uint8(1<<bit|secondThoughts), uint8(0))
	}
	f.Add([]byte(all), []byte("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\nuntil the end"), []byte("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"+ok), uint8(closingUpstream), uint8(0))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nmore"), []byte("HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhi"), []byte(ok), uint8(fleetingClient), uint8(0))
	f.Add([]byte("HEAD / HTTP/1.9\r\nHost: h\r\n\r\n"), []byte(ok), []byte(ok), uint8(0), uint8(0))
	f.Add([]byte("HEAD * HTTP/0.0\n\n"), []byte(ok), []byte(ok), uint8('>'), uint8('T'))
	f.Add([]byte("0 / HTTP/1.0\r\n0000:\r\n\r\n"), []byte("HTTP/1.0 200\nTrAnsfer-EnCoding:Chunked\n\n1\r\n0"), []byte("0"), uint8('u'), uint8(3))
	const unasked = "HTTP/1.1 299 Unasked\r\nContent-Length: 7\r\n\r\nunasked"
	for bit := range 7 { // an upstream that says too much
		f.Add([]byte(all+all), []byte(ok+unasked), []byte(chunks+unasked), uint8(1<<bit), uint8(0))
	}
	f.Add([]byte("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n"+heads[1]), []byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"), []byte("HTTP/1.1 204 No\r\n\r\n"), uint8(0), uint8(3))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 9000\r\n\r\n"+strings.Repeat("x", 9000)+heads[0]), []byte(ok), []byte("HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n"+strings.Repeat("y", 9000)), uint8(earlyResponses), uint8(63))
	f.Fuzz(func(t *testing.T, sent, first, second []byte, bits, piece uint8) {
		synctest.Test(t, func(t *testing.T) {
			c := &chainRun{t: t, sent: sent, responses: [2][]byte{first, second}, bits: bits, piece: int(piece)}
			if piece == 0 {
				c.piece = 1 << 20
			}
			c.check(c.run())
		})
	})
}
